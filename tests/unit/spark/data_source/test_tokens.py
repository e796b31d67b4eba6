import json
from types import SimpleNamespace

import pytest

from airflow_provider_snowpipe.spark.data_source import gates
from airflow_provider_snowpipe.spark.data_source.gates import checked_columns, driver_token
from airflow_provider_snowpipe.spark.data_source.options import WriteOptions
from airflow_provider_snowpipe.spark.driver.credentials import standing_credentials, write_credentials
from airflow_provider_snowpipe.streaming.auth import ProgrammaticAccessToken
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.table_schema import TableColumn
from tests.scripted_service import Reply, ScriptedService, scoped_token


@pytest.fixture
def service(tmp_path):
    with ScriptedService(tmp_path) as running:
        yield running


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "credentials.json"
    write_credentials(ProgrammaticAccessToken("pat-one"), path)
    return path


OPTIONS = {"database": "D", "schema": "S", "table": "T", "channelPrefix": "ds", "partitions": "2"}


def _options(service, file=None, **more):
    options = {
        "accountUrl": service.url,
        "caBundle": service.ca_bundle,
        **OPTIONS,
        **({} if file is None else {"credentialsFile": str(file)}),
        **more,
    }
    return WriteOptions.parse(options)


def test_young_token_is_used_again_and_the_file_is_left(service, file):
    options = _options(service, file)

    assert driver_token(options) is driver_token(options)
    assert len(service.requests("token")) == 1
    assert file.exists()


def test_token_is_replaced_once_a_fifth_of_its_life_is_over(service, file, monkeypatch):
    service.on("token", Reply(body=scoped_token(3600)), Reply(body=scoped_token(3601)))
    options = _options(service, file)
    first = driver_token(options)
    now = first.expires_at - 0.79 * 3600
    monkeypatch.setattr("time.time", lambda: now)

    assert driver_token(options) is not first
    assert len(service.requests("token")) == 2


def test_file_that_others_may_read_meanwhile_is_refused(service, file):
    options = _options(service, file)
    driver_token(options)
    file.chmod(0o640)

    with pytest.raises(ConfigurationError, match="has mode -rw-r-----"):
        driver_token(options)


def test_credentials_come_from_the_environment_where_no_option_names_a_file(service, file, monkeypatch):
    monkeypatch.setenv("SNOWPIPE_CREDENTIALS_FILE", str(file))
    driver_token(_options(service))
    monkeypatch.delenv("SNOWPIPE_CREDENTIALS_FILE")
    monkeypatch.setenv("SNOWPIPE_CREDENTIALS", json.dumps({"kind": "pat", "token": "pat-env"}))
    driver_token(_options(service))

    sent = [request.headers["Authorization"] for request in service.requests("token")]
    assert sent == ["Bearer pat-one", "Bearer pat-env"]


def test_missing_credentials_are_an_error_that_names_their_option(monkeypatch):
    monkeypatch.delenv("SNOWPIPE_CREDENTIALS_FILE", raising=False)
    monkeypatch.delenv("SNOWPIPE_CREDENTIALS", raising=False)

    with pytest.raises(ConfigurationError, match="SNOWPIPE_CREDENTIALS_FILE"):
        standing_credentials(None)
    with pytest.raises(ConfigurationError, match="SNOWPIPE_CREDENTIALS_FILE"):
        driver_token(WriteOptions.parse({**OPTIONS, "accountUrl": "https://a"}))
    monkeypatch.setenv("SNOWPIPE_CREDENTIALS", "hunter2")
    with pytest.raises(ConfigurationError, match="variable SNOWPIPE_CREDENTIALS holds no JSON") as caught:
        standing_credentials(None)
    assert "hunter2" not in str(caught.value)


class TestColumns:
    @pytest.fixture(autouse=True)
    def clock(self, monkeypatch):
        clock = SimpleNamespace(now=1000.0)
        monkeypatch.setattr(gates, "_columns_kept", {})
        monkeypatch.setattr(gates.time, "monotonic", lambda: clock.now)
        return clock

    @pytest.fixture
    def described(self, monkeypatch):
        """The tables that were described, by whom and over which trust; each time there is a column more."""
        calls = []

        def describe(account_url, credentials, table, *, ca_bundle):
            calls.append((account_url, credentials.bearer(), table, ca_bundle))
            return tuple(TableColumn(f"C{n}", "TEXT") for n in range(len(calls)))

        monkeypatch.setattr(gates, "describe_table", describe)
        return calls

    def options(self, file, **more):
        given = {"accountUrl": "https://a", "caBundle": "/ca.pem", "credentialsFile": str(file), **more}
        return WriteOptions.parse({**OPTIONS, "unknownColumns": "warn", **given})

    def test_are_kept_for_a_minute(self, file, described, clock):
        first = checked_columns(self.options(file))
        clock.now += 59
        again = checked_columns(self.options(file))
        clock.now += 1
        later = checked_columns(self.options(file))

        assert ([c.name for c in first], again, [c.name for c in later]) == (["C0"], first, ["C0", "C1"])
        assert described == [("https://a", "pat-one", '"D"."S"."T"', "/ca.pem")] * 2

    def test_of_a_table_without_any_are_refused(self, file, monkeypatch):
        monkeypatch.setattr(gates, "describe_table", lambda *given, **named: ())

        with pytest.raises(ConfigurationError, match=r'"D"."S"."T"'):
            checked_columns(self.options(file))

    def test_are_asked_for_with_replaced_credentials(self, file, described):
        checked_columns(self.options(file))
        file.unlink()
        write_credentials(ProgrammaticAccessToken("pat-two"), file)
        checked_columns(self.options(file))

        assert [token for _, token, _, _ in described] == ["pat-one", "pat-two"]

    @pytest.mark.parametrize("change", [{"table": "U"}, {"accountUrl": "https://b"}, {"caBundle": "/b.pem"}])
    def test_are_those_of_this_table(self, file, described, change):
        checked_columns(self.options(file))
        checked_columns(self.options(file, **change))

        assert len(set(described)) == 2

    def test_are_not_asked_for_where_nothing_is_held_against_them(self, file, described):
        assert checked_columns(self.options(file, unknownColumns="ignore")) == ()
        assert described == []


def test_replaced_credentials_are_read_anew(service, file):
    options = _options(service, file)
    driver_token(options)
    file.unlink()
    write_credentials(ProgrammaticAccessToken("pat-two"), file)
    driver_token(options)

    sent = [request.headers["Authorization"] for request in service.requests("token")]
    assert sent == ["Bearer pat-one", "Bearer pat-two"]

"""What the driver of a write asks for once: its scoped token, and the table's columns."""

import json
from types import SimpleNamespace

import pytest

from airflow_provider_snowpipe.spark.data_source import gates
from airflow_provider_snowpipe.spark.data_source.gates import checked_columns, driver_token
from airflow_provider_snowpipe.spark.driver.credentials import standing_credentials, write_credentials
from airflow_provider_snowpipe.streaming.auth import ProgrammaticAccessToken
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.table_schema import TableColumn
from tests.scripted_service import Reply, scoped_token
from tests.unit.spark.data_source.write_options import write_options


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "credentials.json"
    write_credentials(ProgrammaticAccessToken("pat-one"), path)
    return path


def replace_credentials(file):
    file.unlink()
    write_credentials(ProgrammaticAccessToken("pat-two"), file)


class TestToken:
    @pytest.fixture
    def options(self, service, file):
        return self.of(service, credentialsFile=str(file))

    def of(self, service, **more):
        return write_options(accountUrl=service.url, caBundle=str(service.ca_bundle), **more)

    def senders(self, service):
        return [request.headers["Authorization"] for request in service.requests("token")]

    def test_young_one_is_used_again_until_the_credentials_are_replaced(self, service, options, file):
        assert driver_token(options) is driver_token(options)
        assert file.exists()
        replace_credentials(file)
        driver_token(options)
        assert self.senders(service) == ["Bearer pat-one", "Bearer pat-two"]

    def test_is_replaced_once_a_fifth_of_its_life_is_over(self, service, options, monkeypatch):
        service.on("token", Reply(body=scoped_token(3600)), Reply(body=scoped_token(3601)))
        first = driver_token(options)
        now = first.expires_at - 0.79 * 3600
        monkeypatch.setattr("time.time", lambda: now)
        assert driver_token(options) is not first
        assert len(service.requests("token")) == 2

    def test_file_that_others_may_read_meanwhile_is_refused(self, options, file):
        driver_token(options)
        file.chmod(0o640)
        with pytest.raises(ConfigurationError, match="has mode -rw-r-----"):
            driver_token(options)

    def test_credentials_come_from_the_environment_without_an_option(self, service, file, monkeypatch):
        monkeypatch.setenv("SNOWPIPE_CREDENTIALS_FILE", str(file))
        driver_token(self.of(service))
        monkeypatch.delenv("SNOWPIPE_CREDENTIALS_FILE")
        monkeypatch.setenv("SNOWPIPE_CREDENTIALS", json.dumps({"kind": "pat", "token": "pat-env"}))
        driver_token(self.of(service))
        assert self.senders(service) == ["Bearer pat-one", "Bearer pat-env"]


def test_missing_credentials_are_an_error_that_names_their_option(monkeypatch):
    monkeypatch.delenv("SNOWPIPE_CREDENTIALS_FILE", raising=False)
    monkeypatch.delenv("SNOWPIPE_CREDENTIALS", raising=False)
    with pytest.raises(ConfigurationError, match="SNOWPIPE_CREDENTIALS_FILE"):
        driver_token(write_options())
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

    @pytest.fixture
    def columns(self, file):
        def columns(**more):
            given = {"accountUrl": "https://a", "caBundle": "/ca.pem", "unknownColumns": "warn", **more}
            found = checked_columns(write_options(credentialsFile=str(file), **given))
            return [column.name for column in found]

        return columns

    def test_are_kept_for_a_minute_or_until_credentials_change(self, file, described, columns, clock):
        found = []
        for seconds in (0, 59, 1):
            clock.now += seconds
            found.append(columns())
        replace_credentials(file)
        columns()
        assert found == [["C0"], ["C0"], ["C0", "C1"]]
        table = ('"DB"."S"."T"', "/ca.pem")
        assert described == [("https://a", who, *table) for who in ("pat-one", "pat-one", "pat-two")]

    def test_are_those_of_this_table(self, described, columns):
        columns()
        for change in ({"table": "U"}, {"accountUrl": "https://b"}, {"caBundle": "/b.pem"}):
            columns(**change)
        assert len(set(described)) == 4

    def test_are_not_asked_for_in_vain_and_none_are_refused(self, described, columns, monkeypatch):
        assert (columns(unknownColumns="ignore"), described) == ([], [])
        monkeypatch.setattr(gates, "describe_table", lambda *given, **named: ())
        with pytest.raises(ConfigurationError, match=r'"DB"."S"."T"'):
            columns()

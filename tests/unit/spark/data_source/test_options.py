"""Options of a write, the DataFrame's columns, and what its driver asks for once: a token, columns."""

import json
from types import SimpleNamespace

import pytest
from pyspark.sql import types

from airflow_provider_snowpipe.spark.data_source import gates
from airflow_provider_snowpipe.spark.data_source import options as module
from airflow_provider_snowpipe.spark.data_source.gates import checked_columns, driver_token
from airflow_provider_snowpipe.spark.data_source.source import SnowpipeDataSource
from airflow_provider_snowpipe.spark.driver.credentials import standing_credentials, write_credentials
from airflow_provider_snowpipe.streaming.auth import ProgrammaticAccessToken
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, EncodingError, UnknownColumnsError
from airflow_provider_snowpipe.streaming.names import PipeName
from airflow_provider_snowpipe.streaming.table_schema import TableColumn
from tests.refusals import refused
from tests.scripted_service import Reply, scoped_token
from tests.unit.spark.data_source.write_options import LEAST, write_options

DEAD = {"onError": "dead_letter", "deadLetterPath": "/dead"}


def test_option_names_have_no_case_sparks_own_are_ignored_and_defaults_are_those_of_the_job():
    given = {name.lower(): value for name, value in LEAST.items()}
    of_spark = {"checkpointlocation": "/ck", "queryname": "q"}
    options = module.WriteOptions.parse({**given, **of_spark, "BATCHBYTES": "1000"})
    assert (options.pipe, options.channel(3)) == (PipeName("DB", "S", "T-STREAMING"), "ds_3")
    assert (options.on_error, options.commit_timeout, options.limits.compression) == ("abort", 600.0, "zstd")
    assert (options.limits.raw_bytes, write_options().limits.raw_bytes) == (1000, 16 * 1024 * 1024)
    assert write_options(table=None, pipe="My Pipe").pipe == PipeName("DB", "S", "My Pipe")


def test_wrong_option_is_named_with_its_value_and_the_remedy():
    for changes, *words in [
        ({"frobnicate": "1"}, "option 'frobnicate' is unknown: use accountUrl, batchBytes"),
        ({"path": "/x"}, "a path was given to save() or start()"),
        ({"accountUrl": None}, "option accountUrl is missing"),
        ({"accountUrl": "http://x"}, "option accountUrl: account URL 'http://x'"),
        ({"table": None}, "exactly one of the options table"),
        ({"partitions": None}, "exactly one of the options channelColumn"),
        ({"partitions": "0"}, "option partitions is '0'", "from 1 to 2000"),
        ({"onError": "skip"}, "onError is 'skip'", "'abort', 'continue'"),
        ({"onError": "dead_letter"}, "deadLetterPath is None: rows that"),
        ({**DEAD, "deadLetterPath": "kafka:dead"}, "a DataFrame has no brokers"),
        ({**DEAD, "deadLetterPath": "s3://k:s@b/d"}, "holds credentials"),
        ({**DEAD, "deadLetterPath": "s3://b/d?secret_key=s"}, "'s3://b/d?…'"),
        ({"onError": "continue", "checkRows": "true"}, "checkRows is true"),
        ({"binaryFormat": "HEX"}, "binaryFormat is 'HEX'", "BASE64"),
        ({"checkRows": "yes"}, "checkRows is 'yes': it must be true or false"),
        ({**DEAD, "table": None, "pipe": "P"}, "pipe 'P', which may transform"),
        ({"commitTimeout": "soon"}, "commitTimeout is 'soon'", "seconds above 0"),
        ({"batchId": "1.5"}, "batchId is '1.5'"),
        ({"batchId": "1", "offsetColumn": "ID"}, "leave batchId out"),
        ({"credentialsFile": "c.json"}, "credentialsFile is 'c.json'", "absolute"),
        ({"channelPrefix": " "}, "channelPrefix is empty"),
        ({"channelPrefix": "x" * 255}, "channel name"),
        ({"omitColumns": "A,,B"}, "omitColumns is 'A,,B'"),
    ]:
        refused(ConfigurationError, lambda given: write_options(**given), [changes], *words)


def test_credential_given_as_an_option_is_refused_without_showing_it():
    names = ("password", "sfPassword", "privateKey", "pem_private_key", "token", "sfToken")
    given = [{name: "hunter2"} for name in names]
    errors = refused(ConfigurationError, lambda one: write_options(**one), given, "credentialsFile")
    assert "hunter2" not in "".join(map(str, errors))


def test_a_write_needs_a_batch_id_or_an_offset_column_and_a_stream_counts_itself():
    with pytest.raises(ConfigurationError, match=r"offsetColumn .* or batchId"):
        write_options().for_batch()
    assert write_options(batchId="20261121").for_batch() == 20261121
    assert write_options(offsetColumn="ID").for_batch() is None
    with pytest.raises(ConfigurationError, match="batchId is 7"):
        write_options(batchId="7").for_stream()


def test_every_option_has_a_row_in_the_reference(pytestconfig):
    page = (pytestconfig.rootpath / "docs" / "reference" / "data-source.md").read_text(encoding="utf-8")
    listed = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]
    assert listed[: len(module.OPTIONS)] == list(module.OPTIONS)


TEXT = types.StringType()


def _struct(**columns):
    return types.StructType([types.StructField(name, kind) for name, kind in columns.items()])


def _check(columns, **more):
    by_column = {"partitions": None} if "channelColumn" in more else {}
    module.check_schema(_struct(**columns).jsonValue(), write_options(**by_column, **more))


def test_every_type_that_ndjson_carries_is_taken():
    names = ("Long", "Double", "String", "Binary", "Date", "Timestamp", "Null", "TimestampNTZ", "Variant")
    kinds = [getattr(types, f"{name}Type")() for name in names]
    nested = _struct(x=types.ArrayType(types.DecimalType(38, 9)))
    maps = [types.MapType(TEXT, nested), types.MapType(types.IntegerType(), TEXT)]
    _check({f"c{number}": kind for number, kind in enumerate([*kinds, *maps])})


def test_type_without_a_json_form_is_refused_with_column_type_and_remedy():
    variant = types.VariantType()
    for kind, *words in [
        (types.CalendarIntervalType(), "'c' has type interval", "STRING"),
        (types.DayTimeIntervalType(), "'c' has type interval day to second", "STRING"),
        (types.ArrayType(variant), "'c.[]' has type variant", "a column of its own"),
        (types.MapType(TEXT, variant), "'c.{}' has type variant"),
        (_struct(v=variant), "'c.v' has type variant"),
        (types.MapType(types.DoubleType(), TEXT), "keys of type double: cast them"),
        (_struct(), "struct without fields"),
    ]:
        refused(EncodingError, lambda given: _check({"c": given}), [kind], *words)
    same = {"id": types.LongType(), "ID": types.LongType()}
    refused(EncodingError, _check, [same], "columns 'id' and 'ID'")


def test_key_columns_are_checked():
    columns = {"ID": types.LongType(), "AT": types.TimestampType()}
    for more, *words in [
        ({"offsetColumn": "id"}, "'id', which the DataFrame has not: it has ID, AT"),
        ({"offsetColumn": "AT"}, "offsetColumn names the column 'AT'", "cast it to BIGINT or STRING"),
        ({"channelColumn": "AT"}, "channelColumn names the column 'AT' of type timestamp"),
        ({"omitColumns": "X"}, "omitColumns names the column 'X'"),
        ({"omitColumns": "ID,AT"}, "no column to send"),
    ]:
        refused(ConfigurationError, lambda given: _check(columns, **given), [more], *words)
    schema = _struct(a=types.LongType(), b=TEXT).jsonValue()
    assert [module.is_integer(schema, name) for name in ("a", "b", None)] == [True, False, False]


def test_columns_for_which_the_table_has_none_are_named_or_refused(snowpipe, monkeypatch):
    table = [TableColumn("ID", "NUMBER(38,0)"), TableColumn("Kind", "VARCHAR")]

    def found(*names, known=table, **more):
        return module.unknown_columns(
            _struct(**dict.fromkeys(names, TEXT)).jsonValue(), write_options(**more), known
        )

    assert found("id", "KIND") == found("KIMD", unknownColumns="ignore") == found("KIMD", known=()) == []
    assert found("ID", "KIMD", "OTHER", omitColumns="OTHER") == ["KIMD"]
    for names, more in [(["KIMD"], {}), (["ID", "KIMD"], {"unknownColumns": "fail"})]:
        with pytest.raises(UnknownColumnsError, match="KIMD"):
            found(*names, **more)
    monkeypatch.setattr(gates, "driver_token", lambda _: snowpipe.scoped_token())
    monkeypatch.setattr(gates, "checked_columns", lambda _: table)
    given = {**LEAST, "batchId": "1", "unknownColumns": "fail"}
    with pytest.raises(UnknownColumnsError, match="KIMD"):
        SnowpipeDataSource(given).writer(_struct(ID=TEXT, KIMD=TEXT), False)


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
    with pytest.raises(ConfigurationError, match=r"SNOWPIPE_CREDENTIALS.*JSON") as caught:
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

        def rows(account_url, credentials, statement, *, ca_bundle):
            calls.append((account_url, credentials.bearer(), statement, ca_bundle))
            return [{"name": f"C{n}", "type": "TEXT"} for n in range(len(calls))]

        monkeypatch.setattr(gates, "statement_rows", rows)
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
        table = ('DESCRIBE TABLE "DB"."S"."T"', "/ca.pem")
        assert described == [("https://a", who, *table) for who in ("pat-one", "pat-one", "pat-two")]

    def test_are_those_of_this_table(self, described, columns):
        columns()
        for change in ({"table": "U"}, {"accountUrl": "https://b"}, {"caBundle": "/b.pem"}):
            columns(**change)
        assert len(set(described)) == 4

    def test_are_not_asked_for_in_vain_and_none_are_refused(self, described, columns, monkeypatch):
        assert (columns(unknownColumns="ignore"), described) == ([], [])
        monkeypatch.setattr(gates, "statement_rows", lambda *given, **named: [])
        with pytest.raises(ConfigurationError, match=r'"DB"."S"."T"'):
            columns()

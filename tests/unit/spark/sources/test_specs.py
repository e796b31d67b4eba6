"""The specifications of all sources: what they are called, bind and refuse, and those of other packages."""

import sqlite3
import sys
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_snowpipe.spark.driver.plan import JobPlan, read_plan
from airflow_provider_snowpipe.spark.driver.run import Run
from airflow_provider_snowpipe.spark.sources.files import spec as files
from airflow_provider_snowpipe.spark.sources.files.listing import binding_of
from airflow_provider_snowpipe.spark.sources.files.spec import ByKey, Csv, FileSource
from airflow_provider_snowpipe.spark.sources.kafka.spec import KafkaSource
from airflow_provider_snowpipe.spark.sources.registry import source_spec
from airflow_provider_snowpipe.spark.sources.tables.spec import TableSource
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SourcePositionError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from tests.fake_snowpipe import PIPE, URL
from tests.memory_source import InProcessSpark
from tests.refusals import refused

BASES: dict[str, dict[str, Any]] = {
    "csv": {"path": "/data"},
    "files": {"path": "/data"},
    "kafka": {"bootstrap_servers": "a:9092,b:9092", "topics": ["orders"]},
    "table": {"offset_column": "ID"},
    "delta": {"order_by": "ID"},
    "iceberg": {},
}


def spec(kind: str, **values: Any) -> Any:
    if kind == "csv":
        kind, values = "files", {"format": {"type": "csv", **values}}
    return source_spec({"kind": kind, **BASES[kind], **values})


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("csv", {"delimiter": "||"}, r"delimiter is '\|\|'"),
    ("csv", {"escape": '"'}, "must differ"),
    ("csv", {"escape": "\\", "null_values": ["", "\\N"]}, r"null_values has '\\\\N' .*load it by COPY"),
    ("csv", {"header": False}, "header is False: give column_names"),
    ("csv", {"growing": True, "compression": "zstd"}, "a compressed file cannot grow"),
    ("files", {"format": "xml"}, r"source format is 'xml': it must be one of \['ndjson'.*Csv\(…\)"),
    ("files", {"format": {"type": "parquet", "growing": True}}, "source format parquet has .*'growing'"),
    ("files", {"format": {"type": "text", "column": ""}}, "source format column is empty"),
    ("files", {"partitions": "days"}, r"source partitions is 'days': it must be one of \['directory'"),
    ("files", {"partitions": "key"}, "source partitions key lacks the key 'key'"),
    ("files", {"partitions": {"type": "name", "regex": "x"}}, r"regex 'x' needs a group \(\?P<partition>"),
    ("files", {"delimiter": ";"}, "source has the unknown key 'delimiter' .value ';'.: use .*'format'"),
    ("files", {"pattern": "**x"}, r"pattern '\*\*x' is not a glob"),
    ("files", {"metadata": {"SRC": "name"}}, "filename"),
    ("files", {"after_commit": "archive"}, "archive_path"),
    ("files", {"after_commit": "archive", "archive_path": "/x/../data/done"}, "archive_path"),
    ("files", {"after_commit": "archive", "archive_path": "s3://b/done"}, "archive_path"),
    ("files", {"after_commit": "delete", "retention": -1}, "retention"),
    ("files", {"path": "ftp://host/in"}, "scheme 'ftp'"),
    ("files", {"path": "s3://lake/a/../b"}, "two slashes"),
    ("files", {"path": "s3://lake/in?region=eu-west-1"}, "conn_id"),
    ("files", {"path": "s3://KEYOFSOMEBODY:hush@lake/in"}, "^source path .* password"),
    ("files", {"path": "abfss://lake:hush@a.dfs.core.windows.net/in"}, "password"),
    ("files", {"path": "webhdfs://"}, "host:port"),
    ("kafka", {"topics": []}, r"topics is \[\] and topic_pattern is None: give one of the two"),
    ("kafka", {"topics": [], "topic_pattern": "("}, "regular expression"),
    ("kafka", {"topics": ["a", "a"]}, "name each topic once"),
    ("kafka", {"bootstrap_servers": ""}, "conn_id"),
    ("kafka", {"start": "timestamp"}, "start_timestamp"),
    ("kafka", {"start": "timestamp", "start_timestamp": "2026-01-31T06:00:00"}, "with a zone"),
    ("kafka", {"start": "latest"}, "needs a group_id"),
    ("kafka", {"value_format": "text"}, "needs value_column"),
    ("kafka", {"value_format": "text", "value_column": "T", "connect_envelope": True}, "envelope is JSON's"),
    ("kafka", {"metadata": ["topics"]}, "metadata names 'topics'"),
    ("kafka", {"metadata": {"T": "offset", "t": "offset"}}, "its own name"),
    ("kafka", {"metadata": 5}, "must be a list of fields"),
    ("kafka", {"options": {"client.id": None}}, "give a text, a number or a boolean"),
    ("kafka", {"options": {"sasl.password": "hush"}}, "is a secret, and plans hold none"),
    ("kafka", {"options": {"group.id": "g"}}, "use the key 'group_id'"),
    ("kafka", {"options": {"oauth_cb": "a.b"}}, "is none that a Kafka source takes"),
    *(("kafka", {"connector_name": name}, r"connector_name|255") for name in ("", ".*", "x-" * 150)),
    ("table", {}, "no table, query or path"),
    ("table", {"query": "SELECT 1"}, "query and no name"),
    ("table", {"table": "t", "ranges": [5, 5]}, "growing numbers"),
    ("table", {"table": "t", "ranges": [5], "partition_by": "K"}, "drop them, or drop partition_by"),
    ("table", {"path": "/p", "options": {"dbPassword": "hush"}}, "'dbPassword' looks like a secret"),
    ("table", {"table": "t", "metadata": {"V": "version"}}, "run_id"),
    ("table", {"path": "s3a://key:hush@b/t"}, "path 's3a://…@b/t' holds a password"),
    ("delta", {}, "exactly one of the two"),
    ("delta", {"path": "/p", "starting_version": -1}, "starting_version is -1"),
    ("iceberg", {}, "exactly one of the two"),
    ("iceberg", {"table": "orders"}, r"namespace and name, for example 'sales\.orders'"),
    ("iceberg", {"table": "a.b", "starting_snapshot": "1"}, "starting_snapshot"),
]


@pytest.mark.parametrize(("kind", "values", "message"), REFUSED)
def test_wrong_values_are_refused_with_their_remedy_and_no_secret(
    kind: str, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as refused:
        spec(kind, **values)
    assert "hush" not in str(refused.value)


def test_a_source_has_a_format_of_its_positions_a_name_and_an_address() -> None:
    for kind, values, expected in [
        ("kafka", {"topics": ["a", "b"]}, ("integer", "a,b", "kafka://a:9092/a,b")),
        ("table", {"table": "lake.db.`t`"}, ("integer", "t", "lake.db.`t`")),
        ("table", {"offset_type": "text", "path": "/in/events/"}, ("lexicographic", "events", "/in/events/")),
        ("table", {"query": "SELECT 1 AS ID", "name": "ones"}, ("integer", "ones", "query ones")),
        ("delta", {"path": "/lake/t"}, ("batch:row", "t", "/lake/t")),
        ("iceberg", {"table": "lake.db.t", "catalog": "prod"}, ("batch:row", "t", "prod.lake.db.t")),
        ("iceberg", {"path": "s3://lake/db/t"}, ("batch:row", "t", "s3://lake/db/t")),
        (
            "iceberg",
            {"path": "/t/metadata/v7.metadata.json"},
            ("batch:row", "t", "/t/metadata/v7.metadata.json"),
        ),
    ]:
        found = spec(kind, **values)
        assert (found.offset_format, found.default_name, found.address) == expected


def test_an_address_names_brokers_and_topics() -> None:
    values = {"kind": "kafka", "bootstrap_servers": "a:1,b:2", "topics": ["x", "y"]}
    assert KafkaSource.from_address("kafka://a:1,b:2/x,,y") == values
    refused(ConfigurationError, KafkaSource.from_address, ["kafka://a:1", "kafka:///x", "kafka://a:1/,"])


def test_paths_are_taken_as_they_are_written_and_templates_checked_when_they_are_rendered() -> None:
    for path in ("s3://lake", "s3a://lake/a b/c%20d/", "gs://lake/in", "az://lake", "/in?x#y"):
        assert spec("files", path=path).path == path
    assert spec("files", pattern="{{ params.depth }}**/*.log").pattern.endswith("**/*.log")


# Printed by Utils.deriveTableName of the Kafka connector 4.1.0 itself, run by Java.
CONNECTORS = {
    "SHOP": "SHOP",
    "my-shop": "MY_SHOP_1462868599",
    "9lives": "_9LIVES_1734846574",
    "größe": "GR__E_98762257",
    "😀-shop": "____SHOP_1285237472",
    "\u0131-name": "___NAME_186888615",
    "-polygenelubricants": "__POLYGENELUBRICANTS_1494012179",
    "shop-slmpnqv": "SHOP_SLMPNQV_-2147483648",
    "x" * 200: "X" * 200,
}


class TestChannelsOfKafka:
    def test_are_named_as_the_kafka_connector_names_them(self) -> None:
        plain = spec("kafka")
        assert plain.channel("loader", plain.default_name, "orders_7") == "loader_orders_7"
        with pytest.raises(ConfigurationError, match="source_name"):
            plain.channel("loader", "mine", "orders_7")
        for name, prefix in CONNECTORS.items():
            taken = spec("kafka", connector_name=name)
            assert (taken.channel_prefix, taken.group_id) == (prefix, f"connect-{name}")
            assert taken.channel(prefix, taken.default_name, "orders_7") == f"{prefix}_orders_7"
        assert spec("kafka", connector_name="my-shop", group_id="mine").group_id == "mine"
        with pytest.raises(ConfigurationError, match=r"'shop'.*SHOP"):
            spec("kafka", connector_name="shop").channel("shop", plain.default_name, "orders_7")

    def test_have_other_spellings_of_their_prefix_alone(self) -> None:
        plain = spec("kafka")
        assert set(plain.other_spellings("Shop", "Orders_0")) == {"SHOP_Orders_0", "shop_Orders_0"}
        assert "MY_SHOP_1462868599_orders_0" in plain.other_spellings("my-shop", "orders_0")
        taken = spec("kafka", connector_name="My-Shop")
        others = taken.other_spellings(taken.channel_prefix, "orders_0")
        assert {"My-Shop_orders_0", "my-shop_orders_0"} <= set(others)
        assert taken.channel(taken.channel_prefix, taken.default_name, "orders_0") not in others


def test_a_record_of_kafka_is_found_by_its_time_in_any_zone() -> None:
    found = spec("kafka", start="timestamp", start_timestamp="2026-01-31T06:00:00+01:00", metadata=["offset"])
    assert (found.start_milliseconds, found.metadata) == (1769835600000, {"KAFKA_OFFSET": "offset"})


FILES = FileSource(path="/data", pattern="*", format=Csv())
CSV_EDITS: dict[str, Any] = {"header": False, "delimiter": ";", "quote": "'", "escape": "\\"}
CSV_KEEPS: dict[str, Any] = {"compression": "gzip", "growing": True, "null_values": ["", "NULL"]}
CSV_KEEPS |= {"columns": ["ID"], "column_names": ["ID"]}
# Another path has another log, whose id is in the binding.
FILE_KEEPS: dict[str, dict[str, Any]] = {
    "path": {"path": "/other"},
    "on_changed_files": {"on_changed_files": "reload"},
    "log_path": {"log_path": "/logs"},
    "after_commit": {"after_commit": "delete"},
    "archive_path": {"after_commit": "archive", "archive_path": "/archive"},
    "retention": {"retention": 60.0},
    "conn_id": {"path": "s3://b/data", "conn_id": "aws"},
    "metadata": {"metadata": {"SRC": "filename"}},
    "kind": {"kind": "files"},
}
TABLE = TableSource(offset_column="ID", path="/data")
TABLE_EDITS: list[dict[str, Any]] = [
    {"path": "/other"},
    {"format": "csv"},
    {"table": "t", "path": None},
    {"query": "SELECT 1", "name": "n", "path": None},
    {"options": {"pathGlobFilter": "a*"}},
    {"options": {"modifiedAfter": "2026-01-01T00:00:00"}},
    {"table": "t", "path": None, "options": {"versionAsOf": "1"}, "format": "delta"},
    {"format": "jdbc", "options": {"dbtable": "a"}},
    {"format": "jdbc", "options": {"DBTABLE": "b"}},
    {"format": "jdbc", "options": {"query": "SELECT 1"}},
    {"format": "jdbc", "options": {"dbtable": "a", "url": "jdbc:postgresql://host/d"}},
]


def digest(source: FileSource, partition: str = "p") -> str:
    return binding_of(source, "5d41402abc4b2a76", partition).digest


def test_what_decides_the_rows_of_a_partition_or_their_numbers_gives_another_binding():
    forms = [files.Ndjson(), files.Text(), files.Parquet(), files.Orc(), files.Avro()]
    forms += [Csv(**{name: value, "column_names": ["ID"]}) for name, value in CSV_EDITS.items()]
    splits = [files.AllFiles(), files.ByName("(?P<partition>.).*"), files.ByName("(?P<partition>..).*")]
    splits += [ByKey("day"), ByKey("hour"), ByKey("day", as_columns=True)]
    found = [digest(FILES), digest(FILES, "q"), digest(replace(FILES, pattern="*.csv"))]
    found += [digest(replace(FILES, format=one)) for one in forms]
    found += [digest(replace(FILES, partitions=one)) for one in splits]
    assert len(set(found)) == len(found)


def test_all_other_arguments_keep_the_binding():
    assert {one.name for one in fields(Csv)} == {*CSV_EDITS, *CSV_KEEPS}
    assert {one.name for one in fields(FileSource)} == {*FILE_KEEPS, "pattern", "format", "partitions"}
    changes = [{"format": Csv(**{name: value})} for name, value in CSV_KEEPS.items()]
    for change in (*changes, *FILE_KEEPS.values()):
        assert digest(replace(FILES, **change)) == digest(FILES), change


def test_what_a_table_source_reads_is_its_identity_and_how_quickly_is_not():
    found = [TABLE.identity, *(replace(TABLE, **change).identity for change in TABLE_EDITS)]

    assert len(set(found)) == len(found)
    for change in (
        {"options": {"mergeSchema": "true"}},
        {"non_finite": "null"},
        {"metadata": {"R": "run_id"}},
    ):
        assert replace(TABLE, **change).identity == TABLE.identity
    jdbc = [replace(TABLE, format="jdbc", options={"dbtable": "a", "fetchSize": size}) for size in "12"]
    spaced = [replace(TABLE, path=None, name="n", query=one) for one in ("SELECT 1", "SELECT\n 1")]
    for one, other in (jdbc, spaced):
        assert one.identity == other.identity


EXAMPLES = Path(__file__).parents[4] / "docs" / "examples"


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install a distribution with an entry point for the example."""

    def install(name="SqliteSource"):
        about = tmp_path / "sqlite_source-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: sqlite-source\nVersion: 1.0\n")
        points = f"[airflow_provider_snowpipe.sources]\nsqlite = sqlite_source:{name}\n"
        (about / "entry_points.txt").write_text(points)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.syspath_prepend(EXAMPLES)
        monkeypatch.setitem(sys.modules, "sqlite_source", None)
        monkeypatch.delitem(sys.modules, "sqlite_source")

    return install


def _load(snowpipe, database, directory):
    """A run as the submitter plans it and the driver does it."""
    spec = source_spec({"kind": "sqlite", "database": str(database), "table": "orders"})
    limits = {"commit_timeout": 60.0, "limits": BatchLimits(requests_per_second=10_000)}
    plan = JobPlan("app", URL, PIPE, "job", spec.default_name, spec, credentials_variable="X", **limits)
    (directory / "plan.json").write_text(plan.to_json())
    run = Run(read_plan(str(directory / "plan.json")), snowpipe.client(), object)
    run.prepare()
    run.load(InProcessSpark())
    run.verify()
    run.finish()


def test_source_of_an_entry_point_is_loaded_and_resumes(snowpipe, installed, tmp_path):
    installed()
    path = tmp_path / "orders.db"

    def sql(statement):
        with closing(sqlite3.connect(path)) as database, database:
            database.execute(statement)

    sql("CREATE TABLE orders (ID INTEGER, NOTE TEXT)")
    sql("INSERT INTO orders VALUES (1, 'a'), (2, NULL)")
    _load(snowpipe, path, tmp_path)
    sql("INSERT INTO orders VALUES (3, 'c')")
    _load(snowpipe, path, tmp_path)

    rows = [(row["ID"], row["NOTE"]) for row in snowpipe.channels["job_orders_all"].rows]
    assert rows == [(1, "a"), (2, None), (3, "c")]

    sql("DELETE FROM orders")
    with pytest.raises(SourcePositionError, match="recreated"):
        _load(snowpipe, path, tmp_path)


def test_unknown_kind_is_refused_with_those_that_are_known_and_fields_are_checked(installed):
    with pytest.raises(ConfigurationError, match="'kafka'") as unknown:
        source_spec({"kind": "sqlite"})
    assert "'sqlite'" not in str(unknown.value).partition("one of")[2]
    installed()
    with pytest.raises(ConfigurationError, match="'sqlite'"):
        source_spec({"kind": "mysql"})
    with pytest.raises(ConfigurationError, match="'table'"):
        source_spec({"kind": "sqlite", "database": "orders.db"})


def test_an_entry_point_of_a_broken_package_is_named(installed):
    installed("Misspelt")
    with pytest.raises(ConfigurationError, match="'sqlite_source:Misspelt'"):
        source_spec({"kind": "sqlite"})

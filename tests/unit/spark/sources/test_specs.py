"""The specifications of all sources: what they are called, and what they refuse before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_snowpipe.spark.sources.registry import source_spec
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

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
    ("csv", {"columns": []}, "columns is empty"),
    ("csv", {"delimiter": "||"}, r"delimiter is '\|\|'"),
    ("csv", {"quote": "»"}, "quote is '»'.*or '' where"),
    ("csv", {"escape": '"'}, "must differ"),
    ("csv", {"escape": "\\", "null_values": ["", "\\N"]}, r"null_values has '\\\\N' .*load it by COPY"),
    ("csv", {"header": False}, "header is False: give column_names"),
    ("csv", {"growing": True, "compression": "zstd"}, "a compressed file cannot grow"),
    ("csv", {"non_finite": "null"}, "format csv has the unknown key 'non_finite' .value 'null'.: use"),
    ("files", {"format": "xml"}, r"source format is 'xml': it must be one of \['ndjson'.*Csv\(…\)"),
    ("files", {"format": {"type": "parquet", "growing": True}}, "source format parquet has .*'growing'"),
    ("files", {"format": {"type": "text", "column": ""}}, "source format column is empty"),
    ("files", {"partitions": "days"}, r"source partitions is 'days': it must be one of \['directory'"),
    ("files", {"partitions": "key"}, "source partitions key lacks the key 'key'"),
    ("files", {"partitions": {"type": "key", "key": ""}}, "source partitions key is empty"),
    ("files", {"partitions": {"type": "name", "regex": "x"}}, r"regex 'x' needs a group \(\?P<partition>"),
    ("files", {"delimiter": ";"}, "source has the unknown key 'delimiter' .value ';'.: use .*'format'"),
    ("files", {"pattern": "**x"}, r"pattern '\*\*x' is no glob"),
    ("files", {"metadata": {"SRC": "name"}}, "filename"),
    ("files", {"after_commit": "archive"}, "archive_path"),
    ("files", {"archive_path": "/done"}, "archive_path"),
    ("files", {"after_commit": "archive", "archive_path": "/data/done"}, "archive_path"),
    ("files", {"after_commit": "archive", "archive_path": "s3://b/done"}, "archive_path"),
    ("files", {"after_commit": "delete", "retention": -1}, "retention"),
    ("files", {"path": "ftp://host/in"}, "scheme 'ftp'"),
    ("files", {"path": "s3:///in"}, "lacks its bucket"),
    ("files", {"path": "s3://lake/a/../b"}, "two slashes"),
    ("files", {"path": "s3://lake/in?region=eu-west-1"}, "conn_id"),
    ("files", {"path": "s3://KEYOFSOMEBODY:hush@lake/in"}, "password"),
    ("files", {"path": "s3://hush@lake/in"}, "before @"),
    ("files", {"path": "abfss://lake:hush@a.dfs.core.windows.net/in"}, "password"),
    ("files", {"path": "webhdfs://"}, "host:port"),
    ("files", {"path": "hdfs://hush@nn/in"}, "before @"),
    ("kafka", {"topics": []}, r"topics is \[\] and topic_pattern is None: give one of the two"),
    ("kafka", {"topics": [], "topic_pattern": "("}, "no regular expression"),
    ("kafka", {"topics": ["a", "a"]}, "name each topic once"),
    ("kafka", {"bootstrap_servers": ""}, "conn_id"),
    ("kafka", {"start": "timestamp"}, "start_timestamp"),
    ("kafka", {"start_timestamp": "2026-01-31T06:00:00Z"}, "only then"),
    ("kafka", {"start": "timestamp", "start_timestamp": "2026-01-31T06:00:00"}, "with a zone"),
    ("kafka", {"start": "latest"}, "needs a group_id"),
    ("kafka", {"value_format": "text"}, "needs value_column"),
    ("kafka", {"value_format": "text", "value_column": "T", "connect_envelope": True}, "envelope is JSON's"),
    ("kafka", {"metadata": ["topics"]}, "metadata names 'topics'"),
    ("kafka", {"metadata": {"T": "offset", "t": "offset"}}, "its own name"),
    ("kafka", {"timeout_seconds": 0}, "seconds above 0"),
    ("kafka", {"options": {"sasl.password": "hush"}}, "is a secret, and plans hold none"),
    ("kafka", {"options": {"group.id": "g"}}, "use the key 'group_id'"),
    ("kafka", {"options": {"oauth_cb": "a.b"}}, "is none that a Kafka source takes"),
    ("kafka", {"options": {"client.id": None}}, "give a text, a number or a boolean"),
    *(("kafka", {"connector_name": name}, r"connector_name|255") for name in ("", ".*", "x-" * 150)),
    ("table", {}, "no table, query or path"),
    ("table", {"offset_column": "", "table": "t"}, "offset_column is empty"),
    ("table", {"query": "SELECT 1"}, "query and no name"),
    ("table", {"table": "t", "ranges": [5, 5]}, "growing numbers"),
    ("table", {"table": "t", "ranges": [5], "partition_by": "K"}, "drop them, or drop partition_by"),
    ("table", {"path": "/p", "options": {"dbPassword": "hush"}}, "'dbPassword' looks like a secret"),
    ("table", {"path": "/p", "options": {"a": 1}}, "'a' is no text"),
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


def test_paths_are_taken_as_they_are_written_and_templates_checked_when_they_are_rendered() -> None:
    for path in ("s3://lake", "s3a://lake/a b/c%20d/", "gs://lake/in", "az://lake", "/in?x#y"):
        assert spec("files", path=path).path == path
    assert spec("files", pattern="{{ params.depth }}**/*.log").pattern.endswith("**/*.log")


# Printed by Utils.deriveTableName of the Kafka connector 4.1.0 itself, run by Java.
CONNECTORS = {
    "SHOP": "SHOP",
    "a": "A_97",
    "my-shop": "MY_SHOP_1462868599",
    "9lives": "_9LIVES_1734846574",
    "shop\n": "SHOP__109413332",
    "größe": "GR__E_98762257",
    "😀-shop": "____SHOP_1285237472",
    "\u0131-name": "___NAME_186888615",
    "a..*b": "A_B_90997529",
    "-polygenelubricants": "__POLYGENELUBRICANTS_1494012179",
    "shop-slmpnqv": "SHOP_SLMPNQV_-2147483648",
    "x" * 200: "X" * 200,
}


class TestChannelsOfKafka:
    def test_are_named_as_the_kafka_connector_names_them(self) -> None:
        plain = spec("kafka")
        assert plain.channel("loader", plain.default_name, "orders_7") == "loader_orders_7"
        with pytest.raises(ConfigurationError, match=r"named by their topic.*leave source_name out"):
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

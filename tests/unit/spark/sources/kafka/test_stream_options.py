"""The options of ``readStream.format("snowpipe_kafka")``, and the columns that it delivers."""

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_snowpipe.spark.sources.kafka.records import Records
from airflow_provider_snowpipe.spark.sources.kafka.stream import StreamOptions
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.names import PipeName

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from airflow_provider_snowpipe.spark.sources.kafka.stream import (
    ARROW_SCHEMA,
    KafkaDataSource,
    arrow_rows,
)

OPTIONS = {
    "bootstrapservers": "k1:9092,k2:9092",
    "topics": "orders, returns",
    "accounturl": "https://a.snowflakecomputing.com",
    "database": "D",
    "schema": "S",
    "table": "T",
    "channelprefix": "shop",
}


def _parsed(**changes):
    options = {**OPTIONS, **changes}
    return StreamOptions.parse({name: value for name, value in options.items() if value is not None})


def test_options_make_the_same_channels_as_a_job_with_the_same_prefix():
    found = _parsed(**{"kafka.client.rack": "r1", "MaxOffsetsPerTrigger": "500", "timeoutSeconds": "7.5"})

    assert found.spec.topics == ("orders", "returns")
    assert found.spec.options == {"client.rack": "r1"}
    assert (found.spec.timeout_seconds, found.max_offsets, found.on_data_loss) == (7.5, 500, "fail")
    assert found.channel("orders_0") == "shop_orders_0"
    assert found.pipe == PipeName.default_for_table("D", "S", "T")
    assert _parsed(table=None, pipe="P", topics=None, topicPattern="o.*").pipe == PipeName("D", "S", "P")


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"bootstrapservers": None}, "option bootstrapServers is missing"),
        ({"channelprefix": None}, "option channelPrefix is missing"),
        ({"pipe": "P"}, "exactly one of the options table and pipe"),
        ({"topics": None}, "give one of the two"),
        ({"maxoffsetspertrigger": "0"}, "maxOffsetsPerTrigger is '0': it must be a whole number, 1 or more"),
        ({"timeoutseconds": "soon"}, "timeoutSeconds is 'soon'"),
        ({"ondataloss": "hope"}, "onDataLoss is 'hope': it must be one of .'fail', 'skip'"),
        ({"start": "latest"}, "needs a group_id"),
        ({"kafka.group.id": "g"}, "set by the source"),
        ({"offsets": "hunter2"}, "option 'offsets' is unknown: use accountUrl"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_wrong_option_is_named(changes, error):
    with pytest.raises(ConfigurationError, match=error) as caught:
        _parsed(**changes)
    assert "hunter2" not in str(caught.value)


def test_secret_among_the_options_is_refused_and_not_repeated():
    with pytest.raises(
        ConfigurationError, match=r"kafka.sasl.password is a secret.*write_credentials"
    ) as caught:
        _parsed(**{"kafka.sasl.password": "hunter2"})
    assert "hunter2" not in str(caught.value)


def test_columns_are_those_that_spark_wants_for_the_schema():
    from pyspark.sql.pandas.types import to_arrow_schema

    assert to_arrow_schema(KafkaDataSource(dict(OPTIONS)).schema(), timezone="UTC") == ARROW_SCHEMA
    records = Records(
        np.array([3, 7]),
        pa.array([b"v", None], pa.large_binary()),
        pa.array([1_700_000_000_123, None], pa.int64()),
        pa.array([False, False]),
        pa.array([None, b"k"], pa.large_binary()),
        [[("h", b"\xff"), ("n", None)], None],
    )

    rows = arrow_rows("orders_1", "orders", 1, records)

    assert rows.schema == ARROW_SCHEMA
    first, second = rows.to_pylist()
    assert (first["channel"], first["offset"], first["timestamp"].microsecond) == ("orders_1", 3, 123_000)
    assert first["headers"] == [{"key": "h", "value": b"\xff"}, {"key": "n", "value": None}]
    assert (second["value"], second["key"], second["timestamp"], second["headers"]) == (
        None,
        b"k",
        None,
        None,
    )


def test_batch_read_is_refused_with_what_to_do_instead():
    with pytest.raises(ConfigurationError, match=r"is for readStream, which with trigger\(availableNow"):
        KafkaDataSource(dict(OPTIONS)).reader(None)

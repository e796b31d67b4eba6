"""Topics read by Spark's own source, from its rows on: rows of its documented schema, real Spark and service.

The run with the connector's jar is in ``test_kafka_broker.py``, where Maven Central gives it.
"""

from datetime import UTC, datetime

import pytest

from airflow_provider_snowpipe.spark.driver.frames import run_frame, works_of
from airflow_provider_snowpipe.spark.sources.registry import open_source, source_spec
from airflow_provider_snowpipe.spark.task.sink import SinkSettings
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.names import PipeName
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from airflow_provider_snowpipe.spark.sources.kafka import spark_reader as frame_source
from airflow_provider_snowpipe.spark.sources.kafka.spark_reader import with_channels
from tests.kafka_topics import MockCluster, numbered, produce

pytestmark = pytest.mark.spark
SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestampType int, headers array<struct<key: string, value: binary>>"
)
AT = datetime(2026, 1, 31, 6, 0, 0, 123000, tzinfo=UTC)


def _record(topic, number, offset, value):
    return (b"k", value, topic, number, offset, AT, 0, [("h", b"v")] if offset % 2 else None)


def test_records_go_to_their_channels_behind_the_tokens_and_a_missing_jar_is_named(
    local_service, spark, monkeypatch
):
    cluster = MockCluster()
    topic = "FRAMED"
    cluster.make_topic(topic)
    values = numbered(range(200))
    produce(cluster.address, topic, values, partition=lambda row: row // 100)
    local_service.sql(
        f"CREATE TABLE LOCAL.PUBLIC.{topic} (ID NUMBER, NOTE VARCHAR, O NUMBER, AT TIMESTAMP_TZ, H VARIANT)"
    )
    spec = source_spec(
        {
            "kind": "kafka",
            "reader": "spark",
            "bootstrap_servers": cluster.address,
            "topics": [topic],
            "metadata": {"offset": "O", "timestamp": "AT", "headers": "H"},
        }
    )
    source = open_source(spec, "fail")
    partitions = {f"test_{one.name}": one for one in source.partitions()}
    committed = {**dict.fromkeys(partitions), f"test_{topic}_1": IntegerOffset(89)}
    works = source.locate(works_of(partitions, committed))
    assert [work.channel for work in works] == [f"test_{topic}_0", f"test_{topic}_1"]

    pipe = PipeName.default_for_table("LOCAL", "PUBLIC", topic)
    settings = SinkSettings(
        local_service.url, str(local_service.ca_file), pipe, True, 60.0, BatchLimits(rows=30)
    )
    with monkeypatch.context() as patch:
        patch.setitem(frame_source._CLASSES, "org.nowhere.Nothing", "org.nowhere:nothing")
        with pytest.raises(ConfigurationError, match="spark-sql-kafka"):
            source.use(spark)
    with local_service.client(topic) as client:
        records = [
            [_record(topic, number, offset, values[100 * number + offset]) for offset in offsets]
            for number, offsets in ((0, range(100)), (1, range(90, 100)))
        ]
        apart = spark.sparkContext.parallelize(records, 2).flatMap(lambda rows: rows)
        frame = spark.createDataFrame(apart, SCHEMA)
        client.pipe_info()
        client.open_channel(f"test_{topic}_1", offset_token="89")
        rows = with_channels(frame, [work.partition.name for work in works])
        first = run_frame(rows, works, settings, client.scoped_token())
        again = run_frame(rows, works, settings, client.scoped_token())
        statuses = client.channel_statuses(list(partitions))

    assert [(one.error, str(one.position), one.rows) for one in first] == [("", "99", 100), ("", "99", 10)]
    assert [(str(one.position), one.rows) for one in again] == [("99", 0), ("99", 0)]
    assert [status.committed for status in statuses.values()] == ["99", "99", None, None]
    found = local_service.sql(f"SELECT ID, O, H FROM LOCAL.PUBLIC.{topic} ORDER BY ID")
    assert [int(row["ID"]) for row in found] == [*range(100), *range(190, 200)]
    assert [int(row["O"]) for row in found] == [*range(100), *range(90, 100)]
    assert found[0]["H"] is None
    assert "h" in str(found[1]["H"])

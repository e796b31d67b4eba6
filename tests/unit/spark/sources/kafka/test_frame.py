"""Records as Spark's Kafka source delivers them, without Spark."""

import json
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from airflow_provider_snowpipe.spark.sources.kafka.cluster import Bounds, ClientSettings
from airflow_provider_snowpipe.spark.sources.kafka.reader import KafkaPartition
from airflow_provider_snowpipe.spark.sources.kafka.spark_reader import KafkaFramePartition
from airflow_provider_snowpipe.spark.sources.registry import source_spec
from airflow_provider_snowpipe.spark.sources.source import SourceSecrets
from airflow_provider_snowpipe.streaming.errors import SourcePositionError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset


def _partition(start=0, **changes):
    values = {"kind": "kafka", "reader": "spark", "bootstrap_servers": "a:1", "topics": ["t"], **changes}
    spec = source_spec(values)
    settings = ClientSettings.of(spec, SourceSecrets())
    known = KafkaPartition("t_0", "t", 0, 0, Bounds(0, 100, 100), spec, settings, "fail")
    return KafkaFramePartition("t_0", known, start)


def _batch(offsets):
    count = len(offsets)
    return pa.record_batch(
        {
            "offset": pa.array(offsets, pa.int64()),
            "value": pa.array([b'{"ID":%d}' % one for one in offsets], pa.binary()),
            "timestamp": pa.array([datetime(2026, 1, 31, tzinfo=UTC)] * count, pa.timestamp("us", "UTC")),
            "timestampType": pa.array([0] * count, pa.int32()),
            "key": pa.array([None] * count, pa.binary()),
            "headers": pa.array([None] * count, pa.list_(pa.struct([("key", pa.string())]))),
        }
    )


def _ids(parts):
    return [json.loads(line)["ID"] for part in parts for line in bytes(part.body).splitlines()]


def test_records_up_to_the_committed_one_are_passed_over():
    batches = [_batch([10, 11, 15]), _batch([16]), _batch([20, 30])]

    parts = list(
        _partition(10, metadata=["timestamp"]).parts(iter(batches), IntegerOffset(15), BatchLimits())
    )

    assert _ids(parts) == [16, 20, 30]
    assert [(str(part.start), str(part.end), part.rows) for part in parts] == [
        ("16", "16", 1),
        ("20", "30", 2),
    ]


@pytest.mark.parametrize("committed", [None, IntegerOffset(8)], ids=["null", "earlier"])
def test_token_that_was_reset_while_the_query_began_stops_the_task(committed):
    with pytest.raises(SourcePositionError, match="somebody has reset it"):
        list(_partition(10).parts(iter([_batch([10])]), committed, BatchLimits()))
    assert _ids(_partition(10).parts(iter([_batch([10])]), IntegerOffset(9), BatchLimits())) == [10]


def test_record_that_cannot_be_decoded_keeps_its_key_and_headers():
    batch = _batch([10, 12, 15])
    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    changes = {
        "value": pa.array([b'{"ID":10}', b"broken", b'{"ID":15}']),
        "key": pa.array([b"a", b"b", b"c"]),
        "headers": pa.array([None, [{"key": "h", "value": b"x"}], None], header),
    }
    for name, column in changes.items():
        batch = batch.set_column(batch.schema.get_field_index(name), name, column)

    (part,) = _partition(10).parts(iter([batch]), IntegerOffset(9), BatchLimits())

    assert _ids([part]) == [10, 15]
    (lost,) = part.undecoded
    assert (str(lost.position), lost.payload, lost.key, lost.headers) == (
        "12",
        b"broken",
        b"b",
        (("h", b"x"),),
    )

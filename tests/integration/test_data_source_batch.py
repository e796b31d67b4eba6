"""``df.write.format("snowpipe")`` on real Spark against the local service."""

from __future__ import annotations

import re
import zlib

import pytest

from airflow_provider_snowpipe.spark import register
from airflow_provider_snowpipe.streaming.batch_offset import BatchDigestOffset
from tests.spark_session import Door, session

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    with session(tmp_path_factory.mktemp("spark"), "local[2,4]") as running:
        register(running)
        yield running


@pytest.fixture
def door(local_service, tmp_path, request):
    table = f"T_{zlib.crc32(request.node.nodeid.encode()):08X}"
    return Door(local_service, table, tmp_path / "credentials.json").create()


def _rows(spark, numbers, note="''"):
    """Rows 0.. in two partitions, each in the order of its numbers."""
    return (
        spark.createDataFrame([(n, "ab"[n % 2]) for n in numbers], "ID long, P string")
        .selectExpr("ID", "P", f"{note} AS NOTE")
        .repartition(2, "P")
        .sortWithinPartitions("P", "ID")
    )


def _write(df, options):
    df.write.format("snowpipe").options(**options).mode("append").save()


def _refused(df, options):
    """The text of our error that ended a write."""
    with pytest.raises(Exception) as caught:  # noqa: PT011  Spark's classes differ by place
        _write(df, options)
    found = re.findall(r"^airflow_provider_snowpipe[\w.]*\.(\w+: .*)$", str(caught.value), re.MULTILINE)
    assert found, str(caught.value)[-3000:]
    return found[-1]


def test_batch_lands_once_in_order_and_its_repeat_sends_nothing(spark, door):
    options = door.options(partitions=2, batchId=7)
    _write(_rows(spark, range(1000)), options)

    assert door.ids("P = 'a'") == list(range(0, 1000, 2))
    assert door.ids("P = 'b'") == list(range(1, 1000, 2))
    before = door.tokens(0, 1)
    parsed = [BatchDigestOffset.parse(token) for token in before.values() if token]
    assert sum(token.row for token in parsed) == 1000
    assert {(token.batch, token.partitions, token.final) for token in parsed} == {(7, 2, True)}

    _write(_rows(spark, range(1000)), options)

    assert len(door.ids()) == 1000
    assert door.tokens(0, 1) == before

    _write(_rows(spark, range(1000, 1100)), door.options(partitions=2, batchId=8))

    assert door.ids("P = 'a'") == list(range(0, 1100, 2))

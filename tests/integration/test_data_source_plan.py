"""``write_checked``: what a plan does not promise is refused before a row moves."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_provider_snowpipe.spark import write_checked
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from tests.spark_job import numbered_name
from tests.spark_session import Door

pytestmark = pytest.mark.spark

BY_NUMBER = {"partitions": 2, "batchId": 1}
BY_COLUMN = {"channelColumn": "P", "batchId": 1}
BY_OFFSET = {"partitions": 2, "offsetColumn": "ID"}
BY_BOTH = {"channelColumn": "P", "offsetColumn": "ID"}


@pytest.fixture(scope="module")
def path(shared_spark, tmp_path_factory):
    path = str(tmp_path_factory.mktemp("rows") / "rows")
    some = shared_spark.range(100).selectExpr("id AS ID", "CASE id % 2 WHEN 0 THEN 'a' ELSE 'b' END AS P")
    some.repartition(3).write.parquet(path)
    return path


@pytest.fixture
def rows(spark, path):
    return spark.read.parquet(path)


@pytest.fixture
def door(local_service, tmp_path):
    return Door(local_service, numbered_name("PLANNED"), tmp_path / "credentials.json").create()


def _shuffled(rows):
    return rows.repartition(2, "P")


def _sorted(rows):
    return _shuffled(rows).sortWithinPartitions("P", "ID")


@pytest.mark.parametrize(
    "keys",
    [BY_NUMBER, BY_BOTH, *(pytest.param(keys, marks=pytest.mark.nightly) for keys in (BY_COLUMN, BY_OFFSET))],
    ids="-".join,
)
def test_sorted_rows_are_written_once_and_the_sessions_settings_come_back(spark, rows, door, keys):
    spark.conf.set("spark.sql.adaptive.enabled", "true")
    write_checked(_sorted(rows), door.options(**keys))

    assert door.ids("P = 'a'") == list(range(0, 100, 2))
    assert door.ids("P = 'b'") == list(range(1, 100, 2))
    assert spark.conf.get("spark.sql.adaptive.enabled") == "true"


def test_write_in_another_thread_finds_the_format_and_leaves_the_thread_without_a_session(spark, rows, door):
    sessions = spark._jvm.org.apache.spark.sql.classic.SparkSession
    with ThreadPoolExecutor(1) as pool:
        pool.submit(write_checked, _sorted(rows), door.options(**BY_COLUMN)).result()
        assert not pool.submit(lambda: sessions.getActiveSession().isDefined()).result()

    assert len(door.ids()) == 100
    assert sessions.getActiveSession().isDefined()


@pytest.mark.parametrize(
    ("change", "keys", "text"),
    [
        pytest.param(_shuffled, BY_NUMBER, "Exchange", id="shuffle"),
        pytest.param(_shuffled, BY_OFFSET, "Exchange", id="shuffled-offsets"),
        pytest.param(lambda rows: rows.coalesce(1), BY_COLUMN, "Coalesce", id="coalesce"),
        pytest.param(
            lambda rows: rows.repartition(2).sortWithinPartitions("ID"),
            BY_OFFSET,
            "RoundRobinPartitioning",
            id="round-robin",
        ),
        pytest.param(
            lambda rows: _sorted(rows.selectExpr("ID", "P", "rand() AS NOTE")),
            BY_BOTH,
            "rand",
            id="chance",
        ),
        pytest.param(
            lambda rows: rows.repartition(3, "P").sortWithinPartitions("ID"),
            BY_NUMBER,
            "3 partitions",
            id="more-partitions",
        ),
        pytest.param(
            lambda rows: rows.repartition(1).sortWithinPartitions("ID"),
            BY_OFFSET,
            "1 partitions",
            id="fewer-partitions",
        ),
    ],
)
def test_plan_that_need_not_repeat_is_refused_before_a_row_moves(rows, door, change, keys, text):
    with pytest.raises(ConfigurationError, match=text):
        write_checked(change(rows), door.options(**keys))

    assert door.ids() == []
    assert not any(status.exists for status in door.statuses(0, 1, "a", "b").values())


@pytest.mark.parametrize("number", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_offsets_of_named_channels_need_no_order_that_the_plan_promises(rows, door, number):
    """The rows of each channel lie in three files, one after the other in none."""
    apart = rows.repartition(number, "ID").sortWithinPartitions("ID")

    write_checked(apart, door.options(**BY_BOTH))
    write_checked(apart.unionAll(apart.selectExpr("ID + 100", "P")), door.options(**BY_BOTH))

    assert door.ids("P = 'a'") == list(range(0, 200, 2))
    assert door.ids("P = 'b'") == list(range(1, 200, 2))


def test_channels_without_offsets_have_to_lie_together(rows, door):
    apart = rows.repartition(2, "P", "ID").sortWithinPartitions("P", "ID")

    with pytest.raises(ConfigurationError, match="channelColumn"):
        write_checked(apart, door.options(**BY_COLUMN))

    assert door.ids() == []


def test_plain_write_with_both_columns_sends_nothing_unless_the_author_promises(rows, door):
    with pytest.raises(Exception, match="write_checked"):
        rows.write.format("snowpipe").options(**door.options(**BY_BOTH)).mode("append").save()
    assert door.ids() == []

    promised = door.options(**BY_BOTH, fixedSpread=True)
    _sorted(rows).write.format("snowpipe").options(**promised).mode("append").save()
    assert len(door.ids()) == 100


def test_stream_that_a_sink_alone_cannot_load_goes_on_by_foreach_batch(spark, path, door, tmp_path):
    """Files in which the rows of a channel lie apart: refused from the first batch on, with nothing sent."""
    files = spark.readStream.schema("ID BIGINT, P STRING").parquet(path)
    checkpoint = {"checkpointLocation": str(tmp_path / "checkpoint")}

    def write(rows, batch):
        write_checked(rows, door.options(**BY_BOTH))

    plain = files.writeStream.format("snowpipe").options(**door.options(**BY_BOTH), **checkpoint)
    with pytest.raises(Exception, match="write_checked"):
        plain.trigger(availableNow=True).start().awaitTermination()
    assert door.ids() == []

    corrected = files.writeStream.foreachBatch(write).options(**checkpoint)
    corrected.trigger(availableNow=True).start().awaitTermination()

    assert door.ids("P = 'a'") == list(range(0, 100, 2))
    assert door.ids("P = 'b'") == list(range(1, 100, 2))

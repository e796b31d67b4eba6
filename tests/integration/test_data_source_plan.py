"""``write_checked``: what a plan does not promise is refused before a row moves."""

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


def _in_order(rows):
    return rows.sortWithinPartitions("P", "ID")


def _sorted(rows):
    return _in_order(_shuffled(rows))


def _assert_whole(door):
    assert door.ids("P = 'a'") == list(range(0, 100, 2))
    assert door.ids("P = 'b'") == list(range(1, 100, 2))


@pytest.mark.parametrize("keys", [BY_NUMBER, BY_BOTH], ids="-".join)
def test_sorted_rows_are_written_once_and_the_sessions_settings_come_back(spark, rows, door, keys):
    spark.conf.set("spark.sql.adaptive.enabled", "true")
    write_checked(_sorted(rows), door.options(**keys))
    _assert_whole(door)
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
        (_shuffled, BY_NUMBER, "Exchange"),
        (lambda rows: _sorted(rows.selectExpr("ID", "P", "rand() AS NOTE")), BY_BOTH, "rand"),
        (lambda rows: _in_order(rows.repartition(2, "P", "ID")), BY_COLUMN, "channelColumn"),
        (lambda rows: _in_order(rows.repartition(3, "P")), BY_NUMBER, "3 partitions"),
        (lambda rows: _in_order(rows.repartition(1)), BY_OFFSET, "1 partitions"),
    ],
    ids=["shuffle", "chance", "channel apart", "more partitions", "fewer partitions"],
)
def test_plan_that_need_not_repeat_is_refused_before_a_row_moves(rows, door, change, keys, text):
    with pytest.raises(ConfigurationError, match=text):
        write_checked(change(rows), door.options(**keys))
    assert door.ids() == []
    assert not any(status.exists for status in door.statuses(0, 1, "a", "b").values())


def test_offsets_of_named_channels_need_no_order_that_the_plan_promises(rows, door):
    """The rows of each channel lie in three files, one after the other in none."""
    apart = rows.repartition(2, "ID").sortWithinPartitions("ID")
    write_checked(apart, door.options(**BY_BOTH))
    write_checked(apart.unionAll(apart.selectExpr("ID + 100", "P")), door.options(**BY_BOTH))
    assert door.ids("P = 'a'") == list(range(0, 200, 2))
    assert door.ids("P = 'b'") == list(range(1, 200, 2))


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

    _assert_whole(door)

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


@pytest.mark.parametrize("keys", [BY_NUMBER, BY_COLUMN, BY_OFFSET, BY_BOTH], ids=lambda keys: "-".join(keys))
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


def test_offsets_of_named_channels_need_no_order_that_the_plan_promises(spark, door):
    rows = spark.range(100, numPartitions=1).selectExpr("id AS ID", "'a' AS P").repartition(2, "P")

    write_checked(rows, door.options(**BY_BOTH))

    assert door.ids() == list(range(100))

"""``df.write.format("snowpipe")`` on real Spark against the local service."""

import pytest

from airflow_provider_snowpipe.streaming.checkpoint import Checkpoint
from tests.checkpoints import shown
from tests.integration.spark_values import TYPES, assert_arrived, values_query
from tests.spark_job import numbered_name
from tests.spark_session import Door, our_error

pytestmark = pytest.mark.spark


@pytest.fixture
def door(local_service, tmp_path):
    return Door(local_service, numbered_name("BATCH"), tmp_path / "credentials.json").create()


def _rows(spark, numbers, *, partitions=2, order=("P", "ID")):
    """Rows in partitions by P, each in the order of its numbers."""
    rows = spark.createDataFrame(
        [(n, "ab"[n % 2], f"note {n}") for n in numbers], "ID long, P string, NOTE string"
    )
    return rows.repartition(partitions, "P").sortWithinPartitions(*order)


def _write(df, options):
    df.write.format("snowpipe").options(**options).mode("append").save()


def _refused(df, options):
    """The text of our error that ended a write."""
    with pytest.raises(Exception) as caught:  # noqa: PT011  the class depends on how Spark runs
        _write(df, options)
    return our_error(caught.value)


def _positions(tokens):
    return [Checkpoint.parse(token).position for token in tokens.values() if token is not None]


def test_batch_lands_once_in_order_and_its_repeat_sends_nothing(spark, door):
    options = door.options(partitions=2, batchId=7)
    _write(_rows(spark, range(1000)), options)
    assert door.ids("P = 'a'") == list(range(0, 1000, 2))
    assert door.ids("P = 'b'") == list(range(1, 1000, 2))
    before = door.tokens(0, 1)
    assert sum(position.row for position in _positions(before)) == 1000
    assert {(position.batch, position.final) for position in _positions(before)} == {(7, True)}
    _write(_rows(spark, range(1000)), options)
    assert len(door.ids()) == 1000
    assert door.tokens(0, 1) == before


def test_channel_column_names_the_channels_and_a_partition_may_hold_several(spark, door):
    rows = spark.range(900).selectExpr("id AS ID", "concat('k', id % 5) AS P", "NULL AS NOTE")
    plan = rows.repartition(2, "P").sortWithinPartitions("P", "ID")
    options = door.options(channelColumn="P", batchId=1, omitColumns="NOTE")
    _write(plan, options)
    _write(plan, options)
    for key in range(5):
        assert door.ids(f"P = 'k{key}'") == list(range(key, 900, 5))
    positions = _positions(door.tokens(*(f"k{key}" for key in range(5))))
    assert [(position.batch, position.row, position.final) for position in positions] == [(1, 180, True)] * 5


def test_offset_column_skips_what_is_committed_whatever_is_read_again(spark, door):
    unpromised = _refused(_rows(spark, range(500)), door.options(partitions=2, offsetColumn="ID"))
    assert "fixedSpread" in unpromised
    assert door.ids() == []

    options = door.options(partitions=2, offsetColumn="ID", fixedSpread="true")
    _write(_rows(spark, range(500)), options)
    assert set(map(shown, door.tokens(0, 1).values())) == {"498", "499"}

    _write(_rows(spark, range(700)), options)

    assert door.ids("P = 'a'") == list(range(0, 700, 2))
    assert door.ids("P = 'b'") == list(range(1, 700, 2))
    layout = _refused(_rows(spark, range(800), partitions=3), {**options, "partitions": 3})
    assert "SourceChangedError" in layout
    assert len(door.ids()) == 700


def test_values_arrive_as_they_are(spark, door):
    query = values_query(door.service, door.table, TYPES)
    _write(spark.sql(query).coalesce(1), door.options(partitions=1, batchId=1))
    assert_arrived(door.service, door.table, TYPES)


def test_table_and_mode_are_checked_before_any_row_moves(spark, door):
    rows = _rows(spark, range(10))
    assert "PipeNotFoundError" in _refused(rows, door.options(partitions=2, batchId=1, table="NO_SUCH"))
    with pytest.raises(Exception, match="append"):
        rows.write.format("snowpipe").options(**door.options(partitions=2, batchId=1)).mode(
            "overwrite"
        ).save()
    assert door.ids() == []


def test_no_key_travels_to_the_executors(door):
    from pyspark import cloudpickle
    from pyspark.sql.types import LongType, StructField, StructType

    from airflow_provider_snowpipe.spark.data_source.source import SnowpipeDataSource

    schema = StructType([StructField("ID", LongType())])
    writer = SnowpipeDataSource(door.options(partitions=1, batchId=1)).writer(schema, False)
    pickled = cloudpickle.dumps(writer)

    secret = [line for line in door.service.key_file.read_text().splitlines() if "-----" not in line]
    assert not any(line.encode() in pickled for line in secret)
    assert writer._prepared.token.token.encode() in pickled
    assert writer._prepared.token.token not in repr(writer._prepared)
    assert writer._prepared.token.remaining_seconds() <= 3600

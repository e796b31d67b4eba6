"""What a plan shows of the order of its rows, on real plans of Spark."""

import pytest

from airflow_provider_snowpipe.spark.sources.tables.plan_order import (
    PINNED,
    order_hazards,
    pinned_layout,
    refuse_changing_rows,
    refuse_unordered_rows,
    row_hazards,
    unpinned,
)
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def path(shared_spark, tmp_path_factory):
    path = str(tmp_path_factory.mktemp("rows") / "rows")
    some = shared_spark.range(100, numPartitions=1)
    some.selectExpr("id", "id % 3 AS k", "cast(id AS string) AS t").write.parquet(path)
    return path


@pytest.fixture
def rows(spark, path):
    return spark.read.parquet(path)


def _changed(change, rows):
    """Do to the rows what a test's name requires."""
    from pyspark.sql import functions

    return eval(change, {"df": rows, "F": functions})  # noqa: S307  a text of this file


@pytest.mark.parametrize(
    ("change", "operator"),
    [
        ("df.repartition(4, 'k')", "Exchange"),
        ("df.groupBy('k').count()", "HashAggregate"),
        ("df.coalesce(1)", "Coalesce"),
        ("df.join(df.withColumnRenamed('t', 'u'), 'id')", "BroadcastHashJoin"),
        ("df.union(df)", "Union"),
        ("df.orderBy('id')", "RangePartitioning"),
        ("df.repartition(4).sortWithinPartitions('id')", "RoundRobinPartitioning"),
        ("df.coalesce(2).sortWithinPartitions('id')", "Coalesce"),
    ],
)
def test_rows_in_an_order_that_another_run_need_not_repeat_are_refused(spark, rows, change, operator):
    with pinned_layout(spark):
        df = _changed(change, rows)
        (hazard, *_) = order_hazards(df)
        with pytest.raises(ConfigurationError, match="same order"):
            refuse_unordered_rows(df, "the rows")
    assert hazard.operator == operator
    assert hazard.remedy


@pytest.mark.parametrize(
    "change",
    [
        "df",
        "df.select('id', 't').where('k = 1')",
        "df.withColumn('f', F.input_file_name())",
        "df.repartition(4, 'k').sortWithinPartitions('id')",
        "df.repartition(4, 'k').sortWithinPartitions('id').select('id').where('id > 3')",
        "df.repartitionById(4, F.col('k').cast('int')).sortWithinPartitions('id')",
        "df.groupBy('k').count().repartition(2, 'k').sortWithinPartitions('k')",
        "df.repartition(1).sortWithinPartitions('id')",
        "df.groupBy().count().repartition(1).sortWithinPartitions('count')",
    ],
)
def test_rows_in_the_order_of_a_pinned_scan_or_of_a_last_sort_are_taken(spark, rows, change):
    with pinned_layout(spark):
        refuse_unordered_rows(_changed(change, rows), "the rows")


def test_layout_that_is_not_pinned_is_refused_for_a_scan_and_under_adaptive_execution(spark, rows):
    (scan,) = order_hazards(rows)
    (adaptive,) = order_hazards(rows.repartition(4, "k").sortWithinPartitions("id"))
    assert "spark.sql.files." in scan.reason
    assert adaptive.operator == "AdaptiveSparkPlan"
    assert set(unpinned(spark)) >= {"spark.sql.adaptive.enabled", "spark.sql.files.maxPartitionBytes"}
    before = {name: spark.conf.get(name) for name in PINNED}
    with pinned_layout(spark):
        assert unpinned(spark) == {}
    assert {name: spark.conf.get(name) for name in PINNED} == before


@pytest.mark.parametrize(
    ("change", "operator"),
    [
        ("df.withColumn('r', F.rand())", "rand"),
        ("df.withColumn('u', F.concat(F.lit('a'), F.uuid()))", "uuid"),
        ("df.withColumn('n', F.monotonically_increasing_id())", "monotonically_increasing_id"),
        ("df.withColumn('p', F.spark_partition_id())", "SPARK_PARTITION_ID"),
        ("df.withColumn('c', F.current_timestamp())", "current_timestamp"),
        ("df.withColumn('c', F.date_add(F.current_date(), 1))", "current_date"),
        ("df.limit(5)", "GlobalLimit"),
        ("df.sample(0.5, seed=1)", "Sample"),
        ("df.withColumn('x', F.udf(lambda one: one).asNondeterministic()('id'))", "pythonUDF"),
    ],
)
def test_rows_that_another_run_need_not_have_are_refused(rows, change, operator):
    df = _changed(change, rows)
    assert operator.lower() in [hazard.operator.lower() for hazard in row_hazards(df)]
    with pytest.raises(ConfigurationError, match="Nothing was sent"):
        refuse_changing_rows(df, "the rows")


@pytest.mark.parametrize(
    "change",
    [
        "df.join(df.withColumnRenamed('t', 'u'), 'id').groupBy('u').count()",
        "df.orderBy('id').limit(5)",
        "df.withColumn('x', F.udf(lambda one: one)('id'))",
        "df.where(F.pmod(F.hash('id'), F.lit(100)) < 5)",
    ],
)
def test_rows_that_are_the_same_in_another_order_are_taken_where_a_key_orders_them(rows, change):
    assert row_hazards(_changed(change, rows)) == ()


def test_streaming_rows_are_refused_with_the_remedy(spark):
    stream = spark.readStream.format("rate").load()
    with pytest.raises(ConfigurationError, match="foreachBatch"):
        row_hazards(stream)

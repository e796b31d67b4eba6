"""The Delta source: a real Delta table of Spark's, a real local service."""

import shutil

import pytest

from airflow_provider_snowpipe.spark.sources.registry import source_spec
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    SourceChangedError,
    SourcePositionError,
)
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import BatchRowOffset
from tests.maven_jars import DELTA, maven_jars
from tests.spark_job import new_table, numbered_name
from tests.table_loads import TableLoads

pytestmark = pytest.mark.spark


class DeltaLoads(TableLoads):
    """Loads of a Delta table in ``delta``."""

    @property
    def path(self):
        return str(self.folder / "delta")

    def insert(self, first, end):
        rows = self.spark.range(first, end, 1, 2).selectExpr(
            "id AS ID", "concat('g', id % 2) AS FILE", "'x' AS NOTE"
        )
        writer = rows.write.format("delta").mode("append").option("delta.enableChangeDataFeed", "true")
        writer.save(self.path)

    def source(self, **changes):
        return source_spec({"kind": "delta", "path": self.path, "order_by": "ID", **changes})

    def load_versions(self, **changes):
        reports = self.load(self.source(**changes), limits=BatchLimits(rows=7, requests_per_second=200.0))
        return [(report.partition, report.to_token, report.rows) for report in reports]


@pytest.fixture
def loads(local_service, spark, tmp_path):
    maven_jars(*DELTA)
    return DeltaLoads(local_service, spark, tmp_path, new_table(local_service, numbered_name("DELTA")))


def test_versions_load_once_in_order_from_where_a_channel_stands_and_a_table_made_again_is_refused(loads):
    loads.insert(50, 100)
    loads.insert(0, 20)

    assert loads.load_versions() == [("all", "1:20", 70)]
    assert loads.ids_as_stored == [*range(50, 100), *range(20)]

    loads.commit("g0", BatchRowOffset(0, 12), loads.source(partition_by="FILE"))  # in the middle of a version
    assert loads.load_versions(partition_by="FILE") == [("g0", "1:10", 23), ("g1", "1:10", 35)]
    again = [*range(51, 100, 2), *range(74, 100, 2), *range(20)]
    assert loads.ids == sorted([-1, *range(50, 100), *range(20), *again])

    loads.spark.sql(f"OPTIMIZE delta.`{loads.path}`")
    assert loads.load_versions() == [("all", "1:20", 0)]

    shutil.rmtree(loads.path)
    for first in (0, 100):  # as many versions, so that the position alone would fit
        loads.insert(first, first + 20)
    with pytest.raises(SourceChangedError, match="1:20"):
        loads.load_versions()


@pytest.mark.nightly
def test_what_is_refused_leaves_the_rows_as_they_were(loads):
    loads.spark.range(3).selectExpr("id AS ID").write.format("delta").save(loads.path)
    with pytest.raises((SourcePositionError, ConfigurationError), match="enableChangeDataFeed"):
        loads.load_versions()
    shutil.rmtree(loads.path)
    loads.insert(0, 10)
    with pytest.raises(Exception, match="NOTE"):
        loads.load_versions(order_by="NOTE", offset_type="text")  # no key of a version
    assert loads.ids == []
    assert loads.load_versions() == [("all", "0:10", 10)]
    loads.commit("all", BatchRowOffset(0, 11), loads.source())
    with pytest.raises(SourcePositionError, match="0:11"):
        loads.load_versions()  # version 0 has fewer rows

    loads.insert(10, 20)
    loads.spark.sql(f"DELETE FROM delta.`{loads.path}` WHERE ID = 3")
    loads.commit("all", BatchRowOffset(1, 1), loads.source())
    with pytest.raises(SourcePositionError, match="deleted"):
        loads.load_versions()
    assert loads.ids == [-1, -1, *range(10)]

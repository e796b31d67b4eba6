"""Runs of the job's driver on one table, in the test's own process and on its own Spark session."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_snowpipe.spark.driver.report import ChannelReport
from airflow_provider_snowpipe.spark.source import SourceSpec
from airflow_provider_snowpipe.spark.sources.registry import open_source, source_spec
from airflow_provider_snowpipe.streaming.channel import Channel
from airflow_provider_snowpipe.streaming.checkpoint import ChannelSource
from airflow_provider_snowpipe.streaming.offsets import Offset
from tests.checkpoints import shown
from tests.local_connection import ids
from tests.local_service import LocalService
from tests.spark_groups import load
from tests.spark_job import SparkJob, new_table, numbered_name


class TableLoads:
    """Loads one table of a local service as often as a test likes, from Parquet files in ``rows``."""

    def __init__(self, service: LocalService, spark: Any, folder: Path, table: str) -> None:
        self.service, self.spark, self.folder, self.table = service, spark, folder, table
        self.rows = folder / "rows"
        self.rows.mkdir()
        self._job = SparkJob(service, folder / "runs", table, TableLoads.spec(self))

    def write(self, name: str, ids: Any, **columns: Any) -> None:
        ids = list(ids)
        numbered = {
            "ID": pa.array(ids, pa.int64()),
            "FILE": [f"g{one % 3}" for one in ids],
            "NOTE": [name] * len(ids),
        }
        pq.write_table(pa.table({**numbered, **columns}), self.rows / name)

    def spec(self, **values: Any) -> SourceSpec:
        """A table source on the Parquet files, or on what is given instead."""
        given = {"kind": "table", "offset_column": "ID", **values}
        if not {"table", "query", "path"} & set(given):
            given["path"] = str(self.rows)
        return source_spec(given)

    def load(self, source: SourceSpec | None = None, **changes: Any) -> tuple[Any, ...]:
        """Prepare, load and verify; the channels' reports, with positions for tokens."""
        changes["source"] = source or self.spec()
        run = load(self._job, self.spark.sparkContext, lambda: self.spark, **changes)
        return tuple(map(_with_positions, run.channels))

    def commit(self, partition: str, position: Offset, source: SourceSpec) -> None:
        """Put a partition's channel where a test needs it, with one row."""
        frames = open_source(source, "fail").with_spark(lambda: self.spark)
        (binding,) = [one.binding for one in frames.partitions() if one.name == partition]
        own = ChannelSource(type(position), binding)
        with self.service.client(self.table) as client:
            client.pipe_info()
            with Channel.open(client, f"test_{self.table}_{partition}", own) as channel:
                channel.append(b'{"ID": -1}\n', position, position, rows=1)
                channel.wait_for_commit(timeout=30)

    @property
    def ids(self) -> list[int]:
        return ids(self.service, self.table)

    @property
    def ids_as_stored(self) -> list[int]:
        """The table's numbers in the order of their commits."""
        return [int(row["ID"]) for row in self.service.sql(f"SELECT ID FROM LOCAL.PUBLIC.{self.table}")]


def _with_positions(report: ChannelReport) -> ChannelReport:
    names = ("from_token", "to_token", "target_token")
    return replace(report, **{name: shown(getattr(report, name)) for name in names})


@pytest.fixture
def loads(local_service: LocalService, spark: Any, tmp_path: Path) -> TableLoads:
    return TableLoads(local_service, spark, tmp_path, new_table(local_service, numbered_name("LOADS")))

"""The Iceberg source on tables that Iceberg's own library wrote, with what PyIceberg does not write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import StaticTable

from airflow_provider_snowpipe.spark.sources.iceberg.reader import IcebergPartition
from airflow_provider_snowpipe.spark.sources.registry import open_source, source_spec
from airflow_provider_snowpipe.streaming.errors import SourcePositionError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import BatchRowOffset
from tests.iceberg_java_tables import java_tables

# PyIceberg writes the tables of test_iceberg_source daily.
pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def tables():
    return java_tables()


def _partitions(table: Path, **source: Any) -> dict[str, IcebergPartition]:
    spec = source_spec({"kind": "iceberg", "path": str(table), **source})
    return {one.name: one for one in open_source(spec, "fail").partitions()}


def _rows(partition: IcebergPartition, committed: BatchRowOffset | None = None) -> list[dict[str, Any]]:
    position = partition.resume(committed)
    parts = [] if position is None else partition.read(position, BatchLimits())
    return [json.loads(line) for part in parts for line in bytes(part.body).splitlines()]


def _ids(partition: IcebergPartition, committed: BatchRowOffset | None = None) -> list[int]:
    return [row["ID"] for row in _rows(partition, committed)]


def _snapshots(table: Path) -> list[int]:
    found = StaticTable.from_metadata(str(table)).snapshots()
    return [one.snapshot_id for one in sorted(found, key=lambda one: one.sequence_number)]


@pytest.mark.parametrize("version", ["two", "three"])
def test_appended_rows_come_once_though_they_were_compacted_and_manifests_were_merged(tables, version):
    found = _partitions(tables / version, partition_by="FILE")

    assert _ids(found["g0"]) == list(range(0, 20, 2))
    assert _ids(found["g1"]) == [1, 3, 5, 7, 9, 21, 23]
    assert _ids(found["g0"], BatchRowOffset(1, 3)) == [6, 8, *range(10, 20, 2)]
    assert _ids(found["g1"], BatchRowOffset(1, 5)) == [21, 23]
    (whole,) = _partitions(tables / version, starting_snapshot=_snapshots(tables / version)[2]).values()
    assert sorted(_ids(whole)) == sorted([*range(0, 20, 2), 1, 3, 5, 7, 9, 21, 23])
    assert _rows(found["g0"])[5] == {"ID": 10, "FILE": "g0", "U": "00000000-0000-0000-0000-00000000000a"}


def test_rows_deleted_by_a_delete_file_are_refused_in_a_run_and_as_its_beginning(tables):
    (partition,) = _partitions(tables / "deleted").values()
    with pytest.raises(SourcePositionError, match="added-position-deletes"):
        partition.check(BatchRowOffset(1, 10))
    assert _ids(partition, BatchRowOffset(2, 0)) == [10, 11]

    (starting,) = _partitions(
        tables / "deleted", starting_snapshot=_snapshots(tables / "deleted")[2]
    ).values()
    with pytest.raises(SourcePositionError, match="delete"):
        starting.check(None)


def test_expired_snapshot_is_missed_only_where_its_rows_are_not_committed(tables):
    (partition,) = _partitions(tables / "expired").values()

    assert _ids(partition, BatchRowOffset(1, 5)) == list(range(5, 15))
    for committed in (None, BatchRowOffset(1, 4)):
        with pytest.raises(SourcePositionError, match="sequence number 1"):
            partition.check(committed)

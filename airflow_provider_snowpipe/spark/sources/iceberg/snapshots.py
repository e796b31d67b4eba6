"""The history of an Iceberg table as its metadata tells it, partition by partition.

A snapshot's manifest list names the manifests that the snapshot wrote, and those the files that it added
("Snapshots" and "Manifests" in the Iceberg specification). Metadata files never change, so that the order in
which they list the files is the same for every run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from airflow_provider_snowpipe.spark.sources.iceberg.history import DataFile, History, SnapshotRows
from airflow_provider_snowpipe.spark.sources.iceberg.partitioning import Partitioning
from airflow_provider_snowpipe.spark.sources.iceberg.spec import IcebergSourceSpec
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SourcePositionError
from airflow_provider_snowpipe.streaming.offsets import BatchRowOffset

_READERS = 8
"""Metadata files read at once; stores answer late rather than slowly."""
_FIRST_VERSION_WITH_NUMBERS = 2
_COUNTS = ("added-records", "deleted-records", "added-position-deletes", "added-equality-deletes")
_DELETES = "holds delete files (rewrite its data files, and start with the snapshot that this makes)"


def histories(table: Any, spec: IcebergSourceSpec) -> dict[str, History]:
    """Read which files the snapshots that lead to a table's present state have added.

    :param table: the table, opened by PyIceberg
    :param spec: the source
    :return: what was added to each partition, by name; at least one
    :raises ConfigurationError: if the table's format or partitioning is not what the source needs
    :raises SourcePositionError: if it has no rows that tell the partitions, or no snapshot with a number
    """
    return _Histories(table, spec).read()


@dataclass(frozen=True, slots=True)
class _Found:
    """A file that a snapshot holds.

    :param file: the file
    :param version: sequence number of the snapshot that brought its rows into the table
    """

    file: DataFile
    version: int


_Files = dict[str, list[_Found]]


class _Histories:
    def __init__(self, table: Any, spec: IcebergSourceSpec) -> None:
        from pyiceberg.table.snapshots import ancestors_of

        metadata = table.metadata
        if metadata.format_version < _FIRST_VERSION_WITH_NUMBERS:
            raise ConfigurationError(
                f"{spec.address!r} has format version {metadata.format_version}, which does not number its "
                "snapshots: set the table's property format-version to 2, which changes its metadata only, "
                "and begin with a later snapshot by starting_snapshot=ID"
            )
        self._io = table.io
        self._spec = spec
        self._partitioning = Partitioning.of(metadata, spec)
        self._kept = [*ancestors_of(metadata.current_snapshot(), metadata)][::-1]
        self._lineage = [one for one in self._kept if one.sequence_number]
        """Oldest first, without what was written in format version 1."""
        if self._kept and not self._lineage:
            raise SourcePositionError(
                f"{spec.address!r} has no snapshot yet that was made in format version 2 and has a number: "
                "run again when there is one, with starting_snapshot=ID to load what was there before, too"
            )

    def read(self) -> dict[str, History]:
        lineage, start = self._lineage, self._spec.starting_snapshot
        first = next((one for one in lineage if one.snapshot_id == start), None)
        with ThreadPoolExecutor(_READERS) as pool:
            steps = list(pool.map(self._step, lineage))
            earlier = self._earlier(pool)
            base = {} if first is None else self._live(pool, first)
        changed = first is not None and self._has_delete_files(first)
        # Whoever expires a parent may also take its id away (PyIceberg 0.12 does): files tell, too.
        complete = not earlier and self._kept == lineage and not (lineage and lineage[0].parent_snapshot_id)
        names = {name for _, files, _ in steps for name in files} | set(earlier) | set(base)
        return {
            name: History(
                address=self._spec.address,
                versions=tuple(one.sequence_number for one in lineage),
                snapshots=tuple(_steps_of(name, steps)),
                complete=complete,
                earlier=earlier.get(name),
                base=None if first is None else _base(first, base.get(name, []), changed),
                missing_start=start if first is None else None,
                oldest=lineage[0].snapshot_id if lineage else None,
            )
            for name in sorted(self._partitioning.names(names))
        }

    def _step(self, snapshot: Any) -> tuple[Any, _Files, str]:
        """What a snapshot did: the files that it appended, or in words what else."""
        from pyiceberg.manifest import ManifestEntryStatus
        from pyiceberg.table.snapshots import Operation

        operation = None if snapshot.summary is None else snapshot.summary.operation
        if operation == Operation.REPLACE:
            return snapshot, {}, ""
        if operation != Operation.APPEND:
            return snapshot, {}, _change(snapshot)
        own = [one for one in snapshot.manifests(self._io) if one.added_snapshot_id == snapshot.snapshot_id]
        if any(_has_deletes(one) for one in own):
            return snapshot, {}, _DELETES
        added = self._partitioning.by_name(
            (entry.data_file, entry.sequence_number)
            for manifest in own
            for entry in manifest.fetch_manifest_entry(self._io)
            if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id
        )
        return snapshot, _found(added), ""

    def _live(self, pool: ThreadPoolExecutor, snapshot: Any, *, before: bool = False) -> _Files:
        """All files of a snapshot; with ``before`` those whose rows it did not append itself."""
        from pyiceberg.table.snapshots import Operation

        manifests = [one for one in snapshot.manifests(self._io) if not _is_delete_manifest(one)]
        entries = pool.map(partial(_entries, self._io), manifests)
        appended = snapshot.summary is not None and snapshot.summary.operation == Operation.APPEND
        mine = snapshot.snapshot_id if before and appended else None
        return _found(
            self._partitioning.by_name(
                (entry.data_file, entry.sequence_number)
                for some in entries
                for entry in some
                if entry.snapshot_id != mine
            )
        )

    def _earlier(self, pool: ThreadPoolExecutor) -> dict[str, BatchRowOffset]:
        """The last row in each partition that snapshots which are not kept have appended."""
        if not self._lineage:
            return {}
        found: dict[str, BatchRowOffset] = {}
        for name, files in self._live(pool, self._lineage[0], before=True).items():
            last = max(one.version for one in files)
            found[name] = BatchRowOffset(last, sum(one.file.rows for one in files if one.version == last))
        return found

    def _has_delete_files(self, snapshot: Any) -> bool:
        return any(_has_deletes(one) for one in snapshot.manifests(self._io))


def _entries(io: Any, manifest: Any) -> Sequence[Any]:
    entries: Sequence[Any] = manifest.fetch_manifest_entry(io)
    return entries


def _is_delete_manifest(manifest: Any) -> bool:
    from pyiceberg.manifest import ManifestContent

    return bool(manifest.content == ManifestContent.DELETES)


def _has_deletes(manifest: Any) -> bool:
    held = manifest.has_added_files() or manifest.has_existing_files()
    return _is_delete_manifest(manifest) and held


def _found(by_name: dict[str, list[tuple[DataFile, int]]]) -> _Files:
    found: _Files = defaultdict(list)
    for name, files in by_name.items():
        found[name] = [_Found(file, version) for file, version in files]
    return found


def _change(snapshot: Any) -> str:
    if snapshot.summary is None:
        return "does not say what it did"
    counts = [f"{name}={snapshot.summary[name]}" for name in _COUNTS if snapshot.summary[name]]
    return f"is of the kind {snapshot.summary.operation.value!r} ({', '.join(counts) or 'nothing counted'})"


def _steps_of(name: str, steps: Sequence[tuple[Any, _Files, str]]) -> Iterator[SnapshotRows]:
    for snapshot, files, change in steps:
        mine = tuple(one.file for one in files.get(name, ()))
        if mine or change:
            yield SnapshotRows(snapshot.sequence_number, snapshot.snapshot_id, mine, change)


def _base(snapshot: Any, files: Sequence[_Found], has_deletes: bool) -> SnapshotRows:
    version, number = snapshot.sequence_number, snapshot.snapshot_id
    if has_deletes:
        return SnapshotRows(version, number, (), _DELETES)
    return SnapshotRows(version, number, tuple(one.file for one in files))

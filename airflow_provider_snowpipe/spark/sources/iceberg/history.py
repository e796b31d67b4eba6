"""What the snapshots of an Iceberg table appended to one partition, and where a channel goes on in it.

Holds facts only, taken on the driver when a run begins; nothing here reads anything.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from airflow_provider_snowpipe.spark.source import OnDataLoss
from airflow_provider_snowpipe.spark.sources.iceberg.spec import IcebergSource
from airflow_provider_snowpipe.spark.sources.tables.reader import ONLY
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SourcePositionError
from airflow_provider_snowpipe.streaming.names import counted
from airflow_provider_snowpipe.streaming.offsets import BatchRowOffset

_ROLLED_BACK = (
    "Nothing was sent: delete the rows of snapshots that are gone, and reset the token to one that is left"
)


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of rows, which never changes; ``constants`` are columns that it may lack, by field id."""

    path: str
    rows: int
    bytes: int
    constants: tuple[tuple[int, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class SnapshotRows:
    """What one snapshot did to one partition.

    :param version: the snapshot's sequence number
    :param files: the files that it appended, in the order in which it lists them
    :param change: what else it did, in words; empty if it only appended rows or moved them to other files
    """

    version: int
    snapshot: int
    files: tuple[DataFile, ...] = ()
    change: str = ""

    @property
    def rows(self) -> int:
        """Number of rows that it appended."""
        return sum(file.rows for file in self.files)


@dataclass(frozen=True, slots=True)
class Piece:
    """The rows of one file that are still to load.

    :param before: rows of the same version in files before this one
    :param skip: rows of the file that are committed
    """

    version: int
    file: DataFile
    before: int
    skip: int

    def position(self, row: int) -> BatchRowOffset:
        """The position of a row, by its number in the file from 1."""
        return BatchRowOffset(self.version, self.before + row)


@dataclass(frozen=True, slots=True)
class History:
    """The snapshots that lead to the table's present state, as far as they are kept.

    :param versions: sequence numbers of all of them, growing
    :param snapshots: those that appended rows to the partition or did something else, oldest first
    :param complete: True if the first snapshot began the table, False if older ones have expired
    :param earlier: position of the last row that the table has from expired snapshots, None if it has none
    :param base: all rows of the snapshot that the source begins with, None if it begins with the first one
    :param missing_start: id of the snapshot that the source is to begin with, if that is not among those kept
    :param oldest: id of the oldest snapshot that is kept, None if there is none
    """

    address: str
    versions: tuple[int, ...] = ()
    snapshots: tuple[SnapshotRows, ...] = ()
    complete: bool = True
    earlier: BatchRowOffset | None = None
    base: SnapshotRows | None = None
    missing_start: int | None = None
    oldest: int | None = None

    def pieces_after(self, committed: BatchRowOffset | None) -> Iterator[Piece]:
        """The rows behind a position that :meth:`check` has not refused, in order."""
        for one in self._required(committed):
            before = 0
            done = committed.row if committed is not None and committed.batch == one.version else 0
            for file in one.files:
                if before + file.rows > done:
                    yield Piece(one.version, file, before, max(done - before, 0))
                before += file.rows

    def check(self, committed: BatchRowOffset | None, on_data_loss: OnDataLoss) -> None:
        """Refuse a position that the table cannot be read on from; ``skip`` allows for expired snapshots."""
        if committed is None:
            if self.base is None:
                self._check_beginning(on_data_loss)
        else:
            self._check_position(committed, on_data_loss)
        changed = next(
            (
                one
                for one in self._required(committed)
                if one.change and (committed is None or one.version > committed.batch)
            ),
            None,
        )
        if changed is None:
            return
        remedy = f"set the channel's offset token to '{changed.version}:0'"
        if committed is None:
            remedy = "begin with that snapshot or a later one by starting_snapshot=ID"
        raise SourcePositionError(
            f"snapshot {changed.snapshot} of {self.address!r} (sequence number {changed.version}) "
            f"{changed.change}, and a channel only adds rows: bring that into the table by other means, and "
            f"{remedy} on purpose. Nothing was sent"
        )

    def _required(self, committed: BatchRowOffset | None) -> Iterator[SnapshotRows]:
        """The snapshots from the committed one on; the one that the source begins with has all its rows."""
        base = self.base
        if base is not None and (committed is None or committed.batch == base.version):
            yield base
            yield from (one for one in self.snapshots if one.version > base.version)
        else:
            first = 0 if committed is None else committed.batch
            yield from (one for one in self.snapshots if one.version >= first)

    def _check_beginning(self, on_data_loss: OnDataLoss) -> None:
        if self.missing_start is not None:
            raise SourcePositionError(
                f"nothing is committed, and starting_snapshot={self.missing_start} is not among the kept "
                f"snapshots that lead to the present state of {self.address!r}: it has expired, or never was "
                f"one of them; the oldest is {self.oldest}. Nothing was sent"
            )
        if self.earlier is not None and on_data_loss == "fail":
            raise SourcePositionError(
                f"nothing is committed, and {self.address!r} has rows from snapshots that have expired, up "
                f"to sequence number {self.earlier.batch}: starting_snapshot={self.oldest} loads all rows of "
                "the oldest snapshot that is kept and then what later ones append; on_data_loss='skip' "
                "leaves those rows out. Nothing was sent"
            )

    def _check_position(self, committed: BatchRowOffset, on_data_loss: OnDataLoss) -> None:
        token, versions = repr(str(committed)), self.versions
        if not versions or committed.batch > versions[-1]:
            raise SourcePositionError(
                f"{token} is committed, but the latest snapshot of {self.address!r} has sequence number "
                f"{versions[-1] if versions else 'none'}: the table was rolled back, recreated, or is "
                f"another one. {_ROLLED_BACK}"
            )
        if committed.batch < versions[0]:
            return self._check_expired(committed, on_data_loss)
        if versions[bisect_left(versions, committed.batch)] != committed.batch:
            raise SourcePositionError(
                f"{token} is committed, but no snapshot with that sequence number leads to the present state "
                f"of {self.address!r}: the table was rolled back, or is another one. {_ROLLED_BACK}"
            )
        found = next((one for one in self._required(committed) if one.version == committed.batch), None)
        have = 0 if found is None else found.rows
        if committed.row > have:
            raise SourcePositionError(
                f"{token} is committed, but the snapshot of {self.address!r} with sequence number "
                f"{committed.batch} has {counted(have, 'row')} for it: the table was recreated, or is "
                "another one. Nothing was sent"
            )

    def _check_expired(self, committed: BatchRowOffset, on_data_loss: OnDataLoss) -> None:
        if on_data_loss == "skip":
            return
        if self.complete:
            raise SourcePositionError(
                f"{str(committed)!r} is committed, but {self.address!r} begins with sequence number "
                f"{self.versions[0]}: its earlier snapshots are gone; on_data_loss='skip' loads what is "
                "left. Nothing was sent"
            )
        if self.earlier is not None and committed < self.earlier:
            raise SourcePositionError(
                f"{str(committed)!r} is committed, but {self.address!r} has rows behind it, up to sequence "
                f"number {self.earlier.batch}, whose snapshots have expired, so that it is not known which "
                f"they are; on_data_loss='skip' leaves them out and goes on with snapshot {self.oldest}. "
                "Keep snapshots for longer than runs may pause. Nothing was sent"
            )


# -- The history of an Iceberg table as its metadata has it, partition by partition ----------------------
#
# A snapshot's manifest list names the manifests that the snapshot wrote, and those the files that it added
# ("Snapshots" and "Manifests" in the Iceberg specification). Metadata files never change, so that the order
# in which they list the files is the same for every run.

_READERS = 8
"""Metadata files read at once; stores answer late rather than slowly."""
_FIRST_VERSION_WITH_NUMBERS = 2
_COUNTS = ("added-records", "deleted-records", "added-position-deletes", "added-equality-deletes")
_DELETES = "holds delete files (rewrite its data files, and start with the snapshot that this makes)"


def histories(table: Any, spec: IcebergSource) -> dict[str, History]:
    """Read what the snapshots that lead to a table's present state have added to each partition, by name."""
    return _Histories(table, spec).read()


_Files = dict[str, list[tuple[DataFile, int]]]
"""Files by partition, each with the sequence number of the snapshot that brought its rows into the table."""


class _Histories:
    def __init__(self, table: Any, spec: IcebergSource) -> None:
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
        self._by = spec.partition_by
        self._schema, self._specs = metadata.schema(), metadata.specs()
        """PyIceberg's ``PartitionSpec`` by id; files keep the one they were written under."""
        known = {field.name for one in self._specs.values() for field in one.fields}
        if self._by is not None and self._by not in known:
            raise ConfigurationError(
                f"source partition_by is {self._by!r}, but {spec.address!r} is partitioned by "
                f"{sorted(known) or 'nothing'}: name one of its partition fields, or leave it out for one "
                "channel"
            )
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
        changed = first is not None and any(map(_has_deletes, first.manifests(self._io)))
        # Whoever expires a parent may also take its id away (PyIceberg 0.12 does): files show it, too.
        complete = not earlier and self._kept == lineage and not (lineage and lineage[0].parent_snapshot_id)
        names = {name for _, files, _ in steps for name in files} | set(earlier) | set(base)
        return {
            name: History(
                address=self._spec.address,
                versions=tuple(one.sequence_number for one in lineage),
                snapshots=tuple(_steps_of(name, steps)),
                complete=complete,
                earlier=earlier.get(name),
                base=None if first is None else _base(first, base, name, changed),
                missing_start=start if first is None else None,
                oldest=lineage[0].snapshot_id if lineage else None,
            )
            for name in sorted(self._names(names))
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
        added = self._by_name(
            (entry.data_file, entry.sequence_number)
            for manifest in own
            for entry in manifest.fetch_manifest_entry(self._io)
            if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id
        )
        return snapshot, added, ""

    def _live(self, pool: ThreadPoolExecutor, snapshot: Any, *, before: bool = False) -> _Files:
        """All files of a snapshot; with ``before`` those whose rows it did not append itself."""
        from pyiceberg.table.snapshots import Operation

        manifests = [one for one in snapshot.manifests(self._io) if not _is_delete_manifest(one)]
        entries = pool.map(lambda one: list(one.fetch_manifest_entry(self._io)), manifests)
        appended = snapshot.summary is not None and snapshot.summary.operation == Operation.APPEND
        mine = snapshot.snapshot_id if before and appended else None
        return self._by_name(
            (entry.data_file, entry.sequence_number)
            for some in entries
            for entry in some
            if entry.snapshot_id != mine
        )

    def _earlier(self, pool: ThreadPoolExecutor) -> dict[str, BatchRowOffset]:
        """The last row in each partition that snapshots which are not kept have appended."""
        if not self._lineage:
            return {}
        found: dict[str, BatchRowOffset] = {}
        for name, files in self._live(pool, self._lineage[0], before=True).items():
            last = max(version for _, version in files)
            found[name] = BatchRowOffset(last, sum(file.rows for file, version in files if version == last))
        return found

    def _names(self, found: Iterable[str]) -> list[str]:
        """The partitions of the source."""
        names = list(found) if self._by is not None else [ONLY]
        if not names:
            raise SourcePositionError(
                f"{self._spec.address!r} has no rows, so that {self._by!r} gives no partition: run again "
                "when it has"
            )
        return names

    def _by_name(self, files: Iterable[tuple[Any, int]]) -> _Files:
        """Sort files, each with its sequence number, into partitions; their order stays."""
        from pyiceberg.transforms import IdentityTransform

        found: _Files = defaultdict(list)
        for file, version in files:
            if file.file_format.value != "PARQUET":
                raise ConfigurationError(
                    f"data file {file.file_path!r} of {self._spec.address!r} is {file.file_format.value}: "
                    "this source reads Parquet; rewrite the table's files"
                )
            # The fields of the partitioning that the file was written under, with its values.
            fields = self._specs[file.spec_id].fields
            values = [(one, file.partition[index]) for index, one in enumerate(fields)]
            constants = tuple(
                (one.source_id, value)
                for one, value in values
                if value is not None and isinstance(one.transform, IdentityTransform)
            )
            facts = DataFile(file.file_path, file.record_count, file.file_size_in_bytes, constants)
            found[self._name(file, values)].append((facts, version))
        return found

    def _name(self, file: Any, values: list[tuple[Any, Any]]) -> str:
        if self._by is None:
            return ONLY
        for one, value in values:
            if one.name == self._by and value is not None:
                return str(one.transform.to_human_string(self._schema.find_type(one.source_id), value))
        raise ConfigurationError(
            f"data file {file.file_path!r} of {self._spec.address!r} has no value of the partition field "
            f"{self._by!r}, which names its channel: it holds NULL, or was written before the table had that "
            "field. Rewrite the table's files, or load it through one channel. Nothing was sent"
        )


def _is_delete_manifest(manifest: Any) -> bool:
    from pyiceberg.manifest import ManifestContent

    return bool(manifest.content == ManifestContent.DELETES)


def _has_deletes(manifest: Any) -> bool:
    held = manifest.has_added_files() or manifest.has_existing_files()
    return _is_delete_manifest(manifest) and held


def _change(snapshot: Any) -> str:
    if snapshot.summary is None:
        return "does not state what it did"
    counts = [f"{name}={snapshot.summary[name]}" for name in _COUNTS if snapshot.summary[name]]
    return f"is of the kind {snapshot.summary.operation.value!r} ({', '.join(counts) or 'nothing counted'})"


def _steps_of(name: str, steps: Sequence[tuple[Any, _Files, str]]) -> Iterator[SnapshotRows]:
    for snapshot, files, change in steps:
        mine = tuple(file for file, _ in files.get(name, ()))
        if mine or change:
            yield SnapshotRows(snapshot.sequence_number, snapshot.snapshot_id, mine, change)


def _base(snapshot: Any, files: _Files, name: str, has_deletes: bool) -> SnapshotRows:
    version, number = snapshot.sequence_number, snapshot.snapshot_id
    if has_deletes:
        return SnapshotRows(version, number, (), _DELETES)
    return SnapshotRows(version, number, tuple(file for file, _ in files.get(name, ())))

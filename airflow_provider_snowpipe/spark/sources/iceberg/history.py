"""What the snapshots of an Iceberg table appended to one partition, and where a channel goes on in it.

Holds facts only, taken on the driver when a run begins; nothing here reads anything.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from airflow_provider_snowpipe.spark.sources.source import OnDataLoss
from airflow_provider_snowpipe.streaming.errors import SourcePositionError
from airflow_provider_snowpipe.streaming.offsets import BatchRowOffset


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of rows, which never changes.

    :param path: where it is
    :param rows: number of its rows
    :param bytes: its size
    :param constants: values of columns that it may lack because all its rows have the same one, by field id
    """

    path: str
    rows: int
    bytes: int
    constants: tuple[tuple[int, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class SnapshotRows:
    """What one snapshot did to one partition.

    :param version: the snapshot's sequence number
    :param snapshot: its id
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

    :param version: the sequence number in their positions
    :param file: the file
    :param before: rows of the same version in files before this one
    :param skip: rows of the file that are committed
    """

    version: int
    file: DataFile
    before: int
    skip: int

    def position(self, row: int) -> BatchRowOffset:
        """The position of a row.

        :param row: its number in the file, counted from 1
        """
        return BatchRowOffset(self.version, self.before + row)


@dataclass(frozen=True, slots=True)
class History:
    """The snapshots that lead to the table's present state, as far as they are kept.

    :param address: the table, for errors
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
        """The rows behind a position that :meth:`check` has not refused, in order.

        :param committed: the position, None for NULL
        """
        for one in self._wanted(committed):
            before = 0
            done = committed.row if committed is not None and committed.batch == one.version else 0
            for file in one.files:
                if before + file.rows > done:
                    yield Piece(one.version, file, before, max(done - before, 0))
                before += file.rows

    def check(self, committed: BatchRowOffset | None, on_data_loss: OnDataLoss) -> None:
        """Refuse a position that the table cannot be read on from.

        :param committed: the position, None for NULL
        :param on_data_loss: ``skip`` goes on with the oldest snapshot where older ones have expired
        :raises SourcePositionError: if the position is not in the table's history, if rows between are not
            known any more, or if a snapshot behind it did more than append
        """
        if committed is None:
            if self.base is None:
                self._check_beginning(on_data_loss)
        else:
            self._check_position(committed, on_data_loss)
        changed = next(
            (one for one in self._wanted(committed) if one.change and _is_behind(one, committed)), None
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

    def _wanted(self, committed: BatchRowOffset | None) -> Iterator[SnapshotRows]:
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
                f"{versions[-1] if versions else 'none'}: the table was rolled back, made anew, or is "
                "another one. Nothing was sent"
            )
        if committed.batch < versions[0]:
            self._check_expired(committed, on_data_loss)
        elif versions[bisect_left(versions, committed.batch)] != committed.batch:
            raise SourcePositionError(
                f"{token} is committed, but no snapshot with that sequence number leads to the present state "
                f"of {self.address!r}: the table was rolled back, or is another one. Nothing was sent"
            )
        else:
            self._check_rows(committed)

    def _check_expired(self, committed: BatchRowOffset, on_data_loss: OnDataLoss) -> None:
        if on_data_loss == "skip":
            return
        if self.complete:
            raise SourcePositionError(
                f"{str(committed)!r} is committed, but {self.address!r} begins with sequence number "
                f"{self.versions[0]}: the table was replaced; on_data_loss='skip' loads the new one's rows. "
                "Nothing was sent"
            )
        if self.earlier is not None and committed < self.earlier:
            raise SourcePositionError(
                f"{str(committed)!r} is committed, but {self.address!r} has rows behind it, up to sequence "
                f"number {self.earlier.batch}, whose snapshots have expired, so that nobody can tell which "
                f"they are; on_data_loss='skip' leaves them out and goes on with snapshot {self.oldest}. "
                "Keep snapshots for longer than runs may pause. Nothing was sent"
            )

    def _check_rows(self, committed: BatchRowOffset) -> None:
        found = next((one for one in self._wanted(committed) if one.version == committed.batch), None)
        have = 0 if found is None else found.rows
        if committed.row > have:
            raise SourcePositionError(
                f"{str(committed)!r} is committed, but the snapshot of {self.address!r} with sequence number "
                f"{committed.batch} has {have} row(s) for it: the table was made anew, or is another one. "
                "Nothing was sent"
            )


def _is_behind(one: SnapshotRows, committed: BatchRowOffset | None) -> bool:
    return committed is None or one.version > committed.batch

"""The gate between source and channel: only rows that fit the table go on, and dead letters are put aside."""

from __future__ import annotations

import datetime as dt
import logging
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from airflow_provider_snowpipe.streaming.arguments import MOST_UNLOADED, OnUnknown, UnloadedRow
from airflow_provider_snowpipe.streaming.batch import Part, Undecoded
from airflow_provider_snowpipe.streaming.checked_values import RowRules
from airflow_provider_snowpipe.streaming.errors import (
    DeadLetterError,
    EncodingError,
    OffsetTokenError,
    UnfitRowsError,
)
from airflow_provider_snowpipe.streaming.key_check import UnknownKeys
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.names import counted
from airflow_provider_snowpipe.streaming.ndjson import BlockLines
from airflow_provider_snowpipe.streaming.offsets import Offset
from airflow_provider_snowpipe.streaming.row_check import CheckedBlock, RowCheck, RowFault
from airflow_provider_snowpipe.streaming.row_values import Fault
from airflow_provider_snowpipe.streaming.table_schema import TableColumn

log = logging.getLogger(__name__)
_SUFFIX = ".parquet"
_LONGEST_NAME = 255
"""Bytes of a file's name, in the file systems that there are."""
_MARK = "_pipe-"
"""Begins the name of an empty file that shows the pipe of a channel's dead letters by a digest."""
SCHEMA = pa.schema(
    [
        pa.field("channel", pa.string(), nullable=False),
        pa.field("position", pa.string()),
        pa.field("first_position", pa.string(), nullable=False),
        pa.field("last_position", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("column", pa.string()),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
        pa.field("application", pa.string(), nullable=False),
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One row that was put aside.

    :param position: its position, None where only the part's is known
    :param payload: the row as it would have been sent; of a record that cannot be decoded, its value
    """

    position: Offset | None
    row: int
    column: str | None
    reason: str
    payload: bytes
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class DeadLetterStore(ABC):
    """Where one channel's bad rows go during one attempt at them."""

    def claim(self, pipe: str) -> None:  # noqa: B027  a store of another package need not know
        """Take the channel that it belongs to, before anything else."""

    @abstractmethod
    def write(self, start: Offset, end: Offset, dead_letters: Sequence[DeadLetter], application: str) -> None:
        """Put the bad rows of one part aside; they are safe when this returns."""

    @abstractmethod
    def pass_by(self, start: Offset, end: Offset) -> None:
        """Clear away what an earlier attempt left for rows of a part that this one has read itself."""

    @abstractmethod
    def settle(self, committed: Offset) -> None:
        """Clear away what an attempt left that was shut out while this one ran."""

    def count(self, committed: Offset) -> int:
        """Count the rows up to a position that are put aside."""
        raise DeadLetterError(f"the dead letters of {type(self).__name__} cannot be counted")


class DeadLetterFolder(DeadLetterStore):
    """The files of one channel."""

    def __init__(self, path: str, channel: str, offset_class: type[Offset], after: Offset | None) -> None:
        self._path, self._channel, self._offset_class = path, channel, offset_class
        self._after = after
        self._own: set[str] = set()
        self._first: Offset | None = None
        self._mark = ""
        self._marks: frozenset[str] = frozenset()
        with self._reached():
            self._files, root = open_place(path)
            self._folder = f"{root}/{_name(channel)}"
        self._left = self._listed()

    def claim(self, pipe: str) -> None:
        """Take another folder where the channel's own is that of a channel of another pipe."""
        self._mark = _MARK + blake2b(pipe.encode(), digest_size=8).hexdigest()
        if self._is_of_another():
            self._leave()
            self._left = self._listed()

    def write(self, start: Offset, end: Offset, dead_letters: Sequence[DeadLetter], application: str) -> None:
        """Put the bad rows of one part into a file."""
        part = {"channel": self._channel, "first_position": str(start), "last_position": str(end)}
        run = {"application": application, "at": dt.datetime.now(dt.UTC)}
        rows = [
            {
                **{name: getattr(one, name) for name in ("row", "column", "reason", "payload", "key")},
                "position": None if one.position is None else str(one.position),
                "headers": [{"key": name, "value": value} for name, value in one.headers],
                **part,
                **run,
            }
            for one in dead_letters
        ]
        table = pa.Table.from_pylist(rows, schema=SCHEMA)
        out = pa.BufferOutputStream()
        pq.write_table(table, out, compression="zstd")
        name = _name(str(start), _SUFFIX)
        if self._mark and self._mark not in self._marks:
            self._occupy()
        with self._reached():
            self._files.create_dir(self._folder, recursive=True)
            store_whole(self._files, f"{self._folder}/{name}", out.getvalue())
        self._own.add(name)

    def pass_by(self, start: Offset, end: Offset) -> None:
        """Remove the files of an earlier attempt."""
        if self._first is None:
            self._first = start
        while self._left and self._left[0][0] <= end:
            position, name = self._left.pop(0)
            if position >= self._first:
                self._remove(name)

    def settle(self, committed: Offset) -> None:
        """Remove the files of an attempt that was shut out."""
        for position, name in self._listed():
            if self._first is not None and self._first <= position <= committed:
                self._remove(name)

    def count(self, committed: Offset) -> int:
        """Count the rows up to a position in the channel's files."""
        found = 0
        for first, name in self._listed():
            if first > committed:
                break
            with self._reached(), self._files.open_input_file(f"{self._folder}/{name}") as file:
                rows = pq.read_table(file, columns=["position", "last_position"]).to_pylist()
            positions = (row["position"] or row["last_position"] for row in rows)
            found += sum(self._offset_class.parse(one) <= committed for one in positions)
        return found

    def _occupy(self) -> None:
        """Mark the folder, and leave it to another pipe that has done so as well, or before."""
        with self._reached():
            self._files.create_dir(self._folder, recursive=True)
            store_whole(self._files, f"{self._folder}/{self._mark}", pa.py_buffer(b""))
        self._listed()
        if self._marks - {self._mark}:
            self._remove(self._mark)
            self._leave()
            self._occupy()

    def _is_of_another(self) -> bool:
        return bool(self._mark and self._marks and self._mark not in self._marks)

    def _leave(self) -> None:
        """Go on in a folder that no other pipe takes."""
        self._folder += self._mark.replace(_MARK, "~")
        self._left = []

    def _remove(self, name: str) -> None:
        if name in self._own:
            return
        try:
            with self._reached():
                self._files.delete_file(f"{self._folder}/{name}")
        except DeadLetterError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise

    def _listed(self) -> list[tuple[Offset, str]]:
        """The files with rows after the position found at open, by the first position of their part."""
        with self._reached():
            found = self._files.get_file_info(fs.FileSelector(self._folder, allow_not_found=True))
        self._marks = frozenset(info.base_name for info in found if info.base_name.startswith(_MARK))
        if self._is_of_another():
            return []
        names = [info.base_name for info in found if info.base_name.endswith(_SUFFIX)]
        positions = [(self._position(name), name) for name in names]
        known = [(position, name) for position, name in positions if position is not None]
        return sorted(one for one in known if self._after is None or one[0] > self._after)

    def _position(self, name: str) -> Offset | None:
        """The position in a file's name, None for a file that is not ours."""
        try:
            return self._offset_class.parse(unquote(name.removesuffix(_SUFFIX)))
        except OffsetTokenError:
            return None

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException, NotImplementedError) as error:
            text = " ".join(str(error).split())[:300]
            raise DeadLetterError(
                f"channel {self._channel!r}: dead letters at {self._path!r} cannot be read or written "
                f"({type(error).__name__}: {text}): give the executors access to that directory"
            ) from error


def read_letters(path: str, application: str | None = None) -> list[bytes]:
    """Read the rows of a folder, each once, also where two attempts have put it aside.

    :param path: the load's directory or URL
    :param application: only rows of this run, None for all
    :raises DeadLetterError: if the folder is not there, or holds other files
    """
    from pyarrow import dataset

    of_run = None if application is None else dataset.field("application") == application
    columns = [*SCHEMA.names, "__filename"]  # the folder is that of a channel of one pipe
    try:
        files, root = open_place(path)
        rows = dataset.dataset(root, SCHEMA, "parquet", files).to_table(columns, of_run)
    except (OSError, pa.ArrowException) as error:
        raise DeadLetterError(f"{path!r} holds no dead letters: name a load's dead_letter_path") from error
    ordered = rows.sort_by([(name, "ascending") for name in ("channel", "at", "row")]).to_pylist()
    keys = [
        (one["__filename"].rpartition("/")[0], one["position"] or (one["first_position"], one["row"]))
        for one in ordered
    ]
    return list({key: one["payload"] for key, one in zip(keys, ordered, strict=True)}.values())


def _name(text: str, ending: str = "") -> str:
    """A name of a file or folder from which the text can be read.

    Percent-encoded, 29 letters of Chinese are longer than a file system takes; as they are, 85 are not.
    """
    whole = quote(text, safe="") + ending
    if len(whole) <= _LONGEST_NAME:
        return whole
    return "".join(quote(one, safe="") if one.isascii() else one for one in text) + ending


def open_place(path: str) -> tuple[fs.FileSystem, str]:
    """The file system of a directory, a file or a URL, and the path within it."""
    if "://" in path:
        files, root = fs.FileSystem.from_uri(path)
        return files, root.rstrip("/")
    return fs.LocalFileSystem(), path.rstrip("/")


def store_whole(files: fs.FileSystem, path: str, data: pa.Buffer) -> None:
    """Write a file so that a reader sees all of it or nothing; an object store does so by itself."""
    if isinstance(files, fs.LocalFileSystem):
        folder, name = os.path.split(path)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{name[:50]}.", dir=folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        return
    with files.open_output_stream(path) as stream:
        stream.write(data)


# -- Rows that were put aside, by default in one Parquet file for each part of a channel that had some ---
#
# A file is named after the first position of its part and appears whole. Another attempt at the same rows
# may cut its parts elsewhere; each attempt removes the files that an earlier one left for the rows it has
# read itself, so that a row lies in one file however often it was met. Files of rows that lie between the
# committed position and the first row that an attempt reads stay: a stream does not bring such rows again.

OpenDeadLetters = Callable[[str, str, type[Offset], Offset | None], DeadLetterStore]
"""Opens a store of dead letters, from its path, the channel, its offsets' format, the committed position."""


class Admission:
    """What every part of one channel passes before it is sent: its keys, then its values, as far as required.

    A part keeps its first and last position even where those rows are bad, so that the commit passes them;
    see :class:`~airflow_provider_snowpipe.streaming.batch.AdmittedParts` for parts without a good row.

    ``dead_lettered`` are the rows put aside so far, ``undecoded`` the records skipped so far because they
    cannot be decoded, ``unknown_columns`` the rows so far that have a key which matches no column, by key,
    and ``unloaded`` the first rows so far that were put aside or skipped.

    :param rules: how values are checked, None if they are not
    :param columns: the table's columns, to compare keys with; none where they are not compared
    :param committed: the committed position when the channel was opened, None for NULL
    :param skips_undecoded: True skips and counts records that cannot be decoded, or carried by no request
    :param limits: what a request carries; None where nothing is too large
    """

    def __init__(
        self,
        rules: RowRules | None,
        columns: Sequence[TableColumn],
        unknown_columns: OnUnknown,
        channel: str,
        offset_class: type[Offset],
        committed: Offset | None,
        open_dead_letters: OpenDeadLetters = DeadLetterFolder,
        *,
        skips_undecoded: bool = False,
        limits: BatchLimits | None = None,
    ) -> None:
        self._limits = limits
        self._channel, self._skips_undecoded = channel, skips_undecoded
        checks_keys = bool(columns) and unknown_columns != "ignore"
        self._values: RowCheck | None = None
        self._only_exact = rules is None or rules.only_exact
        self._dead_letters: DeadLetterStore | None = None
        if rules is not None:
            self._values = RowCheck(rules.columns, only_exact=rules.only_exact)
            self._application = rules.application
            if rules.dead_letter_path is not None:
                self._dead_letters = open_dead_letters(
                    rules.dead_letter_path, channel, offset_class, committed
                )
                if rules.pipe:
                    self._dead_letters.claim(rules.pipe)
        self._keys: UnknownKeys | None = None
        if checks_keys:
            puts_aside = self._dead_letters is not None
            self._keys = UnknownKeys(columns, unknown_columns, channel, puts_aside=puts_aside)
        self.dead_lettered = 0
        self.undecoded = 0
        self.unknown_columns: Mapping[str, int] = {}
        self.unloaded: tuple[UnloadedRow, ...] = ()

    def admit(self, part: Part) -> Part | None:
        """The part with the rows that are to be sent, None if it has none; raises what nobody puts aside."""
        if self._only_exact:
            if part.undecoded and not self._skips_undecoded:
                raise _undecoded_error(self._channel, part.undecoded)
            if part.undecoded:
                self.undecoded += len(part.undecoded)
                self._report(_letters(part, CheckedBlock(BlockLines.of(b""), ())))
        large = self._too_large(part)
        if large and self._dead_letters is None:
            part = self._without_large(part, large)
            large = {}
        faults: Mapping[int, Fault] = {}
        if self._keys is not None and part.rows:
            where = f"{part.start} to {part.end}"
            faults = self._keys.check(part.body, where)
            self.unknown_columns = self._keys.counts
            if self._dead_letters is None:
                self._keys.refuse(faults, where)
        if self._values is None:
            return part if part.rows else None
        if self._only_exact and part.undecoded:
            part = replace(part, undecoded=())
        found = self._values.check(part.body)
        if faults or large:
            found = _with_faults(found, {**faults, **large})
        return self._fitting(part, found)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that keys of the rows so far have matched, in capital letters."""
        return () if self._keys is None else tuple(sorted(self._keys.matched))

    def settle(self, committed: Offset | None) -> None:
        """Clear away what a shut-out attempt left among the rows that are committed now."""
        if self._dead_letters is not None and committed is not None:
            self._dead_letters.settle(committed)

    def _too_large(self, part: Part) -> dict[int, Fault]:
        """The rows that a request cannot carry."""
        if self._limits is None or len(part.body) <= self._limits.wire_bytes:
            return {}
        lines = BlockLines.of(part.body)
        found = {}
        most, name = self._limits.wire_bytes, self._limits.compression
        for row in np.flatnonzero(lines.ends - lines.starts > most).tolist():
            sent = lines.row(row)
            if name != "none":
                sent = pa.Codec(name, compression_level=1).compress(sent)
            if (size := len(sent)) > most:
                found[row] = Fault(None, f"it takes {size} bytes as sent, and a request carries {most}")
        return found

    def _without_large(self, part: Part, large: Mapping[int, Fault]) -> Part:
        """The part without the rows that are too large, if those are skipped."""
        lines = BlockLines.of(part.body)
        found = _with_faults(CheckedBlock(lines, ()), large)
        if not self._skips_undecoded:
            self._put_aside(part, found)
        self._report(_letters(replace(part, undecoded=()), found))
        self.undecoded += len(large)
        log.warning(
            "channel %r: rows skipped, since they are too large to be sent: %d", self._channel, len(large)
        )
        return replace(part, body=lines.without(sorted(large)), rows=lines.rows - len(large), positions=None)

    def _fitting(self, part: Part, found: CheckedBlock) -> Part | None:
        """The part with its good rows, once the others are put aside; None if it has none."""
        if found.faults or part.undecoded:
            self._put_aside(part, found)
        if self._dead_letters is not None:
            self._dead_letters.pass_by(part.start, part.end)
        rows = found.lines.rows - len(found.faults)
        if not rows:
            return None
        if not found.faults and not part.undecoded:
            return part
        return replace(part, body=found.good_rows(), rows=rows, positions=None, undecoded=())

    def _put_aside(self, part: Part, found: CheckedBlock) -> None:
        if part.undecoded and self._dead_letters is None:
            raise _undecoded_error(self._channel, part.undecoded)
        if self._dead_letters is None:
            first, position = found.faults[0], next(_row_positions(part, found.lines, found.faults))
            where = (
                f"row {first.row + 1} of {part.start} to {part.end}"
                if position is None
                else f"row {position}"
            )
            raise UnfitRowsError(
                f"channel {self._channel!r}: {where} does not fit the table: {first.fault} "
                f"({counted(len(found.faults), 'such row')} from {part.start} to {part.end}). Neither it "
                "nor a row after it was sent; fix the source or the table, load such rows with COPY INTO, "
                "or put them aside with on_error (option onError) 'dead_letter'"
            )
        dead_letters = _letters(part, found)
        self._dead_letters.write(part.start, part.end, dead_letters, self._application)
        self.dead_lettered += len(dead_letters)
        self._report(dead_letters)

    def _report(self, rows: Sequence[DeadLetter]) -> None:
        """Keep the first rows that did not load."""
        for one in rows[: MOST_UNLOADED - len(self.unloaded)]:
            reason = one.reason if one.column is None else f"column {one.column!r}: {one.reason}"
            self.unloaded += (UnloadedRow.of(self._channel, one.position, reason, one.payload),)


def _letters(part: Part, found: CheckedBlock) -> list[DeadLetter]:
    """The rows of a part that do not fit, and its records that cannot be decoded."""
    positions = _row_positions(part, found.lines, found.faults)
    return [
        DeadLetter(position, one.row, one.fault.column, one.fault.reason, found.lines.row(one.row))
        for position, one in zip(positions, found.faults, strict=True)
    ] + [
        DeadLetter(one.position, row, None, one.reason, one.payload, one.key, one.headers)
        for row, one in enumerate(part.undecoded, found.lines.rows)
    ]


def _with_faults(found: CheckedBlock, more: Mapping[int, Fault]) -> CheckedBlock:
    faults = {
        **{row: RowFault(row, int(found.lines.numbers[row]), fault) for row, fault in more.items()},
        **{fault.row: fault for fault in found.faults},
    }
    return replace(found, faults=tuple(faults[row] for row in sorted(faults)))


def _undecoded_error(channel: str, undecoded: Sequence[Undecoded]) -> EncodingError:
    """Name the first record that cannot be decoded, where nothing else is to become of it."""
    return EncodingError(
        f"channel {channel!r}: {undecoded[0].reason} ({counted(len(undecoded), 'such record')} up to "
        f"{undecoded[-1].position}). Neither it nor a row after it was sent: on_error (option onError) "
        "'dead_letter' puts such records aside, and 'continue' skips and counts them"
    )


def _row_positions(part: Part, lines: BlockLines, faults: Sequence[RowFault]) -> Iterator[Offset | None]:
    """The position of each of some rows, None where the part has gaps and does not know."""
    if part.positions is not None:
        yield from (part.positions(one.row) for one in faults)
        return
    steps = part.start.steps_to(part.end)
    by_line = steps is not None and steps + 1 == lines.line_count
    if not by_line and (steps is None or steps + 1 != lines.rows):
        yield from (None for _ in faults)
        return
    at, position = 0, part.start
    for one in faults:
        index = one.line if by_line else one.row
        while at < index:
            position, at = position.next(), at + 1
        yield position

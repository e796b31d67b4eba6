"""Rows that were put aside, by default in one Parquet file for each part of a channel that had some.

A file is named after the first position of its part and appears whole. Another attempt at the same rows may
cut its parts elsewhere; each attempt removes the files that an earlier one left for the rows it has read
itself, so that a row lies in one file however often it was met. Files of rows that lie between the committed
position and the first row that an attempt reads stay: a stream does not bring such rows again.
"""

from __future__ import annotations

import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from airflow_provider_snowpipe.streaming.errors import DeadLetterError, OffsetTokenError
from airflow_provider_snowpipe.streaming.offsets import Offset

_SUFFIX = ".parquet"
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
    :param row: its number in its part, counted from 0
    :param column: the column that it does not fit, None where the whole row is at fault
    :param reason: in words
    :param payload: the row as it would have been sent; of a record that cannot be decoded, its value
    :param key: the key of such a record
    :param headers: its headers
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

    @abstractmethod
    def write(self, start: Offset, end: Offset, dead_letters: Sequence[DeadLetter], application: str) -> None:
        """Put the bad rows of one part aside; they are safe when this returns.

        :param start: position of the part's first row
        :param end: position of its last row
        :param dead_letters: the rows, at least one
        :param application: the run's name
        :raises DeadLetterError: if they cannot be written
        """

    @abstractmethod
    def pass_by(self, start: Offset, end: Offset) -> None:
        """Clear away what an earlier attempt left for rows of a part that this one has read itself.

        :param start: position of the part's first row
        :param end: position of its last row
        """

    @abstractmethod
    def settle(self, committed: Offset) -> None:
        """Clear away what an attempt left that was shut out while this one ran.

        :param committed: the last position that this attempt has committed
        """


class DeadLetterFolder(DeadLetterStore):
    """The files of one channel.

    :param path: the run's directory or URL
    :param channel: the channel's name
    :param offset_class: the format of its positions
    :param after: the committed position when the channel was opened, None for NULL
    :raises DeadLetterError: if it cannot be read
    """

    def __init__(self, path: str, channel: str, offset_class: type[Offset], after: Offset | None) -> None:
        self._path, self._channel, self._offset_class = path, channel, offset_class
        self._after = after
        self._own: set[str] = set()
        self._first: Offset | None = None
        with self._reached():
            self._files, root = _filesystem(path)
            self._folder = f"{root}/{quote(channel, safe='')}"
        self._left = self._listed()

    def write(self, start: Offset, end: Offset, dead_letters: Sequence[DeadLetter], application: str) -> None:
        """Put the bad rows of one part into a file.

        :raises DeadLetterError: if it cannot be written
        """
        table = pa.table(
            {
                "channel": [self._channel] * len(dead_letters),
                "position": [None if one.position is None else str(one.position) for one in dead_letters],
                "first_position": [str(start)] * len(dead_letters),
                "last_position": [str(end)] * len(dead_letters),
                "row": [one.row for one in dead_letters],
                "column": [one.column for one in dead_letters],
                "reason": [one.reason for one in dead_letters],
                "payload": [one.payload for one in dead_letters],
                "application": [application] * len(dead_letters),
                "at": [_now()] * len(dead_letters),
                "key": [one.key for one in dead_letters],
                "headers": [
                    [{"key": name, "value": value} for name, value in one.headers] for one in dead_letters
                ],
            },
            schema=SCHEMA,
        )
        out = pa.BufferOutputStream()
        pq.write_table(table, out, compression="zstd")
        name = quote(str(start), safe="") + _SUFFIX
        with self._reached():
            self._files.create_dir(self._folder, recursive=True)
            _store(self._files, f"{self._folder}/{name}", out.getvalue())
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


def _filesystem(path: str) -> tuple[fs.FileSystem, str]:
    if "://" in path:
        files, root = fs.FileSystem.from_uri(path)
        return files, root.rstrip("/")
    return fs.LocalFileSystem(), path.rstrip("/")


def _store(files: fs.FileSystem, path: str, data: pa.Buffer) -> None:
    """Write a file so that a reader sees all of it or nothing; an object store does so by itself."""
    if isinstance(files, fs.LocalFileSystem):
        folder, name = os.path.split(path)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{name[:100]}.", dir=folder)
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


def _now() -> Any:
    import datetime as dt

    return dt.datetime.now(dt.UTC)

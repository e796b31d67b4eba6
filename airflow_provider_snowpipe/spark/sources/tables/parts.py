"""Arrow batches of ready rows as parts: cut by size, checked to be in order, and not copied."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_snowpipe.spark.data_source.rows import RowEncoder
from airflow_provider_snowpipe.spark.driver.frames import CHANNEL, LINE
from airflow_provider_snowpipe.spark.sources.source import part_bytes
from airflow_provider_snowpipe.streaming.batch import Part
from airflow_provider_snowpipe.streaming.errors import ContinuityError, SourcePositionError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.ndjson import NdjsonOptions
from airflow_provider_snowpipe.streaming.offsets import BatchRowOffset, Offset

POSITION = "snowpipe_position"
"""Column of a query's rows: the value of the key that orders them."""
VERSION = "snowpipe_version"
"""Column of a query's rows: the version of the table that added them."""
_OWN = frozenset({CHANNEL, POSITION, VERSION})

Indexes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Lines:
    """The rows of one batch as text.

    :param body: all of it; a view of the Arrow buffer
    :param ends: where each row begins in it, and the end of the last one
    """

    body: memoryview
    ends: Indexes

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> Lines:
        """Look at a batch's rows."""
        column = batch.column(LINE)
        if column.null_count:
            raise ContinuityError(f"{column.null_count} rows have no text; this is an error of this package")
        width = np.int64 if pa.types.is_large_string(column.type) else np.int32
        offsets, data = column.buffers()[1:3]
        ends = np.frombuffer(offsets, width)[column.offset : column.offset + len(column) + 1]
        return cls(memoryview(data), ends.astype(np.int64, copy=False))

    def cuts(self, begin: int, limits: BatchLimits) -> Iterator[tuple[int, int, memoryview]]:
        """Cut the rows into parts: first row, row after the last, text."""
        most, rows = part_bytes(limits), len(self.ends) - 1
        while begin < rows:
            fitting = int(np.searchsorted(self.ends, self.ends[begin] + most, side="right")) - 1
            end = min(max(fitting, begin + 1), begin + limits.rows, rows)
            yield begin, end, self.body[self.ends[begin] : self.ends[end]]
            begin = end


def _cuts(
    batch: pa.RecordBatch, begin: int, limits: BatchLimits, ndjson: NdjsonOptions | None
) -> Iterator[tuple[int, int, memoryview]]:
    """Cut a batch's rows into parts: first row, row after the last, text."""
    if ndjson is None:
        yield from Lines.of(batch).cuts(begin, limits)
    elif begin < batch.num_rows:
        for piece in RowEncoder(ndjson, _OWN, limits).pieces(batch.slice(begin)):
            first = begin + piece.first
            yield first, first + piece.rows, piece.body


def keyed_parts(
    batches: Iterator[pa.RecordBatch],
    committed: Offset | None,
    limits: BatchLimits,
    *,
    column: str,
    value: Callable[[Offset], Any],
    offset: Callable[[Any], Offset],
    ndjson: NdjsonOptions | None = None,
) -> Iterator[Part]:
    """Cut rows whose position is the value of a key.

    A part goes out only when the row after it is known to have a larger key: of two rows with the same key
    neither is sent, so that no repeated run takes the second one for committed.

    :param batches: the rows
    :param committed: rows up to this position are left out
    :param limits: what a batch takes
    :param column: the key's name, for errors
    :param value: the key of a position
    :param offset: the position of a key
    :param ndjson: how values are written here, None for rows that are text already
    :raises ContinuityError: if two rows are out of order or have the same key
    """
    held: Part | None = None
    last: Any = None
    for batch in batches:
        keys = batch.column(POSITION)
        _check_order(keys, last, column)
        last = keys[-1].as_py()
        begin = 0 if committed is None else _count_until(keys, value(committed))
        for first, end, body in _cuts(batch, begin, limits, ndjson):
            if held is not None:
                yield held
            one, other = keys[first].as_py(), keys[end - 1].as_py()
            held = Part(body, offset(one), offset(other), end - first)
    if held is not None:
        yield held


def _check_order(keys: pa.Array, last: Any, column: str) -> None:
    if keys.null_count:
        raise ContinuityError(
            f"{keys.null_count} rows have NULL in {column!r}: a row's position is its value"
        )
    if last is not None and keys[0].as_py() <= last:
        _refuse_order(last, keys[0].as_py(), column)
    grows = pc.less(keys.slice(0, len(keys) - 1), keys.slice(1))
    if not pc.all(grows, min_count=0).as_py():
        at = pc.index(grows, False).as_py()
        _refuse_order(keys[at].as_py(), keys[at + 1].as_py(), column)


def _refuse_order(one: Any, other: Any, column: str) -> None:
    if one == other:
        raise ContinuityError(
            f"two rows have {column} = {other!r}: neither of them and no row after them was sent. A position "
            f"needs one row; look at SELECT * … WHERE {column} = {other!r}, and use a unique column or make "
            "one in a query"
        )
    raise ContinuityError(
        f"a row with {column} = {other!r} comes after one with {one!r}: the rows are out of order, nothing "
        "more was sent"
    )


def _count_until(keys: pa.Array, committed: Any) -> int:
    """Number of rows up to a key; the keys are in order."""
    count: int = pc.sum(pc.less_equal(keys, committed), min_count=0).as_py()
    return count


def versioned_parts(
    batches: Iterator[pa.RecordBatch],
    committed: BatchRowOffset | None,
    limits: BatchLimits,
    *,
    column: str,
    ndjson: NdjsonOptions | None = None,
) -> Iterator[Part]:
    """Cut rows whose position is a table version and their number within it.

    The rows begin with the committed version's first row, which are counted and left out.

    :param batches: the rows, ordered by version and key
    :param committed: rows up to this position are left out
    :param limits: what a batch takes
    :param column: the key's name, for errors
    :param ndjson: how values are written here, None for rows that are text already
    :raises ContinuityError: if two rows are out of order or have the same key
    :raises SourcePositionError: if the committed version has fewer rows than are committed
    """
    counter = _RowCounter(committed, column)
    held: Part | None = None
    for batch in batches:
        versions, numbers = counter.number(batch)
        begin = counter.committed_rows(versions, numbers)
        for first, end, body in _cuts(batch, begin, limits, ndjson):
            if held is not None:
                yield held
            one, other = (BatchRowOffset(int(versions[at]), int(numbers[at])) for at in (first, end - 1))
            held = Part(body, one, other, end - first)
    counter.check_end()
    if held is not None:
        yield held


class _RowCounter:
    """Numbers the rows of each version over all batches."""

    def __init__(self, committed: BatchRowOffset | None, column: str) -> None:
        self._committed = committed
        self._column = column
        self._version = -1
        self._number = 0
        self._key: Any = None
        self._passed = committed is None or committed.row == 0

    def number(self, batch: pa.RecordBatch) -> tuple[Indexes, Indexes]:
        """Give each row of a batch its version and its number within it, counted from 1."""
        versions: Indexes = batch.column(VERSION).to_numpy(zero_copy_only=False)
        starts = np.flatnonzero(np.diff(versions)) + 1
        bounds = [0, *starts.tolist(), len(versions)]
        if self._version > versions[0] or (np.diff(versions) < 0).any():
            raise ContinuityError("rows of an older version come after those of a newer one")
        keys = batch.column(POSITION)
        numbers = np.arange(1, len(versions) + 1, dtype=np.int64)
        for low, high in pairwise(bounds):
            same = int(versions[low]) == self._version
            base = self._number if same else 0
            _check_order(keys.slice(low, high - low), self._key if same else None, self._column)
            numbers[low:high] += base - low
            self._version, self._number = int(versions[low]), base + high - low
            self._key = keys[high - 1].as_py()
        return versions, numbers

    def committed_rows(self, versions: Indexes, numbers: Indexes) -> int:
        """Count the rows of a batch that are committed."""
        if self._committed is None:
            return 0
        version, row = self._committed.batch, self._committed.row
        done = (versions < version) | ((versions == version) & (numbers <= row))
        if not self._passed:
            self._passed = bool(((versions == version) & (numbers == row)).any())
            if not self._passed and not done.all():
                self.check_end()
        return int(done.sum())

    def check_end(self) -> None:
        """Refuse a committed version that has fewer rows than are committed."""
        if not self._passed:
            raise SourcePositionError(
                f"{str(self._committed)!r} is committed, but that version has fewer rows now: the table was "
                "rewritten, or is another one. Nothing was sent; reset the channel's offset token on purpose"
            )

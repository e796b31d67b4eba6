"""Rows of a micro-batch as parts: pieces of NDJSON, taken apart by channel, whose tokens prove a replay."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_snowpipe.spark.data_source.options import WriteOptions
from airflow_provider_snowpipe.spark.sources.tables.rows import Piece, RowEncoder
from airflow_provider_snowpipe.streaming.batch import Part
from airflow_provider_snowpipe.streaming.checkpoint import Binding, ChannelSource, run_mark
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    ContinuityError,
    SourcePositionError,
)
from airflow_provider_snowpipe.streaming.offsets import (
    BatchDigestOffset,
    IntegerOffset,
    LexicographicOffset,
    Offset,
)


def without_empty(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Leave out batches without a row."""
    return (batch for batch in batches if batch.num_rows)


# -- Rows of a micro-batch as parts whose tokens prove, on a replay, that it brings the same rows --------

QUERY_ID = "sql.streaming.queryId"
"""The local property by which Spark names the streaming query to task and driver (read in Spark 4.2)."""

GIVEN_WRITER = "00000000"
"""Stands for ``df.write``, whose batch ids are the caller's."""


@dataclass(frozen=True, slots=True)
class BatchIdentity:
    """Which batch a task works on.

    :param writer: eight hexadecimal digits for the query that counts the batches
    :param partitions: number of partitions of the batch, 0 where a column names the channel
    """

    batch: int
    writer: str
    partitions: int

    @classmethod
    def of_query(cls, batch: int, query_id: str, partitions: int) -> BatchIdentity:
        """A micro-batch of a streaming query; the query's id lasts as long as its checkpoint."""
        return cls(batch, f"{zlib.crc32(query_id.encode()) or 1:08x}", partitions)


class SupersededError(Exception):
    """The channel has committed a later batch: this task belongs to a past that is over."""

    def __init__(self, batch: int) -> None:
        super().__init__(batch)
        self.batch = batch


def channel_source(
    options: WriteOptions,
    channel: str,
    identity: BatchIdentity | None,
    *,
    integer_offsets: bool = False,
    write: str = "",
) -> ChannelSource:
    """Whose rows a channel of a write gets: those of a query that counts batches, or of an offset column."""
    layout = f"{options.partitions} partitions" if options.partitions else "a channelColumn"
    if identity is None:
        kind: type[Offset] = IntegerOffset if integer_offsets else LexicographicOffset
        binding = Binding(f"rows by column {options.offset_column!r} in channel {channel!r}", layout)
        return ChannelSource(kind, binding, run_mark(write))
    query = "df.write" if identity.writer == GIVEN_WRITER else f"the streaming query {identity.writer}"
    binding = Binding(f"batches of {query} in channel {channel!r}", layout)
    return ChannelSource(BatchDigestOffset, binding, f"batch-{identity.batch}"[:20])


def position_in_batch(
    channel: str, committed: BatchDigestOffset | None, mine: BatchIdentity
) -> BatchDigestOffset | None:
    """Find out what of a batch is committed on a channel.

    :param committed: a position of the same query
    :return: the committed position where it lies within the batch, None where the batch is new
    """
    if committed is None:
        return None
    if committed.batch > mine.batch:
        if mine.writer == GIVEN_WRITER:
            raise ConfigurationError(
                f"channel {channel!r} has committed batch {committed.batch}, option batchId is {mine.batch}: "
                "batch ids grow from write to write, so give a larger one; or give writes that come in any "
                "order a channelPrefix each"
            )
        raise SupersededError(committed.batch)
    return committed if committed.batch == mine.batch else None


def _moved(start: BatchDigestOffset, rows: int) -> BatchDigestOffset:
    """A row behind another one; the digest stays that of the rows before the first."""
    return replace(start, row=start.row + rows)


@dataclass(slots=True)
class DigestedShare:
    """One channel's share of a batch."""

    channel: str
    identity: BatchIdentity
    encoder: RowEncoder
    _row: int = field(init=False, default=0)
    _digest: int = field(init=False, default=0)

    def parts(self, batches: Iterator[pa.RecordBatch], committed: BatchDigestOffset | None) -> Iterator[Part]:
        """Read the share's rows, hold the committed ones against their token, and give the others.

        The last part differs from the others by its token, so that a replay notices rows that were added.

        :param committed: the committed position within this batch, None for its first row
        """
        held: Part | None = None
        for rows in batches:
            for piece in self.encoder.pieces(rows):
                rest = piece if committed is None else self._skip(piece, committed)
                if rest is None:
                    continue
                if committed is not None and committed.final:
                    raise self._differs(committed, f"has rows after row {committed.row}, its last one")
                if held is not None:
                    yield held
                held = self._part(rest)
        if held is not None:
            end = held.end
            if isinstance(end, BatchDigestOffset):
                held = replace(held, end=replace(end, final=True))
            yield held
        elif committed is not None and (self._row < committed.row or not committed.final):
            raise self._differs(committed, f"ends at row {self._row}")

    def _skip(self, piece: Piece, committed: BatchDigestOffset) -> Piece | None:
        """Take rows that are committed into the digest; None if the whole piece is."""
        left = committed.row - self._row
        if left <= 0:
            return piece
        known, rest = (piece, None) if left >= piece.rows else piece.split(left)
        self._row += known.rows
        self._digest = zlib.crc32(known.body, self._digest)
        if self._row == committed.row and self._digest != committed.digest:
            raise self._differs(committed, f"has other rows, or another order, up to row {committed.row}")
        return rest

    def _part(self, piece: Piece) -> Part:
        start = self._offset(self._row + 1)
        self._row += piece.rows
        self._digest = zlib.crc32(piece.body, self._digest)
        return Part(piece.body, start, self._offset(self._row), piece.rows, partial(_moved, start))

    def _offset(self, row: int) -> BatchDigestOffset:
        return BatchDigestOffset(self.identity.batch, row, self._digest)

    def _differs(self, committed: BatchDigestOffset, how: str) -> SourcePositionError:
        return SourcePositionError(
            f"channel {self.channel!r}: the replay of batch {self.identity.batch} {how}, but rows up to "
            f"{str(committed)!r} are committed. Make the plan's order reproducible: no shuffle, or "
            "sortWithinPartitions by a unique key behind a repartition by a stable one, no "
            "current_timestamp, uuid or rand; or give the rows an identity with the option offsetColumn"
        )


# -- Rows with a column that grows: their own values are the offset tokens -------------------------------


@dataclass(slots=True)
class OrderedRows:
    """One channel's rows with an offset column."""

    channel: str
    column: str
    encoder: RowEncoder
    _last: Any = field(init=False, default=None)

    def parts(self, batches: Iterator[pa.RecordBatch], committed: Offset | None) -> Iterator[Part]:
        """Check the order of all rows and give those behind the committed position."""
        after = committed.value if isinstance(committed, IntegerOffset) else committed and str(committed)
        for rows in batches:
            values = self._checked(rows.column(self.column))
            skipped = 0 if after is None else pc.sum(pc.less_equal(values, after)).as_py()
            if skipped == rows.num_rows:
                continue
            for piece in self.encoder.pieces(rows.slice(skipped)):
                own = values.slice(skipped + piece.first, piece.rows)
                positions = partial(self._position, own)
                yield Part(piece.body, positions(0), positions(piece.rows - 1), piece.rows, positions)

    def _checked(self, values: pa.Array) -> pa.Array:
        values = values.cast(pa.int64() if pa.types.is_integer(values.type) else pa.string())
        if values.null_count:
            raise self._refused(f"row {pc.index(values.is_null(), True).as_py()} of a batch holds none")
        if pa.types.is_integer(values.type) and values[0].as_py() < 0:
            raise self._refused(f"it holds {values[0].as_py()}, and offsets are 0 or more")
        if not pa.types.is_integer(values.type) and not values[0].as_py():
            raise self._refused("it holds an empty text")
        rising = pc.greater(values[1:], values[:-1])
        at = pc.index(rising, False).as_py()
        if at >= 0:
            raise self._refused(f"{values[at + 1].as_py()!r} comes after {values[at].as_py()!r}")
        if self._last is not None and not values[0].as_py() > self._last:
            raise self._refused(f"{values[0].as_py()!r} comes after {self._last!r}")
        self._last = values[len(values) - 1].as_py()
        return values

    def _position(self, values: pa.Array, row: int) -> Offset:
        value = values[row].as_py()
        return IntegerOffset(value) if isinstance(value, int) else LexicographicOffset(value)

    def _refused(self, what: str) -> ContinuityError:
        return ContinuityError(
            f"channel {self.channel!r}: offsetColumn {self.column!r} must have a value in each row that lies "
            f"after the one before, but {what}. Rows from there on were not sent: add "
            "sortWithinPartitions(channelColumn, offsetColumn) (in a stream, within foreachBatch) "
            "and take a column without ties and nulls"
        )


# -- Rows of a partition taken apart by the column that names their channel ------------------------------


def channel_shares(
    options: WriteOptions, partition: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[tuple[str | int, Iterator[pa.RecordBatch]]]:
    """The channels of a partition, by what follows the prefix in their names, each with its rows."""
    if options.channel_column is not None:
        yield from channel_runs(batches, options.channel_column)
        return
    partitions = options.partitions or 0
    if partition >= partitions:
        raise ConfigurationError(
            f"the plan has a partition {partition}, option partitions is {partitions}: fix the "
            f"plan's number by repartition({partitions}, column) or coalesce({partitions}), or, for "
            "channels that hold nothing yet, give the number that the plan has"
        )
    yield partition, batches


def channel_runs(
    batches: Iterator[pa.RecordBatch], column: str
) -> Iterator[tuple[str, Iterator[pa.RecordBatch]]]:
    """The channels of a partition by the column's values as texts, one after the other, each with its rows.

    A channel's rows must lie together, so that each channel is opened once.
    """
    seen: set[str] = set()
    for value, pieces in groupby(_pieces(batches, column), key=itemgetter(0)):
        if value in seen:
            raise ContinuityError(
                f"channelColumn {column!r}: rows of {value!r} come again after those of another channel, so "
                "they were not sent: add sortWithinPartitions(channelColumn, a unique key), in a stream "
                "within foreachBatch"
            )
        seen.add(value)
        yield value, (rows for _, rows in pieces)


def _pieces(batches: Iterator[pa.RecordBatch], column: str) -> Iterator[tuple[str, pa.RecordBatch]]:
    for batch in batches:
        values = batch.column(column).cast(pa.string())
        if values.null_count:
            raise ContinuityError(
                f"channelColumn {column!r} holds NULL: each row needs a channel; filter such rows or give "
                "them a value with coalesce"
            )
        changes = pc.indices_nonzero(pc.not_equal(values[1:], values[:-1])).to_pylist()
        for low, high in pairwise([0, *(index + 1 for index in changes), batch.num_rows]):
            yield values[low].as_py(), batch.slice(low, high - low)

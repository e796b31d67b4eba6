"""Rows of a micro-batch as parts whose tokens prove, on a replay, that it brings the same rows."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa

from airflow_provider_snowpipe.spark.data_source.rows import Piece, RowEncoder
from airflow_provider_snowpipe.streaming.batch import Part
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SourcePositionError
from airflow_provider_snowpipe.streaming.offsets import BatchDigestOffset

QUERY_ID = "sql.streaming.queryId"
"""The local property by which Spark tells a task and its driver the streaming query (read in Spark 4.2)."""

GIVEN_WRITER = "00000000"
"""Stands for ``df.write``, whose batch ids are the caller's."""


@dataclass(frozen=True, slots=True)
class BatchIdentity:
    """Which batch a task works on.

    :param batch: the batch's id
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


def place_in_batch(
    channel: str, committed: BatchDigestOffset | None, mine: BatchIdentity
) -> BatchDigestOffset | None:
    """Find out what of a batch is committed on a channel.

    :param channel: the channel's name
    :param committed: its committed position, None for NULL
    :param mine: the batch
    :return: the committed position where it lies within the batch, None where the batch is new
    :raises SupersededError: if a later micro-batch is committed
    :raises SourcePositionError: if the token was written by another query or over other partitions
    :raises ConfigurationError: if the caller's batch id is behind one that is committed
    """
    if committed is None:
        return None
    refuse_other_writer(channel, committed, mine)
    if committed.batch > mine.batch:
        if mine.writer == GIVEN_WRITER:
            raise ConfigurationError(
                f"channel {channel!r} has committed batch {committed.batch}, option batchId is {mine.batch}: "
                "batch ids grow from write to write, so give a larger one; or give writes that come in any "
                "order a channelPrefix each"
            )
        raise SupersededError(committed.batch)
    return committed if committed.batch == mine.batch else None


def refuse_other_writer(channel: str, committed: BatchDigestOffset, mine: BatchIdentity) -> None:
    """Refuse a token that another query wrote, or this one over another number of partitions.

    :raises SourcePositionError: naming the remedy
    """
    if committed.writer != mine.writer:
        raise SourcePositionError(
            f"channel {channel!r}: the committed offset token {str(committed)!r} was written by another "
            f"query (or df.write) than this one ({mine.writer}), whose batches mean other rows. If the "
            "query's checkpoint was lost or changed, put it back. If the rows are new ones, take another "
            "channelPrefix, or drop the channels after making sure where the source starts"
        )
    if committed.partitions != mine.partitions:
        raise SourcePositionError(
            f"channel {channel!r}: the committed offset token {str(committed)!r} was written over "
            f"{_layout(committed.partitions)}, now it is {_layout(mine.partitions)}: a partition holds other "
            "rows now. Go on as the channels were begun, or take another channelPrefix once all of the "
            "query's rows are committed"
        )


def _moved(start: BatchDigestOffset, rows: int) -> BatchDigestOffset:
    """A row behind another one; the digest stays that of the rows before the first."""
    return replace(start, row=start.row + rows)


def _layout(partitions: int) -> str:
    return f"{partitions} partitions" if partitions else "a channelColumn"


@dataclass(slots=True)
class DigestedShare:
    """One channel's share of a batch.

    :param channel: the channel's name
    :param identity: the batch
    :param encoder: writes the rows
    :param rejected_before: rows that the service had skipped on the channel before this batch
    """

    channel: str
    identity: BatchIdentity
    encoder: RowEncoder
    rejected_before: int
    _row: int = field(init=False, default=0)
    _digest: int = field(init=False, default=0)

    def parts(self, batches: Iterator[pa.RecordBatch], committed: BatchDigestOffset | None) -> Iterator[Part]:
        """Read the share's rows, hold the committed ones against their token, and give the others.

        The last part is told from the others by its token, so that a replay notices rows that were added.

        :param batches: the share's rows, all of them
        :param committed: the committed position within this batch, None for its first row
        :raises SourcePositionError: if the rows before it are not those that were sent
        """
        if committed is not None:
            self.rejected_before = committed.rejected_before
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
        mine = self.identity
        return BatchDigestOffset(
            mine.batch, row, mine.partitions, self._digest, mine.writer, self.rejected_before
        )

    def _differs(self, committed: BatchDigestOffset, how: str) -> SourcePositionError:
        return SourcePositionError(
            f"channel {self.channel!r}: the replay of batch {self.identity.batch} {how}, but rows up to "
            f"{str(committed)!r} are committed. Going on would lose or double rows. Make "
            "the plan's order reproducible: no shuffle, or sortWithinPartitions by a unique key behind a "
            "repartition by a stable key (in a stream, within foreachBatch), no current_timestamp, uuid or "
            "rand, the same version of this package; or give the rows an identity with the option "
            "offsetColumn"
        )

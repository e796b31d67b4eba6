"""Rows with a column that grows: their own values are the offset tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_snowpipe.spark.data_source.rows import RowEncoder
from airflow_provider_snowpipe.streaming.batch import Part
from airflow_provider_snowpipe.streaming.errors import ContinuityError
from airflow_provider_snowpipe.streaming.offsets import (
    IntegerLayoutOffset,
    IntegerOffset,
    LexicographicOffset,
    Offset,
    TextLayoutOffset,
)


def ordered_offset_class(*, integer: bool, partitions: int | None) -> type[Offset]:
    """The format of an offset column's tokens.

    :param integer: True for a column of whole numbers, False for text
    :param partitions: number of partitions, None where a column names the channel
    """
    if partitions is None:
        return IntegerOffset if integer else LexicographicOffset
    return IntegerLayoutOffset if integer else TextLayoutOffset


@dataclass(slots=True)
class OrderedRows:
    """One channel's rows with an offset column.

    :param channel: the channel's name
    :param column: the offset column
    :param partitions: number of partitions, None where a column names the channel
    :param encoder: writes the rows
    """

    channel: str
    column: str
    partitions: int | None
    encoder: RowEncoder
    _last: Any = field(init=False, default=None)

    def parts(self, batches: Iterator[pa.RecordBatch], committed: Offset | None) -> Iterator[Part]:
        """Check the order of all rows and give those behind the committed position.

        :param batches: the rows
        :param committed: the channel's committed position, None for NULL
        :raises ContinuityError: if a value is missing or does not lie after the one before
        """
        after = None if committed is None else _value(committed)
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
        if self.partitions is None:
            return IntegerOffset(value) if isinstance(value, int) else LexicographicOffset(value)
        if isinstance(value, int):
            return IntegerLayoutOffset(IntegerOffset(value), self.partitions)
        return TextLayoutOffset(LexicographicOffset(value), self.partitions)

    def _refused(self, what: str) -> ContinuityError:
        return ContinuityError(
            f"channel {self.channel!r}: offsetColumn {self.column!r} must have a value in each row that lies "
            f"after the one before, but {what}. Rows from there on were not sent: add "
            "sortWithinPartitions(channelColumn, offsetColumn) (in a stream, within foreachBatch) "
            "and take a column without ties and nulls"
        )


def _value(position: Offset) -> Any:
    inner = position.position if isinstance(position, IntegerLayoutOffset | TextLayoutOffset) else position
    return inner.value if isinstance(inner, IntegerOffset) else str(inner)

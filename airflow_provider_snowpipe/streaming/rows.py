"""A bounded number of rows with a position each: what an append without Spark sends, and what it skips."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    ContinuityError,
    EncodingError,
    SourcePositionError,
)
from airflow_provider_snowpipe.streaming.offsets import BatchRowOffset, Offset

_PART_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class RowLimits:
    """How much is taken without Spark.

    :param rows: most rows
    :param raw_bytes: most bytes of NDJSON
    """

    rows: int = 100_000
    raw_bytes: int = 64 * 1024 * 1024

    def check(self, rows: int, raw_bytes: int, origin: str) -> None:
        """Refuse what is too much.

        :param rows: rows so far
        :param raw_bytes: bytes so far
        :param origin: where they come from, for the error
        :raises ConfigurationError: if there are more than the limits say
        """
        if rows > self.rows or raw_bytes > self.raw_bytes:
            raise ConfigurationError(
                f"{origin}: more than {self.rows:,} rows or {self.raw_bytes:,} bytes, the most that are "
                "appended "
                "from a task's memory. Use SnowpipeStreamOperator, which loads any amount with Spark, or "
                "raise "
                "max_rows and max_bytes"
            )


@dataclass(frozen=True, slots=True)
class NumberedRows:
    """Rows as NDJSON lines without their newlines, and the position of each.

    :param lines: the rows, in order
    :param offsets: their positions, strictly growing
    """

    lines: Sequence[bytes]
    offsets: Sequence[Offset]

    def after(self, committed: Offset | None) -> NumberedRows:
        """Leave out the rows that are committed already.

        :param committed: the committed position, None for NULL
        """
        if committed is None:
            return self
        start = bisect_right(self.offsets, committed)
        return NumberedRows(self.lines[start:], self.offsets[start:])

    def parts(self) -> Iterator[tuple[bytes, Offset, Offset, int]]:
        """Cut the rows into bodies of some size: body, first position, last position, rows."""
        start, size = 0, 0
        for index, line in enumerate(self.lines):
            size += len(line) + 1
            if size >= _PART_BYTES or index == len(self.lines) - 1:
                body = b"\n".join(self.lines[start : index + 1]) + b"\n"
                yield body, self.offsets[start], self.offsets[index], index + 1 - start
                start, size = index + 1, 0


def lines_of_rows(rows: Iterable[Any], limits: RowLimits) -> list[bytes]:
    """Write rows as NDJSON lines.

    :param rows: mappings of column to value
    :param limits: how much is taken
    :raises EncodingError: if a row is no mapping or holds a value that JSON has no form for
    :raises ConfigurationError: if there is too much of it
    """
    lines: list[bytes] = []
    total = 0
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping):
            raise EncodingError(
                f"row {number} is {type(row).__name__}: give rows as mappings of column to value"
            )
        try:
            line = json.dumps(dict(row), allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
        except (TypeError, ValueError) as error:
            raise EncodingError(
                f"row {number} has no JSON form ({error}): turn its values into text, numbers, lists or "
                "mappings"
            ) from None
        total += len(line) + 1
        limits.check(number, total, "the rows")
        lines.append(line)
    return lines


def lines_of_ndjson(body: bytes, limits: RowLimits, origin: str) -> list[bytes]:
    """Cut NDJSON into its lines; empty lines are no rows.

    :param body: the text
    :param limits: how much is taken
    :param origin: where it comes from, for errors
    :raises ConfigurationError: if there is too much of it
    """
    limits.check(0, len(body), origin)
    lines = [line for line in body.splitlines() if line.strip()]
    limits.check(len(lines), len(body), origin)
    return lines


def lines_of_columns(
    names: Sequence[str], rows: Sequence[Sequence[Any]], limits: RowLimits, origin: str
) -> list[bytes]:
    """Write the result of a query as NDJSON lines, with the forms that Arrow gives its values.

    :param names: the columns
    :param rows: the rows, a value for each column
    :param limits: how much is taken
    :param origin: where it comes from, for errors
    :raises EncodingError: if the values of a column have no common type
    """
    import pyarrow as pa

    from airflow_provider_snowpipe.streaming.ndjson import encode_ndjson

    limits.check(len(rows), 0, origin)
    if not rows:
        return []
    columns = []
    for name, values in zip(names, zip(*rows, strict=True), strict=True):
        try:
            columns.append(pa.array(values))
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise EncodingError(
                f"{origin}: column {name!r} has values without a common type ({error}): cast it in the query"
            ) from None
    table = pa.Table.from_arrays(columns, names=list(names))
    return lines_of_ndjson(encode_ndjson(table), limits, origin)


def numbered_by_batch(lines: Sequence[bytes], batch: int) -> NumberedRows:
    """Give each row the position ``batch:row``, counted from 1.

    :param lines: the rows
    :param batch: grows from run to run, and is the same on every try of a run
    """
    return NumberedRows(lines, [BatchRowOffset(batch, row) for row in range(1, len(lines) + 1)])


def numbered_by_column(
    lines: Sequence[bytes], column: str, offset_class: type[Offset], *, channel: str
) -> NumberedRows:
    """Take each row's position from one of its columns.

    :param lines: the rows
    :param column: the column that holds the position
    :param offset_class: its format
    :param channel: the channel, for errors
    :raises ConfigurationError: if a row has no such column
    :raises ContinuityError: if the positions do not grow from row to row
    """
    offsets: list[Offset] = []
    for number, line in enumerate(lines, start=1):
        value = _field(line, column)
        if value is None or isinstance(value, (bool, float, list, dict)):
            raise ConfigurationError(
                f"row {number}: column {column!r}, which numbers the rows, is {value!r}: give every row a "
                "text "
                "or an integer there"
            )
        offsets.append(offset_class.parse(str(value), channel=channel))
    for number, (before, offset) in enumerate(pairwise(offsets), start=2):
        if not before < offset:
            raise ContinuityError(
                f"row {number}: its position {offset} does not come after {before}; nothing was sent. Sort "
                "the "
                f"rows by {column!r} and leave no two with the same value"
            )
    return NumberedRows(lines, offsets)


def check_batch(rows: NumberedRows, committed: Offset | None, batch: int, *, channel: str) -> bool:
    """Say whether a batch is still to be sent, or lies before what the channel has committed.

    :param rows: the rows of the batch
    :param committed: the committed position
    :param batch: the batch
    :param channel: the channel, for errors
    :return: False when the channel has gone on to a later batch
    :raises SourcePositionError: if an earlier try has committed more rows of this batch than there are now
    """
    if not isinstance(committed, BatchRowOffset) or committed.batch < batch:
        return True
    if committed.batch > batch:
        return False
    if committed.row > len(rows.lines):
        raise SourcePositionError(
            f"channel {channel!r} has committed {committed}, but batch {batch} has only {len(rows.lines)} "
            "rows "
            "now: the rows changed between two tries. Give the same rows in the same order, or a new batch"
        )
    return True


def _field(line: bytes, column: str) -> Any:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row.get(column) if isinstance(row, dict) else None

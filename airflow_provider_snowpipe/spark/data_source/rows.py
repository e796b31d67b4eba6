"""Arrow batches of a Spark partition as pieces of NDJSON, cut between rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Set
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from airflow_provider_snowpipe.spark.sources.source import part_bytes
from airflow_provider_snowpipe.streaming.errors import EncodingError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.ndjson import NdjsonOptions, encode_ndjson

_SLICE_BYTES = 8 << 20
"""Arrow bytes that are encoded at once; bounds what a batch of long rows takes beside itself."""
_NEWLINE = 10


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows of an Arrow batch, as they are sent.

    :param body: NDJSON, every row ended by a newline
    :param first: number of the first row within the Arrow batch, counted from 0
    :param ends: where each row ends in ``body``, bytes
    """

    body: memoryview = field(repr=False)
    first: int
    ends: np.ndarray = field(repr=False)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.ends)

    def split(self, rows: int) -> tuple[Piece, Piece]:
        """Cut behind some rows.

        :param rows: rows of the first part, fewer than there are and at least 1
        """
        cut = int(self.ends[rows - 1])
        return (
            Piece(self.body[:cut], self.first, self.ends[:rows]),
            Piece(self.body[cut:], self.first + rows, self.ends[rows:] - cut),
        )


@dataclass(frozen=True, slots=True)
class RowEncoder:
    """Writes Arrow batches as NDJSON.

    :param ndjson: how values are written
    :param omitted: columns that are not sent
    :param limits: how large a piece may be
    :param variants: the VARIANT columns
    """

    ndjson: NdjsonOptions
    omitted: frozenset[str]
    limits: BatchLimits
    variants: frozenset[str] = frozenset()

    def pieces(self, rows: pa.RecordBatch) -> Iterator[Piece]:
        """Encode a batch; pieces are no larger than a part may be unless one row is.

        :param rows: the batch
        :return: its rows in order
        :raises EncodingError: if a value has no faithful form
        """
        if self.omitted:
            rows = rows.select([name for name in rows.schema.names if name not in self.omitted])
        step = max(1, rows.num_rows * _SLICE_BYTES // max(rows.nbytes, _SLICE_BYTES))
        for start in range(0, rows.num_rows, step):
            some = rows.slice(start, step)
            yield from self._cut(encode_rows(some, self.ndjson, self.variants), start, some.num_rows)

    def _cut(self, body: bytes, first: int, rows: int) -> Iterator[Piece]:
        ends = np.flatnonzero(np.frombuffer(body, np.uint8) == _NEWLINE) + 1
        if len(ends) != rows:
            raise EncodingError(
                f"{rows} rows became {len(ends)} lines of JSON: report this with the DataFrame's schema"
            )
        most_bytes, view = part_bytes(self.limits), memoryview(body)
        low, offset = 0, 0
        while low < rows:
            fitting = int(np.searchsorted(ends, offset + most_bytes, side="right"))
            high = min(max(fitting, low + 1), low + self.limits.rows, rows)
            end = int(ends[high - 1])
            yield Piece(view[offset:end], first + low, ends[low:high] - offset)
            low, offset = high, end


def without_empty(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Leave out batches without a row."""
    return (batch for batch in batches if batch.num_rows)


# -- Spark's VARIANT columns as native JSON, beside the columns that Arrow writes ------------------------
#
# A variant reaches Python as a struct of two binary values, ``value`` and ``metadata``; that it is one, the
# DataFrame's schema says. Each value is written by PySpark's own reader, one by one: an order of magnitude
# slower than a struct or a map.

_NOT_JSON = ("nan", "inf")
_PARTS = {"value", "metadata"}


def encode_rows(rows: pa.RecordBatch, options: NdjsonOptions, variants: Set[str]) -> bytes:
    """Write rows as NDJSON, VARIANT columns among them.

    :param rows: the rows
    :param options: forms of the values that JSON has none for
    :param variants: the VARIANT columns
    :raises EncodingError: if a column's type or value has no faithful form; names the column
    """
    names = [name for name in rows.schema.names if name in variants]
    if not names or not rows.num_rows:
        return encode_ndjson(rows, options)
    plain = rows.select([name for name in rows.schema.names if name not in variants])
    lines = encode_ndjson(plain, options).split(b"\n")[:-1] if plain.num_columns else [b"{}"] * rows.num_rows
    for name in names:
        key = json.dumps(name).encode() + b":"
        for row, text in enumerate(_texts(name, rows.column(name), options)):
            if text is not None:
                line = lines[row]
                lines[row] = b"".join((line[:-1], b"" if line == b"{}" else b",", key, text, b"}"))
    return b"\n".join((*lines, b""))


def _texts(name: str, values: pa.StructArray, options: NdjsonOptions) -> Iterator[bytes | None]:
    """Each value as JSON, None where the key is left out."""
    from pyspark.sql.variant_utils import VariantUtils

    if {values.type.field(index).name for index in range(values.type.num_fields)} != _PARTS:
        raise EncodingError(
            f"column {name!r}: Spark hands a VARIANT over as {values.type}, a form that is not known here, "
            "PySpark 4.2 has another one: cast the column to a struct or a map"
        )
    for value in values:
        parts = value.as_py()
        if parts is None:
            yield b"null" if options.explicit_nulls else None
            continue
        text = VariantUtils.to_json(parts["value"], parts["metadata"])
        if any(word in text for word in _NOT_JSON):
            _refuse_unless_json(name, text)
        yield text.encode()


def _refuse_unless_json(name: str, text: str) -> None:
    try:
        json.loads(text)
    except ValueError:
        raise EncodingError(
            f"column {name!r}: a VARIANT holds NaN or an infinity, which JSON has not: clean it before it is "
            "written"
        ) from None

"""Rows of several shapes: usual ones of twelve columns with every kind of value, tiny, wide and long ones."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa

_BATCH = 10_000
_WORDS = (
    "ürün görüntülendi",
    'said "yes"',
    "tab\there",
    "plain words of a note",
    "日本語の文",
    "back\\slash",
)
_START = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
SCHEMA = pa.schema(
    [
        pa.field("ID", pa.int64()),
        pa.field("QUANTITY", pa.int32()),
        pa.field("HOST", pa.string()),
        pa.field("PATH", pa.string()),
        pa.field("AGENT", pa.string()),
        pa.field("NOTE", pa.string()),
        pa.field("AMOUNT", pa.decimal128(18, 4)),
        pa.field("SEEN_AT", pa.timestamp("us", "UTC")),
        pa.field("IS_OPEN", pa.bool_()),
        pa.field("SCORE", pa.float64()),
        pa.field("PLACE", pa.struct([("city", pa.string()), ("code", pa.int64())])),
        pa.field("TAGS", pa.map_(pa.string(), pa.string())),
    ]
)


def batches(rows: int) -> Iterator[pa.RecordBatch]:
    """Rows numbered from 0; the same ones for the same number.

    :param rows: how many
    """
    for first in range(0, rows, _BATCH):
        chance = random.Random(first)  # noqa: S311 - data, no secret
        numbers = range(first, min(first + _BATCH, rows))
        columns = [
            list(numbers),
            [number * 7919 % 100_003 for number in numbers],
            [f"host-{number % 97}.example.org" for number in numbers],
            [f"/shop/item/{chance.getrandbits(96):024x}/view?page={number % 13}" for number in numbers],
            [
                ("Mozilla/5.0 (X11; Linux x86_64; rv:143.0) Gecko/20100101", "curl/8.5.0")[number % 2]
                for number in numbers
            ],
            [
                f"{_WORDS[number % 6]} {chance.getrandbits(64):x}" if number % 4 else None
                for number in numbers
            ],
            [Decimal(number * 31 % 10**9).scaleb(-4) for number in numbers],
            [_START + dt.timedelta(microseconds=number * 1_000_003) for number in numbers],
            [number % 3 == 0 for number in numbers],
            [chance.random() * 100 for _ in numbers],
            [{"city": f"city {number % 50}", "code": number % 1000} for number in numbers],
            [[("channel", "web"), ("run", str(number % 7))] for number in numbers],
        ]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
        yield pa.record_batch(arrays, schema=SCHEMA)


@dataclass(frozen=True)
class RowShape:
    """Rows of one kind.

    :param schema: their columns, the first one is ``ID``
    :param row_bytes: about how many bytes of JSON each has
    :param make: makes that many of them
    """

    schema: pa.Schema
    row_bytes: int
    make: Callable[[int], Iterator[pa.RecordBatch]]


_TINY = pa.schema([("ID", pa.int64()), ("B", pa.bool_())])
_LONG = pa.schema([("ID", pa.int64()), ("TEXT", pa.string())])
_LONG_BYTES = 1_000_000
_KINDS = (pa.int64(), pa.float64(), pa.string(), pa.bool_(), pa.timestamp("us", "UTC"))
_WIDE = pa.schema([("ID", pa.int64()), *((f"C{number}", _KINDS[number % 5]) for number in range(499))])


def tiny(rows: int) -> Iterator[pa.RecordBatch]:
    """Rows of a number and a flag."""
    for first in range(0, rows, _BATCH):
        numbers = range(first, min(first + _BATCH, rows))
        yield pa.record_batch(
            [pa.array(numbers, pa.int64()), pa.array([n % 3 == 0 for n in numbers])], schema=_TINY
        )


def wide(rows: int) -> Iterator[pa.RecordBatch]:
    """Rows of 500 columns: numbers, texts, flags and timestamps."""
    step = _BATCH // 20
    for first in range(0, rows, step):
        numbers = range(first, min(first + step, rows))
        chance = random.Random(first)  # noqa: S311 - data, no secret
        made = [
            pa.array([chance.getrandbits(32) for _ in numbers], pa.int64()),
            pa.array([chance.random() for _ in numbers]),
            pa.array([f"value {chance.getrandbits(32):x}" for _ in numbers]),
            pa.array([chance.random() < 0.5 for _ in numbers]),
            pa.array([_START + dt.timedelta(seconds=chance.randrange(10**8)) for _ in numbers], _KINDS[4]),
        ]
        columns = [pa.array(numbers, pa.int64()), *(made[number % 5] for number in range(499))]
        yield pa.record_batch(columns, schema=_WIDE)


def long(rows: int) -> Iterator[pa.RecordBatch]:
    """Rows with a text of a megabyte, which zstd halves."""
    for number in range(rows):
        text = random.Random(number).randbytes(_LONG_BYTES // 2).hex()  # noqa: S311 - data, no secret
        yield pa.record_batch([pa.array([number], pa.int64()), pa.array([text])], schema=_LONG)


SHAPES = {
    "usual": RowShape(SCHEMA, 365, batches),
    "tiny": RowShape(_TINY, 22, tiny),
    "wide": RowShape(_WIDE, 13_000, wide),
    "long": RowShape(_LONG, _LONG_BYTES, long),
}

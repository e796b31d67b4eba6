"""Arrow tables as newline-delimited JSON, the form in which a channel takes rows.

The rows are written by arrow-json (``arro3``), never one by one in Python. What its types write differently
from Snowflake's columns is changed column by column before: binary becomes the pipe's text form, times get
their zone, map keys become text, and numbers that JSON cannot hold are refused or become null.
"""

from __future__ import annotations

import binascii
import io
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from arro3.io import write_ndjson

from airflow_provider_snowpipe.streaming.arguments import BinaryFormat, NonFinite, check_one_of
from airflow_provider_snowpipe.streaming.errors import EncodingError


@dataclass(frozen=True, slots=True)
class NdjsonOptions:
    """How values are written that JSON has no form for.

    :param binary: text form of binary values, the pipe's ``BINARY_INPUT_FORMAT``; a default pipe takes BASE64
    :param non_finite: ``refuse`` or ``null`` for NaN, infinities, and times out of range
    :param explicit_nulls: True stores NULL; False leaves the field out, so that a column's DEFAULT applies
    """

    binary: BinaryFormat = "BASE64"
    non_finite: NonFinite = "refuse"
    explicit_nulls: bool = True

    def __post_init__(self) -> None:
        check_one_of("binary", self.binary, get_args(BinaryFormat))
        check_one_of("non_finite", self.non_finite, get_args(NonFinite))


def encode_ndjson(rows: pa.Table | pa.RecordBatch, options: NdjsonOptions | None = None) -> bytes:
    """Write rows as NDJSON, one object a line, the last line ended too.

    Decimals keep every digit and their scale (more than 38 as texts), integers every digit, timestamps their
    precision (with a zone in UTC with ``Z``). Dates are ``YYYY-MM-DD``; structs, lists, maps native JSON.
    """
    options = options or NdjsonOptions()
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    refuse_duplicate_names(table.schema.names)
    if table.num_columns == 0:
        raise EncodingError("the rows have no columns: there is nothing to write")
    if table.num_rows == 0:
        return b""
    columns = [
        _Column(field.name, options).convert(chunked.combine_chunks())
        for field, chunked in zip(table.schema, table.columns, strict=True)
    ]
    out = io.BytesIO()
    ready = pa.table(columns, names=table.column_names)
    write_ndjson(ready, out, explicit_nulls=options.explicit_nulls)
    return out.getvalue()


def with_documents(lines: Sequence[bytes], name: str, texts: Iterable[bytes | None]) -> list[bytes]:
    """Add a column of ready JSON to the lines of rows, for values that Arrow has no type for."""
    key = json.dumps(name, ensure_ascii=False).encode() + b":"
    return [
        line if text is None else b"".join((line[:-1], b"" if line == b"{}" else b",", key, text, b"}"))
        for line, text in zip(lines, texts, strict=True)
    ]


def refuse_duplicate_names(names: Sequence[str]) -> None:
    """Refuse columns that stand for one column of a row."""
    seen: dict[str, str] = {}
    for name in names:
        if name.upper() in seen:
            raise EncodingError(
                f"columns {seen[name.upper()]!r} and {name!r} would go to the same column: rename one"
            )
        seen[name.upper()] = name


@dataclass(frozen=True, slots=True)
class _Column:
    """Changes the values of one column; ``path`` names the position, for errors."""

    path: str
    options: NdjsonOptions

    def convert(self, values: pa.Array) -> pa.Array:
        for applies, change in _CHANGES:
            if applies(values.type):
                return change(self, values)
        raise EncodingError(
            f"column {self.path!r} has type {values.type}, which has no JSON form: cast it, such as to text"
        )

    def inner(self, name: str) -> _Column:
        return _Column(f"{self.path}.{name}", self.options)

    def plain(self, values: pa.Array) -> pa.Array:
        return values

    def digits(self, values: pa.Array) -> pa.Array:
        """The text of a decimal that no number of Snowflake holds; as a number it would become a double."""
        return values.cast(pa.large_string())

    def floating(self, values: pa.Array) -> pa.Array:
        if pa.types.is_float16(values.type):
            values = values.cast(pa.float32())
        return self._checked(values, pc.invert(pc.is_finite(values)), values, "a number that JSON holds")

    def temporal(self, values: pa.Array) -> pa.Array:
        """Check the range first: arrow-json writes the text of an error for what it cannot write."""
        numbers = values.view(pa.int32() if values.type.bit_width == 32 else pa.int64())
        low, high = _range_of(values.type)
        bad = pc.or_(pc.less(numbers, low), pc.greater(numbers, high))
        what = "a time of a day" if pa.types.is_time(values.type) else "within the years 0 to 9999"
        return self._checked(values, bad, numbers, what)

    def timestamp(self, values: pa.Array) -> pa.Array:
        kind, values = values.type, self.temporal(values)
        return values if kind.tz is None else values.cast(pa.timestamp(kind.unit, "UTC"))

    def _checked(self, values: pa.Array, bad: pa.BooleanArray, shown: pa.Array, what: str) -> pa.Array:
        """Refuse the values that JSON has no form for, or make them null."""
        if not pc.any(bad).as_py():
            return values
        if self.options.non_finite == "null":
            return pc.if_else(bad, pa.scalar(None, values.type), values)
        row = pc.index(bad, True).as_py()
        raise EncodingError(
            f"column {self.path!r}: value {shown[row]} ({values.type}) in row {row} is not {what}: clean it, "
            "or choose non_finite='null' where the source has it"
        )

    def binary(self, values: pa.Array) -> pa.Array:
        if self.options.binary == "UTF-8":
            try:
                return values.cast(pa.large_binary()).cast(pa.large_string())
            except pa.ArrowInvalid as error:
                raise EncodingError(
                    f"column {self.path!r} holds bytes that are not UTF-8: use a pipe with BASE64 or HEX"
                ) from error
        return _text_of_binary(values.cast(pa.large_binary()), self.options.binary)

    def uuid(self, values: pa.ExtensionArray) -> pa.Array:
        """The text ``8-4-4-4-12``, the form in which UUIDs are compared and stored in Snowflake."""
        digits = _text_of_binary(values.storage.cast(pa.large_binary()), "HEX")
        groups = (pc.utf8_slice_codeunits(digits, *ends) for ends in pairwise(_UUID_GROUPS))
        return pc.binary_join_element_wise(*groups, pa.scalar("-", pa.large_string()))

    def decoded(self, values: pa.Array) -> pa.Array:
        return self.convert(
            values.dictionary_decode() if pa.types.is_dictionary(values.type) else pc.run_end_decode(values)
        )

    def structure(self, values: pa.StructArray) -> pa.Array:
        if not values.type.num_fields:
            raise EncodingError(f"column {self.path!r} is a struct without fields: drop it")
        names = [values.type.field(i).name for i in range(values.type.num_fields)]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise EncodingError(f"column {self.path!r} is a struct with two fields {twice!r}: rename one")
        fields = [
            self.inner(name).convert(array) for name, array in zip(names, values.flatten(), strict=True)
        ]
        return pa.StructArray.from_arrays(fields, names=names, mask=values.is_null())

    def sequence(self, values: pa.Array) -> pa.Array:
        item = values.type.value_type
        values = values.cast(pa.large_list(item))
        items = self.inner("[]").convert(values.flatten())
        lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
        mask = values.is_null() if values.null_count else None
        return pa.LargeListArray.from_arrays(_offsets(lengths), items, mask=mask)

    def mapping(self, values: pa.MapArray) -> pa.Array:
        offsets = values.offsets.to_numpy()
        keys = values.keys.slice(0)
        items = self.inner("{}").convert(values.items)
        if not (pa.types.is_string(keys.type) or pa.types.is_large_string(keys.type)):
            if not (pa.types.is_integer(keys.type) or pa.types.is_date(keys.type)):
                raise EncodingError(
                    f"column {self.path!r} is a map with keys of type {keys.type}: cast them to text"
                )
            keys = keys.cast(pa.string())
        base = int(offsets[0]) if len(offsets) else 0
        span = int(offsets[-1]) - base if len(offsets) else 0
        shifted = pa.array(offsets - base)
        if values.null_count:
            lengths = np.diff(offsets)
            lengths[values.is_null().to_numpy(zero_copy_only=False)] = 0
            if lengths.sum() != span:
                raise EncodingError(f"column {self.path!r}: null maps hold entries; rebuild the column")
            shifted = pa.array(
                offsets - base, mask=np.append(values.is_null().to_numpy(zero_copy_only=False), False)
            )
        return pa.MapArray.from_arrays(
            shifted, keys.cast(pa.string()).slice(base, span), items.slice(base, span)
        )


def _offsets(lengths: np.ndarray) -> pa.Array:
    return pa.array(np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))), pa.int64())


def _text_of_binary(values: pa.LargeBinaryArray, form: str) -> pa.Array:
    """Encode a whole column by one call: values are padded apart, so that none runs into the next."""
    lengths = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    buffers = values.buffers()
    starts = np.frombuffer(buffers[1], np.int64, len(values) + 1, values.offset * 8)[:-1]
    data = np.frombuffer(buffers[2], np.uint8) if buffers[2] is not None else np.empty(0, np.uint8)
    unit = 3 if form == "BASE64" else 1
    padded = -(-lengths // unit) * unit
    ends = np.cumsum(padded)
    spread = np.zeros(int(ends[-1]) if len(ends) else 0, np.uint8)
    within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    spread[np.repeat(ends - padded, lengths) + within] = data[np.repeat(starts, lengths) + within]
    if form == "HEX":
        text = np.frombuffer(binascii.hexlify(spread.tobytes()), np.uint8)
        sizes = padded * 2
    else:
        text = np.frombuffer(binascii.b2a_base64(spread.tobytes(), newline=False), np.uint8).copy()
        sizes = padded // 3 * 4
        missing = padded - lengths
        last = np.cumsum(sizes)
        text[last[missing >= 1] - 1] = ord("=")
        text[last[missing == 2] - 2] = ord("=")
    validity = (
        pa.array(~values.is_null().to_numpy(zero_copy_only=False)).buffers()[1] if values.null_count else None
    )
    return pa.Array.from_buffers(
        pa.large_string(),
        len(values),
        [validity, _offsets(sizes).buffers()[1], pa.py_buffer(text.tobytes())],
        values.null_count,
    )


_DAY = 86_400
_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAYS = (-719_528, 2_932_897)
"""The first day of the year 0, and of the year 10,000, as days since 1970."""


def _range_of(kind: pa.DataType) -> tuple[pa.Scalar, pa.Scalar]:
    """The lowest and the highest number of a date, a time or a timestamp that is written."""
    if pa.types.is_date32(kind):
        low, end = _DAYS
    elif pa.types.is_time(kind):
        low, end = 0, _DAY * _UNITS[kind.unit]
    else:
        step = _DAY * _UNITS["ms" if pa.types.is_date64(kind) else kind.unit]
        low, end = _DAYS[0] * step, _DAYS[1] * step
    number = pa.int32() if kind.bit_width == 32 else pa.int64()
    return pa.scalar(max(low, -(1 << 63)), number), pa.scalar(min(end, 1 << 63) - 1, number)


def _any_of(*kinds: str) -> Callable[[pa.DataType], bool]:
    tests = [getattr(pa.types, f"is_{kind}") for kind in kinds]
    return lambda kind: any(test(kind) for test in tests)


_MOST_DIGITS = 38
_PLAIN = ("null", "boolean", "integer", "decimal", "string", "large_string", "string_view")
_UUID_GROUPS = (0, 8, 12, 16, 20, 32)
_BINARY = ("binary", "large_binary", "fixed_size_binary", "binary_view")
_CHANGES: tuple[tuple[Callable[[pa.DataType], bool], Callable[[_Column, pa.Array], pa.Array]], ...] = (
    (lambda kind: pa.types.is_decimal(kind) and kind.precision > _MOST_DIGITS, _Column.digits),
    (_any_of(*_PLAIN), _Column.plain),
    (pa.types.is_floating, _Column.floating),
    (pa.types.is_timestamp, _Column.timestamp),
    (_any_of("date", "time"), _Column.temporal),
    (_any_of(*_BINARY), _Column.binary),
    (lambda kind: getattr(kind, "extension_name", "") == "arrow.uuid", _Column.uuid),
    (_any_of("dictionary", "run_end_encoded"), _Column.decoded),
    (pa.types.is_struct, _Column.structure),
    (_any_of("list", "large_list", "fixed_size_list"), _Column.sequence),
    (pa.types.is_map, _Column.mapping),
)


# -- The rows of a block of NDJSON: found, sliced and left out by numpy and Arrow, without a copy of each --

_NEWLINE, _RETURN, _OPEN, _CLOSE = 10, 13, ord("{"), ord("}")


@dataclass(frozen=True, slots=True, eq=False)
class BlockLines:
    """A body and where its rows are; empty lines (LF or CRLF alone) are lines and no rows.

    :param data: the body, its last line ended
    :param ends: where it ends, behind its newline
    :param numbers: number of its line, counted from 0
    :param longest: bytes of the longest row, 0 without a row
    :param is_text: False if some of it is not UTF-8
    """

    data: bytes | memoryview
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]
    longest: int
    is_text: bool

    @classmethod
    def of(cls, body: bytes | memoryview) -> Self:
        """Find the rows of a body."""
        data = body if not len(body) or body[-1] in (b"\n", _NEWLINE) else bytes(body) + b"\n"
        octets = np.frombuffer(data, np.uint8)
        ends = np.flatnonzero(octets == _NEWLINE).astype(np.int64) + 1
        starts = np.concatenate((np.zeros(min(1, len(ends)), np.int64), ends[:-1]))
        lengths = ends - starts
        empty = (lengths == 1) | ((lengths == 2) & (octets[starts] == _RETURN))
        rows = np.flatnonzero(~empty)
        longest = int(lengths.max(initial=0))
        return cls(data, starts[rows], ends[rows], rows, longest, _is_utf8(data))

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.starts)

    @property
    def line_count(self) -> int:
        """Number of lines up to the last row, blank ones among them."""
        return int(self.numbers[-1]) + 1 if len(self.numbers) else 0

    @property
    def whole(self) -> pa.Array:
        """The body as the only value of an Arrow column."""
        offsets = np.array([0, len(self.data)], np.int64)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.large_binary(), 1, buffers)

    def row(self, row: int) -> bytes:
        """One row without its newline."""
        line = bytes(self.data[self.starts[row] : self.ends[row] - 1])
        return line[:-1] if line.endswith(b"\r") else line

    def slice(self, low: int, high: int) -> bytes | memoryview:
        """The bytes of some rows; at least one."""
        return memoryview(self.data)[self.starts[low] : self.ends[high - 1]]

    def hold_objects(self, low: int, high: int) -> bool:
        """True if each row is UTF-8, begins with ``{`` and ends with ``}``.

        Then a parser that reads as many JSON values as there are rows has read each row as one object.
        """
        octets = np.frombuffer(self.data, np.uint8)
        starts, ends = self.starts[low:high], self.ends[low:high]
        last = ends - 2 - (octets[ends - 2] == _RETURN)
        if not ((octets[starts] == _OPEN) & (octets[last] == _CLOSE)).all():
            return False
        return self.is_text or _is_utf8(self.slice(low, high))

    def as_array(self, low: int, high: int) -> pa.Array:
        """Some rows as an Arrow column that shares the body's memory; blank lines belong to a row."""
        offsets = np.empty(high - low + 1, np.int64)
        offsets[0] = self.starts[low] if high > low else 0
        offsets[1:] = self.ends[low:high]
        return pa.Array.from_buffers(
            pa.large_binary(), high - low, [None, pa.py_buffer(offsets), pa.py_buffer(self.data)]
        )

    def without(self, bad: Sequence[int]) -> bytes | memoryview:
        """The body without some rows, as it is where there are none."""
        if not bad:
            return self.data
        pieces, begin, data = [], 0, memoryview(self.data)
        for row in bad:
            pieces.append(data[begin : self.starts[row]])
            begin = int(self.ends[row])
        if len(bad) == self.rows:
            return b""
        return b"".join([*pieces, data[begin:]])


def _is_utf8(data: bytes | memoryview) -> bool:
    try:
        str(data, "utf-8")
    except UnicodeDecodeError:
        return False
    return True

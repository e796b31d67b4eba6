"""Rows of a DataFrame as parts of NDJSON: written by whom it is quickest, cut by size, held in order."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_snowpipe.spark.source import CHANNEL, LINE, part_bytes, row_ranges
from airflow_provider_snowpipe.streaming.batch import Part
from airflow_provider_snowpipe.streaming.errors import ContinuityError, EncodingError, SourcePositionError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.ndjson import (
    NdjsonOptions,
    encode_ndjson,
    refuse_duplicate_names,
    with_documents,
)
from airflow_provider_snowpipe.streaming.offsets import BatchRowOffset, Offset
from airflow_provider_snowpipe.streaming.splice import with_columns

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

Indexes = npt.NDArray[np.int64]

# -- What a column's type must be: checked on the driver, before any row moves ----------------------------

_PLAIN = re.compile(
    r"boolean|byte|short|integer|long|float|double|decimal\(\d+,\s*-?\d+\)|string( collate .*)?|char\(\d+\)"
    r"|varchar\(\d+\)|binary|date|timestamp|timestamp_ntz|time\(\d+\)|void"
)
_TEXTS = re.compile(r"string( collate .*)?|char\(\d+\)|varchar\(\d+\)")
_KEYS = re.compile(rf"byte|short|integer|long|date|{_TEXTS.pattern}")
_REMEDIES = (
    (
        "variant",
        "make it a column of its own, which arrives as VARIANT, or cast it to a struct or a map "
        "(CAST(c AS MAP<STRING, STRING>))",
    ),
    ("interval", "cast it to STRING"),
    ("geo", "send its text, ST_AsText(c) or GeoJSON, or ST_AsBinary(c)"),
    ("udt", "select the plain columns that it is made of"),
)


def check_types(columns: Sequence[Mapping[str, Any]], *, by_jvm: bool = False) -> None:
    """Refuse columns whose values have no faithful JSON form.

    :param columns: fields of a schema as ``StructType.jsonValue`` gives it
    :param by_jvm: True where Spark's ``to_json`` may write them, to which VARIANT is a type like others, and
        which writes keys of maps that are not texts otherwise than Arrow does
    """
    refuse_duplicate_names([column["name"] for column in columns])
    for column in columns:
        if column["type"] != "variant":
            _check_type(column["name"], column["type"], by_jvm)


def _check_type(path: str, kind: Any, by_jvm: bool) -> None:
    """Walk through a type; ``path`` names the position, for errors."""
    shape = type_name(kind)
    if shape == "struct":
        if not kind["fields"]:
            raise EncodingError(f"column {path!r} is a struct without fields: drop it")
        names = Counter(one["name"] for one in kind["fields"])
        if name := next((name for name, count in names.items() if count > 1), None):
            raise EncodingError(f"column {path!r} has the field {name!r} twice: rename one")
        for one in kind["fields"]:
            _check_type(f"{path}.{one['name']}", one["type"], by_jvm)
    elif shape == "array":
        _check_type(f"{path}.[]", kind["elementType"], by_jvm)
    elif shape == "map":
        key = type_name(kind["keyType"])
        if not (_TEXTS if by_jvm else _KEYS).fullmatch(key):
            raise EncodingError(
                f"column {path!r} is a map with keys of type {key}: cast them to STRING, as "
                "transform_keys(c, (k, v) -> cast(k as string)) does"
            )
        _check_type(f"{path}.{{}}", kind["valueType"], by_jvm)
    elif not (_PLAIN.fullmatch(shape) or (by_jvm and shape == "variant")):
        remedy = next((text for word, text in _REMEDIES if word in shape), "cast it to STRING")
        raise EncodingError(f"column {path!r} has type {shape}, which has no JSON form here: {remedy}")


def type_name(kind: Any) -> str:
    """The name of a type in ``StructType.jsonValue``, of a nested one without what it holds."""
    return kind if isinstance(kind, str) else str(kind.get("type"))


# -- Arrow batches as pieces of NDJSON -------------------------------------------------------------------

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
        """Cut behind some rows, fewer than there are and at least 1."""
        cut = int(self.ends[rows - 1])
        return (
            Piece(self.body[:cut], self.first, self.ends[:rows]),
            Piece(self.body[cut:], self.first + rows, self.ends[rows:] - cut),
        )


@dataclass(frozen=True, slots=True)
class RowEncoder:
    """Writes Arrow batches as NDJSON."""

    ndjson: NdjsonOptions
    omitted: frozenset[str]
    limits: BatchLimits
    variants: frozenset[str] = frozenset()

    def pieces(self, rows: pa.RecordBatch) -> Iterator[Piece]:
        """Encode a batch; pieces are no larger than a part may be unless one row is."""
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
        view, offset = memoryview(body), 0
        for low, high in row_ranges(ends, part_bytes(self.limits), self.limits.rows):
            end = int(ends[high - 1])
            yield Piece(view[offset:end], first + low, ends[low:high] - offset)
            offset = end


# -- Spark's VARIANT columns as native JSON, beside the columns that Arrow writes ------------------------
#
# A variant reaches Python as a struct of two binary values, ``value`` and ``metadata``; that it is one, the
# DataFrame's schema has. Each value is written by PySpark's own reader, one by one: an order of magnitude
# slower than a struct or a map.

_NOT_JSON = ("nan", "inf")
_PARTS = {"value", "metadata"}


def encode_rows(rows: pa.RecordBatch, options: NdjsonOptions, variants: Set[str]) -> bytes:
    """Write rows as NDJSON, VARIANT columns among them."""
    names = [name for name in rows.schema.names if name in variants]
    if not names or not rows.num_rows:
        return encode_ndjson(rows, options)
    plain = rows.select([name for name in rows.schema.names if name not in variants])
    lines = encode_ndjson(plain, options).split(b"\n")[:-1] if plain.num_columns else [b"{}"] * rows.num_rows
    for name in names:
        lines = with_documents(lines, name, _texts(name, rows.column(name), options))
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


# -- Columns that show where rows are from ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RowColumns:
    """Columns that show where rows are from, each with ``run_id``, ``version`` or ``row``."""

    columns: Mapping[str, str] = field(default_factory=dict)
    run: str = ""

    def put(
        self, body: bytes | memoryview, versions: Indexes | None = None, rows: Indexes | None = None
    ) -> bytes | memoryview:
        """Put the columns into rows of NDJSON.

        :param versions: the version of each row
        :param rows: its number within the version
        """
        if not self.columns:
            return body
        known = {"version": versions, "row": rows}
        constants = {name: self.run for name, value in self.columns.items() if value == "run_id"}
        numbers = {name: one for name, value in self.columns.items() if (one := known.get(value)) is not None}
        return with_columns(body, constants, numbers)


_NO_COLUMNS = RowColumns()


# -- Arrow batches of ready rows as parts: cut by size, checked to be in order, and not copied -----------

POSITION = "snowpipe_position"
"""Column of a query's rows: the value of the key that orders them."""
VERSION = "snowpipe_version"
"""Column of a query's rows: the version of the table that added them."""
_OWN = frozenset({CHANNEL, POSITION, VERSION})


def _cuts(
    batch: pa.RecordBatch, begin: int, limits: BatchLimits, ndjson: NdjsonOptions | None
) -> Iterator[tuple[int, int, memoryview]]:
    """Cut a batch's rows into parts: first row, row after the last, text; none of it is copied."""
    if ndjson is not None:
        if begin < batch.num_rows:
            for piece in RowEncoder(ndjson, _OWN, limits).pieces(batch.slice(begin)):
                first = begin + piece.first
                yield first, first + piece.rows, piece.body
        return
    column = batch.column(LINE)
    if column.null_count:
        raise ContinuityError(f"{column.null_count} rows have no text; this is an error of this package")
    width = np.int64 if pa.types.is_large_string(column.type) else np.int32
    offsets, data = column.buffers()[1:3]
    ends = np.frombuffer(offsets, width)[column.offset + begin : column.offset + len(column) + 1]
    ends, body = ends.astype(np.int64, copy=False), memoryview(data)
    for first, end in row_ranges(ends[1:] - ends[0], part_bytes(limits), limits.rows):
        yield begin + first, begin + end, body[ends[first] : ends[end]]


def keyed_parts(
    batches: Iterator[pa.RecordBatch],
    committed: Offset | None,
    limits: BatchLimits,
    *,
    column: str,
    value: Callable[[Offset], Any],
    offset: Callable[[Any], Offset],
    ndjson: NdjsonOptions | None = None,
    extra: RowColumns = _NO_COLUMNS,
) -> Iterator[Part]:
    """Cut rows whose position is the value of a key.

    A part goes out only when the row after it is known to have a larger key: of two rows with the same key
    neither is sent, so that no repeated run takes the second one for committed.

    :param ndjson: how values are written here, None for rows that are text already
    """
    held: Part | None = None
    last: Any = None
    for batch in batches:
        keys = batch.column(POSITION)
        _check_order(keys, last, column)
        last = keys[-1].as_py()
        begin = 0
        if committed is not None:  # the keys are in order
            begin = pc.sum(pc.less_equal(keys, value(committed)), min_count=0).as_py()
        for first, end, body in _cuts(batch, begin, limits, ndjson):
            if held is not None:
                yield held
            one, other = keys[first].as_py(), keys[end - 1].as_py()
            held = Part(extra.put(body), offset(one), offset(other), end - first)
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


def versioned_parts(
    batches: Iterator[pa.RecordBatch],
    committed: BatchRowOffset | None,
    limits: BatchLimits,
    *,
    column: str,
    ndjson: NdjsonOptions | None = None,
    extra: RowColumns = _NO_COLUMNS,
) -> Iterator[Part]:
    """Cut rows whose position is a table version and their number within it.

    The rows begin with the committed version's first row, which are counted and left out.

    :param batches: the rows, ordered by version and key
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
            held = Part(extra.put(body, versions[first:end], numbers[first:end]), one, other, end - first)
    counter.check_end()
    if held is not None:
        yield held


class _RowCounter:
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


# -- Rows of a DataFrame as text, one JSON object and a newline each, by whom it is quickest -------------
#
# Rows without a VARIANT go to Python as they are, where Arrow writes them. Others the JVM writes with
# ``to_json``; their Arrow buffer is the body that goes to the channel, and no value is touched by Python.
# What ``to_json`` writes differently from Snowflake's columns is changed before: timestamps get their
# microseconds, binary the pipe's text form, NaN and the infinities the author's choice. Types that have no
# faithful form are refused by column, before any row moves (each observed with Spark 4.2).

ZONED = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"
ZONELESS = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
_ERROR = f"\n{EncodingError.__module__}.{EncodingError.__name__}: "
"""At the start of a line this is how the driver finds a task's error in Spark's text (``failures``)."""


def check_row_types(schema: StructType) -> None:
    """Refuse columns whose values have no faithful JSON form."""
    if not schema.fields:
        raise EncodingError("the rows have no columns: there is nothing to write")
    check_types(schema.jsonValue()["fields"], by_jvm=True)


def is_written_by_jvm(schema: StructType) -> bool:
    """True for rows that Spark's JVM writes, which are those with a VARIANT.

    A VARIANT comes to Python in Spark's own binary form, to be read one value at a time. All others Arrow
    writes as fast, and wide ones faster (``benchmarks/row_shapes.py``).
    """
    return any(_holds_variant(field.dataType) for field in schema.fields)


def _holds_variant(kind: Any) -> bool:
    name = kind.typeName()
    if name == "struct":
        return any(_holds_variant(field.dataType) for field in kind.fields)
    if name == "array":
        return _holds_variant(kind.elementType)
    return _holds_variant(kind.valueType) if name == "map" else bool(name == "variant")


def written(schema: StructType, options: NdjsonOptions) -> list[Column]:
    """What a query has of the rows: their text in one column, or their columns as they are."""
    if is_written_by_jvm(schema):
        return [row_text(schema, options).alias(LINE)]
    return [column_of(field.name) for field in schema.fields]


def row_text(schema: StructType, options: NdjsonOptions) -> Column:
    """The expression that writes a row: a JSON object and a newline."""
    from pyspark.sql import functions as sf

    writer = _Writer(options)
    fields = [
        writer.value(field.name, column_of(field.name), field.dataType).alias(field.name)
        for field in schema.fields
    ]
    return sf.concat(sf.to_json(sf.struct(*fields), _form(options)), sf.lit("\n"))


def value_text(name: str, column: Column, kind: DataType, options: NdjsonOptions) -> Column:
    """The expression that writes one nested value as JSON; null stays null."""
    from pyspark.sql import functions as sf

    return sf.to_json(_Writer(options).value(name, column, kind), _form(options))


def column_of(name: str) -> Column:
    """A column by its exact name, dots included."""
    from pyspark.sql import functions as sf

    return sf.col("`" + name.replace("`", "``") + "`")


def _form(options: NdjsonOptions) -> dict[str, str]:
    return {
        "timestampFormat": ZONED,
        "timestampNTZFormat": ZONELESS,
        "ignoreNullFields": str(not options.explicit_nulls).lower(),
    }


_NOT_ALL_WRITTEN = ("float", "double", "date", "timestamp", "timestamp_ntz")


@dataclass(frozen=True, slots=True)
class _Writer:
    """Changes values whose ``to_json`` is not what the table's column takes; leaves all others alone."""

    options: NdjsonOptions

    def value(self, path: str, column: Column, kind: DataType) -> Column:
        if not self._changes(kind):
            return column
        change: Callable[[str, Column, Any], Column] = getattr(self, f"_{kind.typeName()}")
        return change(path, column, kind)

    def _changes(self, kind: Any) -> bool:
        name = kind.typeName()
        if name == "struct":
            return any(self._changes(field.dataType) for field in kind.fields)
        if name == "array":
            return self._changes(kind.elementType)
        if name == "map":
            return self._changes(kind.valueType)
        return name in _NOT_ALL_WRITTEN or (name == "binary" and self.options.binary != "BASE64")

    def _double(self, path: str, column: Column, kind: Any) -> Column:
        from pyspark.sql import functions as sf

        bad = sf.isnan(column) | (sf.abs(column) == float("inf"))
        return self._checked(path, column, kind, bad, "NaN or an infinity, which JSON has not")

    _float = _double

    def _date(self, path: str, column: Column, kind: Any) -> Column:
        from pyspark.sql import functions as sf

        bad = ~sf.year(column).between(0, 9999)
        return self._checked(path, column, kind, bad, "a value outside the years 0 to 9999")

    _timestamp = _timestamp_ntz = _date

    def _checked(self, path: str, column: Column, kind: Any, bad: Column, what: str) -> Column:
        from pyspark.sql import functions as sf

        if self.options.non_finite == "null":
            return sf.when(~bad, column)
        message = f"column {path!r} holds {what}: clean it, or choose non_finite='null'. Nothing was sent"
        return sf.when(bad, sf.raise_error(sf.lit(_ERROR + message)).cast(kind)).otherwise(column)

    def _binary(self, path: str, column: Column, kind: Any) -> Column:
        from pyspark.sql import functions as sf

        if self.options.binary == "HEX":
            return sf.hex(column)
        text = column.cast("string")
        message = (
            f"column {path!r} holds bytes that are not UTF-8: use a pipe with BASE64 or HEX. Nothing was sent"
        )
        wrong = ~sf.is_valid_utf8(text)
        return sf.when(wrong, sf.raise_error(sf.lit(_ERROR + message)).cast("string")).otherwise(text)

    def _struct(self, path: str, column: Column, kind: Any) -> Column:
        from pyspark.sql import functions as sf

        fields = [
            self.value(f"{path}.{field.name}", column.getField(field.name), field.dataType).alias(field.name)
            for field in kind.fields
        ]
        return sf.when(column.isNotNull(), sf.struct(*fields))

    def _array(self, path: str, column: Column, kind: Any) -> Column:
        from pyspark.sql import functions as sf

        return sf.transform(column, lambda item: self.value(f"{path}.[]", item, kind.elementType))

    def _map(self, path: str, column: Column, kind: Any) -> Column:
        from pyspark.sql import functions as sf

        return sf.transform_values(column, lambda _, value: self.value(f"{path}.{{}}", value, kind.valueType))

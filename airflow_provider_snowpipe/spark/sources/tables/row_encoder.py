"""Rows of a DataFrame as NDJSON: the types that JSON has a form for, and Arrow batches as text."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_snowpipe.spark.source import part_bytes, row_ranges
from airflow_provider_snowpipe.streaming.errors import EncodingError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.ndjson import (
    NdjsonOptions,
    encode_ndjson,
    refuse_duplicate_names,
    with_documents,
)

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
        which writes keys of maps that are no texts otherwise than Arrow does
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

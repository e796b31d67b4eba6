"""Spark's VARIANT columns as native JSON, beside the columns that Arrow writes.

A variant reaches Python as a struct of two binary values, ``value`` and ``metadata``; that it is one, the
DataFrame's schema says. Each value is written by PySpark's own reader, one by one: an order of magnitude
slower than a struct or a map.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Set

import pyarrow as pa

from airflow_provider_snowpipe.streaming.errors import EncodingError
from airflow_provider_snowpipe.streaming.ndjson import NdjsonOptions, encode_ndjson

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

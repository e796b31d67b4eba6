"""Spark's VARIANT columns as native JSON, beside the columns that Arrow writes.

A variant reaches Python as a struct of two binary values, of which the one that is called ``metadata`` says
so in its field's own metadata (observed with Spark 4.2). Each value is written by PySpark's own reader, one
by one: an order of magnitude slower than a struct or a map.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa

from airflow_provider_snowpipe.streaming.errors import EncodingError
from airflow_provider_snowpipe.streaming.ndjson import NdjsonOptions, encode_ndjson

_NOT_JSON = ("nan", "inf")


def is_variant(kind: pa.DataType) -> bool:
    """True for the Arrow type of a VARIANT column.

    :param kind: the column's type
    """
    if not pa.types.is_struct(kind) or kind.num_fields != 2:
        return False
    index = kind.get_field_index("metadata")
    marks = kind.field(index).metadata if index >= 0 else None
    return marks is not None and marks.get(b"variant") == b"true"


def encode_rows(rows: pa.RecordBatch, options: NdjsonOptions) -> bytes:
    """Write rows as NDJSON, VARIANT columns among them.

    :param rows: the rows
    :param options: forms of the values that JSON has none for
    :raises EncodingError: if a column's type or value has no faithful form; names the column
    """
    variants = [field.name for field in rows.schema if is_variant(field.type)]
    if not variants or not rows.num_rows:
        return encode_ndjson(rows, options)
    plain = rows.select([name for name in rows.schema.names if name not in variants])
    lines = encode_ndjson(plain, options).split(b"\n")[:-1] if plain.num_columns else [b"{}"] * rows.num_rows
    for name in variants:
        key = json.dumps(name).encode() + b":"
        for row, text in enumerate(_texts(name, rows.column(name), options)):
            if text is not None:
                line = lines[row]
                lines[row] = b"".join((line[:-1], b"" if line == b"{}" else b",", key, text, b"}"))
    return b"\n".join((*lines, b""))


def _texts(name: str, values: pa.StructArray, options: NdjsonOptions) -> Iterator[bytes | None]:
    """Each value as JSON, None where the key is left out."""
    from pyspark.sql.variant_utils import VariantUtils

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

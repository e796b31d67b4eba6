import json

import pyarrow as pa
import pytest

from airflow_provider_snowpipe.spark.sources.tables.row_encoder import encode_rows
from airflow_provider_snowpipe.streaming.errors import EncodingError
from airflow_provider_snowpipe.streaming.ndjson import NdjsonOptions

variant_utils = pytest.importorskip("pyspark.sql.variant_utils")

VARIANT = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False),
    ]
)

NAMES = frozenset({"V", 'V"', "W"})


def _variants(*texts):
    values = []
    for text in texts:
        value, metadata = (None, None) if text is None else variant_utils.VariantUtils.parse_json(text)
        values.append(None if text is None else {"value": value, "metadata": metadata})
    return pa.array(values, VARIANT)


def _rows(**columns):
    return pa.record_batch(list(columns.values()), names=list(columns))


def _encoded(rows, **options):
    return [json.loads(line) for line in encode_rows(rows, NdjsonOptions(**options), NAMES).splitlines()]


def test_variants_become_native_json_beside_other_columns():
    rows = _rows(
        ID=pa.array([1, 2, 3]),
        V=_variants('{"a":[1,2.5,"nan\\n",null]}', '"x"', "12345678901234567890.125"),
        W=_variants("true", None, "{}"),
    )

    assert _encoded(rows) == [
        {"ID": 1, "V": {"a": [1, 2.5, "nan\n", None]}, "W": True},
        {"ID": 2, "V": "x", "W": None},
        {"ID": 3, "V": 12345678901234567890.125, "W": {}},
    ]
    assert b'"V":12345678901234567890.125,' in encode_rows(rows, NdjsonOptions(), NAMES)


def test_number_that_json_has_not_is_refused():
    value = bytes([7 << 2]) + b"\x00\x00\x00\x00\x00\x00\xf8\x7f"
    rows = _rows(V=pa.array([{"value": value, "metadata": b"\x01\x00\x00"}], VARIANT))

    with pytest.raises(EncodingError, match="column 'V': a VARIANT holds NaN"):
        encode_rows(rows, NdjsonOptions(), NAMES)

import json

import pyarrow as pa
import pytest

from airflow_provider_snowpipe.spark.sources.tables.row_encoder import encode_rows
from airflow_provider_snowpipe.streaming.errors import EncodingError
from airflow_provider_snowpipe.streaming.ndjson import NdjsonOptions

variant_utils = pytest.importorskip("pyspark.sql.variant_utils")

NAMES = frozenset({"V", 'V"', "W"})


def _column(*values):
    fields = [pa.field(name, pa.binary(), nullable=False) for name in ("value", "metadata")]
    return pa.array(
        [one and dict(zip(("value", "metadata"), one, strict=True)) for one in values], pa.struct(fields)
    )


def _variants(*texts):
    return _column(*(text and variant_utils.VariantUtils.parse_json(text) for text in texts))


def test_variants_become_native_json_beside_other_columns():
    ids = pa.array([1, 2, 3])
    first = _variants('{"a":[1,2.5,"nan\\n",null]}', '"x"', "12345678901234567890.125")
    rows = pa.record_batch({"ID": ids, "V": first, "W": _variants("true", None, "{}")})

    encoded = encode_rows(rows, NdjsonOptions(), NAMES)

    assert [json.loads(line) for line in encoded.splitlines()] == [
        {"ID": 1, "V": {"a": [1, 2.5, "nan\n", None]}, "W": True},
        {"ID": 2, "V": "x", "W": None},
        {"ID": 3, "V": 12345678901234567890.125, "W": {}},
    ]
    assert b'"V":12345678901234567890.125,' in encoded


def test_number_that_json_has_not_is_refused():
    nan = bytes([7 << 2]) + b"\x00\x00\x00\x00\x00\x00\xf8\x7f"
    with pytest.raises(EncodingError, match="column 'V': a VARIANT holds NaN"):
        encode_rows(pa.record_batch({"V": _column((nan, b"\x01\x00\x00"))}), NdjsonOptions(), NAMES)

"""Parquet and ORC: every row can be resumed after, and every type keeps its value."""

import base64
import datetime as dt
import json
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from airflow_provider_snowpipe.spark.sources.files.arrow_format import ParquetReader
from airflow_provider_snowpipe.spark.sources.files.formats import reader_of
from airflow_provider_snowpipe.spark.sources.files.spec import FileSourceSpec, Orc, Parquet
from airflow_provider_snowpipe.spark.submit.copy_rows import why_not_copy
from airflow_provider_snowpipe.streaming.errors import EncodingError
from tests.unit.spark.sources.files.conftest import check_every_resume, listed, rows_after

ROWS = pa.table({"ID": list(range(50)), "S": [None if n % 7 == 0 else "x\n" * n for n in range(50)]})


def _parquet(path, rows=ROWS):
    with pq.ParquetWriter(path, rows.schema) as writer:
        for begin, count in ((0, 20), (20, 1), (21, 0), (21, 29)):
            writer.write_table(rows.slice(begin, count))
    return listed(path)


def _orc(path, rows=ROWS):
    orc.write_table(rows, path, stripe_size=200, batch_size=9)
    return listed(path)


def _values(file, **options):
    """The rows of a Parquet file."""
    return [row for _, row in rows_after(ParquetReader(Parquet(**options)), file, 0)]


def test_every_row_of_uneven_and_empty_groups_can_be_resumed_after(tmp_path):
    assert check_every_resume(reader_of(Parquet()), _parquet(tmp_path / "a"), count=50) == ROWS.to_pylist()


NS = 1709251199123456789
VALUES = {  # the value, its type, and what is written
    "DEC": (Decimal("12345678901234567.012345678"), pa.decimal128(38, 9), "12345678901234567.012345678"),
    "I64": (2**63 - 1, pa.int64(), 2**63 - 1),
    "TS_US": (NS // 1000, pa.timestamp("us"), "2024-02-29T23:59:59.123456"),
    "TS_NS": (NS, pa.timestamp("ns"), "2024-02-29T23:59:59.123456789"),
    "TS_Z": (NS, pa.timestamp("ns", "UTC"), "2024-02-29T23:59:59.123456789Z"),
    "DAY": (dt.date(2024, 2, 29), pa.date32(), "2024-02-29"),
    "BIN": (b"\x00\xff\n", pa.binary(), "AP8K"),
    "F32": (0.1, pa.float32(), "0.1"),
    "OK": (True, pa.bool_(), True),
    "NESTED": ({"a": [1, None], "b": {"c": "x"}}, None, {"a": [1, None], "b": {"c": "x"}}),
    "MAP": ([("k", 1.5)], pa.map_(pa.string(), pa.float64()), {"k": "1.5"}),
    "NIL": (None, pa.string(), None),
}
ONLY_OF_PARQUET = {
    "U64": (2**64 - 1, pa.uint64(), 2**64 - 1),
    "F16": (1.5, pa.float16(), "1.5"),
    "T32": (dt.time(1, 2, 3, 4000), pa.time32("ms"), "01:02:03.004"),
    "T64": (3723000000001, pa.time64("ns"), "01:02:03.000000001"),
    "DICT": ("x", pa.dictionary(pa.int32(), pa.string()), "x"),
    "FIX": (b"\xff\x00", pa.binary(2), "/wA="),
    "WIDE": (Decimal(10) ** 40, pa.decimal256(50, 2), "1" + "0" * 40 + ".00"),
}


@pytest.mark.parametrize(
    ("write", "form", "values"),
    [(_parquet, Parquet, {**VALUES, **ONLY_OF_PARQUET}), (_orc, Orc, VALUES)],
    ids=["parquet", "orc"],
)
def test_values_keep_every_digit(tmp_path, write, form, values):
    rows = pa.table({name: pa.array([value], kind) for name, (value, kind, _) in values.items()})
    ((_, row),) = rows_after(reader_of(form()), write(tmp_path / "a", rows), 0)
    if write is _orc:  # whose timestamps are nanoseconds
        row["TS_US"] = row["TS_US"].removesuffix("000")
    assert row == {name: written for name, (_, _, written) in values.items()}


def test_far_dates_of_int96_timestamps_are_kept(tmp_path):
    far = [dt.datetime(9999, 12, 31, 23, 59, 59, 999999), dt.datetime(1, 1, 1)]
    rows = pa.table({"TS": pa.array(far, pa.timestamp("us"))})
    pq.write_table(rows, tmp_path / "a", use_deprecated_int96_timestamps=True)

    assert [row["TS"] for row in _values(listed(tmp_path / "a"))] == [
        "9999-12-31T23:59:59.999999",
        "0001-01-01T00:00:00",
    ]


def test_a_value_without_json_form_is_named_by_file_row_and_column(tmp_path):
    rows = pa.table({"X": [1.0] * 30 + [float("nan")] + [1.0] * 19})
    with pytest.raises(EncodingError, match=r"a', rows 22 to 50 \(here row 0 is 22\): column 'X'.*in row 9"):
        _values(_parquet(tmp_path / "a", rows))


@pytest.mark.parametrize(("name", "write"), [("parquet", pq.write_table), ("orc", orc.write_table)])
def test_values_that_are_no_numbers_can_become_null(tmp_path, name, write):
    write(pa.table({"X": [1.5, float("nan"), float("-inf")]}), tmp_path / f"a.{name}")
    spec = FileSourceSpec(str(tmp_path), partitions="all", format={"type": name, "non_finite": "null"})
    rows = rows_after(reader_of(spec.form), listed(tmp_path / f"a.{name}"), 0)
    assert [row["X"] for _, row in rows] == ["1.5", None, None]
    assert "NaN" in str(why_not_copy(spec))


def test_a_column_with_a_dot_in_its_name_is_no_field_of_another_one(tmp_path):
    file = _parquet(tmp_path / "a", pa.table({"C.A": [1], "C": [{"A": 5}]}))
    assert _values(file, columns=("C.A",)) == [{"C.A": 1}]


def test_partition_values_become_columns(tmp_path):
    plain = _parquet(tmp_path / "a", ROWS.slice(0, 2))
    rows = _values(replace(plain, values=(("day", "2024-01-01"), ("eu", None))), columns=("ID",))
    assert json.dumps(rows[1]) == '{"ID": 1, "day": "2024-01-01", "eu": null}'
    with pytest.raises(EncodingError, match=r"has a column 'ID'.*value id=1.*as_columns"):
        _values(replace(plain, values=(("id", "1"),)))


def test_numbers_have_the_types_of_a_files_avro_schema(tmp_path):
    def written(name):
        kind = {"type": "long", "connect.name": name}
        schema = {"type": "record", "name": "R", "fields": [{"name": "T", "type": ["null", kind]}]}
        rows = pa.table({"T": [1, None]}).replace_schema_metadata({"parquet.avro.schema": json.dumps(schema)})
        return _parquet(tmp_path / "a", rows)

    micros = written("io.debezium.time.MicroTimestamp")
    assert _values(micros) == [{"T": "1970-01-01T00:00:00.000001"}, {"T": None}]
    ticks = written("com.acme.Ticks")
    with pytest.raises(EncodingError, match=r"com\.acme"):
        _values(ticks)
    assert _values(ticks, unknown_types="ignore")[0] == {"T": 1}


ORC_OF_SPARK = (  # written by Spark 4.2 in the zone America/New_York
    "T1JDEQAACgYSBAgBUAArAAAKEwoDAAAAEgwIARIGCAIQAhgCUABPAAAKJQoDAAAAEh4IARIYCICAzaCz9wUQgIDNoLP3BRiAgM2g"
    "s/cFUABBAAAKHgoGAAAAAAAAEhQIAUoOGIDgvbVhIIDgvbVhMAFQAEUAAAogCgYAAAAAAAASFggBShAYgIbcvqFjIICG3L6hYzAB"
    "UABVAAAKKAoDAAAAEiEIARIbCIDJjvv/oIkGEIDJjvv/oIkGGIDJjvv/oIkGUAARAAAKBhIECAFQAE8AAAolCgMAAAASHggBEhgI"
    "gIDNoLP3BRCAgM2gs/cFGICAzaCz9wVQAAcAAEIAgBEAAHoAF7s0E0AADQAAdgCnujIfBwAAQAAADQAAdgAiAJPgBwAAQAAAEwAA"
    "fAAMJQf/Y6SAEQAAegAXuzQTQAD2AAAotS/9ILKVAwDEBAoGCAYQABgLARgYAhgqAxgjBBglBRgtBgcBEAEYBgIBEAMYCQoGCAUQ"
    "AwQEBRgMBxgLEgIIABICCAIaEEFtZXJpY2EvTmV3X1lvcmsQADsFsEu/1B2Qb2ZmIOfOJlZEl7psqhSgDSAD3ABtABm7ChcKAQAo"
    "tS/9ILrlAwAkBgq3AQoECAFQAAoOCAESBggCEAIYAlAAWAYKIAgBEhgIgIDNoLP3BRAYUABYCwoWCAFKDhiA4L21YSAwAVAAWA8K"
    "GAgBShAYgIbcvqFjICMIARIbCIDJjvv/oIkGEBhQAFgMCQACG0BiHIF3sbzq6RYVvFMaAE5gbikDagIAKLUv/WAJAV0JABQQCAMQ"
    "vgMaCwgDEPcBGEYgfigBIh8IDBIGAQIDBAUGGgJJRBoBThoBVBoCVDIaAk4yGgFTIgIIAyIsCAQ6KAoXc3Bhcmsuc3FsLmNhdGFs"
    "eXN0LnR5cGUSDXRpbWVzdGFtcF9udHoiKAgJOiQJCAgMEgEHGgFuKiEKGG9yZy5hcGFjaGUudmVyc2lvbhIFNC4yLjAwAToECAFQ"
    "ADoOCAESBggCEAIYAlAAWAY6IAgBEhgIgIDNoLP3BRAYUABYCzoWCAFKDhiA4L21YSAwAVAAWA86GAgBShAYgIbcvqFjICMIARIb"
    "CIDJjvv/oIkGEBhQAFgMQJBOSABYAWIFMi4zLjAPAAIbQGIcgXexvOrpFhW8UxoATtTKQUTD6j0z5YIxl6aMAY2t0VZRCLgCEAUY"
    "gIAQIgIADCiIATAJgvQDA09SQxk="
)


def test_spark_notes_in_orc_make_timestamps(tmp_path):
    (tmp_path / "a").write_bytes(base64.b64decode(ORC_OF_SPARK))

    ((_, row),) = rows_after(reader_of(Orc()), listed(tmp_path / "a"), 0)

    assert row == {
        "ID": 1,
        "N": "1970-06-01T00:00:00",
        "T": "1970-06-01T12:00:00Z",
        "T2": "2024-01-15T12:00:00Z",
        "N2": "2024-02-29T12:00:00.123456",
        "S": {"n": "1970-06-01T00:00:00"},
    }


@pytest.mark.parametrize("note", ["org.apache.spark.legacyDateTime", "org.apache.spark.version"])
def test_days_of_the_julian_calendar_are_those_of_ours_where_spark_notes_so(tmp_path, note):
    notes = {note: "2.4.8" if note.endswith("version") else "", "org.apache.spark.timeZone": "UTC"}
    days = [dt.date(1500, 1, 10), dt.date(1582, 10, 14), dt.date(1582, 10, 15), dt.date(2024, 1, 1), None]
    expected = ["1500-01-01", "1582-10-04", "1582-10-15", "2024-01-01", None]
    at = [one and dt.datetime(one.year, one.month, one.day, 1, tzinfo=dt.UTC) for one in days]
    rows = pa.table({"D": days, "T": pa.array(at, pa.timestamp("us", "UTC")), "L": [[one] for one in days]})

    def read(notes):
        return _values(_parquet(tmp_path / "a", rows.replace_schema_metadata(notes)))

    assert [row["D"] for row in read(notes)] == expected
    assert [row["T"] for row in read(notes)] == [one and f"{one}T01:00:00Z" for one in expected]
    assert [row["L"] for row in read(notes)] == [[one] for one in expected]
    assert read({})[0]["D"] == "1500-01-10"
    with pytest.raises(EncodingError, match="Julian"):
        read({**notes, "org.apache.spark.timeZone": "America/New_York"})

"""Every format: rows from behind every row and their values, and files that are not what they were."""

import base64
import datetime as dt
import gzip
import json
import os
import random
import uuid
import zlib
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from airflow_provider_snowpipe.spark.sources.files.arrow_format import ParquetReader, batches_after
from airflow_provider_snowpipe.spark.sources.files.avro_format import (
    AvroReader,
    ContainerError,
    container_of,
    read_blocks,
    read_header,
    rows_of,
)
from airflow_provider_snowpipe.spark.sources.files.formats import compression_of, pieces, reader_of
from airflow_provider_snowpipe.spark.sources.files.spec import (
    Avro,
    Csv,
    FileSource,
    Ndjson,
    Orc,
    Parquet,
    SourceFile,
)
from airflow_provider_snowpipe.spark.submit.copy_rows import why_rows_are_staged
from airflow_provider_snowpipe.streaming import errors
from tests.file_formats import PACK, numbered_rows, write_file
from tests.unit.spark.sources.files.conftest import check_every_resume, listed, rows_after

FORMS = {"ndjson": Ndjson, "csv": Csv, "parquet": Parquet, "orc": Orc, "avro": Avro}
PACKED = ["a.ndjson.gz", "a.csv.bz2", "a.ndjson.xz", "a.csv.zst"]
NAMES = ["a.ndjson", "a.csv", "a.parquet", "a.orc", "a.avro", *PACKED]


def made(folder, name):
    write_file(folder / name, numbered_rows("a", range(100)))
    return listed(folder / name)


def reader(name, **options):
    return reader_of(FORMS[name.split(".")[1]](**options))


@pytest.mark.parametrize("name", NAMES)
def test_every_row_can_be_resumed_after(tmp_path, name):
    rows = check_every_resume(reader(name), made(tmp_path, name), count=100)
    assert [(int(row["ID"]), row["NOTE"] or None) for row in rows] == [
        (row["ID"], row["NOTE"]) for row in numbered_rows("a", range(100))
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_committed_row_that_is_not_there_is_an_error_with_evidence(tmp_path, name):
    file = made(tmp_path, name)
    assert reader(name).position_after(file, 100).done
    with pytest.raises(errors.SourcePositionError, match=r" 100 .* 101 "):
        reader(name).position_after(file, 101)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_changed_since_it_was_listed_is_refused(tmp_path, name):
    file = made(tmp_path, name)
    for size, message in ((file.size + 1, "shrank"), (file.size - 1, r"grew from \d+ to \d+ bytes")):
        with pytest.raises(errors.SourcePositionError, match=message):
            rows_after(reader(name), replace(file, size=size), 0)


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.orc", "a.avro"])
def test_a_column_that_is_not_there_is_refused(tmp_path, name):
    with pytest.raises(errors.ConfigurationError, match=r"no column 'NONE'.*'ID', 'FILE', 'NOTE'"):
        rows_after(reader(name, columns=("NONE",)), made(tmp_path, name), 0)


@pytest.mark.parametrize("name", ["a.parquet", "a.orc", "a.avro", *PACKED])
def test_an_unfinished_file_is_refused_by_name(tmp_path, name):
    data = Path(made(tmp_path, name).path).read_bytes()
    for end in (len(data) // 2, -17, -1):
        (tmp_path / name).write_bytes(data[:end])
        with pytest.raises(errors.EncodingError, match=f"{name}' cannot be (read|decompressed) as "):
            rows_after(reader(name), listed(tmp_path / name), 0)


TEXT = b"".join(b'{"ID":%d,"S":"%d"}\n' % (n, random.Random(n).getrandbits(200)) for n in range(40))


@pytest.mark.parametrize("ending", PACK)
class TestPieces:
    @pytest.fixture
    def stored(self, tmp_path, ending):
        def pieces_of(data, offset=0, **options):
            path = tmp_path / f"a.{ending}"
            path.write_bytes(data)
            return pieces(listed(path), offset, compression=compression_of(listed(path), "auto"), **options)

        return pieces_of

    @pytest.mark.parametrize("read_bytes", [1, 7, 1000, 1 << 20])
    def test_from_any_offset_are_the_rest_of_the_text(self, stored, ending, read_bytes):
        for offset in (0, 1, 6, 7, 8, 999, len(TEXT) - 1, len(TEXT)):
            assert b"".join(stored(PACK[ending](TEXT), offset, read_bytes=read_bytes)) == TEXT[offset:]

    def test_are_those_of_all_parts(self, stored, ending):
        padding, pack = bytes(8) if ending == "xz" else b"", PACK[ending]
        assert b"".join(stored(pack(TEXT[:100]) + padding + pack(TEXT[100:]) + padding)) == TEXT

    def test_that_are_cut_off_or_followed_by_others_are_an_error_and_no_end(self, stored, ending):
        packed = PACK[ending](TEXT)
        for data, message in ((packed[:-9], "after .*cut off"), (packed + b"plain text behind it", "")):
            with pytest.raises(errors.EncodingError, match=rf"cannot be decompressed as \w+ {message}"):
                list(stored(data))


SECOND_NS = 1_000_000_000


@pytest.mark.parametrize("kind", ["none", "gzip"])
class TestFileOfTheSameSize:
    """Rows of two files would be loaded as those of one."""

    @pytest.fixture
    def file(self, tmp_path, kind):
        path = tmp_path / "a.ndjson"
        path.write_bytes(TEXT if kind == "none" else gzip.compress(TEXT))
        os.utime(path, ns=(1, 1_700_000_000 * SECOND_NS + 1))
        return replace(listed(path), modified_ns=path.stat().st_mtime_ns)

    def test_is_refused_when_it_is_younger_than_the_listed_one_also_while_it_is_read(self, file, kind):
        for later_ns in (1, SECOND_NS):
            os.utime(file.path, ns=(1, file.modified_ns))
            found = pieces(file, 0, compression=kind, read_bytes=100)
            next(found)
            os.utime(file.path, ns=(1, file.modified_ns + later_ns))
            for reading in (found, pieces(file, 0, compression=kind)):
                with pytest.raises(errors.SourcePositionError, match="size"):
                    list(reading)


def test_compression_goes_by_the_name_unless_it_is_declared():
    for name, declared, found in [
        ("a.GZ", "auto", "gzip"),
        ("a.log.zst", "auto", "zstd"),
        ("a.gz.log", "auto", "none"),
        ("a", "gzip", "gzip"),
        ("a.gz", "none", "none"),
    ]:
        assert compression_of(SourceFile(name, name, 1), declared) == found


FIELDS = [{"name": "ID", "type": "long"}, {"name": "S", "type": ["null", "string"]}]
SCHEMA = {"type": "record", "name": "Row", "fields": FIELDS}
RECORDS = [{"ID": number, "S": None if number % 7 == 0 else "x" * number} for number in range(50)]


@pytest.fixture
def avro(tmp_path):
    fastavro = pytest.importorskip("fastavro", reason="needs the extra avro")

    def write(schema=SCHEMA, records=RECORDS, **options):
        with (tmp_path / "a.avro").open("wb") as file:
            fastavro.writer(file, schema, records, **{"sync_interval": 100, **options})
        return listed(tmp_path / "a.avro")

    return write


def _column(kind):
    return {"type": "record", "name": "Row", "namespace": "a.b", "fields": [{"name": "C", "type": kind}]}


def _avro_blocks(file):
    with open(file.path, "rb") as stream:
        return list(read_blocks(stream, read_header(stream), skip_rows=0))


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
def test_every_row_of_avro_blocks_can_be_resumed_after(avro, codec):
    file = avro(codec=codec)
    assert len(_avro_blocks(file)) > 5
    assert check_every_resume(AvroReader(Avro()), file, count=50) == RECORDS


@pytest.mark.parametrize("codec", ["snappy", "zstandard"])
def test_codecs_of_other_writers_are_read(avro, tmp_path, codec):
    """A container as Spark and Java write it, packed here by Arrow."""
    (block,) = _avro_blocks(avro(sync_interval=1 << 20))
    packed = pa.Codec(codec.replace("zstandard", "zstd")).compress(block.data, asbytes=True)
    if codec == "snappy":
        packed += zlib.crc32(block.data).to_bytes(4, "big")
    name = bytes([2 * len(codec)]) + codec.encode()
    (tmp_path / "b").write_bytes(container_of(SCHEMA, block.rows, packed).replace(b"\x08null", name))
    assert [row for _, row in rows_after(AvroReader(Avro()), listed(tmp_path / "b"), 0)] == RECORDS


def test_only_the_required_columns_are_sent_and_rows_without_bytes_keep_their_order(avro):
    rows = rows_after(AvroReader(Avro(columns=("S",))), avro(), 48)
    assert rows == [(49, {"S": "x" * 48}), (50, {"S": None})]
    empty = avro(_column("null"), [{"C": None}] * 20)
    assert rows_after(AvroReader(Avro()), empty, 3) == [(number, {"C": None}) for number in range(4, 21)]


def _logical(kind, logical, **more):
    return {"type": kind, "logicalType": logical, **more}


def test_values_of_avro_keep_every_digit(avro):
    at = dt.datetime(2024, 2, 29, 1, 2, 3, 4)
    wide = {"type": "fixed", "name": "D", "size": 20, "logicalType": "decimal", "precision": 45, "scale": 2}
    long = Decimal("-1234567890123456789012345678.0123456789")
    nested = [
        {"name": "a", "type": {"type": "fixed", "name": "H", "size": 1}},
        {"name": "b", "type": ["null", "H"]},
        {"name": "c", "type": {"type": "array", "items": "a.b.H"}},
    ]
    inner = {"type": "record", "name": "In", "fields": nested}
    for kind, value, written in (
        ("long", 2**63 - 1, 2**63 - 1),
        ("double", 0.1, "0.1"),
        ("bytes", b"\xff", "/w=="),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
        ({"type": "fixed", "name": "F", "size": 2}, b"\xff\x00", "/wA="),
        ({"type": "map", "values": ["null", "long"]}, {"k": 1, "n": None}, {"k": 1, "n": None}),
        (_logical("int", "date"), dt.date(2024, 2, 29), "2024-02-29"),
        (_logical("int", "time-millis"), dt.time(1, 2, 3, 4000), "01:02:03.004"),
        (_logical("long", "time-micros"), dt.time(1, 2, 3, 4), "01:02:03.000004"),
        (_logical("long", "timestamp-micros"), at.replace(tzinfo=dt.UTC), "2024-02-29T01:02:03.000004Z"),
        (_logical("long", "timestamp-nanos"), 1709251199123456789, "2024-02-29T23:59:59.123456789Z"),
        (_logical("long", "local-timestamp-micros"), at, "2024-02-29T01:02:03.000004"),
        (_logical("bytes", "decimal", precision=38, scale=10), long, str(long)),
        (wide, Decimal(10) ** 40, "1" + "0" * 40 + ".00"),
        (_logical("string", "uuid"), uuid.UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (["null", _logical("long", "timestamp-millis")], None, None),
        (["float", "double"], 0.1, "0.1"),
        (inner, {"a": b"\xff", "b": None, "c": [b"\x00"]}, {"a": "/w==", "b": None, "c": ["AA=="]}),
    ):
        file = avro(_column(kind), [{"C": value}])
        assert rows_after(AvroReader(Avro()), file, 0) == [(1, {"C": written})], kind


def test_schemas_without_columns_are_refused_by_column():
    for schema, message in [
        ("string", "its rows are 'string', not records"),
        (_column(["string", {"type": {"type": "long"}}]), r"column 'C' is a union of \['string', 'long'\]"),
        (_column(["null", "a.b.Row"]), "column 'C': the type 'a.b.Row' holds itself"),
        (_column(["null", "Other"]), "column 'C': the type 'Other' is not defined"),
    ]:
        with pytest.raises(errors.EncodingError, match=message):
            rows_of(schema)


def test_what_is_no_container_or_has_lengths_that_cannot_be_is_refused(avro, tmp_path):
    for data in (Path(avro().path).read_bytes()[1:], b"Obj\x01" + b"\xff" * 20):
        (tmp_path / "b").write_bytes(data)
        with pytest.raises(errors.EncodingError, match=r"b'.*Avro"):
            rows_after(AvroReader(Avro()), listed(tmp_path / "b"), 0)
    with (tmp_path / "b").open("rb") as stream, pytest.raises(ContainerError, match="too long"):
        read_header(stream)


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
    return [row for _, row in rows_after(ParquetReader(Parquet(**options)), file, 0)]


def test_every_row_of_uneven_and_empty_groups_can_be_resumed_after(tmp_path):
    assert check_every_resume(reader_of(Parquet()), _parquet(tmp_path / "a"), count=50) == ROWS.to_pylist()


NS = 1709251199123456789
VALUES = {  # the value, its type, and what is written
    "DEC": (Decimal("12345678901234567.012345678"), pa.decimal128(38, 9), "12345678901234567.012345678"),
    "TS_US": (NS // 1000, pa.timestamp("us"), "2024-02-29T23:59:59.123456"),
    "TS_NS": (NS, pa.timestamp("ns"), "2024-02-29T23:59:59.123456789"),
    "TS_Z": (NS, pa.timestamp("ns", "UTC"), "2024-02-29T23:59:59.123456789Z"),
    "DAY": (dt.date(2024, 2, 29), pa.date32(), "2024-02-29"),
    "BIN": (b"\x00\xff\n", pa.binary(), "AP8K"),
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
    ("write", "form", "values"), [(_parquet, Parquet, {**VALUES, **ONLY_OF_PARQUET}), (_orc, Orc, VALUES)]
)
def test_values_of_columns_keep_every_digit(tmp_path, write, form, values):
    rows = pa.table({name: pa.array([value], kind) for name, (value, kind, _) in values.items()})
    ((_, row),) = rows_after(reader_of(form()), write(tmp_path / "a", rows), 0)
    if write is _orc:  # whose timestamps are nanoseconds
        row["TS_US"] = row["TS_US"].removesuffix("000")
    assert row == {name: written for name, (_, _, written) in values.items()}


def test_far_dates_of_int96_timestamps_are_kept(tmp_path):
    far = [dt.datetime(9999, 12, 31, 23, 59, 59, 999999), dt.datetime(1, 1, 1)]
    rows = pa.table({"TS": pa.array(far, pa.timestamp("us"))})
    pq.write_table(rows, tmp_path / "a", use_deprecated_int96_timestamps=True)
    first, second = (row["TS"] for row in _values(listed(tmp_path / "a")))
    assert (first, second) == ("9999-12-31T23:59:59.999999", "0001-01-01T00:00:00")


def test_a_value_without_json_form_is_named_by_file_row_and_column(tmp_path):
    rows = pa.table({"X": [1.0] * 30 + [float("nan")] + [1.0] * 19})
    with pytest.raises(errors.EncodingError, match=r"a'.* 22 .* 50 .*'X'.* 9"):
        _values(_parquet(tmp_path / "a", rows))


@pytest.mark.parametrize(("name", "write"), [("parquet", pq.write_table), ("orc", orc.write_table)])
def test_values_that_are_no_numbers_can_become_null(tmp_path, name, write):
    write(pa.table({"X": [1.5, float("nan"), float("-inf")]}), tmp_path / f"a.{name}")
    spec = FileSource(str(tmp_path), partitions="all", format={"type": name, "non_finite": "null"})
    rows = rows_after(reader_of(spec.form), listed(tmp_path / f"a.{name}"), 0)
    assert [row["X"] for _, row in rows] == ["1.5", None, None]
    assert "NaN" in str(why_rows_are_staged(spec))


def test_a_column_with_a_dot_in_its_name_is_no_field_of_another_one(tmp_path):
    file = _parquet(tmp_path / "a", pa.table({"C.A": [1], "C": [{"A": 5}]}))
    assert _values(file, columns=("C.A",)) == [{"C.A": 1}]
    with pq.ParquetFile(file.path) as parquet:
        ((batch, _),) = batches_after(parquet, 0, ["C"])
    assert batch.schema.names == ["C"]


def test_partition_values_become_columns(tmp_path):
    plain = _parquet(tmp_path / "a", ROWS.slice(0, 2))
    rows = _values(replace(plain, values=(("day", "2024-01-01"), ("eu", None))), columns=("ID",))
    assert json.dumps(rows[1]) == '{"ID": 1, "day": "2024-01-01", "eu": null}'
    with pytest.raises(errors.EncodingError, match=r"'ID'.*id=1.*as_columns"):
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
    with pytest.raises(errors.EncodingError, match=r"com\.acme"):
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
    times = {unit: pa.array(at, pa.timestamp(unit, "UTC")) for unit in ("ms", "us")}
    rows = pa.table({"D": days, **times, "L": [[one] for one in days]})

    def read(notes):
        return _values(_parquet(tmp_path / "a", rows.replace_schema_metadata(notes)))

    assert [row["D"] for row in read(notes)] == expected
    for unit in times:
        assert [row[unit] for row in read(notes)] == [one and f"{one}T01:00:00Z" for one in expected]
    assert [row["L"] for row in read(notes)] == [[one] for one in expected]
    assert read({})[0]["D"] == "1500-01-10"
    with pytest.raises(errors.EncodingError, match="Julian"):
        read({**notes, "org.apache.spark.timeZone": "America/New_York"})

import datetime as dt
import uuid
from decimal import Decimal

import pyarrow as pa
import pytest

from airflow_provider_snowpipe.spark.sources.files.avro_format import (
    AvroReader,
    ContainerError,
    container_of,
    read_blocks,
    read_header,
    rows_of,
)
from airflow_provider_snowpipe.spark.sources.files.spec import Avro
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    EncodingError,
    SourcePositionError,
)
from tests.unit.spark.sources.files.conftest import listed, rows_after

fastavro = pytest.importorskip("fastavro", reason="needs the extra avro")

SCHEMA = {
    "type": "record",
    "name": "Row",
    "fields": [{"name": "ID", "type": "long"}, {"name": "S", "type": ["null", "string"]}],
}
RECORDS = [{"ID": number, "S": None if number % 7 == 0 else "x" * number} for number in range(50)]


def _avro(path, schema=SCHEMA, records=RECORDS, **options):
    with path.open("wb") as file:
        fastavro.writer(file, schema, records, **{"sync_interval": 100, **options})
    return listed(path)


def _column(kind):
    return {"type": "record", "name": "Row", "namespace": "a.b", "fields": [{"name": "C", "type": kind}]}


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
def test_every_row_of_several_blocks_can_be_resumed_after(tmp_path, check_every_resume, codec):
    file = _avro(tmp_path / "a.avro", codec=codec)
    with open(file.path, "rb") as stream:
        assert len(list(read_blocks(stream, read_header(stream)))) > 5

    assert check_every_resume(AvroReader(Avro()), file, count=50) == RECORDS


@pytest.mark.parametrize("codec", ["snappy", "zstandard"])
def test_codecs_of_other_writers_are_read(tmp_path, codec):
    """A container as Spark and Java write it, packed here by Arrow."""
    _avro(tmp_path / "plain", sync_interval=1 << 20)
    with (tmp_path / "plain").open("rb") as stream:
        (block,) = read_blocks(stream, read_header(stream))
    if codec == "snappy":
        import zlib

        packed = pa.Codec("snappy").compress(block.data, asbytes=True)
        packed += zlib.crc32(block.data).to_bytes(4, "big")
    else:
        packed = pa.Codec("zstd").compress(block.data, asbytes=True)
    whole = container_of(SCHEMA, block.rows, packed).replace(b"\x08null", _long_text(codec))
    (tmp_path / "a.avro").write_bytes(whole)

    assert [row for _, row in rows_after(AvroReader(Avro()), listed(tmp_path / "a.avro"), 0)] == RECORDS


def _long_text(text):
    return bytes([2 * len(text)]) + text.encode()


def test_only_the_required_columns_are_sent(tmp_path):
    rows = rows_after(AvroReader(Avro(columns=("S",))), _avro(tmp_path / "a"), 48)

    assert rows == [(49, {"S": "x" * 48}), (50, {"S": None})]
    with pytest.raises(ConfigurationError, match="no column 'T'"):
        rows_after(AvroReader(Avro(columns=("T",))), _avro(tmp_path / "a"), 0)


def test_rows_that_take_no_bytes_keep_their_order(tmp_path):
    schema = _column("null")
    rows = rows_after(AvroReader(Avro()), _avro(tmp_path / "a", schema, [{"C": None}] * 20), 3)

    assert rows == [(number, {"C": None}) for number in range(4, 21)]


def _logical(kind, logical, **more):
    return {"type": kind, "logicalType": logical, **more}


NESTED = {
    "type": "record",
    "name": "In",
    "fields": [
        {"name": "a", "type": {"type": "fixed", "name": "H", "size": 1}},
        {"name": "b", "type": ["null", "H"]},
        {"name": "c", "type": {"type": "array", "items": "a.b.H"}},
    ],
}


def test_values_keep_every_digit(tmp_path):
    at = dt.datetime(2024, 2, 29, 1, 2, 3, 4)
    wide = {"type": "fixed", "name": "D", "size": 20, "logicalType": "decimal", "precision": 45, "scale": 2}
    long = Decimal("-1234567890123456789012345678.0123456789")
    for kind, value, written in (
        ("boolean", True, True),
        ("int", -5, -5),
        ("long", 2**63 - 1, 2**63 - 1),
        ("float", 0.5, "0.5"),
        ("double", 0.1, "0.1"),
        ("bytes", b"\xff", "/w=="),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
        ({"type": "fixed", "name": "F", "size": 2}, b"\xff\x00", "/wA="),
        ({"type": "array", "items": "int"}, [1, 2], [1, 2]),
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
        (["int", "null", "long"], 2**40, 2**40),
        (["float", "double"], 0.1, "0.1"),
        (NESTED, {"a": b"\xff", "b": None, "c": [b"\x00"]}, {"a": "/w==", "b": None, "c": ["AA=="]}),
    ):
        file = _avro(tmp_path / "a", _column(kind), [{"C": value}])
        assert rows_after(AvroReader(Avro()), file, 0) == [(1, {"C": written})], kind


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("string", "its rows are 'string', not records"),
        (_column(["string", "long"]), r"column 'C' is a union of \['string', 'long'\]"),
        (_column(["null", "a.b.Row"]), "column 'C': the type 'a.b.Row' holds itself"),
        (_column(["null", "Other"]), "column 'C': the type 'Other' is not defined"),
    ],
)
def test_schemas_without_columns_are_refused_by_column(schema, message):
    with pytest.raises(EncodingError, match=message):
        rows_of(schema)


def test_a_committed_row_that_is_not_there_is_an_error_with_evidence(tmp_path):
    file = _avro(tmp_path / "a")

    assert AvroReader(Avro()).position_after(file, 50).done
    with pytest.raises(SourcePositionError, match=r"has 50 rows in \d+ bytes, but row 51 of it"):
        AvroReader(Avro()).position_after(file, 51)


def test_numbers_and_lengths_that_cannot_be_are_refused(tmp_path):
    (tmp_path / "a").write_bytes(b"Obj\x01" + b"\xff" * 20)
    with (tmp_path / "a").open("rb") as stream, pytest.raises(ContainerError, match="too long"):
        read_header(stream)


@pytest.mark.parametrize(("begin", "end"), [(1, None), (0, 30), (0, -17), (0, -1)])
def test_a_damaged_file_is_refused_by_name(tmp_path, begin, end):
    _avro(tmp_path / "a")
    (tmp_path / "b").write_bytes((tmp_path / "a").read_bytes()[begin:end])

    with pytest.raises(EncodingError, match="b' cannot be read as Avro"):
        rows_after(AvroReader(Avro()), listed(tmp_path / "b"), 0)

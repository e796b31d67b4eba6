import datetime as dt
import uuid
import zlib
from decimal import Decimal
from pathlib import Path

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
from airflow_provider_snowpipe.streaming.errors import EncodingError
from tests.unit.spark.sources.files.conftest import check_every_resume, listed, rows_after

fastavro = pytest.importorskip("fastavro", reason="needs the extra avro")

FIELDS = [{"name": "ID", "type": "long"}, {"name": "S", "type": ["null", "string"]}]
SCHEMA = {"type": "record", "name": "Row", "fields": FIELDS}
RECORDS = [{"ID": number, "S": None if number % 7 == 0 else "x" * number} for number in range(50)]


@pytest.fixture
def avro(tmp_path):
    def write(schema=SCHEMA, records=RECORDS, **options):
        with (tmp_path / "a.avro").open("wb") as file:
            fastavro.writer(file, schema, records, **{"sync_interval": 100, **options})
        return listed(tmp_path / "a.avro")

    return write


def _column(kind):
    return {"type": "record", "name": "Row", "namespace": "a.b", "fields": [{"name": "C", "type": kind}]}


def _blocks(file):
    with open(file.path, "rb") as stream:
        return list(read_blocks(stream, read_header(stream)))


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
def test_every_row_of_several_blocks_can_be_resumed_after(avro, codec):
    file = avro(codec=codec)
    assert len(_blocks(file)) > 5
    assert check_every_resume(AvroReader(Avro()), file, count=50) == RECORDS


@pytest.mark.parametrize("codec", ["snappy", "zstandard"])
def test_codecs_of_other_writers_are_read(avro, tmp_path, codec):
    """A container as Spark and Java write it, packed here by Arrow."""
    (block,) = _blocks(avro(sync_interval=1 << 20))
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


def test_values_keep_every_digit(avro):
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
        (inner, {"a": b"\xff", "b": None, "c": [b"\x00"]}, {"a": "/w==", "b": None, "c": ["AA=="]}),
    ):
        file = avro(_column(kind), [{"C": value}])
        assert rows_after(AvroReader(Avro()), file, 0) == [(1, {"C": written})], kind


def test_schemas_without_columns_are_refused_by_column():
    for schema, message in [
        ("string", "its rows are 'string', not records"),
        (_column(["string", "long"]), r"column 'C' is a union of \['string', 'long'\]"),
        (_column(["null", "a.b.Row"]), "column 'C': the type 'a.b.Row' holds itself"),
        (_column(["null", "Other"]), "column 'C': the type 'Other' is not defined"),
    ]:
        with pytest.raises(EncodingError, match=message):
            rows_of(schema)


def test_what_is_no_container_or_has_lengths_that_cannot_be_is_refused(avro, tmp_path):
    for data in (Path(avro().path).read_bytes()[1:], b"Obj\x01" + b"\xff" * 20):
        (tmp_path / "b").write_bytes(data)
        with pytest.raises(EncodingError, match="b' cannot be read as Avro"):
            rows_after(AvroReader(Avro()), listed(tmp_path / "b"), 0)
    with (tmp_path / "b").open("rb") as stream, pytest.raises(ContainerError, match="too long"):
        read_header(stream)

"""What every format does: rows from behind every row, and refusals of files that are not what they were."""

import bz2
import gzip
import lzma
import os
import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_provider_snowpipe.spark.sources.files.formats import (
    READ_BYTES,
    compression_of,
    pieces,
    reader_of,
)
from airflow_provider_snowpipe.spark.sources.files.spec import (
    Avro,
    Csv,
    Ndjson,
    Orc,
    Parquet,
    SourceFile,
)
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    EncodingError,
    SourcePositionError,
)
from tests.file_formats import numbered_rows, write_file
from tests.unit.spark.sources.files.conftest import check_every_resume, listed, rows_after

FORMS = {"ndjson": Ndjson, "csv": Csv, "parquet": Parquet, "orc": Orc, "avro": Avro}
PACKED = ["a.ndjson.gz", "a.csv.bz2", "a.ndjson.xz", "a.csv.zst"]
NAMES = ["a.ndjson", "a.csv", "a.parquet", "a.orc", "a.avro", *PACKED]


def made(folder, name):
    """A file of 100 rows in several blocks."""
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
    with pytest.raises(SourcePositionError, match=r"has 100 \w+ in .*, but \w+ 101 of it"):
        reader(name).position_after(file, 101)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_changed_since_it_was_listed_is_refused(tmp_path, name):
    file = made(tmp_path, name)
    for size, message in ((file.size + 1, "shrank"), (file.size - 1, r"grew from \d+ to \d+ bytes")):
        with pytest.raises(SourcePositionError, match=message):
            rows_after(reader(name), replace(file, size=size), 0)


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.orc", "a.avro"])
def test_a_column_that_is_not_there_is_refused(tmp_path, name):
    with pytest.raises(ConfigurationError, match=r"no column 'NONE'.*'ID', 'FILE', 'NOTE'"):
        rows_after(reader(name, columns=("NONE",)), made(tmp_path, name), 0)


@pytest.mark.parametrize("name", ["a.parquet", "a.orc", "a.avro", *PACKED])
def test_an_unfinished_file_is_refused_by_name(tmp_path, name):
    data = Path(made(tmp_path, name).path).read_bytes()
    for end in (len(data) // 2, -17, -1):
        (tmp_path / name).write_bytes(data[:end])
        with pytest.raises(EncodingError, match=f"{name}' cannot be (read|decompressed) as "):
            rows_after(reader(name), listed(tmp_path / name), 0)


PACK = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda data: pa.compress(data, "zstd", asbytes=True),
}
TEXT = b"".join(b'{"ID":%d,"S":"%d"}\n' % (n, random.Random(n).getrandbits(200)) for n in range(40))


@pytest.mark.parametrize("ending", PACK)
class TestPieces:
    @pytest.fixture
    def stored(self, tmp_path, ending):
        """The pieces of a file."""

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
        assert b"".join(stored(PACK[ending](TEXT[:100]) + PACK[ending](TEXT[100:]))) == TEXT

    def test_that_are_cut_off_or_followed_by_others_are_an_error_and_no_end(self, stored, ending):
        packed = PACK[ending](TEXT)
        for data, message in ((packed[:-9], "after .*cut off"), (packed + b"plain text behind it", "")):
            with pytest.raises(EncodingError, match=rf"cannot be decompressed as \w+ {message}"):
                list(stored(data))


def test_padding_between_and_behind_the_parts_of_xz_is_passed_over(tmp_path):
    path, pack = tmp_path / "a.xz", PACK["xz"]
    path.write_bytes(pack(TEXT[:100]) + bytes(8) + pack(TEXT[100:]) + bytes(READ_BYTES + 4))
    assert b"".join(pieces(listed(path), 0, compression="xz", read_bytes=7)) == TEXT


def test_a_file_that_is_not_compressed_as_declared_is_refused(tmp_path):
    path = tmp_path / "a.ndjson"
    path.write_bytes(TEXT)
    with pytest.raises(EncodingError, match="cannot be decompressed as gzip after 0 bytes"):
        list(pieces(listed(path), 0, compression="gzip"))


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

    def test_is_refused_when_it_is_younger_than_the_listed_one(self, file, kind):
        for later_ns in (1, SECOND_NS):
            os.utime(file.path, ns=(1, file.modified_ns + later_ns))
            with pytest.raises(SourcePositionError, match="was written again in the same size"):
                next(pieces(file, 0, compression=kind))

    def test_is_refused_when_it_is_written_while_it_is_read(self, file, kind):
        found = pieces(file, 0, compression=kind, read_bytes=100)
        next(found)
        os.utime(file.path, ns=(1, file.modified_ns + SECOND_NS))
        with pytest.raises(SourcePositionError, match="rows of both may have been sent"):
            list(found)


def test_compression_goes_by_the_name_unless_it_is_declared():
    for name, declared, found in [
        ("a.GZ", "auto", "gzip"),
        ("a.log.zst", "auto", "zstd"),
        ("a.gz.log", "auto", "none"),
        ("a", "gzip", "gzip"),
        ("a.gz", "none", "none"),
    ]:
        assert compression_of(SourceFile(name, name, 1), declared) == found

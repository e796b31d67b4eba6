import bz2
import gzip
import lzma
import os
import random
from dataclasses import replace

import pyarrow as pa
import pytest

from airflow_provider_snowpipe.spark.sources.files.formats import READ_BYTES, compression_of, pieces
from airflow_provider_snowpipe.spark.sources.files.line_format import LineReader
from airflow_provider_snowpipe.spark.sources.files.spec import Ndjson, SourceFile
from airflow_provider_snowpipe.streaming.errors import EncodingError, SourcePositionError
from tests.unit.spark.sources.files.conftest import listed

PACKED = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda data: pa.compress(data, "zstd", asbytes=True),
}
ENDINGS = pytest.mark.parametrize("ending", sorted(PACKED))
TEXT = b"".join(b'{"ID":%d,"S":"%d"}\n' % (n, random.Random(n).getrandbits(200)) for n in range(40))


@ENDINGS
def test_every_row_of_a_compressed_file_can_be_resumed_after(tmp_path, check_every_resume, ending):
    path = tmp_path / f"a.ndjson.{ending}"
    path.write_bytes(PACKED[ending](TEXT))

    rows = check_every_resume(LineReader(Ndjson()), listed(path), count=40)

    assert [row["ID"] for row in rows] == list(range(40))


@ENDINGS
@pytest.mark.parametrize("read_bytes", [1, 7, 1000, 1 << 20])
def test_pieces_from_any_offset_are_the_rest_of_the_text(tmp_path, ending, read_bytes):
    path = tmp_path / f"a.{ending}"
    path.write_bytes(PACKED[ending](TEXT))
    kind = compression_of(listed(path), "auto")

    for offset in (0, 1, 6, 7, 8, 999, len(TEXT) - 1, len(TEXT)):
        found = b"".join(pieces(listed(path), offset, compression=kind, read_bytes=read_bytes))
        assert found == TEXT[offset:]


@ENDINGS
def test_a_file_of_several_compressed_parts_is_read_to_its_end(tmp_path, ending):
    path = tmp_path / f"a.{ending}"
    path.write_bytes(PACKED[ending](TEXT[:100]) + PACKED[ending](TEXT[100:]))

    kind = compression_of(listed(path), "auto")
    assert b"".join(pieces(listed(path), 0, compression=kind)) == TEXT


@ENDINGS
def test_a_compressed_file_that_is_cut_off_is_an_error_and_no_end(tmp_path, ending):
    path = tmp_path / f"a.ndjson.{ending}"
    packed = PACKED[ending](TEXT)
    path.write_bytes(packed[: len(packed) - 9])

    with pytest.raises(EncodingError, match=r"a\.ndjson\.\w+' cannot be decompressed as \w+ after .*cut off"):
        list(pieces(listed(path), 0, compression=compression_of(listed(path), "auto")))


@ENDINGS
def test_what_follows_a_whole_part_and_is_none_is_an_error_and_no_end(tmp_path, ending):
    path = tmp_path / f"a.{ending}"
    path.write_bytes(PACKED[ending](TEXT) + b"plain text behind it")

    with pytest.raises(EncodingError, match="cannot be decompressed"):
        list(pieces(listed(path), 0, compression=compression_of(listed(path), "auto")))


def test_padding_between_and_behind_the_parts_of_xz_is_passed_over(tmp_path):
    path = tmp_path / "a.xz"
    path.write_bytes(PACKED["xz"](TEXT[:100]) + bytes(8) + PACKED["xz"](TEXT[100:]) + bytes(READ_BYTES + 4))

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

    @pytest.mark.parametrize("later_ns", [1, SECOND_NS])
    def test_is_refused_when_it_is_younger_than_the_listed_one(self, file, kind, later_ns):
        os.utime(file.path, ns=(1, file.modified_ns + later_ns))

        with pytest.raises(SourcePositionError, match="was written again in the same size"):
            next(pieces(file, 0, compression=kind))

    def test_is_refused_when_it_is_written_while_it_is_read(self, file, kind):
        found = pieces(file, 0, compression=kind, read_bytes=100)
        next(found)
        os.utime(file.path, ns=(1, file.modified_ns + SECOND_NS))

        with pytest.raises(SourcePositionError, match="rows of both may have been sent"):
            list(found)


def test_a_compressed_file_that_changed_its_size_is_refused(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(TEXT))
    file = SourceFile("a.gz", str(path), path.stat().st_size - 1)

    with pytest.raises(SourcePositionError, match=r"grew from \d+ to \d+ bytes.*rename it"):
        list(pieces(file, 0, compression="gzip"))


@ENDINGS
def test_a_committed_line_that_a_compressed_file_lacks_is_an_error_with_evidence(tmp_path, ending):
    path = tmp_path / f"a.ndjson.{ending}"
    path.write_bytes(PACKED[ending](TEXT))

    with pytest.raises(SourcePositionError, match=r"has 40 lines in .*but line 41 of it is committed"):
        LineReader(Ndjson()).position_after(listed(path), 41)


@pytest.mark.parametrize(
    ("name", "declared", "found"),
    [
        ("a.GZ", "auto", "gzip"),
        ("a.log.zst", "auto", "zstd"),
        ("a.bz2", "auto", "bz2"),
        ("a.xz", "auto", "xz"),
        ("a.gz.log", "auto", "none"),
        ("a", "gzip", "gzip"),
        ("a.gz", "none", "none"),
    ],
)
def test_compression_goes_by_the_name_unless_it_is_declared(name, declared, found):
    assert compression_of(SourceFile(name, name, 1), declared) == found

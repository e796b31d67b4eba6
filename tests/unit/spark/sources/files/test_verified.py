"""verify="digest": a file that was changed before the committed row is an error, one that grew is none."""

import gzip

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_snowpipe.spark.sources.files.reader import FileSource
from airflow_provider_snowpipe.spark.sources.registry import source_spec
from airflow_provider_snowpipe.streaming.errors import SourcePositionError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import offset_class

LIMITS = BatchLimits(rows=2)


@pytest.fixture
def source(tmp_path):
    """Reads the source's one partition: the tokens after a committed one."""
    (tmp_path / "a").mkdir()

    def tokens(committed=None, limits=LIMITS, **options):
        spec = source_spec({"path": str(tmp_path), "verify": "digest", **options})
        (partition,) = FileSource(spec, "fail").partitions()
        kind = offset_class(spec.offset_format)
        position = None if committed is None else kind.parse(committed)
        partition.check(position)
        resumed = partition.resume(position)
        return [] if resumed is None else [str(part.end) for part in partition.read(resumed, limits)]

    return tokens


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a" / "1.ndjson"


def test_a_token_of_any_row_is_good_for_the_same_file_and_for_one_that_grew(source, path):
    path.write_bytes(b'{"a":1}\n\n{"a":2}\n{"a":3}\n{"a":4}\n{"a":5}')
    tokens = source()
    assert [token.rpartition(":")[2] for token in tokens] == ["3", "5", "6"]
    assert len(set(tokens)) == 3

    for count, token in enumerate(tokens, start=1):
        assert source(token) == tokens[count:]

    with path.open("ab") as file:
        file.write(b'\n{"a":6}\n')
    for token in tokens:
        (last, *_) = reversed(source(token))
        assert last.endswith(":7")


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize(
    "content", [b'{"a":9}\n{"a":2}\n{"a":3}\n{"a":4}\n', b'{"a":1 }\n{"a":2}\n{"a":3}\n{"a":4}\n{"a":5}\n']
)
def test_a_file_that_was_changed_before_the_committed_row_is_an_error_with_the_evidence(
    source, path, content, rows
):
    path.write_bytes(b'{"a":1}\n{"a":2}\n{"a":3}\n')
    first, *_ = source(limits=BatchLimits(rows=rows))
    path.write_bytes(content)

    with pytest.raises(
        SourcePositionError, match=rf"was changed or replaced after row {rows}.*token '1\.ndjson@"
    ):
        source(first)


def test_a_change_behind_the_committed_row_is_none_of_its_business(source, path):
    path.write_bytes(b'{"a":1}\n{"a":2}\n{"a":3}\n')
    first, _ = source()
    path.write_bytes(b'{"a":1}\n{"a":2}\n{"a":4}\n')

    assert [token.rpartition(":")[2] for token in source(first)] == ["3"]


def test_csv_counts_its_header_in(source, tmp_path):
    path = tmp_path / "a" / "1.csv"
    path.write_text('A,B\n1,"x\ny"\n2,\n3,z\n')
    first, last = source(format="csv")

    assert source(first, format="csv") == [last]
    path.write_text('B,A\n1,"x\ny"\n2,\n3,z\n')
    with pytest.raises(SourcePositionError, match="its first 15 bytes have the digest"):
        source(first, format="csv")


def test_files_that_are_written_once_are_compared_as_a_whole(source, tmp_path):
    packed, columns = tmp_path / "a" / "1.ndjson.gz", tmp_path / "a" / "1.parquet"
    for path, write, options in (
        (packed, lambda n: packed.write_bytes(gzip.compress(b"{}\n" * n)), {"pattern": "*.gz"}),
        (columns, lambda n: pq.write_table(pa.table({"A": range(n)}), columns), {"format": "parquet"}),
    ):
        write(5)
        tokens = source(**options)
        assert len({token.partition("@")[2].partition(":")[0] for token in tokens}) == 1
        assert source(tokens[0], **options) == tokens[1:]
        assert source(tokens[-1], **options) == []
        write(6)
        with pytest.raises(SourcePositionError, match=rf"{path.name}' was changed .*all of its \d+ bytes"):
            source(tokens[0], **options)

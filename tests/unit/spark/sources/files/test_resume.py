import pytest

from airflow_provider_snowpipe.spark.sources.files.reader import Resume, files_to_read, resume_after
from airflow_provider_snowpipe.spark.sources.files.spec import FileGroup, Ndjson, SourceFile
from airflow_provider_snowpipe.streaming.errors import SourcePositionError
from airflow_provider_snowpipe.streaming.offsets import UnitOffset


@pytest.fixture
def group(tmp_path):
    """Units 2 and 4 are files, 6 is what the first of them has got: two more lines."""
    for name in ("b.log", "a.log"):
        (tmp_path / name).write_bytes(b"a\nbb\nccc\nd\ne\n")
    files = [
        SourceFile("b.log", str(tmp_path / "b.log"), 9, unit=2),
        SourceFile("a.log", str(tmp_path / "a.log"), 9, unit=4),
        SourceFile("b.log", str(tmp_path / "b.log"), 13, unit=6, start=9, after_line=3),
    ]
    return FileGroup("web", tuple(files), gone=frozenset(), committed={4: 3})


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        (None, Resume(0, 0, 0)),
        ("2/b.log:0", Resume(0, 0, 0)),
        ("2/b.log:1", Resume(0, 1, 2)),
        ("2/b.log:3", Resume(0, 3, 9, done=True)),
        ("3/x.log:9", Resume(1, 0, 0)),
        ("4/a.log:2", Resume(1, 2, 5)),
        ("4/a.log:3", Resume(1, 3, 9, done=True)),
        ("6/b.log:3", Resume(2, 3, 9)),
        ("6/b.log:4", Resume(2, 4, 11)),
        ("7/c.log:1", Resume(3, 0, 0)),
    ],
)
def test_reading_goes_on_behind_the_committed_line_of_a_unit(group, token, expected):
    committed = None if token is None else UnitOffset.parse(token)
    found = resume_after(group, Ndjson(), committed)

    assert found == expected
    assert [file.unit for file, _ in files_to_read(group, found)] == [
        file.unit for file in group.files[found.file_index + found.done :]
    ]


def test_file_shorter_than_the_committed_line_is_never_skipped(group):
    with pytest.raises(SourcePositionError, match="line 4"):
        resume_after(group, Ndjson(), UnitOffset(2, "b.log", 4))

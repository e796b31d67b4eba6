import pytest

from airflow_provider_snowpipe.spark.sources.files.formats import LineReader
from airflow_provider_snowpipe.spark.sources.files.reader import Resume, files_to_read, resume_after
from airflow_provider_snowpipe.spark.sources.files.spec import FileGroup, Ndjson, SourceFile
from airflow_provider_snowpipe.streaming.errors import SourcePositionError
from airflow_provider_snowpipe.streaming.offsets import FileLineOffset


@pytest.fixture
def group(tmp_path):
    files = []
    for name in ("02.log", "04.log", "06.log"):
        (tmp_path / name).write_bytes(b"a\nbb\nccc\n")
        files.append(SourceFile(name, str(tmp_path / name), 9))
    return FileGroup("web", tuple(files))


def _after(group, token, on_data_loss="fail"):
    return resume_after(group, LineReader(Ndjson()), token and FileLineOffset.parse(token), on_data_loss)


def test_missing_committed_file_is_named_with_the_files_there(group):
    with pytest.raises(SourcePositionError, match=r"'03\.log:1'.*'02\.log' to '06\.log'"):
        _after(group, "03.log:1")


def test_skip_goes_on_with_the_first_file_after_the_token(group):
    assert _after(group, "03.log:1", "skip") == Resume(1, 0, 0)
    assert _after(group, "01.log:8", "skip") == Resume(0, 0, 0)
    assert list(files_to_read(group, _after(group, "07.log:1", "skip"), growing=False)) == []


@pytest.mark.parametrize("on_data_loss", ["fail", "skip"])
def test_file_shorter_than_the_committed_line_is_never_skipped(group, on_data_loss):
    with pytest.raises(SourcePositionError, match=r"has 3 line.*line 4"):
        _after(group, "04.log:4", on_data_loss)


@pytest.mark.parametrize(("growing", "last_tail"), [(False, True), (True, False)])
def test_only_the_last_file_of_a_growing_source_keeps_its_tail_back(group, growing, last_tail):
    tails = [tail for _, _, tail in files_to_read(group, Resume(0, 0, 0), growing=growing)]

    assert tails == [True, True, last_tail]

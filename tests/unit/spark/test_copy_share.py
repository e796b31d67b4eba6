"""Where streaming ends and COPY begins in a series of files."""

import datetime as dt
from dataclasses import replace

import pytest

from airflow_provider_snowpipe.spark.sources.files.spec import SourceFile
from airflow_provider_snowpipe.spark.submit import file_boundary
from airflow_provider_snowpipe.streaming import errors
from airflow_provider_snowpipe.streaming.copy_intent import CopyIntent
from airflow_provider_snowpipe.streaming.offsets import UnitOffset

SINCE = dt.datetime(2026, 1, 31, 12, 30, 1, 250_000, tzinfo=dt.UTC)
FILES = tuple(SourceFile(name, f"/{name}", 9, unit=unit) for unit, name in ((1, "a"), (2, "b"), (4, "c")))


def position(committed=None, *, rest=False, copying_to=None):
    intent = copying_to and CopyIntent(committed, copying_to, SINCE, 0, "b")
    return file_boundary.PartitionPosition(
        "p", "x_p", FILES, committed and UnitOffset.parse(committed), rest, intent
    )


def names(files):
    return "".join(one.name for one in files)


def test_copy_takes_the_files_that_no_stream_has_begun():
    for committed, growing, share in [
        (None, False, "abc"),
        ("1/a:0", False, "abc"),
        ("1/a:10", False, "bc"),
        ("3/x:10", False, "c"),
        ("4/c:1", False, ""),
        ("1/a:10", True, "b"),
        ("4/c:1", True, ""),
    ]:
        assert names(file_boundary.share_of_copy(position(committed), growing=growing)) == share, committed


def test_an_interrupted_copy_promises_the_files_up_to_its_last_one():
    begun = position("1/a:10", copying_to="2/b")
    assert (names(file_boundary.promised_files(begun)), names(file_boundary.share_of_copy(begun))) == (
        "b",
        "bc",
    )
    assert file_boundary.promised_files(position("1/a:10")) == ()
    with pytest.raises(errors.SourcePositionError, match="bb"):
        file_boundary.promised_files(position("1/a:10", copying_to="2/bb"))


def test_what_a_file_has_got_is_left_to_the_stream_and_rows_behind_an_open_copy_are_an_error():
    grown = replace(FILES[0], unit=5, start=9, after_line=3)
    with pytest.raises(errors.PartlyStreamedError, match="'a'"):
        file_boundary.share_of_copy(replace(position("4/c:1"), files=(*FILES, grown)))
    with pytest.raises(errors.SourcePositionError, match="row 10"):
        file_boundary.share_of_copy(position("1/a:10", rest=True, copying_to="2/b"))


def test_a_partition_is_done_when_no_row_is_left():
    assert position("4/c:5").is_done
    for left in (position("4/c:5", rest=True), position("2/b:5"), position("2/b:5", copying_to="4/c")):
        assert not left.is_done

"""Where streaming ends and COPY begins in a series of files."""

from __future__ import annotations

import datetime as dt

import pytest

from airflow_provider_snowpipe.spark.submit.file_boundary import (
    PartitionPosition,
    promised_files,
    share_of_copy,
)
from airflow_provider_snowpipe.streaming.checkpoint import Checkpoint
from airflow_provider_snowpipe.streaming.copy_intent import CopyIntent
from airflow_provider_snowpipe.streaming.errors import (
    OffsetTokenError,
    SourcePositionError,
)
from airflow_provider_snowpipe.streaming.offsets import FileLineOffset

SINCE = dt.datetime(2026, 1, 31, 12, 30, 1, 250_000, tzinfo=dt.UTC)
FILES = ("a", "b", "c")


def position(
    committed: str | None = None, *, rest: bool = False, copying_to: str | None = None
) -> PartitionPosition:
    intent = None if copying_to is None else CopyIntent(committed, copying_to, SINCE, 0, "b")
    offset = None if committed is None else FileLineOffset.parse(committed)
    return PartitionPosition("p", "x_p", FILES, offset, rest, intent)


@pytest.mark.parametrize(
    ("committed", "growing", "share"),
    [
        (None, False, FILES),
        ("a:0", False, FILES),
        ("a:10", False, ("b", "c")),
        ("aa:10", False, ("b", "c")),
        ("c:1", False, ()),
        ("a:10", True, ("b",)),
        ("c:1", True, ()),
    ],
    ids=["nothing-in", "before-a", "after-a", "file-gone", "all-in", "growing", "growing-all-in"],
)
def test_copy_takes_the_files_that_no_stream_has_begun(committed, growing, share):
    assert share_of_copy(position(committed), growing=growing) == share


def test_an_interrupted_copy_promises_the_files_up_to_its_last_one():
    begun = position("a:10", copying_to="b")

    assert promised_files(begun) == ("b",)
    assert share_of_copy(begun) == ("b", "c")
    assert promised_files(position("a:10")) == ()


def test_a_promised_file_that_is_gone_is_an_error():
    with pytest.raises(SourcePositionError, match="'bb'"):
        promised_files(position("a:10", copying_to="bb"))


def test_rows_that_came_behind_the_committed_one_while_a_copy_is_open_are_an_error():
    with pytest.raises(SourcePositionError, match="row 10"):
        share_of_copy(position("a:10", rest=True, copying_to="b"))


@pytest.mark.parametrize(
    ("given", "done"),
    [
        (position("c:5"), True),
        (position("c:5", rest=True), False),
        (position("b:5"), False),
        (position("b:5", copying_to="c"), False),
    ],
    ids=["all-in", "rest", "file-left", "copying"],
)
def test_a_partition_is_done_when_no_row_is_left(given, done):
    assert given.is_done is done


def test_a_writer_that_finds_an_intent_gets_an_error_that_names_it():
    token = str(CopyIntent("a:10", "b:c", SINCE, 0, "b"))

    with pytest.raises(OffsetTokenError, match=r"'x'.*load task"):
        Checkpoint.parse(token, FileLineOffset, channel="x")

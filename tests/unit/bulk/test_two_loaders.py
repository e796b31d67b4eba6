"""Files that both COPY and a pipe are given, found in load history."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from airflow_provider_snowpipe.bulk.staged_files import FileLoad, StagedFile, StagedFiles, StageReference
from airflow_provider_snowpipe.bulk.two_loaders import not_loaded_by, refuse_files_of_others
from airflow_provider_snowpipe.streaming.errors import FilesGivenTwiceError

NOW = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
PATHS = ("in/a.csv", "in/b.csv")
FILES = StagedFiles({path: StagedFile(path) for path in PATHS}, StageReference.parse("@S"))


def load(pipe: str | None, path: str = "in/a.csv", days: float = 1, **fields: Any) -> FileLoad:
    given = {"location": "DB.PUBLIC.S/", "status": "LOADED", "rows_loaded": 7, **fields}
    return FileLoad(path, loaded_at=NOW - dt.timedelta(days=days), pipe=pipe, **given)


def refuse(*loads: FileLoad, loader: str | None = None, files: StagedFiles = FILES) -> None:
    refuse_files_of_others(files, loads, table="T", now=NOW, loader=loader)


def test_a_file_that_a_pipe_loaded_is_refused_for_copy_with_the_load_and_its_timestamp() -> None:
    with pytest.raises(FilesGivenTwiceError) as raised:
        refuse(load("DB.PUBLIC.P"), load(None, "in/b.csv"))

    assert "1 of 2 files for T were loaded another way" in str(raised.value)
    assert "'in/a.csv' by pipe DB.PUBLIC.P at 2026-01-30 12:00:00 UTC, 7 rows" in str(raised.value)
    assert "COPY has no memory of that" in str(raised.value)
    assert raised.value.files == ("in/a.csv",)
    assert not raised.value.retryable


def test_a_file_that_copy_loaded_is_refused_for_a_pipe() -> None:
    with pytest.raises(FilesGivenTwiceError, match=r"'in/a.csv' by COPY at .*pipe DB.PUBLIC.P has no memory"):
        refuse(load(None), loader="DB.PUBLIC.P")


def test_a_file_that_another_pipe_loaded_is_refused_for_a_pipe() -> None:
    with pytest.raises(FilesGivenTwiceError, match=r"by pipe DB\.PUBLIC\.OTHER"):
        refuse(load("DB.PUBLIC.OTHER"), loader="DB.PUBLIC.P")


@pytest.mark.parametrize(
    ("loader", "loads"),
    [
        ("DB.PUBLIC.P", [load("DB.PUBLIC.P")]),
        (None, []),
    ],
    ids=["own-pipe", "none"],
)
def test_other_loads_do_not_stand_in_the_way(loader: str | None, loads: list[FileLoad]) -> None:
    refuse(*loads, loader=loader)


@pytest.mark.parametrize(
    ("loader", "other"),
    [(None, "DB.PUBLIC.P"), ("DB.PUBLIC.P", None), ("DB.PUBLIC.P", "DB.PUBLIC.OTHER")],
    ids=["pipe-then-copy", "copy-then-pipe", "pipe-then-pipe"],
)
def test_a_file_that_another_loader_loaded_in_part_is_refused_as_well(
    loader: str | None, other: str | None
) -> None:
    with pytest.raises(FilesGivenTwiceError) as refused:
        refuse(load(other, status="PARTIALLY_LOADED"), loader=loader)
    assert refused.value.files == ("in/a.csv",)


def test_what_a_pipe_has_loaded_in_part_it_does_not_load_again() -> None:
    done = [load("DB.PUBLIC.P", "in/a.csv", status="PARTIALLY_LOADED")]
    assert not_loaded_by(FILES, done, "DB.PUBLIC.P") == ["in/b.csv"]


def test_what_a_pipe_has_loaded_itself_it_does_not_load_again() -> None:
    done = [load("DB.PUBLIC.P", "a.csv", location="DB.PUBLIC.S/in/")]
    others = [load(None, "in/b.csv"), load("DB.PUBLIC.P", "in/b.csv", status="LOAD_FAILED")]

    assert not_loaded_by(FILES, [*done, *others], "DB.PUBLIC.P") == ["in/b.csv"]


@pytest.mark.parametrize(
    ("stage", "url", "location"), [("@S/in", None, "DB.PUBLIC.S/in/"), ("@S", "s3://b/x/", "s3://b/x/in/")]
)
def test_what_a_pipe_has_loaded_is_known_however_its_stage_is_named(
    stage: str, url: str | None, location: str
) -> None:
    files = StagedFiles(FILES.files, StageReference.parse(stage), url)

    assert not_loaded_by(files, [load("P", "a.csv", location=location)], "P") == ["in/b.csv"]


def test_a_pipe_of_that_name_over_another_stage_has_loaded_other_files() -> None:
    done = [load("DB.PUBLIC.P", "a.csv", location="DB.PUBLIC.OLD/in/")]

    assert not_loaded_by(FILES, done, "DB.PUBLIC.P") == list(PATHS)

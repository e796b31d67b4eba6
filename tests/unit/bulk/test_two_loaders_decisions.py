"""Which loads of load history are another loader's load of the same file."""

from __future__ import annotations

import datetime as dt
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_snowpipe.bulk.file_pipe_admin import ListedPipe, PipeStatus, PipeTarget
from airflow_provider_snowpipe.bulk.staged_files import FileLoad, StagedFile, StagedFiles, StageReference
from airflow_provider_snowpipe.bulk.two_loaders import (
    PipeBeside,
    announced_to,
    refuse_files_for_pipe,
    refuse_files_of_others,
    remembered_loads,
)
from airflow_provider_snowpipe.streaming.errors import FilesGivenTwiceError
from airflow_provider_snowpipe.streaming.names import PipeName

NOW = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
PIPE = "DB.PUBLIC.P"


def _load(path: str = "in/a.csv", age: dt.timedelta = dt.timedelta(1), **fields: Any) -> FileLoad:
    given = {"location": "DB.PUBLIC.S/", "status": "LOADED", "pipe": PIPE, **fields}
    return FileLoad(path, loaded_at=NOW - age, **given)


def _files(*paths: str, stage: str = "@S", url: str | None = None) -> StagedFiles:
    found = {path: StagedFile(path) for path in paths or ("in/a.csv",)}
    return StagedFiles(found, StageReference.parse(stage), url)


def _others(*loads: FileLoad, files: StagedFiles | None = None, loader: str | None = None) -> list[FileLoad]:
    return [load for load in remembered_loads(files or _files(), loads, NOW) if load.pipe != loader]


def test_loads_that_do_not_count_hide_no_later_one() -> None:
    counted = _load()

    forgotten = _load(age=dt.timedelta(days=15))
    for ignored in (_load("x.csv"), _load(status="LOAD_FAILED"), _load(pipe=None), forgotten):
        assert _others(ignored, counted) == [counted]


def test_load_is_reported_under_the_path_that_was_asked_for() -> None:
    found = _others(_load("a.csv", location="DB.PUBLIC.S/in/"))

    assert [load.path for load in found] == ["in/a.csv"]


def test_no_file_was_loaded_by_others_when_there_is_none() -> None:
    assert _others(_load(), files=StagedFiles({}, StageReference.parse("@S"))) == []


@pytest.mark.parametrize(("pipe", "days"), [(PIPE, 14), (None, 64)])
def test_loader_remembers_to_the_end_of_its_last_day(pipe: str | None, days: int) -> None:
    loader = PIPE if pipe is None else None
    last, past = dt.timedelta(days), dt.timedelta(days, seconds=1)

    assert len(_others(_load(age=last, pipe=pipe), loader=loader)) == 1
    assert _others(_load(age=past, pipe=pipe), loader=loader) == []


@pytest.mark.parametrize(
    ("stage", "location", "same"),
    [
        ("@S", "DB.PUBLIC.S/", True),
        ("@s", "DB.PUBLIC.S/", True),
        ("@S", 'DB.PUBLIC."S"/', True),
        ("@S", "stages/0a1b/", True),
        ('@%"T"', "DB.PUBLIC.%T/", True),
        ("@%T", 'DB.PUBLIC."%T"/', True),
        ("@S", "@db.public.s/in/", True),
        ("@S", "DB.PUBLIC.S2/", False),
        ("@%T", "DB.PUBLIC.%T/", True),
        ("@%T", "DB.PUBLIC.T/", False),
        ("@T", "DB.PUBLIC.%T/", False),
        ("@%T", "DB.PUBLIC.%U/", False),
        ('@"my stage"', 'DB.PUBLIC."my stage"/', True),
        ('@"my stage"', "DB.PUBLIC.my stage/", True),
        ('@"a""b"', 'DB.PUBLIC."a""b"/', True),
        ('@"a""b"', 'DB.PUBLIC."ab"/', False),
        ('@"a""b"', 'DB.PUBLIC.a"b/', True),
        ("@S", "PUBLIC.OTHER/", True),
        ("@S", "", True),
    ],
)
def test_load_of_another_stage_does_not_count(stage: str, location: str, same: bool) -> None:
    path = "a.csv" if location.endswith("/in/") else "in/a.csv"

    assert bool(_others(_load(path, location=location), files=_files(stage=stage))) is same


@pytest.mark.parametrize(
    ("url", "location", "path", "same"),
    [
        ("s3://b/x/", "s3://b/x/", "in/a.csv", True),
        ("s3://b/x", "s3://b/x", "in/a.csv", True),
        ("s3://b/x/", "s3://b/x", "in/a.csv", True),
        ("s3://b/x/", "s3://b/x/in/", "a.csv", True),
        ("s3://b/X/", "s3://b/X/", "in/a.csv", True),
        ("s3://b/x/", "s3://b/y/", "in/a.csv", False),
        (None, "s3://b/x/", "in/a.csv", False),
    ],
)
def test_load_of_another_url_does_not_count(url: str | None, location: str, path: str, same: bool) -> None:
    assert bool(_others(_load(path, location=location), files=_files(url=url))) is same


@pytest.mark.parametrize("auto_ingest", [True, False])
def test_pipe_is_notified_of_files_that_came_after_it(auto_ingest: bool) -> None:
    minute, second = dt.timedelta(minutes=1), dt.timedelta(seconds=1)
    target = PipeTarget(("DB", "S", "T"), StageReference.parse("@S"), auto_ingest=auto_ingest)
    pipe = ListedPipe(PipeName("DB", "S", "P"), target, NOW)
    files = {
        "old": NOW - minute - second, "minute": NOW - minute, "new": NOW + minute, "unknown": None,
    }  # fmt: skip

    assert announced_to(pipe, files) == (("minute", "new", "unknown") if auto_ingest else ())
    assert announced_to(replace(pipe, created=None), files) == (tuple(files) if auto_ingest else ())


@pytest.mark.parametrize(
    ("pending", "files", "announced", "text"),
    [
        (2, "abc", "", r"has 2 files in its queue, of which 'a', 'b', 'c' may"),
        (None, "a", "bcde", r"does not show.* notified of 'b', 'c', 'd' … by"),
        (0, "a", "b", r"notified of 'b' by"),
        (0, "a", "", None),
        (None, "a", "", None),
    ],
)
def test_files_that_a_pipe_is_about_to_load_are_refused(
    pending: int | None, files: str, announced: str, text: str | None
) -> None:
    pipe = ListedPipe(PipeName("DB", "S", "P"), PipeTarget(("DB", "S", "T"), StageReference.parse("@S")))
    status = None if pending is None else PipeStatus("RUNNING", pending)
    idle = PipeBeside(pipe, PipeStatus("RUNNING"), ("x",))
    beside = PipeBeside(pipe, status, tuple(files), tuple(announced))

    refuse_files_for_pipe(idle, table="T")

    with pytest.raises(FilesGivenTwiceError, match=text) if text else nullcontext() as raised:
        refuse_files_for_pipe(beside, table="T")
    if raised is not None:
        assert raised.value.files == tuple(files if pending else announced)


def test_queue_of_a_pipe_is_no_reason_for_the_pipe_itself() -> None:
    pipes = [
        ListedPipe(PipeName("DB", "S", name), PipeTarget(("DB", "S", "T"), StageReference.parse("@S")))
        for name in "PQ"
    ]
    own, other = (PipeBeside(pipe, PipeStatus("RUNNING", 1), ("a",)) for pipe in pipes)

    refuse_files_for_pipe(own, table="T", loader="DB.S.P")
    with pytest.raises(FilesGivenTwiceError) as caught:
        refuse_files_for_pipe(other, table="T", loader="DB.S.P")
    assert "pipe DB.S.Q" in str(caught.value)
    assert "DB.S.P would put" in str(caught.value)


@pytest.mark.parametrize("has_copied", [True, False])
@pytest.mark.parametrize("pending", [1, 0])
def test_queue_may_pass_and_a_notified_pipe_does_not(pending: int, has_copied: bool) -> None:
    pipe = ListedPipe(PipeName("DB", "S", "P"), PipeTarget(("DB", "S", "T"), StageReference.parse("@S")))
    beside = PipeBeside(pipe, PipeStatus("RUNNING", pending), ("a",), ("a",))

    with pytest.raises(FilesGivenTwiceError) as caught:
        refuse_files_for_pipe(beside, table="T", has_copied=has_copied)

    assert caught.value.retryable is bool(pending)
    assert caught.value.retry_delay == (60.0 if pending else None)
    assert ("COPY has put" if has_copied else "COPY would put") in str(caught.value)
    assert ("a later try finds" in str(caught.value)) is bool(pending and has_copied)


@pytest.mark.parametrize("loader", [None, PIPE])
def test_files_with_loads_of_both_are_distinguished_from_those_of_the_other(loader: str | None) -> None:
    other = PIPE if loader is None else None
    loads = [
        _load("a", pipe=loader), _load("b", pipe=loader), _load("b", pipe=other), _load("c", pipe=other),
        _load("d", pipe=loader, location="DB.PUBLIC.OTHER/"), _load("d", pipe=other),
    ]  # fmt: skip

    with pytest.raises(FilesGivenTwiceError) as caught:
        refuse_files_of_others(_files(*"abcd"), iter(loads), table="T", now=NOW, loader=loader)

    assert caught.value.files == ("b",)
    assert not caught.value.retryable
    for word in ("1 of 4 files for T were loaded twice", "'b' by COPY", f"'b' by pipe {PIPE}", "force=True"):
        assert word in str(caught.value)


@pytest.mark.parametrize(("loads", "more"), [(3, None), (4, "and 1 more"), (5, "and 2 more")])
def test_three_loads_are_named_and_the_others_counted(loads: int, more: str | None) -> None:
    paths = tuple(f"{n}.csv" for n in range(loads))

    with pytest.raises(FilesGivenTwiceError) as caught:
        refuse_files_of_others(_files(*paths), [_load(path) for path in paths], table="T", now=NOW)

    named = "; ".join(f"'{path}' by pipe {PIPE} at 2026-01-30 12:00:00 UTC, 0 rows" for path in paths[:3])
    assert named in str(caught.value)
    assert not [path for path in paths[3:] if f"'{path}'" in str(caught.value)]
    assert (more or "0 rows. COPY") in str(caught.value)
    assert caught.value.files == paths

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
    unknown_since,
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


def test_paths_are_those_of_the_whole_stage_whatever_path_it_is_named_with() -> None:
    in_folder = _load("a.csv", location="DB.PUBLIC.S/in/")

    assert [load.path for load in _others(in_folder, files=_files(stage="@S/in"))] == ["in/a.csv"]


def test_a_file_at_the_top_of_the_stage_is_not_the_one_of_its_name_in_a_folder() -> None:
    both, in_folder = _files("a.csv", "in/a.csv"), _load("a.csv", location="DB.PUBLIC.S/in/")

    assert [load.path for load in _others(in_folder, files=both)] == ["in/a.csv"]
    assert _others(in_folder, files=_files("a.csv")) == []


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
        ('@"s"', "DB.PUBLIC.S/", False),
        ('@"s"', "DB.PUBLIC.s/", True),
        ('@"S"', "DB.PUBLIC.S/", True),
        ("@S", 'DB.PUBLIC."s"/', False),
        ("@s", 'DB.PUBLIC."S"/', True),
        ('@%"t"', "DB.PUBLIC.%T/", False),
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
        ("s3://b/x/", "s3://b/", "in/a.csv", False),
        ("s3://b/aX/", "s3://b/a/", "in/a.csv", False),
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


class TestPassedOver:
    """A load whose runs take more than one way leaves out what another way has loaded since it was staged."""

    STAGED = NOW - dt.timedelta(hours=5)

    def files(self, *paths: str, staged_at: dt.datetime | None = STAGED) -> StagedFiles:
        found = {path: StagedFile(path, staged_at=staged_at) for path in paths}
        return StagedFiles(found, StageReference.parse("@S"))

    def passed(self, files: StagedFiles, *loads: FileLoad, older: tuple[FileLoad, ...] = ()) -> set[str]:
        found = refuse_files_of_others(files, loads, table="T", now=NOW, older=older, passes_over=True)
        assert all(path == load.path for path, load in found.items())
        return set(found)

    @pytest.mark.parametrize("hours", [5, 4], ids=["at-once", "later"])
    def test_a_file_that_a_pipe_has_loaded_since_it_was_staged_is_passed_over(self, hours: int) -> None:
        load = _load("a", age=dt.timedelta(hours=hours))

        assert self.passed(self.files("a", "b"), load, replace(load, path="other")) == {"a"}

    def test_a_file_that_was_staged_again_since_a_pipe_loaded_it_is_refused(self) -> None:
        with pytest.raises(FilesGivenTwiceError, match="another way"):
            self.passed(self.files("a"), _load("a", age=dt.timedelta(hours=6)))

    @pytest.mark.parametrize("field", ["staged_at", "loaded_at"])
    def test_a_load_of_unknown_order_counts(self, field: str) -> None:
        files, load = self.files("a"), _load("a", age=dt.timedelta(hours=4))
        if field == "staged_at":
            files = self.files("a", staged_at=None)
        else:
            load = replace(load, loaded_at=None)

        assert self.passed(files, load) == {"a"}

    def test_a_file_that_copy_itself_remembers_is_left_to_copy(self) -> None:
        own = _load("a", age=dt.timedelta(hours=4), pipe=None)

        assert self.passed(self.files("a", "b"), own, _load("b", age=dt.timedelta(hours=4))) == {"b"}

    def test_a_file_that_copy_itself_has_forgotten_is_passed_over(self) -> None:
        files = self.files("a", staged_at=NOW - dt.timedelta(days=80))
        own = _load("a", age=dt.timedelta(days=70), pipe=None)

        assert self.passed(files, older=(own,)) == {"a"}
        assert self.passed(files, own) == {"a"}

    def test_files_that_are_passed_over_are_none_of_those_that_a_pipe_is_about_to_load(self) -> None:
        pipe = ListedPipe(PipeName("DB", "S", "P"), PipeTarget(("DB", "S", "T"), StageReference.parse("@S")))
        status = PipeStatus("RUNNING")
        beside = PipeBeside(pipe, status, ("a", "b"), ("b", "c"))

        assert beside.without({"b": _load("b")}) == PipeBeside(pipe, status, ("a",), ("c",))


def test_files_that_history_may_have_forgotten_are_those_staged_before_it_without_a_load() -> None:
    now = dt.datetime.now(dt.UTC)
    ages = {"old": dt.timedelta(days=20), "new": dt.timedelta(days=13), "loaded": dt.timedelta(days=20)}
    files = StagedFiles(
        {path: StagedFile(path, staged_at=now - age) for path, age in ages.items()}
        | {"unknown": StagedFile("unknown")},
        StageReference.parse("@S"),
    )

    assert unknown_since(files, [_load("loaded"), _load("elsewhere")]) == ["old", "unknown"]


@pytest.mark.parametrize("owner", ["", "OTHER.SCHEMA."])
def test_the_stage_of_a_load_is_compared_by_its_name_alone(owner: str) -> None:
    """A location may show the owner otherwise than the author writes it."""
    assert len(_others(_load(), files=_files(stage=f"@{owner}S"))) == 1


def test_a_load_that_the_other_loader_has_forgotten_is_not_refused() -> None:
    forgotten = _load(age=dt.timedelta(days=15))

    assert refuse_files_of_others(_files(), [forgotten], table="T", now=NOW) == {}

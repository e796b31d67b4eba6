"""Files that both COPY and a pipe are given: which loads of history are another loader's load of a file."""

import datetime as dt
from dataclasses import replace

import pytest

from airflow_provider_snowpipe.bulk.file_pipe_admin import ListedPipe, PipeStatus, PipeTarget
from airflow_provider_snowpipe.bulk.other_loaders import (
    PipeBeside,
    announced_to,
    not_loaded_by,
    refuse_files_for_pipe,
    refuse_files_of_others,
    remembered_loads,
    unknown_since,
)
from airflow_provider_snowpipe.bulk.staged_files import FileLoad, StagedFile, StagedFiles, StageReference
from airflow_provider_snowpipe.streaming.errors import FilesGivenTwiceError
from airflow_provider_snowpipe.streaming.names import PipeName

NOW = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
PIPE = "DB.PUBLIC.P"
RUNS = PipeStatus("RUNNING")


def load(path="in/a.csv", age=dt.timedelta(1), **fields):
    given = {"location": "DB.PUBLIC.S/", "status": "LOADED", "pipe": PIPE, "rows_loaded": 7, **fields}
    return FileLoad(path, loaded_at=NOW - age, **given)


def staged(*paths, stage="@S", url=None, at=None):
    found = {path: StagedFile(path, staged_at=at) for path in paths or ("in/a.csv",)}
    return StagedFiles(found, StageReference.parse(stage), url)


def others(*loads, files=None, loader=None):
    return [one for one in remembered_loads(files or staged(), loads, NOW) if one.pipe != loader]


def refusal(*loads, files=None, loader=None):
    given = files or staged("in/a.csv", "in/b.csv")
    with pytest.raises(FilesGivenTwiceError) as raised:
        refuse_files_of_others(given, loads, table="T", now=NOW, loader=loader)
    return raised.value


def listed(name="P", **fields):
    return ListedPipe(
        PipeName("DB", "S", name),
        PipeTarget(("DB", "S", "T"), StageReference.parse("@S"), **fields),
        NOW if fields else None,
    )


class TestRemembered:
    def test_loads_that_do_not_count_hide_no_later_one(self):
        counted = load()
        forgotten = load(age=dt.timedelta(days=15))
        for ignored in (load("x.csv"), load(status="LOAD_FAILED"), load(pipe=None), forgotten):
            assert others(ignored, counted) == [counted]
        assert refuse_files_of_others(staged(), [forgotten], table="T", now=NOW) == {}
        assert others(load(), files=StagedFiles({}, StageReference.parse("@S"))) == []

    def test_paths_are_those_of_the_whole_stage_whatever_path_it_is_named_with(self):
        in_folder = load("a.csv", location="DB.PUBLIC.S/in/")
        for files in (staged(), staged(stage="@S/in"), staged("a.csv", "in/a.csv")):
            assert [one.path for one in others(in_folder, files=files)] == ["in/a.csv"]
        assert others(in_folder, files=staged("a.csv")) == []

    @pytest.mark.parametrize(("pipe", "days"), [(PIPE, 14), (None, 64)])
    def test_loader_remembers_to_the_end_of_its_last_day(self, pipe, days):
        loader = PIPE if pipe is None else None
        last, past = dt.timedelta(days), dt.timedelta(days, seconds=1)
        assert len(others(load(age=last, pipe=pipe), loader=loader)) == 1
        assert others(load(age=past, pipe=pipe), loader=loader) == []

    def test_load_of_another_stage_or_url_does_not_count(self):
        for stage, location, same in [
            ("@S", "DB.PUBLIC.S/", True),
            ("@S", "@db.public.s/in/", True),
            ("@S", "DB.PUBLIC.S2/", False),
            # A location may show the owner otherwise than the author writes it.
            ("@OTHER.SCHEMA.S", "DB.PUBLIC.S/", True),
            ("@S", "", True),
        ]:
            path = "a.csv" if location.endswith("/in/") else "in/a.csv"
            found = others(load(path, location=location), files=staged(stage=stage))
            assert (stage, location, bool(found)) == (stage, location, same)
        for url, location, path, same in [
            ("s3://b/x/", "s3://b/x", "in/a.csv", True),
            ("s3://b/x", "s3://b/x/in/", "a.csv", True),
            ("s3://b/x/", "s3://b/y/", "in/a.csv", False),
            ("s3://b/aX/", "s3://b/a/", "in/a.csv", False),
            (None, "s3://b/x/", "in/a.csv", False),
        ]:
            found = others(load(path, location=location), files=staged(url=url))
            assert (url, location, bool(found)) == (url, location, same)

    def test_files_that_history_may_have_forgotten_are_those_staged_before_it_without_a_load(self):
        now = dt.datetime.now(dt.UTC)
        ages = {"old": 20, "new": 13, "loaded": 20}
        files = {path: StagedFile(path, staged_at=now - dt.timedelta(days)) for path, days in ages.items()}
        files["unknown"] = StagedFile("unknown")
        staged = StagedFiles(files, StageReference.parse("@S"))
        found = unknown_since(staged, [load("loaded"), load("elsewhere")])
        assert found == ["old", "unknown"]


class TestLoadedByOthers:
    def test_a_file_of_another_loader_is_refused_with_the_load_and_its_timestamp(self):
        error = refusal(load(), load("in/b.csv", pipe=None))
        assert "'in/a.csv' by pipe DB.PUBLIC.P at 2026-01-30 12:00:00 UTC, 7 rows" in str(error)
        assert (error.files, error.retryable) == (("in/a.csv",), False)
        error = refusal(load(pipe=None), loader=PIPE)
        assert "'in/a.csv' by COPY at " in str(error)
        assert "pipe DB.PUBLIC.P has no memory" in str(error)
        assert "by pipe DB.PUBLIC.OTHER" in str(refusal(load(pipe="DB.PUBLIC.OTHER"), loader=PIPE))
        for loader, other in [(None, PIPE), (PIPE, None), (PIPE, "DB.PUBLIC.OTHER")]:
            partly = load(pipe=other, status="PARTIALLY_LOADED")
            assert refusal(partly, loader=loader).files == ("in/a.csv",)
        refuse_files_of_others(staged(), [load()], table="T", now=NOW, loader=PIPE)

    def test_what_a_pipe_has_loaded_itself_it_does_not_load_again(self):
        rest = [load("in/b.csv", pipe=None), load("in/b.csv", status="LOAD_FAILED")]
        for stage, url, location, status in [
            ("@S", None, "DB.PUBLIC.S/in/", "LOADED"),
            ("@S/in", None, "DB.PUBLIC.S/in/", "PARTIALLY_LOADED"),
            ("@S", "s3://b/x/", "s3://b/x/in/", "LOADED"),
            ("@S", None, "DB.PUBLIC.OLD/in/", "LOADED"),  # a pipe of that name over another stage
        ]:
            files = staged("in/a.csv", "in/b.csv", stage=stage, url=url)
            left = not_loaded_by(files, [load("a.csv", location=location, status=status), *rest], PIPE)
            assert left == (["in/a.csv", "in/b.csv"] if "OLD" in location else ["in/b.csv"])


class TestPipeBeside:
    def test_pipe_is_notified_of_files_that_came_after_it(self):
        minute, second = dt.timedelta(minutes=1), dt.timedelta(seconds=1)
        pipe = listed(auto_ingest=True)
        files = {"old": NOW - minute - second, "minute": NOW - minute, "new": NOW + minute, "unknown": None}
        assert announced_to(pipe, files) == ("minute", "new", "unknown")
        assert announced_to(replace(pipe, created=None), files) == tuple(files)
        assert announced_to(listed(auto_ingest=False), files) == ()

    def test_files_that_a_pipe_is_about_to_load_are_refused(self):
        refuse_files_for_pipe(PipeBeside(listed(), RUNS, ("x",)), table="T")
        for pending, files, announced, words in [
            (2, "abc", "", "has 2 files in its queue, and 'a', 'b', 'c' may"),
            (None, "a", "bcdefgh", "notified of 'b', 'c', 'd', 'e', 'f' and 2 more by"),
            (0, "a", "b", "notified of 'b' by"),
        ]:
            status = None if pending is None else PipeStatus("RUNNING", pending)
            with pytest.raises(FilesGivenTwiceError) as raised:
                refuse_files_for_pipe(PipeBeside(listed(), status, tuple(files), tuple(announced)), table="T")
            assert words in str(raised.value)
            assert ("does not show" in str(raised.value)) is (status is None)
            assert raised.value.files == tuple(files if pending else announced)
        for status in (PipeStatus("RUNNING", 0), None):
            refuse_files_for_pipe(PipeBeside(listed(), status, ("a",)), table="T")

    def test_queue_of_a_pipe_is_no_reason_for_the_pipe_itself(self):
        own, other = (PipeBeside(listed(name), PipeStatus("RUNNING", 1), ("a",)) for name in "PQ")
        refuse_files_for_pipe(own, table="T", loader="DB.S.P")
        with pytest.raises(FilesGivenTwiceError, match=r"DB\.S\.Q[\s\S]*DB\.S\.P"):
            refuse_files_for_pipe(other, table="T", loader="DB.S.P")

    @pytest.mark.parametrize(("pending", "has_copied"), [(1, True), (1, False), (0, True)])
    def test_queue_may_pass_and_a_notified_pipe_does_not(self, pending, has_copied):
        beside = PipeBeside(listed(), PipeStatus("RUNNING", pending), ("a",), ("a",))

        with pytest.raises(FilesGivenTwiceError) as caught:
            refuse_files_for_pipe(beside, table="T", has_copied=has_copied)

        assert caught.value.retry_delay == (60.0 if pending else None)
        assert caught.value.retryable is bool(pending)
        assert ("COPY has put" if has_copied else "COPY would put") in str(caught.value)

    def test_files_that_are_left_out_are_none_of_those_that_a_pipe_is_about_to_load(self):
        beside = PipeBeside(listed(), RUNS, ("a", "b"), ("b", "c"))
        assert beside.without({"b": load("b")}) == PipeBeside(listed(), RUNS, ("a",), ("c",))


class TestLeftOut:
    """A load whose runs take more than one way leaves out what another way has loaded since it was staged."""

    STAGED = NOW - dt.timedelta(hours=5)

    def left_out(self, files, *loads, older=(), given=()):
        found = refuse_files_of_others(
            files, loads, table="T", now=NOW, older=older, passes_over=True, given=given
        )
        assert all(path == one.path for path, one in found.items())
        return set(found)

    def test_a_file_that_a_pipe_has_loaded_since_it_was_staged(self):
        files = staged("a", "b", at=self.STAGED)
        for seconds in (1, 3600):
            one = load("a", age=dt.timedelta(hours=5, seconds=-seconds))
            assert self.left_out(files, one, replace(one, path="other")) == {"a"}
        with pytest.raises(FilesGivenTwiceError, match="another way"):
            self.left_out(staged("a", at=self.STAGED), load("a", age=dt.timedelta(hours=6)))
        assert self.left_out(staged("a"), one) == {"a"}, "in an unknown order"
        assert self.left_out(files, replace(one, loaded_at=None)) == {"a"}

    @pytest.mark.parametrize("age", [dt.timedelta(hours=5), dt.timedelta(hours=5, seconds=-0.9)])
    def test_within_the_second_of_list_the_ledger_shows_whether_it_was_this_content(self, age):
        files, one = staged("a", at=self.STAGED), load("a", age=age)
        assert self.left_out(files, one, given={("a", "", PIPE)}) == {"a"}
        for other in ((), {("a", "another", PIPE)}, {("a", "", None)}, {("b", "", PIPE)}):
            with pytest.raises(FilesGivenTwiceError, match="another way"):
                self.left_out(files, one, given=other)

    def test_a_file_that_copy_itself_has_forgotten_and_not_one_that_it_remembers(self):
        hours = dt.timedelta(hours=4)
        files = staged("a", "b", at=self.STAGED)
        assert self.left_out(files, load("a", age=hours, pipe=None), load("b", age=hours)) == {"b"}
        files = staged("a", at=NOW - dt.timedelta(days=80))
        own = load("a", age=dt.timedelta(days=70), pipe=None)
        assert self.left_out(files, older=(own,)) == self.left_out(files, own) == {"a"}

"""``SnowpipeLoadOperator`` against a real local service: paths that follow each other, crashes between."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred

from airflow_provider_snowpipe.bulk import copy_run
from airflow_provider_snowpipe.hooks.stage_upload import StageUpload
from airflow_provider_snowpipe.operators.copy import SnowpipeCopyOperator
from airflow_provider_snowpipe.operators.file_boundary import FileBoundary
from airflow_provider_snowpipe.operators.load import SnowpipeLoadOperator
from airflow_provider_snowpipe.streaming.copy_intent import is_copy_intent
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SourcePositionError
from tests.airflow_connections import set_connection
from tests.file_loads import CHANNEL, Load, die_at, load
from tests.local_connection import ids
from tests.spark_job import wait_until
from tests.staged_files import put

__all__ = ["load", "set_connection"]


class TestBoundary:
    def test_copy_begins_after_the_last_streamed_file_and_moves_the_token(self, load: Load) -> None:
        load.write("1.ndjson", 3)
        load.stream("1.ndjson")
        load.write("2.ndjson")
        load.write("3.ndjson", 4)
        done = load.run()

        load.assert_every_row_is_there_once()
        assert load.token == "3.ndjson:4"
        assert (done["path"], done["rows_loaded"]) == ("copy", 6)
        assert done["channels"] == {
            CHANNEL: {"partition": "a", "from": "1.ndjson:3", "to": "3.ndjson:4", "files": 2, "rows": 6}
        }
        assert load.run()["rows_loaded"] == 0
        load.assert_every_row_is_there_once()

    def test_copy_begins_at_the_first_file_where_nothing_is_committed(self, load: Load) -> None:
        load.write("1.ndjson")
        load.write("2.ndjson")

        assert load.run()["rows_loaded"] == 4
        load.assert_every_row_is_there_once()
        assert load.token == "2.ndjson:2"

    def test_a_stage_may_have_a_path(self, load: Load) -> None:
        load.service.sql(f"CREATE STAGE {load.stage}")
        load.write("1.ndjson")
        done = load.run(stage=f"@{load.stage}/in")

        load.assert_every_row_is_there_once()
        assert done["channels"][CHANNEL]["rows"] == 2
        assert all(name.startswith("in/p_s_a/") for name in done["files"])

    def test_a_partly_streamed_file_is_refused_for_copy(self, load: Load) -> None:
        load.write("1.ndjson", 3)
        load.stream("1.ndjson", rows=2)
        with pytest.raises(AirflowFailException, match=r"PartlyStreamedError.*up to row 2.*path='stream'"):
            load.run()
        assert load.token == "1.ndjson:2"
        assert ids(load.service, load.table) == [0, 1]

    def test_many_files_are_staged_several_at_a_time_and_no_file_again(
        self, load: Load, caplog: pytest.LogCaptureFixture
    ) -> None:
        for number in range(12):
            load.write(f"{number:02}.ndjson")
        threads = set()
        put = StageUpload._put

        def seen(upload: StageUpload, *arguments: Any) -> bool:
            threads.add(threading.current_thread().name)
            return put(upload, *arguments)

        with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.INFO):
            patch.setattr(StageUpload, "_put", seen)
            die_at(patch, FileBoundary, "promise", load.run)
            load.run()

        load.assert_every_row_is_there_once()
        assert len(threads) > 1
        told = [message for message in caplog.messages if message.startswith("staged 12 of 12 files")]
        assert [message.rpartition(", ")[2] for message in told] == [
            "0 were there already",
            "12 were there already",
        ]

    def test_a_file_that_grows_while_it_is_staged_is_not_loaded(
        self, load: Load, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        load.write("1.ndjson")
        staged = StageUpload.run

        def growing(upload: StageUpload, files: Any) -> Any:
            done = staged(upload, files)
            with (load.folder / "a" / "1.ndjson").open("a") as lines:
                lines.write("{}")
            return done

        monkeypatch.setattr(StageUpload, "run", growing)
        with pytest.raises(AirflowFailException, match=r"grew from \d+ to \d+ bytes .*growing=True"):
            load.run()
        assert (ids(load.service, load.table), load.token) == ([], None)

    def test_blank_lines_behind_the_last_row_do_not_count(self, load: Load) -> None:
        load.write("1.ndjson")
        load.stream("1.ndjson")
        with (load.folder / "a" / "1.ndjson").open("a") as lines:
            lines.write("\n\n")
        load.write("2.ndjson")

        assert load.run()["rows_loaded"] == 2
        load.assert_every_row_is_there_once()

    def test_a_growing_file_is_left_to_the_stream(self, load: Load) -> None:
        load.write("1.ndjson")
        load.write("2.ndjson")
        load.run(source={"path": str(load.folder), "growing": True})

        assert load.token == "1.ndjson:2"
        assert ids(load.service, load.table) == [0, 1]

    @pytest.mark.parametrize("name", ["force", "purge"])
    def test_options_that_would_break_the_boundary_are_refused(self, load: Load, name: str) -> None:
        load.write("1.ndjson")
        with pytest.raises(AirflowFailException, match=f"options has {name}=True"):
            load.run(options={name: True})

    def test_files_that_copy_has_loaded_before_the_token_was_set_back_are_refused(self, load: Load) -> None:
        load.write("1.ndjson")
        load.run()
        load.set_token("1.ndjson:0")
        with pytest.raises(AirflowFailException, match=r"FilesGivenTwiceError.*take path='stream'"):
            load.run()
        assert load.token == "1.ndjson:0"

    @pytest.mark.parametrize("form", ["csv", "text"])
    def test_other_formats_make_the_rows_that_the_stream_makes(self, load: Load, form: str) -> None:
        (load.folder / "a").mkdir()
        if form == "csv":
            (load.folder / "a" / "1.csv").write_text('name,id\n"x, y",0\nz,1\n')
            load.run(source={"path": str(load.folder), "format": "csv"})
            rows = [{"ID": 0, "NAME": "x, y"}, {"ID": 1, "NAME": "z"}]
        else:
            (load.folder / "a" / "1.txt").write_text('x, "y"\n\\z\n')
            load.run(source={"path": str(load.folder), "format": "text", "text_column": "NAME"})
            rows = [{"ID": None, "NAME": "\\z"}, {"ID": None, "NAME": 'x, "y"'}]

        assert load.service.sql(f"SELECT ID, NAME FROM {load.table} ORDER BY ID, NAME") == rows
        assert load.token == f"1.{'csv' if form == 'csv' else 'txt'}:2"


def test_a_stream_that_commits_while_files_are_put_fails_the_load_before_copy(load: Load) -> None:
    load.write("1.ndjson", 3)
    load.stream("1.ndjson")
    load.write("2.ndjson", 4)
    load.service.admin("faults", set="slow-put=600")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(load.run)
        wait_until(lambda: not load.service.admin("faults")["faults"], seconds=60, what="the PUT")
        load.stream("2.ndjson")
        load.service.admin("faults", clear=True)

        with pytest.raises(Exception, match=r"'1\.ndjson:3'.*'2\.ndjson:4'"):
            running.result(60)

    load.assert_every_row_is_there_once()
    load.write("3.ndjson", 2)
    assert load.run()["rows_loaded"] == 2
    load.assert_every_row_is_there_once()


class TestCrashes:
    @pytest.fixture
    def began(self, load: Load) -> Load:
        load.write("1.ndjson", 3)
        load.stream("1.ndjson")
        load.write("2.ndjson")
        load.write("3.ndjson")
        return load

    def crash(self, load: Load, monkeypatch: pytest.MonkeyPatch, kind: type, name: str) -> None:
        die_at(monkeypatch, kind, name, lambda: load.run("crashed"))

    @pytest.mark.parametrize(
        ("kind", "name", "run"),
        [
            pytest.param(FileBoundary, "promise", "later", marks=pytest.mark.nightly),
            pytest.param(SnowpipeCopyOperator, "perform", "crashed", marks=pytest.mark.nightly),
            pytest.param(FileBoundary, "settle", "crashed", marks=pytest.mark.nightly),
            (FileBoundary, "settle", "later"),
        ],
        ids=["before-the-intent", "before-copy-retry", "after-copy-retry", "after-copy-next-run"],
    )
    def test_the_next_copy_finishes_what_a_crash_has_left(
        self, began: Load, monkeypatch: pytest.MonkeyPatch, kind: type, name: str, run: str
    ) -> None:
        self.crash(began, monkeypatch, kind, name)
        began.write("4.ndjson")
        done = began.run(run, try_number=2)

        began.assert_every_row_is_there_once()
        assert began.token == "4.ndjson:2"
        assert done["channels"][CHANNEL]["from"] == "1.ndjson:3"
        assert done["rows_loaded"] == 6

    def test_a_stream_of_its_own_is_stopped_by_the_intent(
        self, began: Load, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.crash(began, monkeypatch, FileBoundary, "settle")

        assert is_copy_intent(began.token)
        (position,) = began.operator()._boundary().positions()
        assert (str(position.committed), position.has_rest) == ("1.ndjson:3", False)

    @pytest.mark.nightly
    def test_a_file_that_changed_after_it_was_copied_is_refused(
        self, began: Load, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.crash(began, monkeypatch, FileBoundary, "settle")
        began.write("3.ndjson")
        with pytest.raises(AirflowFailException, match=r"SourcePositionError.*3.ndjson.* has changed"):
            began.run()
        assert ids(began.service, began.table) == began.ids[:-2]

    @pytest.mark.nightly
    def test_a_copy_that_failed_is_mended_by_mending_the_file(self, began: Load) -> None:
        file = began.folder / "a" / "3.ndjson"
        good = file.read_text()
        file.write_text(good + '{"ID": "seven"}\n')
        with pytest.raises(AirflowFailException, match=r"SqlError.*'seven'"):
            began.run()
        assert is_copy_intent(began.token)
        file.write_text(good)

        began.run()
        began.assert_every_row_is_there_once()
        assert began.token == "3.ndjson:2"

    def test_a_writer_that_comes_while_files_are_copied_is_told_of(
        self, began: Load, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        copying = SnowpipeCopyOperator.perform

        def with_writer(operator: Any, context: Any) -> Any:
            began.stream("2.ndjson")
            return copying(operator, context)

        monkeypatch.setattr(SnowpipeCopyOperator, "perform", with_writer)
        with pytest.raises(Exception, match=r"'2\.ndjson:2'"):
            began.run()

    @pytest.mark.spark
    @pytest.mark.nightly
    def test_a_stream_after_a_crash_finishes_the_copy_and_goes_on_behind_it(
        self, began: Load, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.crash(began, monkeypatch, SnowpipeCopyOperator, "perform")
        began.write("4.ndjson", 5)
        done = began.run(path="stream")

        began.assert_every_row_is_there_once()
        assert began.token == "4.ndjson:5"
        assert (done["path"], done["rows"]) == ("stream", 5)
        assert began.ti.xcoms["outcome"]["actual"]["rows"] == 5
        began.write("5.ndjson")
        assert began.run()["rows_loaded"] == 2
        began.assert_every_row_is_there_once()


class TestChoice:
    def test_a_backfill_goes_by_copy_and_says_why(self, load: Load) -> None:
        load.write("1.ndjson")
        operator = load.operator(path="auto")
        operator.execute(load.context(kind="backfill"))
        plan, outcome = load.ti.xcoms["plan"], load.ti.xcoms["outcome"]

        assert (plan["path"], plan["is_forced"]) == ("copy", False)
        assert "a backfill" in plan["reasons"][0]
        assert plan["expected"]["bytes"] == (load.folder / "a" / "1.ndjson").stat().st_size
        assert (outcome["path"], outcome["planned"]) == ("copy", "copy")
        assert set(outcome["estimated"]) == {"rows", "bytes", "seconds", "credits"}
        assert outcome["actual"]["rows"] == 2
        assert outcome["actual"]["seconds"] > 0

    def test_a_trickle_is_streamed(self, load: Load) -> None:
        load.write("1.ndjson")
        choice = load.operator(path="auto")._choice({}, load.context())

        assert choice.path() == ("stream", None)

    def test_what_is_streamed_in_part_is_finished_by_the_stream_although_the_plan_says_copy(
        self, load: Load
    ) -> None:
        load.write("1.ndjson", 3)
        load.stream("1.ndjson", rows=2)
        path, why = load.operator(path="auto")._choice({"backfill": True}, load.context()).path()

        assert path == "stream"
        assert "up to row 2" in str(why)

    def test_nothing_left_needs_no_spark(self, load: Load) -> None:
        load.write("1.ndjson")
        load.stream("1.ndjson")

        assert load.run(path="auto")["rows_loaded"] == 0

    def test_the_path_of_the_run_before_is_kept_in_mind(self, load: Load) -> None:
        load.write("1.ndjson")
        before = {"path": "copy", "is_forced": False}
        context = load.context(before=before)

        assert load.operator()._choice({}, context).before == "copy"
        assert load.operator(remember=False)._choice({}, context).before is None

    def test_files_in_a_stage_are_copied(self, load: Load) -> None:
        load.service.sql(f"CREATE STAGE {load.table}_S")
        put(load.service, load.folder, f"{load.table}_S", {"in/a.csv": "7,x\n"})
        options = {"file_format": {"type": "CSV"}}
        done = load.run(source=f"@{load.table}_S/in", path="auto", options=options)

        assert (done["path"], done["rows_loaded"], load.ti.xcoms["plan"]["path"]) == ("copy", 1, "copy")
        with pytest.raises(AirflowFailException, match="files in a stage are copied"):
            load.run(source=f"@{load.table}_S/in", path="stream")

    def test_a_shape_that_nobody_knows_is_refused(self, load: Load) -> None:
        source = {"kind": "table", "path": str(load.folder), "offset_column": "ID"}
        with pytest.raises(AirflowFailException, match="whose shape is not known"):
            load.run(source=source, path="auto")

    def test_a_dry_run_changes_nothing(self, load: Load) -> None:
        load.write("1.ndjson")
        load.operator(path="auto").dry_run()

        assert ids(load.service, load.table) == []

    @pytest.mark.parametrize(
        "arguments",
        [{"policy": {"path": "copy"}}, {"policy": {"speed": 1}}, {"source": {"paths": "x"}}],
        ids=["path-twice", "policy", "source"],
    )
    def test_arguments_that_cannot_be_are_refused_when_the_dag_is_read(
        self, arguments: dict[str, Any]
    ) -> None:
        with pytest.raises(ConfigurationError):
            SnowpipeLoadOperator(task_id="load", table="T", **{"source": "/x", **arguments})

    def test_a_folder_that_is_not_there_is_an_error(self, load: Load) -> None:
        with pytest.raises((AirflowFailException, SourcePositionError), match="does not exist"):
            load.run(source=str(load.folder / "gone"))


def test_a_deferred_copy_comes_back_for_its_result(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import aclosing

    load.write("1.ndjson")
    operator = load.operator(deferrable=True)
    with monkeypatch.context() as patch:
        patch.setattr(copy_run, "_FIRST_LOOKS", ())
        with pytest.raises(TaskDeferred) as deferred:
            operator.execute(load.context())

    async def first() -> Any:
        trigger: Any = deferred.value.trigger
        async with aclosing(trigger.run()) as events:
            return await anext(events)

    event = asyncio.run(first())
    done = load.operator(deferrable=True).execute_complete(load.context(), event.payload)
    load.assert_every_row_is_there_once()
    assert (done["rows_loaded"], load.token) == (2, "1.ndjson:2")

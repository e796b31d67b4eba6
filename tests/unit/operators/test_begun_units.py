"""A load that a worker has begun and not ended: whoever comes next ends it, by COPY and by a pipe."""

import datetime as dt
import hashlib
import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, TaskDeferred

from airflow_provider_snowpipe.bulk.staged_files import COPY_HISTORY, FileLoad
from airflow_provider_snowpipe.cli.definition import parser
from airflow_provider_snowpipe.operators.load import SnowpipeLoadOperator
from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from airflow_provider_snowpipe.spark.sources.files.storage import LOG_FOLDER
from airflow_provider_snowpipe.streaming import errors
from tests.airflow_version import AIRFLOW
from tests.fake_account import AFTER, BEFORE, Pipe, StatementError
from tests.loaded_folder import variables
from tests.unit.operators.account_in_task import task_context
from tests.unit.operators.unit_load import BY_NAME, PIPE, PIPE_COPY, STAGE, A, Load, MakeLoad, Patch, begun

__all__ = ["variables"]


class TestCrashes:
    """A worker that dies after any call, which is before the next one, and the retry or run that follows."""

    @pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.nightly)], ids=["some", "all"])
    @pytest.mark.parametrize(("path", "run"), [("copy", "r1"), ("copy", "r2"), ("pipe", "r1")])
    def test_the_next_load_leaves_rows_once(self, any_load: MakeLoad, path: str, run: str, step: int) -> None:
        """Each call is a point of a crash; another run begins with another one of them."""
        undisturbed = begun(any_load("0", path))
        undisturbed.run()
        calls = len(undisturbed.account.calls)
        assert calls > 20
        for nth in range(1 + (run == "r2"), calls + 1, step):
            load = begun(any_load(str(nth), path))
            load.crash(None, AFTER, nth)
            load.write("a", "4.ndjson")
            done = load.run(run, try_number=2 if run == "r1" else 1)

            load.assert_every_row_is_there_once()
            by = "COPY" if path == "copy" else "pipe P"
            loaded = {f"a/{number}.ndjson": by for number in (2, 3, 4)}
            assert load.states == {"a/1.ndjson": "stream taken", **loaded, "b/1.ndjson": by}, nth
            assert sum(done["partitions"].values()) == done["rows_loaded"]

    def test_names_in_other_scripts_are_not_taken_for_each_other(self, load: Load) -> None:
        names = {"東京": "一月 1.ndjson", "大阪": "二月_1.ndjson", "a b": "1 .ndjson", "a_b": "1_.ndjson"}
        for partition, name in names.items():
            load.write(partition, name)
            load.write(partition, f"2{name}")
        load.crash("submit", AFTER)
        load.run(try_number=2)
        load.assert_every_row_is_there_once()

    def test_the_stream_finishes_what_was_begun_and_no_more(self, load: Load) -> None:
        begun(load).crash("submit", BEFORE)
        later = load.write("a", "4.ndjson")
        operator = load.operator(path="stream")
        with pytest.raises(errors.SourceUnavailableError, match="SnowpipeLoadOperator"):
            operator.units().source.claim({}, {})
        operator._file_loading(task_context("r2", 1, load.began)).finish(operator.units())
        assert sorted(load.account.rows + later) == sorted(load.written)
        assert "a/4.ndjson" not in load.states
        with pytest.raises(errors.SourceChangedError, match="SnowpipeLoadOperator"):
            operator.units().source.claim({}, {}, logs={})


class TestBegun:
    """A load that the log gives to COPY, and is not known to have ended."""

    @pytest.fixture(autouse=True)
    def files(self, load: Load) -> None:
        begun(load)

    def test_it_is_given_up_where_copy_fails_and_a_repaired_file_is_loaded(self, load: Load) -> None:
        good = {load.folder / path: (load.folder / path).read_text() for path in ("a/3.ndjson", "b/1.ndjson")}
        for file in good:
            file.write_text('{"ID": "bad"}\n')
        before = list(load.account.rows)
        with pytest.raises(AirflowFailException, match="SqlError"):
            load.run()
        assert load.states == {"a/1.ndjson": "stream taken"}
        assert load.account.rows == before
        for file, text in good.items():
            file.write_text(text)
        load.run("r2")

        load.assert_every_row_is_there_once()
        assert load.positions == {A: "1.ndjson:3"}

    @pytest.mark.parametrize("rebind", [None, "continue", "restart"])
    def test_of_another_folder_is_finished_by_its_own_task(self, load: Load, rebind: str | None) -> None:
        load.crash("submit", BEFORE)
        copied = Path(shutil.copytree(load.folder, load.folder.with_name("elsewhere")))
        with pytest.raises(AirflowFailException, match="SourceChangedError"):
            load.run("r2", source={"path": str(copied)}, rebind=rebind)
        load.run("r3")
        load.assert_every_row_is_there_once()

    def test_a_loaded_file_that_has_other_content_since_is_refused(self, load: Load) -> None:
        load.crash("submit", AFTER)
        loaded = list(load.account.rows)
        (load.folder / "a" / "2.ndjson").write_text('{"ID": 77}\n')
        for _ in range(2):
            with pytest.raises(AirflowFailException, match=r"SourcePositionError.*overwritten"):
                load.run("r2")
            assert (load.account.rows, load.states["a/2.ndjson"]) == (loaded, "COPY")

    def test_a_file_that_is_gone_and_not_loaded_is_refused(self, load: Load) -> None:
        load.crash("submit", BEFORE)
        file = load.folder / "a" / "3.ndjson"
        good = file.read_text()
        file.unlink()
        with pytest.raises(AirflowFailException, match=r"3\.ndjson.*on_data_loss='skip'"):
            load.run("r2")
        assert load.states["a/2.ndjson"] == "COPY taken"
        file.write_text(good)
        load.run("r3")
        load.assert_every_row_is_there_once()

    def test_a_second_task_joins_the_load_of_the_first(self, load: Load) -> None:
        """It comes when the first one has written the log, and not staged a file yet."""
        second: list[Any] = []
        load.account.meanwhile("PUT", BEFORE, lambda: second.append(load.run("r2")["rows_loaded"]))
        assert (load.run()["path"], second) == ("copy", [6])
        load.assert_every_row_is_there_once()

    @pytest.mark.parametrize("call", ["PUT", "submit"])
    def test_a_task_whose_load_is_given_up_loads_nothing(self, load: Load, call: str) -> None:
        """It has written the log, and not planned its COPY; or has planned it, and not begun."""

        def another() -> None:
            file = load.folder / "a" / "2.ndjson"
            file.write_text(file.read_text().replace("}", " }"))  # so that another task gives it up
            load.written = [one for one in load.written if one not in ('{"ID": 4}', '{"ID": 5}')]
            load.written += file.read_text().splitlines()
            load.run("r2")

        load.account.meanwhile(call, BEFORE, another)
        with pytest.raises((errors.SqlError, AirflowFailException), match=r"given|written to"):
            load.run()
        load.run("r3")
        load.assert_every_row_is_there_once()
        assert not any("taken" in one for name, one in load.states.items() if name != "a/1.ndjson")

    def test_it_stays_where_copy_left_out_a_file_that_it_may_have_forgotten(self, load: Load) -> None:
        """As where a try died between PUT and COPY, and the next one comes after 64 days."""
        load.crash("submit", BEFORE)
        for path, content in load.account.stages[STAGE].items():
            load.account._copied.add((STAGE, path, hashlib.md5(content, usedforsecurity=False).hexdigest()))
        with pytest.raises(AirflowFailException, match="load_uncertain_files"):
            load.run(try_number=2)
        load.account._copied.clear()
        load.run(try_number=3, options={"load_uncertain_files": True})
        load.assert_every_row_is_there_once()

    def test_a_table_that_was_emptied_before_the_retry_gets_its_rows(self, load: Load) -> None:
        load.crash("submit", AFTER)
        load.account.rows.clear()
        load.account.history.clear()
        load.account._copied.clear()
        load.run("r2")
        assert sorted(load.account.rows) == sorted(load.written[3:])

    def test_rows_that_were_deleted_before_it_do_not_count(self, load: Load) -> None:
        load.run()
        del load.account.rows[:5]
        load.write("a", "4.ndjson")
        load.crash("submit", AFTER)
        load.run("r2")
        assert sorted(load.account.rows) == sorted(load.written[5:])

    def test_it_is_known_to_copy_where_the_ledger_is_lost(self, load: Load) -> None:
        load.crash("submit", AFTER)
        load.account.ledger.rows.clear()
        load.run("r2")
        load.assert_every_row_is_there_once()

    def test_it_is_ended_by_its_own_ledger_where_another_task_has_another(self, load: Load) -> None:
        load.crash("submit", AFTER)
        load.account._copied.clear()
        load.account.fault("LEDGER", BEFORE, StatementError(3001, "Insufficient privileges"), 2)
        with pytest.raises(AirflowFailException, match=r"SNOWPIPE_LOADS.*GRANT SELECT, INSERT, UPDATE"):
            load.run("r2", ledger_table="OTHER")
        load.run("r2", ledger_table="OTHER")
        load.assert_every_row_is_there_once()

    def test_of_a_dead_worker_its_log_is_on_record(self, load: Load, variables: dict[str, str]) -> None:
        load.crash("submit", AFTER)
        (log,) = load.operator().units().kept["source_logs"]
        for _ in range(2):
            assert any(log in text for text in variables.values())
            variables.clear()
            load.run("r2")
        shutil.rmtree(load.folder / LOG_FOLDER)
        load.run("r3", rebind="restart")
        assert any(log in text for text in variables.values()), "loads of other files were by it"

    @pytest.mark.usefixtures("variables")
    def test_a_stream_of_all_files_ends_that_of_a_lost_log(self, load: Load, set_connection: Any) -> None:
        set_connection("spark_default", conn_type="spark", host="yarn")
        rows, load.account.holds = list(load.account.rows), True
        with pytest.raises(TaskDeferred):
            load.run(deferrable=True, ledger_table="OTHER")
        shutil.rmtree(load.folder / LOG_FOLDER)
        source = {"path": f"{load.folder}/../{load.folder.name}/"}
        given = {"task_id": "s", "source_name": "s", "channel_prefix": "p", "snowflake_conn_id": "account"}
        stream = SnowpipeStreamOperator(table="T", source=source, rebind="restart", **given)
        stream.spark_binary = "false"
        with pytest.raises(AirflowException):
            stream.execute(task_context())
        load.account.finish()
        assert load.account.rows == rows

    @pytest.mark.parametrize("empties", [False, True])
    @pytest.mark.parametrize(("call", "when"), [("submit", AFTER), ("submit", BEFORE), ("PUT", BEFORE)])
    def test_by_a_worker_of_a_lost_log_the_new_one_gets_no_word(
        self, any_load: MakeLoad, call: str, when: str, empties: bool
    ) -> None:
        """It has loaded its file, or is given up, and then would write what became of its first unit."""
        load = any_load("lost", "copy")
        load.write("b", "1.ndjson")

        def restart() -> None:
            shutil.rmtree(load.folder / LOG_FOLDER)
            load.write("a", "1.ndjson")  # which is the first unit now
            if not empties:
                return load.crash("PUT", BEFORE, run="r2", rebind="restart")
            for one in (load.account.rows, load.account.history, load.account._copied):
                one.clear()
            load.run("r2", rebind="restart")

        load.account.meanwhile(call, when, restart)
        with pytest.raises(AirflowFailException, match="SourceChangedError"):
            load.run()
        load.run("r3")
        once = when == BEFORE or empties  # otherwise a restart loads again what is in the table
        assert sorted(load.account.rows) == sorted([*load.written, *([] if once else load.written[:2])])

    @pytest.mark.parametrize("ended", [False, True])
    @pytest.mark.parametrize("path", ["copy", "stream"])
    def test_a_new_table_has_it_as_the_author_says(self, any_load: MakeLoad, ended: bool, path: str) -> None:
        for rebind in ("continue", "restart"):
            load = any_load(f"{rebind}", "copy")
            for partition, name in (("a", "2.ndjson"), ("a", "3.ndjson"), ("b", "1.ndjson")):
                load.write(partition, name)
            if ended:
                load.run()
            else:
                load.crash("submit", AFTER)
            load.account.created += dt.timedelta(seconds=1)
            if rebind == "restart":
                load.account.rows.clear()
                load.account._copied.clear()
            load.write("a", "4.ndjson")
            with pytest.raises(AirflowFailException, match=r"SourcePositionError.*rebind='continue'"):
                load.run("r2", path=path)
            for run in ("r3", "r4"):
                load.run(run, rebind=rebind)
                load.assert_every_row_is_there_once()

    @pytest.mark.parametrize("path", ["copy", "pipe"])
    def test_it_is_ended_where_it_was_staged(self, any_load: MakeLoad, path: str) -> None:
        for number, (before, after) in enumerate([("@S/x", "@S/y"), ("@S/x", "@S"), ("@%T", "@S")]):
            load = any_load(str(number), path)
            load.write("a", "1.ndjson")
            pipe = Pipe(f"{PIPE_COPY}/x FILE_FORMAT = (TYPE = JSON) {BY_NAME}")
            load.account.pipes[PIPE] = pipe
            load.crash("submit" if path == "copy" else "insertFiles", AFTER, stage=before)
            load.account.pipes[PIPE] = Pipe(pipe.statement.replace("/x", after[2:]))
            load.write("a", "2.ndjson")
            load.run("r2", stage=after)
            load.assert_every_row_is_there_once()

    def test_it_is_not_loaded_again_by_a_restart_in_another_table(self, any_load: MakeLoad) -> None:
        load = any_load("other", "copy")
        load.write("a", "1.ndjson")
        load.run()
        load.write("a", "4.ndjson")
        load.crash("submit", AFTER)
        load.account.created += dt.timedelta(seconds=1)
        load.account.rows.clear()
        load.account._copied.clear()
        units = load.operator(rebind="restart").units()
        load.run("r2", rebind="restart")
        load.assert_every_row_is_there_once()
        units.require_table()  # of a run that has begun before, and comes late
        load.run("r3")
        load.assert_every_row_is_there_once()

    def test_a_table_that_is_replaced_while_the_task_is_deferred_is_refused(self, load: Load) -> None:
        load.run()
        load.write("a", "4.ndjson")
        load.account.holds = True
        operator, context = load.operator(deferrable=True), task_context("r2")
        with pytest.raises(TaskDeferred) as deferred:
            operator.execute(context)
        load.account.created += dt.timedelta(seconds=1)
        load.account.finish()
        with pytest.raises(AirflowFailException, match="was replaced"):
            operator.execute_complete(context, {"status": "success"}, **(deferred.value.kwargs or {}))

    def test_a_second_load_that_begins_with_an_older_list_is_no_lost_log(self, load: Load) -> None:
        load.account.meanwhile("status", BEFORE, lambda: load.run("r2"))
        load.run()
        load.assert_every_row_is_there_once()

    def test_a_task_of_another_run_joins_its_statement(self, load: Load, monkeypatch: Patch) -> None:
        load.account.holds = True
        with pytest.raises(TaskDeferred):
            load.run(deferrable=True)
        monkeypatch.setattr("time.sleep", lambda _: load.account.finish())
        assert load.run("r2")["rows_loaded"] == 6
        load.assert_every_row_is_there_once()
        assert load.account.calls.count("cancel") == 0

    def test_a_task_that_comes_back_loads_what_came_and_does_not_leave_again(self, load: Load) -> None:
        load.account.holds = True
        operator, context = load.operator(deferrable=True), task_context("r1", 1, load.began)
        with pytest.raises(TaskDeferred) as deferred:
            operator.execute(context)
        load.account.finish()
        load.write("a", "4.ndjson")
        done = operator.execute_complete(context, {"status": "success"}, **(deferred.value.kwargs or {}))
        assert done["rows_loaded"] == 8
        load.assert_every_row_is_there_once()


class TestPipe:
    """What a load by the pipe does not share with one by COPY; both loaders in turn."""

    @pytest.fixture(autouse=True)
    def files(self, piped: Load) -> None:
        begun(piped)

    def refused(self, piped: Load, words: str, **arguments: Any) -> None:
        rows = list(piped.account.rows)
        with pytest.raises(AirflowFailException, match=words):
            piped.run("refused", **arguments)
        assert piped.account.rows == rows
        assert "insertFiles" not in piped.account.calls

    def test_files_that_wait_in_its_queue_are_loaded_in_no_other_way(self, piped: Load) -> None:
        piped.account.holds = True
        for path in ("pipe", "copy"):
            with pytest.raises(errors.FilesNotLoadedError):
                piped.run(path, path=path, file_pipe="P", poll_interval=0.01, load_timeout=0.05)
        assert piped.states["a/2.ndjson"] == "pipe P taken"
        piped.account.finish()
        piped.write("a", "4.ndjson")
        piped.run("r2", path="copy", file_pipe="P", poll_interval=0.01)
        piped.assert_every_row_is_there_once()
        assert {one["pipe_name"] for one in piped.account.history} == {"P", None}

    def test_a_file_that_changed_while_its_content_waits_is_refused(self, piped: Load) -> None:
        piped.account.holds = True
        with pytest.raises(errors.FilesNotLoadedError):
            piped.run(load_timeout=0.05)
        del piped.account.calls[:]
        file = piped.folder / "a" / "3.ndjson"
        good = file.read_text()
        file.write_text(f"{good[::-1]}\n")
        with pytest.raises(errors.FilesGivenTwiceError, match="may still load"):
            piped.run("refused")
        assert "insertFiles" not in piped.account.calls
        file.write_text(good)
        piped.account.finish()
        piped.run("r2")

        piped.assert_every_row_is_there_once()

    def test_a_file_that_failed_in_it_is_loaded_once_fixed(self, piped: Load) -> None:
        file = piped.folder / "a" / "3.ndjson"
        good = file.read_text()
        file.write_text("bad\n")
        with pytest.raises(AirflowFailException, match="FilesRejectedError"):
            piped.run()
        assert piped.states["a/3.ndjson"] == "pipe P taken"
        file.write_text(good)
        piped.run("r2")
        piped.assert_every_row_is_there_once()
        assert piped.states["a/3.ndjson"] == "pipe P"

    @pytest.mark.usefixtures("variables")
    def test_a_file_that_failed_in_it_is_new_to_a_log_that_is_made_again(self, any_load: MakeLoad) -> None:
        load = any_load("lost", "pipe")
        load.write("a", "1.ndjson")
        load.append("a/2.ndjson", "bad\n")
        with pytest.raises(AirflowFailException, match="FilesRejectedError"):
            load.run()
        shutil.rmtree(load.folder / LOG_FOLDER)
        words = f"files rebuild {load.folder} --conn-id account --table T -y"
        given = parser().parse_args(words.split())
        given.func(given)
        assert load.states == {"a/1.ndjson": "pipe P"}
        (load.folder / "a/2.ndjson").write_text("")
        load.write("a", "2.ndjson")
        load.run("r2")
        load.assert_every_row_is_there_once()

    def test_what_it_has_forgotten_is_not_guessed(self, piped: Load, monkeypatch: Patch) -> None:
        piped.crash("insertFiles", AFTER)
        (entry,) = piped.account.ledger.rows
        del piped.account.calls[:]
        monkeypatch.setattr("airflow_provider_snowpipe.operators.file_loading.REMEMBERED", dt.timedelta())
        piped.account.history.clear()
        with pytest.raises(errors.FilesGivenTwiceError, match=r"14 days.*STATE to 'loaded'"):
            piped.run("refused")
        assert "PUT" not in piped.account.calls
        entry["state"] = "loaded"
        piped.run("r2")
        piped.assert_every_row_is_there_once()
        assert piped.states["a/3.ndjson"] == "pipe P"

    def test_what_it_was_given_long_ago_is_loaded_again(self, piped: Load, monkeypatch: Patch) -> None:
        piped.account.holds = True
        piped.crash("insertFiles", AFTER)
        shutil.rmtree(piped.folder / LOG_FOLDER)
        piped.account.holds, forgets = False, "airflow_provider_snowpipe.bulk.source_loads.REMEMBERED"
        monkeypatch.setattr(forgets, dt.timedelta())
        assert piped.run("r3", path="copy", rebind="restart")["rows_loaded"] == len(piped.written)

    @pytest.mark.parametrize("holds", [False, True])
    def test_what_a_dropped_pipe_has_not_loaded_the_ledger_decides(self, piped: Load, holds: bool) -> None:
        piped.account.holds = holds
        piped.crash("insertFiles", AFTER)
        piped.account.holds = False
        pipe = piped.account.pipes.pop(PIPE)
        if holds:
            pipe.queue.clear()
            with pytest.raises(errors.FilesGivenTwiceError, match="STATE"):
                piped.run("refused", path="copy")
            piped.account.ledger.rows[0]["state"] = "given up"
        piped.run("r2", path="copy")
        piped.assert_every_row_is_there_once()

    def test_what_no_pipe_can_take_is_refused_with_the_remedy(self, piped: Load) -> None:
        table = {"kind": "table", "query": "Q", "offset_column": "ID"}
        for arguments, words in (
            ({"file_pipe": None}, "SnowpipePipeOperator"),
            ({"file_pipe": "NOWHERE"}, "NOWHERE"),
            ({"options": {"on_error": "CONTINUE"}}, "statement"),
            ({"source": "@PS_2/in"}, "PS_2/in"),
            ({"source": table, "shape": {"rows": 1}}, "path='stream'"),
            ({"source": "s3://lake/in"}, "external stage.*path='stream'"),
            ({"source": {"path": "gs://lake", "conn_id": "l"}, "path": "auto"}, "external stage"),
        ):
            self.refused(piped, words, **arguments)
        for pipe, words in (
            (Pipe("COPY INTO T2 FROM @PS"), "T2"),
            (Pipe("COPY INTO T FROM @PS", auto_ingest=True), "AUTO_INGEST"),
        ):
            piped.account.pipes[PIPE] = pipe
            self.refused(piped, words)
        assert piped.positions[A] == "1.ndjson:3"

    def waiting(self, piped: Load) -> tuple[SnowpipeLoadOperator, Any, TaskDeferred]:
        piped.account.holds = True
        operator, context = piped.operator(deferrable=True, load_timeout=77.0), task_context("r1")
        with pytest.raises(TaskDeferred) as deferred:
            operator.execute(context)
        assert piped.states["a/2.ndjson"] == "pipe P taken"
        return operator, context, deferred.value

    def test_what_load_history_does_not_know_yet_is_taken_from_the_trigger(self, piped: Load) -> None:
        operator, context, deferred = self.waiting(piped)
        piped.account.finish()
        outcomes = {
            load.path: load.result()
            for load in (FileLoad.read(row, COPY_HISTORY) for row in piped.account.history)
        }
        piped.account.history.clear()
        event = {"status": "success", "files": outcomes}
        done = operator.execute_complete(context, event, **(deferred.kwargs or {}))
        piped.assert_every_row_is_there_once()
        assert (done["rows_loaded"], piped.states["a/3.ndjson"]) == (6, "pipe P")

    def test_a_wait_that_takes_too_long_names_the_files_and_no_other_failure(self, piped: Load) -> None:
        operator, context, _ = self.waiting(piped)
        late = "Trigger timeout" if AIRFLOW >= (3, 0) else "Trigger/execution timeout"
        for words in (late, "Trigger failure"):
            with pytest.raises(AirflowException) as raised:
                operator.resume_execution("__fail__", {"error": words}, context)
            assert ("FilesNotLoadedError" in str(raised.value)) == (words == late)

    def test_the_worker_waits_for_all_behind_a_begun_load(self, piped: Load, monkeypatch: Patch) -> None:
        """A task that comes back knows only of the load that it had left for."""
        piped.path, account = "copy", piped.account
        piped.crash("submit", BEFORE)
        piped.path = "pipe"
        piped.write("a", "4.ndjson")
        account.holds = True
        pauses = itertools.count(1)

        def loads_end_in_time(_: float) -> None:
            if next(pauses) == 30:
                account.finish()

        monkeypatch.setattr("time.sleep", loads_end_in_time)
        value = piped.operator(deferrable=True).execute(task_context("r1", 2, piped.began))

        assert value["rows_loaded"] == len(piped.written) - 3
        assert (piped.states["b/1.ndjson"], piped.states["a/4.ndjson"]) == ("COPY", "pipe P")

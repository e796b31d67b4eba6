"""``SnowpipeCopyOperator`` against a real local service: once per run, whatever is lost on the way."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import os
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import aclosing
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import snowflake.connector
from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred

from airflow_provider_snowpipe.bulk import copy_run, copy_statement
from airflow_provider_snowpipe.bulk.stage import StageReference
from airflow_provider_snowpipe.bulk.statement_client import StatementClient, StatementState
from airflow_provider_snowpipe.bulk.two_loaders import StagedPaths, refuse_files_of_others
from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.operators.copy import SnowpipeCopyOperator
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    FilesGivenTwiceError,
    NothingStagedError,
    SqlError,
)
from airflow_provider_snowpipe.triggers.statement import SnowpipeStatementTrigger
from tests.airflow_connections import SetConnection, set_connection
from tests.local_connection import TaskInstance, connect, ids
from tests.local_service import LocalService
from tests.staged_files import submit

__all__ = ["set_connection"]

_numbers = itertools.count(1)
CSV = {"file_format": {"type": "CSV"}}


class Place:
    """A table and a stage of their own for a test."""

    def __init__(self, service: LocalService, folder: Path, conn_id: str) -> None:
        self.service, self.folder, self.conn_id = service, folder, conn_id
        self.table = f"COPIED{next(_numbers)}"
        self.stage = f"{self.table}_STAGE"
        self.began = dt.datetime.now(dt.UTC)  # of every run of this place
        service.sql(f"CREATE TABLE {self.table} (ID INTEGER, NAME VARCHAR)")
        service.sql(f"CREATE STAGE {self.stage}")

    def put(self, files: Mapping[str, str], path: str = "in") -> None:
        """Stage files below a path by one PUT."""
        folder = self.folder / self.table / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_text(content)
        with snowflake.connector.connect(**self.service.connector_arguments) as connection:
            connection.cursor().execute(
                f"PUT 'file://{folder}/*' '@{self.stage}/{path}' AUTO_COMPRESS = FALSE OVERWRITE = TRUE"
            )

    def operator(self, **arguments: Any) -> SnowpipeCopyOperator:
        given = {"stage": f"@{self.stage}", "options": CSV, "table": self.table, **arguments}
        return SnowpipeCopyOperator(task_id="copy", snowflake_conn_id=self.conn_id, **given)

    def copy(self, run: str = "r1", try_number: int = 1, **arguments: Any) -> dict[str, Any]:
        return self.operator(**arguments).execute(self.context(run, try_number))

    def context(self, run: str = "r1", try_number: int = 1) -> Any:
        ti = TaskInstance()
        ti.run_id, ti.try_number = run, try_number  # type: ignore[attr-defined]
        return {"ti": ti, "dag_run": SimpleNamespace(start_date=self.began)}

    def ids(self) -> list[int]:
        return ids(self.service, self.table)


@pytest.fixture
def place(
    local_service: LocalService,
    set_connection: SetConnection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Place:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(local_service.ca_file))
    return Place(local_service, tmp_path, connect(local_service, set_connection))


class TestFiles:
    def test_all_files_below_a_path_are_loaded_and_reported(self, place: Place) -> None:
        place.put({"a.csv": "1,x\n2,y\n", "b.csv": "3,z\n"})
        place.put({"other.csv": "9,x\n"}, path="other")
        done = place.copy(stage=f"@{place.stage}/in")

        assert place.ids() == [1, 2, 3]
        assert (done["rows_loaded"], done["rejected"], done["loaded_before"]) == (3, 0, {})
        assert {path: (one["status"], one["rows_loaded"]) for path, one in done["files"].items()} == {
            "in/a.csv": ("LOADED", 2),
            "in/b.csv": ("LOADED", 1),
        }

    def test_files_are_chosen_by_name_by_prefix_or_by_pattern(self, place: Place) -> None:
        place.put({f"{name}.csv": f"{number},x\n" for number, name in enumerate("abcd")})
        place.copy(stage=f"@{place.stage}/in", files='["b.csv"]')
        place.copy(prefix="in/c")
        place.copy(pattern=".*/d[.]csv")

        assert place.ids() == [1, 2, 3]

    def test_names_with_quotes_and_blanks_are_names(self, place: Place) -> None:
        place.put({"it's a file (1).csv": "1,x\n"}, path="a b")

        assert place.copy()["rows_loaded"] == 1

    def test_another_run_over_the_same_files_loads_nothing(self, place: Place) -> None:
        place.put({"a.csv": "1,x\n", "b.csv": "2,x\n"})
        place.copy(files=["in/a.csv"])
        place.began = dt.datetime.now(dt.UTC)
        done = place.copy(run="r2")

        assert place.ids() == [1, 2]
        assert list(done["files"]) == ["in/b.csv"]
        assert {path: one["status"] for path, one in done["loaded_before"].items()} == {"in/a.csv": "LOADED"}
        assert place.copy(run="r3")["rows_loaded"] == 0

    def test_more_files_than_a_statement_may_name_are_several_statements(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(copy_statement, "MOST_FILES", 4)
        place.put({f"{number:04}.csv": f"{number},x\n" for number in range(10)})
        done = place.copy()

        assert done["rows_loaded"] == len(done["files"]) == 10
        assert place.ids() == list(range(10))

    def test_files_of_an_external_stage_are_named_below_it(
        self, local_service: LocalService, place: Place
    ) -> None:
        lake = local_service.new_folder()
        (lake / "day").mkdir()
        (lake / "day" / "a.csv").write_text("7,x\n")
        local_service.sql(f"CREATE STAGE LAKE URL = 'file://{lake}/'")
        done = place.copy(stage="@LAKE/day")

        assert place.ids() == [7]
        assert done["rows_loaded"] == 1

    def test_nothing_staged_is_an_error_or_a_report(self, place: Place) -> None:
        with pytest.raises(NothingStagedError, match="has no file for"):
            place.copy()
        assert place.copy(on_nothing="report")["files"] == {}
        place.put({"a.csv": "1,x\n"})
        with pytest.raises(NothingStagedError, match=r"1 of 2 files are not in stage .*'in/z.csv'"):
            place.copy(files=["in/a.csv", "in/z.csv"])
        assert place.ids() == []


class TestOptions:
    def test_expressions_fill_columns(self, place: Place) -> None:
        place.put({"a.csv": "x,1\n"})
        place.copy(columns=["ID", "NAME"], expressions=["$2", "UPPER($1)"])

        assert place.service.sql(f"SELECT ID, NAME FROM {place.table}") == [{"ID": 1, "NAME": "X"}]

    def test_columns_are_matched_by_name(self, place: Place) -> None:
        place.put({"a.json": '{"name": "x", "id": 4}\n'})
        options = {"file_format": {"type": "JSON"}, "match_by_column_name": "CASE_INSENSITIVE"}

        assert place.copy(options=options)["rows_loaded"] == 1
        assert place.ids() == [4]

    def test_an_unknown_option_is_refused_by_its_name(self, place: Place) -> None:
        place.put({"a.csv": "1,x\n"})
        with pytest.raises(AirflowFailException, match=r"options has .*'speed'"):
            place.copy(options={"speed": 1})

    @pytest.mark.parametrize(
        "arguments",
        [{"on_rejected": "skip"}, {"on_nothing": "skip"}, {"files": ["a"], "prefix": "b"}],
        ids=["on_rejected", "on_nothing", "files"],
    )
    def test_arguments_that_cannot_be_are_refused_when_the_dag_is_read(
        self, arguments: dict[str, Any]
    ) -> None:
        with pytest.raises(ConfigurationError):
            SnowpipeCopyOperator(task_id="copy", table="T", stage="@S", **arguments)


class TestRejectedRows:
    FILES: Mapping[str, str] = {"good.csv": "1,x\n", "bad.csv": "2,x\nthree,y\n"}

    def test_a_file_loaded_in_part_fails_the_task_with_its_first_error(self, place: Place) -> None:
        place.put(self.FILES)
        with pytest.raises(AirflowFailException, match=r"1 of 2 files .*PARTIALLY_LOADED.*'three'.*line 2"):
            place.copy(options={**CSV, "on_error": "CONTINUE"})
        assert place.ids() == [1, 2]

    def test_or_is_reported(self, place: Place) -> None:
        place.put(self.FILES)
        done = place.copy(options={**CSV, "on_error": "SKIP_FILE"}, on_rejected="report")

        assert {path: one["status"] for path, one in done["files"].items()} == {
            "in/good.csv": "LOADED",
            "in/bad.csv": "LOAD_FAILED",
        }
        assert (done["rows_loaded"], done["rejected"]) == (1, 1)

    def test_a_statement_that_aborts_loads_nothing_and_can_be_repaired(self, place: Place) -> None:
        place.put(self.FILES)
        with pytest.raises(AirflowFailException, match=r"SqlError.*'three'"):
            place.copy()
        assert place.ids() == []
        place.put({"bad.csv": "2,x\n3,y\n"})
        assert place.copy(try_number=2)["rows_loaded"] == 3

    def test_a_failed_statement_is_run_again_by_the_next_try(self, place: Place) -> None:
        place.put({"a.csv": "1,longer\n"})
        place.service.sql(f"CREATE OR REPLACE TABLE {place.table} (ID INTEGER, NAME VARCHAR(2))")
        with pytest.raises(AirflowFailException, match="length limit"):
            place.copy()
        place.service.sql(f"CREATE OR REPLACE TABLE {place.table} (ID INTEGER, NAME VARCHAR(9))")

        assert place.copy(try_number=2)["rows_loaded"] == 1

    def test_a_validation_loads_nothing(self, place: Place) -> None:
        place.put(self.FILES)
        done = place.copy(validation_mode="RETURN_ERRORS")

        assert [row["line"] for row in done["rows"]] == [2]
        assert place.ids() == []
        place.operator().dry_run()
        assert place.ids() == []


class TestOncePerRun:
    FORCED: Mapping[str, Any] = {**CSV, "force": True}

    def test_a_try_after_a_success_that_was_not_heard_of_loads_nothing_again(self, place: Place) -> None:
        place.put({"a.csv": "1,x\n", "b.csv": "2,x\n"})
        first = place.copy(options=self.FORCED)
        second = place.copy(options=self.FORCED, try_number=2)

        assert place.ids() == [1, 2]
        assert second == first

    def test_another_run_is_other_work(self, place: Place) -> None:
        place.put({"a.csv": "1,x\n"})
        place.copy(options=self.FORCED)
        place.copy(options=self.FORCED, run="r2")

        assert place.ids() == [1, 1]

    @pytest.mark.parametrize(("force", "rows"), [(False, [1, 2]), (True, [1, 1, 2])], ids=["once", "forced"])
    def test_a_file_that_somebody_else_loaded_meanwhile_does_not_stand_for_the_others(
        self, place: Place, force: bool, rows: list[int]
    ) -> None:
        place.put({"a.csv": "1,x\n", "b.csv": "2,x\n"})
        place.copy(run="another", files=["in/a.csv"])
        place.copy(options={**CSV, "force": force}, try_number=2)

        assert place.ids() == rows

    def test_a_statement_that_still_runs_is_joined(self, place: Place) -> None:
        place.put({"a.csv": "1,x\n"})
        operators = [place.operator(options=self.FORCED) for _ in range(3)]
        threads = [threading.Thread(target=one.execute, args=(place.context(),)) for one in operators]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)

        assert place.ids() == [1]

    @pytest.mark.parametrize("files", [None, ["in/a.csv", "in/b.csv"]], ids=["all", "named"])
    def test_files_that_an_earlier_try_loaded_and_removed_are_known(
        self, place: Place, files: list[str] | None
    ) -> None:
        place.put({"a.csv": "1,x\n", "b.csv": "2,x\n"})
        first = place.copy(options={**CSV, "purge": True}, files=files)
        second = place.copy(options={**CSV, "purge": True}, files=files, try_number=2)

        assert place.ids() == [1, 2]
        assert first["rows_loaded"] == second["rows_loaded"] == 2
        with pytest.raises(NothingStagedError):
            place.copy(options={**CSV, "purge": True}, files=files, run="r2")

    def test_a_deferred_task_comes_back_for_its_result(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place.put({"a.csv": "1,x\n"})
        operator = place.operator(options=self.FORCED, deferrable=True)
        with monkeypatch.context() as patch:
            patch.setattr(copy_run, "_FIRST_LOOKS", ())
            with pytest.raises(TaskDeferred) as deferred:
                operator.execute(place.context())
        trigger: Any = deferred.value.trigger
        event = asyncio.run(_first(trigger.run()))

        assert event.payload == {"status": "ended", "message": ""}
        assert trigger.statement.count("'") == 2, "only the stage is a literal"
        done = operator.execute_complete(place.context(), event.payload)
        assert done["rows_loaded"] == 1
        assert place.ids() == [1]

    def test_a_worker_that_is_killed_between_submission_and_answer_leaves_exact_rows(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place.put({"a.csv": "1,x\n", "b.csv": "2,x\n"})
        submit_statement = StatementClient.submit

        def submit_and_die(client: StatementClient, *arguments: Any, **options: Any) -> Any:
            submit_statement(client, *arguments, **options)
            os.kill(os.getpid(), signal.SIGKILL)

        with monkeypatch.context() as patch:
            patch.setattr(StatementClient, "submit", submit_and_die)
            worker = get_context("fork").Process(target=place.copy, kwargs={"options": self.FORCED})
            worker.start()
            worker.join(300)

        assert worker.exitcode == -signal.SIGKILL
        assert place.copy(options=self.FORCED, try_number=2)["rows_loaded"] == 2
        assert place.ids() == [1, 2]

    @pytest.mark.parametrize(
        "point", ["after-load-commit", pytest.param("before-load-commit", marks=pytest.mark.nightly)]
    )
    def test_a_service_that_dies_with_the_answer_leaves_exact_rows(
        self, crash_service: LocalService, set_connection: SetConnection, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch, point: str,
    ) -> None:  # fmt: skip
        service = crash_service
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(service.ca_file))
        place = Place(service, tmp_path, connect(service, set_connection))
        place.put({f"{number}.csv": f"{number},x\n" for number in range(5)})
        service.set_faults(f"kill-{point}=1")
        dying = psutil.Process(service.pid)
        done: list[Any] = []
        task = threading.Thread(target=lambda: done.append(place.copy(options=self.FORCED)))
        task.start()
        dying.wait(300)
        service.kill()
        service.restart()
        task.join(300)

        assert place.ids() == list(range(5))
        assert done[0]["rows_loaded"] == 5
        again = place.copy(options=self.FORCED, try_number=2)
        assert place.ids() == list(range(5))
        assert (again["rows_loaded"], again["loaded_before"]) == (5, {})


def ended(client: StatementClient, handle: str, statement: str) -> StatementState:
    """Wait for a statement."""
    deadline = time.monotonic() + 60
    while (state := client.state(handle, statement)).is_running:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return state


async def _first(events: Any) -> Any:
    async with aclosing(events):
        return await anext(events)


class TestStatementClient:
    @pytest.fixture
    def hook(self, place: Place) -> SnowpipeBulkHook:
        return SnowpipeBulkHook(place.conn_id)

    def test_a_running_statement_is_cancelled_once(self, place: Place, hook: SnowpipeBulkHook) -> None:
        place.service.sql("CREATE OR REPLACE TABLE LOCAL.PUBLIC.MANY (N INTEGER)")
        place.service.sql(
            "INSERT INTO LOCAL.PUBLIC.MANY SELECT SEQ4() FROM TABLE(GENERATOR(ROWCOUNT => 5000))"
        )
        slow = (
            "SELECT SUM(a.n * b.n * c.n) FROM LOCAL.PUBLIC.MANY a, LOCAL.PUBLIC.MANY b, LOCAL.PUBLIC.MANY c"
        )
        client = hook.get_statement_client()
        try:
            state = client.submit(slow, "3e2f7a52-0000-4000-8000-000000000001")
            assert state.is_running
            assert client.cancel(state.handle, slow)
            with pytest.raises(SqlError, match="cancel"):
                ended(client, state.handle, slow)
            assert not client.cancel(state.handle, slow)
        finally:
            client.close()

    def test_the_trigger_ends_with_the_statement(self, place: Place, hook: SnowpipeBulkHook) -> None:
        client = hook.get_statement_client()
        slow = "SELECT SUM(a.n * b.n * c.n) FROM LOCAL.PUBLIC.FEW a, LOCAL.PUBLIC.FEW b, LOCAL.PUBLIC.FEW c"
        place.service.sql("CREATE OR REPLACE TABLE LOCAL.PUBLIC.FEW (N INTEGER)")
        place.service.sql(
            "INSERT INTO LOCAL.PUBLIC.FEW SELECT SEQ4() FROM TABLE(GENERATOR(ROWCOUNT => 5000))"
        )
        state = client.submit(slow, "3e2f7a52-0000-4000-8000-000000000003")
        trigger = SnowpipeStatementTrigger(
            handle=state.handle, statement=slow, snowflake_conn_id=place.conn_id, poll_interval=0.1
        )

        async def watch() -> Any:
            waiting = asyncio.create_task(_first(trigger.run()))
            done, _ = await asyncio.wait([waiting], timeout=0.3)
            assert not done
            await asyncio.to_thread(client.cancel, state.handle, slow)
            return await waiting

        try:
            assert asyncio.run(watch()).payload["status"] == "ended"
        finally:
            client.close()

    def test_a_trigger_without_a_connection_says_so(self) -> None:
        trigger = SnowpipeStatementTrigger(handle="h", statement="COPY", snowflake_conn_id="missing")
        event = asyncio.run(_first(trigger.run()))

        assert event.payload["status"] == "lost"
        assert "missing" in event.payload["message"]

    def test_a_long_result_is_read_to_its_end(self, hook: SnowpipeBulkHook) -> None:
        client = hook.get_statement_client()
        statement = "SELECT SEQ4() AS N FROM TABLE(GENERATOR(ROWCOUNT => 25000))"
        try:
            state = client.submit(statement, "3e2f7a52-0000-4000-8000-000000000002")
            rows = ended(client, state.handle, statement).rows
        finally:
            client.close()

        assert rows is not None
        assert len({row["n"] for row in rows}) == 25000


class TestFilesOfPipes:
    @pytest.fixture
    def piped(self, place: Place) -> Place:
        """A place whose pipe has loaded one of two files."""
        place.put({"a.csv": "1,x\n", "b.csv": "2,x\n"})
        pipe = f"{place.table}_PIPE"
        place.service.sql(f"CREATE PIPE {pipe} AS COPY INTO {place.table} FROM @{place.stage}")
        submit(place.service, f"LOCAL.PUBLIC.{pipe}", "in/a.csv")
        deadline = time.monotonic() + 30
        while place.ids() != [1]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return place

    def test_a_file_that_a_pipe_has_loaded_is_refused_with_the_evidence(self, piped: Place) -> None:
        with pytest.raises(
            AirflowFailException,
            match=rf"FilesGivenTwiceError: 1 of 2 files .*'in/a.csv' by pipe .*{piped.table}_PIPE at",
        ):
            piped.copy()
        assert piped.ids() == [1]
        assert piped.copy(files=["in/b.csv"])["rows_loaded"] == 1

    @pytest.mark.parametrize(
        "forced", [{"force": True}, {"options": {**CSV, "force": True}}], ids=["argument", "option"]
    )
    def test_unless_it_is_forced(self, piped: Place, forced: dict[str, Any]) -> None:
        assert piped.copy(**forced)["rows_loaded"] == 2
        assert piped.ids() == [1, 1, 2]

    def test_the_same_file_of_another_stage_is_another_file(self, piped: Place) -> None:
        piped.stage = f"{piped.table}_OTHER"
        piped.service.sql(f"CREATE STAGE {piped.stage}")
        piped.put({"a.csv": "3,x\n"})

        piped.copy(files=["in/a.csv"])
        assert piped.ids() == [1, 3]

    def test_a_file_that_copy_has_loaded_is_refused_for_a_pipe(self, place: Place) -> None:
        place.put({"a.csv": "1,x\n"})
        place.copy()
        files = StagedPaths(("in/a.csv",), StageReference.parse(f"@{place.stage}"))
        loads = SnowpipeBulkHook(place.conn_id).loads_of(place.table, files.paths)

        with pytest.raises(FilesGivenTwiceError, match=r"'in/a.csv' by COPY at .*pipe LOCAL.PUBLIC.P"):
            refuse_files_of_others(
                files, loads, table=place.table, now=dt.datetime.now(dt.UTC), loader="LOCAL.PUBLIC.P"
            )

"""``SnowpipeCopyOperator`` against a real local service: once per run, whatever is lost on the way."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import os
import re
import signal
from collections.abc import Mapping
from contextlib import aclosing
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import snowflake.connector
from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred

from airflow_provider_snowpipe.bulk.statement_client import StatementClient, StatementState
from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.operators.copy import SnowpipeCopyOperator
from airflow_provider_snowpipe.streaming.errors import (
    NothingStagedError,
    SqlError,
)
from airflow_provider_snowpipe.triggers.statement import SnowpipeStatementTrigger
from tests.airflow_connections import SetConnection, set_connection
from tests.local_connection import TaskInstance, connect, ids
from tests.local_service import LocalService
from tests.staged_files import running_copy
from tests.waiting import wait_until

__all__ = ["set_connection"]

_numbers = itertools.count(1)
CSV = {"file_format": {"type": "CSV"}}


class CopyTarget:
    """A table and a stage of their own for a test."""

    def __init__(self, service: LocalService, folder: Path, conn_id: str) -> None:
        self.service, self.folder, self.conn_id = service, folder, conn_id
        self.table = f"COPIED{next(_numbers)}"
        self.stage = f"{self.table}_STAGE"
        self.began = dt.datetime.now(dt.UTC)  # of every run of this target
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
def target(
    local_service: LocalService,
    set_connection: SetConnection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> CopyTarget:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(local_service.ca_file))
    return CopyTarget(local_service, tmp_path, connect(local_service, set_connection))


class TestFiles:
    def test_all_files_below_a_path_are_loaded_and_reported(self, target: CopyTarget) -> None:
        target.put({"a.csv": "1,x\n2,y\n", "b.csv": "3,z\n"})
        target.put({"other.csv": "9,x\n"}, path="other")
        done = target.copy(stage=f"@{target.stage}/in")

        assert target.ids() == [1, 2, 3]
        assert (done["rows_loaded"], done["rejected"], done["loaded_before"]) == (3, 0, {})
        assert {path: (one["status"], one["rows_loaded"]) for path, one in done["files"].items()} == {
            "in/a.csv": ("LOADED", 2),
            "in/b.csv": ("LOADED", 1),
        }

    def test_files_are_chosen_by_name_by_prefix_or_by_pattern(self, target: CopyTarget) -> None:
        target.put({f"{name}.csv": f"{number},x\n" for number, name in enumerate("abc")})
        target.put({"it's a file (1).csv": "3,x\n"}, path="a b")
        target.copy(stage=f"@{target.stage}/in", files='["b.csv"]')
        target.copy(prefix="in/c")
        target.copy(pattern=".*it's a.*[.]csv")

        assert target.ids() == [1, 2, 3]

    def test_another_run_over_the_same_files_loads_nothing(self, target: CopyTarget) -> None:
        target.put({"a.csv": "1,x\n", "b.csv": "2,x\n"})
        target.copy(files=["in/a.csv"])
        target.began = dt.datetime.now(dt.UTC)
        done = target.copy(run="r2")

        assert target.ids() == [1, 2]
        assert list(done["files"]) == ["in/b.csv"]
        assert {path: one["status"] for path, one in done["loaded_before"].items()} == {"in/a.csv": "LOADED"}
        assert target.copy(run="r3")["rows_loaded"] == 0

    @pytest.mark.parametrize(
        ("how", "force"),
        [
            ("TRUNCATE TABLE {}", False),
            ("DELETE FROM {}", True),
            pytest.param("TRUNCATE TABLE {}", True, marks=pytest.mark.nightly),
            ("CREATE OR REPLACE TABLE {} (ID INTEGER, NAME VARCHAR)", False),
        ],
    )
    def test_a_run_that_is_cleared_with_what_empties_its_table_loads_the_files_again(
        self, target: CopyTarget, how: str, force: bool
    ) -> None:
        options = {**CSV, "force": force}
        target.put({"a.csv": "1,x\n"})
        target.copy(options=options)
        target.service.sql(how.format(target.table))
        done = target.copy(try_number=2, options=options)

        assert (target.ids(), done["rows_loaded"]) == ([1], 1)
        assert (target.copy(try_number=3, options=options)["rows_loaded"], target.ids()) == (1, [1])

    def test_options_of_the_stage_neither_load_files_again_nor_cut_values(self, target: CopyTarget) -> None:
        target.service.sql(
            f"CREATE OR REPLACE STAGE {target.stage} COPY_OPTIONS = (FORCE = TRUE TRUNCATECOLUMNS = TRUE)"
        )
        target.service.sql(f"CREATE OR REPLACE TABLE {target.table} (ID INTEGER, NAME VARCHAR(2))")
        target.put({"a.csv": "1,x\n"})
        runs = [target.copy(run=run)["rows_loaded"] for run in ("r1", "r2")]
        target.put({"a.csv": "2,long\n"})

        assert (runs, target.ids()) == ([1, 0], [1])
        with pytest.raises(AirflowFailException, match="long"):
            target.copy(run="r3")
        assert target.copy(run="r4", options={**CSV, "truncate_columns": True})["rows_loaded"] == 1

    def test_a_table_that_was_truncated_and_restored_is_not_loaded_by_another_run(
        self, target: CopyTarget
    ) -> None:
        target.put({"a.csv": "1,x\n", "b.csv": "2,x\n"})
        target.copy()
        for statement in (
            "CREATE TABLE {}_BACKUP AS SELECT * FROM {}",
            "TRUNCATE TABLE {}",
            "INSERT INTO {0} SELECT * FROM {0}_BACKUP",
        ):
            target.service.sql(statement.format(target.table, target.table))
        with pytest.raises(AirflowFailException, match="FilesRejectedError"):
            target.copy(run="r2")
        assert target.ids() == [1, 2]

    def test_files_of_an_external_stage_are_named_below_it_and_expressions_fill_columns(
        self, local_service: LocalService, target: CopyTarget
    ) -> None:
        lake = local_service.new_folder()
        (lake / "day").mkdir()
        (lake / "day" / "a.csv").write_text("x,7\n")
        local_service.sql(f"CREATE STAGE LAKE URL = 'file://{lake}/'")
        done = target.copy(stage="@LAKE/day", columns=["ID", "NAME"], expressions=["$2", "UPPER($1)"])

        assert target.service.sql(f"SELECT ID, NAME FROM {target.table}") == [{"ID": 7, "NAME": "X"}]
        assert done["rows_loaded"] == 1


def test_files_that_copy_forgot_after_64_days_are_not_loaded_again_where_the_ledger_has_them(
    admin_service: LocalService,
    set_connection: SetConnection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(admin_service.ca_file))
    target = CopyTarget(admin_service, tmp_path, connect(admin_service, set_connection))
    target.put({"a.csv": "1,x\n"})
    options = {**CSV, "load_uncertain_files": True}
    target.copy(options=options)
    admin_service.admin("clock", move=65 * 86_400)

    assert target.copy(try_number=2, options=options)["rows_loaded"] == 1
    assert target.copy(run="r2", options=options)["rows_loaded"] == 0
    assert target.ids() == [1]


class TestRejectedRows:
    FILES: Mapping[str, str] = {"good.csv": "1,x\n", "bad.csv": "2,x\nthree,y\n"}

    def test_a_validation_loads_nothing_and_a_file_that_is_skipped_is_reported(
        self, target: CopyTarget
    ) -> None:
        target.put(self.FILES)
        found = target.copy(validation_mode="RETURN_ERRORS")
        assert [row["line"] for row in found["rows"]] == [2]
        target.operator().dry_run()
        assert target.ids() == []
        done = target.copy(run="r2", options={**CSV, "on_error": "SKIP_FILE"}, on_rejected="report")

        assert {path: one["status"] for path, one in done["files"].items()} == {
            "in/good.csv": "LOADED",
            "in/bad.csv": "LOAD_FAILED",
        }
        assert (done["rows_loaded"], done["rejected"]) == (1, 1)

    def test_a_file_loaded_in_part_fails_the_task_with_its_first_error(self, target: CopyTarget) -> None:
        target.put(self.FILES)
        with pytest.raises(AirflowFailException, match=r"SqlError.*'three'"):
            target.copy()
        assert target.ids() == []
        with pytest.raises(AirflowFailException, match=r"PARTIALLY_LOADED.*'three'"):
            target.copy(try_number=2, options={**CSV, "on_error": "CONTINUE"})
        assert target.ids() == [1, 2]


class TestOncePerRun:
    FORCED: Mapping[str, Any] = {**CSV, "force": True}

    def test_files_that_an_earlier_try_loaded_and_removed_are_known(self, target: CopyTarget) -> None:
        target.put({"a.csv": "1,x\n", "b.csv": "2,x\n"})
        arguments: Mapping[str, Any] = {
            "options": {**CSV, "purge": True},
            "files": ["in/a.csv", "in/b.csv"],
        }
        assert target.copy(**arguments)["rows_loaded"] == 2
        assert target.copy(try_number=2, **arguments)["rows_loaded"] == 2

        assert target.ids() == [1, 2]
        with pytest.raises(NothingStagedError, match=r"'in/a.csv'"):
            target.copy(run="r2", **arguments)
        with pytest.raises(NothingStagedError, match="no file"):
            target.copy(run="r2")
        assert target.copy(run="r2", on_nothing="report")["files"] == {}

    def test_a_deferred_task_comes_back_for_its_result(self, target: CopyTarget) -> None:
        target.put({"a.csv": "1,x\n"})
        operator = target.operator(options=self.FORCED, deferrable=True)
        with running_copy(), pytest.raises(TaskDeferred) as deferred:
            operator.execute(target.context())
        trigger: Any = deferred.value.trigger
        event = asyncio.run(_first(trigger.run()))

        assert event.payload == {"status": "ended", "message": ""}
        assert trigger.statement.count("'") == 2, "only the stage is a literal"
        done = operator.execute_complete(target.context(), event.payload, **deferred.value.kwargs)
        assert done["rows_loaded"] == 1
        assert target.ids() == [1]

    def test_a_worker_that_is_killed_between_submission_and_answer_leaves_exact_rows(
        self, target: CopyTarget, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        target.put({"a.csv": "1,x\n", "b.csv": "2,x\n"})
        submit_statement = StatementClient.submit

        def submit_and_die(client: StatementClient, *arguments: Any, **options: Any) -> Any:
            submit_statement(client, *arguments, **options)
            os.kill(os.getpid(), signal.SIGKILL)

        with monkeypatch.context() as patch:
            patch.setattr(StatementClient, "submit", submit_and_die)
            worker = get_context("fork").Process(target=target.copy, kwargs={"options": self.FORCED})
            worker.start()
            worker.join(300)

        assert worker.exitcode == -signal.SIGKILL
        assert target.copy(options=self.FORCED, try_number=2)["rows_loaded"] == 2
        assert target.ids() == [1, 2]


def ended(client: StatementClient, handle: str, statement: str) -> StatementState:
    """Wait for a statement."""
    wait_until(lambda: not client.state(handle, statement).is_running, what="the statement's end")
    return client.state(handle, statement)


async def _first(events: Any) -> Any:
    async with aclosing(events):
        return await anext(events)


def crash_at(error: BaseException, *_: Any, **__: Any) -> NoReturn:
    raise error


def test_a_role_without_privileges_gets_to_its_copy_by_the_grants_that_the_errors_name(
    target: CopyTarget, local_service: LocalService, set_connection: SetConnection
) -> None:
    """And nothing is in the table, or noted for other loaders, before the last of them."""
    target.put({"a.csv": "1,x\n"})
    target.service.sql(f"CREATE PIPE {target.table}_PIPE AS COPY INTO {target.table} FROM @{target.stage}")
    role = f"{target.table}_LOADER"
    target.service.sql(f"CREATE ROLE {role}")
    target.service.sql(f"GRANT ROLE {role} TO USER {target.service.user}")
    connect(local_service, set_connection, extra={"role": role})
    granted = []
    while not target.ids() and len(granted) < 8:
        try:
            target.copy(ledger_table=f"{target.table}_LOADS")
        except AirflowFailException as error:
            (grant,) = re.findall(r"GRANT .* TO ROLE …", str(error))
            granted.append(grant.partition(" ON ")[2].split()[0])
            target.service.sql(grant.replace("…", role))
            assert target.ids() == []

    assert granted == ["DATABASE", "SCHEMA", "SCHEMA", "STAGE", "TABLE"]


class TestStatementClient:
    @pytest.fixture
    def hook(self, target: CopyTarget) -> SnowpipeBulkHook:
        return SnowpipeBulkHook(target.conn_id)

    def test_a_running_statement_is_cancelled_once_and_the_trigger_ends_with_it(
        self, target: CopyTarget, hook: SnowpipeBulkHook
    ) -> None:
        target.service.sql("CREATE OR REPLACE TABLE LOCAL.PUBLIC.MANY (N INTEGER)")
        target.service.sql(
            "INSERT INTO LOCAL.PUBLIC.MANY SELECT SEQ4() FROM TABLE(GENERATOR(ROWCOUNT => 5000))"
        )
        slow = (
            "SELECT SUM(a.n * b.n * c.n) FROM LOCAL.PUBLIC.MANY a, LOCAL.PUBLIC.MANY b, LOCAL.PUBLIC.MANY c"
        )
        client = hook.get_statement_client()

        async def watch(trigger: SnowpipeStatementTrigger) -> Any:
            waiting = asyncio.create_task(_first(trigger.run()))
            done, _ = await asyncio.wait([waiting], timeout=0.2)
            assert not done
            assert await asyncio.to_thread(client.cancel, state.handle, slow)
            return await waiting

        try:
            state = client.submit([slow], "3e2f7a52-0000-4000-8000-000000000001")
            assert state.is_running
            trigger = SnowpipeStatementTrigger(
                handle=state.handle, statement=slow, snowflake_conn_id=target.conn_id, poll_interval=0.1
            )
            assert asyncio.run(watch(trigger)).payload["status"] == "ended"
            with pytest.raises(SqlError, match="cancel"):
                ended(client, state.handle, slow)
            assert not client.cancel(state.handle, slow)
        finally:
            client.close()

    def test_with_force_two_mapped_instances_load_one_file_by_columns_of_their_own(
        self, target: CopyTarget, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The first try of one dies before its COPY, while the other loads."""
        target.put({"a.csv": "1,2\n"})
        given = {"options": {**CSV, "force": True}, "files": ["in/a.csv"], "columns": ["ID"]}

        def copy(index: int, number: int, column: str) -> dict[str, Any]:
            context = target.context(try_number=number)
            context["ti"].map_index = index
            return target.operator(**given, expressions=[column]).execute(context)

        with monkeypatch.context() as patch:
            patch.setattr(StatementClient, "submit", partial(crash_at, KeyboardInterrupt()))
            with pytest.raises(KeyboardInterrupt):
                copy(0, 1, "$1")
        copy(1, 1, "$2")
        done = [copy(0, number, "$1")["rows_loaded"] for number in (2, 3)]

        assert sorted(target.ids()) == [1, 2]
        assert done == [1, 1]

    def test_a_trigger_without_a_connection_reports_an_error(self) -> None:
        trigger = SnowpipeStatementTrigger(handle="h", statement="COPY", snowflake_conn_id="missing")
        event = asyncio.run(_first(trigger.run()))

        assert event.payload["status"] == "lost"
        assert "missing" in event.payload["message"]

    def test_a_long_result_is_read_to_its_end(self, hook: SnowpipeBulkHook) -> None:
        client = hook.get_statement_client()
        statement = "SELECT SEQ4() AS N FROM TABLE(GENERATOR(ROWCOUNT => 25000))"
        try:
            state = client.submit([statement], "3e2f7a52-0000-4000-8000-000000000002")
            rows = ended(client, state.handle, statement).rows
        finally:
            client.close()

        assert rows is not None
        assert len({row["n"] for row in rows}) == 25000

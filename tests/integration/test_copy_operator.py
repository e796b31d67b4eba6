"""``SnowpipeCopyOperator`` against a real local service: once per run, whatever is lost on the way."""

import datetime as dt
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred

from airflow_provider_snowpipe.bulk.statement_client import StatementClient, StatementState
from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.operators.copy import SnowpipeCopyOperator
from airflow_provider_snowpipe.streaming.errors import NothingStagedError, SqlError
from airflow_provider_snowpipe.triggers.statement import SnowpipeStatementTrigger
from tests.airflow_connections import SetConnection
from tests.file_pipes import PipeTarget
from tests.integration.trigger_events import event_of
from tests.local_connection import connect
from tests.local_service import LocalService
from tests.staged_files import running_copy
from tests.waiting import wait_until

CSV = {"file_format": {"type": "CSV"}}


class CopyTarget(PipeTarget):
    """A table and a stage of their own for a test, and tasks that copy."""

    def operator(self, **arguments: Any) -> SnowpipeCopyOperator:
        given = {"stage": f"@{self.stage}", "options": CSV, "table": self.table, **arguments}
        return SnowpipeCopyOperator(task_id="copy", snowflake_conn_id=self.conn_id, **given)

    def copy(self, run: str = "r1", try_number: int = 1, **arguments: Any) -> dict[str, Any]:
        return self.operator(**arguments).execute(self.context(run, try_number))


@pytest.fixture
def target(local_service: LocalService, tmp_path: Path, conn_id: str) -> CopyTarget:
    return CopyTarget(local_service, tmp_path, conn_id)


class TestFiles:
    def test_files_below_a_path_are_loaded_and_those_of_an_earlier_run_reported(
        self, target: CopyTarget
    ) -> None:
        target.put({"in/a.csv": "1,x\n2,y\n", "in/b.csv": "3,z\n", "other/other.csv": "9,x\n"})
        first = target.copy(files=["in/a.csv"])
        target.began = dt.datetime.now(dt.UTC)
        done = target.copy(run="r2", stage=f"@{target.stage}/in")

        assert target.ids() == [1, 2, 3]
        assert {path: (one["status"], one["rows_loaded"]) for path, one in first["files"].items()} == {
            "in/a.csv": ("LOADED", 2)
        }
        assert (list(done["files"]), done["rows_loaded"], done["rejected"]) == (["in/b.csv"], 1, 0)
        assert {path: one["status"] for path, one in done["loaded_before"].items()} == {"in/a.csv": "LOADED"}
        assert target.copy(run="r3", prefix="in/")["rows_loaded"] == 0

    def test_options_of_the_stage_neither_load_files_again_nor_cut_values(self, target: CopyTarget) -> None:
        target.service.sql(
            f"CREATE OR REPLACE STAGE {target.stage} COPY_OPTIONS = (FORCE = TRUE TRUNCATECOLUMNS = TRUE)"
        )
        target.service.sql(f"CREATE OR REPLACE TABLE {target.table} (ID INTEGER, NAME VARCHAR(2))")
        target.put({"in/a.csv": "1,x\n"})
        runs = [target.copy(run=run)["rows_loaded"] for run in ("r1", "r2")]
        target.put({"in/a.csv": "2,long\n"})
        assert (runs, target.ids()) == ([1, 0], [1])
        with pytest.raises(AirflowFailException, match="long"):
            target.copy(run="r3")
        assert target.copy(run="r4", options={**CSV, "truncate_columns": True})["rows_loaded"] == 1

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


class TestRejectedRows:
    FILES: Mapping[str, str] = {"in/good.csv": "1,x\n", "in/bad.csv": "2,x\nthree,y\n"}

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
        context = target.context(try_number=2)
        with pytest.raises(AirflowFailException, match=r"PARTIALLY_LOADED.*'three'"):
            target.operator(options={**CSV, "on_error": "CONTINUE"}).execute(context)
        assert target.ids() == [1, 2]

        copies = context["ti"].xcoms["copies"]
        (entry,) = copies["entries"]
        assert (entry["state"], entry["files"], entry["rows"], entry["rejected"]) == ("loaded", 2, 2, 1)
        assert entry["query_id"]
        (row,) = copies["unloaded"]["rows"]
        assert (row["where"], row["position"], row["text"]) == ("in/bad.csv", "2", "three,y")
        assert "'three'" in row["reason"]
        assert f"pipe={target.table}-STREAMING" in context["ti"].xcoms["channel_page"]

    def test_nothing_of_a_row_is_left_where_it_is_not_to_be_shown(
        self, target: CopyTarget, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AIRFLOW__SNOWPIPE__SHOW_UNLOADED_ROWS", "False")
        target.put(self.FILES)
        left: list[Any] = []
        of_one: dict[str, Any] = {"columns": ["ID"], "expressions": ["$1"]}
        for number, (on_error, more) in enumerate(
            [("ABORT_STATEMENT", {}), *[("CONTINUE", one) for one in ({}, of_one)]]
        ):
            context = target.context(f"r{number}")
            options = {**CSV, "on_error": on_error, "force": number > 1}
            with pytest.raises(AirflowFailException, match="three"):
                target.operator(options=options, **more).execute(context)
            left.append(context["ti"].xcoms["copies"])

        assert "three" not in str(left)
        assert left[0]["entries"][0]["error"]
        assert [one["unloaded"]["rows"][0]["position"] for one in left[1:]] == ["2", "2"]

    def test_a_file_that_failed_beside_one_with_a_longer_name_loads_with_corrected_options(
        self, target: CopyTarget
    ) -> None:
        target.put({"1.csv": "one,x\n", "11.csv": "2,y\n", "in/1.csv": "3,z\n"})
        skips = {"on_error": "SKIP_FILE"}
        with pytest.raises(AirflowFailException, match="LOAD_FAILED"):
            target.copy(options={**CSV, **skips})
        corrected = {"file_format": {"type": "CSV", "null_if": ["one"]}, **skips}
        assert target.copy(try_number=2, options=corrected)["rows_loaded"] == 3
        (found,) = target.service.sql(f"SELECT COUNT(*) AS ROWS_NOW FROM {target.table}")
        assert found["ROWS_NOW"] == 3


class TestOncePerRun:
    FORCED: Mapping[str, Any] = {**CSV, "force": True}

    def test_files_that_an_earlier_try_loaded_and_removed_are_known(self, target: CopyTarget) -> None:
        target.put({"in/a.csv": "1,x\n", "in/b.csv": "2,x\n"})
        arguments: Mapping[str, Any] = {"options": {**CSV, "purge": True}, "files": ["in/a.csv", "in/b.csv"]}
        assert target.copy(**arguments)["rows_loaded"] == 2
        assert target.copy(try_number=2, **arguments)["rows_loaded"] == 2
        assert target.ids() == [1, 2]
        with pytest.raises(NothingStagedError, match=r"'in/a.csv'"):
            target.copy(run="r2", **arguments)
        with pytest.raises(NothingStagedError, match="no file"):
            target.copy(run="r2")
        assert target.copy(run="r2", on_nothing="report")["files"] == {}

    def test_a_deferred_task_comes_back_for_its_result(self, target: CopyTarget) -> None:
        target.put({"in/a.csv": "1,x\n"})
        operator = target.operator(options=self.FORCED, deferrable=True)
        with running_copy(), pytest.raises(TaskDeferred) as deferred:
            operator.execute(target.context())
        trigger: Any = deferred.value.trigger
        event = event_of(trigger)
        assert event == {"status": "ended", "message": ""}
        assert trigger.statement.count("'") == 2, "only the stage is a literal"
        done = operator.execute_complete(target.context(), event, **deferred.value.kwargs)
        assert done["rows_loaded"] == 1
        assert target.ids() == [1]


def ended(client: StatementClient, handle: str, statement: str) -> StatementState:
    """Wait for a statement."""
    wait_until(lambda: not client.state(handle, statement).is_running, what="the statement's end")
    return client.state(handle, statement)


def test_a_role_without_privileges_gets_to_its_copy_by_the_grants_that_the_errors_name(
    target: CopyTarget, set_connection: SetConnection
) -> None:
    """And nothing is in the table, or noted for other loaders, before the last of them."""
    target.put({"in/a.csv": "1,x\n"})
    target.service.sql(f"CREATE PIPE {target.table}_PIPE AS COPY INTO {target.table} FROM @{target.stage}")
    role = f"{target.table}_LOADER"
    target.service.sql(f"CREATE ROLE {role}")
    target.service.sql(f"GRANT ROLE {role} TO USER {target.service.user}")
    connect(target.service, set_connection, extra={"role": role})
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
    def client(self, conn_id: str) -> Iterator[StatementClient]:
        with closing(SnowpipeBulkHook(conn_id).get_statement_client()) as client:
            yield client

    def test_a_running_statement_is_cancelled_once_and_the_trigger_ends_with_it(
        self, target: CopyTarget, client: StatementClient
    ) -> None:
        numbers = "SELECT SEQ4() FROM TABLE(GENERATOR(ROWCOUNT => 5000))"
        target.service.sql(f"INSERT INTO {target.table} (ID) {numbers}")
        one = f"LOCAL.PUBLIC.{target.table}"
        slow = f"SELECT SUM(a.ID * b.ID * c.ID) FROM {one} a, {one} b, {one} c"
        state = client.submit([slow], "3e2f7a52-0000-4000-8000-000000000001")
        assert state.is_running
        trigger = SnowpipeStatementTrigger(
            handle=state.handle, statement=slow, snowflake_conn_id=target.conn_id, poll_interval=0.1
        )

        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(event_of, trigger)
            with pytest.raises(TimeoutError):
                waiting.result(0.2)
            assert client.cancel(state.handle, slow)
            assert waiting.result()["status"] == "ended"
        with pytest.raises(SqlError, match="cancel"):
            ended(client, state.handle, slow)
        assert not client.cancel(state.handle, slow)

    def test_a_long_result_is_read_to_its_end(self, client: StatementClient) -> None:
        statement = "SELECT SEQ4() AS N FROM TABLE(GENERATOR(ROWCOUNT => 25000))"
        state = client.submit([statement], "3e2f7a52-0000-4000-8000-000000000002")
        rows = ended(client, state.handle, statement).rows
        assert len({row["n"] for row in rows}) == 25000

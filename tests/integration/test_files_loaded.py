"""The sensor of loaded files against the real local service: COPY, file pipes, bad files."""

from pathlib import Path
from typing import Any

import pytest
from airflow.exceptions import AirflowRescheduleException

from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.sensors.files_loaded import SnowpipeFilesLoadedSensor
from tests.airflow_connections import SetConnection
from tests.file_pipes import PipeTarget, task_context
from tests.local_connection import connect, connect_by_form
from tests.local_service import LocalService
from tests.staged_files import put
from tests.stream_worker import FileState


@pytest.fixture
def target(target: PipeTarget) -> PipeTarget:
    target.make_pipe()
    return target


@pytest.fixture
def conn_id(target: PipeTarget) -> str:
    return target.conn_id


def copy(target: PipeTarget, path: str = "", options: str = "") -> None:
    """Load what is staged."""
    target.service.sql(f"COPY INTO {target.table} FROM @{target.stage}{path} {options}")


def sensor(conn_id: str, **options: Any) -> SnowpipeFilesLoadedSensor:
    given = {"snowflake_conn_id": conn_id, "poke_interval": 0.2, "timeout": 60, **options}
    return SnowpipeFilesLoadedSensor(task_id="wait", **given)


LOADED = {"status": "LOADED", "rows_loaded": 2, "rows_parsed": 2, "errors_seen": 0, "first_error": None}


@pytest.mark.parametrize("define", [connect, connect_by_form], ids=["snowflake", "snowpipe"])
def test_files_that_copy_or_a_pipe_has_loaded(
    local_service: LocalService, set_connection: SetConnection, target: PipeTarget, define: Any
) -> None:
    conn_id = define(local_service, set_connection)
    target.put({"a.csv": "1,x\n2,y\n", "in/b.csv": "3,x\n4,y\n", "in/c.csv": "5,x\n6,y\n"})
    copy(target, options="FILES = ('a.csv')")
    target.submit("in/b.csv")
    by_pipe = sensor(conn_id, files=["in/b.csv"], pipe=target.pipe).execute(task_context())
    copy(target, "/in", "FILES = ('c.csv')")

    assert by_pipe == {"in/b.csv": LOADED}
    for files, below in ((["a.csv", "in/c.csv"], ""), (["c.csv"], "/in")):
        waiting = sensor(conn_id, table=target.table, files=files, stage=f"@{target.stage}{below}")
        found = waiting.execute(task_context())
        assert found == {file if not below else f"in/{file}": LOADED for file in files}


def test_what_was_listed_at_the_first_poll_stays(conn_id: str, target: PipeTarget, tmp_path: Path) -> None:
    target.put({"day1/a.csv": "1,x\n2,y\n"})
    store = FileState(tmp_path / "state.json")
    context = {**task_context(), "task_state_store": store}
    options = {"prefix": "day1/", "stage": target.stage, "table": target.table, "mode": "reschedule"}
    with pytest.raises(AirflowRescheduleException):
        sensor(conn_id, **options).execute(context)
    target.put({"day1/b.csv": "3,x\n"})
    copy(target, "/day1", "FILES = ('a.csv')")
    assert sensor(conn_id, **options).execute(context) == {"day1/a.csv": LOADED}
    assert store.values() == {}


def test_the_hook_lists_stages(conn_id: str, target: PipeTarget, tmp_path: Path) -> None:
    target.put({"in/a.csv": "1,x\n", "in/b.csv": "1,x\n"})
    put(target.service, tmp_path, f"%{target.table}", {"t.csv": "1,x\n"})
    hook = SnowpipeHook(conn_id, table=target.table)
    assert hook.list_stage(target.stage) == ["in/a.csv", "in/b.csv"]
    assert hook.list_stage(f"@PUBLIC.{target.stage}/in", "b") == ["in/b.csv"]
    assert hook.list_stage(f"@LOCAL.PUBLIC.{target.stage}", "in/b") == ["in/b.csv"]
    assert hook.list_stage(f"@%{target.table}") == ["t.csv"]

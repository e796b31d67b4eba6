"""Files and pipes over weeks: what the account's usage history knows, and a pipe that was paused too long."""

import itertools
import logging
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_snowpipe.operators.file_pipe import SnowpipePipeOperator
from airflow_provider_snowpipe.operators.ingest_files import SnowpipeIngestFilesOperator
from airflow_provider_snowpipe.operators.load import SnowpipeLoadOperator
from airflow_provider_snowpipe.operators.stage_files import SnowpipeStageFilesOperator
from tests.airflow_connections import SetConnection, set_connection
from tests.file_pipes import MakeTarget, PipeTarget, make_target, task_context
from tests.local_connection import connect
from tests.local_service import LocalService

__all__ = ["make_target", "set_connection"]

DAY = 86_400
VIEW = "SNOWFLAKE.ACCOUNT_USAGE.COPY_HISTORY"
_numbers = itertools.count(1)


@pytest.fixture
def target(admin_service: LocalService, make_target: MakeTarget) -> PipeTarget:
    """A target whose service has a clock that the test moves on."""
    target = make_target(admin_service)
    target.make_pipe()
    target.put({"a.csv": "1,x\n"})
    return target


def ingest(target: PipeTarget, run: str = "r1", **arguments: Any) -> dict[str, Any]:
    given = {"table": target.table, "poll_interval": 0.1, "load_timeout": 60.0, **arguments}
    task = SnowpipeIngestFilesOperator(
        task_id="ingest", snowflake_conn_id=target.conn_id, pipe=target.pipe, files=["a.csv"], **given
    )
    return task.execute(task_context(run))


def days_pass(target: PipeTarget, days: int) -> None:
    target.service.admin("clock", move=days * DAY)


def use_role(target: PipeTarget, set_connection: SetConnection, *rights: str) -> None:
    """Let the connection of a target have a role that may give files to the pipe, and further rights."""
    role = f"LOADER{next(_numbers)}"
    for statement in (
        f"CREATE ROLE {role}",
        f"GRANT ROLE {role} TO USER {target.service.user}",
        f"GRANT USAGE ON DATABASE LOCAL TO ROLE {role}",
        f"GRANT USAGE ON SCHEMA LOCAL.PUBLIC TO ROLE {role}",
        f"GRANT SELECT ON TABLE {target.table} TO ROLE {role}",
        f"GRANT READ ON STAGE {target.stage} TO ROLE {role}",
        f"GRANT OPERATE ON PIPE {target.pipe} TO ROLE {role}",
        *(f"GRANT {right} TO ROLE {role}" for right in rights),
    ):
        target.service.sql(statement)
    target.conn_id = connect(target.service, set_connection, extra={"role": role})


def test_a_pipe_finds_what_copy_loaded_thirty_days_ago_where_the_role_may_see_it(
    target: PipeTarget, set_connection: SetConnection, caplog: pytest.LogCaptureFixture
) -> None:
    target.service.sql(f"COPY INTO {target.table} FROM @{target.stage} FILES = ('a.csv')")
    days_pass(target, 30)
    use_role(target, set_connection, "DATABASE ROLE SNOWFLAKE.USAGE_VIEWER")
    with pytest.raises(AirflowFailException, match=rf"FilesGivenTwiceError.*COPY.*{target.pipe}"):
        ingest(target)
    assert target.ids() == [1]

    use_role(target, set_connection)
    with caplog.at_level(logging.WARNING):
        assert ingest(target, "r2")["rows_loaded"] == 1
    (warning,) = [message for message in caplog.messages if VIEW in message]
    assert f'these 1 files into "LOCAL"."PUBLIC"."{target.table}" between 20' in warning
    assert "GRANT DATABASE ROLE SNOWFLAKE.USAGE_VIEWER TO ROLE" in warning


def load_stage(target: PipeTarget, run: str, way: str) -> dict[str, Any]:
    names = {"snowflake_conn_id": target.conn_id, "table": target.table, "file_pipe": target.pipe}
    limits = {"poll_interval": 0.1, "load_timeout": 60.0}
    task = SnowpipeLoadOperator(task_id="load", source=f"@{target.stage}", path=way, **names, **limits)
    context = task_context(run)
    context["ti"].xcom_pull = lambda **_: None
    return task.execute(context)


def test_each_run_takes_what_is_new_either_way_however_late(target: PipeTarget, tmp_path: Path) -> None:
    assert load_stage(target, "r1", "copy")["rows_loaded"] == 1
    names = [f"{name}.csv" for name in ("b c", "d--e", "f'g", "$$", "ü", "%20", "(h*)", "i" * 180)]
    (folder := tmp_path / "odd names").mkdir()
    for number, name in enumerate(names, 2):
        (folder / name).write_text(f"{number},x\n")
    SnowpipeStageFilesOperator(
        task_id="stage", snowflake_conn_id=target.conn_id, source=str(folder), stage=f"@{target.stage}"
    ).execute(task_context("r2"))
    done = load_stage(target, "r2", "pipe")

    assert (sorted(done["files"]), list(done["loaded_before"])) == (sorted(names), ["a.csv"])
    assert load_stage(target, "r3", "copy")["rows_loaded"] == 0
    days_pass(target, 40)
    assert load_stage(target, "r4", "pipe")["rows_loaded"] == 0
    assert target.ids() == list(range(1, 10))


def test_a_pipe_paused_too_long_is_resumed_by_force(target: PipeTarget) -> None:
    def act(action: str, **given: Any) -> SnowpipePipeOperator:
        names = {"snowflake_conn_id": target.conn_id, "pipe": target.pipe}
        return SnowpipePipeOperator(task_id="pipe", action=action, **names, **given)

    act("pause").execute(task_context())
    days_pass(target, 15)
    with pytest.raises(AirflowFailException, match="force=True"):
        act("resume").execute(task_context())
    forced = act("resume", force=True)
    name = f'"LOCAL"."PUBLIC"."{target.pipe}"'
    assert forced.preview() == [f"SELECT SYSTEM$PIPE_FORCE_RESUME('{name}', 'staleness_check_override')"]
    assert forced.execute(task_context())["status"]["execution_state"] == "RUNNING"

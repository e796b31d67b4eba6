"""``SnowpipePipeOperator`` against a real local service: every action, and every action again."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_snowpipe.operators.file_pipe import SnowpipePipeOperator
from airflow_provider_snowpipe.streaming.errors import (
    NothingStagedError,
    PipeBusyError,
    PipeNotRunningError,
)
from tests.airflow_connections import SetConnection, set_connection
from tests.file_pipes import MakeTarget, PipeTarget, make_target, target, task_context
from tests.local_connection import connect_by_form
from tests.local_service import LocalService
from tests.waiting import wait_until

__all__ = ["make_target", "target", "set_connection"]

DAY = 86_400


@pytest.fixture
def aged(admin_service: LocalService, make_target: MakeTarget) -> PipeTarget:
    """A target whose service has a clock that tests move on."""
    return make_target(admin_service)


def operator(target: PipeTarget, action: str, **arguments: Any) -> SnowpipePipeOperator:
    given: dict[str, Any] = {"snowflake_conn_id": target.conn_id, "pipe": target.pipe, **arguments}
    return SnowpipePipeOperator(task_id="pipe", action=action, **given)


def act(target: PipeTarget, action: str, **arguments: Any) -> dict[str, Any]:
    return operator(target, action, **arguments).execute(task_context())


def create(target: PipeTarget, **arguments: Any) -> dict[str, Any]:
    return act(target, "create", **{"table": target.table, "stage": f"@{target.stage}", **arguments})


def wait_for_rows(target: PipeTarget, expected: list[int]) -> None:
    wait_until(lambda: target.ids() == expected, what=f"rows {expected}")


class TestCreate:
    def test_a_pipe_that_is_made_loads_what_is_submitted(
        self, target: PipeTarget, local_service: LocalService, set_connection: SetConnection
    ) -> None:
        target.conn_id = connect_by_form(local_service, set_connection)
        done = create(target, stage=f"@{target.stage}/in", comment="it's mine")

        assert (done["changed"], done["status"]["execution_state"]) == (True, "RUNNING")
        target.put({"in/a.csv": "1,x\n"})
        target.submit("a.csv")
        wait_for_rows(target, [1])
        (shown,) = target.service.sql(f"SHOW PIPES LIKE '{target.pipe}'")
        assert (shown["comment"], shown["notification_channel"]) == ("it's mine", None)

    def test_the_same_pipe_again_stays_with_its_memory(self, target: PipeTarget) -> None:
        first, second = create(target), create(target)

        assert (first["changed"], second["changed"]) == (True, False)
        assert second["statements"] == []

    def test_another_pipe_of_that_name_is_an_error_that_shows_both(self, target: PipeTarget) -> None:
        create(target)

        with pytest.raises(AirflowFailException, match=r"SKIP_FILE.*if_exists='replace'"):
            create(target, options={"on_error": "SKIP_FILE"})
        with pytest.raises(AirflowFailException, match="AUTO_INGEST"):
            create(target, auto_ingest=True)
        assert not create(target, options={"on_error": "SKIP_FILE"}, if_exists="keep")["changed"]

    def test_a_pipe_is_neither_replaced_nor_dropped_while_files_wait(self, target: PipeTarget) -> None:
        create(target)
        act(target, "pause")
        target.put({"a.csv": "1,x\n"})
        target.submit("a.csv")
        changed = {"options": {"on_error": "CONTINUE"}, "if_exists": "replace"}

        with pytest.raises(PipeBusyError, match="1 files wait"):
            create(target, **changed)
        with pytest.raises(PipeBusyError, match="dropped"):
            act(target, "drop")
        done = create(target, **changed, force=True)

        assert (done["changed"], done["status"]["pending_files"]) == (True, 0)
        assert not create(target, **changed)["changed"]
        assert act(target, "drop")["changed"]
        assert not act(target, "drop")["changed"]

    def test_auto_ingest_and_error_integration_are_written(self, target: PipeTarget) -> None:
        done = create(target, auto_ingest=True, integration="EVENTS", error_integration="ERRORS")

        assert done["status"]["notification_channel"]
        (shown,) = target.service.sql(f"SHOW PIPES LIKE '{target.pipe}'")
        assert (shown["integration"], shown["error_integration"]) == ("EVENTS", "ERRORS")
        assert not create(target, auto_ingest=True, integration="EVENTS", error_integration="ERRORS")[
            "changed"
        ]

    def test_a_dry_run_shows_the_statement_and_changes_nothing(
        self, target: PipeTarget, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO")
        rehearsed = operator(target, "create", table=target.table, stage=f"@{target.stage}")
        lines = rehearsed.preview()

        assert lines[0].startswith(f'CREATE PIPE "LOCAL"."PUBLIC"."{target.pipe}" AS COPY INTO')
        assert target.service.sql(f"SHOW PIPES LIKE '{target.pipe}'") == []
        create(target)
        assert rehearsed.preview() == [f"pipe LOCAL.PUBLIC.{target.pipe}: nothing to do"]


class TestChange:
    def test_a_comment_is_set_and_removed(self, target: PipeTarget) -> None:
        target.make_pipe()
        act(target, "alter", comment="new", error_integration="ERRORS")
        (shown,) = target.service.sql(f"SHOW PIPES LIKE '{target.pipe}'")
        assert (shown["comment"], shown["error_integration"]) == ("new", "ERRORS")
        act(target, "alter", comment="")
        with pytest.raises(AirflowFailException, match="altered"):
            act(target, "alter")

        assert target.service.sql(f"SHOW PIPES LIKE '{target.pipe}'")[0]["comment"] is None

    def test_a_paused_pipe_keeps_its_files_until_it_is_resumed(self, target: PipeTarget) -> None:
        target.make_pipe()
        target.put({"a.csv": "1,x\n"})
        paused = act(target, "pause")
        target.submit("a.csv")

        assert paused["status"]["execution_state"] == "PAUSED"
        assert not act(target, "pause")["changed"]
        waiting = act(target, "status")["status"]
        assert (waiting["pending_files"], waiting["oldest_pending_path"]) == (1, "a.csv")
        assert act(target, "resume")["changed"]
        wait_for_rows(target, [1])
        assert not act(target, "resume")["changed"]
        assert act(target, "status")["status"]["last_ingested_path"] == "a.csv"

    def test_a_pipe_paused_too_long_is_resumed_by_force_and_passes_old_files_over(
        self, aged: PipeTarget
    ) -> None:
        aged.make_pipe()
        aged.put({"a.csv": "1,x\n"})
        act(aged, "pause")
        aged.service.admin("clock", move=15 * DAY)

        with pytest.raises(AirflowFailException, match="force=True"):
            act(aged, "resume")
        forced = operator(aged, "resume", force=True)
        name = f'"LOCAL"."PUBLIC"."{aged.pipe}"'
        assert forced.preview() == [f"SELECT SYSTEM$PIPE_FORCE_RESUME('{name}', 'staleness_check_override')"]
        assert forced.execute(task_context())["status"]["execution_state"] == "RUNNING"
        with pytest.raises(NothingStagedError, match="7 days"):
            act(aged, "refresh", on_nothing="fail")
        assert aged.ids() == []

    def test_a_pipe_that_cannot_load_fails_where_it_is_required(self, target: PipeTarget) -> None:
        target.make_pipe()
        act(target, "status", require_running=True)
        target.service.sql(f"DROP TABLE {target.table}")

        with pytest.raises(PipeNotRunningError, match="STOPPED_MISSING_TABLE"):
            act(target, "status", require_running=True)
        assert act(target, "status")["status"]["execution_state"] == "STOPPED_MISSING_TABLE"

    def test_a_pipe_that_is_not_there_is_named(self, target: PipeTarget) -> None:
        for action in ("pause", "resume", "status"):
            with pytest.raises(AirflowFailException, match=r"NOWHERE.*MONITOR"):
                act(target, action, pipe="NOWHERE")


class TestRefresh:
    def test_staged_files_that_nobody_has_loaded_are_submitted(self, target: PipeTarget) -> None:
        target.make_pipe()
        target.put({"in/a.csv": "1,x\n", "in/b.csv": "2,x\n", "other.csv": "9,x\n"})
        target.service.sql(f"COPY INTO {target.table} FROM @{target.stage} FILES = ('in/a.csv')")
        done = act(target, "refresh", prefix="in/")

        assert done["files"] == ["in/b.csv"]
        wait_for_rows(target, [1, 2])
        again = act(target, "refresh", prefix="in/")
        assert (again["files"], again["changed"]) == ([], False)
        with pytest.raises(NothingStagedError, match="COPY INTO"):
            act(target, "refresh", prefix="in/", on_nothing="fail")

    def test_files_that_a_pipe_has_loaded_before_it_was_replaced_are_not_loaded_again(
        self, target: PipeTarget
    ) -> None:
        target.put({"in/a.csv": "1,x\n", "in/b.csv": "2,x\n"})
        create(target)
        act(target, "refresh")
        wait_for_rows(target, [1, 2])
        options = {"file_format": {"type": "CSV", "trim_space": True}}
        create(target, options=options, if_exists="replace")

        with pytest.raises(AirflowFailException, match=r"FilesGivenTwiceError.*replaced"):
            act(target, "refresh")
        assert target.ids() == [1, 2]
        assert len(act(target, "refresh", force=True)["files"]) == 2

    def test_a_later_try_has_the_files_of_one_whose_worker_died(self, target: PipeTarget) -> None:
        """Whoever waits for ``files`` would wait for none of them."""
        target.make_pipe("PATTERN = '.*[.]csv'", path="/in")
        target.put({"in/day/c.csv": "3,x\n"})
        target.submit("day/c.csv")
        wait_for_rows(target, [3])
        began = dt.datetime.now(dt.UTC)
        target.put(
            {"in/day/a.csv": "1,x\n", "in/day/b.csv": "2,x\n", "in/day/b.txt": "8,x\n", "in/d.csv": "9,x\n"}
        )
        target.service.sql(f"COPY INTO {target.table} FROM @{target.stage} FILES = ('in/day/a.csv')")
        act(target, "pause")

        def refresh(number: int) -> Any:
            context = task_context(try_number=number)
            context["dag_run"].start_date = began
            return operator(target, "refresh", prefix="day/", on_nothing="fail").execute(context)["files"]

        assert refresh(1) == ["day/b.csv"]
        assert refresh(2) == ["day/b.csv"]
        act(target, "resume")
        wait_for_rows(target, [1, 2, 3])
        assert refresh(3) == ["day/b.csv"]

    def test_a_timestamp_within_it_narrows_the_files(self, target: PipeTarget) -> None:
        target.make_pipe()
        target.put({"a.csv": "1,x\n"})
        timestamp = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=5)
        week = timestamp - dt.timedelta(days=7, hours=1)
        with pytest.raises(AirflowFailException, match="modified_after"):
            act(target, "refresh", modified_after=week.isoformat())

        assert act(target, "refresh", modified_after=timestamp)["files"] == []
        before = timestamp - dt.timedelta(hours=1)
        assert act(target, "refresh", modified_after=str(before))["files"] == ["a.csv"]

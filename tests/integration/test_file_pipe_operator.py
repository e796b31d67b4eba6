"""``SnowpipePipeOperator`` against a real local service: every action, and every action again."""

import datetime as dt
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_snowpipe.operators.file_pipe import SnowpipePipeOperator
from airflow_provider_snowpipe.streaming.errors import NothingStagedError, PipeBusyError, PipeNotRunningError
from tests.airflow_connections import SetConnection
from tests.file_pipes import PipeTarget, task_context
from tests.local_connection import connect_by_form
from tests.local_service import LocalService
from tests.waiting import wait_until


def operator(target: PipeTarget, action: str, **arguments: Any) -> SnowpipePipeOperator:
    given: dict[str, Any] = {"snowflake_conn_id": target.conn_id, "pipe": target.pipe, **arguments}
    return SnowpipePipeOperator(task_id="pipe", action=action, **given)


def act(target: PipeTarget, action: str, **arguments: Any) -> dict[str, Any]:
    return operator(target, action, **arguments).execute(task_context())


def create(target: PipeTarget, **arguments: Any) -> dict[str, Any]:
    return act(target, "create", **{"table": target.table, "stage": f"@{target.stage}", **arguments})


def wait_for_rows(target: PipeTarget, expected: list[int]) -> None:
    wait_until(lambda: target.ids() == expected, what=f"rows {expected}")


def show(target: PipeTarget) -> list[dict[str, Any]]:
    return target.service.sql(f"SHOW PIPES LIKE '{target.pipe}'")


class TestCreate:
    def test_a_pipe_that_is_made_loads_what_is_submitted_and_is_not_made_again(
        self, target: PipeTarget, local_service: LocalService, set_connection: SetConnection
    ) -> None:
        target.conn_id = connect_by_form(local_service, set_connection)
        given = {"stage": f"@{target.stage}/in", "comment": "it's mine"}
        rehearsed = operator(target, "create", table=target.table, **given)
        statement = f'CREATE PIPE "LOCAL"."PUBLIC"."{target.pipe}" COMMENT = '
        assert rehearsed.preview()[0].startswith(statement)
        assert show(target) == []
        done = create(target, **given)

        assert (done["changed"], done["status"]["execution_state"]) == (True, "RUNNING")
        target.put({"in/a.csv": "1,x\n"})
        target.submit("a.csv")
        wait_for_rows(target, [1])
        assert [(one["comment"], one["notification_channel"]) for one in show(target)] == [
            ("it's mine", None)
        ]
        assert rehearsed.preview() == [f"pipe LOCAL.PUBLIC.{target.pipe}: nothing to do"]
        again = create(target, **given)
        assert (again["changed"], again["statements"]) == (False, [])

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
        gone = {"pipe": f"LOCAL.PUBLIC.{target.pipe}", "action": "drop", "changed": False, "statements": []}
        assert act(target, "drop") == gone

    def test_notifications_and_comments_are_written_changed_and_removed(self, target: PipeTarget) -> None:
        given = {"auto_ingest": True, "integration": "EVENTS", "error_integration": "ERRORS"}
        assert create(target, **given)["status"]["notification_channel"]
        (shown,) = show(target)
        assert (shown["integration"], shown["error_integration"]) == ("EVENTS", "ERRORS")
        assert not create(target, **given)["changed"]
        act(target, "alter", comment="new", error_integration="OTHERS")
        (shown,) = show(target)
        assert (shown["comment"], shown["error_integration"]) == ("new", "OTHERS")
        act(target, "alter", comment="")
        with pytest.raises(AirflowFailException, match="altered"):
            act(target, "alter")
        assert show(target)[0]["comment"] is None


class TestChange:
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

    def test_a_pipe_that_cannot_load_or_is_not_there_is_named(self, target: PipeTarget) -> None:
        target.make_pipe()
        act(target, "status", require_running=True)
        target.service.sql(f"DROP TABLE {target.table}")
        with pytest.raises(PipeNotRunningError, match="STOPPED_MISSING_TABLE"):
            act(target, "status", require_running=True)
        assert act(target, "status")["status"]["execution_state"] == "STOPPED_MISSING_TABLE"
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
        target.began = dt.datetime.now(dt.UTC)
        target.put(
            {"in/day/a.csv": "1,x\n", "in/day/b.csv": "2,x\n", "in/day/b.txt": "8,x\n", "in/d.csv": "9,x\n"}
        )
        target.service.sql(f"COPY INTO {target.table} FROM @{target.stage} FILES = ('in/day/a.csv')")
        act(target, "pause")

        def refresh(number: int) -> Any:
            task = operator(target, "refresh", prefix="day/", on_nothing="fail")
            return task.execute(target.context(try_number=number))["files"]

        assert refresh(1) == ["day/b.csv"]
        assert refresh(2) == ["day/b.csv"]
        act(target, "resume")
        wait_for_rows(target, [1, 2, 3])
        assert refresh(3) == ["day/b.csv"]

"""``SnowpipePipeOperator`` against a real local service: every action, and every action again."""

from __future__ import annotations

import datetime as dt
import time
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
from tests.file_pipes import MakePlace, PipePlace, make_place, place, task_context
from tests.local_connection import connect_by_form
from tests.local_service import LocalService

__all__ = ["make_place", "place", "set_connection"]

DAY = 86_400


@pytest.fixture
def aged(admin_service: LocalService, make_place: MakePlace) -> PipePlace:
    """A place whose service has a clock that tests move on."""
    return make_place(admin_service)


def operator(place: PipePlace, action: str, **arguments: Any) -> SnowpipePipeOperator:
    given: dict[str, Any] = {"snowflake_conn_id": place.conn_id, "pipe": place.pipe, **arguments}
    return SnowpipePipeOperator(task_id="pipe", action=action, **given)


def act(place: PipePlace, action: str, **arguments: Any) -> dict[str, Any]:
    return operator(place, action, **arguments).execute(task_context())


def create(place: PipePlace, **arguments: Any) -> dict[str, Any]:
    return act(place, "create", **{"table": place.table, "stage": f"@{place.stage}", **arguments})


def wait_for_rows(place: PipePlace, expected: list[int]) -> None:
    deadline = time.monotonic() + 240
    while place.ids() != expected:
        assert time.monotonic() < deadline, place.ids()
        time.sleep(0.05)


class TestCreate:
    def test_a_pipe_that_is_made_loads_what_is_submitted(
        self, place: PipePlace, local_service: LocalService, set_connection: SetConnection
    ) -> None:
        place.conn_id = connect_by_form(local_service, set_connection)
        done = create(place, stage=f"@{place.stage}/in", comment="it's mine")

        assert (done["changed"], done["status"]["execution_state"]) == (True, "RUNNING")
        place.put({"in/a.csv": "1,x\n"})
        place.submit("a.csv")
        wait_for_rows(place, [1])
        (shown,) = place.service.sql(f"SHOW PIPES LIKE '{place.pipe}'")
        assert (shown["comment"], shown["notification_channel"]) == ("it's mine", None)

    def test_the_same_pipe_again_stays_with_its_memory(self, place: PipePlace) -> None:
        first, second = create(place), create(place)

        assert (first["changed"], second["changed"]) == (True, False)
        assert second["statements"] == []

    def test_another_pipe_of_that_name_is_an_error_that_shows_both(self, place: PipePlace) -> None:
        create(place)

        with pytest.raises(AirflowFailException, match=r"SKIP_FILE.*if_exists='replace'"):
            create(place, options={"on_error": "SKIP_FILE"})
        with pytest.raises(AirflowFailException, match="AUTO_INGEST"):
            create(place, auto_ingest=True)
        assert not create(place, options={"on_error": "SKIP_FILE"}, if_exists="keep")["changed"]

    def test_a_pipe_is_neither_replaced_nor_dropped_while_files_wait(self, place: PipePlace) -> None:
        create(place)
        act(place, "pause")
        place.put({"a.csv": "1,x\n"})
        place.submit("a.csv")
        changed = {"options": {"on_error": "CONTINUE"}, "if_exists": "replace"}

        with pytest.raises(PipeBusyError, match="1 files wait"):
            create(place, **changed)
        with pytest.raises(PipeBusyError, match="dropped"):
            act(place, "drop")
        done = create(place, **changed, force=True)

        assert (done["changed"], done["status"]["pending_files"]) == (True, 0)
        assert not create(place, **changed)["changed"]
        assert act(place, "drop")["changed"]
        assert not act(place, "drop")["changed"]

    def test_auto_ingest_and_error_integration_are_written(self, place: PipePlace) -> None:
        done = create(place, auto_ingest=True, integration="EVENTS", error_integration="ERRORS")

        assert done["status"]["notification_channel"]
        (shown,) = place.service.sql(f"SHOW PIPES LIKE '{place.pipe}'")
        assert (shown["integration"], shown["error_integration"]) == ("EVENTS", "ERRORS")
        assert not create(place, auto_ingest=True, integration="EVENTS", error_integration="ERRORS")[
            "changed"
        ]

    def test_a_dry_run_shows_the_statement_and_changes_nothing(
        self, place: PipePlace, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO")
        rehearsed = operator(place, "create", table=place.table, stage=f"@{place.stage}")
        lines = rehearsed.preview()

        assert lines[0].startswith(f'CREATE PIPE "LOCAL"."PUBLIC"."{place.pipe}" AS COPY INTO')
        assert place.service.sql(f"SHOW PIPES LIKE '{place.pipe}'") == []
        create(place)
        assert rehearsed.preview() == [f"pipe LOCAL.PUBLIC.{place.pipe}: nothing to do"]


class TestChange:
    def test_a_comment_is_set_and_removed(self, place: PipePlace) -> None:
        place.make_pipe()
        act(place, "alter", comment="new", error_integration="ERRORS")
        (shown,) = place.service.sql(f"SHOW PIPES LIKE '{place.pipe}'")
        assert (shown["comment"], shown["error_integration"]) == ("new", "ERRORS")
        act(place, "alter", comment="")
        with pytest.raises(AirflowFailException, match="altered"):
            act(place, "alter")

        assert place.service.sql(f"SHOW PIPES LIKE '{place.pipe}'")[0]["comment"] is None

    def test_a_paused_pipe_keeps_its_files_until_it_is_resumed(self, place: PipePlace) -> None:
        place.make_pipe()
        place.put({"a.csv": "1,x\n"})
        paused = act(place, "pause")
        place.submit("a.csv")

        assert paused["status"]["execution_state"] == "PAUSED"
        assert not act(place, "pause")["changed"]
        waiting = act(place, "status")["status"]
        assert (waiting["pending_files"], waiting["oldest_pending_path"]) == (1, "a.csv")
        assert act(place, "resume")["changed"]
        wait_for_rows(place, [1])
        assert not act(place, "resume")["changed"]
        assert act(place, "status")["status"]["last_ingested_path"] == "a.csv"

    def test_a_pipe_paused_too_long_is_resumed_by_force_and_passes_old_files_over(
        self, aged: PipePlace
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

    def test_a_pipe_that_cannot_load_fails_where_it_is_required(self, place: PipePlace) -> None:
        place.make_pipe()
        act(place, "status", require_running=True)
        place.service.sql(f"DROP TABLE {place.table}")

        with pytest.raises(PipeNotRunningError, match="STOPPED_MISSING_TABLE"):
            act(place, "status", require_running=True)
        assert act(place, "status")["status"]["execution_state"] == "STOPPED_MISSING_TABLE"

    def test_a_pipe_that_is_not_there_is_named(self, place: PipePlace) -> None:
        for action in ("pause", "resume", "status"):
            with pytest.raises(AirflowFailException, match=r"NOWHERE.*MONITOR"):
                act(place, action, pipe="NOWHERE")


class TestRefresh:
    def test_staged_files_that_nobody_has_loaded_are_submitted(self, place: PipePlace) -> None:
        place.make_pipe()
        place.put({"in/a.csv": "1,x\n", "in/b.csv": "2,x\n", "other.csv": "9,x\n"})
        place.service.sql(f"COPY INTO {place.table} FROM @{place.stage} FILES = ('in/a.csv')")
        done = act(place, "refresh", prefix="in/")

        assert done["files"] == ["in/b.csv"]
        wait_for_rows(place, [1, 2])
        again = act(place, "refresh", prefix="in/")
        assert (again["files"], again["changed"]) == ([], False)
        with pytest.raises(NothingStagedError, match="COPY INTO"):
            act(place, "refresh", prefix="in/", on_nothing="fail")

    def test_a_timestamp_within_it_narrows_the_files(self, place: PipePlace) -> None:
        place.make_pipe()
        place.put({"a.csv": "1,x\n"})
        moment = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=5)
        week = moment - dt.timedelta(days=7, hours=1)
        with pytest.raises(AirflowFailException, match="modified_after"):
            act(place, "refresh", modified_after=week.isoformat())

        assert act(place, "refresh", modified_after=moment)["files"] == []
        before = moment - dt.timedelta(hours=1)
        assert act(place, "refresh", modified_after=str(before))["files"] == ["a.csv"]

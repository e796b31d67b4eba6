"""``SnowpipeIngestFilesOperator`` against a real local service: once per run, and until files are loaded."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred

from airflow_provider_snowpipe.assets.uri import snowpipe_asset
from airflow_provider_snowpipe.lineage import dataset_name
from airflow_provider_snowpipe.operators.ingest_files import SnowpipeIngestFilesOperator
from airflow_provider_snowpipe.sensors.files_loaded import SnowpipeFilesLoadedSensor
from airflow_provider_snowpipe.triggers.files_loaded import SnowpipeFilesLoadedTrigger
from tests.airflow_connections import SetConnection, set_connection
from tests.conftest import ServiceFactory
from tests.file_pipes import MakePlace, PipePlace, make_place, task_context
from tests.local_connection import connect_by_form
from tests.local_service import LocalService
from tests.outlet_events import OutletEvents

__all__ = ["make_place", "set_connection"]

MINUTE = 60
LOADED = {"status": "LOADED", "rows_loaded": 1, "rows_parsed": 1, "errors_seen": 0, "first_error": None}


@pytest.fixture
def place(local_service: LocalService, make_place: MakePlace) -> PipePlace:
    """A place whose service takes faults when a test wants them."""
    place = make_place(local_service)
    place.make_pipe()
    return place


def operator(place: PipePlace, **arguments: Any) -> SnowpipeIngestFilesOperator:
    given: dict[str, Any] = {
        "snowflake_conn_id": place.conn_id,
        "pipe": place.pipe,
        "poll_interval": 0.1,
        "load_timeout": 60.0,
        **arguments,
    }
    return SnowpipeIngestFilesOperator(task_id="ingest", **given)


def ingest(place: PipePlace, run: str = "r1", try_number: int = 1, **arguments: Any) -> dict[str, Any]:
    return operator(place, **arguments).execute(task_context(run, try_number))


def sensor(place: PipePlace, **arguments: Any) -> Any:
    given: dict[str, Any] = {"snowflake_conn_id": place.conn_id, "poke_interval": 0.1, "timeout": 20}
    return SnowpipeFilesLoadedSensor(task_id="wait", **{**given, **arguments}).execute(task_context())


class TestSubmit:
    def test_files_are_loaded_when_the_task_ends_and_an_asset_event_is_sent(
        self, place: PipePlace, local_service: LocalService, set_connection: SetConnection
    ) -> None:
        place.conn_id = connect_by_form(local_service, set_connection)
        place.put({"a.csv": "1,x\n", "in/b.csv": "2,x\n", "in/b.txt": "8,x\n", "out/c.csv": "9,x\n"})
        asset = snowpipe_asset(
            account=place.service.account, database="LOCAL", schema="PUBLIC", table=place.table
        )
        events = OutletEvents(lambda: SimpleNamespace(extra={}))
        chosen = {"stage": f"@{place.stage}", "prefix": "in/", "pattern": ".*[.]csv"}
        assert operator(place, **chosen).preview() == [
            f"would submit 1 of 1 files to pipe LOCAL.PUBLIC.{place.pipe}; 0 were loaded before",
            "would submit in/b.csv",
        ]
        task = operator(place, table=place.table, outlets=[asset], **chosen)
        done = task.execute({**task_context(), "outlet_events": events})

        assert place.ids() == [2]
        assert done["submitted"] == done["files"] == ["in/b.csv"]
        assert (done["posts"], done["loads"], done["loaded_before"]) == (1, {"in/b.csv": LOADED}, {})
        told = {"committed": True, "rows": 1, "loader": f"LOCAL.PUBLIC.{place.pipe}"}
        assert events.made[asset.uri].extra == told
        assert task.task_lineage is not None
        assert (task.task_lineage.sources, task.task_lineage.rows) == ((f"@{place.stage}",), 1)
        assert dataset_name(task.task_lineage.hook) == f"LOCAL.PUBLIC.{place.table}"

    def test_a_stage_is_listed_below_the_pipes_location(self, place: PipePlace) -> None:
        place.service.sql(f"DROP PIPE {place.pipe}")
        place.make_pipe("PATTERN = '.*[.]csv'", path="/in")
        place.put({"in/a.csv": "1,x\n", "in/day/b.csv": "2,x\n", "in/a.txt": "8,x\n", "other.csv": "9,x\n"})
        with pytest.raises(AirflowFailException, match=r"PATTERN.*'a\.txt'"):
            ingest(place, stage=f"@{place.stage}/in")
        done = ingest(place, run="r2", stage=f"@{place.stage}/in", on_unmatched="report")

        assert done["files"] == ["a.csv", "a.txt", "day/b.csv"]
        assert done["unmatched"] == ["a.txt"]
        assert place.ids() == [1, 2]


class TestRefusals:
    def test_a_pipe_that_is_not_there_and_a_connection_without_a_key_pair_are_named(
        self, place: PipePlace, local_service: LocalService, set_connection: SetConnection
    ) -> None:
        with pytest.raises(AirflowFailException, match=r"NOWHERE.*OPERATE"):
            ingest(place, pipe="NOWHERE", files=["a.csv"], wait_for_load=False)
        token = (local_service.data_dir / "demo_pat").read_text().strip()
        place.conn_id = connect_by_form(
            local_service,
            set_connection,
            password=token,
            extra={"auth": "programmatic_access_token", "private_key_content": None},
        )
        with pytest.raises(AirflowFailException, match="key pairs"):
            ingest(place, files=["a.csv"], wait_for_load=False)


def test_the_task_waits_in_the_triggerer_and_comes_back_with_both(place: PipePlace) -> None:
    place.put({"a.csv": "1,x\n"})
    ingest(place, files=["a.csv"])
    place.put({"b.csv": "2,x\n"})
    waiting = operator(place, files=["a.csv", "b.csv"], deferrable=True)
    with pytest.raises(TaskDeferred) as deferred:
        waiting.execute(task_context("r2"))
    event = _event(deferred.value)
    resumed = operator(place, files=["a.csv", "b.csv"], deferrable=True)
    done = resumed.execute_complete(task_context("r2"), event=event, **(deferred.value.kwargs or {}))

    assert (done["loads"], done["loaded_before"]) == ({"b.csv": LOADED}, {"a.csv": LOADED})
    assert done["rows_loaded"] == 1


def _event(deferred: TaskDeferred) -> Mapping[str, Any]:
    _, arguments = deferred.trigger.serialize()

    async def first() -> Any:
        return [event.payload async for event in SnowpipeFilesLoadedTrigger(**arguments).run()]

    (payload,) = asyncio.run(asyncio.wait_for(first(), 240))
    return dict(payload)


class TestForgetfulReport:
    """The pipe's report forgets after ten minutes; loadHistoryScan and COPY_HISTORY still know."""

    @pytest.fixture
    def late(self, service_factory: ServiceFactory, make_place: MakePlace) -> PipePlace:
        """A pipe that loaded a file eleven minutes ago, by the clock of its own service."""
        service = service_factory(admin=True)
        place = make_place(service)
        place.make_pipe()
        place.put({"a.csv": "1,x\n"})
        ingest(place, files=["a.csv"])
        service.admin("clock", move=11 * MINUTE)
        return place

    def test_each_source_steps_in_for_the_one_before(
        self, late: PipePlace, caplog: pytest.LogCaptureFixture
    ) -> None:
        client = operator(late, files=["a.csv"]).hook.get_file_pipe_client()
        now = dt.datetime.now(dt.UTC)
        try:
            assert client.insert_report().loads == []
            assert [load.path for load in client.history(now - dt.timedelta(hours=1), now)] == ["a.csv"]
        finally:
            client.close()

        assert sensor(late, files=["a.csv"], pipe=late.pipe) == {"a.csv": LOADED}

        late.service.admin("faults", set="answer-history-scan=429@60")
        with caplog.at_level(logging.WARNING):
            assert sensor(late, files=["a.csv"], pipe=late.pipe, table=late.table) == {"a.csv": LOADED}
        assert any("asking COPY_HISTORY" in message for message in caplog.messages)

        late.service.admin("faults", clear=True)
        done = ingest(late, try_number=2, files=["a.csv"])
        assert (done["posts"], done["loaded_before"]) == (0, {"a.csv": LOADED})
        assert late.ids() == [1]

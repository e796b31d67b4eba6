"""``SnowpipeIngestFilesOperator`` against a real local service: once per run, and until files are loaded."""

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred

from airflow_provider_snowpipe.assets.uri import snowpipe_asset
from airflow_provider_snowpipe.lineage import dataset_name
from airflow_provider_snowpipe.operators.ingest_files import SnowpipeIngestFilesOperator
from tests.airflow_connections import SetConnection
from tests.file_pipes import MakeTarget, PipeTarget, task_context
from tests.integration.trigger_events import event_of
from tests.local_connection import connect_by_form
from tests.local_service import LocalService
from tests.outlet_events import OutletEvents

LOADED = {"status": "LOADED", "rows_loaded": 1, "rows_parsed": 1, "errors_seen": 0, "first_error": None}


@pytest.fixture
def target(local_service: LocalService, make_target: MakeTarget) -> PipeTarget:
    """A target whose service takes faults when a test asks for them."""
    target = make_target(local_service)
    target.make_pipe()
    return target


def operator(target: PipeTarget, **arguments: Any) -> SnowpipeIngestFilesOperator:
    given: dict[str, Any] = {
        "snowflake_conn_id": target.conn_id,
        "pipe": target.pipe,
        "poll_interval": 0.1,
        "load_timeout": 60.0,
        **arguments,
    }
    return SnowpipeIngestFilesOperator(task_id="ingest", **given)


def ingest(target: PipeTarget, run: str = "r1", try_number: int = 1, **arguments: Any) -> dict[str, Any]:
    return operator(target, **arguments).execute(task_context(run, try_number))


class TestSubmit:
    def test_files_are_loaded_when_the_task_ends_and_an_asset_event_is_sent(
        self, target: PipeTarget, local_service: LocalService, set_connection: SetConnection
    ) -> None:
        target.conn_id = connect_by_form(local_service, set_connection)
        target.put({"a.csv": "1,x\n", "in/b.csv": "2,x\n", "in/b.txt": "8,x\n", "out/c.csv": "9,x\n"})
        asset = snowpipe_asset(
            account=target.service.account, database="LOCAL", schema="PUBLIC", table=target.table
        )
        events = OutletEvents(lambda: SimpleNamespace(extra={}))
        chosen = {"stage": f"@{target.stage}", "prefix": "in/", "pattern": ".*[.]csv"}
        assert operator(target, **chosen).preview() == [
            f"would submit 1 of 1 files to pipe LOCAL.PUBLIC.{target.pipe}; 0 were loaded before",
            "would submit in/b.csv",
        ]
        task = operator(target, table=target.table, outlets=[asset], **chosen)
        done = task.execute({**task_context(), "outlet_events": events})

        assert target.ids() == [2]
        assert done["submitted"] == done["files"] == ["in/b.csv"]
        assert (done["posts"], done["loads"], done["loaded_before"]) == (1, {"in/b.csv": LOADED}, {})
        (entry,) = target.service.sql(
            f"SELECT * FROM SNOWPIPE_LOADS WHERE LOADER = 'LOCAL.PUBLIC.{target.pipe}'"
        )
        assert (entry["STATE"], entry["ROWS_LOADED"], entry["ROWS_REJECTED"]) == ("loaded", 1, 0)
        expected = {"committed": True, "rows": 1, "loader": f"LOCAL.PUBLIC.{target.pipe}"}
        assert events.made[asset.uri].extra == expected
        assert (task.task_lineage.sources, task.task_lineage.rows) == ((f"@{target.stage}",), 1)
        assert dataset_name(task.task_lineage.hook) == f"LOCAL.PUBLIC.{target.table}"

    def test_a_stage_is_listed_below_the_pipes_location(self, target: PipeTarget) -> None:
        target.service.sql(f"DROP PIPE {target.pipe}")
        target.make_pipe("PATTERN = '.*[.]csv'", path="/in")
        target.put({"in/a.csv": "1,x\n", "in/day/b.csv": "2,x\n", "in/a.txt": "8,x\n", "other.csv": "9,x\n"})
        stage = f"@{target.stage}/in"
        with pytest.raises(AirflowFailException, match=r"PATTERN.*'a\.txt'"):
            ingest(target, stage=stage)
        done = ingest(target, run="r2", stage=stage, on_unmatched="report")
        assert (done["files"], done["unmatched"]) == (["a.csv", "a.txt", "day/b.csv"], ["a.txt"])
        assert target.ids() == [1, 2]


def test_the_task_waits_in_the_triggerer_and_comes_back_with_both(target: PipeTarget) -> None:
    target.put({"a.csv": "1,x\n"})
    ingest(target, files=["a.csv"])
    target.put({"b.csv": "2,x\n"})
    waiting = operator(target, files=["a.csv", "b.csv"], deferrable=True)
    with pytest.raises(TaskDeferred) as deferred:
        waiting.execute(task_context("r2"))
    event = event_of(deferred.value.trigger)
    resumed = operator(target, files=["a.csv", "b.csv"], deferrable=True)
    done = resumed.execute_complete(task_context("r2"), event=event, **(deferred.value.kwargs or {}))
    assert (done["loads"], done["loaded_before"]) == ({"b.csv": LOADED}, {"a.csv": LOADED})
    assert done["rows_loaded"] == 1

"""The trigger of loaded files: one event, and polls that are shared."""

import asyncio
import datetime as dt
import json
import time

import pytest

from airflow_provider_snowpipe.triggers.files_loaded import SnowpipeFilesLoadedTrigger
from tests.airflow_connections import PAT
from tests.scripted_service import Reply, error
from tests.unit.triggers.running import event, payloads

pytestmark = pytest.mark.usefixtures("jumping_loop")


@pytest.fixture
def conn_id(service, set_connection, pem):
    """A connection with a key pair to the scripted service; its id."""
    extra = {"account": "ACC", "private_key_content": pem, "database": "DB", "ca_bundle": service.ca_bundle}
    known = {"conn_type": "snowpipe", "host": service.url, "login": "LOADER", "schema": "S"}
    return set_connection("keyed", **known, extra=extra)


def make(conn_id, **options):
    given = {"files": ["a"], "pipe": "P", "snowflake_conn_id": conn_id, "poll_interval": 0.02}
    return SnowpipeFilesLoadedTrigger(**{**given, "since": "2026-01-01", **options})


def report(*names, status="LOADED", **fields):
    files = [{"path": name, "status": status, "rowsInserted": 1, **fields} for name in names]
    return Reply(body=json.dumps({"files": files, "completeResult": True, "nextBeginMark": "1_1"}))


def test_sends_one_event_when_the_last_file_is_loaded_and_at_once_without_a_file(service, conn_id):
    service.on("loadHistoryScan", report())
    service.on("insertReport", report(), report("a"), report("c"), report("b"))
    found = event(make(conn_id, files=["a", "b"]))
    assert (found["status"], list(found["files"])) == ("success", ["a", "b"])
    assert len(service.requests("insertReport")) >= 4
    assert len(service.requests("loadHistoryScan")) == 1
    assert event(make("is_never_asked", files=[])) == {"status": "success", "files": {}}


def test_a_load_of_before_or_one_that_is_accepted_is_no_failure(service, conn_id):
    service.on("loadHistoryScan", report())
    earlier, since = (f"{dt.datetime.now(dt.UTC) - dt.timedelta(hours=ago):%FT%TZ}" for ago in (2, 1))
    failed = report("a", status="LOAD_FAILED", lastInsertTime=earlier)
    service.on("insertReport", failed, report("a", status="PARTIALLY_LOADED"))
    good, bad = payloads(make(conn_id, since=since, on_partial="report"), make(conn_id, since=since))
    assert (good["status"], good["files"]["a"]["status"]) == ("success", "PARTIALLY_LOADED")
    assert bad["reason"] == "partially_loaded"


def test_waits_on_one_pipe_share_each_poll(service, conn_id, run_all):
    names = [f"f{number}" for number in range(30)]
    service.on("loadHistoryScan", report())
    service.on("insertReport", report(), report(), report(), report(*names))
    found = run_all(*(make(conn_id, files=[name], poll_interval=0.25) for name in names))
    assert [list(event["files"]) for event in found] == [[name] for name in names]
    assert 4 <= len(service.requests("insertReport")) <= 12


def test_a_failed_poll_harms_no_wait_and_a_bad_file_only_its_own(service, conn_id, monkeypatch):
    monkeypatch.setattr("airflow_provider_snowpipe.triggers.commit.POLL_BUDGET_SECONDS", 0.0)
    service.on("loadHistoryScan", report("bad", status="LOAD_FAILED"))
    service.on("insertReport", report(), error(503, "BUSY"), Reply(body="nonsense", status=502), report("a"))
    good, bad = payloads(make(conn_id), make(conn_id, files=["bad"]))
    assert (good["status"], bad["reason"]) == ("success", "load_failed")
    service.on("insertReport", error(503, "BUSY"))
    lost = event(make(conn_id, max_consecutive_errors=3))
    assert lost["reason"] == "too_many_errors"
    assert "3 polls in a row failed" in lost["message"]


def test_its_time_ends_even_when_the_service_does_not_answer(service, conn_id):
    service.on("insertReport", Reply(delay=3))
    found = event(make(conn_id, files=["a", "b"], deadline=time.time() + 0.5, timeout=9))
    assert found["reason"] == "timeout"
    assert found["message"].startswith("0 of 2 files loaded after 9 s; missing: 'a', 'b'. See whether")


def test_a_time_limit_of_somebody_else_is_not_taken_for_the_end_of_the_wait():
    async def answers():
        raise TimeoutError("of a connection")
        yield

    async def wait():
        await anext(make("conn", timeout=60).filter_shared_stream(answers()))

    with pytest.raises(TimeoutError, match="connection"):
        asyncio.run(wait())


@pytest.mark.parametrize("loaded", [["a"], []], ids=["loaded", "missing"])
def test_a_triggerer_that_comes_back_after_the_deadline_asks_before_it_gives_up(service, conn_id, loaded):
    service.on("insertReport", report(*loaded))
    service.on("loadHistoryScan", report())
    found = event(make(conn_id, deadline=time.time() - 30, timeout=9, poll_interval=5))
    assert found.get("reason") == (None if loaded else "timeout")
    assert service.requests("insertReport")


def test_a_connection_that_does_not_exist_or_has_no_key_pair_is_refused(service_connection):
    missing, of_token = payloads(make("nowhere"), make(service_connection))
    assert (missing["reason"], of_token["reason"]) == ("configuration", "configuration")
    assert "takes key pairs only" in of_token["message"]
    assert PAT not in of_token["message"]


def test_waits_on_other_tables_or_pipes_share_nothing():
    others = ({}, {"table": "T"}, {"pipe": "Q"}, {"pipe": None, "table": "T"}, {"schema": "S"})
    keys = {make("c", **names).shared_stream_key() for names in others}
    assert len(keys) == 5
    assert make("c", files=["z"], since=None).shared_stream_key() in keys

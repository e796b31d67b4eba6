"""The trigger: one event, and never one too early."""

import asyncio
import json
from collections import Counter

import pytest
from airflow.triggers.base import TaskSuccessEvent

from airflow_provider_snowpipe.triggers.commit import SnowpipeCommitTrigger
from tests.airflow_connections import PAT, statuses
from tests.scripted_service import Reply, error
from tests.unit.triggers.running import payloads

pytestmark = pytest.mark.usefixtures("jumping_loop")


def make(snowflake_conn_id, **options):
    arguments = {"targets": {"c1": "a:2", "c2": "b:2"}, "offset_format": "file:line", "table": "T"}
    given = {**arguments, "poll_interval": 0.01, **options}
    return SnowpipeCommitTrigger(snowflake_conn_id=snowflake_conn_id, **given)


def test_survives_the_round_trip_through_json():
    trigger = make("conn", pipe=None, fail_on_rejected_rows=True)
    path, arguments = trigger.serialize()
    restored = SnowpipeCommitTrigger(**json.loads(json.dumps(arguments)))
    assert path == "airflow_provider_snowpipe.triggers.commit.SnowpipeCommitTrigger"
    assert restored.serialize() == (path, arguments)
    assert arguments["targets"] == {"c1": "a:2", "c2": "b:2"}


def test_sends_one_event_and_only_after_the_last_channel_committed(service, service_connection):
    service.on(
        "bulk-channel-status",
        statuses(c1=None, c2=None),
        statuses(c1="a:2", c2=None),
        statuses(c1="a:2", c2="b:1"),
        statuses(c1="a:2", c2="b:3"),
    )

    found = payloads(make(service_connection))

    assert found == [{"status": "success", "tokens": {"c1": "a:2", "c2": "b:3"}}]
    assert len(service.requests("bulk-channel-status")) >= 4
    assert len(service.requests("token")) == 1
    assert payloads(make(service_connection, targets={})) == [{"status": "success", "tokens": {}}]


INVALID = {"channel_status_code": "ERR_X", "last_committed_offset_token": "b:1"}
REJECTED = {"last_committed_offset_token": "b:2", "rows_error_count": 1}


def test_a_failure_is_one_event_with_its_reason(service, service_connection):
    known = {"snowflake_conn_id": service_connection}
    for options, reply, reason in [
        ({}, Reply(body='{"channel_statuses": {}}'), "channel_missing"),
        ({}, statuses(c1="a:2", c2=INVALID), "channel_invalid"),
        ({}, statuses(c1="a:2", c2="seven"), "bad_token"),
        ({"fail_on_rejected_rows": True}, statuses(c1="a:2", c2=REJECTED), "rows_rejected"),
        ({}, error(404, "ERR_PIPE_DOES_NOT_EXIST_OR_NOT_AUTHORIZED"), "refused"),
        ({"targets": "[]"}, Reply(), "configuration"),
        ({"snowflake_conn_id": "none_such"}, Reply(), "configuration"),
        ({"stall_timeout": 0.05}, statuses(c1="a:2", c2="b:1"), "stalled"),
        ({"end_from_trigger": True}, statuses(c1="a:2"), "channel_missing"),
    ]:
        service.on("bulk-channel-status", reply)
        (event,) = payloads(make(**{**known, **options}))
        assert (event["status"], event["reason"]) == ("failure", reason), options
        assert event["message"]
        assert PAT not in json.dumps(event)


def test_a_trigger_that_ends_its_task_gives_it_the_tokens_as_its_value(service, service_connection):
    service.on("bulk-channel-status", statuses(c1="a:2", c2="b:2"))
    trigger = make(service_connection, end_from_trigger=True)
    event = asyncio.run(anext(aiter(trigger.run())))
    assert isinstance(event, TaskSuccessEvent)
    assert event.xcoms == {"return_value": {"c1": "a:2", "c2": "b:2"}}


class TestSharing:
    @pytest.fixture
    def rounds(self, service, gather_seconds):
        """The names of each status request; every ``c…`` commits when it is polled for the third time."""
        gather_seconds(0.2)
        asked, seen = [], Counter()

        def answer(request):
            names = json.loads(request.body)["channel_names"]
            asked.append(names)
            seen.update(names)
            found = (name for name in names if name.startswith("c"))
            return statuses(**{name: "a:1" if seen[name] >= 3 else None for name in found})

        service.on("bulk-channel-status", answer)
        return asked

    @pytest.fixture
    def good(self, service_connection):
        names = [f"c{number}" for number in range(101)]
        return [make(service_connection, targets={name: "a:1"}, poll_interval=0.3) for name in names]

    def test_waiters_of_a_pipe_share_each_request(self, service, run_all, rounds, good):
        found = run_all(*good)
        assert [one["tokens"] for one in found] == [{f"c{number}": "a:1"} for number in range(101)]
        assert [len(names) for names in rounds[:6]] == [100, 1, 100, 1, 100, 1]
        assert len(rounds) <= 8
        assert len(service.requests("token")) == 1

    @pytest.mark.usefixtures("rounds")
    def test_a_waiters_failure_is_nobody_elses(self, service_connection, run_all, good):
        stalls = {"targets": {"c0": "a:9"}, "stall_timeout": 0.05}
        wrong = [{"targets": {"nobody": "a:1"}}, {"targets": "[]"}, stalls]
        failing = [make(service_connection, poll_interval=0.1, **options) for options in wrong]
        found = run_all(*failing, *good)
        assert [one.get("reason") for one in found[:3]] == ["channel_missing", "configuration", "stalled"]
        assert {one["status"] for one in found[3:]} == {"success"}

    def test_who_names_the_same_pipe_has_the_same_key(self):
        by_table = make("conn", table="T").shared_stream_key()
        by_pipe = make("conn", table=None, pipe="T-STREAMING", targets={"other": "z:9"}, poll_interval=60)
        assert by_table == by_pipe.shared_stream_key()
        for other in (make("conn", schema="S"), make("other")):
            assert other.shared_stream_key() != by_table

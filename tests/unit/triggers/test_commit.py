"""The trigger: one event, and never one too early."""

import asyncio
import json
from collections import Counter

import pytest
from airflow.triggers.base import TaskSuccessEvent

from airflow_provider_snowpipe.triggers.commit import SnowpipeCommitTrigger
from tests.airflow_connections import PAT, statuses
from tests.scripted_service import Reply, error

pytestmark = pytest.mark.usefixtures("jumping_loop")


def make(conn_id, **options):
    arguments = {
        "targets": {"c1": "a:2", "c2": "b:2"},
        "offset_format": "file:line",
        "snowflake_conn_id": conn_id,
        "table": "T",
        "poll_interval": 0.01,
    }
    return SnowpipeCommitTrigger(**{**arguments, **options})


def events(trigger, seconds=240):
    async def collect():
        return [event async for event in trigger.run()]

    return [event.payload for event in asyncio.run(asyncio.wait_for(collect(), seconds))]


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

    assert events(make(service_connection)) == [{"status": "success", "tokens": {"c1": "a:2", "c2": "b:3"}}]
    assert len(service.requests("bulk-channel-status")) >= 4
    assert len(service.requests("token")) == 1


@pytest.mark.parametrize(
    ("options", "reply", "reason"),
    [
        pytest.param({}, Reply(body='{"channel_statuses": {}}'), "channel_missing", id="missing"),
        pytest.param(
            {},
            statuses(c1="a:2", c2={"channel_status_code": "ERR_X", "last_committed_offset_token": "b:1"}),
            "channel_invalid",
            id="invalid",
        ),
        pytest.param({}, statuses(c1="a:2", c2="seven"), "bad_token", id="token"),
        pytest.param(
            {"fail_on_rejected_rows": True},
            statuses(c1="a:2", c2={"last_committed_offset_token": "b:2", "rows_error_count": 1}),
            "rows_rejected",
            id="rejected",
        ),
        pytest.param({}, error(404, "ERR_PIPE_DOES_NOT_EXIST_OR_NOT_AUTHORIZED"), "refused", id="pipe"),
        pytest.param({"targets": "[]"}, Reply(), "configuration", id="no-targets"),
        pytest.param({"offset_format": "no_such"}, Reply(), "configuration", id="format"),
        pytest.param({"table": None}, Reply(), "configuration", id="no-table"),
        pytest.param(
            {"targets": {"c": "17:5000"}, "offset_format": None}, Reply(), "configuration", id="two-formats"
        ),
        pytest.param({"snowflake_conn_id": "none_such"}, Reply(), "configuration", id="no-connection"),
        pytest.param({"stall_timeout": 0.05}, statuses(c1="a:2", c2="b:1"), "stalled", id="stalled"),
        pytest.param({"end_from_trigger": True}, statuses(c1="a:2"), "channel_missing", id="from-trigger"),
    ],
)
def test_a_failure_is_one_event_with_its_reason(service, service_connection, options, reply, reason):
    service.on("bulk-channel-status", reply)

    (event,) = events(make(service_connection, **options))

    assert event["status"] == "failure"
    assert event["reason"] == reason
    assert event["message"]
    assert PAT not in json.dumps(event)


@pytest.mark.parametrize("poll_interval", [17.0, 250.0])
def test_a_wait_sets_the_pace_that_it_was_given(service, service_connection, poll_interval):
    service.on("bulk-channel-status", *[statuses(c1=None, c2=None)] * 3, statuses(c1="a:2", c2="b:2"))
    trigger = make(service_connection, poll_interval=poll_interval)

    async def seconds():
        now = asyncio.get_running_loop().time
        began = now()
        async for _ in trigger.run():
            return now() - began
        raise AssertionError("no event")

    assert 3 * poll_interval * 0.8 <= asyncio.run(seconds()) <= 3 * poll_interval * 1.2


def test_without_a_channel_there_is_nothing_to_wait_for(service_connection):
    assert events(make(service_connection, targets={})) == [{"status": "success", "tokens": {}}]


class TestEndingTheTaskFromTheTrigger:
    def test_succeeds_with_the_tokens_as_the_tasks_value(self, service, service_connection):
        service.on("bulk-channel-status", statuses(c1="a:2", c2="b:2"))
        trigger = make(service_connection, end_from_trigger=True)

        event = asyncio.run(anext(aiter(trigger.run())))

        assert isinstance(event, TaskSuccessEvent)
        assert event.xcoms == {"return_value": {"c1": "a:2", "c2": "b:2"}}


class TestSharing:
    """The same through the poll of an event loop (Airflow before 3.3) and through the triggerer's streams."""

    COUNT = 101

    @pytest.fixture(params=["event_loop", "triggerer"])
    def run_all(self, request, gather_seconds):
        gather_seconds(0.2)
        if request.param == "triggerer":
            pytest.importorskip("airflow.triggers.shared_stream", reason="Airflow has it since 3.3")
        drive = _through_run if request.param == "event_loop" else _through_shared_stream
        return lambda triggers: asyncio.run(asyncio.wait_for(drive(triggers), 240))

    def triggers(self, conn_id, **options):
        return [
            make(conn_id, targets={f"c{number}": "a:1"}, poll_interval=0.3, **options)
            for number in range(self.COUNT)
        ]

    def test_all_waiters_of_a_pipe_cost_one_request_a_hundred_channels(
        self, service, service_connection, run_all
    ):
        rounds = _rounds(service)

        payloads = run_all(self.triggers(service_connection))

        assert payloads == [
            {"status": "success", "tokens": {f"c{number}": "a:1"}} for number in range(self.COUNT)
        ]
        assert [len(names) for names in rounds[:6]] == [100, 1, 100, 1, 100, 1]
        assert len(rounds) <= 8
        assert len(service.requests("token")) == 1

    def test_one_waiters_failure_is_nobody_elses(self, service, service_connection, run_all):
        _rounds(service)
        good = self.triggers(service_connection)
        missing = make(service_connection, targets={"nobody": "a:1"}, poll_interval=0.1)
        wrong = make(service_connection, targets="[]", poll_interval=0.1)
        stalling = make(service_connection, targets={"c0": "a:9"}, poll_interval=0.1, stall_timeout=0.05)

        payloads = run_all([missing, wrong, stalling, *good])

        assert [payload.get("reason") for payload in payloads[:3]] == [
            "channel_missing",
            "configuration",
            "stalled",
        ]
        assert {payload["status"] for payload in payloads[3:]} == {"success"}

    def test_who_names_the_same_pipe_has_the_same_key(self):
        by_table = make("conn", table="T")
        by_pipe = make("conn", table=None, pipe="T-STREAMING", targets={"other": "z:9"}, poll_interval=60)

        assert by_table.shared_stream_key() == by_pipe.shared_stream_key()
        assert make("conn", schema="S").shared_stream_key() != by_table.shared_stream_key()
        assert make("other").shared_stream_key() != by_table.shared_stream_key()


def _rounds(service):
    """Answer status requests: every ``c…`` commits when it is polled for the third time."""
    asked = []
    seen = Counter()

    def answer(request):
        names = json.loads(request.body)["channel_names"]
        asked.append(names)
        seen.update(names)
        return statuses(
            **{name: "a:1" if seen[name] >= 3 else None for name in names if name.startswith("c")}
        )

    service.on("bulk-channel-status", answer)
    return asked


async def _through_run(triggers):
    async def one(trigger):
        (event,) = [event async for event in trigger.run()]
        return event.payload

    return await asyncio.gather(*(one(trigger) for trigger in triggers))


async def _through_shared_stream(triggers):
    from airflow.triggers.shared_stream import SharedStreamManager

    manager = SharedStreamManager()

    async def one(number, trigger):
        key = trigger.shared_stream_key()
        stream = manager.subscribe(trigger_id=number, trigger=trigger, key=key)
        try:
            (event,) = [event async for event in trigger.filter_shared_stream(stream)]
            return event.payload
        finally:
            await manager.unsubscribe(number, key)

    payloads = await asyncio.gather(*(one(number, trigger) for number, trigger in enumerate(triggers)))
    assert manager._groups == {}
    return payloads

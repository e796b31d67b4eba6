"""The trigger: one event, and never one too early."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from airflow.triggers.base import TriggerEvent

from airflow_provider_snowpipe.triggers.commit import SnowpipeCommitTrigger
from tests.airflow_connections import PAT, statuses
from tests.scripted_service import Reply, ScriptedService, error


def make(conn_id: str, **options: Any) -> SnowpipeCommitTrigger:
    arguments: dict[str, Any] = {
        "targets": {"c1": "a:2", "c2": "b:2"},
        "offset_format": "file:line",
        "snowflake_conn_id": conn_id,
        "table": "T",
        "poll_interval": 0.01,
    }
    return SnowpipeCommitTrigger(**{**arguments, **options})


def events(trigger: SnowpipeCommitTrigger, seconds: float = 20) -> list[dict[str, Any]]:
    async def collect() -> list[TriggerEvent]:
        return [event async for event in trigger.run()]

    return [event.payload for event in asyncio.run(asyncio.wait_for(collect(), seconds))]


def test_survives_the_round_trip_through_json() -> None:
    trigger = make("conn", pipe=None, rejected_baseline={"c1": 3}, fail_on_rejected_rows=True)

    path, arguments = trigger.serialize()
    restored = SnowpipeCommitTrigger(**json.loads(json.dumps(arguments)))

    assert path == "airflow_provider_snowpipe.triggers.commit.SnowpipeCommitTrigger"
    assert restored.serialize() == (path, arguments)
    assert arguments["targets"] == {"c1": "a:2", "c2": "b:2"}


def test_constructor_looks_nothing_up() -> None:
    make("there_is_no_such_connection")


def test_sends_one_event_and_only_after_the_last_channel_committed(
    service: ScriptedService, service_connection: str
) -> None:
    service.on(
        "bulk-channel-status",
        statuses(c1=None, c2=None),
        statuses(c1="a:2", c2=None),
        statuses(c1="a:2", c2="b:1"),
        statuses(c1="a:2", c2="b:3"),
    )

    assert events(make(service_connection)) == [{"status": "success", "tokens": {"c1": "a:2", "c2": "b:3"}}]
    assert len(service.requests("bulk-channel-status")) == 4
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
        pytest.param({"targets": {}}, Reply(), "configuration", id="no-targets"),
        pytest.param({"offset_format": "no_such"}, Reply(), "configuration", id="format"),
        pytest.param({"table": None}, Reply(), "configuration", id="no-table"),
    ],
)
def test_a_failure_is_one_event_with_its_reason(
    service: ScriptedService, service_connection: str, options: dict[str, Any], reply: Reply, reason: str
) -> None:
    service.on("bulk-channel-status", reply)

    (event,) = events(make(service_connection, **options))

    assert event["status"] == "failure"
    assert event["reason"] == reason
    assert event["message"]
    assert PAT not in json.dumps(event)


def test_wrong_credentials_are_refused_at_once(service: ScriptedService, service_connection: str) -> None:
    service.on("hostname", error(401, "ERR_BAD_TOKEN"))

    (event,) = events(make(service_connection))

    assert event["reason"] == "refused"


def test_passing_errors_are_survived(
    service: ScriptedService, service_connection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_provider_snowpipe.triggers.commit.POLL_BUDGET_SECONDS", 0.0)
    down = error(503, "ERR_BUSY")
    service.on(
        "bulk-channel-status",
        down,
        down,
        statuses(c1="a:2", c2=None),
        down,
        down,
        statuses(c1="a:2", c2="b:2"),
    )

    (event,) = events(make(service_connection, max_consecutive_errors=3))

    assert event["status"] == "success"


def test_too_many_errors_in_a_row_end_the_wait(
    service: ScriptedService, service_connection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_provider_snowpipe.triggers.commit.POLL_BUDGET_SECONDS", 0.0)
    service.on("bulk-channel-status", error(503, "ERR_BUSY"))

    (event,) = events(make(service_connection, max_consecutive_errors=3))

    assert event["reason"] == "too_many_errors"
    assert event["message"].startswith("3 polls in a row failed")
    assert len(service.requests("bulk-channel-status")) == 3


def test_a_pipe_that_failed_over_gets_a_new_client(service: ScriptedService, service_connection: str) -> None:
    service.on("bulk-channel-status", error(410, "ERR_PIPE_FAILED_OVER"), statuses(c1="a:2", c2="b:2"))

    (event,) = events(make(service_connection))

    assert event["status"] == "success"
    assert len(service.requests("hostname")) == 2


def test_polling_does_not_block_the_event_loop(service: ScriptedService, service_connection: str) -> None:
    service.on("bulk-channel-status", Reply(body=statuses(c1="a:2", c2="b:2").body, delay=0.6))

    async def longest_pause() -> float:
        task = asyncio.ensure_future(anext(aiter(make(service_connection).run())))
        longest, last = 0.0, time.monotonic()
        while not task.done():
            await asyncio.sleep(0.01)
            now = time.monotonic()
            longest, last = max(longest, now - last), now
        return longest

    assert asyncio.run(longest_pause()) < 0.4

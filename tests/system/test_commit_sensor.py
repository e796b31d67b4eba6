"""The commit sensor under a real scheduler and triggerer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from conftest import Stack
from flights_run import RUN_SECONDS, wait_for, wait_until_left

pytestmark = [pytest.mark.airflow, pytest.mark.spark]

DAG_ID, RUN_ID, TABLE = "committed_rows", "delayed_commit", "EVENTS"
CHANNEL, TARGET, ROWS = "committed_rows_events_a", "1.ndjson:5000", 5_000


@pytest.fixture
def no_commits(stack: Stack) -> Iterator[None]:
    stack.service.restart("commit-delay=3600")
    yield
    stack.service.restart()


@pytest.fixture
def events(stack: Stack, tmp_path: Path) -> Path:
    stack.service.sql(f"CREATE TABLE {TABLE} (N INTEGER)")
    (tmp_path / "a").mkdir()
    lines = "".join(json.dumps({"N": number}) + "\n" for number in range(ROWS))
    (tmp_path / "a" / "1.ndjson").write_text(lines)
    return tmp_path


@pytest.mark.usefixtures("no_commits")
def test_downstream_does_not_start_before_the_commit(stack: Stack, events: Path) -> None:
    api = stack.airflow.api
    api.trigger(DAG_ID, RUN_ID, {"table": TABLE, "data_dir": str(events)})
    wait_for(
        lambda: api.task(DAG_ID, RUN_ID, "wait_for_commit")["state"] == "deferred",
        "the sensor did not defer",
    )
    wait_until_left(stack.airflow, DAG_ID, RUN_ID, "wait_for_commit")
    last_uncommitted = datetime.now(UTC)
    with stack.service.client(TABLE) as client:
        assert client.channel_statuses([CHANNEL])[CHANNEL].committed is None
    assert api.task(DAG_ID, RUN_ID, "downstream")["start_date"] is None
    stack.service.restart()  # an orderly stop commits what was received
    with stack.service.client(TABLE) as client:
        assert client.channel_statuses([CHANNEL])[CHANNEL].committed == TARGET

    assert api.wait_for_run(DAG_ID, RUN_ID, RUN_SECONDS) == "success"
    streamed = datetime.fromisoformat(api.task(DAG_ID, RUN_ID, "stream")["end_date"])
    started = datetime.fromisoformat(api.task(DAG_ID, RUN_ID, "downstream")["start_date"])
    assert streamed < last_uncommitted < started
    assert api.xcom(DAG_ID, RUN_ID, "downstream") == ROWS

"""The commit sensor under a real scheduler and triggerer."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from conftest import Stack
from flights_run import POLL_SECONDS, RUN_SECONDS

from tests.airflow_version import AIRFLOW

pytestmark = [pytest.mark.airflow, pytest.mark.spark]

DAG_ID, RUN_ID, TABLE = "committed_rows", "delayed_commit", "EVENTS"
CHANNEL, TARGET, ROWS = "committed_rows_events_a", "1.ndjson:5000", 5_000
DELAY_SECONDS = 12 if AIRFLOW >= (3, 0) else 40
"""Long enough for the sensor to start and to be deferred; a task of Airflow 2 takes its time to start."""


@pytest.fixture
def delayed_commits(stack: Stack) -> Iterator[None]:
    stack.service.restart(f"commit-delay={DELAY_SECONDS}")
    yield
    stack.service.restart()


@pytest.fixture
def events(stack: Stack, tmp_path: Path) -> Path:
    stack.service.sql(f"CREATE TABLE {TABLE} (N INTEGER)")
    (tmp_path / "a").mkdir()
    lines = "".join(json.dumps({"N": number}) + "\n" for number in range(ROWS))
    (tmp_path / "a" / "1.ndjson").write_text(lines)
    return tmp_path


@pytest.mark.usefixtures("delayed_commits")
def test_downstream_does_not_start_before_the_commit(stack: Stack, events: Path) -> None:
    api = stack.airflow.api
    api.trigger(DAG_ID, RUN_ID, {"table": TABLE, "data_dir": str(events)})
    last_uncommitted: datetime | None = None
    sensor_states: set[str | None] = set()
    deadline = time.monotonic() + RUN_SECONDS
    with stack.service.client(TABLE) as client:
        while True:
            asked_at = datetime.now(UTC)
            if client.channel_statuses([CHANNEL])[CHANNEL].committed == TARGET:
                break
            last_uncommitted = asked_at
            sensor_states.add(api.task(DAG_ID, RUN_ID, "wait_for_commit")["state"])
            assert time.monotonic() < deadline, f"{CHANNEL} did not commit {TARGET}; sensor: {sensor_states}"
            time.sleep(POLL_SECONDS)

    assert api.wait_for_run(DAG_ID, RUN_ID, RUN_SECONDS) == "success"
    streamed = datetime.fromisoformat(api.task(DAG_ID, RUN_ID, "stream")["end_date"])
    started = datetime.fromisoformat(api.task(DAG_ID, RUN_ID, "downstream")["start_date"])
    assert last_uncommitted is not None
    assert streamed < last_uncommitted < started
    assert "deferred" in sensor_states
    assert api.xcom(DAG_ID, RUN_ID, "downstream") == ROWS

"""The commit sensor under a real scheduler and triggerer."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from conftest import Stack
from flights_run import RUN_SECONDS, wait_for, wait_until_left

from tests.airflow_version import AIRFLOW
from tests.checkpoints import shown

pytestmark = [pytest.mark.airflow, pytest.mark.spark]
if AIRFLOW >= (3, 0):
    # There test_when_processes_die proves the same daily; it kills processes that Airflow 2 does not have.
    pytestmark.append(pytest.mark.nightly)

DAG_ID, RUN_ID, TABLE = "committed_rows", "delayed_commit", "EVENTS"
CHANNEL, TARGET, ROWS = "committed_rows_events_a", "1.ndjson:5000", 5_000


@pytest.fixture
def events(stack: Stack, tmp_path: Path) -> Path:
    stack.service.sql(f"CREATE TABLE {TABLE} (N INTEGER)")
    (tmp_path / "a").mkdir()
    lines = "".join(json.dumps({"N": number}) + "\n" for number in range(ROWS))
    (tmp_path / "a" / "1.ndjson").write_text(lines)
    return tmp_path


def test_downstream_does_not_start_before_the_commit(stack: Stack, events: Path) -> None:
    api = stack.airflow.api
    stack.unpause(DAG_ID)
    with stack.held_commits(), stack.service.client(TABLE) as client:
        api.trigger(DAG_ID, RUN_ID, {"table": TABLE, "data_dir": str(events)})
        wait_for(
            lambda: api.task(DAG_ID, RUN_ID, "wait_for_commit")["state"] == "deferred",
            "the sensor did not defer",
        )
        wait_until_left(stack.airflow, DAG_ID, RUN_ID, "wait_for_commit")
        last_uncommitted = datetime.now(UTC)
        assert client.channel_statuses([CHANNEL])[CHANNEL].committed is None
        assert api.task(DAG_ID, RUN_ID, "downstream")["start_date"] is None

    assert api.wait_for_run(DAG_ID, RUN_ID, RUN_SECONDS) == "success"
    with stack.service.client(TABLE) as client:
        assert shown(client.channel_statuses([CHANNEL])[CHANNEL].committed) == TARGET
    streamed = datetime.fromisoformat(api.task(DAG_ID, RUN_ID, "stream")["end_date"])
    started = datetime.fromisoformat(api.task(DAG_ID, RUN_ID, "downstream")["start_date"])
    assert streamed < last_uncommitted < started
    assert api.xcom(DAG_ID, RUN_ID, "downstream") == ROWS

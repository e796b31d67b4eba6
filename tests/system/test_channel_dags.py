"""The example DAGs of the channel operators under a real scheduler."""

from __future__ import annotations

import json

import pytest
from conftest import Stack
from flights_run import RUN_SECONDS, wait_for, wait_until_left
from mapped_run import mapped_run

from tests.checkpoints import shown

pytestmark = pytest.mark.airflow

REPLAY, MANY = "reset_and_replay", "many_channels"
WAITING = ("awaiting_input", "deferred")


def replay(stack: Stack) -> None:
    """Begin a run that waits for a person."""
    stack.unpause(REPLAY)
    stack.airflow.api.trigger(REPLAY, "approved", {"table": "REPLAYED", "backup_dir": str(stack.folder)})


def fahrenheit(stack: Stack, table: str) -> int:
    (found,) = stack.service.sql(f"SELECT COUNT(*) AS N FROM {table} WHERE CELSIUS > 50")
    return int(found["N"])


@pytest.mark.begins(run=replay)
@pytest.mark.usefixtures("begun")
def test_rows_are_loaded_again_once_a_person_has_agreed(stack: Stack) -> None:
    wait_for(
        lambda: stack.airflow.api.task(REPLAY, "approved", "approve")["state"] in WAITING,
        "nobody was asked",
    )
    wait_until_left(stack.airflow, REPLAY, "approved", "approve")
    assert fahrenheit(stack, "REPLAYED") == 20
    backup = json.loads((stack.folder / "REPLAYED.json").read_text())
    assert shown(backup["channels"]["reset_and_replay_readings"]["offset_token"]) == "50"

    stack.airflow.api.answer(REPLAY, "approved", "approve", "Approve")

    assert stack.airflow.api.wait_for_run(REPLAY, "approved", RUN_SECONDS) == "success"
    assert stack.airflow.api.xcom(REPLAY, "approved", "verify") == [50, 50, 1000.0]
    reset = stack.airflow.api.xcom(REPLAY, "approved", "reset")
    assert (shown(reset["old"]), shown(reset["new"])) == ("50", "30")
    replayed = stack.airflow.api.xcom(REPLAY, "approved", "replay")
    assert (replayed["rows"], replayed["skipped"], shown(replayed["from"])) == (20, 30, "30")


@pytest.mark.begins(run=mapped_run)
@pytest.mark.usefixtures("begun")
def test_mapped_tasks_load_channels_of_their_own(stack: Stack) -> None:
    api = stack.airflow.api
    assert api.wait_for_run(MANY, "mapped", RUN_SECONDS) == "success"
    assert api.xcom(MANY, "mapped", "count") == {"channels": 3, "rows": 72}
    (found,) = stack.service.sql("SELECT COUNT(*) AS N, COUNT(DISTINCT STATION) AS S FROM STATIONS")
    assert (int(found["N"]), int(found["S"])) == (72, 3)
    with stack.service.client("STATIONS") as client:
        names = [f"many_channels_station_{number:03}" for number in range(3)]
        positions = {shown(status.committed) for status in client.channel_statuses(names).values()}
    assert len(positions) == 1
    assert str(positions.pop()).endswith(":24")

"""The example DAGs of the channel operators under a real scheduler."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Stack
from flights_run import RUN_SECONDS, wait_for, wait_until_left

pytestmark = pytest.mark.airflow

REPLAY, MANY = "reset_and_replay", "many_channels"
WAITING = ("awaiting_input", "deferred")


def ask(stack: Stack, run_id: str, table: str, folder: Path) -> None:
    """Run the DAG up to the point where it waits for a person."""
    api = stack.airflow.api
    api.trigger(REPLAY, run_id, {"table": table, "backup_dir": str(folder)})
    wait_for(
        lambda: api.task(REPLAY, run_id, "approve")["state"] in WAITING,
        "nobody was asked",
        RUN_SECONDS,
    )
    wait_until_left(stack.airflow, REPLAY, run_id, "approve")


def fahrenheit(stack: Stack, table: str) -> int:
    (found,) = stack.service.sql(f"SELECT COUNT(*) AS N FROM {table} WHERE CELSIUS > 50")
    return int(found["N"])


def test_rows_are_loaded_again_once_a_person_has_agreed(stack: Stack, tmp_path: Path) -> None:
    ask(stack, "approved", "REPLAYED", tmp_path)
    assert fahrenheit(stack, "REPLAYED") == 20
    backup = json.loads((tmp_path / "REPLAYED.json").read_text())
    assert backup["channels"]["reset_and_replay_readings"]["offset_token"] == "50"

    stack.airflow.api.answer(REPLAY, "approved", "approve", "Approve")

    assert stack.airflow.api.wait_for_run(REPLAY, "approved", RUN_SECONDS) == "success"
    assert stack.airflow.api.xcom(REPLAY, "approved", "verify") == [50, 50, 1000.0]
    assert stack.airflow.api.xcom(REPLAY, "approved", "reset") == {
        "channel": "reset_and_replay_readings",
        "pipe": "LOCAL.PUBLIC.REPLAYED-STREAMING",
        "old": "50",
        "new": "30",
    }
    replayed = stack.airflow.api.xcom(REPLAY, "approved", "replay")
    assert (replayed["rows"], replayed["skipped"], replayed["from"]) == (20, 30, "30")


def test_nothing_is_touched_when_the_person_does_not_agree(stack: Stack, tmp_path: Path) -> None:
    ask(stack, "rejected", "NOT_REPLAYED", tmp_path)

    stack.airflow.api.answer(REPLAY, "rejected", "approve", "Reject")
    stack.airflow.api.wait_for_run(REPLAY, "rejected", RUN_SECONDS)

    states = {task["task_id"]: task["state"] for task in stack.airflow.api.tasks(REPLAY, "rejected")}
    assert {states[name] for name in ("delete", "reset", "replay")} == {"skipped"}
    assert fahrenheit(stack, "NOT_REPLAYED") == 20


def test_mapped_tasks_load_channels_of_their_own(stack: Stack) -> None:
    api = stack.airflow.api
    api.trigger(MANY, "mapped", {"table": "STATIONS", "stations": 5})

    assert api.wait_for_run(MANY, "mapped", RUN_SECONDS) == "success"
    assert api.xcom(MANY, "mapped", "count") == {"channels": 5, "rows": 120}
    (found,) = stack.service.sql("SELECT COUNT(*) AS N, COUNT(DISTINCT STATION) AS S FROM STATIONS")
    assert (int(found["N"]), int(found["S"])) == (120, 5)
    with stack.service.client("STATIONS") as client:
        names = [f"many_channels_station_{number:03}" for number in range(5)]
        tokens = {status.committed for status in client.channel_statuses(names).values()}
    assert len(tokens) == 1
    assert str(tokens.pop()).endswith(":24")

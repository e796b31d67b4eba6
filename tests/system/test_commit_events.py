"""Asset events of commits under a real scheduler and triggerer, with the triggerer killed by SIGKILL."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from typing import Any

import pytest
from airflow_database import events_of, query, states_of
from conftest import Stack
from flights_run import RUN_SECONDS
from waiting import until

pytestmark = pytest.mark.airflow

TABLE, CHANNELS, LATE = "WATCHED", ("watched_a", "watched_b"), "watched_late"
WATCHERS = ("watched_rows", "watched_moves", "watched_passes")
EVERY, PASSES = 7, 40
PAUSES = (0.0, 2.0, 0.8)


class Writer(threading.Thread):
    """Commits rows to some channels without a pause, until it is told to end."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(daemon=True)
        self._stack = stack
        self._end = threading.Event()
        self.rows: Counter[str] = Counter()
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self._write()
        except Exception as error:  # noqa: BLE001 - told by finish()
            self.error = error

    def finish(self) -> None:
        """End, with all rows committed."""
        self._end.set()
        self.join(300)
        assert not self.is_alive()
        assert self.error is None

    def _write(self) -> None:
        chance = random.Random(7)
        with self._stack.service.client(TABLE) as client:
            continuation: dict[str, str] = {}
            while not self._end.is_set():
                late = [LATE] if sum(self.rows.values()) > 60 else []
                name = chance.choice([*CHANNELS, *late])
                if name not in continuation:
                    continuation[name] = client.open_channel(name).continuation_token
                first, count = self.rows[name] + 1, chance.randrange(1, 5)
                body = b"".join(json.dumps({"N": n}).encode() + b"\n" for n in range(first, first + count))
                continuation[name] = client.append_rows(
                    name,
                    body,
                    continuation_token=continuation[name],
                    start_token=str(first),
                    end_token=str(first + count - 1),
                    content_encoding=None,
                    raw_length=len(body),
                )
                self.rows[name] += count
                self._end.wait(0.3)
            for name, rows in self.rows.items():
                until(lambda n=name, r=rows: client.channel_statuses([n])[n].committed == str(r), 120)


# Three deaths of the triggerer, each at another moment, are for the night: unit/triggers/test_offset proves
# every threshold whenever the triggerer dies, and test_when_processes_die one death under a real Airflow.
@pytest.fixture(scope="module")
def commits(stack: Stack) -> dict[str, Any]:
    """Commits with three deaths of the triggerer among them: rows by channel, and events by asset."""
    stack.service.sql(f"CREATE TABLE {TABLE} (N INTEGER)")
    with stack.service.client(TABLE) as client:
        for name in CHANNELS:
            client.open_channel(name)
    stack.unpause(*WATCHERS)
    stack.airflow.api.parse_again(WATCHERS[0])  # the file of all of them
    until(lambda: _watches_begun(stack) == len(WATCHERS) - 1, RUN_SECONDS, lambda: _watches_begun(stack))
    writer = Writer(stack)
    writer.start()
    for pause in PAUSES:
        before = len(events_of(stack, "watched_rows"))
        until(lambda n=before: len(events_of(stack, "watched_rows")) > n + 2, RUN_SECONDS)
        time.sleep(pause)  # It dies at another moment each time, after what it has confirmed or before.
        stack.airflow.kill_process("triggerer")
        stack.airflow.start_process("triggerer")
    before = len(events_of(stack, "watched_rows"))
    until(lambda: len(events_of(stack, "watched_rows")) > before, RUN_SECONDS)
    writer.finish()
    total = sum(writer.rows.values())
    until(lambda: _reached(events_of(stack, "watched_rows")) == total // EVERY * EVERY, RUN_SECONDS)
    last = str(writer.rows["watched_a"])
    until(
        lambda: _token(events_of(stack, "watched_moves")) == last,
        RUN_SECONDS,
        lambda: f"{last} is not the last of {events_of(stack, 'watched_moves')[-2:]}",
    )
    passed = {name for name, rows in writer.rows.items() if rows >= PASSES}
    until(lambda: _passed(events_of(stack, "watched_passes")) >= passed, RUN_SECONDS)
    time.sleep(3)  # What is told twice is told by now.
    return {"rows": dict(writer.rows), **{name: events_of(stack, name) for name in WATCHERS}}


def payloads(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the events say; of a double only the first, and a double is known by its mark."""
    found: dict[str, dict[str, Any]] = {}
    for event in events:
        payload = dict(event["payload"])
        again = payload.pop("redelivered")
        if payload["id"] in found:
            assert again, f"a double without its mark: {payload}"
            assert payload == found[payload["id"]]
        found.setdefault(payload["id"], payload)
    return list(found.values())


@pytest.mark.nightly
def test_every_threshold_of_rows_is_told_once(commits: dict[str, Any]) -> None:
    told = [
        threshold
        for event in payloads(commits["watched_rows"])
        for threshold in range(event["first"], event["last"] + EVERY, EVERY)
    ]

    assert told == list(range(EVERY, sum(commits["rows"].values()) + 1, EVERY))


@pytest.mark.nightly
def test_the_steps_of_a_channel_have_no_gap_and_no_overlap(commits: dict[str, Any]) -> None:
    steps = [event["channels"]["watched_a"] for event in payloads(commits["watched_moves"])]

    assert len(steps) > len(PAUSES)
    assert [step["previous_token"] for step in steps] == [None, *(step["token"] for step in steps[:-1])]
    assert steps[-1]["rows"] == commits["rows"]["watched_a"]
    assert sum(event["rows"] for event in payloads(commits["watched_moves"])) == steps[-1]["rows"]


@pytest.mark.nightly
def test_each_channel_passes_once_one_that_came_later_too(commits: dict[str, Any]) -> None:
    told = [name for event in payloads(commits["watched_passes"]) for name in event["channels"]]

    assert sorted(told) == sorted(name for name, rows in commits["rows"].items() if rows >= PASSES)
    assert LATE in commits["rows"]


@pytest.mark.nightly
def test_nothing_is_left_to_be_sent_again(stack: Stack, commits: dict[str, Any]) -> None:
    for name in WATCHERS:
        until(lambda one=name: [kept["sent"] for kept in states_of(stack, one)] == [[]], RUN_SECONDS)
        (kept,) = states_of(stack, name)
        assert kept["watermark"]["rows"] == payloads(commits[name])[-1]["total_rows"]


@pytest.mark.nightly
def test_the_events_start_runs(stack: Stack, commits: dict[str, Any]) -> None:
    for dag_id in WATCHERS:
        until(lambda name=dag_id: "success" in _run_states(stack, name), RUN_SECONDS)


@pytest.mark.nightly
def test_no_event_holds_a_secret(stack: Stack, commits: dict[str, Any]) -> None:
    key = stack.service.key_file.read_text().splitlines()[1]
    text = json.dumps([commits[name] for name in WATCHERS])

    assert key not in text
    assert "PRIVATE KEY" not in text
    assert stack.service.user not in text


def committed_meters(stack: Stack) -> None:
    """Begin to load what another DAG watches."""
    stack.unpause("commit_driven_meters", "commit_driven_totals")
    stack.airflow.api.parse_again("commit_driven_totals")
    stack.airflow.api.trigger("commit_driven_meters", "first", {"hours": 30})


@pytest.mark.begins(run=committed_meters)
@pytest.mark.usefixtures("begun")
def test_the_example_starts_a_run_when_its_channel_commits(stack: Stack) -> None:
    api = stack.airflow.api
    assert api.wait_for_run("commit_driven_meters", "first", RUN_SECONDS) == "success"
    until(lambda: "success" in _run_states(stack, "commit_driven_totals"), RUN_SECONDS)
    ((run,),) = query(stack, "SELECT run_id FROM dag_run WHERE dag_id = ?", "commit_driven_totals")
    assert api.xcom("commit_driven_totals", run, "committed")["rows"] == 30
    assert stack.service.sql("SELECT SUM(KWH) AS KWH FROM METER_READINGS") == [{"KWH": 7.5}]


def _watches_begun(stack: Stack) -> int:
    """How many have written down where they start; one with ``passes`` does so with its first event."""
    return sum(bool(states_of(stack, name)) for name in WATCHERS)


def _run_states(stack: Stack, dag_id: str) -> list[str]:
    return [state for (state,) in query(stack, "SELECT state FROM dag_run WHERE dag_id = ?", dag_id)]


def _reached(events: list[dict[str, Any]]) -> int:
    return max((event["payload"]["last"] for event in events), default=0)


def _passed(events: list[dict[str, Any]]) -> set[str]:
    return {name for event in events for name in event["payload"]["channels"]}


def _token(events: list[dict[str, Any]]) -> str | None:
    channels = [event["payload"]["channels"] for event in events]
    return channels[-1]["watched_a"]["token"] if channels else None

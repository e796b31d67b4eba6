"""Sensors that wait under a real scheduler, behind a proxy, for ``benchmarks/deferred_sensors.py``."""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime

from airflow_provider_snowpipe.streaming.progress import STATUS_NAMES_PER_REQUEST
from benchmarks.counting_proxy import CountingProxy, StatusRequest
from demo.airflow_processes import AirflowProcesses
from tests.local_connection import append
from tests.waiting import wait_until

TABLE, RUN_ID = "WAITING", "wait"
POLL_SECONDS = 5.0


class Waiting:
    """A number of sensors in some DAGs over half as many channels, behind a proxy."""

    def __init__(self, airflow: AirflowProcesses, proxy: CountingProxy, dags: int, sensors: int) -> None:
        self.airflow = airflow
        self.proxy = proxy
        self.dags = [f"waiting_{number:02}" for number in range(dags)]
        self.sensors = sensors
        self.channels = [f"w{number:04}" for number in range(sensors // 2)]

    @property
    def requests_per_round(self) -> int:
        """Status requests that ask for all channels once."""
        return math.ceil(len(self.channels) / STATUS_NAMES_PER_REQUEST)

    def prepare(self) -> None:
        """Make table, connection and channels; no channel has committed anything."""
        self.proxy.service.sql(f"CREATE OR REPLACE TABLE {TABLE} (N INTEGER)")
        self.airflow.api.add_connection("counted", self.proxy.connection())
        with self.proxy.service.client(TABLE) as client:
            for name in self.channels:
                client.open_channel(name)

    def start(self) -> None:
        """Start every DAG and wait until the poll covers every channel in one interval."""
        for dag_id in self.dags:
            self.airflow.api.wait_for_dag(dag_id)
            self.airflow.api.unpause(dag_id)
            self.airflow.api.trigger(dag_id, RUN_ID)
        until(lambda: self._states().get("deferred") == self.sensors, 300)
        until(lambda: self._asked_lately() == set(self.channels), 120)

    def commit(self, channels: Sequence[str], token: int) -> float:
        """Commit one row to each channel; when the last of them was committed, seconds since 1970."""
        for name in channels:
            append(self.proxy.service, TABLE, name, [str(token)], rows=[json.dumps({"N": token})])
        with self.proxy.service.client(TABLE) as client:
            until(
                lambda: all(s.committed == str(token) for s in client.channel_statuses(channels).values()), 60
            )
        return time.time()

    def ended(self, task_ids: Sequence[str], seconds: float) -> dict[str, float]:
        """Wait until these sensors have succeeded; when each did, seconds since 1970."""
        chosen = set(task_ids)

        def found() -> dict[str, float]:
            rows = self._query("SELECT task_id, end_date FROM task_instance WHERE state = 'success'")
            return {task_id: _seconds(end) for task_id, end in rows if task_id in chosen}

        until(lambda: len(found()) == len(chosen), seconds)
        return found()

    def sensors_of(self, channels: Sequence[str], token: int) -> list[str]:
        """The sensors whose target is this token of these channels."""
        first = (token - 1) * len(self.channels)
        return [f"sensor_{first + self.channels.index(name):04}" for name in channels]

    def _asked_lately(self) -> set[str]:
        lately = self.proxy.since(time.time() - POLL_SECONDS * 1.5)
        return {name for request in lately for name in request.channels}

    def _states(self) -> dict[str, int]:
        return dict(self._query("SELECT state, COUNT(*) FROM task_instance WHERE state <> '' GROUP BY state"))

    def _query(self, statement: str) -> list[tuple[str, str]]:
        """Ask Airflow's database about the sensors; its API gives a hundred tasks a page."""
        where = " WHERE task_id LIKE 'sensor_%' AND "
        uri = f"file:{self.airflow.home / 'airflow.db'}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=30)) as connection:
            return connection.execute(statement.replace(" WHERE ", where)).fetchall()


def until(condition: Callable[[], object], seconds: float) -> None:
    """Wait for a condition."""
    wait_until(condition, seconds=seconds, every=0.5)


def worst_count(requests: Sequence[StatusRequest], intervals: int, expected: int) -> int:
    """How far the number of requests of any interval strays from what is expected."""
    began = requests[0].at - POLL_SECONDS / 2
    counts = [
        sum(began + n * POLL_SECONDS <= one.at < began + (n + 1) * POLL_SECONDS for one in requests)
        for n in range(intervals - 1)
    ]
    return max(abs(count - expected) for count in counts)


def _seconds(text: str) -> float:
    parsed = datetime.fromisoformat(text)
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()

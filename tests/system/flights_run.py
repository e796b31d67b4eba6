"""A run of the DAG ``flights_to_snowflake`` into a table of its own, watched from outside."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from conftest import Stack

from airflow_provider_snowpipe.streaming.names import channel_name
from demo.airflow_processes import AirflowProcesses

DAG_ID = "flights_to_snowflake"
FLIGHTS = 336_776
ORIGINS = ("EWR", "JFK", "LGA")
CHANNELS = [channel_name(DAG_ID, "flights", origin) for origin in ORIGINS]
RUN_SECONDS = 900.0
POLL_SECONDS = 0.25


class FlightsRun:
    """One DAG run.

    :param stack: what it runs against
    :param table: the table
    :param batch_limits: keys of BatchLimits
    """

    def __init__(self, stack: Stack, table: str, batch_limits: dict[str, Any]) -> None:
        self.stack = stack
        self.table = table
        self.run_id = f"into_{table}"
        self.api = stack.airflow.api
        stack.unpause(DAG_ID)
        folder = stack.folder / "flights"  # shared by all runs
        conf = {"table": table, "data_dir": str(folder), "batch_limits": batch_limits}
        self.api.trigger(DAG_ID, self.run_id, conf)

    def wait(self) -> None:
        """Wait until the run has succeeded; otherwise fail with the logs of the failed tasks."""
        state = self.api.wait_for_run(DAG_ID, self.run_id, RUN_SECONDS)
        logs = [
            f"{task['task_id']}: {line}"
            for task in self.api.tasks(DAG_ID, self.run_id)
            if state != "success" and task["state"] == "failed"
            for line in self.api.task_log(DAG_ID, self.run_id, task["task_id"], task["try_number"])[-30:]
        ]
        assert state == "success", "\n".join(logs)

    def spark_processes(self, word: str) -> list[psutil.Process]:
        """Return the living processes of Airflow whose command line holds this run's name and a word."""
        found = []
        for process in self.stack.airflow.members():
            try:
                line = process.cmdline()
            except psutil.Error:
                continue
            if any(self.run_id in part for part in line) and any(word in part for part in line):
                found.append(process)
        return found

    @property
    def applications(self) -> int:
        """How many Spark applications have started, by the event logs of their drivers."""
        return event_logs_with(self.stack, self.run_id)

    def xcom(self, task_id: str, key: str = "return_value") -> Any:
        """Return one XCom's value."""
        return self.api.xcom(DAG_ID, self.run_id, task_id, key)

    def assert_every_flight_is_there_once(self) -> None:
        """Ask the service for rows and distinct flights, and for the channels' tokens."""
        (row,) = self.stack.service.sql(
            f"SELECT COUNT(*) AS R, COUNT(DISTINCT FLIGHT_ID) AS F FROM {self.table}"
        )
        assert (int(row["R"]), int(row["F"])) == (FLIGHTS, FLIGHTS)
        with self.stack.service.client(self.table) as client:
            statuses = client.channel_statuses(CHANNELS)
        targets = {name: one["token"] for name, one in self.xcom("stream", "targets").items()}
        assert {name: status.committed for name, status in statuses.items()} == targets
        assert sum(status.rows_inserted for status in statuses.values()) == FLIGHTS


def event_logs_with(stack: Stack, text: str) -> int:
    """Count Spark's event logs that hold a text; a log gets its final name when its driver ends."""
    while True:
        try:
            texts = [file.read_text(errors="replace") for file in stack.events.iterdir()]
        except FileNotFoundError:
            continue
        return sum(text in one for one in texts)


def wait_for(condition: Callable[[], bool], otherwise: str, timeout: float = RUN_SECONDS) -> None:
    """Wait until a condition holds, and fail with a message when it does not in time."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"{otherwise} within {timeout:.0f} s"
        time.sleep(POLL_SECONDS)


def wait_until_left(airflow: AirflowProcesses, dag_id: str, run_id: str, task_id: str) -> None:
    """Wait until the scheduler knows that the first process of a task has ended, which has deferred it.

    Airflow 3.3.2 takes an answer or an event that comes before that for a failure of the task: it has the
    task queued again when it gets the event of an end.
    """
    key = f"dag_id='{dag_id}', task_id='{task_id}', run_id='{run_id}', try_number=1"
    received = re.compile(rf"Received executor event .*{re.escape(key)}\b")
    log = Path(airflow.log_file("scheduler"))
    wait_for(
        lambda: received.search(log.read_text()) is not None,
        f"the scheduler did not notice the end of {task_id}",
        RUN_SECONDS,
    )

"""Runs of DAGs under a real Airflow, watched from outside."""

import json
import math
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
from conftest import Stack

from airflow_provider_snowpipe.streaming.names import channel_name
from airflow_provider_snowpipe.streaming.progress import ChannelStatus
from tests.checkpoints import shown
from tests.waiting import wait_until

RUN_SECONDS = 900.0
PARTITIONS = ("a", "b")
ROWS_EACH = 3_000
ROWS = ROWS_EACH * len(PARTITIONS)


def wait_for(condition: Callable[[], object], otherwise: str) -> None:
    wait_until(condition, seconds=RUN_SECONDS, what=otherwise, every=0.25)


def query(stack: Stack, statement: str, *values: str) -> list[tuple[str, ...]]:
    """Ask Airflow's database, where its API takes long or has no words."""
    uri = f"file:{stack.airflow.home / 'airflow.db'}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, timeout=30)) as connection:
        return connection.execute(statement, values).fetchall()


class DagRun:
    """One run of a DAG, begun with some params."""

    def __init__(self, stack: Stack, dag_id: str, run_id: str, conf: dict[str, Any] | None = None) -> None:
        self.stack, self.api, self.dag_id, self.run_id = stack, stack.airflow.api, dag_id, run_id
        stack.unpause(dag_id)
        self.api.trigger(dag_id, run_id, conf)

    def wait(self) -> None:
        """Wait until it has succeeded; otherwise fail with the logs of the failed tasks."""
        state = self.api.wait_for_run(self.dag_id, self.run_id, RUN_SECONDS)
        failed = [one for one in self.api.tasks(self.dag_id, self.run_id) if one["state"] == "failed"]
        logs = [f"{one['task_id']}: {line}" for one in failed for line in self.log(one["task_id"])[-30:]]
        assert state == "success", "\n".join(logs)

    def task(self, task_id: str) -> dict[str, Any]:
        return self.api.task(self.dag_id, self.run_id, task_id)

    def xcom(self, task_id: str, key: str = "return_value") -> Any:
        return self.api.xcom(self.dag_id, self.run_id, task_id, key)

    def log(self, task_id: str) -> list[str]:
        """The lines of a task's last try."""
        return self.api.task_log(self.dag_id, self.run_id, task_id, self.task(task_id)["try_number"])

    def started(self, task_id: str) -> float:
        """When a task started, seconds since 1970; infinity as long as it has not."""
        start = self.task(task_id)["start_date"]
        return math.inf if start is None else datetime.fromisoformat(start).timestamp()

    def triggerer(self, task_id: str) -> int | None:
        """The number of the triggerer that waits for a deferred task, None if none has taken it yet."""
        return (self.task(task_id).get("triggerer_job") or {}).get("id")

    def wait_for_state(self, task_id: str, *states: str) -> None:
        wait_for(lambda: self.task(task_id)["state"] in states, f"{task_id} is not {states}")

    def wait_until_waiting(self, task_id: str) -> None:
        """Wait until a task is deferred, and the scheduler knows that its first process has ended.

        Airflow 3.3.2 takes an answer or an event that comes before that for a failure of the task: it has
        the task queued again when it gets the event of an end.
        """
        self.wait_for_state(task_id, "deferred", "awaiting_input")
        key = f"dag_id='{self.dag_id}', task_id='{task_id}', run_id='{self.run_id}', try_number=1"
        received = re.compile(rf"Received executor event .*{re.escape(key)}\b")
        log = Path(self.stack.airflow.log_file("scheduler"))
        wait_for(
            lambda: received.search(log.read_text()), f"the scheduler did not notice the end of {task_id}"
        )

    @property
    def application(self) -> str:
        """The name of the Spark applications of its task ``stream``."""
        return f"snowpipe.{self.dag_id}.stream.{self.run_id}"

    def driver(self) -> psutil.Process:
        """The JVM of the Spark driver."""
        (driver,) = self.spark_processes()
        return driver

    def spark_processes(self) -> list[psutil.Process]:
        """The living JVMs that the run has submitted."""
        found = []
        for process in psutil.process_iter():
            try:
                line = process.cmdline()
                dead = process.status() == psutil.STATUS_ZOMBIE
            except psutil.Error:
                continue
            if "org.apache.spark.deploy.SparkSubmit" in line and self.application in line and not dead:
                found.append(process)
        return found

    @property
    def applications(self) -> int:
        """How many Spark applications have started, by the event logs of their drivers."""
        while True:
            try:
                texts = [file.read_text(errors="replace") for file in self.stack.events.iterdir()]
            except FileNotFoundError:  # a log gets its final name when its driver ends
                continue
            return sum(f'"App Name":"{self.application}"' in text for text in texts)


def mapped_run(stack: Stack) -> DagRun:
    return DagRun(stack, "many_channels", "mapped", {"table": "STATIONS", "stations": 3})


class LoadRun(DagRun):
    """One run of a DAG with the tasks ``stream`` and ``downstream``, with a table and files of its own."""

    def __init__(self, stack: Stack, dag_id: str, table: str, folder: Path) -> None:
        self.table = table
        self.channels = [channel_name(dag_id, table, partition) for partition in PARTITIONS]
        stack.service.sql(f"CREATE TABLE {table} (N INTEGER)")
        for number, partition in enumerate(PARTITIONS):
            file = folder / table / partition / "1.ndjson"
            file.parent.mkdir(parents=True)
            numbers = range(number * ROWS_EACH, (number + 1) * ROWS_EACH)
            file.write_text("".join(json.dumps({"N": n}) + "\n" for n in numbers))
        self._client = stack.service.client(table)
        params = {"table": table, "data_dir": str(folder / table)}
        super().__init__(stack, dag_id, f"into_{table}", params)

    def statuses(self) -> dict[str, ChannelStatus]:
        return self._client.channel_statuses(self.channels)

    def rows(self) -> int:
        return sum(status.rows_inserted for status in self.statuses().values())

    def assert_every_row_is_there_once(self) -> None:
        """Ask the service for rows, distinct rows, and the channels' tokens; downstream saw them all."""
        (row,) = self.stack.service.sql(f"SELECT COUNT(*) AS R, COUNT(DISTINCT N) AS D FROM {self.table}")
        assert (int(row["R"]), int(row["D"])) == (ROWS, ROWS)
        tokens = {name: status.committed for name, status in self.statuses().items()}
        assert tokens == {name: one["token"] for name, one in self.xcom("stream", "targets").items()}
        assert set(map(shown, tokens.values())) == {f"1.ndjson:{ROWS_EACH}"}
        assert self.xcom("downstream") == ROWS


@dataclass
class Observed:
    """What all of Airflow's processes showed: their command lines, and who listened where."""

    command_lines: set[str] = field(default_factory=set)
    listeners: set[tuple[str, str]] = field(default_factory=set)


@contextmanager
def observed(stack: Stack) -> Iterator[Observed]:
    """Watch all processes until the block ends."""
    seen, end = Observed(), threading.Event()

    def watch() -> None:
        sessions, due = set[int](), 0.0
        while not end.wait(0.2):
            if time.monotonic() >= due:
                sessions |= _listen(stack, seen)
                due = time.monotonic() + 2.0
            for pid in psutil.pids():
                with suppress(psutil.Error, ProcessLookupError):
                    if os.getsid(pid) in sessions:
                        seen.command_lines.add(" ".join(psutil.Process(pid).cmdline()))

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        try:
            yield seen
        finally:
            end.set()
        watching.result()


def _listen(stack: Stack, seen: Observed) -> set[int]:
    """Note who listens; the sessions of all processes."""
    sessions = set()
    for process in stack.airflow.members():
        with suppress(psutil.Error, ProcessLookupError):
            sessions.add(os.getsid(process.pid))
            some = process.net_connections("inet")
            addresses = {one.laddr.ip for one in some if one.status == psutil.CONN_LISTEN}
            seen.listeners |= {(process.name(), address) for address in addresses}
    return sessions

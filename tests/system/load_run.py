"""A run of a DAG that loads numbered rows into a table of its own, watched from outside."""

from __future__ import annotations

import json
import math
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
from conftest import Stack
from flights_run import RUN_SECONDS, event_logs_with, wait_for

from airflow_provider_snowpipe.streaming.names import channel_name
from airflow_provider_snowpipe.streaming.progress import ChannelStatus
from tests.checkpoints import shown

PARTITIONS = ("a", "b")
ROWS_EACH = 3_000
ROWS = ROWS_EACH * len(PARTITIONS)
# Thirty appends to a channel in eight seconds: slow enough to be met in the middle.
SLOW = {"rows": 100, "requests_per_second": 4.0}
STOP_SECONDS = 60.0
"""Airflow's heartbeat, after which a task knows that it has to stop, and five seconds for the driver."""


class LoadRun:
    """One DAG run with a table and files of its own.

    :param stack: what it runs against
    :param dag_id: a DAG with the tasks ``stream`` and ``downstream``
    :param table: the table, which is made
    :param folder: where its files go
    :param limits: keys of BatchLimits
    :param conf: more of the DAG's params
    """

    def __init__(
        self,
        stack: Stack,
        dag_id: str,
        table: str,
        folder: Path,
        limits: dict[str, Any] | None = None,
        **conf: Any,
    ) -> None:
        self.stack, self.dag_id, self.table = stack, dag_id, table
        self.run_id = f"into_{table}"
        self.api = stack.airflow.api
        self.channels = [channel_name(dag_id, table, partition) for partition in PARTITIONS]
        stack.service.sql(f"CREATE TABLE {table} (N INTEGER)")
        for number, partition in enumerate(PARTITIONS):
            file = folder / table / partition / "1.ndjson"
            file.parent.mkdir(parents=True)
            numbers = range(number * ROWS_EACH, (number + 1) * ROWS_EACH)
            file.write_text("".join(json.dumps({"N": n}) + "\n" for n in numbers))
        stack.unpause(dag_id)
        self._client = stack.service.client(table)
        given = {"table": table, "data_dir": str(folder / table), "batch_limits": limits or {}, **conf}
        self.api.trigger(dag_id, self.run_id, given)

    def wait(self) -> None:
        """Wait until the run has succeeded; otherwise fail with the end of the load's log."""
        state = self.api.wait_for_run(self.dag_id, self.run_id, RUN_SECONDS)
        assert state == "success", "\n".join(self.log()[-40:])

    def wait_until_begun(self) -> None:
        """Wait until the driver has opened the channels."""
        wait_for(
            lambda: all(one.exists for one in self.statuses().values()),
            f"no channels of {self.table}",
            RUN_SECONDS,
        )

    def wait_until_committing(self) -> None:
        """Wait until some rows are committed, and not yet all of them."""
        try:
            wait_for(lambda: 0 < self.rows() < ROWS, f"no channel of {self.table} was seen committing")
        except AssertionError as error:
            error.add_note("\n".join([f"{self.rows()} rows", *self.log()[-40:]]))
            raise

    def wait_for_state(self, task_id: str, state: str) -> None:
        """Wait until a task is in a state."""
        wait_for(lambda: self.task(task_id)["state"] == state, f"{task_id} is not {state}", RUN_SECONDS)

    def wait_until_stopped(self, driver: psutil.Process) -> None:
        """Wait until neither this driver nor another process of the run lives, within a bounded time."""
        wait_for(
            lambda: not driver.is_running() and not self.spark_processes(),
            f"the driver of {self.run_id} lives",
            STOP_SECONDS,
        )

    def driver(self) -> psutil.Process:
        """The JVM of the run's Spark driver."""
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
    def application(self) -> str:
        """The name of the run's Spark applications."""
        return f"snowpipe.{self.dag_id}.stream.{self.run_id}"

    @property
    def applications(self) -> int:
        """How many Spark applications have started, by the event logs of their drivers."""
        return event_logs_with(self.stack, f'"App Name":"{self.application}"')

    def task(self, task_id: str) -> dict[str, Any]:
        """One task instance."""
        return self.api.task(self.dag_id, self.run_id, task_id)

    def xcom(self, task_id: str, key: str = "return_value") -> Any:
        """One XCom's value."""
        return self.api.xcom(self.dag_id, self.run_id, task_id, key)

    def links(self, task_id: str) -> dict[str, str | None]:
        """The addresses of a task's links as the UI gets them."""
        return self.api.links(self.dag_id, self.run_id, task_id)

    def triggerer(self, task_id: str) -> int | None:
        """The number of the triggerer that waits for a deferred task, None if none has taken it yet."""
        job = self.task(task_id).get("triggerer_job") or {}
        return job.get("id")

    def log(self) -> list[str]:
        """The lines of the load's last try."""
        return self.api.task_log(self.dag_id, self.run_id, "stream", self.task("stream")["try_number"])

    def statuses(self) -> dict[str, ChannelStatus]:
        """The channels as the service sees them."""
        return self._client.channel_statuses(self.channels)

    def rows(self) -> int:
        """Rows that the service has committed."""
        return sum(status.rows_inserted for status in self.statuses().values())

    def assert_every_row_is_there_once(self) -> None:
        """Ask the service for rows, distinct rows, and the channels' tokens; downstream saw them all."""
        (row,) = self.stack.service.sql(f"SELECT COUNT(*) AS R, COUNT(DISTINCT N) AS D FROM {self.table}")
        assert (int(row["R"]), int(row["D"])) == (ROWS, ROWS)
        tokens = {name: status.committed for name, status in self.statuses().items()}
        targets = {name: one["token"] for name, one in self.xcom("stream", "targets").items()}
        assert tokens == targets
        assert set(map(shown, tokens.values())) == {f"1.ndjson:{ROWS_EACH}"}
        assert self.xcom("downstream") == ROWS

    def started(self, task_id: str) -> float:
        """When a task started, seconds since 1970; infinity as long as it has not."""
        start = self.task(task_id)["start_date"]
        return math.inf if start is None else datetime.fromisoformat(start).timestamp()

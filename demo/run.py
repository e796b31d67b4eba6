"""One demo: start the service and Airflow, run the DAG, compare every number, stop everything."""

from __future__ import annotations

import fcntl
import json
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from airflow_provider_snowpipe.streaming.names import channel_name
from demo.airflow_api import FINAL_STATES
from demo.airflow_processes import AirflowProcesses
from demo.progress import LiveProgress, Snapshot
from demo.report import Report
from demo.snowpipe_service import SnowpipeService

DAGS = Path(__file__).resolve().parents[1] / "dags"
DAG_ID = "flights_to_snowflake"
TABLE = "FLIGHTS"
ORIGINS = ("EWR", "JFK", "LGA")
POLL_SECONDS = 0.5
RUN_SECONDS = 900.0
_UNFINISHED = frozenset({"waiting", "scheduled", "queued", "running", "deferred", "up_for_retry"})
SPARK_CONNECTION = {"conn_type": "spark", "host": "local[2,4]"}
# Small batches, for the eye: with the defaults each channel would jump from nothing to all in three steps.
BATCH_LIMITS = {"rows": 10_000}


class DemoError(Exception):
    """The demo cannot go on; the text gives the reason and where to find more."""


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold the demo's folder for this process alone.

    :raises DemoError: if another demo holds it
    """
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DemoError(
                f"another demo is running in {folder.resolve()}: end it with Ctrl-C first"
            ) from None
        yield


class Demo:
    """The demo in one folder, which keeps the service's and Airflow's state for the next run.

    :param folder: for all state, files and logs
    :param keep: True leaves everything running in the end, until Ctrl-C
    """

    def __init__(self, folder: Path, *, keep: bool) -> None:
        self._folder = folder.resolve()
        self._keep = keep
        self._console = Console()
        self._service = SnowpipeService(self._folder / "service")
        dags = DAGS if keep else self._own_dag()
        self._airflow = AirflowProcesses(self._folder / "airflow", dags, read_only_ui=not keep, forked=True)
        self._channels = {origin: channel_name(DAG_ID, TABLE.lower(), origin) for origin in ORIGINS}
        self._began = time.monotonic()

    def run(self) -> int:
        """Run the demo and return its exit code: 0 only if every number agrees."""
        idle = False
        try:
            self._start()
            report = self._load()
            idle = not self._keep
            self._console.print(report.render())
            if self._keep:
                self._show_ui()
                self._wait_for_ctrl_c()
            else:
                self._console.print("make demo KEEP=1 leaves the Airflow UI running.", highlight=False)
            return 0 if report.agrees else 1
        except (RuntimeError, TimeoutError) as error:
            raise DemoError(f"{error}\nLogs: {self._service.log} and {self._airflow.logs}") from error
        finally:
            try:
                if idle:
                    self._service.terminate()  # nobody asks it any more: it ends while Airflow does
                self._airflow.stop(idle=idle)
            finally:
                self._service.stop()

    def _own_dag(self) -> Path:
        """A folder of the demo's DAG alone: the others are for those who explore the UI."""
        dags = self._folder / "dags"
        dags.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(DAGS / f"{DAG_ID}.py", dags / f"{DAG_ID}.py")
        return dags

    def _start(self) -> None:
        self._log("starting the local Snowpipe service and Airflow")
        self._service.start()
        self._airflow.prepare()
        self._service.wait_until_ready()
        settings = {
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(SPARK_CONNECTION),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        self._airflow.start({**self._service.env, **settings})
        self._airflow.wait_until_healthy()
        self._airflow.api.wait_for_dag(DAG_ID)
        self._log(f"Airflow is healthy: {self._airflow.url}")

    def _load(self) -> Report:
        before = self._table_counts()
        api = self._airflow.api
        api.unpause(DAG_ID)
        if left := api.fail_unfinished_runs(DAG_ID):
            self._log(f"an interrupted demo left {', '.join(left)}: its channels resume where they committed")
        run_id = f"demo__{datetime.now(UTC):%Y-%m-%dT%H-%M-%S}"
        conf = {"table": TABLE, "data_dir": str(self._folder / "flights"), "batch_limits": BATCH_LIMITS}
        api.trigger(DAG_ID, run_id, conf)
        self._log(f"DAG run {DAG_ID} / {run_id}")
        with LiveProgress(self._console) as progress:
            state = self._watch(run_id, progress)
        if state != "success":
            raise DemoError(self._failure(run_id, state))
        return self._report(run_id, before)

    def _watch(self, run_id: str, progress: LiveProgress) -> str:
        api = self._airflow.api
        expected: Mapping[str, Any] | None = None
        deadline = time.monotonic() + RUN_SECONDS
        with self._service.client(TABLE) as client:
            while True:
                tasks = {task["task_id"]: task["state"] or "waiting" for task in api.tasks(DAG_ID, run_id)}
                if expected is None and tasks.get("split_flights") == "success":
                    expected = api.xcom(DAG_ID, run_id, "split_flights")
                statuses = {}
                if tasks.get("create_table") == "success":
                    statuses = client.channel_statuses(list(self._channels.values()))
                progress.show(Snapshot(tasks, self._channels, statuses, expected))
                # Each request takes processor time from the run itself.
                unfinished = _UNFINISHED.intersection(tasks.values())
                state = "running" if unfinished else api.run_state(DAG_ID, run_id)
                if state in FINAL_STATES:
                    return state
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"{DAG_ID} / {run_id} is {state} after {RUN_SECONDS:.0f} s; tasks: {tasks}"
                    )
                time.sleep(POLL_SECONDS)

    def _report(self, run_id: str, before: Mapping[str, int]) -> Report:
        api = self._airflow.api
        with self._service.client(TABLE) as client:
            statuses = client.channel_statuses(list(self._channels.values()))
        return Report(
            table=f"{TABLE}",
            expected=api.xcom(DAG_ID, run_id, "split_flights"),
            before=before["rows"],
            found=self._table_counts(),
            sent=api.xcom(DAG_ID, run_id, "stream")["rows"],
            tries=api.task(DAG_ID, run_id, "stream")["try_number"],
            targets={
                channel: target["token"]
                for channel, target in api.xcom(DAG_ID, run_id, "stream", "targets").items()
            },
            statuses=statuses,
            seconds=time.monotonic() - self._began,
        )

    def _table_counts(self) -> dict[str, int]:
        schema = "LOCAL.PUBLIC"
        tables = self._service.sql(f"SHOW TABLES LIKE '{TABLE}' IN SCHEMA {schema}")
        if not tables:
            return {"rows": 0, "flights": 0}
        question = f"SELECT COUNT(*) AS R, COUNT(DISTINCT FLIGHT_ID) AS F FROM {schema}.{TABLE}"  # noqa: S608 - constants
        (row,) = self._service.sql(question)
        return {"rows": int(row["r"]), "flights": int(row["f"])}

    def _failure(self, run_id: str, state: str) -> str:
        api = self._airflow.api
        lines = [
            f"the DAG run is {state}; logs: {self._airflow.logs} (Airflow), {self._service.log} (service)"
        ]
        for task in api.tasks(DAG_ID, run_id):
            if task["state"] == "failed":
                log = api.task_log(DAG_ID, run_id, task["task_id"], task["try_number"])
                lines += [
                    f"--- task {task['task_id']}, try {task['try_number']}: the end of its log",
                    *log[-20:],
                ]
        return "\n".join(lines)

    def _show_ui(self) -> None:
        user, password = self._airflow.login
        self._console.print(
            f"Airflow UI {self._airflow.url}  login {user} / {password}",
            highlight=False,
            soft_wrap=True,
        )

    def _wait_for_ctrl_c(self) -> None:
        self._console.print("Everything keeps running; press Ctrl-C to stop it.")
        with suppress(KeyboardInterrupt):
            signal.pause()

    def _log(self, text: str) -> None:
        self._console.print(
            f"[dim]{time.monotonic() - self._began:5.1f} s[/dim]  {text}", highlight=False, soft_wrap=True
        )

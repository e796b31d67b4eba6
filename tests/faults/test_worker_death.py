"""The stream task when its worker is killed after the submission: one application, every row once."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_provider_snowpipe.operators.driver_place import DriverPlace
from tests.airflow_connections import SetConnection, set_connection
from tests.local_service import LocalService
from tests.python_workers import children_of, kill_each
from tests.spark_job import ids_in, new_table, wait_until, write_rows
from tests.stream_worker import FileState, execute, start_worker

__all__ = ["set_connection"]

pytestmark = pytest.mark.spark

ROWS = 3000
SLOW = {"rows": 100, "requests_per_second": 2.0}
"""Fifteen seconds: the driver has to outlive its worker."""


class Load:
    """A load of fifteen seconds, its state, and the Spark applications that it has started."""

    def __init__(self, service: LocalService, conn_id: str, folder: Path) -> None:
        self.service = service
        self.table = new_table(service, "T")
        self.state_file = folder / "state.json"
        self.state = FileState(self.state_file)
        self.log = folder / "worker.log"
        self.events = folder / "events"
        self.events.mkdir()
        write_rows(folder / "source" / "a" / "0.ndjson", range(ROWS))
        self.options: dict[str, Any] = {
            "source": {"path": str(folder / "source")},
            "table": self.table,
            "snowflake_conn_id": conn_id,
            "channel_prefix": "p",
            "source_name": "s",
            "batch_limits": SLOW,
            "driver_memory": "512m",
            "conf": {
                "spark.ui.enabled": "false",
                "spark.driver.host": "127.0.0.1",
                "spark.eventLog.enabled": "true",
                "spark.eventLog.dir": f"file://{self.events}",
                "spark.eventLog.compress": "false",
                "spark.eventLog.rolling.enabled": "false",
            },
        }

    def kill_worker_under_way(self) -> DriverPlace:
        """Start a try, kill its worker when the first rows are committed; where its driver runs on."""
        worker = start_worker(self.options, self.state_file, self.log)
        try:
            wait_until(lambda: self.committed() is not None, seconds=300, what="the first commit")
        finally:
            worker.send_signal(signal.SIGKILL)
            worker.wait()
        assert self.committed() != f"0.ndjson:{ROWS}", "the run was over before it could be interrupted"
        return DriverPlace(**self.state.values()["snowpipe_driver"])

    def committed(self) -> str | None:
        with self.service.client(self.table) as client:
            return client.channel_statuses(["p_s_a"])["p_s_a"].committed

    @property
    def applications(self) -> int:
        return len(list(self.events.iterdir()))


@pytest.fixture
def load(service_factory: Callable[..., LocalService], set_connection: SetConnection, tmp_path: Path) -> Load:
    service = service_factory()
    fields = json.loads(service.env["AIRFLOW_CONN_SNOWFLAKE_DEFAULT"])
    fields["extra"] = {**fields["extra"], "ca_bundle": str(service.ca_file)}
    set_connection("spark_default", conn_type="spark", host="local[2,4]")
    return Load(service, set_connection("local", **fields), tmp_path)


def test_the_retry_finishes_with_the_application_that_the_killed_worker_started(load: Load) -> None:
    place = load.kill_worker_under_way()
    running = {process.pid for process in place.processes()}

    value = execute(load.options, load.state)

    assert running
    assert load.applications == 1
    assert value["channels"]["p_s_a"]["rows"] == ROWS
    assert ids_in(load.service, load.table) == list(range(ROWS))
    assert load.state.values() == {}


def test_the_retry_resumes_when_the_driver_died_with_its_worker(load: Load) -> None:
    place = load.kill_worker_under_way()
    for process in place.processes():
        kill_each([process, *children_of(process, recursive=True)])
    wait_until(lambda: not place.processes(), seconds=300, what="the driver's end")

    value = execute(load.options, load.state)

    assert load.applications == 2
    assert 0 < value["channels"]["p_s_a"]["rows"] < ROWS
    assert ids_in(load.service, load.table) == list(range(ROWS))
    assert not [one for one in psutil.process_iter() if one.pid in {p.pid for p in place.processes()}]

"""The stream task when its worker is killed, alone or with its driver: the next try loads every row once."""

from __future__ import annotations

import itertools
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_snowpipe.operators.client_job import DriverLocation
from tests.airflow_connections import SetConnection, set_connection
from tests.local_connection import connect
from tests.local_service import LocalService
from tests.python_workers import children_of, kill_each
from tests.spark_job import ids_in, new_table, wait_until, write_rows
from tests.stream_worker import FileState, execute, start_worker

__all__ = ["set_connection"]

pytestmark = pytest.mark.spark

ROWS = 1000
APPENDS = {"rows": 100}
HELD = "slow-append=0x4,slow-append=600"
"""Four appends are answered, the fifth is held up until the faults are cleared."""
_numbers = itertools.count(1)


class Load:
    """A load that is held up in its middle, its state, and the Spark applications that it has started."""

    def __init__(self, service: LocalService, conn_id: str, folder: Path) -> None:
        self.service = service
        self.table = new_table(service, f"STREAMED_{next(_numbers)}")
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
            "batch_limits": APPENDS,
            "driver_memory": "512m",
            "conf": {
                "spark.ui.enabled": "false",
                "spark.driver.host": "127.0.0.1",
                "spark.speculation": "true",
                "spark.eventLog.enabled": "true",
                "spark.eventLog.dir": f"file://{self.events}",
                "spark.eventLog.compress": "false",
                "spark.eventLog.rolling.enabled": "false",
            },
        }

    def kill_worker_under_way(self) -> DriverLocation:
        """Start a try, kill its worker when some rows are committed; where its driver runs on, held up."""
        self.service.admin("faults", set=HELD)
        worker = start_worker(self.options, self.state_file, self.log)

        def held() -> bool:
            assert worker.poll() is None, f"the worker has ended: {self.log.read_text()[-2000:]}"
            return self.committed() == "0.ndjson:400" and not self.service.admin("faults")["faults"]

        try:
            wait_until(held, seconds=300, what="the first commits")
        finally:
            worker.send_signal(signal.SIGKILL)
            worker.wait()
        return DriverLocation(**self.state.values()["snowpipe_driver"])

    def committed(self) -> str | None:
        with self.service.client(self.table) as client:
            return client.channel_statuses(["p_s_a"])["p_s_a"].committed

    @property
    def applications(self) -> int:
        return len(list(self.events.iterdir()))

    def speculates(self) -> set[str]:
        """What Spark's setting was in the applications, whatever its submitter had set."""
        lines = [line for log in self.events.iterdir() for line in log.read_text().splitlines()]
        events = [json.loads(line) for line in lines if "SparkListenerEnvironmentUpdate" in line]
        return {dict(event["Spark Properties"])["spark.speculation"] for event in events}


@pytest.fixture
def load(admin_service: LocalService, set_connection: SetConnection, tmp_path: Path) -> Load:
    set_connection("spark_default", conn_type="spark", host="local[2,4]")
    return Load(admin_service, connect(admin_service, set_connection), tmp_path)


def test_the_retry_finishes_with_the_application_that_the_killed_worker_started(load: Load) -> None:
    location = load.kill_worker_under_way()
    running = location.processes()
    load.service.admin("faults", clear=True)

    value = execute(load.options, load.state)

    assert running
    assert load.applications == 1
    assert load.speculates() == {"false"}
    assert value["channels"]["p_s_a"]["rows"] == ROWS
    assert ids_in(load.service, load.table) == list(range(ROWS))
    assert load.state.values() == {}


@pytest.mark.nightly  # test_job_faults.py proves it daily without Spark
def test_the_retry_resumes_when_the_driver_died_with_its_worker(load: Load) -> None:
    location = load.kill_worker_under_way()
    for process in location.processes():
        kill_each([process, *children_of(process, recursive=True)])
    wait_until(lambda: not location.processes(), seconds=300, what="the driver's end")
    load.service.admin("faults", clear=True)

    value = execute(load.options, load.state)

    assert load.applications == 2
    assert 0 < value["channels"]["p_s_a"]["rows"] < ROWS
    assert ids_in(load.service, load.table) == list(range(ROWS))

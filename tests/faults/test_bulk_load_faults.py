"""The bulk load task when its worker or its Spark driver is killed: the next try loads every row once.

Every day a worker dies in ``system/test_when_processes_die``. Each crash point runs in the operator's tests.
"""

from __future__ import annotations

import itertools
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from glob import glob
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_provider_snowpipe.operators.client_job import DriverLocation
from tests.airflow_connections import SetConnection, set_connection
from tests.bulk_worker import execute, start_worker
from tests.local_connection import connect, ids
from tests.local_service import LocalService
from tests.python_workers import kill_each
from tests.stream_worker import FileState
from tests.waiting import wait_until

__all__ = ["set_connection"]

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

ROWS = 3_000
QUICK = "SELECT /*+ COALESCE(1) */ id AS ID, concat('row ', id) AS NAME FROM range({rows})"
# Thirty tasks, two at a time, whose every row takes a while: the first file is there long before the last.
LONG = (
    "SELECT ID, concat('row ', coalesce(reflect('java.lang.Thread', 'sleep', 4L), '')) AS NAME "
    "FROM (SELECT /*+ REPARTITION(30) */ id AS ID FROM range({rows}))"
)
_SECONDS = 300
"""A worker imports Airflow and starts a driver meanwhile, on a machine with other work."""
_numbers = itertools.count(1)


class Load:
    """A table, a stage, a worker's first try, and the Spark applications that were started."""

    def __init__(self, service: LocalService, conn_id: str, folder: Path, name: str) -> None:
        self.service, self.table, self.stage = service, f"{name}_TABLE", f"{name}_STAGE"
        self.log, self.work, self.events = folder / "worker.log", folder / "work", folder / "events"
        self.state_file = folder / "state.json"
        self.work.mkdir()
        self.events.mkdir()
        service.sql(f"CREATE TABLE {self.table} (ID NUMBER, NAME VARCHAR)")
        service.sql(f"CREATE STAGE {self.stage}")
        self.options: dict[str, Any] = {
            "source": {"query": QUICK.format(rows=ROWS)},
            "table": self.table,
            "stage": f"@{self.stage}",
            "work_path": str(self.work),
            "parallel": 1,
            "snowflake_conn_id": conn_id,
            "driver_memory": "512m",
            "conf": {
                "spark.ui.enabled": "false",
                "spark.driver.host": "127.0.0.1",
                "spark.eventLog.enabled": "true",
                "spark.eventLog.dir": self.events.as_uri(),
                "spark.eventLog.compress": "false",
                "spark.eventLog.rolling.enabled": "false",
            },
        }

    @contextmanager
    def worker(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run the first try in a process of its own, which is killed when the block ends."""
        worker = start_worker(self.options, self.state_file, self.log)
        try:
            yield worker
        finally:
            worker.send_signal(signal.SIGKILL)
            worker.wait()

    def wait(self, condition: Callable[[], bool], worker: subprocess.Popen[bytes], what: str) -> None:
        """Wait for something that the worker brings about."""

        def holds() -> bool:
            assert worker.poll() is None, f"the worker has ended: {self.log.read_text()[-2000:]}"
            return condition()

        wait_until(holds, seconds=_SECONDS, what=what)

    def retry(self, try_number: int = 2) -> dict[str, Any]:
        return execute(self.options, FileState(self.state_file), try_number)

    def location(self) -> DriverLocation:
        return DriverLocation(**FileState(self.state_file).values()["snowpipe_driver"])

    def stop_driver(self) -> list[psutil.Process]:
        """Let the driver stand still, so that it outlives its worker; its processes."""
        processes = _with_children(self.location().processes())
        for process in processes:
            process.suspend()
        return processes

    def writes(self) -> bool:
        """True when Spark has written a file of some."""
        return bool(glob(f"{self.work}/**/*.parquet", recursive=True))

    def staged(self) -> list[str]:
        """The names in the stage, without the folders."""
        return sorted(str(row["name"]).rpartition("/")[2] for row in self.service.sql(f"LIST @{self.stage}"))

    @property
    def applications(self) -> int:
        return len(list(self.events.iterdir()))

    def assert_every_row_is_there_once(self, done: dict[str, Any]) -> None:
        """Also after a third try, which loads nothing and starts nothing."""
        applications = self.applications
        assert done["rows_loaded"] == done["rows"] == ROWS
        assert ids(self.service, self.table) == list(range(ROWS))
        assert self.retry(3) == done
        assert ids(self.service, self.table) == list(range(ROWS))
        assert self.applications == applications
        assert self.staged() == []
        assert FileState(self.state_file).values() == {}


@pytest.fixture
def load(
    admin_service: LocalService,
    set_connection: SetConnection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Load:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(admin_service.ca_file))
    set_connection("spark_default", conn_type="spark", host="local[2]")
    return Load(admin_service, connect(admin_service, set_connection), tmp_path, f"BULK{next(_numbers)}")


def _with_children(leaders: list[psutil.Process]) -> list[psutil.Process]:
    everyone: dict[int, psutil.Process] = {}
    for leader in leaders:
        try:
            everyone |= {one.pid: one for one in (leader, *leader.children(recursive=True))}
        except psutil.NoSuchProcess:
            continue  # it ended meanwhile
    return list(everyone.values())


class TestWhileSparkWrites:
    @pytest.fixture(autouse=True)
    def slow(self, load: Load) -> None:
        load.options["source"] = {"query": LONG.format(rows=ROWS)}

    def test_the_next_try_takes_what_the_driver_of_a_killed_worker_writes(self, load: Load) -> None:
        with load.worker() as worker:
            load.wait(load.writes, worker, "the first file")
            driver = load.stop_driver()
        assert driver
        assert not load.location().report_path.exists(), "the driver had ended before the worker was killed"
        for process in driver:
            process.resume()

        done = load.retry()

        assert load.applications == 1
        load.assert_every_row_is_there_once(done)
        assert list(load.work.iterdir()) == []

    def test_the_next_try_writes_anew_when_the_driver_died_with_its_worker(self, load: Load) -> None:
        with load.worker() as worker:
            load.wait(load.writes, worker, "the first file")
            processes = _with_children(load.location().processes())
        assert kill_each(processes)
        psutil.wait_procs(processes, 30)
        assert not load.location().report_path.exists(), "the driver had ended before it was killed"

        load.options["source"] = {"query": QUICK.format(rows=ROWS)}
        done = load.retry()

        assert load.applications == 2
        load.assert_every_row_is_there_once(done)
        assert list(load.work.iterdir()) == []

    def test_a_driver_that_dies_alone_fails_the_task_and_the_next_try_writes_anew(self, load: Load) -> None:
        with load.worker() as worker:
            load.wait(load.writes, worker, "the first file")
            assert kill_each(_with_children(load.location().processes()))
            assert worker.wait(_SECONDS) == 1
        assert "AirflowException: " in load.log.read_text()
        assert "AirflowFailException" not in load.log.read_text()
        assert load.staged() == []
        assert list(load.work.iterdir()) == []

        load.options["source"] = {"query": QUICK.format(rows=ROWS)}
        done = load.retry()

        assert load.applications == 2
        load.assert_every_row_is_there_once(done)
        assert list(load.work.iterdir()) == []

"""The bulk load task when its worker or its Spark driver is killed: the next try loads every row once.

Every day a worker dies in ``system/test_when_processes_die``. Each crash point runs in the operator's tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_provider_snowpipe.operators.client_job import DriverLocation
from tests.airflow_connections import SetConnection, set_connection
from tests.bulk_worker import execute, start_worker
from tests.local_connection import connect, ids
from tests.local_service import LocalService
from tests.python_workers import children_of, kill_each
from tests.stream_worker import FileState
from tests.waiting import wait_until

__all__ = ["set_connection"]

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

ROWS = 3_000
QUICK = f"SELECT /*+ COALESCE(1) */ id AS ID, concat('row ', id) AS NAME FROM range({ROWS})"
# Thirty tasks, two at a time, whose every row takes a while: the first file is there long before the last.
LONG = (
    "SELECT ID, concat('row ', coalesce(reflect('java.lang.Thread', 'sleep', 4L), '')) AS NAME "
    f"FROM (SELECT /*+ REPARTITION(30) */ id AS ID FROM range({ROWS}))"
)
_SECONDS = 300
"""A worker imports Airflow and starts a driver meanwhile, on a machine with other work."""


class Load:
    """A table, a stage, a worker's first try, and the Spark applications that were started."""

    def __init__(self, service: LocalService, conn_id: str, folder: Path, name: str) -> None:
        self.service, self.table, self.stage = service, f"{name}_TABLE", f"{name}_STAGE"
        self.log, self.work, self.events = folder / "worker.log", folder / "work", folder / "events"
        self.state = FileState(folder / "state.json")
        self._state_file = folder / "state.json"
        self.work.mkdir()
        self.events.mkdir()
        service.sql(f"CREATE TABLE {self.table} (ID NUMBER, NAME VARCHAR)")
        service.sql(f"CREATE STAGE {self.stage}")
        self.options: dict[str, Any] = {
            "source": {"query": LONG},
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
                "spark.eventLog.rolling.enabled": "false",
            },
        }

    @contextmanager
    def first_try(self) -> Iterator[Any]:
        """A worker whose driver has written a file of some; it is killed when the block ends."""
        worker = start_worker(self.options, self._state_file, self.log)

        def writes() -> bool:
            assert worker.poll() is None, f"the worker has ended: {self.log.read_text()[-2000:]}"
            return any(self.work.rglob("*.parquet"))

        try:
            wait_until(writes, seconds=_SECONDS, what="the first file")
            yield worker
        finally:
            worker.kill()
            worker.wait()

    def location(self) -> DriverLocation:
        return DriverLocation(**self.state.values()["snowpipe_driver"])

    def driver(self) -> list[psutil.Process]:
        leaders = self.location().processes()
        return [*leaders, *(child for one in leaders for child in children_of(one, recursive=True))]

    def retry(self, try_number: int = 2) -> dict[str, Any]:
        return execute(self.options, self.state, try_number)

    @property
    def applications(self) -> int:
        return len(list(self.events.iterdir()))


@pytest.mark.parametrize("dies", ["worker", "driver", "worker and driver"])
def test_the_next_try_takes_what_a_living_driver_writes_and_writes_again_after_a_dead_one(
    admin_service: LocalService,
    set_connection: SetConnection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dies: str,
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(admin_service.ca_file))
    set_connection("spark_default", conn_type="spark", host="local[2]")
    name = f"BULK_{dies}".replace(" ", "_").upper()
    load = Load(admin_service, connect(admin_service, set_connection), tmp_path, name)
    with load.first_try() as worker:
        driver = load.driver()
        if dies == "driver":
            assert kill_each(driver)
            assert worker.wait(_SECONDS) == 1
        else:
            for process in driver:
                process.suspend()  # so that it has not ended before its worker
    if dies == "driver":
        log = load.log.read_text()
        assert "AirflowException: " in log
        assert "AirflowFailException" not in log
        assert list(load.work.iterdir()) == []
    else:
        assert not load.location().report_path.exists()
    if dies == "worker":
        for process in driver:
            process.resume()
    else:
        kill_each(driver)
        load.options["source"] = {"query": QUICK}

    done = load.retry()

    assert load.applications == (1 if dies == "worker" else 2)
    assert done["rows_loaded"] == done["rows"] == ROWS
    assert ids(load.service, load.table) == list(range(ROWS))
    assert load.retry(3) == done
    assert ids(load.service, load.table) == list(range(ROWS))
    assert load.applications == (1 if dies == "worker" else 2)
    assert load.service.sql(f"LIST @{load.stage}") == []
    assert load.state.values() == {}
    assert list(load.work.iterdir()) == []

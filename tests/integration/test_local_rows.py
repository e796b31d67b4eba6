"""Few rows on a local master, loaded by a task and its driver where there is neither Java nor PySpark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from tests.conftest import ServiceFactory
from tests.local_service import LocalService
from tests.spark_job import ids_in, new_table, numbered_name, write_rows
from tests.stream_worker import FileState, execute, start_worker
from tests.waiting import wait_until

SLOW = {"rows": 40, "requests_per_second": 4.0}
"""Twenty-five appends to a channel, a burst and then four a second."""
EACH = 1000


@dataclass
class Lab:
    """A task whose tries are processes of their own.

    :param folder: has the source, what the tries keep, and their log
    """

    service: LocalService
    folder: Path
    table: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def source(self) -> Path:
        return self.folder / "src"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def write(self, name: str, ids: range) -> None:
        write_rows(self.source / name, ids)

    def given(self, options: dict[str, Any]) -> dict[str, Any]:
        given = {"source": {"path": str(self.source)}, "table": self.table, "channel_prefix": "p"}
        return {**given, **self.options, **options}

    def start(self, **options: Any) -> subprocess.Popen[bytes]:
        """Run a try in a process of its own."""
        return start_worker(self.given(options), self.folder / "state.json", self.folder / "log")

    def run(self, **options: Any) -> dict[str, Any]:
        """Run a try in this process."""
        return execute(self.given(options), FileState(self.folder / "state.json"))

    def drivers(self) -> list[psutil.Process]:
        """The living drivers, which have their plan in a folder of temporary files."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            line = process.info["cmdline"] or [""]
            if line[-1].startswith(str(self.folder / "tmp")) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        return found

    def loading(self) -> psutil.Process:
        """Wait until some rows are committed and not yet all, and return the driver."""
        wait_until(lambda: ids_in(self.service, self.table), seconds=60, what="the first rows")
        assert len(ids_in(self.service, self.table)) < 2 * EACH, self.log
        [driver] = self.drivers()
        return driver


def no_java_no_pyspark(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Leave no Java on the path, and a PySpark that cannot be imported."""
    package = folder / "lib" / "pyspark"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('PySpark is imported')\n")
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(sys.executable)
    patch.setenv("PATH", str(folder / "bin"))
    patch.delenv("JAVA_HOME", raising=False)
    patch.setenv("PYTHONPATH", os.pathsep.join([str(package.parent), os.environ.get("PYTHONPATH", "")]))


def make_lab(service: LocalService, folder: Path, patch: pytest.MonkeyPatch) -> Lab:
    for name, value in service.env.items():
        patch.setenv(name, value)
    (folder / "tmp").mkdir()
    patch.setenv("TMPDIR", str(folder / "tmp"))
    patch.setattr(tempfile, "tempdir", None)
    patch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    no_java_no_pyspark(folder, patch)
    return Lab(service, folder, numbered_name("FEW"))


@pytest.fixture
def lab(local_service, tmp_path, monkeypatch):
    return make_lab(local_service, tmp_path, monkeypatch)


@pytest.fixture
def slow(lab):
    """A load of two channels that takes seconds, into a table that is there."""
    new_table(lab.service, lab.table)
    lab.write("a/1.ndjson", range(EACH))
    lab.write("b/1.ndjson", range(EACH, 2 * EACH))
    lab.options = {"batch_limits": SLOW}
    return lab


def test_rows_are_loaded_once_and_then_from_where_they_were_left(lab):
    lab.write("a/1.ndjson", range(300))
    lab.write("b/1.ndjson", range(300, 500))

    assert lab.start(create_table="if_missing").wait(240) == 0, lab.log
    lab.write("b/1.ndjson", range(500, 600))
    lab.write("c/1.ndjson", range(600, 700))
    second, third = lab.run(), lab.run()

    assert ids_in(lab.service, lab.table) == list(range(700))
    assert "snowpipe start channels=2" in lab.log
    assert (second["rows"], third["rows"]) == (200, 0)
    assert [one["rows"] for one in second["channels"].values()] == [0, 100, 100]
    assert all(one["committed"] for one in second["channels"].values())
    assert list((lab.folder / "tmp").glob("snowpipe-*")) == []


def test_rows_that_do_not_fit_are_put_aside_or_fail_the_task_once(lab):
    new_table(lab.service, lab.table)
    lab.write("a/1.ndjson", range(100))
    with (lab.source / "a" / "1.ndjson").open("a") as file:
        file.write('{"ID": "no number"}\n')

    aside = lab.run(on_error="dead_letter", dead_letter_path=str(lab.folder / "dead"))

    assert (aside["rows"], aside["dead_lettered"]) == (100, 1)
    [file] = (lab.folder / "dead").rglob("*.parquet")
    assert [row["column"] for row in pq.read_table(file).to_pylist()] == ["ID"]
    (lab.source / "a" / "2.ndjson").write_text('{"ID": "none"}\n{"ID": 100}\n')
    with pytest.raises(AirflowFailException, match="RowsRejectedError"):
        lab.run()
    assert lab.run()["rows"] == 0
    assert ids_in(lab.service, lab.table) == list(range(101))


def test_retry_goes_on_with_the_driver_of_a_killed_worker(slow, capfd):
    worker = slow.start()
    driver = slow.loading()
    worker.kill()
    worker.wait(60)

    retry = slow.run()

    assert f"(process {driver.pid})" in capfd.readouterr().out
    assert retry["rows"] == 2 * EACH
    assert ids_in(slow.service, slow.table) == list(range(2 * EACH))


@pytest.mark.nightly  # daily: faults/test_job_faults.py
@pytest.mark.parametrize("with_worker", [True, False])
def test_rows_of_a_killed_driver_are_not_sent_again(slow, with_worker):
    worker = slow.start()
    driver = slow.loading()
    if with_worker:
        worker.kill()
    driver.kill()

    assert worker.wait(60) != 0
    assert "AirflowFailException" not in slow.log
    assert slow.run()["rows"] < 2 * EACH
    assert ids_in(slow.service, slow.table) == list(range(2 * EACH))


def test_task_that_is_stopped_leaves_nothing_running(slow):
    worker = slow.start(stop_on_signal=True)
    slow.loading()
    worker.send_signal(signal.SIGTERM)

    assert worker.wait(60) != 0
    wait_until(lambda: not slow.drivers(), what="the driver's end")
    assert list((slow.folder / "tmp").glob("snowpipe-*")) == []
    assert slow.run()["rows"] < 2 * EACH
    assert ids_in(slow.service, slow.table) == list(range(2 * EACH))


@pytest.mark.nightly
def test_service_that_dies_and_comes_back_gets_each_row_once(
    service_factory: ServiceFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = make_lab(service_factory(), tmp_path, monkeypatch)
    new_table(lab.service, lab.table)
    lab.write("a/1.ndjson", range(EACH))
    lab.write("b/1.ndjson", range(EACH, 2 * EACH))
    lab.options = {"batch_limits": SLOW}
    worker = lab.start()
    lab.loading()
    lab.service.kill()
    lab.service.start()

    if worker.wait(240) != 0:
        assert "AirflowFailException" not in lab.log
        lab.run()
    assert ids_in(lab.service, lab.table) == list(range(2 * EACH))

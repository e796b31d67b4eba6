"""A worker that dies leaves a driver that the next try finds; a script stands in for Spark itself."""

import pkgutil
import socket
import tempfile
import threading
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.common.compat.sdk import AirflowException

from airflow_provider_snowpipe.operators import stream
from airflow_provider_snowpipe.operators.client_job import (
    DIRECTORY_PREFIX,
    ClientRun,
    DriverLocation,
    DriverMemory,
    follow,
    runs,
)
from airflow_provider_snowpipe.spark.driver.report import ChannelReport, ChannelStart, RunReport, start_text
from tests.python_workers import kill_each
from tests.stream_worker import TaskInstance
from tests.unit.operators.conftest import StreamLab
from tests.waiting import wait_until

CHANNEL = ChannelReport("p_src_EWR", "EWR", None, "a:2", "a:2", 0, True, rows=2, bytes=20)
DONE = RunReport("app", (CHANNEL,), 1.5)
PASSING = RunReport("app", (CHANNEL,), 1.5, error="service away", error_type="RetriesExhaustedError")

START = start_text({"p_src_EWR": ChannelStart(7, 0, 0)})
DRIVER = f"""#!/bin/bash
plan="${{@: -1}}"; work="$(dirname "$plan")"
echo -n x >> NOTES/runs
echo '{START}' > "$work/start.json"; echo "snowpipe start channels=1"
echo '{{"running": "http://driver:4040", "ended": "http://history/app"}}' > "$work/ui.json"
echo "snowpipe ui http://driver:4040"
until [ -f NOTES/end ]; do sleep 0.05; done
echo "the driver goes on"; cp NOTES/report.json "$work/report.json"
grep -q '"error": null' NOTES/report.json
"""


class Lab(StreamLab):
    """A task whose worker and driver a test can end one by one."""

    def start_driver(self):
        """Start a driver as a try does whose worker is gone by now."""
        directory = Path(tempfile.mkdtemp(prefix=DIRECTORY_PREFIX))
        location = DriverLocation.here(directory)
        operator = self.operator(name="app")
        memory = DriverMemory({}, durable=False)
        operator._prepare(ClientRun(location, memory, print, lambda _: None), memory)
        with location.log_path.open("ab") as log:
            driver = psutil.Popen([str(self.program), str(location.plan_path)], stdout=log)
        self.state.set("snowpipe_driver", asdict(location))
        wait_until(lambda: "snowpipe ui" in location.log_path.read_text())
        return driver

    def location(self):
        return DriverLocation(**self.kept()["snowpipe_driver"])

    def end_driver(self, report):
        (self.notes / "report.json").write_text(report.to_json())
        (self.notes / "end").touch()

    def end_driver_when_followed(self, report):
        """End the driver as soon as this process reads its log, from where it ended."""
        log = str(self.location().log_path)

        def wait_and_end():
            wait_until(lambda: any(one.path == log and one.position for one in psutil.Process().open_files()))
            self.end_driver(report)

        threading.Thread(target=wait_and_end, daemon=True).start()


@pytest.fixture
def lab(tmp_path, temporary_files, monkeypatch, set_connection, make):
    pytest.importorskip(
        "airflow.sdk.bases.resumablejobmixin", reason="Airflow keeps a task's state since 3.3"
    )
    set_connection("spark_default", conn_type="spark", host="local[2,4]")
    monkeypatch.setenv("TMPDIR", str(temporary_files))
    lab = Lab(tmp_path, make, source={"path": "/data/src"})
    lab.script(DRIVER)
    yield lab
    for process in psutil.process_iter(["cmdline"]):
        if str(lab.program) in (process.info["cmdline"] or []):
            kill_each([process])


@pytest.fixture
def leftovers(temporary_files):
    return lambda: list(temporary_files.glob("snowpipe-*"))


def test_the_next_try_waits_for_the_driver_that_still_runs(lab, leftovers, capsys):
    driver = lab.start_driver()
    lab.end_driver_when_followed(DONE)

    value = lab.execute()

    assert lab.starts == 1
    assert value["rows"] == 2
    printed = capsys.readouterr().out
    # a shell that forks for its next command has two processes of one command line
    assert f"(process {driver.pid}" in printed
    assert "the driver goes on" in printed
    assert lab.kept() == {}
    assert leftovers() == []


def test_a_driver_of_a_task_that_has_lost_airflow_is_found_by_the_next_try(lab, leftovers, monkeypatch):
    """When a task's supervisor is killed, whatever the task writes to it next is an error."""

    def orphan(*_, **__):
        raise BrokenPipeError("the supervisor is gone")

    def read_until_orphaned(_, lines):
        for line in lines:
            if line.startswith("snowpipe ui"):
                orphan()

    with monkeypatch.context() as orphaned:
        orphaned.setattr(SparkSubmitHook, "_process_spark_submit_log", read_until_orphaned)
        orphaned.setattr(stream, "leave_links", lambda *_: None)
        orphaned.setattr(TaskInstance, "xcom_push", orphan)
        with pytest.raises(BrokenPipeError):
            lab.execute()
    assert lab.location().processes()
    assert len(leftovers()) == 1
    lab.end_driver_when_followed(DONE)

    assert lab.execute()["rows"] == 2
    assert lab.starts == 1
    assert leftovers() == []


@pytest.mark.parametrize("end", ["killed", "failed"])
def test_a_driver_that_did_not_finish_is_followed_by_a_new_one(lab, leftovers, end):
    driver = lab.start_driver()
    if end == "killed":
        driver.kill()
    else:
        lab.end_driver(PASSING)
    wait_until(lambda: not lab.location().processes())
    lab.end_driver(DONE)
    assert lab.execute()["rows"] == 2
    assert lab.starts == 2
    assert leftovers() == []


def test_a_state_without_a_location_of_this_machine_is_not_followed(lab, capsys):
    for kept in ("x", {"host": 5}, {"host": "h", "directory": None}, [1]):
        assert DriverLocation.of(kept) is None
    lab.state.set("snowpipe_driver", {"host": "elsewhere", "directory": "/none"})
    lab.end_driver(DONE)
    lab.execute()
    lab.execute(durable=False)
    assert lab.starts == 2
    assert "elsewhere" in capsys.readouterr().out
    assert lab.kept() == {}


def test_no_directory_is_removed_that_no_try_has_made(lab, tmp_path, temporary_files):
    precious, disguised = tmp_path / "precious", temporary_files / "snowpipe-link"
    precious.mkdir()
    disguised.symlink_to(precious)
    lab.end_driver(DONE)

    for directory in (precious, disguised, tmp_path / "snowpipe-none"):
        lab.state.set("snowpipe_driver", {"host": socket.gethostname(), "directory": str(directory)})
        lab.execute()

    assert precious.is_dir()
    assert lab.starts == 3


def _killed_before(lab, monkeypatch, where, operator):
    """Airflow calls ``on_kill`` between any two instructions of ``execute``: here before a function."""
    original = pkgutil.resolve_name(where)

    def killed_first(*args, **options):
        monkeypatch.setattr(where, original)
        operator.on_kill()
        return original(*args, **options)

    monkeypatch.setattr(where, killed_first)
    with pytest.raises(AirflowException, match="killed"):
        operator.execute(lab.context())


@pytest.mark.parametrize("step", ["DriverLocation.processes", "follow"])
def test_kill_at_any_step_of_rejoining_ends_the_task_in_order(lab, monkeypatch, leftovers, step):
    driver = lab.start_driver()
    operator = lab.operator()
    _killed_before(lab, monkeypatch, f"airflow_provider_snowpipe.operators.client_job.{step}", operator)
    assert not runs(driver)
    assert leftovers() == []


@pytest.mark.parametrize("step", ["_prepare", "_get_hook"])
def test_kill_at_any_step_of_a_start_submits_nothing(lab, monkeypatch, leftovers, step):
    operator = lab.operator()
    where = f"airflow_provider_snowpipe.operators.stream.SnowpipeStreamOperator.{step}"
    _killed_before(lab, monkeypatch, where, operator)
    assert not (lab.notes / "runs").exists()
    assert leftovers() == []


def test_follow_reads_whole_lines_until_the_writer_has_ended(tmp_path):
    log = tmp_path / "log"
    log.write_text("one\ntw")
    runs = iter([True, True, False])

    def still_runs():
        alive = next(runs)
        with log.open("a") as file:
            file.write("o\nend" if alive else "")
        return alive

    assert list(follow(log, still_runs)) == ["one\n", "two\n", "endo\n", "end"]

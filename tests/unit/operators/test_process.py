"""Nothing of a stopped application stays behind."""

from __future__ import annotations

import subprocess

import psutil
import pytest

from airflow_provider_snowpipe.operators.client_job import runs, stop_process_tree
from tests.waiting import wait_until


def _start(script: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(["/bin/bash", "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("sleep 300 & echo ready; wait", id="obedient"),
        pytest.param("(trap '' TERM; sleep 300) & sleep 300 & echo ready; wait", id="deaf-child"),
    ],
)
def test_descendants_end_with_the_process(script, monkeypatch):
    for name in ("_GRACE_SECONDS", "_REAP_SECONDS"):
        monkeypatch.setattr(f"airflow_provider_snowpipe.operators.client_job.{name}", 0.3)
    process = _start(script)
    family = psutil.Process(process.pid).children(recursive=True)
    assert family

    stop_process_tree(process)

    assert process.poll() is not None
    wait_until(lambda: not any(map(runs, family)), seconds=60, what="the end of all that was killed")


def test_a_process_that_ignores_the_request_is_killed(monkeypatch):
    monkeypatch.setattr("airflow_provider_snowpipe.operators.client_job._GRACE_SECONDS", 0.2)
    process = _start("trap '' TERM; echo ready; while true; do read -t 1 _ <> <(:); done")

    stop_process_tree(process)

    assert process.wait(60) == -9


def test_an_ended_process_is_left_alone(tmp_path):
    process = subprocess.Popen(["/bin/true"], text=True)
    process.wait()

    stop_process_tree(process)
    stop_process_tree(None)

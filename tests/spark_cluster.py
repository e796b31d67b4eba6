"""A real Spark standalone cluster on the loopback interface: one master, one worker."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import psutil
import requests

from airflow_provider_snowpipe.operators.submission import launch_environment
from tests.spark_job import wait_until

SPARK_CLASS = Path(sys.executable).with_name("spark-class")
READY_SECONDS = 90.0
STOP_SECONDS = 20.0
_NOTHING: dict[str, Any] = {"aliveworkers": 0, "activeapps": [], "completedapps": []}
# The master's other server would take a fixed port.
_SETTINGS = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false"}


class StandaloneCluster:
    """Master and worker, each the leader of a process group.

    :param folder: for their logs and the executors' work
    :param env: what executors find in their environment
    """

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self._folder = folder
        self._env = env
        self._page = f"http://127.0.0.1:{_free_port()}"
        self._processes: list[subprocess.Popen[bytes]] = []
        self.port = _free_port()
        self.url = f"spark://127.0.0.1:{self.port}"

    def start(self) -> Self:
        """Start both and wait until the worker is registered."""
        page = self._page.rpartition(":")[2]
        self._launch("master.Master", "--port", str(self.port), "--webui-port", page)
        options = ["--cores", "2", "--memory", "1g", "--webui-port", "0"]
        self._launch("worker.Worker", *options, "--work-dir", str(self._folder / "work"), self.url)
        wait_until(lambda: self.state()["aliveworkers"] == 1, seconds=READY_SECONDS, what="a Spark worker")
        return self

    def state(self) -> dict[str, Any]:
        """What the master says of its workers and applications; nothing until its page is there."""
        try:
            answer = requests.get(f"{self._page}/json/", timeout=10, proxies={"http": ""})
        except requests.ConnectionError:
            return _NOTHING
        state: dict[str, Any] = answer.json() if answer.ok else _NOTHING
        return state

    def executors(self) -> list[psutil.Process]:
        """The executors' JVMs."""
        return [process for process in self._members() if _runs_executor(process)]

    def stop(self) -> None:
        """End both and their executors."""
        members = self._members()
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        _, alive = psutil.wait_procs(members, STOP_SECONDS)
        for member in alive:
            member.kill()
        for process in self._processes:
            process.wait(STOP_SECONDS)

    def _members(self) -> list[psutil.Process]:
        leaders = [psutil.Process(process.pid) for process in self._processes if process.poll() is None]
        return [*leaders, *(child for leader in leaders for child in leader.children(recursive=True))]

    def _launch(self, name: str, *arguments: str) -> None:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYTHON"))
        }
        environment |= launch_environment(self._folder / "java") | _SETTINGS
        environment |= self._env
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    [SPARK_CLASS, f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1", *arguments],
                    env=environment,
                    cwd=self._folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )


def _runs_executor(process: psutil.Process) -> bool:
    try:
        return "org.apache.spark.executor.CoarseGrainedExecutorBackend" in process.cmdline()
    except psutil.Error:  # it has ended
        return False


def write_bare_python(path: Path) -> Path:
    """Write a program that runs this Python without what makes our package importable.

    :param path: where it goes
    """
    site_packages = next(entry for entry in sys.path if entry.endswith("site-packages"))
    path.write_text(
        f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{site_packages}" exec "{sys.executable}" -S "$@"\n',
        encoding="utf-8",
    )
    path.chmod(0o755)
    return path


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port

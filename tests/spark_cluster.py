"""A real Spark standalone cluster on the loopback interface: one master, a worker on each address."""

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import psutil
import pytest
import requests

from airflow_provider_snowpipe.operators.submission import launch_environment
from demo.processes import ProcessGroup
from tests.waiting import wait_until

SPARK_CLASS = Path(sys.executable).with_name("spark-class")
HOSTS = ("127.0.0.1", "127.0.0.2")
"""Two addresses of the loopback interface; Spark speculates only from one host to another."""
READY_SECONDS = 300.0
STOP_SECONDS = 60.0
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.minTaskRuntime": "4s",
}
# The master's other server would take a fixed port.
_SETTINGS = {"SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false"}
_MASTER_HOST = "127.0.0.1"


class StandaloneCluster:
    """Master and workers."""

    def __init__(self, folder: Path, env: Mapping[str, str], hosts: Sequence[str] = (_MASTER_HOST,)) -> None:
        inherited = {key: os.environ[key] for key in os.environ if not key.startswith(("SPARK_", "PYTHON"))}
        self._env = {**inherited, **launch_environment(folder / "java"), **_SETTINGS, **env}
        self._folder, self._hosts = folder, tuple(hosts)
        self._group = ProcessGroup(folder / "processes.json")
        self._page = ""
        self.port = 0

    @property
    def url(self) -> str:
        return f"spark://{_MASTER_HOST}:{self.port}"

    def start(self) -> Self:
        """Start all on ports that are free, and wait until the workers are registered."""
        log = self._launch(_MASTER_HOST, "master.Master", "--port", "0", "--webui-port", "0")
        wait_until(lambda: self._find_ports(log), seconds=READY_SECONDS, what="a Spark master")
        options = ["--cores", "2", "--memory", "1g", "--webui-port", "0"]
        for host in self._hosts:
            self._launch(host, "worker.Worker", *options, "--work-dir", str(self._folder / "work"), self.url)
        alive = lambda: self._workers() == len(self._hosts)  # noqa: E731
        wait_until(alive, seconds=READY_SECONDS, what="Spark's workers")
        return self

    def executors(self) -> list[psutil.Process]:
        return [process for process in self._group.members() if _runs_executor(process)]

    def stop(self) -> None:
        self._group.stop(STOP_SECONDS)

    def _workers(self) -> int:
        """How many workers the master reports; none until its page is there."""
        with suppress(requests.RequestException):
            answer = requests.get(f"{self._page}/json/", timeout=60, proxies={"http": ""})
            return int(answer.json()["aliveworkers"]) if answer.ok else 0
        return 0

    def _find_ports(self, log: Path) -> bool:
        """Take the master's ports from its log; False while it has not bound them."""
        text = log.read_text()
        assert not self._group.ended(), text[-2000:]
        port = re.search(r"Starting Spark master at spark://\S+:(\d+)", text)
        page = re.search(r"MasterWebUI.* at http://\S+:(\d+)", text)
        if port is None or page is None:
            return False
        self.port, self._page = int(port[1]), f"http://{_MASTER_HOST}:{page[1]}"
        return True

    def _launch(self, host: str, name: str, *arguments: str) -> Path:
        log = self._folder / f"{name}-{host}.log"
        command = [str(SPARK_CLASS), f"org.apache.spark.deploy.{name}", "--host", host, *arguments]
        self._group.start(f"{name} {host}", command, {**self._env, "SPARK_LOCAL_IP": host}, log)
        return log


def _runs_executor(process: psutil.Process) -> bool:
    try:
        return "org.apache.spark.executor.CoarseGrainedExecutorBackend" in process.cmdline()
    except psutil.Error:  # it has ended
        return False


def write_bare_python(path: Path) -> Path:
    """Write a program that runs this Python without what makes our package importable."""
    site_packages = next(entry for entry in sys.path if entry.endswith("site-packages"))
    path.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{site_packages}" exec "{sys.executable}" -S "$@"\n')
    path.chmod(0o755)
    return path


def spark_home(folder: Path) -> Path:
    """Make a Spark home that leads to the installed one; ``local-cluster`` writes into its home."""
    import pyspark

    folder.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        (folder / entry.name).symlink_to(entry)
    return folder


@contextmanager
def session_on(cluster: StandaloneCluster, name: str, settings: Mapping[str, str]) -> Iterator[Any]:
    """A session of this process on a cluster of :data:`HOSTS`."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    assert SparkContext._active_spark_context is None, "a process has one Spark context: run this apart"
    usual = {
        "spark.ui.enabled": "false",
        "spark.driver.host": HOSTS[0],
        "spark.driver.bindAddress": HOSTS[0],
        "spark.executor.memory": "512m",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
        builder = SparkSession.builder.master(cluster.url).appName(name)
        session = builder.config(map={**usual, **settings}).getOrCreate()
        yield session
        session.stop()

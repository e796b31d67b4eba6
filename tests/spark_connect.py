"""A real Spark Connect server in a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import psutil

from airflow_provider_snowpipe.operators.submission import launch_environment
from demo.ports import reserved_port
from tests.python_workers import daemons_of
from tests.spark_job import SPARK_SUBMIT
from tests.waiting import wait_until

_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
READY_SECONDS = 300.0
STOP_SECONDS = 60.0


class ConnectServer:
    """A server whose executors are inside it."""

    def __init__(self, folder: Path, executor_python: Path, env: Mapping[str, str]) -> None:
        self._folder, self.port = folder, reserved_port()
        self.url = f"sc://127.0.0.1:{self.port}"
        inherited = {key: os.environ[key] for key in os.environ if not key.startswith(("SPARK", "PYTHON"))}
        settings = launch_environment(folder / "java", executor_python=str(executor_python))
        self._environment = {**inherited, **settings, "SPARK_LOCAL_IP": "127.0.0.1", **env}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        conf = {
            "spark.ui.enabled": "false",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self.port),
        }
        options = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
        with (self._folder / "connect.log").open("ab") as log:
            self._process = subprocess.Popen(
                [SPARK_SUBMIT, "--master", "local[2,4]", *options, "--class", _SERVER, "spark-internal"],
                env=self._environment,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(self._listens, seconds=READY_SECONDS, what="a Spark Connect server")
        return self

    def stop(self) -> None:
        if self._process is None:
            return
        os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(STOP_SECONDS)

    def python_daemons(self) -> set[int]:
        """The processes from which its executors fork their Python workers.

        Not by psutil's iterator: it keeps processes, and leaves one out that has got an ended one's number.
        """
        assert self._process is not None
        return {one.pid for one in daemons_of(psutil.Process(self._process.pid))}

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "connect.log").read_text()[-2000:]
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

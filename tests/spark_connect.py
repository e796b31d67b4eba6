"""A real Spark Connect server in a process of its own."""

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import psutil

from airflow_provider_snowpipe.operators.submission import launch_environment
from demo.ports import reserved_port
from demo.processes import ProcessGroup
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
        self._log = folder / "connect.log"
        self._group = ProcessGroup(folder / "processes.json")

    def start(self) -> Self:
        conf = {
            "spark.ui.enabled": "false",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self.port),
        }
        options = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
        # It writes into the folder in which it starts.
        submit = ["env", "-C", str(self._folder), str(SPARK_SUBMIT), "--master", "local[2,4]"]
        command = [*submit, *options, "--class", _SERVER, "spark-internal"]
        self._group.start("Spark Connect", command, self._environment, self._log)
        wait_until(self._listens, seconds=READY_SECONDS, what="a Spark Connect server")
        return self

    def stop(self) -> None:
        self._group.stop(STOP_SECONDS)

    def python_daemons(self) -> set[int]:
        """The processes from which its executors fork their Python workers."""
        server = min(self._group.members(), key=psutil.Process.create_time)
        return {one.pid for one in daemons_of(server)}

    def _listens(self) -> bool:
        assert not self._group.ended(), self._log.read_text()[-2000:]
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

"""A small Kafka broker without Java, ``noida-db`` from PyPI, on this machine's loopback.

It knows transactions, isolation levels and consumer groups; it compacts and expires nothing.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path
from typing import Self

import pytest

from demo.ports import reserved_port
from tests.kafka_topics import wait_for_broker


class NoidaBroker:
    """One broker process; the test is skipped where the package is not installed."""

    def __init__(self, directory: Path) -> None:
        found = importlib.util.find_spec("noida_db")
        if found is None or found.origin is None:
            pytest.skip("noida-db is not installed, which is a broker for machines without Maven")
        directory.mkdir(parents=True, exist_ok=True)
        self._directory, self._binary = directory, directory / "noida-db"
        # The wheel's file may lack its executable bit.
        shutil.copyfile(Path(found.origin).with_name("noida-db"), self._binary)
        self._binary.chmod(0o700)
        self._port = reserved_port()  # it advertises the number that it is given
        self.address = f"127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        command = [str(self._binary), "start", "--only", "kafka", "--kafka-port", str(self._port)]
        log = self._directory / "broker.log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, "--data-dir", str(self._directory / "data")],
                stdout=output,
                stderr=output,
                cwd=self._directory,
                env={**os.environ, "HOME": str(self._directory)},
            )
        wait_for_broker(self.address, self._process, log)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(30)

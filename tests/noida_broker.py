"""A small Kafka broker without Java, ``noida-db`` from PyPI, on this machine's loopback.

It knows transactions, isolation levels and consumer groups; it compacts and expires nothing.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Self

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from demo.ports import reserved_port

_START_SECONDS = 240


class NoidaBroker:
    """One broker process; the test is skipped where the package is not installed.

    :param directory: its data and output
    """

    def __init__(self, directory: Path) -> None:
        found = importlib.util.find_spec("noida_db")
        if found is None or found.origin is None:
            pytest.skip("noida-db is not installed, which is a broker for machines without Maven")
        packaged = Path(found.origin).with_name("noida-db")
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._binary = directory / "noida-db"
        # The wheel's file may lack its executable bit.
        shutil.copyfile(packaged, self._binary)
        self._binary.chmod(0o700)
        self._port = reserved_port()  # it advertises the number that it is given
        self.address = f"127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with (self._directory / "broker.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(str(self._binary), "start", "--only", "kafka", "--kafka-port", str(self._port)),
                    *("--data-dir", str(self._directory / "data")),
                ],
                stdout=log,
                stderr=log,
                cwd=self._directory,
                env={**os.environ, "HOME": str(self._directory)},
            )
        deadline = time.monotonic() + _START_SECONDS
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        while True:
            try:
                admin.list_topics(timeout=2)
            except KafkaException:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError((self._directory / "broker.log").read_text()[-3000:]) from None
                continue
            return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(30)

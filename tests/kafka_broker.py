"""Brokers on this machine's loopback: Apache Kafka from Maven Central, and a small one without Java.

Tests that need a broker which cannot be had are skipped, with the reason.
"""

import importlib.util
import os
import shutil
import subprocess
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Self

import pytest

from airflow_provider_snowpipe.spark.submit.local_spark import ensure_java_home
from demo.ports import reserved_port
from tests.kafka_topics import wait_for_broker
from tests.maven_jars import maven_closure

USER, PASSWORD = "loader", "hunter2"
_SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{sasl},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{sasl}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config=\
org.apache.kafka.common.security.plain.PlainLoginModule required user_{user}="{password}";
log.dirs={logs}
num.network.threads=2
num.io.threads=2
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
log.cleaner.backoff.ms=200
log.retention.check.interval.ms=500
"""


class _Broker:
    """One process, with all that it writes in a folder."""

    address: str

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory

    def __enter__(self) -> Self:
        log = self._directory / "broker.log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                self._command(),
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

    def _command(self) -> list[str]:
        raise NotImplementedError


class NoidaBroker(_Broker):
    """The package ``noida-db``: it has transactions, isolation levels and consumer groups, no compaction."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        found = importlib.util.find_spec("noida_db")
        if found is None or found.origin is None:
            pytest.skip("noida-db is not installed, which is a broker for machines without Maven")
        self._binary = directory / "noida-db"
        # The wheel's file may lack its executable bit.
        shutil.copyfile(Path(found.origin).with_name("noida-db"), self._binary)
        self._binary.chmod(0o700)
        self._port = str(reserved_port())  # it advertises the number that it is given
        self.address = f"127.0.0.1:{self._port}"

    def _command(self) -> list[str]:
        command = [str(self._binary), "start", "--only", "kafka", "--kafka-port", self._port]
        return [*command, "--data-dir", str(self._directory / "data")]


class KafkaBroker(_Broker):
    """Apache Kafka in KRaft mode, its own controller; ``mvn`` keeps its jars in the user's cache."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._jars = maven_closure("org.apache.kafka:kafka_2.13:4.1.0")
        plain, sasl, controller = (reserved_port() for _ in range(3))  # its settings advertise them
        self.address, self.sasl_address = f"127.0.0.1:{plain}", f"127.0.0.1:{sasl}"
        ports = {"plain": plain, "sasl": sasl, "controller": controller}
        text = _SETTINGS.format(**ports, logs=directory / "data", user=USER, password=PASSWORD)
        self._settings = directory / "server.properties"
        self._settings.write_text(text)

    def _command(self) -> list[str]:
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        command = [*self._java("kafka.tools.StorageTool"), "format", f"--cluster-id={cluster}", "-c"]
        done = subprocess.run([*command, self._settings], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return [*self._java("kafka.Kafka"), str(self._settings)]

    def _java(self, main: str) -> list[str]:
        home = ensure_java_home(self._directory / "java")
        assert home is not None, "no Java 17 or later"
        path = os.pathsep.join(map(str, self._jars))
        return [str(home / "bin" / "java"), "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", path, main]

"""A real Apache Kafka broker in KRaft mode, from Maven Central, on this machine's loopback.

Its jars are fetched by ``mvn`` once and kept in the user's cache; they are never part of the project. Where
Maven Central cannot be reached the tests that need the broker are skipped, with the reason.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Self

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


class KafkaBroker:
    """One broker process, which is its own controller, with all that it writes in a folder."""

    def __init__(self, directory: Path, jars: Sequence[Path]) -> None:
        self._directory, self._jars = directory, jars
        plain, sasl, controller = (reserved_port() for _ in range(3))  # its settings advertise them
        self.address, self.sasl_address = f"127.0.0.1:{plain}", f"127.0.0.1:{sasl}"
        self._settings = directory / "server.properties"
        directory.mkdir(parents=True, exist_ok=True)
        ports = {"plain": plain, "sasl": sasl, "controller": controller}
        text = _SETTINGS.format(**ports, logs=directory / "data", user=USER, password=PASSWORD)
        self._settings.write_text(text)

    def __enter__(self) -> Self:
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        command = [*self._java("kafka.tools.StorageTool"), "format", f"--cluster-id={cluster}", "-c"]
        done = subprocess.run([*command, self._settings], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        log = self._directory / "broker.log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [*self._java("kafka.Kafka"), self._settings],
                stdout=output,
                stderr=output,
                cwd=self._directory,
            )
        wait_for_broker(self.address, self._process, log)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(30)

    def _java(self, main: str) -> list[str]:
        home = ensure_java_home(self._directory / "java")
        assert home is not None, "no Java 17 or later"
        path = os.pathsep.join(map(str, self._jars))
        return [str(home / "bin" / "java"), "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", path, main]


def broker_jars() -> list[Path]:
    """The broker's jars; the test is skipped where they cannot be had."""
    return maven_closure("org.apache.kafka:kafka_2.13:4.1.0")

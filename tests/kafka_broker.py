"""A real Apache Kafka broker in KRaft mode, from Maven Central, on this machine's loopback.

Its jars are fetched by ``mvn`` once and kept in the user's cache; they are never part of the project. Where
Maven Central cannot be reached the tests that need the broker are skipped, with the reason.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Self

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from airflow_provider_snowpipe.spark.submit.local_spark import ensure_java_home
from demo.ports import reserved_port
from tests.java_options import cache_folder

KAFKA_VERSION = "4.1.0"
USER, PASSWORD = "loader", "hunter2"
_FETCH_SECONDS = 240
_START_SECONDS = 300
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tests</groupId><artifactId>broker</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
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
    """One broker process, which is its own controller.

    :param directory: its configuration, data and output
    :param jars: a directory of jars
    """

    def __init__(self, directory: Path, jars: Path) -> None:
        self._directory = directory
        self._jars = jars
        plain, sasl, controller = (reserved_port() for _ in range(3))  # its settings advertise them
        self.address = f"127.0.0.1:{plain}"
        self.sasl_address = f"127.0.0.1:{sasl}"
        self._settings = directory / "server.properties"
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        self._settings.write_text(
            _SETTINGS.format(
                plain=plain,
                sasl=sasl,
                controller=controller,
                logs=directory / "data",
                user=USER,
                password=PASSWORD,
            )
        )

    def __enter__(self) -> Self:
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        done = subprocess.run(
            [
                *self._java("kafka.tools.StorageTool"),
                *("format", f"--cluster-id={cluster}", "-c", str(self._settings)),
            ],
            capture_output=True,
            text=True,
            timeout=_START_SECONDS,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        with (self._directory / "broker.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*self._java("kafka.Kafka"), str(self._settings)], stdout=log, stderr=log, cwd=self._directory
            )
        self._wait_until_ready()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(30)

    def _java(self, main: str) -> list[str]:
        home = ensure_java_home(self._directory / "java")
        assert home is not None, "no Java 17 or later"
        return [
            str(home / "bin" / "java"),
            "-Xmx512m",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            f"{self._jars}/*",
            main,
        ]

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        while True:
            assert self._process is not None
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError((self._directory / "broker.log").read_text()[-3000:])
            try:
                admin.list_topics(timeout=2)
            except KafkaException:
                continue
            return


def broker_jars() -> Path:
    """The broker's jars; the test is skipped where they cannot be had."""
    return fetched_jars("kafka", ("org.apache.kafka", "kafka_2.13", KAFKA_VERSION))


def fetched_jars(name: str, *artifacts: tuple[str, str, str]) -> Path:
    """Fetch artifacts and all that they need into the user's cache, once.

    :param name: of the directory in the cache
    :param artifacts: group, artifact and version of each
    """
    cache = cache_folder()
    target = cache / f"{name}-{artifacts[0][2]}"
    if target.is_dir():
        return target
    maven = shutil.which("mvn")
    if maven is None:
        pytest.skip(f"no mvn on this machine, which fetches {artifacts[0][1]} from Maven Central")
    work = cache / f".{name}-{os.getpid()}"
    work.mkdir(parents=True, exist_ok=True)
    listed = "".join(_DEPENDENCY.format(*artifact) for artifact in artifacts)
    (work / "pom.xml").write_text(_POM.format(dependencies=listed))
    command = [maven, "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime"]
    try:
        done = subprocess.run(
            [*command, f"-DoutputDirectory={work / 'jars'}"],
            cwd=work,
            capture_output=True,
            text=True,
            timeout=_FETCH_SECONDS,
        )
        if done.returncode != 0:
            pytest.skip(f"{artifacts[0][1]} cannot be fetched from Maven Central: {done.stdout[-300:]}")
        # Another process may have fetched the same meanwhile; its folder is as good.
        with contextlib.suppress(OSError):
            (work / "jars").rename(target)
        assert target.is_dir()
    except subprocess.TimeoutExpired:
        pytest.skip(f"{artifacts[0][1]} did not arrive from Maven Central in {_FETCH_SECONDS} s")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target

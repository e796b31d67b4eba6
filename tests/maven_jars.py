"""Jars from Maven Central, fetched by ``mvn`` into its own cache; what cannot be had skips the test."""

import hashlib
import os
import shutil
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.java_options import cache_folder

DELTA = ("io.delta:delta-spark_4.2_2.13:4.4.0", "io.delta:delta-storage:4.4.0")
# Made for Spark 4.1, and works with 4.2.
AVRO = "org.apache.spark:spark-avro_2.13:4.1.1"
SPARK_KAFKA = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version('pyspark')}",
    f"org.apache.spark:spark-token-provider-kafka-0-10_2.13:{version('pyspark')}",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.12.1",
)
"""Spark's own Kafka source."""
S3A = "org.apache.hadoop:hadoop-aws:3.5.0"
# What s3a:// of Hadoop 3.5.0 calls of Amazon's SDK: 17 MB, where the bundle that it names has hundreds.
S3A_NEEDS = (
    *(
        f"software.amazon.awssdk:{one}:2.35.4"
        for one in ("s3-transfer-manager", "sts", "apache-client", "netty-nio-client")
    ),
    "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1",
)

_REPOSITORY = Path.home() / ".m2" / "repository"


def maven_jars(*coordinates: str) -> list[Path]:
    """Fetch jars, without what they depend on; skip the test where that cannot be done."""
    return [_jar(one) for one in coordinates]


def maven_closure(*coordinates: str) -> list[Path]:
    """Fetch jars and what they need at run time; skip the test where that cannot be done."""
    name = hashlib.sha256(" ".join(coordinates).encode()).hexdigest()[:16]
    folder = cache_folder() / f"closure-{name}"
    found = folder / "classpath"
    jars = _existing(found)
    if jars:
        return jars
    required = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version></dependency>"
        for group, artifact, version in (one.split(":") for one in coordinates)
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pom.xml").write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>jars</artifactId>"
        f"<version>1</version><dependencies>{required}</dependencies></project>"
    )
    own = folder / f"classpath.{os.getpid()}"
    _maven(
        ", ".join(coordinates),
        *("-f", str(folder / "pom.xml"), "dependency:build-classpath", "-Dmdep.includeScope=runtime"),
        f"-Dmdep.outputFile={own}",
    )
    own.replace(found)
    return _existing(found)


def _existing(classpath: Path) -> list[Path]:
    """The jars of a classpath that was written before; none where one of them is gone."""
    jars = [Path(jar) for jar in classpath.read_text().split(os.pathsep)] if classpath.is_file() else []
    return jars if all(jar.is_file() for jar in jars) else []


def _jar(coordinates: str) -> Path:
    group, artifact, version, *kind = coordinates.split(":")
    name = "-".join((artifact, version, *kind[1:]))
    jar = _REPOSITORY.joinpath(*group.split("."), artifact, version, f"{name}.jar")
    if not jar.exists():
        _maven(coordinates, "dependency:get", f"-Dartifact={coordinates}", "-Dtransitive=false")
    return jar


def _maven(required: str, *arguments: str) -> None:
    if reason := _refusal(required, *arguments):
        pytest.skip(reason)


@cache
def _refusal(required: str, *arguments: str) -> str | None:
    """Ask Maven; why that did not succeed, None if it did. No test of this process asks again."""
    if shutil.which("mvn") is None:
        return f"there is no mvn to fetch {required}"
    command = ["mvn", "-q", "-B", f"-Dmaven.repo.local={_REPOSITORY}", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    except subprocess.TimeoutExpired:
        return f"{required}: no answer from Maven Central"
    return None if done.returncode == 0 else f"{required} cannot be fetched: {done.stdout[-300:]}"

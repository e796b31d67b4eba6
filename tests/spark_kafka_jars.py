"""Spark's own Kafka source for tests: its jars from Maven Central, never part of the project."""

from __future__ import annotations

from pathlib import Path

import pyspark

from tests.maven_jars import maven_jars

_JARS = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}",
    f"org.apache.spark:spark-token-provider-kafka-0-10_2.13:{pyspark.__version__}",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.12.1",
)


def spark_kafka_jars() -> list[Path]:
    """The jars for ``spark.jars``; the test is skipped where they cannot be had."""
    return maven_jars(*_JARS)

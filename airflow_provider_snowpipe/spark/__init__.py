"""What runs on a Spark driver and its executors: sources, the channel sink and the job.

Imports neither Airflow nor the local service. The one thing that others need from here without starting
Spark is :func:`job_file`; who has a Spark session calls :func:`register`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def job_file() -> Path:
    """The application file to give to ``spark-submit``."""
    return Path(__file__).with_name("job.py")


def register(spark: SparkSession) -> None:
    """Make ``format("snowpipe")`` and ``format("snowpipe_kafka")`` known to a Spark session.

    Where this package is installed for the driver's Python, PySpark finds the formats by itself, through the
    modules ``pyspark_snowpipe`` and ``pyspark_snowpipe_kafka``; calling this as well does no harm.

    :param spark: the session
    """
    from airflow_provider_snowpipe.spark.data_source.source import SnowpipeDataSource
    from airflow_provider_snowpipe.spark.kafka.stream_source import KafkaDataSource

    spark.dataSource.register(SnowpipeDataSource)
    spark.dataSource.register(KafkaDataSource)

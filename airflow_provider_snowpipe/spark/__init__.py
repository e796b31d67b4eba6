"""What runs on a Spark driver and its executors: sources, the channel sink and the job.

Imports neither Airflow nor the local service. The one thing that others need from here without starting
Spark is :func:`job_file`; who has a Spark session calls :func:`register` and :func:`write_checked`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def job_file() -> Path:
    """The application file to give to ``spark-submit``."""
    return Path(__file__).parent / "driver" / "job.py"


def write_job_file() -> Path:
    """The application file that writes files for COPY."""
    return Path(__file__).parent / "driver" / "write_job.py"


def register(spark: SparkSession) -> None:
    """Make ``format("snowpipe")`` known to a Spark session.

    Where this package is installed for the driver's Python, PySpark finds the format by itself, through the
    module ``pyspark_snowpipe``; calling this as well does no harm.
    """
    from airflow_provider_snowpipe.spark.data_source.source import SnowpipeDataSource

    spark.dataSource.register(SnowpipeDataSource)


def write_checked(df: DataFrame, options: Mapping[str, Any]) -> None:
    """Append a DataFrame through ``format("snowpipe")`` unless its plan may bring other rows next time.

    :param df: the rows
    :param options: the options of the write
    :raises ConfigurationError: naming the operator of the plan, the reason and the remedy; nothing was sent
    """
    from airflow_provider_snowpipe.spark.data_source import source

    source.write_checked(df, options)

"""Typed values for operators: where rows come from.

.. code-block:: python

    SnowpipeStreamOperator(
        task_id="load",
        source=KafkaSource(conn_id="kafka_default", topics=["orders"]),
        table="ORDERS",
    )

A value is checked where the DAG file makes it, never changes, is equal to another one with the same fields,
and shows no secret in its ``repr``. A dictionary with its fields is equivalent: ``as_json()`` gives it, with
the source's ``kind``, and ``from_mapping()`` builds the value from it. Texts may be templates, and any field
the output of another task: operators keep the dictionary, which Airflow renders, and what a template gives is
checked in the task. Credentials are those of the connection ``conn_id``; no field takes one.

Nothing heavy is imported: neither Spark nor Arrow nor Snowflake's connector.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_snowpipe.spark.source import SourceSpec
from airflow_provider_snowpipe.spark.sources.files.spec import (
    AllFiles,
    Avro,
    ByDirectory,
    ByKey,
    ByName,
    Csv,
    FileSource,
    Ndjson,
    Orc,
    Parquet,
    Text,
)
from airflow_provider_snowpipe.spark.sources.iceberg.spec import IcebergSource
from airflow_provider_snowpipe.spark.sources.kafka.spec import KafkaSource
from airflow_provider_snowpipe.spark.sources.tables.spec import DeltaSource, TableSource
from airflow_provider_snowpipe.streaming.arguments import known_keys
from airflow_provider_snowpipe.streaming.checked_values import TypedArgument
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

__all__ = ["DeltaSource", "FileSource", "IcebergSource", "KafkaSource", "TableSource"]
__all__ += ["AllFiles", "Avro", "ByDirectory", "ByKey", "ByName", "Csv", "Ndjson", "Orc", "Parquet", "Text"]


def stream_values(source: Any) -> Any:
    """The dictionary of a source for channels; what is not a typed value stays as it is.

    :raises ConfigurationError: if it is a source whose rows have no positions
    """
    if isinstance(source, Mapping):  # Airflow renders what is in dictionaries alone
        return {
            name: one.as_json() if isinstance(one, TypedArgument) else one for name, one in source.items()
        }
    if not isinstance(source, SourceSpec):
        return source
    source.check_streamable()
    return source.as_json()


def shape_values(source: Any) -> Any:
    """The dictionary of a source that is probed and not loaded; as :func:`stream_values`.

    :raises ConfigurationError: if it is a source whose shape nobody asks for
    """
    if isinstance(source, SourceSpec) and not isinstance(source, KafkaSource):
        raise ConfigurationError(
            f"source is {source!r}: give a KafkaSource(…), or for other data a stage (@…), table:NAME, a "
            "path, a URL, or the shape as a mapping"
        )
    return stream_values(source)


def bulk_values(source: Any) -> Any:
    """The dictionary of a source for a bulk load, which has no ``kind``; as :func:`stream_values`.

    :raises ConfigurationError: if it is a source that only channels take, or sets how rows are ordered
    """
    if not isinstance(source, SourceSpec):
        return source
    if not isinstance(source, TableSource):
        raise ConfigurationError(
            f"source is {source!r}: a bulk load takes what Spark reads, TableSource(table=…), "
            "TableSource(query=…) or TableSource(path=…, format=…)"
        )
    from airflow_provider_snowpipe.spark.driver.plan import RowsToWrite

    values = {name: value for name, value in source.as_json().items() if name != "kind"}
    return known_keys(RowsToWrite, values, "source")

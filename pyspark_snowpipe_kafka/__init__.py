"""Makes ``format("snowpipe_kafka")`` known to PySpark, as ``pyspark_snowpipe`` does for the sink."""

from __future__ import annotations

from airflow_provider_snowpipe.spark.sources.kafka.stream import KafkaDataSource as DefaultSource

__all__ = ["DefaultSource"]

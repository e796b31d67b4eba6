"""Makes ``format("snowpipe")`` known to PySpark, which looks for a ``DefaultSource`` in such modules."""

from __future__ import annotations

from airflow_provider_snowpipe.spark.data_source.source import SnowpipeDataSource as DefaultSource

__all__ = ["DefaultSource"]

"""Deprecated: use :mod:`airflow_provider_snowpipe.spark.sources.source`."""

import warnings

from airflow_provider_snowpipe.spark.sources.source import SourceSecrets

__all__ = ["SourceSecrets"]

warnings.warn(
    "airflow_provider_snowpipe.spark.source_secrets is deprecated: "
    "import from airflow_provider_snowpipe.spark.sources.source",
    DeprecationWarning,
    stacklevel=2,
)

"""Deprecated: use :mod:`airflow_provider_snowpipe.spark.driver.plan_order`."""

import warnings

from airflow_provider_snowpipe.spark.driver.plan_order import refuse_changing_rows, refuse_unordered_rows

__all__ = ["refuse_changing_rows", "refuse_unordered_rows"]

warnings.warn(
    "airflow_provider_snowpipe.spark.plan_order is deprecated: "
    "import from airflow_provider_snowpipe.spark.driver.plan_order",
    DeprecationWarning,
    stacklevel=2,
)

"""Deprecated: use :mod:`airflow_provider_snowpipe.spark.submit.plan`."""

import warnings

from airflow_provider_snowpipe.spark.submit.plan import PLAN_VERSION, JobPlan, read_plan, write_plan

__all__ = ["PLAN_VERSION", "JobPlan", "read_plan", "write_plan"]

warnings.warn(
    "airflow_provider_snowpipe.spark.plan is deprecated: "
    "import from airflow_provider_snowpipe.spark.submit.plan",
    DeprecationWarning,
    stacklevel=2,
)

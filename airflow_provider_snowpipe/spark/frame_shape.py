"""The shape of a DataFrame, from what Spark's optimiser knows of it."""

from __future__ import annotations

from typing import Any

from airflow_provider_snowpipe.routing.probes import DataShape, dataframe_shape
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

_ADAPTIVE = "AdaptiveSparkPlanExec"
_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"


def shape_of_frame(frame: Any, **known: Any) -> DataShape:
    """Make the shape of a DataFrame from the statistics of its optimised plan; no job is run.

    :param frame: a DataFrame of a classic session
    :param known: what else is known of the data: other parameters of :class:`DataShape`
    :raises ConfigurationError: if the session is one of Spark Connect, or Spark knows neither size nor rows
    """
    java = getattr(frame, "_jdf", None)
    if java is None:
        raise ConfigurationError(
            f"{type(frame).__module__}.{type(frame).__qualname__} has no statistics of its plan: take a "
            "DataFrame of a classic session, or give the shape's rows or bytes"
        )
    execution = java.queryExecution()
    statistics = execution.optimizedPlan().stats()
    counted = statistics.rowCount()
    rows = int(str(counted.get())) if counted.isDefined() else None
    plan = execution.executedPlan()
    if plan.getClass().getSimpleName() == _ADAPTIVE:  # knows its partitions only after it has run
        partitions = int(frame.sparkSession.conf.get(_SHUFFLE_PARTITIONS))
    else:
        partitions = int(plan.execute().getNumPartitions())
    return dataframe_shape(int(str(statistics.sizeInBytes())), partitions, rows, **known)

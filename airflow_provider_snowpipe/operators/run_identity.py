"""Whose work a task does, in the same words on every try of it."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_snowpipe.bulk.copy_run import RunIdentity


def run_identity(context: Context) -> RunIdentity:
    """Name the work by DAG, run, task and map index.

    :param context: the task's context
    """
    from airflow_provider_snowpipe.bulk.copy_run import RunIdentity

    ti: Any = context["ti"]
    run: Any = context["dag_run"]
    began = getattr(run, "start_date", None) or getattr(ti, "start_date", None) or dt.datetime.now(dt.UTC)
    names = (ti.dag_id, ti.run_id, ti.task_id, str(ti.map_index))
    return RunIdentity(names, began, max(1, getattr(ti, "try_number", 1)))

"""Days of flights that lie in a stage, each copied by a mapped task, one of which may lose its worker."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from typing import Any

from airflow.providers.common.compat.sdk import DAG, Param, task

from airflow_provider_snowpipe.bulk.statement_client import StatementClient
from airflow_provider_snowpipe.operators.copy import SnowpipeCopyOperator


def _dying(submit: Any) -> Any:
    """Let the process die when the service has a statement and before it answers."""

    def submit_and_die(*given: Any, **named: Any) -> None:
        submit(*given, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    return submit_and_die


class MortalCopyOperator(SnowpipeCopyOperator):
    """Copies; the first try of one day loses its worker between submission and answer."""

    def __init__(self, *, killed: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.killed = killed

    template_fields = (*SnowpipeCopyOperator.template_fields, "killed")

    def execute(self, context: Any) -> Any:
        if self.prefix == f"{self.killed}/" and context["ti"].try_number == 1:
            StatementClient.submit = _dying(StatementClient.submit)
        return super().execute(context)


with DAG(
    "flight_days",
    schedule=None,
    catchup=False,
    max_active_tasks=2,
    render_template_as_native_obj=True,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=1)},
    params={
        "table": Param("FLIGHT_DAYS", type="string"),
        "days": Param([], type="array"),
        "killed": Param("", type="string"),
        "force": Param(False, type="boolean"),
    },
):

    @task
    def prefixes(params: dict[str, Any]) -> list[str]:
        return [f"{day}/" for day in params["days"]]

    MortalCopyOperator.partial(
        task_id="copy",
        table="{{ params.table }}",
        stage="@{{ params.table }}_STAGE",
        options={
            "file_format": {"type": "JSON"},
            "match_by_column_name": "CASE_INSENSITIVE",
            "force": "{{ params.force }}",
        },
        killed="{{ params.killed }}",
    ).expand(prefix=prefixes())

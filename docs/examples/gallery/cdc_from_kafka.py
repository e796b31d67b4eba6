"""Append change events of a database from Kafka, and merge them into the table of current rows."""

from airflow.providers.common.sql.operators.sql import SQLExecuteQueryOperator
from airflow.sdk import dag

from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from airflow_provider_snowpipe.sources import KafkaSource

MERGE = """
    MERGE INTO CUSTOMERS AS t USING (
        SELECT * FROM CUSTOMER_EVENTS
        QUALIFY ROW_NUMBER() OVER (PARTITION BY ID ORDER BY SRC_OFFSET DESC) = 1
    ) AS e ON t.ID = e.ID
    WHEN MATCHED AND e.DELETED THEN DELETE
    WHEN MATCHED THEN UPDATE SET t.NAME = e.NAME
    WHEN NOT MATCHED AND NOT e.DELETED THEN INSERT (ID, NAME) VALUES (e.ID, e.NAME)
"""


@dag(schedule="*/5 * * * *", catchup=False, max_active_runs=1, default_args={"retries": 3})
def cdc_from_kafka() -> None:
    """Load, then merge: a key is always in one partition, so offsets order its events."""
    load = SnowpipeStreamOperator(
        task_id="load",
        source=KafkaSource(
            conn_id="kafka_default",
            topics=["shop.customers"],
            tombstones="drop",
            metadata={"SRC_OFFSET": "offset"},
        ),
        table="CUSTOMER_EVENTS",
    )
    merge = SQLExecuteQueryOperator(task_id="merge", conn_id="snowflake_default", sql=MERGE)
    load >> merge


cdc_from_kafka()

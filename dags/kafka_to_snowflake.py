"""Every five minutes, load what has come into a Kafka topic since the run before, each record once.

Each topic-partition has a channel; the offset of the last committed record is its token. A run asks for the
tokens, starts at the record after them, and ends at what was the topic's end when it began. The consumer
group's offsets follow the committed tokens, so that whoever watches the group's lag sees how far the table
is. A run that was skipped, failed or stopped leaves nothing to do by hand.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.providers.common.compat.sdk import Param, dag
from airflow.providers.common.sql.operators.sql import SQLCheckOperator, SQLExecuteQueryOperator

from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from airflow_provider_snowpipe.sources import KafkaSource

CREATE_TABLE = """
CREATE TABLE IF NOT EXISTS "{{ params.table }}" (
    ID NUMBER, NOTE VARCHAR, KAFKA_PARTITION NUMBER, KAFKA_OFFSET NUMBER, KAFKA_TIMESTAMP TIMESTAMP_TZ
)
"""
NO_RECORD_TWICE = """
SELECT COUNT(*) = COUNT(DISTINCT KAFKA_PARTITION || ':' || KAFKA_OFFSET) FROM "{{ params.table }}"
"""


@dag(
    schedule="*/5 * * * *",
    catchup=False,  # a run loads everything that is there, whichever interval it is for
    max_active_runs=1,  # a channel has one writer
    tags=["snowpipe", "example"],
    doc_md=__doc__,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=5)},
    params={
        "table": Param("EVENTS", type="string", pattern="^[A-Z_][A-Z0-9_]*$", description="Target table"),
        "topic": Param("events", type="string", description="The topic"),
        "group": Param("snowpipe-events", type="string", description="The group whose offsets follow"),
    },
)
def kafka_to_snowflake() -> None:
    """Create, stream, check."""
    create_table = SQLExecuteQueryOperator(
        task_id="create_table", conn_id="snowflake_default", sql=CREATE_TABLE, split_statements=False
    )
    stream = SnowpipeStreamOperator(
        task_id="stream",
        source=KafkaSource(
            conn_id="kafka_default",
            topics=["{{ params.topic }}"],
            group_id="{{ params.group }}",
            metadata=["partition", "offset", "timestamp"],
            tombstones="drop",
        ),
        table="{{ params.table }}",
    )
    no_record_twice = SQLCheckOperator(
        task_id="no_record_twice", conn_id="snowflake_default", sql=NO_RECORD_TWICE
    )
    create_table >> stream >> no_record_twice


kafka_to_snowflake()

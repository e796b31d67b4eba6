"""Load one source into the accounts of two regions, side by side."""

from airflow.sdk import dag

from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from airflow_provider_snowpipe.sources import KafkaSource


@dag(schedule="*/5 * * * *", catchup=False, max_active_runs=1, default_args={"retries": 3})
def two_regions() -> None:
    """Each account has its own channels and tokens: one may be behind, and catches up later."""
    for region in ("eu", "us"):
        SnowpipeStreamOperator(
            task_id=f"load_{region}",
            source=KafkaSource(conn_id="kafka_default", topics=["orders"]),
            table="ORDERS",
            snowflake_conn_id=f"snowflake_{region}",
            channel_prefix=f"orders_{region}",
        )


two_regions()

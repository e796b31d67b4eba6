"""Load files of a landing bucket when its queue of notifications announces them."""

from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.sdk import Asset, AssetWatcher, dag

from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from airflow_provider_snowpipe.sources import FileSource

QUEUE = "https://sqs.eu-west-1.amazonaws.com/123456789012/landing"
ARRIVED = MessageQueueTrigger(scheme="sqs", sqs_queue=QUEUE, aws_conn_id="aws_default")
ORDERS = Asset("landing_orders", watchers=[AssetWatcher(name="landing", trigger=ARRIVED)])


@dag(schedule=[ORDERS], max_active_runs=1, default_args={"retries": 3})
def s3_arrivals() -> None:
    """A run loads every file that is new, also one whose message was lost."""
    SnowpipeStreamOperator(
        task_id="load", source=FileSource(path="s3://landing/orders", conn_id="aws_default"), table="ORDERS"
    )


s3_arrivals()

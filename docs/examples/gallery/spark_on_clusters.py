"""Run one load's driver on YARN and another's on Kubernetes, without a worker that waits."""

from airflow.sdk import dag

from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from airflow_provider_snowpipe.sources import FileSource, Parquet


@dag(schedule="@hourly", catchup=False, max_active_runs=1, default_args={"retries": 3})
def spark_on_clusters() -> None:
    """The connections have the deploy mode ``cluster``."""
    SnowpipeStreamOperator(
        task_id="on_yarn",
        source=FileSource(path="/mnt/orders", format=Parquet()),
        table="ORDERS",
        spark_conn_id="spark_yarn",
        work_path="s3://loads/work",
        env_vars={"HADOOP_CONF_DIR": "/etc/hadoop/conf"},
        num_executors=10,
        deferrable=True,
    )
    SnowpipeStreamOperator(
        task_id="on_kubernetes",
        source=FileSource(path="s3://lake/clicks", format=Parquet()),
        table="CLICKS",
        spark_conn_id="spark_kubernetes",
        work_path="s3://loads/work",
        driver_secret="snowflake:credentials",
        conf={"spark.kubernetes.container.image": "registry.example.com/spark-snowpipe:4.2.0"},
        deferrable=True,
    )


spark_on_clusters()

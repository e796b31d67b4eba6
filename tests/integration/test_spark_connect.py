"""The job over a real Spark Connect server: the same plan, the same rows, and no ``SparkContext``."""

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from tests.airflow_connections import SetConnection
from tests.local_connection import connect, context, ids
from tests.local_service import LocalService
from tests.spark_cluster import write_bare_python
from tests.spark_connect import ConnectServer
from tests.spark_groups import GROUPS, ROWS, assert_exact, grouped_job
from tests.spark_job import numbered_name, write_rows

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(find_spec("grpc") is None, reason="the extra connect is not installed"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    """A server whose executors cannot import our package by themselves."""
    folder = tmp_path_factory.mktemp("connect")
    server = ConnectServer(folder, write_bare_python(folder / "bare-python"), {})
    try:
        yield server.start()
    finally:
        server.stop()


def test_jobs_of_files_and_topics_run_in_one_python_until_the_server_closes_their_session(
    local_service: LocalService, server: ConnectServer, set_connection: SetConnection, tmp_path: Path
) -> None:
    pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")
    from tests.kafka_topics import MockCluster, numbered, produce

    job = grouped_job(local_service, tmp_path, numbered_name("CONNECT"))
    job.launcher = (sys.executable,)
    job.env["SPARK_REMOTE"] = server.url
    first = job.load()

    assert_exact(job)
    assert [(one.partition, one.rows, one.committed) for one in first.report.channels] == [
        (group, ROWS, True) for group in GROUPS
    ]

    before = server.python_daemons()
    cluster, topic = MockCluster(), numbered_name("CONNECT_TOPIC")
    cluster.make_topic(topic)
    local_service.sql(f"CREATE TABLE {topic} (ID NUMBER, NOTE VARCHAR)")
    produce(cluster.address, topic, numbered(range(500)))
    set_connection("server", conn_type="spark_connect", host="127.0.0.1", port=server.port)
    operator = SnowpipeStreamOperator(
        task_id="load",
        source={"kind": "kafka", "bootstrap_servers": cluster.address, "topics": [topic]},
        table=topic,
        snowflake_conn_id=connect(local_service, set_connection),
        spark_conn_id="server",
        channel_prefix="test",
    )
    assert operator.execute(context())["rows"] == 500
    assert ids(local_service, topic) == list(range(500))
    assert server.python_daemons() == before

    # stop() would only warn of a session that it could not release.
    program = f"""
from pyspark.sql import SparkSession
from airflow_provider_snowpipe.spark.driver.session import _shared_session, _written_package
with _written_package() as archive:
    shared = _shared_session({server.url!r}, archive.read_bytes())
SparkSession.builder.remote(shared).getOrCreate().client.release_session()
"""
    subprocess.run([sys.executable, "-c", program], env={**os.environ, **job.env}, check=True, timeout=600)
    write_rows(tmp_path / "source" / "a" / "more.ndjson", range(10**6, 10**6 + 10))
    second = job.run()
    assert (second.code, second.report.rows) == (0, 10), second.err[-3000:]
    assert len(server.python_daemons()) == len(before) + 1

"""The job over a real Spark Connect server: the same plan, the same rows, and no ``SparkContext``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.local_service import LocalService
from tests.spark_cluster import write_bare_python
from tests.spark_connect import ConnectServer
from tests.spark_groups import GROUPS, ROWS, assert_exact, grouped_job
from tests.spark_job import SparkJob, numbered_name

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


@pytest.fixture
def job(local_service: LocalService, server: ConnectServer, tmp_path: Path) -> SparkJob:
    job = grouped_job(local_service, tmp_path, numbered_name("CONNECT"))
    job.launcher = (sys.executable,)
    job.env["SPARK_REMOTE"] = server.url
    return job


def test_groups_load_once_and_what_a_task_refuses_is_said_in_one_line(job: SparkJob, tmp_path: Path) -> None:
    first = job.run()

    assert first.code == 0, first.err[-3000:]
    assert_exact(job)
    assert [(one.partition, one.rows, one.committed) for one in first.report.channels] == [
        (group, ROWS, True) for group in GROUPS
    ]

    shrunk = tmp_path / "source" / "b" / "2.ndjson"
    shrunk.write_text("".join(shrunk.read_text().splitlines(keepends=True)[:150]))
    second = job.run()

    assert second.code == 1
    (line,) = second.error_lines
    assert line.startswith(f"snowpipe error: SourcePositionError: channel {job.channel('b')!r}: ")
    assert "150 line(s)" in line
    assert "Traceback" not in second.out + second.err
    assert_exact(job)


def test_each_item_has_a_task_of_its_own_however_many_there_are(server: ConnectServer) -> None:
    program = f"""
from pyspark.sql import SparkSession
from airflow_provider_snowpipe.spark.driver.session import add_package, one_connect_task_each

def work(item):
    from pyspark import TaskContext
    return item * 2, TaskContext.get().partitionId()

session = SparkSession.builder.remote({server.url!r}).getOrCreate()
add_package(session)
found = one_connect_task_each(session, work, list(range(40)))
print([value for value, _ in found] == [2 * item for item in range(40)], len({{task for _, task in found}}))
session.stop()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False
    )

    assert done.stdout.split() == ["True", "40"], done.stderr[-2000:]

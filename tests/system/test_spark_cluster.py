"""A load whose executors run on a real Spark standalone cluster, under a real Airflow."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Stack
from flights_run import wait_for
from load_run import SLOW, LoadRun

from tests.spark_cluster import StandaloneCluster, write_bare_python

pytestmark = [pytest.mark.airflow, pytest.mark.spark]


@pytest.fixture
def cluster(stack: Stack, tmp_path: Path) -> Iterator[StandaloneCluster]:
    roots = {"REQUESTS_CA_BUNDLE": stack.service.env["REQUESTS_CA_BUNDLE"]}
    cluster = StandaloneCluster(tmp_path, roots)
    try:
        cluster.start()
        fields = {"conn_type": "spark", "host": "spark://127.0.0.1", "port": cluster.port}
        stack.airflow.api.add_connection("spark_cluster", fields)
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """A Python for executors, which cannot import our package by itself."""
    python = write_bare_python(tmp_path / "bare-python")
    command = [python, "-c", "import pyarrow, airflow_provider_snowpipe"]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", env={})
    assert "No module named 'airflow_provider_snowpipe'" in done.stderr
    return python


# faults/test_cluster_faults uses a cluster daily.
@pytest.mark.nightly
def test_executors_without_our_package_load_every_row_once_though_one_dies(
    stack: Stack, cluster: StandaloneCluster, bare_python: Path, tmp_path: Path
) -> None:
    run = LoadRun(stack, "cluster_load", "ON_A_CLUSTER", tmp_path, SLOW, executor_python=str(bare_python))
    run.wait_until_committing()
    (executor,) = cluster.executors()
    executor.kill()

    run.wait()

    run.assert_every_row_is_there_once()
    assert run.applications == 1
    assert run.task("stream")["try_number"] == 1
    wait_for(
        lambda: [app["name"] for app in cluster.state()["completedapps"]] == [run.application],
        "the application stays on the cluster",
    )
    assert cluster.state()["activeapps"] == []

"""A person who clears a task while its driver runs, under a real Airflow, at night.

Daily, ``unit/operators/test_driver_run`` proves the stop, ``test_when_processes_die`` the resumption, and
``integration/test_yarn`` calls the trigger as Airflow does here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Stack
from runs import ROWS, LoadRun, wait_for

from airflow_provider_snowpipe.hooks.cluster import ResourceManager
from tests.airflow_version import AIRFLOW
from tests.spark_cluster import write_bare_python
from tests.yarn_cluster import YarnCluster, yarn_cluster

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.nightly]

STOP_SECONDS = 60.0
"""Airflow's heartbeat, after which a task knows that it has to stop, and five seconds for the driver."""
# Thirty appends to a channel in eight seconds: slow enough to be met in the middle.
SLOW = {"rows": 100, "requests_per_second": 4.0}
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.fixture
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[YarnCluster]:
    with yarn_cluster(tmp_path_factory.mktemp("yarn")) as cluster:
        yield cluster


@pytest.mark.skipif(AIRFLOW < (3, 3), reason="Airflow informs a trigger since 3.3 that its task is cleared")
def test_a_deferred_load_that_is_cleared_stops_its_application_and_the_next_try_resumes(
    yarn: YarnCluster, stack: Stack, tmp_path: Path
) -> None:
    extra = {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": yarn.address}
    stack.airflow.api.add_connection("spark_on_yarn", {"conn_type": "spark", "host": "yarn", "extra": extra})
    manager, tag = ResourceManager(f"http://{yarn.address}"), "cleared_on_yarn"
    environment, settings = yarn.submission(tmp_path / "staging")
    settings |= {
        "spark.yarn.tags": tag,
        "spark.driver.extraJavaOptions": _QUICK,
        "spark.executor.extraJavaOptions": _QUICK,
        "spark.yarn.appMasterEnv.REQUESTS_CA_BUNDLE": stack.service.env["REQUESTS_CA_BUNDLE"],
        "spark.executorEnv.REQUESTS_CA_BUNDLE": stack.service.env["REQUESTS_CA_BUNDLE"],
    }
    work = tmp_path / "work"
    work.mkdir()
    run = LoadRun(
        stack,
        "yarn_load",
        tag.upper(),
        tmp_path,
        batch_limits=SLOW,
        work_path=work.as_uri(),
        env_vars={**environment, "PYSPARK_PYTHON": str(write_bare_python(tmp_path / "bare-python"))},
        spark_conf=settings,
    )
    run.wait_until_waiting("stream")
    wait_for(lambda: run.triggerer("stream") is not None, "nobody took the trigger")
    wait_for(lambda: 0 < run.rows() < ROWS, "no channel was seen committing")
    (cleared,) = manager.tagged(tag)
    assert cleared.is_active

    with stack.held():
        run.api.clear(run.dag_id, run.run_id, "stream")

        wait_for(
            lambda: manager.application(cleared.id).state == "KILLED", "the application runs", STOP_SECONDS
        )
        wait_for(
            lambda: not yarn.containers(application_id=cleared.id), "containers of it live", STOP_SECONDS
        )
        committed = run.rows()

    assert 0 < committed < ROWS
    run.wait()
    run.assert_every_row_is_there_once()
    assert run.xcom("stream")["rows"] <= ROWS - committed
    resumed, first = manager.tagged(tag)
    assert (first.id, first.state) == (cleared.id, "KILLED")
    assert resumed.has_succeeded
    wait_for(lambda: not yarn.containers(), "containers of the next try live", STOP_SECONDS)
    assert list(work.iterdir()) == []

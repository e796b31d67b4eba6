"""A person who clears a deferred task while its driver runs on a real YARN, under a real Airflow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Stack
from flights_run import wait_for, wait_until_left
from load_run import ROWS, SLOW, STOP_SECONDS, LoadRun

from airflow_provider_snowpipe.hooks.cluster import ResourceManager
from tests.airflow_version import AIRFLOW
from tests.spark_cluster import write_bare_python
from tests.yarn_cluster import YarnCluster, yarn_cluster

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.spark,
    pytest.mark.skipif(
        AIRFLOW < (3, 3), reason="Airflow informs a trigger since 3.3 that its task is cleared"
    ),
]

_TABLE = "CLEARED_ON_YARN"
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.fixture
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[YarnCluster]:
    with yarn_cluster(tmp_path_factory.mktemp("yarn")) as cluster:
        yield cluster


def _params(yarn: YarnCluster, stack: Stack, folder: Path) -> dict[str, Any]:
    """The part of the DAG's params that sets how drivers come to the cluster."""
    environment, settings = yarn.submission(folder / "staging")
    roots = stack.service.env["REQUESTS_CA_BUNDLE"]
    (folder / "work").mkdir()
    return {
        "work_path": (folder / "work").as_uri(),
        "env_vars": {**environment, "PYSPARK_PYTHON": str(write_bare_python(folder / "bare-python"))},
        "spark_conf": {
            **settings,
            "spark.yarn.tags": _TABLE.lower(),
            "spark.driver.extraJavaOptions": _QUICK,
            "spark.executor.extraJavaOptions": _QUICK,
            "spark.yarn.appMasterEnv.REQUESTS_CA_BUNDLE": roots,
            "spark.executorEnv.REQUESTS_CA_BUNDLE": roots,
        },
    }


# integration/test_yarn calls the trigger itself; here Airflow does.
@pytest.mark.nightly
def test_a_deferred_load_that_is_cleared_stops_its_application_and_the_next_try_resumes(
    yarn: YarnCluster, stack: Stack, tmp_path: Path
) -> None:
    extra = {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": yarn.address}
    stack.airflow.api.add_connection("spark_on_yarn", {"conn_type": "spark", "host": "yarn", "extra": extra})
    manager = ResourceManager(f"http://{yarn.address}")
    run = LoadRun(stack, "yarn_load", _TABLE, tmp_path, SLOW, **_params(yarn, stack, tmp_path))
    run.wait_for_state("stream", "deferred")
    wait_until_left(stack.airflow, run.dag_id, run.run_id, "stream")
    wait_for(lambda: run.triggerer("stream") is not None, "nobody took the trigger")
    run.wait_until_committing()
    (cleared,) = manager.tagged(_TABLE.lower())
    assert cleared.is_active

    with stack.held_appends():
        assert run.task("stream")["state"] == "deferred"
        run.api.clear(run.dag_id, run.run_id, "stream")

        wait_for(
            lambda: manager.application(cleared.id).state == "KILLED",
            f"{cleared.id} of the cleared task runs",
            STOP_SECONDS,
        )
        wait_for(
            lambda: not yarn.containers(application_id=cleared.id),
            f"containers of {cleared.id} live",
            STOP_SECONDS,
        )
        committed = run.rows()
        assert 0 < committed < ROWS

    run.wait()
    run.assert_every_row_is_there_once()
    assert run.task("stream")["try_number"] == 2
    assert run.xcom("stream")["rows"] <= ROWS - committed
    resumed, first = manager.tagged(_TABLE.lower())
    assert (first.id, first.state) == (cleared.id, "KILLED")
    assert resumed.has_succeeded
    wait_for(lambda: not yarn.containers(), f"containers of {resumed.id} live", STOP_SECONDS)
    assert list((tmp_path / "work").iterdir()) == []

"""Files that Spark writes on a real standalone cluster, whose executors have none of our code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_snowpipe.operators.bulk_load import SnowpipeBulkLoadOperator
from airflow_provider_snowpipe.operators.stage_files import SnowpipeStageFilesOperator
from tests.airflow_connections import SetConnection, set_connection
from tests.file_pipes import task_context
from tests.local_connection import connect, ids
from tests.local_service import LocalService
from tests.spark_cluster import StandaloneCluster, write_bare_python

__all__ = ["set_connection"]

pytestmark = [pytest.mark.spark, pytest.mark.nightly, pytest.mark.timeout(600)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StandaloneCluster]:
    (tmp_path / "cluster").mkdir()
    cluster = StandaloneCluster(tmp_path / "cluster", {})
    try:
        yield cluster.start()
    finally:
        cluster.stop()


def test_executors_write_into_the_shared_folder_and_leave_it_empty(
    cluster: StandaloneCluster,
    local_service: LocalService,
    set_connection: SetConnection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(local_service.ca_file))
    set_connection("spark_default", conn_type="spark", host="spark://127.0.0.1", port=cluster.port)
    conn_id = connect(local_service, set_connection)
    local_service.sql("CREATE TABLE ON_CLUSTER (ID NUMBER, NAME VARCHAR)")
    local_service.sql("CREATE STAGE ON_CLUSTER_STAGE")
    shared = tmp_path / "shared"
    shared.mkdir()
    bare_python = str(write_bare_python(tmp_path / "bare-python"))
    spark: dict[str, Any] = {
        "driver_memory": "512m",
        "executor_memory": "512m",
        "conf": {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"},
        "env_vars": {"PYSPARK_PYTHON": bare_python},
    }
    common: dict[str, Any] = {"snowflake_conn_id": conn_id, "work_path": str(shared)}

    load = SnowpipeBulkLoadOperator(
        task_id="bulk",
        source={"query": "SELECT /*+ REPARTITION(8) */ id AS ID, 'x' AS NAME FROM range(500)"},
        table="ON_CLUSTER",
        stage="@ON_CLUSTER_STAGE",
        **common,
        **spark,
    )
    assert load.execute(task_context())["rows_loaded"] == 500
    assert ids(local_service, "ON_CLUSTER") == list(range(500))

    (tmp_path / "in").mkdir()
    for number in range(60):
        (tmp_path / "in" / f"{number}.ndjson").write_text(json.dumps({"ID": number}) + "\n")
    stage = SnowpipeStageFilesOperator(
        task_id="stage",
        source=str(tmp_path / "in"),
        stage="@ON_CLUSTER_STAGE",
        compact=True,
        spark_options=spark,
        **common,
    )
    done = stage.execute(task_context())

    assert (done["combined"], len(done["files"])) == (60, 1)
    assert list(shared.rglob("*.*")) == []

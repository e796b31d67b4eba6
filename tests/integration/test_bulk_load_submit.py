"""``SnowpipeBulkLoadOperator`` with the driver that ``spark-submit`` starts for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_snowpipe.operators.bulk_driver import RunStage
from airflow_provider_snowpipe.operators.bulk_load import SnowpipeBulkLoadOperator
from tests.airflow_connections import SetConnection, set_connection
from tests.file_pipes import task_context
from tests.local_connection import connect, ids
from tests.local_service import LocalService

__all__ = ["set_connection"]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


class KeptState:
    """The task state that Airflow has since 3.3: what it holds outlives the worker."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def get(self, key: str) -> Any:
        return self.values.get(key)

    def set(self, key: str, value: Any) -> None:
        self.values[key] = value

    def delete(self, key: str) -> None:
        self.values.pop(key, None)


@pytest.fixture
def operator(
    local_service: LocalService,
    set_connection: SetConnection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(local_service.ca_file))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    set_connection("spark_default", conn_type="spark", host="local[2]")
    conn_id = connect(local_service, set_connection)
    local_service.sql("CREATE OR REPLACE TABLE SUBMITTED (ID NUMBER, NAME VARCHAR)")
    local_service.sql("CREATE OR REPLACE STAGE SUBMITTED_STAGE")

    def make(query: str) -> SnowpipeBulkLoadOperator:
        return SnowpipeBulkLoadOperator(
            task_id="bulk",
            source={"query": query},
            table="SUBMITTED",
            stage="@SUBMITTED_STAGE",
            snowflake_conn_id=conn_id,
            driver_memory="512m",
            conf={"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"},
        )

    return make


def test_files_that_a_dead_worker_had_written_are_staged_by_the_next_try(
    operator: Any, local_service: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = KeptState()

    class DiedError(BaseException):
        """Stands for a worker that dies at this very step."""

    def die(*_: Any) -> None:
        raise DiedError

    first = operator("SELECT id AS ID, 'x' AS NAME FROM range(500)")
    monkeypatch.setattr(first, "_clean_up", lambda: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunStage, "put", die)
        with pytest.raises(DiedError):
            first.execute({**task_context(), "task_state_store": state})

    second = operator("SELECT id AS ID, 'x' AS NAME FROM range(500)")
    monkeypatch.setattr(second, "_start", die)  # no second driver is started
    done = second.execute({**task_context(try_number=2), "task_state_store": state})

    assert done["rows_loaded"] == 500
    assert ids(local_service, "SUBMITTED") == list(range(500))
    assert state.values == {}

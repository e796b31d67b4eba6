"""``SnowpipeBulkLoadOperator`` on real Spark against a real local service: exact rows, once."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_snowpipe.assets.uri import snowpipe_asset
from airflow_provider_snowpipe.bulk.ledger import Ledger
from airflow_provider_snowpipe.bulk.statement_client import StatementClient
from airflow_provider_snowpipe.operators.bulk_driver import RunStage
from airflow_provider_snowpipe.operators.bulk_load import SnowpipeBulkLoadOperator
from tests.fake_snowpipe import KilledError
from tests.file_pipes import PipeTarget, task_context
from tests.integration.spark_values import TYPES, assert_arrived, values_query
from tests.local_service import LocalService
from tests.outlet_events import OutletEvents
from tests.spark_in_task import Submissions, submit_in_process
from tests.stream_worker import FileState

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ROWS = "SELECT id AS ID, concat('row ', id) AS Name FROM range({})"


def die(*_: Any, **__: Any) -> None:
    raise KilledError


class Bulk(PipeTarget):
    """A table and a stage of their own for a test."""

    def __init__(self, service: LocalService, folder: Path, conn_id: str, submitted: Submissions) -> None:
        super().__init__(service, folder, conn_id)
        self.submitted = submitted

    def operator(self, rows: int = 1_000, **arguments: Any) -> SnowpipeBulkLoadOperator:
        given = {"source": {"query": ROWS.format(rows)}, "stage": f"@{self.stage}/in", **arguments}
        return SnowpipeBulkLoadOperator(
            task_id="bulk", table=self.table, snowflake_conn_id=self.conn_id, deferrable=False, **given
        )

    def load(self, run: str = "r1", try_number: int = 1, rows: int = 1_000, **more: Any) -> dict[str, Any]:
        return self.operator(rows, **more).execute(self.context(run, try_number))

    def staged(self) -> list[str]:
        """The names in the stage, without the folder of the run."""
        rows = self.service.sql(f"LIST @{self.stage}")
        return sorted(str(row["name"]).split("/", 3)[-1] for row in rows)


@pytest.fixture
def bulk(
    local_service: LocalService, conn_id: str, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Bulk:
    return Bulk(local_service, tmp_path, conn_id, submit_in_process(monkeypatch, spark))


class TestValues:
    def test_every_type_arrives_with_its_value_and_null_stays_null(self, bulk: Bulk) -> None:
        types = [*TYPES, ("NAN", "FLOAT", "double('NaN')", "{}::VARCHAR", "NaN")]
        done = bulk.load(source={"query": values_query(bulk.service, bulk.table, types)})
        assert done["rows_loaded"] == done["rows"] == 2
        assert_arrived(bulk.service, bulk.table, types)

    @pytest.mark.parametrize(
        ("query", "named"), [("SELECT 1 AS ID, 2 AS OTHER", "OTHER"), ("SELECT NOPE FROM range(5)", "NOPE")]
    )
    def test_what_the_table_or_spark_refuses_fails_the_task_before_anything_is_staged(
        self, bulk: Bulk, query: str, named: str
    ) -> None:
        with pytest.raises(AirflowFailException, match=named):
            bulk.load(source={"query": query})
        assert bulk.staged() == bulk.ids() == []


class TestSizes:
    def test_one_large_part_becomes_files_of_the_target(self, bulk: Bulk) -> None:
        target = 200_000
        query = "SELECT /*+ COALESCE(1) */ id AS ID, sha2(string(id), 512) AS NAME FROM range(20000)"
        done = bulk.load(source={"query": query}, target_file_bytes=target, keep_files=True)
        sizes = [
            int(row["size"])
            for row in bulk.service.sql(f"LIST @{bulk.stage}")
            if str(row["name"]).endswith(".parquet")
        ]
        assert len(sizes) == len(done["files"]) >= 5
        assert max(sizes) <= target * 1.56
        assert sum(sizes) / len(sizes) >= target * 0.625
        assert bulk.ids() == list(range(20_000))


class TestOnce:
    def test_a_try_after_a_death_loads_every_row_once_and_later_ones_do_nothing_more(
        self, bulk: Bulk
    ) -> None:
        asset = snowpipe_asset(
            account=bulk.service.account, database="LOCAL", schema="PUBLIC", table=bulk.table
        )
        events = OutletEvents(lambda: SimpleNamespace(extra={}))
        submit = StatementClient.submit

        def submit_and_die(*arguments: Any, **named: Any) -> None:
            submit(*arguments, **named)
            raise KilledError

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(StatementClient, "submit", submit_and_die)
            with pytest.raises(KilledError):
                bulk.load(target_file_bytes=2_000)
        task = bulk.operator(outlets=[asset], target_file_bytes=2_000)
        done = task.execute({**bulk.context(try_number=2), "outlet_events": events})

        assert bulk.ids() == list(range(1_000))
        assert (done["rows_loaded"], len(done["files"]) > 1) == (1_000, True)
        assert bulk.staged() == []
        assert events.made[asset.uri].extra == {"committed": True, "rows": 1_000, "loader": "COPY"}
        assert (task.task_lineage.rows, len(task.task_lineage.sources)) == (1_000, 1)
        assert bulk.load(try_number=3, target_file_bytes=2_000) == done
        assert bulk.ids() == list(range(1_000))
        assert len(bulk.submitted) == 1


class TestLocations:
    def test_an_external_stage_is_written_into_by_spark(self, bulk: Bulk, tmp_path: Path) -> None:
        lake = bulk.service.new_folder()
        bulk.service.sql(f"CREATE STAGE {bulk.table}_LAKE URL = 'file://{lake}/'")
        (link := tmp_path / "lake").symlink_to(lake)  # as Spark spells the stage's URL
        arguments = {"stage": f"@{bulk.table}_LAKE/in", "storage_url": f"file://{link}", "keep_files": True}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Ledger, "plan", die)
            with pytest.raises(KilledError):
                bulk.load(**arguments)
        bulk.load(try_number=2, **arguments)

        assert {plan.folder.partition("/in/")[0] for plan in bulk.submitted} == {f"file://{link}"}
        assert bulk.ids() == list(range(1_000))
        assert len(list((lake / "in").rglob("*.parquet"))) == 2

        bulk.load(try_number=3, stage=f"@{bulk.table}_LAKE/in")
        assert list(lake.rglob("*.parquet")) == []
        assert bulk.ids() == list(range(1_000))

    def test_small_files_become_one_in_the_tables_own_stage_and_a_shared_folder_is_empty_again(
        self, bulk: Bulk, tmp_path: Path
    ) -> None:
        for folder in ("in", "shared"):
            (tmp_path / folder).mkdir()
        for number in range(5):
            (tmp_path / "in" / f"{number}.csv").write_text(f"ID,NAME\n{number},x\n")
        options = {"header": "true", "inferSchema": "true"}
        source = json.dumps({"path": str(tmp_path / "in"), "format": "csv", "options": options})
        arguments = {"source": source, "stage": None, "run_key": "day 1"}
        done = bulk.load(work_path=str(tmp_path / "shared"), **arguments)

        assert len(done["files"]) == 1
        assert bulk.load("r2", **arguments) == done
        assert bulk.ids() == list(range(5))
        assert done["folder"].startswith(f'@%"{bulk.table}"/')
        assert list((tmp_path / "shared").rglob("*")) == []


def test_files_that_the_driver_of_a_dead_worker_had_written_are_staged_by_the_next_try(
    local_service: LocalService, conn_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With drivers that ``spark-submit`` starts."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    target, state = PipeTarget(local_service, tmp_path, conn_id), FileState(tmp_path / "state.json")
    first, second = (
        SnowpipeBulkLoadOperator(
            task_id="bulk",
            source={"query": ROWS.format(500)},
            table=target.table,
            stage=f"@{target.stage}",
            snowflake_conn_id=conn_id,
            driver_memory="512m",
            conf={"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"},
        )
        for _ in range(2)
    )
    monkeypatch.setattr(first, "_clean_up", lambda: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunStage, "put_written", die)
        with pytest.raises(KilledError):
            first.execute({**task_context(), "task_state_store": state})
    monkeypatch.setattr(second, "_start", die)  # no second driver is started
    done = second.execute({**task_context(try_number=2), "task_state_store": state})

    assert done["rows_loaded"] == 500
    assert target.ids() == list(range(500))
    assert state.values() == {}

"""``compact=True`` of ``SnowpipeStageFilesOperator`` on real Spark, and COPY of what it stages."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_snowpipe.operators.copy import SnowpipeCopyOperator
from airflow_provider_snowpipe.operators.stage_files import SnowpipeStageFilesOperator
from tests.file_pipes import PipeTarget, task_context
from tests.local_service import LocalService
from tests.spark_in_task import Submissions, submit_in_process

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

JSON = {"file_format": {"type": "JSON"}, "match_by_column_name": "CASE_INSENSITIVE"}


@pytest.fixture
def submitted(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Submissions:
    return submit_in_process(monkeypatch, spark)


@pytest.fixture
def target(local_service: LocalService, submitted: Submissions, tmp_path: Path, conn_id: str) -> PipeTarget:
    return PipeTarget(local_service, tmp_path, conn_id)


def stage(target: PipeTarget, source: Any, *, run: str = "r1", **arguments: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"compact": True, "stage": f"@{target.stage}/day", **arguments}
    operator = SnowpipeStageFilesOperator(
        task_id="stage", source=str(source), snowflake_conn_id=target.conn_id, **given
    )
    return operator.execute(task_context(run))


def copy(target: PipeTarget, files: list[str], options: Any, run: str = "r1") -> dict[str, Any]:
    return SnowpipeCopyOperator(
        task_id="copy",
        table=target.table,
        stage=f"@{target.stage}/day",
        files=files,
        options=options,
        snowflake_conn_id=target.conn_id,
    ).execute(task_context(run))


def ndjson(folder: Path, files: int, rows: int = 3) -> int:
    """Write files of lines, some of them below folders; how many rows."""
    for number in range(files):
        below = folder / f"{number % 7}"
        below.mkdir(parents=True, exist_ok=True)
        ids = range(number * rows, (number + 1) * rows)
        lines = [json.dumps({"ID": one, "NAME": f"ä {one}"}) for one in ids]
        (below / f"{number:05}.ndjson").write_text("\n".join(lines))  # without a last line end
    return files * rows


def test_a_hundred_tiny_files_become_one_and_load_once(
    target: PipeTarget, submitted: Submissions, tmp_path: Path
) -> None:
    rows = ndjson(tmp_path / "in", 100)
    done = stage(target, tmp_path / "in")

    assert (done["combined"], len(done["files"]), len(done["uploaded"])) == (100, 1, 1)
    assert done["files"][0].endswith(".ndjson.gz")
    assert copy(target, done["files"], JSON)["rows_loaded"] == rows
    assert target.ids() == list(range(rows))

    again = stage(target, tmp_path / "in", run="r2")
    assert again["files"] == again["skipped"] == done["files"]
    assert copy(target, again["files"], JSON, "r2")["rows_loaded"] == 0
    assert len(submitted) == 1
    assert target.ids() == list(range(rows))


def test_rows_keep_their_format_and_get_the_columns_of_all_files(target: PipeTarget, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(40):
        columns: dict[str, Any] = {"ID": pa.array([number], pa.int64())}
        if number % 2:
            columns["NAME"] = ["odd"]
        pq.write_table(pa.table(columns), tmp_path / "in" / f"{number}.parquet")
    done = stage(target, tmp_path / "in")

    assert [name.rpartition(".")[2] for name in done["files"]] == ["parquet"]
    form = {"file_format": {"type": "PARQUET"}, "match_by_column_name": "CASE_INSENSITIVE"}
    copy(target, done["files"], form)
    assert target.ids() == list(range(40))
    (odd,) = target.service.sql(f"SELECT COUNT(NAME) AS N FROM {target.table}")
    assert int(odd["N"]) == 20

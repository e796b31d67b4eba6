"""Rows that do not fit the table, through the job: put aside once, or the end of the run."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_provider_snowpipe.spark.sources.files.spec import FileSourceSpec
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.table_schema import columns_of_describe
from tests.spark_job import SparkJob, ids_in, new_table, numbered_name

pytestmark = pytest.mark.spark

BAD = {"ID": "no number"}


def _write(path: Path, rows: dict[int, Any], *, append: bool = False) -> None:
    """Write rows by their line numbers; a text is written as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows.values()]
    with path.open("a" if append else "w", encoding="utf-8") as file:
        file.write("".join(line + "\n" for line in lines))


def _good(number: int) -> dict[str, Any]:
    return {"ID": number, "FILE": "f", "NOTE": "n"}


@pytest.fixture
def job(local_service, tmp_path, shared_spark):
    service, table = local_service, new_table(local_service, numbered_name("BAD"))
    (tmp_path / "source").mkdir()
    return SparkJob(
        service,
        tmp_path / "runs",
        table,
        FileSourceSpec(path=str(tmp_path / "source")),
        {
            "on_error": "dead_letter",
            "dead_letter_path": str(tmp_path / "dead letters"),
            "columns": columns_of_describe(service.sql(f"DESCRIBE TABLE LOCAL.PUBLIC.{table}")),
        },
        spark=shared_spark,
    )


def _dead_letters(tmp_path: Path) -> list[dict[str, Any]]:
    files = sorted((tmp_path / "dead letters").rglob("*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def _positions(tmp_path: Path) -> Counter[tuple[str, str]]:
    return Counter((row["channel"], row["position"]) for row in _dead_letters(tmp_path))


def test_bad_rows_are_put_aside_once_and_all_others_are_loaded(job, tmp_path):
    rows: dict[int, Any] = {line: _good(line) for line in range(1, 301)}
    rows |= {7: BAD, 8: "", 9: "{torn", 150: "[1]", 299: BAD, 300: BAD}
    _write(tmp_path / "source" / "a" / "1.ndjson", rows)
    _write(tmp_path / "source" / "b" / "1.ndjson", {1: BAD, 2: BAD})

    first = job.run(limits=BatchLimits(rows=50))

    assert first.code == 0, first.err[-3000:]
    loaded = [line for line in range(1, 299) if line not in (7, 8, 9, 150)]
    assert ids_in(job.service, job.table) == loaded
    a, b = job.channel("a"), job.channel("b")
    expected = [(a, f"1/1.ndjson:{line}") for line in (7, 9, 150, 299, 300)]
    expected += [(b, "2/1.ndjson:1"), (b, "2/1.ndjson:2")]
    assert _positions(tmp_path) == Counter(expected)
    found = {(row["channel"], row["position"]): row for row in _dead_letters(tmp_path)}
    assert found[a, "1/1.ndjson:7"]["column"] == "ID"
    assert found[a, "1/1.ndjson:7"]["reason"] == "the value cannot be converted to NUMBER(38,0)"
    assert found[a, "1/1.ndjson:7"]["payload"] == json.dumps(BAD).encode()
    assert found[a, "1/1.ndjson:7"]["application"] == f"load {job.table}"
    assert (found[a, "1/1.ndjson:9"]["column"], found[a, "1/1.ndjson:9"]["payload"]) == (None, b"{torn")
    assert [(one.rows, one.rejected, one.dead_lettered) for one in first.report.channels] == [
        (len(loaded), 0, 5),
        (0, 0, 2),
    ]
    assert f"rows={len(loaded)} rejected=0 dead_lettered=5" in first.out
    # The token passes the bad rows at the end, with the last good ones and where there are none.
    assert job.committed("a", "b") == {"a": "1.ndjson:300", "b": "1.ndjson:2"}

    _write(tmp_path / "source" / "b" / "1.ndjson", {3: _good(1003)}, append=True)
    second = job.run()

    assert second.code == 0, second.err[-3000:]
    assert job.committed("a", "b") == {"a": "1.ndjson:300", "b": "1.ndjson:3"}
    assert ids_in(job.service, job.table) == [*loaded, 1003]
    assert _positions(tmp_path) == Counter(expected)


def test_first_bad_row_ends_the_run_before_anything_of_its_batch_is_sent(job, tmp_path):
    rows: dict[int, Any] = {line: _good(line) for line in range(1, 201)}
    _write(tmp_path / "source" / "a" / "1.ndjson", {**rows, 120: {"ID": 1e40}})

    refused = job.run(on_error="abort", check_rows=True, dead_letter_path=None, limits=BatchLimits(rows=100))

    assert refused.code == 1
    (line,) = refused.error_lines
    assert line.startswith(
        f"snowpipe error: UnfitRowsError: channel {job.channel('a')!r}: row 1/1.ndjson:120 does not fit the "
        'table: column "ID": the value cannot be converted to NUMBER(38,0) (1 such row from '
        "1/1.ndjson:101 to 1/1.ndjson:200)"
    ), line
    assert refused.report.error_type == "UnfitRowsError"
    assert "Traceback" not in refused.out
    assert job.committed("a")["a"] in (None, "1.ndjson:100")
    assert ids_in(job.service, job.table) in ([], list(range(1, 101)))
    assert job.statuses("a")["a"].rows_error_count == 0

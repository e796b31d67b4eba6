"""Plans and reports of the job that writes files."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_snowpipe.bulk.run_files import WrittenFile
from airflow_provider_snowpipe.spark.driver.plan import LinesToCombine, RowsToWrite, WritePlan, WriteReport
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.table_schema import TableColumn

PLAN = WritePlan(
    "app",
    "file:///shared/a1",
    "a1",
    "/run/report.json",
    rows=RowsToWrite(path="/in", format="csv", options={"header": "true"}),
    columns=(TableColumn("ID", "NUMBER(38,0)"),),
    target_file_bytes=5_000,
)
REPORT = WriteReport("app", "file:///shared/a1", "a1", (WrittenFile("cut/x", 10, 3),), ("ID",), (), 1.5)


@pytest.mark.parametrize(
    "plan",
    [PLAN, dataclasses.replace(PLAN, rows=None, lines=LinesToCombine(("/a", "/b"), ".csv", True))],
    ids=["rows", "lines"],
)
def test_a_plan_comes_back_as_it_was_written(plan: WritePlan, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(plan.to_json())

    assert WritePlan.read(tmp_path / "plan.json") == plan


def test_a_report_comes_back_as_it_was_written() -> None:
    assert WriteReport.from_json(REPORT.to_json()) == REPORT
    assert (REPORT.rows, REPORT.bytes) == (3, 10)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({}, "source has no table, query or path"),
        ({"table": "t", "query": "q"}, "source has table and query"),
        ({"tabel": "t"}, "unknown key 'tabel'"),
        ({"path": "/in", "options": {"password": "x"}}, "looks like a secret"),
        ("t", "give a mapping, or in JSON an object"),
    ],
    ids=["nothing", "two", "unknown", "secret", "text"],
)
def test_a_source_is_one_thing_without_a_secret(source: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        RowsToWrite.from_mapping(source)


@pytest.mark.parametrize("changes", [{"rows": None}, {"folder": ""}, {"target_file_bytes": 1}], ids=repr)
def test_a_plan_that_cannot_be_done_is_refused(changes: Any) -> None:
    with pytest.raises(ConfigurationError):
        dataclasses.replace(PLAN, **changes)

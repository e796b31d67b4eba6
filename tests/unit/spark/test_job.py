"""The application run again and again on one plan: rejected rows are reported once."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_snowpipe.spark.driver import job
from airflow_provider_snowpipe.spark.driver import run as driver
from airflow_provider_snowpipe.spark.driver.report import (
    START_FILE,
    ChannelStart,
    RunReport,
    read_start,
)
from airflow_provider_snowpipe.spark.source import SourceSecrets
from airflow_provider_snowpipe.streaming.auth import ProgrammaticAccessToken
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from tests.fake_snowpipe import PAT, FakeSnowpipe, error
from tests.memory_source import InProcessSpark, MemoryPartition, MemorySource, rows
from tests.unit.spark.test_driver import PLAN

RunJob = Callable[..., int]


class Session:
    """Stands for the session: its executors are in this process."""

    def __init__(self, _: Any) -> None:
        self.start: Any = InProcessSpark
        self.executors: Any = InProcessSpark
        self.stop = nullcontext

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop nothing."""


@pytest.fixture
def run(snowpipe: FakeSnowpipe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RunJob:
    """Run the job on so many rows, of which number 2 does not fit the table."""
    snowpipe.rejects = lambda row: row["ID"] == 2
    monkeypatch.setattr(job, "_credentials", lambda _: (ProgrammaticAccessToken(PAT), SourceSecrets()))
    monkeypatch.setattr(job, "JobSession", Session)
    monkeypatch.setattr(job, "check_versions", lambda: None)
    monkeypatch.setattr("airflow_provider_snowpipe.bulk.statement_client.statement_rows", lambda *_, **__: [])

    def once(count: int = 6, **changes: Any) -> int:
        plan = replace(PLAN, report_path=str(tmp_path / "report.json"), **changes)
        monkeypatch.setattr(job, "read_plan", lambda _: plan)
        source = MemorySource([MemoryPartition("p", rows(count))])
        monkeypatch.setattr(driver, "open_source", lambda *_: source)
        return job.main(["plan.json"])

    return once


def report(folder: Path) -> RunReport:
    return RunReport.from_json((folder / "report.json").read_text())


def test_rejected_rows_are_reported_once(run: RunJob, tmp_path: Path) -> None:
    assert run() == 1
    assert report(tmp_path).error_type == "RowsRejectedError"

    assert run() == 0
    assert report(tmp_path).channels[0].rejected == 0


def test_rejected_rows_are_reported_again_where_their_report_could_not_be_recorded(
    run: RunJob, snowpipe: FakeSnowpipe, tmp_path: Path
) -> None:
    snowpipe.fault(before="open", skip=1, error=error(403), times=float("inf"))
    assert run(on_error="continue") == 0
    assert report(tmp_path).channels[0].rejected == 1

    snowpipe.heal()
    assert [run(), run()] == [1, 0]


def test_rows_that_nobody_waited_for_are_judged_by_the_next_run_that_waits(run: RunJob) -> None:
    assert run(wait_for_commit=False) == 0
    assert run(wait_for_commit=False) == 0

    assert run() == 1


def test_start_file_has_what_the_run_found_on_each_channel(run: RunJob, tmp_path: Path) -> None:
    assert run() == 1

    assert run(count=7) == 0

    ((_, start),) = read_start((tmp_path / START_FILE).read_text()).items()
    assert replace(start, began_ms=0) == ChannelStart(5, 1, 0, files_behind=None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"c": {"rej',
        "[1]",
        '{"c": 7}',
        '{"c": {}}',
        *(
            json.dumps({"c": {**asdict(ChannelStart(0, 0, 0)), **wrong}})
            for wrong in (
                {"inserted_before": None},
                {"errors_before": "7"},
                {"began_ms": "now"},
                {"more": 1},
                {"files_behind": 7},
                {"files_behind": [[1]]},
                {"files_behind": [[1, "5", 1]]},
                {"files_behind": [["1.log", 5, 1]]},
            )
        ),
    ],
)
def test_start_file_that_is_none_or_half_written_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=START_FILE):
        read_start(text)


class NoSpark(Session):
    """A session that nobody may ask for."""

    def __init__(self, plan: Any) -> None:
        super().__init__(plan)
        self.start = self.executors = partial(pytest.fail, "starts Spark")


def test_driver_runs_the_tasks_of_a_local_master_itself(run: RunJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "JobSession", NoSpark)
    monkeypatch.setattr(job, "check_versions", lambda: pytest.fail("asks for PySpark"))

    assert run(6, local_master="local[2]", on_error="continue") == 0

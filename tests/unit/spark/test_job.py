"""The application run again and again on one plan: rejected rows are reported once."""

import json
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial

import pytest

from airflow_provider_snowpipe.spark.driver import job
from airflow_provider_snowpipe.spark.driver import run as driver
from airflow_provider_snowpipe.spark.driver.report import START_FILE, ChannelStart, RunReport, read_start
from airflow_provider_snowpipe.spark.source import SourceSecrets
from airflow_provider_snowpipe.streaming.auth import ProgrammaticAccessToken
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from tests.fake_snowpipe import PAT, error
from tests.memory_source import InProcessSpark, MemoryPartition, MemorySource, rows
from tests.refusals import refused
from tests.unit.spark.test_driver import COLUMNS, PLAN


class Session(nullcontext):
    """Stands for the session: its executors are in this process."""

    start = executors = InProcessSpark
    stop = nullcontext

    def __init__(self, plan):
        super().__init__(self)


class NoSpark(Session):
    """A session that nobody may ask for."""

    start = executors = partial(pytest.fail, "starts Spark")


@pytest.fixture
def run(snowpipe, monkeypatch, tmp_path):
    """Run the job on so many rows, of which number 2 does not fit the table."""
    snowpipe.rejects = lambda row: row["ID"] == 2
    monkeypatch.setattr(job, "_credentials", lambda _: (ProgrammaticAccessToken(PAT), SourceSecrets()))
    monkeypatch.setattr(job, "JobSession", Session)
    monkeypatch.setattr(job, "check_versions", lambda: None)
    monkeypatch.setattr("airflow_provider_snowpipe.bulk.statement_client.statement_rows", lambda *_, **__: [])

    def once(count=6, **changes):
        plan = replace(PLAN, report_path=str(tmp_path / "report.json"), **changes)
        monkeypatch.setattr(job, "read_plan", lambda _: plan)
        source = MemorySource([MemoryPartition("p", rows(count))])
        monkeypatch.setattr(driver, "open_source", lambda *_: source)
        return job.main(["plan.json"])

    return once


def report(folder):
    return RunReport.from_json((folder / "report.json").read_text())


@pytest.mark.parametrize("on_error", ["abort", "dead_letter"])
def test_rejected_rows_are_reported_once(run, tmp_path, on_error):
    letters = {"dead_letter_path": str(tmp_path), "columns": COLUMNS} if on_error == "dead_letter" else {}
    assert run(on_error=on_error, **letters) == 1
    assert report(tmp_path).error_type == "RowsRejectedError"
    assert run() == 0
    assert report(tmp_path).channels[0].rejected == 0


def test_rejected_rows_are_reported_again_where_their_report_could_not_be_recorded(run, snowpipe, tmp_path):
    snowpipe.fault(before="open", skip=1, error=error(403), times=float("inf"))
    assert run(on_error="continue") == 0
    assert report(tmp_path).channels[0].rejected == 1
    snowpipe.heal()
    assert [run(), run()] == [1, 0]


def test_rows_that_nobody_waited_for_are_judged_by_the_next_run_that_waits(run):
    assert [run(wait_for_commit=False), run(wait_for_commit=False), run()] == [0, 0, 1]


def test_start_file_has_what_the_run_found_on_each_channel(run, tmp_path):
    assert [run(), run(count=7)] == [1, 0]
    ((_, start),) = read_start((tmp_path / START_FILE).read_text()).items()
    assert replace(start, began_ms=0) == ChannelStart(5, 1, 0, files_behind=None)


def test_start_file_that_is_none_or_half_written_is_refused():
    whole = asdict(ChannelStart(0, 0, 0))
    wrong = (
        {"inserted_before": None},
        {"errors_before": "7"},
        {"began_ms": "now"},
        {"more": 1},
        *({"files_behind": files} for files in (7, [[1]], [[1, "5", 1]], [["1.log", 5, 1]])),
    )
    texts = [json.dumps({"c": {**whole, **one}}) for one in wrong]
    half = ["", '{"c": {"rej', "[1]", '{"c": 7}', '{"c": {}}']
    refused(ConfigurationError, read_start, [*half, *texts], START_FILE)


def test_driver_runs_the_tasks_of_a_local_master_itself(run, monkeypatch):
    monkeypatch.setattr(job, "JobSession", NoSpark)
    monkeypatch.setattr(job, "check_versions", lambda: pytest.fail("asks for PySpark"))
    assert run(6, local_master="local[2]", on_error="continue") == 0

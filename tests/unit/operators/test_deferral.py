"""The stream operator that waits for the commit without its worker.

A script stands in for Spark: it counts its starts and leaves the report that a test has written.
"""

import json
from datetime import timedelta

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, TaskDeferred

from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from airflow_provider_snowpipe.spark.driver.plan import read_plan
from airflow_provider_snowpipe.spark.driver.report import ChannelReport, RunReport
from tests.airflow_version import AIRFLOW
from tests.fake_snowpipe import PAT
from tests.unit.operators.conftest import StreamLab

CHANNEL = "p_src_a"
TOKENS = ["1/1.ndjson:1", "1/1.ndjson:2"]
SENT = ChannelReport(CHANNEL, "a", None, TOKENS[-1], TOKENS[-1], 0, False, rows=2, bytes=50)

DRIVER = """#!/bin/bash
plan="${@: -1}"; work="$(dirname "$plan")"
echo -n x >> NOTES/runs; cp "$plan" NOTES/plan.json; cp NOTES/report.json "$work/report.json"
"""


class Lab(StreamLab):
    """A deferrable load whose driver reports what a test sets."""

    def __init__(self, folder, make, snowpipe):
        super().__init__(folder, make, source={"path": "/data/src"}, deferrable=True, commit_timeout=77)
        self.script(DRIVER)
        self.channel = snowpipe.channel(CHANNEL)
        report = RunReport("app", (SENT,), 1.5)
        (self.notes / "report.json").write_text(report.to_json())

    def defer(self, **options):
        with pytest.raises(TaskDeferred) as raised:
            self.execute(**options)
        return raised.value

    def resume(self, deferred, event, **options):
        kwargs = json.loads(json.dumps({"event": event, **(deferred.kwargs or {})}))
        return self.operator(**options).resume_execution(deferred.method_name, kwargs, self.context())


@pytest.fixture
def lab(tmp_path, temporary_files, set_connection, make, snowpipe):
    set_connection("spark_default", conn_type="spark", host="local[2,4]")
    return Lab(tmp_path, make, snowpipe)


def success():
    return {"status": "success", "tokens": {CHANNEL: TOKENS[-1]}}


def test_what_is_committed_by_then_needs_no_triggerer(lab):
    lab.channel.committed = TOKENS[-1]
    value = lab.execute()
    assert (value["rows"], value["channels"][CHANNEL]["to"]) == (2, TOKENS[-1])
    assert lab.ti.xcoms["targets"][CHANNEL]["token"] == TOKENS[-1]
    assert lab.kept() == {}
    assert read_plan(lab.notes / "plan.json").wait_for_commit is False


@pytest.mark.parametrize(
    ("options", "limit", "named"),
    [({}, 77, "77 s"), ({"execution_timeout": timedelta(seconds=30)}, 30, "30 s.*raise execution_timeout")],
)
def test_a_wait_that_takes_too_long_reports_it(lab, options, limit, named):
    lab.channel.committed = TOKENS[0]
    assert lab.defer(**options).timeout == timedelta(seconds=limit)
    words = "Trigger timeout" if AIRFLOW >= (3, 0) else "Trigger/execution timeout"
    with pytest.raises(AirflowException, match=f"CommitTimeoutError.*within {named}"):
        lab.operator(**options).resume_execution("__fail__", {"error": words}, lab.context())
    assert lab.kept() == {}


def test_what_is_not_committed_is_left_to_the_triggerer(lab, temporary_files):
    lab.channel.committed = TOKENS[0]
    where = {"table": "T", "pipe": None, "database": "DB", "schema": "S", "snowflake_conn_id": "fake"}

    deferred = lab.defer(**where, poll_interval=3)

    kind, arguments = deferred.trigger.serialize()
    assert kind.endswith(".SnowpipeCommitTrigger")
    assert arguments["targets"] == {
        CHANNEL: {"token": TOKENS[-1], "offset_format": "unit/file:line", "errors": 0, "rows": 2}
    }
    assert arguments | where | {"poll_interval": 3} == arguments
    assert list(temporary_files.iterdir()) == []
    stored = json.dumps([arguments, deferred.kwargs, lab.kept()])
    assert PAT not in stored


def test_the_resumed_task_reports_what_a_waiting_driver_would(lab):
    lab.channel.committed = TOKENS[0]
    deferred = lab.defer()
    lab.channel.committed = TOKENS[-1]
    assert lab.resume(deferred, success()) == lab.execute()
    assert lab.kept() == {}


@pytest.mark.skipif(AIRFLOW < (3, 3), reason="Airflow keeps a task's state since 3.3")
@pytest.mark.parametrize("how", ["nobody resumed it", "its worker was lost"])
def test_a_try_after_a_deferral_submits_nothing(lab, monkeypatch, temporary_files, how):
    lab.channel.committed = TOKENS[0]
    with monkeypatch.context() as killed:
        if "lost" in how:
            killed.setattr(SnowpipeStreamOperator, "_clean_up", lambda _: None)
        lab.defer()
    again = lab.defer()
    assert list(temporary_files.iterdir()) == []
    lab.channel.committed = TOKENS[-1]

    value = lab.resume(again, success()) if "lost" in how else lab.execute()

    assert (value["rows"], lab.starts) == (2, 1)


@pytest.mark.parametrize("when", ["before it is deferred", "after the wait"])
def test_skipped_rows_fail_the_task_for_good(lab, when):
    lab.channel.committed = TOKENS[0]
    deferred = lab.defer() if when == "after the wait" else None
    lab.channel.committed, lab.channel.rows_error_count = TOKENS[-1], 1
    with pytest.raises(AirflowFailException, match="RowsRejectedError"):
        lab.execute() if deferred is None else lab.resume(deferred, success())
    seen = lab.ti.xcoms["observed"]["channels"][CHANNEL]
    assert (seen["rejected"], seen["committed"]) == (1, True)
    assert lab.kept() == {}
    assert lab.execute(on_error="continue")["channels"][CHANNEL]["rejected"] == 1


@pytest.mark.parametrize(
    ("reason", "kind"), [("stalled", AirflowException), ("configuration", AirflowFailException)]
)
def test_a_wait_that_fails_starts_a_new_driver_on_the_next_try(lab, reason, kind):
    lab.channel.committed = TOKENS[0]
    deferred = lab.defer()
    with pytest.raises(kind, match=f"{reason}: in words") as raised:
        lab.resume(deferred, {"status": "failure", "reason": reason, "message": "in words"})
    assert type(raised.value) is kind
    assert (lab.ti.xcoms["observed"]["reason"], *lab.ti.xcoms["observed"]["channels"]) == (reason, CHANNEL)
    lab.defer()
    assert lab.starts == 2

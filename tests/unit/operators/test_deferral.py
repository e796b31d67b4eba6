"""The stream operator that waits for the commit without its worker.

A script stands in for Spark: it counts its starts and leaves the report that a test has written.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, TaskDeferred

from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from airflow_provider_snowpipe.spark.driver.plan import read_plan
from airflow_provider_snowpipe.spark.driver.report import ChannelReport, RunReport
from airflow_provider_snowpipe.triggers.commit import SnowpipeCommitTrigger
from tests.airflow_version import AIRFLOW
from tests.fake_snowpipe import PAT, FakeSnowpipe
from tests.stream_worker import FileState, TaskInstance

CHANNEL = "p_src_a"
TOKENS = ["1/1.ndjson:1", "1/1.ndjson:2"]
SENT = ChannelReport(CHANNEL, "a", None, TOKENS[-1], TOKENS[-1], 0, False, rows=2, bytes=50)

DRIVER = """#!/bin/bash
plan="${@: -1}"; work="$(dirname "$plan")"
echo x >> NOTES/runs; cp "$plan" NOTES/plan.json; cp NOTES/report.json "$work/report.json"
"""


class Lab:
    """A deferrable load whose driver reports what a test sets."""

    def __init__(self, folder: Path, make: Callable[..., Any], snowpipe: FakeSnowpipe) -> None:
        self.notes = folder / "notes"
        self.notes.mkdir()
        self.state = FileState(folder / "state.json")
        self.make, self.channel = make, snowpipe.channel(CHANNEL)
        self.program = folder / "fake-spark-submit"
        self.program.write_text(DRIVER.replace("NOTES", str(self.notes)))
        self.program.chmod(0o755)
        self.report()

    def report(self, *channels: ChannelReport) -> None:
        self.notes.joinpath("report.json").write_text(RunReport("app", channels or (SENT,), 1.5).to_json())

    def operator(self, **options: Any) -> SnowpipeStreamOperator:
        arguments: dict[str, Any] = {
            "task_id": "load",
            "source": {"path": "/data/src"},
            "channel_prefix": "p",
            "spark_binary": str(self.program),
            "deferrable": True,
            "commit_timeout": 77,
        }
        operator: SnowpipeStreamOperator = self.make(SnowpipeStreamOperator, **{**arguments, **options})
        return operator

    def context(self) -> Any:
        instance = TaskInstance()
        self.left = instance.xcoms
        return {"ti": instance, "task_state_store": self.state}

    def execute(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        context = self.context()
        return self.operator(**options).execute(context), context["ti"].xcoms

    def defer(self, **options: Any) -> TaskDeferred:
        with pytest.raises(TaskDeferred) as raised:
            self.execute(**options)
        return raised.value

    def resume(self, deferred: TaskDeferred, event: dict[str, Any], **options: Any) -> Any:
        kwargs = json.loads(json.dumps({"event": event, **(deferred.kwargs or {})}))
        return self.operator(**options).resume_execution(deferred.method_name, kwargs, self.context())

    @property
    def submissions(self) -> int:
        return len((self.notes / "runs").read_text().splitlines())


@pytest.fixture
def lab(tmp_path, monkeypatch, set_connection, make, snowpipe):
    set_connection("spark_default", conn_type="spark", host="local[2,4]")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    return Lab(tmp_path, make, snowpipe)


def success() -> dict[str, Any]:
    return {"status": "success", "tokens": {CHANNEL: TOKENS[-1]}}


def test_what_is_committed_by_then_needs_no_triggerer(lab):
    lab.channel.committed = TOKENS[-1]

    value, xcoms = lab.execute()

    assert value["channels"] == {
        CHANNEL: {
            "from": None,
            "to": TOKENS[-1],
            "rows": 2,
            "bytes": 50,
            "rejected": 0,
            "dead_lettered": 0,
            "undecoded": 0,
            "committed": True,
            "latency_ms": 5,
        }
    }
    assert xcoms["targets"][CHANNEL]["token"] == TOKENS[-1]
    assert lab.state.values() == {}
    assert read_plan(lab.notes / "plan.json").wait_for_commit is False


def test_a_wait_ends_with_the_execution_timeout_and_the_error_names_it(lab):
    options = {"execution_timeout": timedelta(seconds=30)}
    assert lab.defer(**options).timeout == timedelta(seconds=30)
    words = "Trigger timeout" if AIRFLOW >= (3, 0) else "Trigger/execution timeout"

    with pytest.raises(AirflowException, match=r"CommitTimeoutError.*within 30 s.*raise execution_timeout"):
        lab.operator(**options).resume_execution("__fail__", {"error": words}, lab.context())


def test_what_is_not_committed_is_left_to_the_triggerer_and_leaves_nothing_on_the_worker(lab, tmp_path):
    lab.channel.committed = TOKENS[0]
    where = {"table": "T", "pipe": None, "database": "DB", "schema": "S", "snowflake_conn_id": "fake"}

    deferred = lab.defer(**where, poll_interval=3)

    trigger = deferred.trigger
    assert isinstance(trigger, SnowpipeCommitTrigger)
    assert trigger.targets == {
        CHANNEL: {"token": TOKENS[-1], "offset_format": "unit/file:line", "errors": 0, "rows": 2}
    }
    assert {name: getattr(trigger, name) for name in where} == where
    assert trigger.poll_interval == 3
    assert deferred.timeout is not None
    assert deferred.timeout.total_seconds() == 77
    assert list((tmp_path / "tmp").iterdir()) == []
    stored = json.dumps([trigger.serialize(), deferred.kwargs, lab.state.values()])
    assert PAT not in stored


def test_the_resumed_task_reports_what_a_waiting_driver_would(lab):
    lab.channel.committed = TOKENS[0]
    deferred = lab.defer()
    lab.channel.committed = TOKENS[-1]

    value = lab.resume(deferred, success())

    lab.report()
    assert value == lab.execute()[0]
    assert value["channels"][CHANNEL]["rows"] == 2
    assert lab.state.values() == {}


@pytest.mark.skipif(AIRFLOW < (3, 3), reason="Airflow keeps a task's state since 3.3")
def test_a_try_after_a_deferral_that_nobody_resumed_submits_nothing(lab):
    lab.channel.committed = TOKENS[0]
    lab.defer()
    lab.channel.committed = TOKENS[-1]

    assert lab.execute()[0]["rows"] == 2
    assert lab.submissions == 1


@pytest.mark.skipif(AIRFLOW < (3, 3), reason="Airflow keeps a task's state since 3.3")
def test_a_try_after_a_lost_worker_waits_for_what_was_sent_and_submits_nothing(lab, monkeypatch, tmp_path):
    lab.channel.committed = TOKENS[0]
    with monkeypatch.context() as killed:
        killed.setattr(SnowpipeStreamOperator, "_clean_up", lambda _: None)
        lab.defer()
    assert len(list((tmp_path / "tmp").iterdir())) == 1

    again = lab.defer()
    assert list((tmp_path / "tmp").iterdir()) == []
    lab.channel.committed = TOKENS[-1]

    assert lab.resume(again, success())["rows"] == 2
    assert lab.submissions == 1


@pytest.mark.parametrize("when", ["before it is deferred", "after the wait"])
def test_skipped_rows_fail_the_task_for_good(lab, when):
    lab.channel.committed = TOKENS[0]
    deferred = lab.defer() if when == "after the wait" else None
    lab.channel.committed, lab.channel.rows_error_count = TOKENS[-1], 1

    with pytest.raises(AirflowFailException, match="RowsRejectedError"):
        lab.execute() if deferred is None else lab.resume(deferred, success())
    observed = lab.left["observed"]
    seen = observed["channels"][CHANNEL]
    assert (observed["reason"], seen["rejected"], seen["committed"]) == ("RowsRejectedError", 1, True)
    assert lab.state.values() == {}
    assert lab.execute(on_error="continue")[0]["channels"][CHANNEL]["rejected"] == 1


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("channel_missing", AirflowException),
        ("channel_invalid", AirflowException),
        ("stalled", AirflowException),
        ("configuration", AirflowFailException),
    ],
)
def test_a_wait_that_fails_starts_a_new_driver_on_the_next_try(lab, reason, kind):
    lab.channel.committed = TOKENS[0]
    deferred = lab.defer()

    with pytest.raises(kind, match=f"{reason}: in words") as raised:
        lab.resume(deferred, {"status": "failure", "reason": reason, "message": "in words"})

    assert type(raised.value) is kind
    assert (lab.left["observed"]["reason"], *lab.left["observed"]["channels"]) == (reason, CHANNEL)
    lab.defer()
    assert lab.submissions == 2


def test_a_wait_that_takes_too_long_reports_it(lab):
    lab.channel.committed = TOKENS[0]
    lab.defer()

    words = "Trigger timeout" if AIRFLOW >= (3, 0) else "Trigger/execution timeout"

    with pytest.raises(AirflowException, match=r"CommitTimeoutError.*77 s"):
        lab.operator().resume_execution("__fail__", {"error": words}, lab.context())

    assert lab.state.values() == {}

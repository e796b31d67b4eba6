"""A deferred load with a driver on YARN: its worker is given back, and another goes on when the driver ended.

A scripted ResourceManager stands in for YARN, and the tests for the triggerer.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, TaskDeferred

from airflow_provider_snowpipe.spark.driver.report import START_FILE
from airflow_provider_snowpipe.streaming.errors import RetriesExhaustedError
from airflow_provider_snowpipe.triggers.application import SnowpipeApplicationTrigger
from tests.airflow_version import AIRFLOW
from tests.unit.operators.cluster_lab import (
    CHANNEL,
    LASTING,
    REPORT,
    SUCCEEDED,
    TARGET,
    YarnLab,
    keeps_state,
    lab,
    yarn,
)

__all__ = ["lab", "yarn"]


def _deferred(lab: YarnLab, **options: Any) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as deferred:
        lab.execute(deferrable=True, **options)
    return deferred.value


def _resumed(lab: YarnLab, deferral: TaskDeferred, status: str = "ended") -> dict[str, Any]:
    kwargs = {"event": {"status": status, "message": "away"}, **(deferral.kwargs or {})}
    value: dict[str, Any] = lab.operator(deferrable=True).resume_execution(
        deferral.method_name, json.loads(json.dumps(kwargs)), lab.context()
    )
    return value


def test_gives_the_worker_back_while_rows_move(lab):
    deferral = _deferred(lab, database="DB", schema="S")

    assert lab.yarn.polls == 0
    trigger = deferral.trigger
    found = trigger.serialize()[1]
    (folder,) = lab.folders()
    assert found["start_path"] == f"{folder}/{START_FILE}"
    names = ("snowflake_conn_id", "table", "pipe", "database", "schema")
    assert [found[name] for name in names] == ["fake", "T", None, "DB", "S"]
    assert isinstance(trigger, SnowpipeApplicationTrigger)
    assert [trigger.application_id] == list(lab.yarn.applications)
    assert lab.yarn.submissions[0].plan["wait_for_commit"] is False
    assert list(lab.temporary.iterdir()) == []

    lab.yarn.play(lab.leave, SUCCEEDED)
    assert _resumed(lab, deferral)["rows"] == 2
    assert lab.kept() == {}
    assert lab.leftovers() == []


def test_waits_for_the_commit_in_the_triggerer_too(lab):
    deferral = _deferred(lab)
    behind = replace(REPORT, channels=(replace(REPORT.channels[0], committed=False),))
    lab.yarn.play(lambda: lab.leave(behind, committed=None), SUCCEEDED)

    with pytest.raises(TaskDeferred) as again:
        _resumed(lab, deferral)

    assert again.value.method_name == "execute_complete"
    assert lab.leftovers() == []
    lab.channel.committed = TARGET
    assert again.value.kwargs is not None
    value = lab.operator(deferrable=True).execute_complete(
        lab.context(), event={"status": "success", "tokens": {}}, **again.value.kwargs
    )
    assert value["channels"][CHANNEL]["to"] == TARGET
    assert lab.kept() == {}


def test_a_deferral_that_takes_too_long_stops_the_application(lab):
    """Airflow 3 applies ``execution_timeout`` to what runs in a worker alone."""
    limit = timedelta(minutes=5)
    assert _deferred(lab, execution_timeout=limit).timeout == limit
    words = "Trigger timeout" if AIRFLOW >= (3, 0) else "Trigger/execution timeout"

    with pytest.raises(AirflowException, match="execution_timeout"):
        lab.operator(deferrable=True).resume_execution("__fail__", {"error": words}, lab.context())

    assert lab.yarn.killed == list(lab.yarn.applications)
    assert lab.kept() == {}
    assert lab.leftovers() == []


def test_a_triggerer_that_lost_sight_of_it_leaves_it_to_the_next_try(lab):
    deferral = _deferred(lab)
    with pytest.raises(RetriesExhaustedError, match="away"):
        _resumed(lab, deferral, "lost")
    assert lab.yarn.killed == []

    again = _deferred(lab)
    assert again.trigger.serialize() == deferral.trigger.serialize()
    assert len(lab.yarn.submissions) == 1


@keeps_state
@pytest.mark.parametrize("sees_it_running", [False, True])
def test_the_try_after_one_that_was_cleared_resumes(lab, capsys, sees_it_running):
    """The triggerer stops the application before Airflow starts the next try, or after."""
    cleared = _deferred(lab)
    lab.leave(None, committed=None)
    if not sees_it_running:
        asyncio.run(cleared.trigger.on_kill())
    following = _deferred(lab)
    assert following.trigger.serialize() == cleared.trigger.serialize()
    if sees_it_running:
        asyncio.run(cleared.trigger.on_kill())
    (first,) = lab.yarn.killed

    with pytest.raises(TaskDeferred) as resuming:
        _resumed(lab, following)

    assert "a new one resumes" in capsys.readouterr().out
    _, second = lab.yarn.applications
    assert resuming.value.trigger.application_id == second != first
    assert len(lab.folders()) == 1
    lab.yarn.play(lab.leave, SUCCEEDED)
    assert _resumed(lab, resuming.value)["rows"] == 2
    assert lab.kept() == {}
    assert lab.leftovers() == []


@keeps_state
def test_a_try_that_submitted_nothing_reports_why_a_retry_cannot_help(lab):
    _deferred(lab)
    following = _deferred(lab)
    lab.yarn.play(lambda: lab.leave(LASTING, committed=None), ("FINISHED", "FAILED"))

    with pytest.raises(AirflowFailException, match="RowsRejectedError"):
        _resumed(lab, following)
    assert len(lab.yarn.submissions) == 1
    assert lab.leftovers() == []

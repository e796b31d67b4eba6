"""A driver on YARN whose worker is given back, or waits and logs what is committed."""

import asyncio
import json
import re
from dataclasses import replace
from datetime import timedelta

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, TaskDeferred

from airflow_provider_snowpipe.operators import cluster_job
from airflow_provider_snowpipe.spark.driver.report import (
    START_FILE,
    ChannelReport,
    ChannelStart,
    report_folder,
    start_text,
)
from airflow_provider_snowpipe.streaming.errors import RetriesExhaustedError
from tests.airflow_version import AIRFLOW
from tests.loaded_folder import variables
from tests.unit.operators.cluster_lab import CHANNEL, REPORT, SUCCEEDED, TARGET, keeps_state, lab, yarn

__all__ = ["lab", "variables", "yarn"]


def _deferred(lab, **options):
    with pytest.raises(TaskDeferred) as deferred:
        lab.execute(deferrable=True, **options)
    return deferred.value


def _resumed(lab, deferral, status="ended"):
    kwargs = {"event": {"status": status, "message": "away"}, **(deferral.kwargs or {})}
    value = lab.operator(deferrable=True).resume_execution(
        deferral.method_name, json.loads(json.dumps(kwargs)), lab.context()
    )
    return value


def test_gives_the_worker_back_while_rows_move(lab):
    deferral = _deferred(lab, database="DB", schema="S")

    assert lab.yarn.polls == 0
    found = deferral.trigger.serialize()[1]
    (folder,) = lab.folders()
    assert found["start_path"] == f"{folder}/{START_FILE}"
    where = {"snowflake_conn_id": "fake", "table": "T", "pipe": None, "database": "DB", "schema": "S"}
    assert found | where == found
    assert [found["application_id"]] == list(lab.yarn.applications)
    assert lab.yarn.submissions[0].plan["wait_for_commit"] is False
    assert list(lab.temporary.iterdir()) == []

    lab.yarn.play(lab.leave, SUCCEEDED)
    assert _resumed(lab, deferral)["rows"] == 2
    assert lab.kept() == {}
    assert lab.leftovers() == []


def test_an_application_that_found_new_channels_is_followed_by_one_that_loads(lab, variables):
    deferral = _deferred(lab)
    begun = replace(REPORT, channels=(ChannelReport("p_src_new", "new", to_token="NULL-17"),))
    lab.yarn.play(lambda: lab.leave(begun, committed=None), SUCCEEDED)
    with pytest.raises(TaskDeferred) as again:
        _resumed(lab, deferral)
    assert ["p_src_new", "NULL-17"] in lab.yarn.submissions[1].plan["last_checkpoints"].values()
    lab.yarn.play(lab.leave, SUCCEEDED)
    assert _resumed(lab, again.value)["rows"] == 2
    assert (len(lab.yarn.submissions), lab.kept(), lab.leftovers()) == (2, {}, [])


def test_waits_for_the_commit_in_the_triggerer_too(lab):
    deferral = _deferred(lab)
    behind = replace(REPORT, channels=(replace(REPORT.channels[0], committed=False),))
    lab.yarn.play(lambda: lab.leave(behind, committed=None), SUCCEEDED)

    with pytest.raises(TaskDeferred) as again:
        _resumed(lab, deferral)

    assert again.value.method_name == "execute_complete"
    assert lab.leftovers() == []
    lab.channel.committed = TARGET
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

    assert "resumes" in capsys.readouterr().out
    _, second = lab.yarn.applications
    assert resuming.value.trigger.application_id == second != first
    assert len(lab.folders()) == 1
    lab.yarn.play(lab.leave, SUCCEEDED)
    assert _resumed(lab, resuming.value)["rows"] == 2
    assert lab.kept() == {}
    assert lab.leftovers() == []


def test_a_driver_that_fails_is_not_started_again_by_the_same_try(lab):
    deferral = _deferred(lab)
    passing = replace(REPORT, error="service away", error_type="RetriesExhaustedError")
    lab.yarn.play(lambda: lab.leave(passing, committed=None), ("FINISHED", "FAILED"))
    with pytest.raises(AirflowException, match="service away"):
        _resumed(lab, deferral)
    assert len(lab.yarn.submissions) == 1


@keeps_state
def test_a_try_that_submitted_nothing_reports_why_a_retry_cannot_help(lab):
    _deferred(lab)
    following = _deferred(lab)
    lasting = replace(REPORT, error="3 rows skipped", error_type="RowsRejectedError")
    lab.yarn.play(lambda: lab.leave(lasting, committed=None), ("FINISHED", "FAILED"))
    with pytest.raises(AirflowFailException, match="RowsRejectedError"):
        _resumed(lab, following)
    assert (len(lab.yarn.submissions), lab.leftovers()) == (1, [])


def test_rows_pace_and_what_is_left_are_logged_while_the_worker_waits(lab, capsys, monkeypatch):
    monkeypatch.setattr(cluster_job, "_CHANNELS_SECONDS", 0.01)
    start, lines = start_text({CHANNEL: ChannelStart(10, 0, 0, rows_behind=100)}), []

    def printed():
        lines.append("".join(capsys.readouterr()))
        return "".join(lines)

    def begins():
        lab.channel.rows_inserted = 10
        report_folder(str(lab.report_path())).write(START_FILE, start)

    def until(words):
        def step():
            if not re.search(words, printed()):
                lab.yarn.script.extendleft([step, "RUNNING"])

        return step

    def ends():
        (channel,) = REPORT.channels
        lab.leave(replace(REPORT, channels=(replace(channel, inserted_before=58),)))

    first = until("rows=0 .*rows_behind<=100 latency_ms<=5")
    lab.yarn.play("RUNNING", begins, first, lambda: setattr(lab.channel, "rows_inserted", 60))
    lab.yarn.play(until("rows=50 "), ends, SUCCEEDED)

    lab.succeeds()
    known = r"rows=50 rows_per_second=\d+ rows_behind<=50 seconds_left<=\d+ latency_ms<=5"
    assert re.search(rf"\(RUNNING\); channels=1 {known}", printed())
    assert "cannot be shown" not in printed()

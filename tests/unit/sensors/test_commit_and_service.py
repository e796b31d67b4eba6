"""The commit sensor over a deferral, against a scripted service: what counts."""

import asyncio
import json

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred

from airflow_provider_snowpipe.sensors.commit import SnowpipeCommitSensor
from airflow_provider_snowpipe.triggers.commit import SnowpipeCommitTrigger
from tests.airflow_connections import PAT
from tests.airflow_version import AIRFLOW
from tests.checkpoints import token
from tests.fake_snowpipe import URL, error
from tests.local_connection import TaskInstance

pytestmark = pytest.mark.usefixtures("jumping_loop")


@pytest.fixture
def conn_id(set_connection):
    return set_connection(
        "fake",
        conn_type="snowpipe",
        host=URL,
        password=PAT,
        schema="S",
        extra={"auth": "programmatic_access_token", "database": "DB"},
    )


def make(conn_id, **options):
    arguments = {
        "task_id": "wait",
        "targets": {"c": "9"},
        "offset_format": "integer",
        "snowflake_conn_id": conn_id,
        "table": "T",
        "poke_interval": 0.01,
        "timeout": 30,
    }
    return SnowpipeCommitSensor(**{**arguments, **options})


def context():
    return {"ti": TaskInstance()}


def resumed(sensor, snowpipe, meanwhile):
    """Defer, let something happen, wait in the triggerer, resume; everything goes through JSON."""
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute(context())
    _, arguments = deferred.value.trigger.serialize()
    trigger = SnowpipeCommitTrigger(**json.loads(json.dumps(arguments)))
    meanwhile()
    event = asyncio.run(asyncio.wait_for(anext(aiter(trigger.run())), 10))
    resume = getattr(sensor, deferred.value.method_name)
    return resume(context(), json.loads(json.dumps(event.payload)))


def waited(sensor, snowpipe, end, mode):
    """The sensor's value, of a wait that ends in the worker or in the triggerer."""
    if mode != "poke":
        return resumed(sensor, snowpipe, end)
    end()
    return sensor.execute(context())


@pytest.mark.parametrize("deferrable", [False, True])
def test_token_of_another_format_fails_without_a_retry(snowpipe, conn_id, deferrable):
    snowpipe.channel("c", committed="a.log:1")

    with pytest.raises(AirflowFailException, match="bad_token"):
        make(conn_id, deferrable=deferrable).execute(context())


class TestRejectedRows:
    """Rows that were reported before the wait's load do not count; the others do, wherever it waits."""

    @pytest.mark.parametrize("mode", ["poke", "deferred", "from the triggerer"])
    def test_beyond_those_that_were_reported_fail_the_task_for_good(self, snowpipe, conn_id, mode):
        for target, too_many in (("9", 1), (token(9, 10, errors=3), 4)):
            for rejected in (too_many, too_many - 1):
                snowpipe.channels.clear()
                channel = snowpipe.channel("c", rows_error_count=too_many - 1)
                sensor = make(
                    conn_id,
                    targets={"c": target},
                    fail_on_rejected_rows=True,
                    deferrable=mode != "poke",
                    start_from_trigger=mode == "from the triggerer",
                )

                def end(channel=channel, rejected=rejected, target=target):
                    channel.rows_error_count, channel.committed = rejected, target

                if rejected == too_many:
                    with pytest.raises(AirflowFailException, match="rows_rejected"):
                        waited(sensor, snowpipe, end, mode)
                else:
                    assert waited(sensor, snowpipe, end, mode) == {"c": target}

    def test_is_nothing_where_rejected_rows_are_accepted(self, snowpipe, conn_id):
        snowpipe.channel("c", committed="9", rows_error_count=70)

        assert make(conn_id).execute(context()) == {"c": "9"}


def test_every_setting_reaches_the_triggerer(snowpipe, conn_id):
    snowpipe.channel("c")
    given = {"max_consecutive_errors": 4, "stall_timeout": 50, "end_from_trigger": True}
    given |= {"database": "DB", "schema": "S", "on_imbalance": "fail"}
    sensor = make(conn_id, deferrable=True, **given)

    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute(context())

    expected = {"targets": {"c": "9"}, "offset_format": "integer", "table": "T", "poll_interval": 0.01}
    assert deferred.value.trigger.serialize()[1].items() >= {**expected, **given}.items()


def test_channel_that_is_dropped_meanwhile_fails_the_deferred_task(snowpipe, conn_id):
    snowpipe.channel("c")

    with pytest.raises(AirflowFailException, match="channel_missing"):
        resumed(make(conn_id, deferrable=True), snowpipe, snowpipe.channels.clear)


def test_first_poll_that_meets_an_outage_leaves_the_wait_to_the_triggerer(snowpipe, conn_id):
    channel = snowpipe.channel("c")
    snowpipe.fault(before="status", error=error(503), times=8)

    def commit():
        channel.committed = "9"

    assert resumed(make(conn_id, deferrable=True), snowpipe, commit) == {"c": "9"}


def test_the_default_waits_in_the_worker_every_five_seconds():
    sensor = SnowpipeCommitSensor(task_id="wait", targets={"c": "9"}, offset_format="integer", table="T")

    assert (sensor.poke_interval, sensor.max_consecutive_errors, sensor.stall_timeout) == (5, 10, None)
    assert (sensor.deferrable, sensor.start_from_trigger, sensor.end_from_trigger) == (False, False, False)
    assert sensor.snowflake_conn_id == "snowflake_default"


@pytest.mark.skipif(AIRFLOW < (3, 0), reason="Airflow 2 has no page to link to")
@pytest.mark.parametrize("ends", ["poll", "event"])
@pytest.mark.parametrize("targets", [{"c": "9"}, {"c1": "9", "c2": "8"}], ids=["one", "two"])
def test_page_of_the_channels_and_lineage_are_left_behind(snowpipe, conn_id, targets, ends):
    sensor, ctx = make(conn_id, targets=targets), context()
    if ends == "poll":
        for name, token in targets.items():
            snowpipe.channel(name, committed=token)
        sensor.execute(ctx)
    else:
        sensor.execute_complete(ctx, {"status": "success", "tokens": targets})

    (address,) = set(ctx["ti"].xcoms.values())
    expected = "channel?" if len(targets) == 1 else "channels?"
    assert expected in address
    assert ("target=9" in address and "offset_format=integer" in address) is (len(targets) == 1)
    assert sensor.task_lineage is not None
    assert sensor.task_lineage.offset_format == "integer"
    assert {one.channel: one.token for one in sensor.task_lineage.channels} == targets


def test_connections_are_given_back_when_the_wait_ends(snowpipe, conn_id, monkeypatch):
    closed = []
    monkeypatch.setattr(snowpipe, "close", lambda: closed.append(True))
    snowpipe.channel("c", committed="9")
    sensor = make(conn_id)

    sensor.execute(context())

    assert closed
    assert sensor._client is None

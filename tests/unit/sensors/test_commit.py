"""The commit sensor: poke, defer, resume."""

import asyncio
import json
from collections import UserList
from datetime import timedelta
from types import SimpleNamespace

import pytest
from airflow.providers.common.compat.sdk import (
    DAG,
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)
from airflow.serialization import serialized_objects

from airflow_provider_snowpipe.assets.uri import snowpipe_asset
from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.operators.append import SnowpipeAppendRowsOperator
from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from airflow_provider_snowpipe.sensors.commit import SnowpipeCommitSensor
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, RetriesExhaustedError
from airflow_provider_snowpipe.triggers.commit import SnowpipeCommitTrigger
from tests import fake_snowpipe
from tests.airflow_connections import PAT, statuses
from tests.airflow_version import AIRFLOW
from tests.checkpoints import token
from tests.jumping_time import JumpingTime
from tests.local_connection import TaskInstance
from tests.outlet_events import OutletEvents
from tests.refusals import refused
from tests.scripted_service import Reply, error
from tests.stream_worker import FileState

BOTH = {"c1": "a:2", "c2": "b:2"}
LATE = {"c1": "a:2", "c2": "b:1"}


def make(conn_id="scripted", **options):
    arguments = {
        "task_id": "wait",
        "targets": BOTH,
        "offset_format": "file:line",
        "snowflake_conn_id": conn_id,
        "table": "T",
        "poke_interval": 0.01,
        "timeout": 30,
    }
    return SnowpipeCommitSensor(**{**arguments, **options})


def context(try_number=1, **more):
    """A task's context, as much of it as the sensor asks for."""
    instance = TaskInstance()
    instance.try_number = try_number
    return {"ti": instance, **more}


def deferral(sensor):
    """How the sensor defers, and the trigger as it reaches the triggerer."""
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute(context())
    _, arguments = deferred.value.trigger.serialize()
    return deferred.value, SnowpipeCommitTrigger(**json.loads(json.dumps(arguments)))


def event_of(trigger):
    return json.loads(json.dumps(asyncio.run(asyncio.wait_for(anext(aiter(trigger.run())), 60)).payload))


@pytest.fixture
def answers(service, service_connection):
    """What the status requests of the connection ``scripted`` are answered."""

    def answer(*replies):
        found = [statuses(**one) if isinstance(one, dict) else one for one in replies]
        service.on("bulk-channel-status", *found)

    return answer


class TestObserved:
    """What a sensor saw is kept where it fails, since a task that fails has no value."""

    def test_is_the_same_in_the_worker_and_in_the_triggerer(self, answers):
        rejected = {"last_committed_offset_token": "b:1", "rows_error_count": 7, "last_error_message": "no"}
        answers({"c1": "a:2", "c2": {**rejected, "snowflake_avg_processing_latency_ms": 9}})
        targets = {
            name: {"token": token, "offset_format": "file:line", "errors": errors, "rows": 2}
            for name, token, errors in (("c1", "a:2", 0), ("c2", "b:2", 2))
        }
        trigger = SnowpipeCommitTrigger(
            targets=targets, snowflake_conn_id="scripted", table="T", poll_interval=0.01
        )
        event, sensor = event_of(trigger), make(targets=targets)

        for end in (sensor.execute, lambda given: sensor.execute_complete(given, event)):
            given = context()
            with pytest.raises(AirflowFailException, match="rows_rejected"):
                end(given)

            channels = {
                "c1": {"committed": "a:2", "target": "a:2", "rejected": 0, "latency_ms": None},
                "c2": {"committed": "b:1", "target": "b:2", "rejected": 5, "latency_ms": 9},
            }
            channels["c1"]["last_error"], channels["c2"]["last_error"] = None, "no"
            observed = given["ti"].xcoms["observed"]
            assert (observed["reason"], observed["channels"]) == ("rows_rejected", channels)

    def test_when_the_time_is_over_here_or_in_the_triggerer(self, answers):
        answers(LATE)
        words = "Trigger timeout" if AIRFLOW >= (3, 0) else "Trigger/execution timeout"
        for kind, end in [
            (AirflowSensorTimeout, make(timeout=0.05).execute),
            (AirflowException, lambda given: make().resume_execution("__fail__", {"error": words}, given)),
        ]:
            given = context()
            with pytest.raises(kind):
                end(given)

            observed = given["ti"].xcoms["observed"]
            assert observed["reason"] == "timeout"
            assert [one["committed"] for one in observed["channels"].values()] == ["a:2", "b:1"]


class TestPoke:
    def test_waits_until_every_channel_has_committed(self, service, answers):
        answers({"c1": None, "c2": None}, LATE, BOTH)
        given = context()
        assert make().execute(given) == BOTH
        assert len(service.requests("bulk-channel-status")) == 3
        assert len(service.requests("token")) == 1
        assert "observed" not in given["ti"].xcoms

    def test_a_pipe_that_failed_over_gets_a_new_client(self, service, answers):
        answers(error(410, "ERR_PIPE_FAILED_OVER"), BOTH)
        assert make().execute(context()) == BOTH
        assert len(service.requests("hostname")) == 2

    def test_that_stands_still_fails(self, answers):
        answers(LATE)
        with pytest.raises(AirflowException, match=r"stalled.*'c2'"):
            make(stall_timeout=0.05).execute(context())

    @pytest.mark.parametrize(
        ("part", "reply", "words"),
        [
            ("bulk-channel-status", statuses(c1="a:2"), "channel_missing: channel 'c2'"),
            ("bulk-channel-status", statuses(c1="1", c2="2"), "bad_token"),
            ("hostname", error(401, "ERR_BAD_TOKEN"), "refused: .*credentials"),
        ],
    )
    def test_what_no_retry_repairs_fails_for_good_and_shows_no_secret(
        self, service, service_connection, part, reply, words
    ):
        service.on(part, reply)
        with pytest.raises(AirflowFailException, match=words) as raised:
            make().poke(context())
        assert PAT not in str(raised.value)
        with pytest.raises(AirflowFailException, match="targets is None"):
            make(targets=None).poke(context())


class TestDeferred:
    def test_defers_resumes_and_returns_the_tokens_of_all_instances_of_a_mapped_load(self, answers):
        answers(LATE, BOTH)
        given = {"max_consecutive_errors": 4, "stall_timeout": 50, "end_from_trigger": True}
        given |= {"database": "DB", "schema": "S", "on_imbalance": "fail"}
        loads = UserList([{"c1": "a:2"}, {}, {"c2": "b:2"}])  # as an XCom of mapped tasks, no list

        deferred, trigger = deferral(make(targets=loads, deferrable=True, timeout=77, **given))
        event = event_of(SnowpipeCommitTrigger(**{**trigger.serialize()[1], "end_from_trigger": False}))

        expected = {"targets": BOTH, "offset_format": "file:line", "table": "T", "poll_interval": 0.01}
        assert trigger.serialize()[1].items() >= {**expected, **given}.items()
        assert deferred.timeout == timedelta(seconds=77)
        assert getattr(make(), deferred.method_name)(context(), event) == BOTH

    @pytest.mark.parametrize("option", ["soft_fail", "never_fail"])
    def test_first_poll_skips_like_poke_mode_does(self, answers, option):
        answers(Reply(body='{"channel_statuses": {}}'))
        with pytest.raises(AirflowSkipException, match="channel_missing"):
            make(deferrable=True, **{option: True}).execute(context())

    @pytest.mark.parametrize("options", [{}, {"soft_fail": True}])
    def test_first_poll_that_failed_in_passing_leaves_the_task_its_retries(
        self, monkeypatch, service_connection, options
    ):
        def no_client(*_, **__):
            raise RetriesExhaustedError("the token endpoint does not answer")

        monkeypatch.setattr(SnowpipeHook, "get_client", no_client)

        with pytest.raises(AirflowException, match="endpoint") as raised:
            make(deferrable=True, **options).execute(context())

        assert type(raised.value) is AirflowException


PULL = "{{ ti.xcom_pull('load', key='targets'%s) | tojson }}"


class TestArguments:
    def test_that_cannot_be_are_refused_when_the_dag_is_read(self):
        make(poke_interval=0)
        started = {"deferrable": True, "start_from_trigger": True}
        make(targets=PULL % ", map_indexes=-1", **started)
        with DAG("d", schedule=None):
            partial = SnowpipeAppendRowsOperator.partial(task_id="mapped", table="T", rows=[])
            load = SnowpipeStreamOperator(task_id="load", source={"path": "/data"}, table="T")
            mapped = partial.expand(channel=["c"])
        for options, words in [
            ({"pipe": "P"}, ["both given"]),
            ({"poke_interval": 0, "deferrable": True}, ["poke_interval is 0", "deferrable=True"]),
            ({"start_from_trigger": True}, ["start_from_trigger", "deferrable=True"]),
            ({**started, "targets": PULL % ""}, ["map_indexes=-1"]),
            ({**started, "targets": mapped.output["targets"]}, ["targets is the XCom of a mapped task"]),
            ({**started, "targets": load.output.map(dict)}, ["plain XCom"]),
            ({**started, "targets": lambda context, jinja_env: {}}, ["function"]),
        ]:
            refused(ConfigurationError, lambda given: make(**given), [options], *words)

    def test_names_and_targets_are_templates_and_targets_may_be_a_function_of_the_context(self):
        sensor = make(targets="{{ t }}", table="{{ x }}", database="{{ x }}", schema="{{ x }}")
        sensor.render_template_fields({"t": '{"c": "a:1"}', "x": "FLIGHTS"})
        assert (sensor.targets, sensor.table, sensor.database) == ('{"c": "a:1"}', "FLIGHTS", "FLIGHTS")
        sensor = make(targets=lambda context, jinja_env: {"c": f"{context['file']}:1"})
        sensor.render_template_fields({"file": "a"})
        assert sensor.targets == {"c": "a:1"}


class TestStartingInTheTriggerer:
    def test_goes_to_the_scheduler_as_the_same_trigger(self):
        limits = {"timeout": 77, "stall_timeout": timedelta(minutes=5)}
        sensor = make(deferrable=True, start_from_trigger=True, fail_on_rejected_rows=True, **limits)

        arguments = sensor.start_trigger_args

        assert (arguments.next_method, arguments.timeout) == ("execute_complete", timedelta(seconds=77))
        path, kwargs = SnowpipeCommitTrigger(**arguments.trigger_kwargs).serialize()
        assert path == arguments.trigger_cls
        expected = {"targets": BOTH, "stall_timeout": 300.0, "fail_on_rejected_rows": True}
        assert kwargs.items() >= expected.items()
        assert SnowpipeCommitSensor.start_trigger_args is None
        assert make(deferrable=True).start_trigger_args is None

    def test_is_written_into_the_dag_behind_the_load_and_read_back(self):
        with DAG("d", schedule=None) as dag:
            load = SnowpipeStreamOperator(task_id="load", source={"path": "/data"}, table="T")
            make(targets=load.output["targets"], deferrable=True, start_from_trigger=True)
        stores = getattr(serialized_objects, "DagSerialization", None) or serialized_objects.SerializedDAG
        restored = stores.from_dict(json.loads(json.dumps(stores.to_dict(dag))))
        task = restored.get_task("wait")

        assert task.start_from_trigger == (AIRFLOW >= (3, 3))
        assert task.upstream_task_ids == {"load"}
        kwargs = task.start_trigger_args.trigger_kwargs
        if "__var" in kwargs:  # Airflow 3 decodes them later than 2 does
            kwargs = serialized_objects.BaseSerialization.deserialize(kwargs)
        pull = "task_instance.xcom_pull(task_ids='load', dag_id='d', key='targets', map_indexes=-1)"
        assert kwargs["targets"] == f"{{{{ {pull} | tojson }}}}"

    def test_starts_in_a_worker_where_the_triggerer_renders_no_templates(self):
        for options, first in [
            ({}, (2, 11)),
            ({"table": "{{ params.table }}"}, (3, 3)),
            ({"targets": {"c1": "{{ params.last }}"}}, (3, 3)),
        ]:
            sensor = make(deferrable=True, start_from_trigger=True, **options)
            assert sensor.start_from_trigger == (first <= AIRFLOW)


class TestRescheduled:
    """A wait whose polls are processes of their own, with Airflow's task state between them."""

    @pytest.fixture
    def clock(self, monkeypatch):
        """What the sensor takes for the time of its polls."""
        clock = JumpingTime()
        monkeypatch.setattr("airflow_provider_snowpipe.sensors.commit.time", clock)
        return clock

    @staticmethod
    def poll(given, **options):
        return bool(make(mode="reschedule", **options).poke(given).is_done)

    def test_remembers_how_long_it_has_stood_still_until_the_next_try(self, answers, clock, tmp_path):
        answers(LATE)
        store = FileState(tmp_path / "state.json")
        first, second = (context(number, task_state_store=store) for number in (1, 2))
        assert not self.poll(first, stall_timeout=60)
        clock.sleep(61)
        assert not self.poll(second, stall_timeout=60)
        clock.sleep(61)
        with pytest.raises(AirflowException, match=r"stalled.*'c2'") as raised:
            self.poll(second, stall_timeout=60)
        assert type(raised.value) is AirflowException  # the task keeps its retries
        assert store.values() == {}

    def test_needs_a_task_state_to_notice_that_it_stands_still(self, service_connection):
        with pytest.raises(AirflowFailException, match=r"stall_timeout.*3\.3"):
            self.poll(context(), stall_timeout=5)

    def test_has_the_targets_of_a_function_from_the_first_poll_of_a_try(self, answers, tmp_path):
        """The end of a source that grows would be ahead of the committed tokens for ever."""
        answers(*({"c1": f"a:{line}"} for line in (1, 2, 3)))
        store, ends, done = FileState(tmp_path / "state.json"), iter(range(2, 9)), []
        for number in (1, 1, 2):
            sensor = make(mode="reschedule", targets=lambda *_, **__: {"c1": f"a:{next(ends)}"})
            sensor.render_template_fields({})
            done.append(sensor.poke(context(number, task_state_store=store)).is_done)
        assert done == [False, True, False]

    def test_counts_errors_in_a_row(self, answers, monkeypatch, tmp_path):
        monkeypatch.setattr("airflow_provider_snowpipe.triggers.commit.POLL_BUDGET_SECONDS", 0.0)
        answers(error(503, "ERR_BUSY"))
        given = context(task_state_store=FileState(tmp_path / "state.json"))
        assert not self.poll(given, max_consecutive_errors=2)
        with pytest.raises(AirflowException, match="too_many_errors: 2"):
            self.poll(given, max_consecutive_errors=2)


@pytest.mark.usefixtures("jumping_loop")
class TestOverADeferral:
    """Against a fake service: what happens between the first poll and the triggerer's."""

    @pytest.fixture
    def wait(self, set_connection):
        extra = {"account": "ORG-ACCT", "auth": "programmatic_access_token", "database": "DB"}
        fields = {"host": fake_snowpipe.URL, "password": PAT, "schema": "S", "extra": extra}
        conn_id = set_connection("fake", conn_type="snowpipe", **fields)
        return lambda **options: make(
            conn_id, **{"targets": {"c": "9"}, "offset_format": "integer", **options}
        )

    @staticmethod
    def end(sensor, meanwhile, *, deferred=True):
        """The sensor's value, of a wait that ends in the triggerer or in the worker."""
        if not deferred:
            meanwhile()
            return sensor.execute(context())
        found, trigger = deferral(sensor)
        meanwhile()
        return getattr(sensor, found.method_name)(context(), event_of(trigger))

    @pytest.mark.parametrize("mode", ["poke", "deferred", "from the triggerer"])
    def test_rejected_rows_beyond_those_that_were_reported_fail_the_task_for_good(self, snowpipe, wait, mode):
        for target, too_many in (("9", 1), (token(9, 10, errors=3), 4)):
            for rejected in (too_many, too_many - 1):
                snowpipe.channels.clear()
                channel = snowpipe.channel("c", rows_error_count=too_many - 1)
                options = {"deferrable": mode != "poke", "start_from_trigger": mode == "from the triggerer"}
                sensor = wait(targets={"c": target}, fail_on_rejected_rows=True, **options)

                def commit(channel=channel, rejected=rejected, target=target):
                    channel.rows_error_count, channel.committed = rejected, target

                if rejected == too_many:
                    with pytest.raises(AirflowFailException, match="rows_rejected"):
                        self.end(sensor, commit, deferred=mode != "poke")
                else:
                    assert self.end(sensor, commit, deferred=mode != "poke") == {"c": target}

    def test_an_outage_at_the_first_poll_leaves_the_wait_to_the_triggerer(self, snowpipe, wait):
        channel = snowpipe.channel("c")
        snowpipe.fault(before="status", error=fake_snowpipe.error(503), times=8)
        assert self.end(wait(deferrable=True), lambda: setattr(channel, "committed", "9")) == {"c": "9"}

    def test_connections_are_given_back_and_rejected_rows_accepted_by_default(
        self, snowpipe, wait, monkeypatch
    ):
        closed = []
        monkeypatch.setattr(snowpipe, "close", lambda: closed.append(True))
        snowpipe.channel("c", committed="9", rows_error_count=70)
        sensor = wait()
        assert sensor.execute(context()) == {"c": "9"}
        assert (closed, sensor._client) == ([True], None)

    @pytest.mark.parametrize("ends", ["poll", "event"])
    @pytest.mark.parametrize("targets", [{"c": "9"}, {"c1": "9", "c2": "8"}], ids=["one", "two"])
    def test_leaves_events_of_assets_lineage_and_a_page_behind(self, snowpipe, wait, targets, ends):
        asset = snowpipe_asset(account="org-acct", database="DB", schema="S", table="T")
        events = OutletEvents(lambda: SimpleNamespace(extra={}))
        sensor, given = wait(targets=targets, outlets=[asset]), context(outlet_events=events)
        if ends == "poll":
            for name, position in targets.items():
                snowpipe.channel(name, committed=position)
            sensor.execute(given)
        else:
            sensor.execute_complete(given, {"status": "success", "tokens": targets})

        assert events[asset].extra == {"pipe": "DB.S.T-STREAMING", "committed": True, "tokens": targets}
        lineage = sensor.task_lineage
        assert {one.channel: one.token for one in lineage.channels} == targets
        assert (lineage.hook.table, lineage.offset_format, lineage.loads) == ("T", "integer", False)
        if AIRFLOW >= (3, 0):  # Airflow 2 has no page to link to
            (address,) = set(given["ti"].xcoms.values())
            assert ("channel?" if len(targets) == 1 else "channels?") in address
            assert ("target=9" in address and "offset_format=integer" in address) is (len(targets) == 1)

"""The sensor: poke, defer, resume."""

import asyncio
import json
from collections.abc import Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)

from airflow_provider_snowpipe.assets.uri import snowpipe_asset
from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.sensors.commit import SnowpipeCommitSensor
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, RetriesExhaustedError
from airflow_provider_snowpipe.triggers.commit import SnowpipeCommitTrigger
from tests.airflow_connections import PAT, statuses
from tests.airflow_version import AIRFLOW
from tests.jumping_time import JumpingTime
from tests.local_connection import TaskInstance
from tests.outlet_events import OutletEvents
from tests.refusals import refused
from tests.scripted_service import Reply, error


def make(conn_id="scripted", **options):
    arguments = {
        "task_id": "wait",
        "targets": {"c1": "a:2", "c2": "b:2"},
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


class _OfMappedTasks(Sequence[Any]):
    """What an XCom of a mapped task is rendered to: a sequence that is no list."""

    def __init__(self, values):
        self._values = values

    def __len__(self):
        return len(self._values)

    def __getitem__(self, index):
        return self._values[index]


SEEN = {
    "c1": {"committed": "a:2", "target": "a:2", "rejected": 0, "latency_ms": None},
    "c2": {"committed": "b:1", "target": "b:2", "rejected": 5, "latency_ms": 9},
}
REJECTED = {
    "c1": "a:2",
    "c2": {
        "last_committed_offset_token": "b:1",
        "rows_error_count": 7,
        "snowflake_avg_processing_latency_ms": 9,
    },
}
TARGETS = {
    "c1": {"token": "a:2", "offset_format": "file:line", "errors": 0, "rows": 2},
    "c2": {"token": "b:2", "offset_format": "file:line", "errors": 2, "rows": 2},
}


class TestObserved:
    """What a sensor saw is kept where it fails, since a task that fails has no value."""

    def test_by_a_sensor_in_the_worker(self, service, service_connection):
        service.on("bulk-channel-status", statuses(**REJECTED))
        given = context()

        with pytest.raises(AirflowFailException, match="rows_rejected"):
            make(service_connection, targets=TARGETS).execute(given)

        assert given["ti"].xcoms["observed"] == {"reason": "rows_rejected", "channels": SEEN}

    def test_by_a_trigger(self, service, service_connection):
        service.on("bulk-channel-status", statuses(**REJECTED))
        given = context()
        sensor = make(service_connection, targets=TARGETS, deferrable=True)
        trigger = SnowpipeCommitTrigger(
            targets=TARGETS, snowflake_conn_id=service_connection, table="T", poll_interval=0.01
        )

        async def first():
            return await anext(trigger.run())

        event = asyncio.run(first()).payload
        with pytest.raises(AirflowFailException, match="rows_rejected"):
            sensor.execute_complete(given, event)

        assert given["ti"].xcoms["observed"] == {"reason": "rows_rejected", "channels": SEEN}

    def test_when_the_time_is_over(self, service, service_connection):
        service.on("bulk-channel-status", statuses(c1="a:2", c2="b:1"))
        given = context()

        with pytest.raises(AirflowSensorTimeout):
            make(service_connection, timeout=0.05).execute(given)

        observed = given["ti"].xcoms["observed"]
        assert observed["reason"] == "timeout"
        assert [one["committed"] for one in observed["channels"].values()] == ["a:2", "b:1"]

    def test_when_the_time_in_the_triggerer_is_over(self, service, service_connection):
        service.on("bulk-channel-status", statuses(c1="a:2", c2="b:1"))
        given = context()
        sensor = make(service_connection, deferrable=True)

        words = "Trigger timeout" if AIRFLOW >= (3, 0) else "Trigger/execution timeout"
        with pytest.raises(AirflowException):
            sensor.resume_execution("__fail__", {"error": words}, given)

        assert given["ti"].xcoms["observed"]["channels"]["c2"]["committed"] == "b:1"

    def test_not_by_one_that_succeeds(self, service, service_connection):
        service.on("bulk-channel-status", statuses(c1="a:2", c2="b:2"))
        given = context()

        make(service_connection).execute(given)

        assert "observed" not in given["ti"].xcoms


class TestPoke:
    def test_waits_until_every_channel_has_committed(self, service, service_connection):
        service.on(
            "bulk-channel-status",
            statuses(c1=None, c2=None),
            statuses(c1="a:2", c2="b:1"),
            statuses(c1="a:2", c2="b:2"),
        )

        assert make(service_connection).execute(context()) == {"c1": "a:2", "c2": "b:2"}
        assert len(service.requests("bulk-channel-status")) == 3
        assert len(service.requests("token")) == 1

    def test_a_pipe_that_failed_over_gets_a_new_client(self, service, service_connection):
        service.on("bulk-channel-status", error(410, "ERR_PIPE_FAILED_OVER"), statuses(c1="a:2", c2="b:2"))

        assert make(service_connection).execute(context()) == {"c1": "a:2", "c2": "b:2"}
        assert len(service.requests("hostname")) == 2

    def test_survives_passing_errors_up_to_the_limit(self, service, service_connection, monkeypatch):
        monkeypatch.setattr("airflow_provider_snowpipe.triggers.commit.POLL_BUDGET_SECONDS", 0.0)
        service.on("bulk-channel-status", error(503, "ERR_BUSY"))
        sensor = make(service_connection, max_consecutive_errors=3)

        assert not sensor.poke(context()).is_done
        assert not sensor.poke(context()).is_done
        with pytest.raises(AirflowException, match="too_many_errors: 3"):
            sensor.poke(context())

    def test_wrong_targets_fail_without_a_retry(self, service_connection):
        def poke(targets):
            make(service_connection, targets=targets).poke(context())

        for targets, words in [
            (None, ["targets is None"]),
            ("not json", ["no JSON object"]),
            ("[1]", ["give a mapping"]),
            ([], ["targets is an empty list"]),
            ([{"c1": "a:1"}, {"c1": "a:2"}], ["two entries of channel 'c1'"]),
            ({"c1": "nonsense"}, ["'c1'", "'nonsense'"]),
        ]:
            refused(AirflowFailException, poke, [targets], *words)

    def test_a_missing_channel_fails_without_a_retry(self, service, service_connection):
        service.on("bulk-channel-status", statuses(c1="a:2"))

        with pytest.raises(AirflowFailException, match=r"channel_missing: channel 'c2'"):
            make(service_connection).poke(context())

    def test_refused_credentials_fail_without_showing_them(self, service, service_connection):
        service.on("hostname", error(401, "ERR_BAD_TOKEN"))

        with pytest.raises(AirflowFailException, match=r"refused: .*credentials") as raised:
            make(service_connection).poke(context())
        assert PAT not in str(raised.value)


class TestDeferred:
    def test_defers_resumes_and_returns_the_tokens(self, service, service_connection):
        service.on("bulk-channel-status", statuses(c1=None, c2=None), statuses(c1="a:2", c2="b:5"))
        sensor = make(service_connection, deferrable=True, timeout=77)

        with pytest.raises(TaskDeferred) as deferred:
            sensor.execute(context())
        path, arguments = deferred.value.trigger.serialize()
        restored = SnowpipeCommitTrigger(**json.loads(json.dumps(arguments)))
        event = asyncio.run(anext(aiter(restored.run())))
        resume = getattr(make(service_connection), deferred.value.method_name)

        assert path.endswith(".SnowpipeCommitTrigger")
        assert deferred.value.timeout is not None
        assert deferred.value.timeout.total_seconds() == 77
        assert restored.poll_interval == 0.01
        assert resume(context(), json.loads(json.dumps(event.payload))) == {"c1": "a:2", "c2": "b:5"}

    @pytest.mark.parametrize(("execution", "most"), [(20, 20), (90, 77)])
    def test_waits_no_longer_than_its_execution_timeout(self, service, service_connection, execution, most):
        """Airflow 3 applies that to what runs in a worker alone."""
        service.on("bulk-channel-status", statuses(c1=None, c2=None))
        limits = {"timeout": 77, "execution_timeout": timedelta(seconds=execution)}

        with pytest.raises(TaskDeferred) as deferred:
            make(service_connection, deferrable=True, **limits).execute(context())

        assert deferred.value.timeout == timedelta(seconds=most)

    def test_waits_for_all_instances_of_a_mapped_load(self, service, service_connection):
        service.on("bulk-channel-status", statuses(c1="a:2", c2="b:1"), statuses(c1="a:2", c2="b:2"))
        loads = _OfMappedTasks([{"c1": "a:2"}, {}, {"c2": "b:2"}])

        with pytest.raises(TaskDeferred) as deferred:
            make(service_connection, targets=loads, deferrable=True).execute(context())
        _, arguments = deferred.value.trigger.serialize()
        trigger = SnowpipeCommitTrigger(**json.loads(json.dumps(arguments)))
        event = asyncio.run(anext(aiter(trigger.run())))

        assert event.payload["tokens"] == {"c1": "a:2", "c2": "b:2"}

    def test_failure_events_fail_the_task_and_only_passing_ones_allow_a_retry(self):
        final = ["channel_missing", "channel_invalid", "rows_rejected", "bad_token"]
        final += ["configuration", "refused"]
        kinds = {**dict.fromkeys(final, AirflowFailException), "stalled": AirflowException}
        for reason, kind in {**kinds, "too_many_errors": AirflowException}.items():
            with pytest.raises(AirflowException, match=f"{reason}: x") as raised:
                make().execute_complete({}, {"status": "failure", "reason": reason, "message": "x"})
            assert type(raised.value) is kind

    @pytest.mark.parametrize("option", ["soft_fail", "never_fail"])
    def test_first_poll_skips_like_poke_mode_does(self, service, service_connection, option):
        service.on("bulk-channel-status", Reply(body='{"channel_statuses": {}}'))

        with pytest.raises(AirflowSkipException, match="channel_missing"):
            make(service_connection, deferrable=True, **{option: True}).execute(context())

    @pytest.mark.parametrize("options", [{}, {"soft_fail": True}])
    def test_first_poll_that_failed_for_a_passing_reason_leaves_the_task_its_retries(
        self, monkeypatch, service_connection, options
    ):
        def no_client(*_, **__):
            raise RetriesExhaustedError("the token endpoint does not answer")

        monkeypatch.setattr(SnowpipeHook, "get_client", no_client)

        with pytest.raises(AirflowException, match="too_many_errors: the token endpoint") as raised:
            make(service_connection, deferrable=True, **options).execute(context())

        assert type(raised.value) is AirflowException


class TestArguments:
    def test_that_cannot_be_are_refused_when_the_dag_is_read(self):
        make(poke_interval=0)
        for options, words in [
            ({"pipe": "P"}, ["both given"]),
            ({"offset_format": "lines"}, ["'lines' is unknown"]),
            ({"poke_interval": 0, "deferrable": True}, ["poke_interval is 0", "deferrable=True"]),
        ]:
            refused(ConfigurationError, lambda given: make(**given), [options], *words)

    def test_names_and_targets_are_templates_and_targets_may_be_a_function_of_the_context(self):
        sensor = make(targets="{{ t }}", table="{{ x }}", database="{{ x }}", schema="{{ x }}")
        sensor.render_template_fields({"t": '{"c": "a:1"}', "x": "FLIGHTS"})

        assert (sensor.targets, sensor.table, sensor.database) == ('{"c": "a:1"}', "FLIGHTS", "FLIGHTS")
        sensor = make(targets=lambda context, jinja_env: {"c": f"{context['file']}:1"})
        sensor.render_template_fields({"file": "a"})
        assert sensor.targets == {"c": "a:1"}

    def test_targets_xcom_of_a_load_makes_the_sensor_downstream(self):
        from airflow.providers.common.compat.sdk import DAG

        from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator

        with DAG("d", schedule=None):
            load = SnowpipeStreamOperator(task_id="load", source={"path": "/data"}, table="T")
            wait = make(targets=load.output["targets"])

        assert wait.upstream_task_ids == {"load"}


class TestStartingInTheTriggerer:
    def test_goes_to_the_scheduler_as_the_same_trigger(self):
        sensor = make(
            deferrable=True, start_from_trigger=True, timeout=77, stall_timeout=timedelta(minutes=5),
            fail_on_rejected_rows=True,
        )  # fmt: skip

        arguments = sensor.start_trigger_args

        assert arguments.next_method == "execute_complete"
        assert arguments.timeout == timedelta(seconds=77)
        path, kwargs = SnowpipeCommitTrigger(**arguments.trigger_kwargs).serialize()
        assert path == arguments.trigger_cls
        assert kwargs["targets"] == {"c1": "a:2", "c2": "b:2"}
        assert kwargs["stall_timeout"] == 300.0
        assert kwargs["fail_on_rejected_rows"] is True
        assert SnowpipeCommitSensor.start_trigger_args is None
        assert make(deferrable=True).start_trigger_args is None

    def test_takes_plain_xcoms_and_no_functions(self):
        from airflow.providers.common.compat.sdk import DAG

        from airflow_provider_snowpipe.operators.append import SnowpipeAppendRowsOperator
        from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator

        with DAG("d", schedule=None):
            partial = SnowpipeAppendRowsOperator.partial(task_id="mapped", table="T", rows=[])
            load = SnowpipeStreamOperator(task_id="load", source={"path": "/data"}, table="T")
            for targets, word in [
                (partial.expand(channel=["c"]).output["targets"], "targets is the XCom of a mapped task"),
                (load.output.map(dict), "plain XCom"),
                (lambda context, jinja_env: {}, "function"),
            ]:
                with pytest.raises(ConfigurationError, match=word):
                    make(task_id=word[:4], targets=targets, deferrable=True, start_from_trigger=True)

    def test_is_written_into_the_dag_and_read_back(self):
        from airflow.providers.common.compat.sdk import DAG
        from airflow.serialization import serialized_objects

        from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator

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
        assert kwargs["targets"] == (
            "{{ task_instance.xcom_pull(task_ids='load', dag_id='d', key='targets', "
            "map_indexes=-1) | tojson }}"
        )

    @pytest.mark.parametrize(
        ("options", "first"),
        [
            pytest.param({}, (2, 11), id="no template"),
            pytest.param({"table": "{{ params.table }}"}, (3, 3), id="template"),
            pytest.param({"targets": {"c1": "{{ params.last }}"}}, (3, 3), id="template inside"),
        ],
    )
    def test_starts_in_a_worker_where_the_triggerer_renders_no_templates(self, options, first):
        sensor = make(deferrable=True, start_from_trigger=True, **options)

        assert sensor.start_from_trigger == (first <= AIRFLOW)

    @pytest.mark.parametrize("option", ["start_from_trigger", "end_from_trigger"])
    def test_needs_a_sensor_that_defers(self, option):
        with pytest.raises(ConfigurationError, match=rf"{option}.*deferrable=True"):
            make(deferrable=False, **{option: True})

    def test_takes_no_template_that_the_triggerer_would_never_answer(self):
        pull = "ti.xcom_pull('load', key='targets'{}) | tojson"

        with pytest.raises(ConfigurationError, match="map_indexes=-1"):
            make(targets="{{ " + pull.format("") + " }}", deferrable=True, start_from_trigger=True)
        make(
            targets="{{ " + pull.format(", map_indexes=-1") + " }}", deferrable=True, start_from_trigger=True
        )


class TestStandingStill:
    @pytest.fixture
    def clock(self, monkeypatch):
        """What the sensor takes for the time of its polls."""
        clock = JumpingTime()
        monkeypatch.setattr("airflow_provider_snowpipe.sensors.commit.time", clock)
        return clock

    def test_fails_in_the_worker_and_leaves_the_task_its_retries(self, service, service_connection):
        service.on("bulk-channel-status", statuses(c1="a:2", c2="b:1"))

        with pytest.raises(AirflowException, match=r"stalled.*'c2'") as raised:
            make(service_connection, stall_timeout=0.05).execute(context())
        assert type(raised.value) is AirflowException

    def test_is_remembered_between_rescheduled_polls(self, service, service_connection, clock):
        service.on("bulk-channel-status", statuses(c1="a:2", c2="b:1"))
        ctx = context(task_state_store=TaskState())

        def poll():
            sensor = make(service_connection, mode="reschedule", stall_timeout=60)
            return bool(sensor.poke(ctx).is_done)

        assert not poll()
        clock.sleep(61)
        with pytest.raises(AirflowException, match="stalled"):
            poll()
        assert ctx["task_state_store"].values == {}

    def test_starts_anew_with_the_next_try(self, service, service_connection, clock):
        service.on("bulk-channel-status", statuses(c1="a:2", c2="b:1"))
        store = TaskState()
        sensor = {"mode": "reschedule", "stall_timeout": 60}

        make(service_connection, **sensor).poke(context(try_number=1, task_state_store=store))
        clock.sleep(61)

        seen = make(service_connection, **sensor).poke(context(try_number=2, task_state_store=store))
        assert not seen.is_done

    def test_is_refused_where_airflow_keeps_no_task_state(self, service_connection):
        with pytest.raises(AirflowFailException, match=r"stall_timeout.*3\.3"):
            make(service_connection, mode="reschedule", stall_timeout=5).poke(context())

    def test_targets_of_a_function_are_those_of_the_first_rescheduled_poll(self, service, service_connection):
        """The end of a source that grows would be ahead of the committed tokens for ever."""
        service.on("bulk-channel-status", *(statuses(c1=f"a:{line}") for line in (1, 2, 3)))
        store, ends, done = TaskState(), iter(range(2, 9)), []
        for number in (1, 1, 2):
            sensor = make(
                service_connection, mode="reschedule", targets=lambda *_, **__: {"c1": f"a:{next(ends)}"}
            )
            sensor.render_template_fields({})
            done.append(sensor.poke(context(number, task_state_store=store)).is_done)

        assert done == [False, True, False]  # another try works them out again

    def test_errors_in_a_row_are_counted_over_rescheduled_polls(
        self, service, service_connection, monkeypatch
    ):
        monkeypatch.setattr("airflow_provider_snowpipe.triggers.commit.POLL_BUDGET_SECONDS", 0.0)
        service.on("bulk-channel-status", error(503, "ERR_BUSY"))
        ctx = context(task_state_store=TaskState())

        def poll():
            sensor = make(service_connection, mode="reschedule", max_consecutive_errors=2)
            return bool(sensor.poke(ctx).is_done)

        assert not poll()
        with pytest.raises(AirflowException, match="too_many_errors: 2"):
            poll()


class TaskState:
    """As much of Airflow's task state as a sensor uses, JSON in between."""

    def __init__(self):
        self.values = {}

    def get(self, key):
        return json.loads(self.values[key]) if key in self.values else None

    def set(self, key, value):
        self.values[key] = json.dumps(value)

    def delete(self, key):
        self.values.pop(key, None)


class TestAssetEvents:
    @pytest.mark.parametrize("deferrable", [False, True], ids=["poke", "deferrable"])
    def test_report_the_tokens_and_leave_the_rows_to_the_load(self, service, set_connection, deferrable):
        conn_id = set_connection(
            "with_account",
            conn_type="snowpipe",
            host=service.url,
            password=PAT,
            schema="S",
            extra={
                "account": "ORG-ACCT",
                "auth": "programmatic_access_token",
                "database": "DB",
                "ca_bundle": service.ca_bundle,
            },
        )
        service.on("bulk-channel-status", statuses(c1="a:2", c2="b:2"))
        asset = snowpipe_asset(account="org-acct", database="DB", schema="S", table="T")
        events = OutletEvents(lambda: SimpleNamespace(extra={}))
        sensor = make(conn_id, outlets=[asset], deferrable=deferrable)

        sensor.execute(context(outlet_events=events))
        by_poll = dict(events[asset].extra)
        events[asset].extra.clear()
        sensor.execute_complete(
            context(outlet_events=events), {"status": "success", "tokens": {"c1": "a:2", "c2": "b:2"}}
        )

        assert (
            events[asset].extra
            == by_poll
            == {"pipe": "DB.S.T-STREAMING", "committed": True, "tokens": {"c1": "a:2", "c2": "b:2"}}
        )
        lineage = sensor.task_lineage
        assert lineage is not None
        assert [(one.channel, one.token) for one in lineage.channels] == [("c1", "a:2"), ("c2", "b:2")]
        assert (lineage.hook.table, lineage.offset_format, lineage.loads) == ("T", "file:line", False)

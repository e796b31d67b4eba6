"""The sensor: poke, defer, resume."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    TaskDeferred,
)

from airflow_provider_snowpipe.sensors.commit import SnowpipeCommitSensor
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.triggers.commit import SnowpipeCommitTrigger
from tests.airflow_connections import PAT, statuses
from tests.scripted_service import Reply, ScriptedService, error


def make(conn_id: str = "scripted", **options: Any) -> SnowpipeCommitSensor:
    arguments: dict[str, Any] = {
        "task_id": "wait",
        "targets": {"c1": "a:2", "c2": "b:2"},
        "snowflake_conn_id": conn_id,
        "table": "T",
        "poke_interval": 0.01,
        "timeout": 30,
    }
    return SnowpipeCommitSensor(**{**arguments, **options})


class TestPoke:
    def test_waits_until_every_channel_has_committed(
        self, service: ScriptedService, service_connection: str
    ) -> None:
        service.on(
            "bulk-channel-status",
            statuses(c1=None, c2=None),
            statuses(c1="a:2", c2="b:1"),
            statuses(c1="a:2", c2="b:2"),
        )

        assert make(service_connection).execute({}) == {"c1": "a:2", "c2": "b:2"}
        assert len(service.requests("bulk-channel-status")) == 3

    def test_takes_targets_as_the_text_that_a_template_renders(
        self, service: ScriptedService, service_connection: str
    ) -> None:
        service.on("bulk-channel-status", statuses(c1="a:2"))

        assert make(service_connection, targets='{"c1": "a:2"}').poke({}).is_done

    def test_survives_passing_errors_up_to_the_limit(
        self, service: ScriptedService, service_connection: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("airflow_provider_snowpipe.sensors.commit.POLL_BUDGET_SECONDS", 0.0)
        service.on("bulk-channel-status", error(503, "ERR_BUSY"))
        sensor = make(service_connection, max_consecutive_errors=3)

        assert not sensor.poke({}).is_done
        assert not sensor.poke({}).is_done
        with pytest.raises(AirflowException, match="too_many_errors: 3 looks in a row"):
            sensor.poke({})

    @pytest.mark.parametrize(
        ("targets", "text"),
        [
            ({}, "at least one channel"),
            (None, "targets is None"),
            ("not json", "no JSON object"),
            ("[1]", "give a mapping"),
            ({"c1": "nonsense"}, "'c1'.*'nonsense'"),
        ],
    )
    def test_wrong_targets_fail_without_a_retry(
        self, service_connection: str, targets: Any, text: str
    ) -> None:
        with pytest.raises(AirflowFailException, match=text):
            make(service_connection, targets=targets).poke({})

    def test_a_missing_channel_fails_without_a_retry(
        self, service: ScriptedService, service_connection: str
    ) -> None:
        service.on("bulk-channel-status", statuses(c1="a:2"))

        with pytest.raises(AirflowFailException, match=r"channel_missing: channel 'c2'"):
            make(service_connection).poke({})

    def test_refused_credentials_fail_without_showing_them(
        self, service: ScriptedService, service_connection: str
    ) -> None:
        service.on("hostname", error(401, "ERR_BAD_TOKEN"))

        with pytest.raises(AirflowException, match=r"refused: .*credentials") as raised:
            make(service_connection).poke({})
        assert PAT not in str(raised.value)

    def test_log_names_the_slowest_channel(
        self, service: ScriptedService, service_connection: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        service.on("bulk-channel-status", statuses(c1="a:2", c2=None))

        make(service_connection).poke({})

        assert "1 of 2 channels committed; slowest: 'c2' committed NULL of b:2" in capsys.readouterr().out


class TestDeferred:
    def test_does_not_defer_what_is_already_committed(
        self, service: ScriptedService, service_connection: str
    ) -> None:
        service.on("bulk-channel-status", statuses(c1="a:2", c2="b:2"))

        assert make(service_connection, deferrable=True).execute({}) == {"c1": "a:2", "c2": "b:2"}

    def test_defers_resumes_and_returns_the_tokens(
        self, service: ScriptedService, service_connection: str
    ) -> None:
        service.on("bulk-channel-status", statuses(c1=None, c2=None), statuses(c1="a:2", c2="b:5"))
        sensor = make(service_connection, deferrable=True, timeout=77)

        with pytest.raises(TaskDeferred) as deferred:
            sensor.execute({})
        path, arguments = deferred.value.trigger.serialize()
        restored = SnowpipeCommitTrigger(**json.loads(json.dumps(arguments)))
        event = asyncio.run(anext(aiter(restored.run())))
        resume = getattr(make(service_connection), deferred.value.method_name)

        assert path.endswith(".SnowpipeCommitTrigger")
        assert deferred.value.timeout is not None
        assert deferred.value.timeout.total_seconds() == 77
        assert restored.poll_interval == 0.01
        assert resume({}, json.loads(json.dumps(event.payload))) == {"c1": "a:2", "c2": "b:5"}

    @pytest.mark.parametrize(
        ("reason", "kind"),
        [
            ("channel_missing", AirflowFailException),
            ("channel_invalid", AirflowFailException),
            ("rows_rejected", AirflowFailException),
            ("bad_token", AirflowFailException),
            ("configuration", AirflowFailException),
            ("refused", AirflowException),
            ("too_many_errors", AirflowException),
        ],
    )
    def test_failure_events_fail_the_task_and_only_passing_ones_allow_a_retry(
        self, reason: str, kind: type[Exception]
    ) -> None:
        event = {"status": "failure", "reason": reason, "message": "what happened"}

        with pytest.raises(AirflowException, match=f"{reason}: what happened") as raised:
            make().execute_complete({}, event)

        assert type(raised.value) is kind

    @pytest.mark.parametrize("option", ["soft_fail", "never_fail"])
    def test_first_look_skips_like_poke_mode_does(
        self, service: ScriptedService, service_connection: str, option: str
    ) -> None:
        service.on("bulk-channel-status", Reply(body='{"channel_statuses": {}}'))

        with pytest.raises(AirflowSkipException, match="channel_missing"):
            make(service_connection, deferrable=True, **{option: True}).execute({})


class TestArguments:
    def test_constructor_looks_nothing_up(self) -> None:
        make("there_is_no_such_connection")

    def test_table_and_pipe_exclude_each_other(self) -> None:
        with pytest.raises(ConfigurationError, match="both given"):
            make(pipe="P")

    def test_unknown_format_is_refused_when_the_dag_is_read(self) -> None:
        with pytest.raises(ConfigurationError, match="'lines' is unknown"):
            make(offset_format="lines")

    def test_names_and_targets_are_templates(self) -> None:
        sensor = make(targets="{{ t }}", table="{{ x }}", database="{{ x }}", schema="{{ x }}")
        sensor.render_template_fields({"t": '{"c": "a:1"}', "x": "FLIGHTS"})

        assert (sensor.targets, sensor.table, sensor.database) == ('{"c": "a:1"}', "FLIGHTS", "FLIGHTS")

    def test_targets_xcom_of_a_load_makes_the_sensor_downstream(self) -> None:
        from airflow.sdk import DAG

        from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator

        with DAG("d", schedule=None):
            load = SnowpipeStreamOperator(task_id="load", source={"path": "/data"}, table="T")
            wait = make(targets=load.output["targets"])

        assert wait.upstream_task_ids == {"load"}

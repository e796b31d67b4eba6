"""The trigger that follows an application on YARN, against a scripted ResourceManager."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from airflow.providers.common.compat.sdk import BaseHook

from airflow_provider_snowpipe.hooks.cluster import ResourceManager, YarnApplication
from airflow_provider_snowpipe.spark.driver.report import ChannelStart, start_text
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, RetriesExhaustedError
from airflow_provider_snowpipe.triggers import application
from airflow_provider_snowpipe.triggers.application import (
    FollowedApplication,
    SnowpipeApplicationTrigger,
    cluster_of,
)
from tests.airflow_connections import PAT, statuses
from tests.airflow_version import AIRFLOW
from tests.scripted_service import error
from tests.scripted_yarn import scripted_yarn
from tests.unit.triggers.running import event


@pytest.fixture
def yarn():
    with scripted_yarn() as yarn:
        yarn.add(["snowpipe-x", "mine"])
        yield yarn


@pytest.fixture
def follow(yarn, set_connection):
    address = {"yarn_resourcemanager_webapp_address": yarn.url.removeprefix("http://")}
    set_connection("on_yarn", conn_type="spark", host="yarn", extra=address)

    def make(**options):
        (application,) = yarn.applications
        arguments = {"application_id": application, "spark_conn_id": "on_yarn", "poll_interval": 0}
        return SnowpipeApplicationTrigger(**{**arguments, **options})

    return make


@pytest.mark.parametrize("end", [("FINISHED", "FAILED"), ("KILLED", "KILLED")])
def test_one_event_at_the_end_however_it_ends(yarn, follow, end):
    yarn.play("NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", 503, "RUNNING", "RUNNING", end)
    found = event(follow())
    assert (found["status"], yarn.polls) == ("ended", 8)
    assert end[1] in found["message"]


def test_an_application_that_yarn_has_forgotten_has_ended(yarn, follow):
    trigger = follow()
    yarn.applications.clear()
    assert event(trigger)["status"] == "ended"


def test_a_resource_manager_that_is_away_for_too_long_is_reported(yarn, follow):
    yarn.play("RUNNING", *[503] * 50)
    found = event(follow(unreachable_seconds=0))
    assert (found["status"], yarn.killed) == ("lost", [])
    assert "503" in found["message"]


def test_a_connection_without_the_address_ends_at_once(follow, set_connection, monkeypatch):
    monkeypatch.setattr(FollowedApplication, "has_failed", None)  # no other poll can help
    set_connection("no_address", conn_type="spark", host="yarn")
    found = event(follow(spark_conn_id="no_address"))
    assert found["status"] == "lost"
    assert "yarn_resourcemanager_webapp_address" in found["message"]


@pytest.mark.skipif(AIRFLOW < (3, 3), reason="before Airflow 3.3 a thread asks for it")
def test_the_connection_is_asked_for_on_the_event_loop(yarn, follow, monkeypatch):
    """As Airflow asks of triggers, whose supervisor answers their event loop."""
    monkeypatch.setattr(BaseHook, "get_connection", None)
    yarn.play(("FINISHED", "SUCCEEDED"))
    trigger = follow()
    assert event(trigger)["status"] == "ended"
    asyncio.run(trigger.on_kill())
    assert yarn.killed == list(yarn.applications)


def test_a_task_that_is_cleared_or_marked_stops_the_application(yarn, follow, set_connection, capsys):
    trigger = follow()
    asyncio.run(trigger.on_kill())
    assert yarn.killed == list(yarn.applications)
    set_connection("on_yarn", conn_type="spark", host="yarn")
    asyncio.run(trigger.on_kill())
    assert "is not stopped" in capsys.readouterr().out


START = start_text({"a": ChannelStart(100, 0, 0), "b": ChannelStart(7, 0, 0)})


class TestChannels:
    """What the channels of a load commit is in the log while its application runs."""

    @pytest.fixture
    def load(self, follow, service, service_connection, tmp_path, monkeypatch):
        monkeypatch.setattr("airflow_provider_snowpipe.triggers.application.LOG_SECONDS", 0.0)
        polled = statuses(a={"rows_inserted": 150, "rows_error_count": 0}, b={"rows_inserted": 7})
        service.on("bulk-channel-status", polled)

        def make(start=START, **options):
            if start is not None:
                (tmp_path / "start.json").write_text(start)
            arguments = {"start_path": str(tmp_path / "start.json"), "snowflake_conn_id": service_connection}
            return follow(**{**arguments, "table": "T", "poll_interval": 0.01, **options})

        return make

    def ends_once(self, yarn, seen):
        """Have the application run until something is there."""

        def step():
            if not seen():
                yarn.script.extendleft([step, "RUNNING"])
            else:
                yarn.script.clear()
                yarn.script.append(("FINISHED", "SUCCEEDED"))

        yarn.play(step, "RUNNING")

    @pytest.mark.parametrize("late", [None, '{"a": {"rej'])
    def test_rows_are_logged_also_of_a_late_start_file(self, yarn, load, capsys, tmp_path, late):
        printed = []

        def seen():
            printed.append("".join(capsys.readouterr()))
            if len(printed) == 3:
                (tmp_path / "start.json").write_text(START)
            return "channels=2 rows=50" in printed[-1]

        self.ends_once(yarn, seen)
        trigger = load(late)
        assert event(trigger)["status"] == "ended"
        assert PAT not in json.dumps(trigger.serialize())

    def test_a_status_poll_that_fails_is_logged_once(self, yarn, load, service, capsys):
        service.on("bulk-channel-status", error(404, "ERR_PIPE_DOES_NOT_EXIST_OR_NOT_AUTHORIZED"))
        self.ends_once(yarn, lambda: len(service.requests("bulk-channel-status")) >= 4)
        assert event(load())["status"] == "ended"
        assert "".join(capsys.readouterr()).count("cannot be shown") == 1


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(application, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


RUNNING = YarnApplication("application_1_1", "RUNNING")


def test_errors_count_as_in_a_row_from_the_last_answer_on(clock):
    log = SimpleNamespace(info=lambda *_: None, warning=lambda *_: None)
    followed, away = FollowedApplication(log, 600.0), RetriesExhaustedError("no answer")
    gave_up = []
    for clock.now in (0.0, 599.0, 1_199.0, 1_200.0, 1_799.0, 1_800.0):
        gave_up.append(followed.has_failed(away))
        if clock.now == 599.0:
            followed.has_seen(RUNNING)
    assert gave_up == [False, False, False, False, True, True]


class TestResourceManager:
    def test_finds_applications_by_their_tag(self, yarn):
        newer, manager = yarn.add(["snowpipe-x"]), ResourceManager(yarn.url)
        assert [one.id for one in manager.tagged("snowpipe-x")] == [newer.id, next(iter(yarn.applications))]
        assert manager.tagged("other") == []

    def test_an_answer_that_is_none_is_no_end_and_a_refused_kill_an_error(self, yarn, monkeypatch):
        for body in ({}, [], {"app": {"id": "x"}}, {"app": None}):
            monkeypatch.setattr(yarn, "answer", lambda *_, body=body: (200, body))
            with pytest.raises(RetriesExhaustedError, match="answered 200"):
                ResourceManager(yarn.url).application("application_1_1")
        monkeypatch.setattr(yarn, "answer", lambda *_: (403, {"message": "not yours"}))
        with pytest.raises(RetriesExhaustedError, match="403"):
            ResourceManager(yarn.url).kill("application_1_1")

    def test_kerberos_needs_its_package(self, set_connection):
        extra = {"yarn_resourcemanager_webapp_address": "rm:8088", "keytab": "eA==", "principal": "p"}
        set_connection("secured", conn_type="spark", host="yarn", extra=extra)
        with pytest.raises(ConfigurationError, match="requests-kerberos"):
            cluster_of("secured")

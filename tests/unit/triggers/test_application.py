"""The trigger that follows an application on YARN, against a scripted ResourceManager."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import BaseHook

from airflow_provider_snowpipe.hooks.cluster import ResourceManager
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, RetriesExhaustedError
from airflow_provider_snowpipe.triggers.application import SnowpipeApplicationTrigger, cluster_of
from tests.airflow_version import AIRFLOW
from tests.scripted_yarn import ScriptedYarn, scripted_yarn


@pytest.fixture
def yarn():
    with scripted_yarn() as yarn:
        yarn.add(["snowpipe-x", "mine"])
        yield yarn


@pytest.fixture
def follow(yarn, set_connection):
    set_connection(
        "on_yarn",
        conn_type="spark",
        host="yarn",
        extra={"yarn_resourcemanager_webapp_address": yarn.url.removeprefix("http://")},
    )

    def make(**options: Any) -> SnowpipeApplicationTrigger:
        (application,) = yarn.applications
        arguments = {"application_id": application, "spark_conn_id": "on_yarn", "poll_interval": 0}
        return SnowpipeApplicationTrigger(**{**arguments, **options})

    return make


def event(trigger: SnowpipeApplicationTrigger) -> dict[str, Any]:
    async def first() -> Any:
        return (await anext(trigger.run())).payload

    found: dict[str, Any] = asyncio.run(first())
    return found


@pytest.mark.parametrize(
    "end", [("FINISHED", "SUCCEEDED"), ("FINISHED", "FAILED"), ("FAILED", "FAILED"), ("KILLED", "KILLED")]
)
def test_one_event_at_the_end_however_it_ends(yarn, follow, end):
    yarn.play("NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", 503, "RUNNING", "RUNNING", end)

    found = event(follow())

    assert found["status"] == "ended"
    assert end[1] in found["message"]
    assert yarn.polls == 8


def test_an_application_that_yarn_has_forgotten_has_ended(yarn, follow):
    trigger = follow()
    yarn.applications.clear()

    assert event(trigger)["status"] == "ended"


def test_a_resource_manager_that_is_away_for_too_long_is_reported(yarn, follow):
    yarn.play("RUNNING", *[503] * 50)

    found = event(follow(unreachable_seconds=0))

    assert found["status"] == "lost"
    assert "503" in found["message"]
    assert yarn.killed == []


def test_a_connection_without_the_address_ends_at_once(follow, set_connection):
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


def test_a_task_that_is_cleared_or_marked_stops_the_application(yarn, follow):
    asyncio.run(follow().on_kill())

    assert yarn.killed == list(yarn.applications)


def test_a_kill_that_fails_is_reported_and_raises_nothing(follow, set_connection, capsys):
    trigger = follow()
    set_connection("on_yarn", conn_type="spark", host="yarn")

    asyncio.run(trigger.on_kill())

    assert "is not stopped" in capsys.readouterr().out


class TestResourceManager:
    def test_finds_applications_by_their_tag(self, yarn):
        newer = yarn.add(["snowpipe-x"])
        manager = ResourceManager(yarn.url)

        assert [one.id for one in manager.tagged("snowpipe-x")] == [newer.id, next(iter(yarn.applications))]
        assert manager.tagged("other") == []

    def test_knows_nothing_for_certain_while_it_reads_what_it_knew(self, yarn):
        manager = ResourceManager(yarn.url)
        for ask in (manager.application, manager.tagged, manager.kill):
            yarn.recovering = 9
            with pytest.raises(RetriesExhaustedError, match="INITIALIZING"):
                ask("application_1_1")

    @pytest.mark.parametrize("body", [{}, [], {"app": {"id": "x"}}, {"app": None}])
    def test_an_answer_that_is_none_is_no_end(self, yarn: ScriptedYarn, monkeypatch, body):
        monkeypatch.setattr(yarn, "answer", lambda *_: (200, body))

        with pytest.raises(RetriesExhaustedError, match="answered 200"):
            ResourceManager(yarn.url).application("application_1_1")

    def test_a_kill_that_is_refused_is_an_error(self, yarn, monkeypatch):
        monkeypatch.setattr(yarn, "answer", lambda *_: (403, {"message": "not yours"}))

        with pytest.raises(RetriesExhaustedError, match="403"):
            ResourceManager(yarn.url).kill("application_1_1")

    def test_kerberos_needs_its_package(self, set_connection):
        extra = {"yarn_resourcemanager_webapp_address": "rm:8088", "keytab": "eA==", "principal": "p"}
        set_connection("secured", conn_type="spark", host="yarn", extra=extra)

        with pytest.raises(ConfigurationError, match="requests-kerberos"):
            cluster_of("secured")

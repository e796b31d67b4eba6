"""The trigger that follows an application on YARN, against a scripted ResourceManager."""

import asyncio
import json
import re
import time
from types import SimpleNamespace

import pytest
from airflow.providers.common.compat.sdk import BaseHook

from airflow_provider_snowpipe.hooks.cluster import ResourceManager, YarnApplication
from airflow_provider_snowpipe.spark.driver.report import ChannelStart, start_text
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, RetriesExhaustedError
from airflow_provider_snowpipe.streaming.offsets import UnitOffset
from airflow_provider_snowpipe.triggers import application
from airflow_provider_snowpipe.triggers.application import (
    FollowedApplication,
    SnowpipeApplicationTrigger,
    cluster_of,
)
from tests.airflow_connections import PAT, statuses
from tests.airflow_version import AIRFLOW
from tests.checkpoints import token
from tests.scripted_service import error
from tests.scripted_yarn import scripted_yarn


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

    def make(**options):
        (application,) = yarn.applications
        arguments = {"application_id": application, "spark_conn_id": "on_yarn", "poll_interval": 0}
        return SnowpipeApplicationTrigger(**{**arguments, **options})

    return make


def event(trigger):
    async def first():
        (one,) = [found.payload async for found in trigger.run()]
        return one

    found = asyncio.run(asyncio.wait_for(first(), 240))
    return found


@pytest.mark.parametrize("end", [("FINISHED", "FAILED"), ("KILLED", "KILLED")])
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


def test_a_connection_without_the_address_ends_at_once(follow, set_connection, monkeypatch):
    def is_asked_again(*_):
        raise AssertionError("an error that no other poll can help is waited out")

    monkeypatch.setattr(FollowedApplication, "has_failed", is_asked_again)
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


START = start_text({"a": ChannelStart(100, 0, 0), "b": ChannelStart(7, 0, 0)})


class TestChannels:
    """What the channels of a load commit is in the log while its application runs."""

    @pytest.fixture
    def load(self, yarn, follow, service, service_connection, tmp_path, monkeypatch):
        monkeypatch.setattr("airflow_provider_snowpipe.triggers.application.LOG_SECONDS", 0.0)
        service.on(
            "bulk-channel-status",
            statuses(a={"rows_inserted": 150, "rows_error_count": 0}, b={"rows_inserted": 7}),
        )

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
    def test_rows_committed_since_the_start_are_logged_also_of_a_start_file_that_comes_late(
        self, yarn, load, capsys, tmp_path, late
    ):
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

    def test_the_line_is_that_of_the_driver_as_far_as_it_is_known(self, yarn, load, service, capsys):
        printed = []
        known = {"inserted_before": 100, "errors_before": 2, "rows_behind": 400}
        known |= {"began_ms": int(time.time() * 1_000)}
        latency = {"snowflake_avg_processing_latency_ms": 900}
        first, then = (
            statuses(a={"rows_inserted": rows, "rows_error_count": 5, **latency}) for rows in (150, 250)
        )

        def seen():
            printed.append("".join(capsys.readouterr()))
            if "rows=50 " in printed[-1]:
                service.on("bulk-channel-status", then)
            return "rows=150 " in printed[-1]

        service.on("bulk-channel-status", first)
        self.ends_once(yarn, seen)

        assert event(load(start_text({"a": ChannelStart(**known)})))["status"] == "ended"
        line = (
            r"channels=1 rows=150 rows_per_second=\d+ rejected=3 rows_behind<=247 seconds_left<=\d+ "
            r"latency_ms<=900"
        )
        assert re.search(line, "".join(printed))

    def test_the_first_line_about_files_has_their_bytes_and_comes_at_once(
        self, yarn, load, service, capsys, monkeypatch
    ):
        monkeypatch.setattr("airflow_provider_snowpipe.triggers.application.LOG_SECONDS", 1e6)
        printed = []
        known = {"inserted_before": 100, "errors_before": 0}
        known |= {"began_ms": int(time.time() * 1_000), "files_behind": [[1, 300, 0], [2, 100, 0]]}
        committed = {"last_committed_offset_token": token(UnitOffset(2, "2.log", 7)), "rows_inserted": 150}
        service.on("bulk-channel-status", statuses(a=committed))

        def seen():
            printed.append("".join(capsys.readouterr()))
            return "channels=1" in printed[-1]

        self.ends_once(yarn, seen)

        assert event(load(start_text({"a": ChannelStart(**known)})))["status"] == "ended"
        (line,) = re.findall("RUNNING.*channels=1.*", "".join(printed))
        assert re.search(r"channels=1 rows=50 rows_per_second=\d+ bytes_behind<=100 seconds_left<=\d+", line)

    def test_a_status_poll_that_fails_is_logged_once_and_the_application_decides(
        self, yarn, load, service, capsys
    ):
        service.on("bulk-channel-status", error(404, "ERR_PIPE_DOES_NOT_EXIST_OR_NOT_AUTHORIZED"))
        self.ends_once(yarn, lambda: len(service.requests("bulk-channel-status")) >= 4)

        assert event(load())["status"] == "ended"
        assert "".join(capsys.readouterr()).count("cannot be shown") == 1

    def test_triggers_of_one_pipe_share_a_poll(self, yarn, load, service, gather_seconds):
        gather_seconds(0.5)
        self.ends_once(yarn, lambda: len(service.requests("bulk-channel-status")) >= 1)

        async def all_of_them():
            await asyncio.gather(*(anext(load(poll_interval=0.05).run()) for _ in range(20)))

        asyncio.run(all_of_them())
        assert len(service.requests("token")) == 1
        assert len(service.requests("bulk-channel-status")) < 20


def test_errors_count_as_in_a_row_from_the_last_answer_on(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(application, "time", SimpleNamespace(monotonic=lambda: clock.now))
    log = SimpleNamespace(info=lambda *_: None, warning=lambda *_: None)
    followed, away = FollowedApplication(log, 600.0), RetriesExhaustedError("no answer")

    gave_up = []
    for clock.now in (0.0, 599.0, 1_199.0, 1_200.0, 1_799.0, 1_800.0):
        gave_up.append(followed.has_failed(away))
        if clock.now == 599.0:
            followed.has_seen(YarnApplication("application_1_1", "RUNNING"))

    assert gave_up == [False, False, False, False, True, True]


@pytest.mark.parametrize(
    ("line_seconds", "expected"),
    [(1.0, [0, 2, 10, 18, 26, 34, 42, 50, 530]), (None, [0, 2, 482])],
    ids=["worker", "triggerer"],
)
def test_more_rows_are_logged_once_a_second_at_most_and_no_more_rows_once_a_minute(
    monkeypatch, line_seconds, expected
):
    """Eight polls a second. The rows are known from the third one on, and grow for six seconds."""
    clock = SimpleNamespace(now=0)
    monkeypatch.setattr(application, "time", SimpleNamespace(monotonic=lambda: clock.now / 8))
    logged = []
    log = SimpleNamespace(info=lambda *_: logged.append(clock.now))
    followed = FollowedApplication(log, 600.0, line_seconds)
    running = YarnApplication("application_1_1", "RUNNING")
    for clock.now in range(600):
        if clock.now >= 2:
            followed.channels = SimpleNamespace(rows=min(clock.now, 48), line=lambda: "channels=1")
        followed.has_seen(running)

    assert logged == expected


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
    def test_an_answer_that_is_none_is_no_end(self, yarn, monkeypatch, body):
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

"""Outlet events: what a task's events report of tokens and rows, and what they must not."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_provider_snowpipe.assets.events import (
    LoadedChannel,
    describe_file_load,
    describe_outlets,
    event_extra,
)
from airflow_provider_snowpipe.assets.uri import snowpipe_asset
from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.names import PipeName
from airflow_provider_snowpipe.streaming.progress import ListedChannel
from tests.airflow_version import AIRFLOW
from tests.outlet_events import OutletEvents

TABLE = {"account": "ORG-ACCT", "database": "DB", "schema": "S", "table": "T"}
A = LoadedChannel("p_s_a", "a:3", True, 3, "a")
B = LoadedChannel("p_s_b", "b:9", False, 9, "b")


class Event:
    """An outlet event as Airflow before 3.3 has it."""

    def __init__(self):
        self.extra = {}


class PartitionedEvent(Event):
    """An outlet event as Airflow 3.3 has it."""

    def __init__(self):
        super().__init__()
        self.keys = []

    def add_partitions(self, keys):
        assert all(key.strip() and len(key) <= 250 for key in keys)
        self.keys += keys


class Hook:
    """As much of a hook as events need."""

    def __init__(self, pipe="T-STREAMING", account="org-acct"):
        self.pipe = PipeName("DB", "S", pipe)
        self.known_account = account

    def pipe_name(self):
        return self.pipe

    def account(self):
        if self.known_account is None:
            raise ConfigurationError("the extra field 'account' is missing")
        return self.known_account

    def list_channels(self):
        return [ListedChannel("p_s_a", "DB", "S", "T", pipe=self.pipe.pipe)]


def describe(
    *outlets,
    channels,
    hook=None,
    kind=PartitionedEvent,
):
    events = OutletEvents(kind)
    task = SimpleNamespace(outlets=list(outlets))
    describe_outlets(task, {"outlet_events": events}, cast(SnowpipeHook, hook or Hook()), channels)
    return [events.made.get(getattr(outlet, "uri", "")) for outlet in outlets]


def test_an_event_reports_tokens_and_rows_that_are_known_to_be_committed():
    other = LoadedChannel("p_s_c", "c:1", True, 1, "c")
    for channel, channels, expected in [
        (None, [A, other], {"committed": True, "tokens": {"p_s_a": "a:3", "p_s_c": "c:1"}, "rows": 4}),
        (None, [A, B], {"committed": False, "tokens": {"p_s_a": "a:3"}, "rows": 3}),
        ("p_s_a", [A, B], {"committed": True, "tokens": {"p_s_a": "a:3"}, "rows": 3}),
    ]:
        (event,) = describe(snowpipe_asset(**TABLE, channel=channel), channels=channels)
        assert event.extra == {"pipe": "DB.S.T-STREAMING", **expected}
    (event,) = describe(snowpipe_asset(**TABLE), channels=[A], hook=Hook("MY_PIPE"))
    assert event.extra["pipe"] == "DB.S.MY_PIPE"


def test_rows_and_keys_without_a_column_are_reported_only_where_they_are_known():
    loaded = [LoadedChannel(name, "1", True, 2, None, {"KIMD": 1}) for name in "ab"]
    assert event_extra("P", loaded)["unknown_columns"] == {"KIMD": 2}
    assert "unknown_columns" not in event_extra("P", [LoadedChannel("c", "1", True, 2)])
    assert "rows" not in event_extra("P", [LoadedChannel("c", "1", True)])


def test_assets_of_other_tables_are_left_alone(caplog):
    from airflow.providers.common.compat.sdk import Asset

    events = describe(snowpipe_asset(**{**TABLE, "table": "U"}), Asset(uri="s3://bucket/key"), channels=[A])

    assert events == [None, None]
    assert "is not of table snowpipe://org-acct/DB/S/T" in caplog.text


@pytest.mark.parametrize(
    "hook", [Hook("MY_PIPE"), Hook(account=None)], ids=["unknown-channel", "unknown-account"]
)
def test_a_load_does_not_fail_for_its_event(hook, caplog):
    events = describe(snowpipe_asset(**TABLE), channels=[B], hook=hook)

    assert events == [None]
    assert "carry nothing of tokens and rows" in caplog.text


def test_a_task_without_such_outlets_asks_nothing():
    describe_outlets(SimpleNamespace(outlets=[]), {}, cast(SnowpipeHook, None), [A])


@pytest.mark.skipif(AIRFLOW < (3, 0), reason="it reads the events of the task SDK")
class TestWithoutAnOutlet:
    """The asset of a load that no outlet reports."""

    @pytest.fixture
    def events(self):
        from airflow.sdk.execution_time.context import OutletEventAccessors

        return OutletEventAccessors()

    @pytest.fixture
    def task(self):
        return SimpleNamespace(outlets=["report"], dag_id="orders", task_id="load")

    def reported(self, events):
        return [
            (one.source_alias_name, one.dest_asset_key.uri, one.extra)
            for accessor in events._dict.values()
            for one in accessor.asset_alias_events
        ]

    def describe(self, task, events, *channels, hook=None):
        describe_outlets(task, {"outlet_events": events}, cast(SnowpipeHook, hook or Hook()), list(channels))

    def test_its_table_gets_an_event_when_all_is_committed(self, task, events):
        of_dag = task.outlets
        self.describe(task, events, A, LoadedChannel("p_s_e", None, True, 0, "e"))

        ((alias, uri, extra),) = self.reported(events)
        assert (alias, uri) == ("snowpipe:orders.load", "snowpipe://org-acct/DB/S/T")
        assert (extra["committed"], extra["tokens"], extra["rows"]) == (True, {"p_s_a": "a:3"}, 3)
        assert [getattr(one, "name", one) for one in task.outlets] == ["report", alias]
        assert of_dag == ["report"]

    def test_there_is_none_for_what_is_no_committed_load_or_beside_an_outlet(self, task, events, monkeypatch):
        for channels in ([A, B], [LoadedChannel("c", "1", True)], [LoadedChannel("c", "1", True, 0)], []):
            self.describe(task, events, *channels)
            assert (self.reported(events), task.outlets) == ([], ["report"])
        with monkeypatch.context() as patch:
            patch.setenv("AIRFLOW__SNOWPIPE__DESCRIBE_ASSETS", "False")
            self.describe(task, events, A)
        assert (self.reported(events), task.outlets) == ([], ["report"])
        task.outlets = [snowpipe_asset(**TABLE)]
        self.describe(task, events, A)
        assert (self.reported(events), len(task.outlets)) == ([], 1)

    def of_mapped(self, task, events, map_index, answers, monkeypatch):
        """Describe the load of a mapped task; what Airflow was asked, and for how long the task waited."""
        from airflow.sdk.execution_time import comms, task_runner

        asked, clock = [], [100.0]
        there = comms.AssetEventsResult(
            asset_events=[
                {
                    "id": 1,
                    "timestamp": "2026-01-01T00:00:00Z",
                    "asset": {"name": "a", "uri": "a", "group": "asset"},
                    "created_dagruns": [],
                }
            ]
        )
        responses = {True: there, False: comms.AssetEventsResult(asset_events=[])}

        def send(message):
            asked.append(message)
            answer = answers[min(len(asked), len(answers)) - 1]
            if isinstance(answer, Exception):
                raise answer
            return responses[answer]

        def sleep(seconds):
            clock[0] += seconds

        monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", SimpleNamespace(send=send), raising=False)
        monkeypatch.setattr(
            "airflow_provider_snowpipe.assets.events.time",
            SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep),
        )
        context = {"outlet_events": events, "ti": SimpleNamespace(map_index=map_index)}
        describe_outlets(task, context, cast(SnowpipeHook, Hook()), [A])
        assert len(self.reported(events)) == 1
        return asked, round(clock[0] - 100.0, 3)

    @pytest.mark.parametrize("map_index", [-1, 0])
    def test_a_single_task_and_the_first_mapped_one_ask_nothing(self, task, events, map_index, monkeypatch):
        assert self.of_mapped(task, events, map_index, [False], monkeypatch) == ([], 0)

    @pytest.mark.skipif(AIRFLOW < (3, 2), reason="Airflow 3.2 is the first to report one event alone")
    def test_a_mapped_task_waits_until_the_asset_of_a_new_table_is_made(self, task, events, monkeypatch):
        asked, waited = self.of_mapped(task, events, 3, [False, False, True], monkeypatch)

        assert {(one.name, one.uri, one.limit) for one in asked} == {
            ("snowpipe://org-acct/DB/S/T", "snowpipe://org-acct/DB/S/T", 1)
        }
        assert (len(asked), waited) == (3, 0.4)

    @pytest.mark.skipif(AIRFLOW < (3, 2), reason="Airflow 3.2 is the first to report one event alone")
    @pytest.mark.parametrize(("map_index", "seconds"), [(1, 1.0), (4, 4.0), (1000, 30.0)])
    def test_mapped_tasks_that_end_together_make_the_asset_one_after_the_other(
        self, task, events, map_index, seconds, monkeypatch
    ):
        assert self.of_mapped(task, events, map_index, [False], monkeypatch)[1] == pytest.approx(
            seconds, abs=0.21
        )

    @pytest.mark.skipif(AIRFLOW < (3, 2), reason="Airflow 3.2 is the first to report one event alone")
    def test_a_mapped_task_does_not_wait_for_an_airflow_that_does_not_answer(
        self, task, events, monkeypatch, caplog
    ):
        from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
        from airflow.sdk.execution_time.comms import ErrorResponse

        refusal = AirflowRuntimeError(ErrorResponse(error=ErrorType.GENERIC_ERROR, detail={"reason": "no"}))
        asked, waited = self.of_mapped(task, events, 3, [refusal], monkeypatch)

        assert (len(asked), waited) == (1, 0)
        assert (
            "whether snowpipe://org-acct/DB/S/T has events is not known: AirflowRuntimeError" in caplog.text
        )

    @pytest.mark.parametrize(("rows", "number"), [(7, 1), (0, 0)])
    def test_a_load_of_files_has_one_for_its_rows(self, task, events, rows, number):
        hook = SimpleNamespace(account=lambda: "org-acct", database_and_schema=lambda: ("DB", "S"))
        describe_file_load(task, {"outlet_events": events}, cast(Any, hook), "T", rows, "COPY")

        expected = [("snowpipe:orders.load", "snowpipe://org-acct/DB/S/T")] * number
        assert [one[:2] for one in self.reported(events)] == expected
        assert [one[2]["rows"] for one in self.reported(events)] == [rows] * number

    def test_no_load_fails_for_it(self, task, events, caplog):
        task.dag_id = "o" * 1_500
        self.describe(task, events, A)

        assert "no asset event" in caplog.text
        assert (self.reported(events), task.outlets) == ([], ["report"])


class TestPartitions:
    ASSET = snowpipe_asset(**TABLE, partitioned=True)

    def test_each_one_with_committed_rows_is_an_event(self):
        empty = LoadedChannel("p_s_e", None, True, 0, "e")

        (event,) = describe(self.ASSET, channels=[A, B, empty, LoadedChannel("solo", "1:1", True, 1)])

        assert event.keys == ["a", "solo"]

    def test_are_asked_for_by_the_asset(self):
        (event,) = describe(snowpipe_asset(**TABLE), channels=[A])

        assert event.keys == []

    def test_before_airflow_3_3_are_one_event(self):
        (event,) = describe(self.ASSET, channels=[A], kind=Event)

        assert event.extra["rows"] == 3

    def test_whose_names_airflow_cannot_store_are_left_out(self, caplog):
        long = LoadedChannel("c", "1", True, 1, "x" * 251)

        (event,) = describe(self.ASSET, channels=[A, long])

        assert event.keys == ["a"]
        assert "partitions without an event: 1" in caplog.text

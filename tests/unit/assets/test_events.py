"""Outlet events: what a task's events report of tokens and rows, and what they must not."""

from types import SimpleNamespace
from typing import cast

import pytest

from airflow_provider_snowpipe.assets.events import (
    LoadedChannel,
    describe_outlets,
    event_extra,
)
from airflow_provider_snowpipe.assets.uri import snowpipe_asset
from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.names import PipeName
from airflow_provider_snowpipe.streaming.progress import ListedChannel
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
        assert "1 partition(s) have no event" in caplog.text

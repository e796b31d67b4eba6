"""``SnowpipeLoadOperator`` against a real local service: that COPY, pipe and stream fit together.

What becomes of a load that dies at any call, and what is refused, is in
``tests/unit/operators/test_file_boundary.py``.
"""

from __future__ import annotations

from typing import Any

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred

from airflow_provider_snowpipe.assets.events import LoadedChannel
from airflow_provider_snowpipe.assets.uri import snowpipe_asset
from airflow_provider_snowpipe.lineage import dataset_name
from airflow_provider_snowpipe.streaming.checkpoint import held_apart
from tests.airflow_connections import set_connection
from tests.checkpoints import shown
from tests.file_loads import CHANNEL, Load, load
from tests.integration.trigger_events import event_of
from tests.local_connection import ids
from tests.outlet_events import OutletEvents
from tests.staged_files import put, running_copy

__all__ = ["load", "set_connection"]

WAYS = pytest.mark.parametrize("way", ["copy", "pipe"])


@pytest.fixture
def began(load: Load) -> Load:
    load.make_pipe("/in")
    load.write("1.ndjson", 3)
    load.stream("1.ndjson")
    load.write("2.ndjson")
    load.write("3.ndjson", 4)
    return load


def given(load: Load, way: str) -> dict[str, Any]:
    if way == "pipe":
        return {"path": "pipe", "file_pipe": load.pipe, "poll_interval": 0.05}
    return {"path": "copy", "stage": f"@{load.stage}/in"}


class Event:
    def __init__(self) -> None:
        self.extra: dict[str, Any] = {}
        self.keys: list[str] = []

    def add_partitions(self, keys: list[str]) -> None:
        self.keys += keys


def asset(load: Load, **names: Any) -> Any:
    account = load.service.account
    return snowpipe_asset(account=account, database="LOCAL", schema="PUBLIC", table=load.table, **names)


@WAYS
def test_files_after_the_last_streamed_one_are_loaded_with_an_asset_event(began: Load, way: str) -> None:
    outlets = [asset(began, partitioned=True), asset(began, channel=CHANNEL)]
    events = OutletEvents(Event)
    before, operator = began.token, began.operator(outlets=outlets, **given(began, way))
    done = operator.execute({**began.context(), "outlet_events": events})

    began.assert_every_row_is_there_once()
    token = began.token
    assert shown(token) == "3.ndjson:4"
    assert (done["path"], done["rows_loaded"], done["rejected"]) == (way, 6, 0)
    loaded = {"partition": "a", "from": before, "to": token, "files": 2, "rows": 6, "rejected": 0}
    assert done["channels"] == {CHANNEL: loaded}
    folder = "in/p_s_a/" if way == "copy" else "p_s_a/"
    assert [path.startswith(folder) for path in done["files"]] == [True, True]
    values = began.ti.xcoms
    assert (values["plan"]["path"], values["outcome"]["actual"]["rows"]) == (way, 6)
    assert values["targets"][CHANNEL]["token"] == token
    pipe = f"LOCAL.PUBLIC.{began.table}-STREAMING"
    extra = {"pipe": pipe, "committed": True, "tokens": {CHANNEL: token}, "rows": 6}
    assert [events[one].extra for one in outlets] == [extra, extra]
    assert events[outlets[0]].keys == ["a"]
    assert operator.task_lineage is not None
    assert operator.task_lineage.channels == [LoadedChannel(CHANNEL, token, True, 6, "a", found=before)]
    assert dataset_name(operator.task_lineage.hook) == f"LOCAL.PUBLIC.{began.table}"

    assert began.run(**given(began, way))["rows_loaded"] == 0
    began.assert_every_row_is_there_once()


def test_a_deferred_load_comes_back_for_its_result_and_settles_the_token(load: Load) -> None:
    load.make_pipe("/in")
    load.write("1.ndjson")
    arguments = {**given(load, "copy"), "deferrable": True}
    with running_copy(), pytest.raises(TaskDeferred) as deferred:
        load.operator(**arguments).execute(load.context())
    assert held_apart(load.token)[1] is not None
    done = load.operator(**arguments).execute_complete(
        load.context(), event=event_of(deferred.value.trigger), **(deferred.value.kwargs or {})
    )

    load.assert_every_row_is_there_once()
    assert (done["path"], done["rows_loaded"], shown(load.token)) == ("copy", 2, "1.ndjson:2")


def test_files_of_a_stage_are_given_to_its_pipe_below_its_location(load: Load) -> None:
    load.make_pipe("/in")
    put(load.service, load.folder, load.stage, {"in/day/a.json": '{"ID": 7}', "in/b.json": '{"ID": 8}'})
    whole = asset(load)
    events = OutletEvents(Event)
    arguments = {**given(load, "pipe"), "outlets": [whole]}
    with pytest.raises(TaskDeferred) as deferred:
        load.operator(source=f"@{load.stage}/in/day", deferrable=True, **arguments).execute(load.context())
    done = load.operator(source=f"@{load.stage}/in/day", **arguments).execute_complete(
        {**load.context(), "outlet_events": events},
        event=event_of(deferred.value.trigger),
        **(deferred.value.kwargs or {}),
    )

    assert (done["path"], list(done["files"]), done["rows_loaded"]) == ("pipe", ["day/a.json"], 1)
    assert done["pipe"] == f"LOCAL.PUBLIC.{load.pipe}"
    assert events[whole].extra == {"committed": True, "rows": 1, "loader": done["pipe"]}
    again = load.run(source=f"@{load.stage}/in", **given(load, "pipe"))
    assert (list(again["files"]), list(again["loaded_before"])) == (["b.json"], ["day/a.json"])
    assert ids(load.service, load.table) == [7, 8]

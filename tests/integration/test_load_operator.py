"""``SnowpipeLoadOperator`` against a real local service: that COPY, pipe and stream fit together.

What becomes of a load that dies at any call, and what is refused, is in
``tests/unit/operators/test_file_boundary.py``.
"""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_snowpipe.assets.events import LoadedChannel
from airflow_provider_snowpipe.assets.uri import snowpipe_asset
from airflow_provider_snowpipe.lineage import dataset_name
from tests.airflow_connections import set_connection
from tests.checkpoints import shown
from tests.file_loads import CHANNEL, Load, load
from tests.outlet_events import OutletEvents

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

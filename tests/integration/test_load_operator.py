"""``SnowpipeLoadOperator`` against a real local service: that COPY, pipe and stream fit together.

What becomes of a load that dies at any call, and what is refused, is in
``tests/unit/operators/test_begun_units.py`` and ``test_file_units.py``.
"""

from typing import Any

import pytest

from airflow_provider_snowpipe.assets.uri import snowpipe_asset
from airflow_provider_snowpipe.lineage import dataset_name
from tests.airflow_connections import set_connection
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
    assert began.token == before
    assert (done["path"], done["rows_loaded"], done["rejected"]) == (way, 6, 0)
    assert done["partitions"] == {"a": 6}
    assert [path.startswith("in/") for path in done["files"]] == [way == "copy"] * 2
    values = began.ti.xcoms
    assert (values["plan"]["path"], values["outcome"]["actual"]["rows"]) == (way, 6)
    assert values["targets"] == {}
    loader = "COPY" if way == "copy" else f"LOCAL.PUBLIC.{began.pipe}"
    assert [events[one].extra for one in outlets] == [{"committed": True, "rows": 6, "loader": loader}, {}]
    assert events[outlets[0]].keys == ["a"]
    assert (operator.task_lineage.rows, operator.task_lineage.channels) == (6, ())
    assert dataset_name(operator.task_lineage.hook) == f"LOCAL.PUBLIC.{began.table}"

    assert began.run(**given(began, way))["rows_loaded"] == 0
    began.assert_every_row_is_there_once()


def test_ways_take_turns_over_one_folder(began: Load) -> None:
    for number, way in enumerate(("copy", "stream", "pipe", "copy", "stream"), 4):
        began.write(f"{number}.ndjson")
        path = {"path": "stream"} if way == "stream" else given(began, way)
        assert began.run(**path)["path"] == way
        began.assert_every_row_is_there_once()

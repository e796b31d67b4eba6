"""``SnowpipeLoadOperator`` against a real local service: that COPY, pipe and stream fit together.

What becomes of a load that dies at any call, and what is refused, is in
``tests/unit/operators/test_begun_units.py`` and ``test_file_units.py``.
"""

import json
import os
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from airflow_provider_snowpipe.assets.uri import snowpipe_asset
from airflow_provider_snowpipe.lineage import dataset_name
from airflow_provider_snowpipe.sources import FileSource
from tests.airflow_connections import set_connection
from tests.file_loads import CHANNEL, Load, load
from tests.outlet_events import OutletEvents
from tests.source_log import described

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
    units = described(FileSource(path=str(began.folder)), began.target)
    assert [one["rows"] for one in units] == [None, 2, 4, 2, 2, 2, 2, 2]


COLUMNS = {
    "SRC_FILE": "filename", "SRC_ROW": "file_row_number", "SRC_TIME": "file_last_modified",
    "SRC_UNIT": "unit", "LOADED_BY": "run_id", "LOADED_AT": "start_scan_time",
}  # fmt: skip


@pytest.mark.parametrize("form", ["ndjson", "csv", "parquet"])
def test_columns_about_the_file_are_the_same_on_each_path(load: Load, form: str) -> None:
    rows = pa.table({"ID": [1, 2, 3], "NAME": ["é", None, 'a "b"']})
    load.service.sql(
        f"ALTER TABLE {load.table} ADD COLUMN SRC_FILE VARCHAR, SRC_ROW INTEGER, SRC_TIME TIMESTAMP_NTZ, "
        "SRC_UNIT INTEGER, LOADED_BY VARCHAR, LOADED_AT TIMESTAMP_NTZ, DAY VARCHAR"
    )
    load.make_pipe("/in")
    found = {}
    for way in ("stream", "copy", "pipe"):
        file = load.folder / way / f"DAY={way}" / f"1.{form}"
        file.parent.mkdir(parents=True)
        if form == "ndjson":
            file.write_text("".join(f"{json.dumps(one)}\n\n" for one in rows.to_pylist()))
        elif form == "csv":
            csv.write_csv(rows, file)
        else:
            parquet.write_table(rows, file)
        os.utime(file, (1_700_000_000, 1_700_000_000))
        source = {
            "path": str(load.folder / way), "format": form, "metadata": COLUMNS,
            "partitions": {"type": "key", "key": "DAY", "as_columns": True},
        }  # fmt: skip
        path = {"path": "stream"} if way == "stream" else given(load, way)
        assert load.run(**path, source=source)["path"] == way
        found[way] = load.service.sql(
            f"SELECT ID, NAME, REPLACE(DAY, '{way}') AS DAY, REPLACE(SRC_FILE, '{way}') AS SRC_FILE, "
            "SRC_ROW, SRC_TIME::VARCHAR AS SRC_TIME, SRC_UNIT, LENGTH(LOADED_BY) > 2 AND LOADED_AT > SRC_TIME"
            f" AS IS_KNOWN FROM {load.table} ORDER BY ID"
        )
        load.service.sql(f"TRUNCATE TABLE {load.table}")
    assert [one["IS_KNOWN"] for one in found["stream"]] == [True] * 3
    assert found["copy"] == found["pipe"] == found["stream"]

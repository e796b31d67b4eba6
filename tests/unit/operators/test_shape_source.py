"""Shapes of stages, of past loads, of objects and of what the author knows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.operators.load_planning import ShapeSource
from airflow_provider_snowpipe.routing.probes import DataShape
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from tests.fake_account import FakeAccount
from tests.unit.operators.account_in_task import install


@pytest.fixture(autouse=True)
def account(monkeypatch: pytest.MonkeyPatch) -> FakeAccount:
    """A stage with two files in a folder, which are loaded, and one beside it."""
    made = FakeAccount()
    install(made, monkeypatch)
    for path, rows in {"day/a.csv": ["1,a"] * 10, "day/b.csv": ["2,b"] * 30}.items():
        made.put(path, *rows)
    made._copy("COPY INTO T FROM @S ON_ERROR = CONTINUE")
    made.put("other.csv", "3,c")
    return made


def shape_of(source: Any, **known: Any) -> DataShape:
    return ShapeSource(source, SnowpipeBulkHook("account")).shape(known)


def test_a_path_in_a_stage_is_listed_with_sizes_and_ages() -> None:
    shape = shape_of("@S/day/", freshness=300)

    assert shape.files is not None
    assert (shape.files.count, shape.files.bytes, shape.files.largest) == (2, 160, 120)
    assert (shape.files.format, shape.files.staged, shape.freshness) == ("CSV", True, 300)
    assert shape.files.newest is not None


def test_past_loads_give_the_files_that_keep_coming(account: FakeAccount) -> None:
    for load in account.history:
        load["file_size"] = 80
    shape = shape_of("table:T", bounded=False)

    assert shape.files is not None
    assert (shape.bounded, shape.files.count, shape.files.mean) == (False, 2, 80)
    assert shape.files.interval is not None
    with pytest.raises(ConfigurationError, match="bounded"):
        shape_of("table:T", bounded=True)


def test_objects_of_a_store_are_listed_by_their_url(tmp_path: Any) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.parquet").write_bytes(b"x" * 50)
    shape = shape_of(f"file://{tmp_path}")

    assert shape.files is not None
    assert (shape.files.count, shape.files.bytes, shape.files.format) == (1, 50, "PARQUET")
    assert shape.files.oldest is not None


def test_a_shape_is_itself_with_what_the_author_knows() -> None:
    assert shape_of({"rows": 5}, backfill=True) == DataShape(rows=5, backfill=True)
    assert shape_of(json.dumps({"rows": 5})) == DataShape(rows=5)
    assert shape_of(DataShape(rows=5), partitions=2) == DataShape(rows=5, partitions=2)
    for source in (None, 7, ""):
        with pytest.raises(ConfigurationError, match="stage"):
            shape_of(source)

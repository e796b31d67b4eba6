"""Shapes of stages and of past loads, asked of a real local service."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.operators.load_planning import ShapeSource
from airflow_provider_snowpipe.routing.probes import DataShape
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SqlError
from tests.staged_files import put


@pytest.fixture(scope="module", autouse=True)
def _trusted(local_service):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REQUESTS_CA_BUNDLE", str(local_service.ca_file))
        yield


@pytest.fixture(scope="module")
def stage(local_service, tmp_path_factory):
    """A stage with two files in a folder, which are loaded, and one beside it."""
    local_service.sql("CREATE TABLE SHAPED (ID INTEGER, NAME VARCHAR)")
    local_service.sql("CREATE STAGE SHAPES FILE_FORMAT = (TYPE = CSV)")
    files = {"day/a.csv": "1,a\n" * 10, "day/b.csv": "2,b\n" * 30, "other.csv": "3,c\n"}
    put(local_service, tmp_path_factory.mktemp("files"), "SHAPES", files)
    local_service.sql("COPY INTO SHAPED FROM @SHAPES/day/a.csv")
    local_service.sql("COPY INTO SHAPED FROM @SHAPES/day/b.csv")
    return "@SHAPES"


def shape_of(source: Any, conn_id: str, **known: Any) -> DataShape:
    return ShapeSource(source, SnowpipeBulkHook(conn_id)).shape(known)


def test_a_path_in_a_stage_is_listed_with_sizes_and_ages(stage, conn_id):
    shape = shape_of(f"{stage}/day/", conn_id, freshness=300)

    assert shape.files is not None
    assert (shape.files.count, shape.files.bytes, shape.files.largest) == (2, 160, 120)
    assert (shape.files.format, shape.files.staged, shape.freshness) == ("CSV", True, 300)
    assert shape.files.newest is not None
    assert 0 <= shape.files.newest < 600


@pytest.mark.usefixtures("stage")
def test_past_loads_give_the_files_that_keep_coming(conn_id):
    shape = shape_of("table:SHAPED", conn_id, bounded=False)

    assert shape.files is not None
    assert (shape.bounded, shape.files.count, shape.files.mean) == (False, 2, 80)
    assert shape.files.interval is not None
    with pytest.raises(ConfigurationError, match="bounded=True, and past loads show files that keep coming"):
        shape_of("table:SHAPED", conn_id, bounded=True)


@pytest.mark.usefixtures("stage")
def test_objects_of_a_store_are_listed_by_their_url(tmp_path, conn_id):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.parquet").write_bytes(b"x" * 50)
    shape = shape_of(f"file://{tmp_path}", conn_id)

    assert shape.files is not None
    assert (shape.files.count, shape.files.bytes, shape.files.format) == (1, 50, "PARQUET")
    assert shape.files.oldest is not None


def test_a_shape_is_itself_with_what_the_author_knows(conn_id):
    assert shape_of({"rows": 5}, conn_id, backfill=True) == DataShape(rows=5, backfill=True)
    assert shape_of(json.dumps({"rows": 5}), conn_id) == DataShape(rows=5)
    assert shape_of(DataShape(rows=5), conn_id, partitions=2) == DataShape(rows=5, partitions=2)


def test_what_has_no_shape_is_refused(conn_id):
    for source in (None, 7, ""):
        with pytest.raises(ConfigurationError, match="give a stage"):
            shape_of(source, conn_id)
    with pytest.raises(SqlError, match="MISSING"):
        shape_of("@MISSING", conn_id)

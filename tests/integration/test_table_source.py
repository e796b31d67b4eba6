"""The table source: real Spark, a real local service, one session for all tests."""

import datetime as dt

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError

from airflow_provider_snowpipe.spark.sources.registry import source_spec
from airflow_provider_snowpipe.spark.sources.tables.reader import open_rows
from airflow_provider_snowpipe.spark.submit.source import shape_of_frame
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, EncodingError, SourcePositionError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from tests.table_loads import loads

__all__ = ["loads"]

pytestmark = pytest.mark.spark


def test_partitions_by_value_load_once_in_the_order_of_the_key_then_nothing_then_only_new_rows(loads):
    ids = [(number * 7919) % 600 for number in range(600)]
    loads.write("b.parquet", ids[::2])
    loads.write("a.parquet", ids[1::2])
    spec = loads.spec(partition_by="FILE")

    first = loads.load(spec, limits=BatchLimits(rows=70, requests_per_second=100.0))

    for group in range(3):
        in_order = [one for one in loads.ids_as_stored if one % 3 == group]
        assert in_order == list(range(group, 600, 3))
    assert [(c.partition, c.from_token, c.to_token, c.rows, c.committed) for c in first] == [
        ("g0", None, "597", 200, True),
        ("g1", None, "598", 200, True),
        ("g2", None, "599", 200, True),
    ]
    assert [(c.rows, c.target_token) for c in loads.load(spec)] == [(0, "597"), (0, "598"), (0, "599")]

    loads.write("c.parquet", [600, 603, 604])
    third = loads.load(spec)

    assert [(c.to_token, c.rows) for c in third] == [("603", 2), ("604", 1), ("599", 0)]
    assert loads.ids == [*range(601), 603, 604]


def test_the_layout_of_a_query_is_not_part_of_its_identity_but_its_texts_and_comments_are():
    def identity(query):
        return source_spec({"kind": "table", "offset_column": "ID", "query": query, "name": "q"}).identity

    for before, after in (
        ("SELECT * FROM t -- WHERE FALSE\nWHERE ID > 1", "SELECT * FROM t -- WHERE FALSE WHERE ID > 1"),
        ("SELECT * FROM t WHERE NOTE <> 'a  '", "SELECT * FROM t WHERE NOTE <> 'a '"),
    ):
        assert identity(before) == identity(f"\n  {before}\n") != identity(after)


def test_columns_of_later_files_are_columns_and_headers_are_not_passed_by_position(loads):
    pq.write_table(pa.table({"ID": [0, 1], "FILE": ["a", "b"]}), loads.rows / "1.parquet")
    loads.write("2.parquet", [2])

    loads.load()

    rows = loads.service.sql(f"SELECT ID, NOTE FROM LOCAL.PUBLIC.{loads.table} ORDER BY ID")
    assert [row["NOTE"] for row in rows] == [None, None, "2.parquet"]
    folder = loads.folder / "csv"
    folder.mkdir()
    (folder / "1.csv").write_text("ID,FILE,NOTE\n10,a,b\n")
    (folder / "2.csv").write_text("ID,NOTE,FILE\n11,b,a\n")
    rows = open_rows(
        loads.spark, "csv", table=None, path=str(folder), format="csv", options={"header": "true"}
    )
    with pytest.raises(Py4JJavaError, match="header"):
        rows.collect()


def test_ranges_of_the_key_are_channels_and_other_ranges_are_refused(loads):
    loads.write("a.parquet", range(100))
    first = loads.load(loads.spec(ranges=[30, 60]))
    assert loads.ids == list(range(100))
    assert [(c.partition, c.rows) for c in first] == [("0", 30), ("1", 30), ("2", 40)]
    with pytest.raises(SourcePositionError, match="range 0"):
        loads.load(loads.spec(ranges=[30]))
    loads.write("b.parquet", range(100, 110))
    assert [c.rows for c in loads.load(loads.spec(ranges=[30, 60]))] == [0, 0, 10]
    assert loads.ids == list(range(110))


def test_timestamp_key_resumes_within_a_microsecond(loads):
    begin = dt.datetime(2024, 2, 29, 23, 59, 59, 999998, tzinfo=dt.UTC)
    at = [begin + dt.timedelta(microseconds=number) for number in range(4)]
    loads.service.sql(f"ALTER TABLE LOCAL.PUBLIC.{loads.table} ADD COLUMN AT TIMESTAMP_TZ(9)")
    spec = loads.spec(offset_column="AT", offset_type="text")
    loads.write("a.parquet", range(3), AT=pa.array(at[:3], pa.timestamp("us", "UTC")))
    (first,) = loads.load(spec)
    loads.write("b.parquet", [3], AT=pa.array(at[3:], pa.timestamp("us", "UTC")))
    (second,) = loads.load(spec)
    assert (first.to_token, first.rows) == ("2024-03-01T00:00:00.000000Z", 3)
    assert (second.to_token, second.rows) == ("2024-03-01T00:00:00.000001Z", 1)
    assert loads.ids == [0, 1, 2, 3]


def test_dates_whose_texts_sort_otherwise_are_refused_and_those_beside_them_are_not(loads):
    """As a text, the year 10000 lies before all others: behind any of them it would never be loaded."""
    loads.write("a.parquet", range(4))
    loads.service.sql(f"ALTER TABLE LOCAL.PUBLIC.{loads.table} ADD COLUMN K VARCHAR")
    kept = {"0": "0000-01-01", "1": "0999-12-31", "2": "9999-12-31", "3": "1582-10-04"}

    def spec(days):
        cases = " ".join(f"WHEN {number} THEN DATE '{day}'" for number, day in days.items())
        query = f"SELECT ID, FILE, NOTE, CASE ID {cases} END AS K FROM parquet.`{loads.rows}`"
        return loads.spec(query=query, name="days", offset_column="K", offset_type="text")

    for wrong in ("+10000-01-01", "-0001-12-31"):
        with pytest.raises(ConfigurationError, match=r"NULL.*'K'"):
            loads.load(spec({**kept, "3": wrong}))
    assert loads.ids == []
    (channel,) = loads.load(spec(kept))
    assert (channel.rows, channel.to_token[:10]) == (4, "9999-12-31")


def test_row_that_came_late_is_refused_and_a_committed_one_that_is_gone_is_refused_or_skipped(loads):
    loads.write("a.parquet", range(5))
    loads.load()
    loads.write("b.parquet", [4, 5])
    with pytest.raises(SourcePositionError, match="2 rows"):
        loads.load()
    (loads.rows / "a.parquet").unlink()
    loads.write("b.parquet", [7, 8])
    with pytest.raises(SourcePositionError, match="no row"):
        loads.load()
    assert loads.ids == list(range(5))
    loads.load(on_data_loss="skip")
    assert loads.ids == [*range(5), 7, 8]


def _selected(loads, what, **more):
    """The changes to a spec that read a query instead."""
    return {"query": f"SELECT {what} FROM parquet.`{loads.rows}`", "name": "q", **more}


def test_source_that_cannot_be_loaded_in_order_is_refused_before_a_channel_is_opened(loads):
    loads.write("a.parquet", range(5), V=pa.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    loads.write("b.parquet", [5], V=pa.array([1.0]), N=pa.array([None], pa.int64()))
    for values, kind, text in (
        ({"offset_column": "NOPE"}, ConfigurationError, "NOPE"),
        ({"offset_column": "V"}, ConfigurationError, "double"),
        ({"offset_column": "NOTE"}, ConfigurationError, "text"),
        ({"table": "no_such_table"}, SourcePositionError, "no_such_table"),
        ({"path": str(loads.rows / "nope")}, SourcePositionError, "nope"),
        ({"path": "x", "format": "nope"}, ConfigurationError, "package"),
        (_selected(loads, "nullif(ID, 3) AS ID"), ConfigurationError, "NULL"),
        (_selected(loads, "ID, nullif(FILE, 'g1') G", partition_by="G"), ConfigurationError, "'G'"),
        (_selected(loads, "ID - 3 AS ID"), ConfigurationError, "-3"),
        (_selected(loads, "monotonically_increasing_id() AS ID"), ConfigurationError, "monotonically"),
        (_selected(loads, "ID, interval '1' day AS I"), EncodingError, "interval day"),
    ):
        with pytest.raises(kind, match=text):
            loads.load(loads.spec(**values))

    assert loads.ids == []
    assert loads.service.sql(f"SHOW CHANNELS LIKE 'test_{loads.table}%'") == []


def test_router_gets_size_rows_and_partitions_from_the_plan_of_a_frame(loads):
    loads.write("a.parquet", range(100))
    loads.write("b.parquet", range(100, 200))
    frame = loads.spark.read.parquet(str(loads.rows))
    stored = sum(file.stat().st_size for file in loads.rows.iterdir())
    shape = shape_of_frame(frame, freshness=60)
    assert (shape.bytes, shape.rows, shape.freshness) == (stored, None, 60)
    assert shape.partitions == frame.rdd.getNumPartitions()
    counted = shape_of_frame(loads.spark.range(0, 1000, 1, 4))
    assert (counted.rows, counted.bytes, counted.partitions) == (1000, 8000, 4)
    assert shape_of_frame(frame.groupBy("FILE").count()).partitions == 2, "as the session has them"
    with pytest.raises(ConfigurationError, match="bytes"):
        shape_of_frame(object())

"""Parquet through the job's driver, real Spark and a real service; unit tests read every format."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_snowpipe.spark.sources.registry import source_spec
from airflow_provider_snowpipe.streaming.channel import Channel
from airflow_provider_snowpipe.streaming.checkpoint import ChannelSource
from airflow_provider_snowpipe.streaming.errors import SourcePositionError
from airflow_provider_snowpipe.streaming.names import PipeName
from airflow_provider_snowpipe.streaming.offsets import UnitOffset
from tests.file_formats import numbered_rows, write_file
from tests.source_log import taken, unit_offset
from tests.table_loads import TableLoads, loads

__all__ = ["loads"]

pytestmark = pytest.mark.spark

_MICROSECONDS = "'YYYY-MM-DD HH24:MI:SS.FF6'"


def _load(loads: TableLoads, **source):
    """Run the job once and return what each partition loaded."""
    reports = loads.load(source_spec({"path": str(loads.rows), "format": "parquet", **source}))
    return {one.partition: (one.to_token, one.rows) for one in reports}


def _commit(loads, partition, position, source):
    """One row, committed at a position of the test's choice."""
    target = PipeName.default_for_table("LOCAL", "PUBLIC", loads.table).address(loads.service.url)
    files = taken(source, target)[partition]
    position = unit_offset(files, position)
    with loads.service.client(loads.table) as client:
        client.pipe_info()
        own = ChannelSource(UnitOffset, files.binding)
        with Channel.open(client, f"test_{loads.table}_{partition}", own) as channel:
            channel.append(b'{"ID": -1}\n', position, position, rows=1)
            channel.wait_for_commit(position, timeout=30)


def test_parquet_loads_once_resumes_in_the_middle_and_then_loads_nothing(loads):
    for group in range(2):
        for file in range(2):
            begin = group * 400 + file * 200
            path = loads.rows / "ab"[group] / f"{file}.parquet"
            write_file(path, numbered_rows(path.name, range(begin, begin + 200)))
    source = {"pattern": "*.parquet"}
    spec = source_spec({"path": str(loads.rows), "format": "parquet", **source})
    _commit(loads, "b", "0.parquet:123", spec)

    assert _load(loads, **source) == {"a": ("1.parquet:200", 400), "b": ("1.parquet:200", 277)}
    assert loads.ids == sorted({-1, *range(800)} - set(range(400, 523)))
    rows = loads.service.sql(f"SELECT ID, FILE, NOTE FROM {loads.table} WHERE ID BETWEEN 200 AND 399")
    assert [{**row, "ID": int(row["ID"])} for row in rows] == numbered_rows("1.parquet", range(200, 400))
    assert _load(loads, **source) == {"a": ("1.parquet:200", 0), "b": ("1.parquet:200", 0)}

    write_file(loads.rows / "b" / "1.parquet", numbered_rows("x", range(50)))
    with pytest.raises(SourcePositionError, match="overwritten"):
        _load(loads, **source)


def test_parquet_values_arrive_whole_and_partition_values_with_them(loads):
    loads.service.sql(
        f"CREATE OR REPLACE TABLE {loads.table} (DEC NUMBER(38, 12), TS TIMESTAMP_NTZ, TZ TIMESTAMP_TZ, "
        "DAY DATE, T TIME, BIN BINARY, NESTED VARIANT, U NUMBER(20, 0), AT VARCHAR, REGION VARCHAR, "
        "NS TIMESTAMP_NTZ(9))"
    )
    instant = dt.datetime(2024, 2, 29, 23, 59, 59, 123456)
    rows = pa.table(
        {
            "DEC": pa.array([Decimal("12345678901234567890123456.789012345678")], pa.decimal128(38, 12)),
            "TS": pa.array([instant], pa.timestamp("us")),
            "TZ": pa.array([instant], pa.timestamp("us", "UTC")),
            "DAY": pa.array([instant.date()]),
            "T": pa.array([instant.time()]),
            "BIN": pa.array([b"\x00\xff"]),
            "NESTED": pa.array([{"a": [1, None]}]),
            "U": pa.array([2**64 - 1], pa.uint64()),
            "NS": pa.array([1709251199123456789], pa.timestamp("ns")),
        }
    )
    for at in ("2024-01-01", "2024-01-02"):
        directory = loads.rows / "REGION=e%2Fu" / f"AT={at}"
        directory.mkdir(parents=True)
        pq.write_table(rows, directory / "part-0.parquet")

    assert _load(loads, partitions={"type": "key", "key": "AT", "as_columns": True}) == {
        at: (f"REGION=e%2Fu/AT={at}/part-0.parquet:1", 1) for at in ("2024-01-01", "2024-01-02")
    }

    (row,) = loads.service.sql(
        f"SELECT DEC::VARCHAR A, TO_VARCHAR(TS, {_MICROSECONDS}) B, TO_VARCHAR(TZ, {_MICROSECONDS}) C, "
        f"DAY::VARCHAR D, TO_VARCHAR(T, 'HH24:MI:SS.FF6') E, HEX_ENCODE(BIN) F, NESTED G, U::VARCHAR H, "
        f"AT I, REGION J, TO_VARCHAR(NS, {_MICROSECONDS}) K FROM {loads.table} "
        "WHERE AT = '2024-01-02'"
    )
    assert row["A"] == "12345678901234567890123456.789012345678"
    assert row["B"].startswith("2024-02-29 23:59:59.123456")
    assert row["C"].startswith("2024-02-29 23:59:59.123456")
    assert (row["D"], row["E"][:15]) == ("2024-02-29", "23:59:59.123456")
    assert row["F"] == "00FF"
    assert row["G"] == {"a": [1, None]}
    assert row["K"].startswith("2024-02-29 23:59:59.123456")
    assert (row["H"], row["I"], row["J"]) == (str(2**64 - 1), "2024-01-02", "e/u")

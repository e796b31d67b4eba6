"""Parquet and CSV through the job's driver, real Spark and a real service; unit tests read every format."""

import datetime as dt
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_snowpipe.spark.driver.plan import JobPlan
from airflow_provider_snowpipe.spark.driver.run import Run
from airflow_provider_snowpipe.spark.sources.registry import source_spec
from airflow_provider_snowpipe.streaming.auth import KeyPair
from airflow_provider_snowpipe.streaming.channel import Channel
from airflow_provider_snowpipe.streaming.checkpoint import ChannelSource
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.errors import SourcePositionError
from airflow_provider_snowpipe.streaming.names import PipeName
from airflow_provider_snowpipe.streaming.offsets import UnitOffset
from tests.checkpoints import shown
from tests.file_formats import numbered_rows, write_file
from tests.source_log import taken, unit_offset
from tests.spark_job import ids_in, new_table, numbered_name

pytestmark = pytest.mark.spark

_MICROSECONDS = "'YYYY-MM-DD HH24:MI:SS.FF6'"


@pytest.fixture
def load(local_service, spark, tmp_path):
    """Runs the job once and returns what each partition loaded."""

    def load(table, source, **changes):
        plan = JobPlan(
            **{
                "application": "formats",
                "account_url": local_service.url,
                "ca_bundle": str(local_service.ca_file),
                "pipe": PipeName.default_for_table("LOCAL", "PUBLIC", table),
                "channel_prefix": "test",
                "source_name": table,
                "source": source_spec({"path": str(tmp_path / "source"), **source}),
                "report_path": str(tmp_path / "report.json"),
                "credentials_path": str(tmp_path / "credentials.json"),
                "commit_timeout": 60.0,
                **changes,
            }
        )
        plan = JobPlan.from_json(plan.to_json())
        key = KeyPair(local_service.account, local_service.user, Path(local_service.key_file).read_bytes())
        with SnowpipeClient(plan.account_url, key, plan.pipe, ca_bundle=plan.ca_bundle) as client:
            run = Run(plan, client)
            run.prepare()
            run.load(spark.sparkContext)
            run.verify()
        return {channel.partition: (shown(channel.to_token), channel.rows) for channel in run.channels}

    return load


def _commit(service, table, partition, position, source):
    """One row, committed at a position of the test's choice."""
    target = PipeName.default_for_table("LOCAL", "PUBLIC", table).address(service.url)
    files = taken(source, target)[partition]
    position = unit_offset(files, position)
    with service.client(table) as client:
        client.pipe_info()
        own = ChannelSource(UnitOffset, files.binding)
        with Channel.open(client, f"test_{table}_{partition}", own) as channel:
            channel.append(b'{"ID": -1}\n', position, position, rows=1)
            channel.wait_for_commit(position, timeout=30)


def test_parquet_loads_once_resumes_in_the_middle_and_then_loads_nothing(load, local_service, tmp_path):
    table = new_table(local_service, numbered_name("FORMAT"))
    for group in range(2):
        for file in range(2):
            begin = group * 400 + file * 200
            path = tmp_path / "source" / "ab"[group] / f"{file}.parquet"
            write_file(path, numbered_rows(path.name, range(begin, begin + 200)))
    source = {"format": "parquet", "pattern": "*.parquet"}
    spec = source_spec({"path": str(tmp_path / "source"), **source})
    _commit(local_service, table, "b", "0.parquet:123", spec)

    first = load(table, source)

    assert first == {"a": ("1.parquet:200", 400), "b": ("1.parquet:200", 277)}
    assert ids_in(local_service, table) == sorted({-1, *range(800)} - set(range(400, 523)))
    rows = local_service.sql(f"SELECT ID, FILE, NOTE FROM LOCAL.PUBLIC.{table} WHERE ID BETWEEN 200 AND 399")
    assert [{**row, "ID": int(row["ID"])} for row in rows] == numbered_rows("1.parquet", range(200, 400))
    assert load(table, source) == {"a": ("1.parquet:200", 0), "b": ("1.parquet:200", 0)}

    write_file(tmp_path / "source" / "b" / "1.parquet", numbered_rows("x", range(50)))
    with pytest.raises(SourcePositionError, match="overwritten"):
        load(table, source)


def test_csv_text_becomes_the_types_of_the_columns(load, local_service, tmp_path):
    local_service.sql(
        "CREATE TABLE LOCAL.PUBLIC.F_CAST (N NUMBER(38, 2), D DATE, T TIMESTAMP_NTZ, B BOOLEAN, V VARCHAR)"
    )
    (tmp_path / "source" / "a").mkdir(parents=True)
    (tmp_path / "source" / "a" / "1.csv").write_text(
        "N;D;T;B;V\n12345678901234567890.10;2024-02-29;2024-02-29 01:02:03.456789;true;007\n;;;;\n"
    )

    assert load("F_CAST", {"format": {"type": "csv", "delimiter": ";"}}) == {"a": ("1.csv:2", 2)}

    rows = local_service.sql(
        f"SELECT N::VARCHAR N, D, TO_VARCHAR(T, {_MICROSECONDS}) T, B, V FROM LOCAL.PUBLIC.F_CAST"
    )
    assert [rows[0][name] for name in ("N", "V")] == ["12345678901234567890.10", "007"]
    assert str(rows[0]["D"]).startswith("2024-02-29")
    assert rows[0]["T"].startswith("2024-02-29 01:02:03.456789")
    assert str(rows[0]["B"]).lower() == "true"
    assert set(rows[1].values()) == {None}


def test_parquet_values_arrive_whole_and_partition_values_with_them(load, local_service, tmp_path):
    local_service.sql(
        "CREATE TABLE LOCAL.PUBLIC.F_TYPES (DEC NUMBER(38, 12), TS TIMESTAMP_NTZ, TZ TIMESTAMP_TZ, DAY DATE, "
        "T TIME, BIN BINARY, NESTED VARIANT, U NUMBER(20, 0), AT VARCHAR, REGION VARCHAR, "
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
        directory = tmp_path / "source" / "REGION=e%2Fu" / f"AT={at}"
        directory.mkdir(parents=True)
        pq.write_table(rows, directory / "part-0.parquet")
    source = {"format": "parquet", "partitions": {"type": "key", "key": "AT", "as_columns": True}}

    assert load("F_TYPES", source) == {
        at: (f"REGION=e%2Fu/AT={at}/part-0.parquet:1", 1) for at in ("2024-01-01", "2024-01-02")
    }

    (row,) = local_service.sql(
        f"SELECT DEC::VARCHAR A, TO_VARCHAR(TS, {_MICROSECONDS}) B, TO_VARCHAR(TZ, {_MICROSECONDS}) C, "
        f"DAY::VARCHAR D, TO_VARCHAR(T, 'HH24:MI:SS.FF6') E, HEX_ENCODE(BIN) F, NESTED G, U::VARCHAR H, "
        f"AT I, REGION J, TO_VARCHAR(NS, {_MICROSECONDS}) K FROM LOCAL.PUBLIC.F_TYPES "
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

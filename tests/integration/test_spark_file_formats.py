"""Parquet through the job's driver, real Spark and a real service; unit tests read every format."""

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

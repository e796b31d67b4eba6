"""Readers of files under test: the rows they give, from every position where reading can begin."""

import json

import pytest

from airflow_provider_snowpipe.spark.sources.files.spec import SourceFile
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import FileLineOffset
from tests.fake_webhdfs import fake_webhdfs
from tests.jumping_time import JumpingTime
from tests.s3_service import s3_service

SMALL = BatchLimits(rows=7)


def listed(path):
    return SourceFile(path.name, str(path), path.stat().st_size)


def rows_after(reader, file, line, *, keep_tail=True, limits=SMALL):
    """The rows behind a committed one as (number, row), checked for numbering without gaps."""
    position = reader.position_after(file, line) if line else None
    if position is not None and position.done:
        return []
    previous = FileLineOffset(file.name, line)
    found = []
    for block in reader.blocks(
        file, after_line=line, offset=position.offset if position else 0, keep_tail=keep_tail, limits=limits
    ):
        assert FileLineOffset(file.name, block.first_line).follows(previous)
        rows = [json.loads(text, parse_float=str) for text in bytes(block.body).splitlines() if text.strip()]
        assert len(rows) == block.rows <= limits.rows
        found += zip(range(block.last_line - len(rows) + 1, block.last_line + 1), rows, strict=True)
        previous = FileLineOffset(file.name, block.last_line)
    return found


def check_every_resume(reader, file, *, count):
    """Read a file whole, and again from behind every row: each time the same numbered rows."""
    whole = rows_after(reader, file, 0)
    assert [number for number, _ in whole] == list(range(1, count + 1))
    for line in range(1, count + 1):
        assert rows_after(reader, file, line) == whole[line:]
    return [row for _, row in whole]


@pytest.fixture(scope="module")
def s3():
    with s3_service() as running:
        yield running


@pytest.fixture
def hdfs(monkeypatch):
    monkeypatch.setenv("HADOOP_USER_NAME", "ambient")
    monkeypatch.setattr("airflow_provider_snowpipe.spark.sources.files.hadoop_storage.time", JumpingTime())
    with fake_webhdfs() as running:
        yield running

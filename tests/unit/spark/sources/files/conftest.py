"""Readers of files under test: the rows they give, from every position where reading can begin."""

import json

import pytest

from airflow_provider_snowpipe.spark.sources.files.formats import reader_of
from airflow_provider_snowpipe.spark.sources.files.spec import AllFiles, FileSource, SourceFile
from airflow_provider_snowpipe.spark.sources.files.storage import storage_of
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import FileLineOffset
from tests.fake_webhdfs import fake_webhdfs
from tests.jumping_time import JumpingTime
from tests.s3_service import s3_service
from tests.source_log import groups_of

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


class Store:
    """A folder of a store of files."""

    def __init__(self, url, secrets=None):
        self.url, self.secrets = url, secrets
        self.storage = storage_of(url, secrets)

    def put(self, name, data):
        self.storage.delete(name)
        assert self.storage.create(name, data)

    def groups(self, **options):
        spec = FileSource(path=self.url, **options)
        return {one.partition: one.files for one in groups_of(spec, self.secrets)}

    def file(self, name, **options):
        """A file as it is listed, and its reader."""
        spec = FileSource(path=self.url, pattern="**/*", partitions=AllFiles(), **options)
        (group,) = groups_of(spec, self.secrets)
        return next(one for one in group.files if one.name == name), reader_of(spec.form)


@pytest.fixture(scope="module")
def s3():
    with s3_service() as running:
        yield running


@pytest.fixture
def bucket(s3, request):
    name = f"bucket{abs(hash(request.node.name)):x}"
    s3.client.create_bucket(Bucket=name)
    return name


@pytest.fixture
def hdfs(monkeypatch):
    monkeypatch.setenv("HADOOP_USER_NAME", "ambient")
    monkeypatch.setattr("airflow_provider_snowpipe.spark.sources.files.hadoop_storage.time", JumpingTime())
    with fake_webhdfs() as running:
        yield running

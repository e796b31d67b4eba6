"""The source as the driver and a task use it: partitions, and the positions of what is read."""

import gzip
from dataclasses import replace

import pytest

from airflow_provider_snowpipe.spark.driver.report import ChannelStart, fewer_files
from airflow_provider_snowpipe.spark.sources.files.spec import FileSourceSpec
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from tests.checkpoints import token as checkpoint
from tests.source_log import taken, unit_offset


def _partition(path, **options):
    return taken(FileSourceSpec(str(path), partitions="all", **options), "account/pipe")["all"]


def _ends(path, **options):
    partition = _partition(path, **options)
    return [str(part.end) for part in partition.read(partition.resume(None), BatchLimits())]


def test_only_a_last_file_that_can_grow_keeps_its_unfinished_line_back(tmp_path):
    (tmp_path / "1.ndjson").write_bytes(b"{}\n{}")
    (tmp_path / "2.ndjson").write_bytes(b"{}\n{}")
    growing = {"format": {"type": "ndjson", "growing": True}}
    assert _ends(tmp_path, **growing) == ["1/1.ndjson:1", "1/1.ndjson:2", "2/2.ndjson:1"]

    with (tmp_path / "2.ndjson").open("a") as file:
        file.write("\n{}\n{")
    assert _ends(tmp_path, **growing)[-1] == "3/2.ndjson:3"
    (tmp_path / "3.ndjson.gz").write_bytes(gzip.compress(b"{}\n{}"))
    with_compressed = _ends(tmp_path, **growing, pattern="*.gz")
    assert with_compressed[-1].endswith("3.ndjson.gz:2")


def _is_done(path, position, **options):
    partition = _partition(path, **options)
    return partition.is_done(unit_offset(partition, position))


def test_what_is_no_row_leaves_nothing_to_load_behind_the_last_row(tmp_path):
    (tmp_path / "1.ndjson").write_bytes(b"{}\n{}\n \n\n")
    (tmp_path / "2.csv").write_bytes(b"A\n1\n\r\n")
    (tmp_path / "3.txt").write_bytes(b"a\nunfinished")

    assert _is_done(tmp_path, "1.ndjson:2")
    assert not _is_done(tmp_path, "1.ndjson:1")
    assert _is_done(tmp_path, "2.csv:1", format="csv")
    assert _is_done(tmp_path, "3.txt:1", format={"type": "text", "growing": True})


def test_unit_that_the_log_has_as_complete_is_not_behind(tmp_path):
    for number in (1, 2):
        (tmp_path / f"{number}.log").write_bytes(b"{}\n" * 10**number)
    partition = _partition(tmp_path, pattern="*.log")
    known = replace(partition, group=replace(partition.group, committed={1: 10}))
    inside, end = (unit_offset(partition, f"1.log:{line}") for line in (9, 10))

    assert (partition.behind(end).bytes, known.behind(inside).bytes) == (330, 330)
    assert known.behind(end).bytes == 300


@pytest.mark.parametrize(
    ("start", "token"),
    [(None, None), (None, "2/2.log:7"), ("1/1.log:1", "2/2.log:9"), ("2/2.log:7", "5/5.log:1")],
)
def test_bytes_behind_are_those_of_the_driver_for_whoever_follows_it(tmp_path, start, token):
    for number in range(1, 6):
        (tmp_path / f"{number}.log").write_bytes(b"{}\n" * 10**number)
    partition = _partition(tmp_path, pattern="*.log")

    begun, reached = (None if one is None else partition.offset_class.parse(one) for one in (start, token))
    committed = None if reached is None else checkpoint(reached)
    files, left = partition.files_behind(begun), partition.behind(reached).bytes

    assert ChannelStart(0, 0, 0, files_behind=tuple(files)).backlog(committed).bytes == left
    # Several files that count as one may be too much, and are never too little.
    first, *more = fewer_files(files, 2)
    assert (first.unit, len(more)) == (files[-(-len(files) // 2) - 1].unit, min(1, len(files) - 1))
    counted = ChannelStart(0, 0, 0, files_behind=(first, *more)).backlog(committed)
    assert left <= counted.bytes <= partition.behind(begun).bytes
    assert sum(one.files for one in (first, *more)) == len(files)

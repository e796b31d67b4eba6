"""Where streaming ends and COPY begins in a series of files."""

import datetime as dt
from dataclasses import replace

import pytest

from airflow_provider_snowpipe.spark.sources.files.spec import SourceFile
from airflow_provider_snowpipe.spark.submit.file_boundary import PartitionPosition, share_of_copy
from airflow_provider_snowpipe.streaming.checkpoint import Hold
from airflow_provider_snowpipe.streaming.errors import PartlyStreamedError
from airflow_provider_snowpipe.streaming.offsets import UnitOffset

SINCE = dt.date(2026, 1, 31)
TOKEN = "3/a.ndjson:5~u1.9c0f6a2d41b7e3aa.120.r1.0"
FILES = tuple(SourceFile(name, f"/{name}", 9, unit=unit) for unit, name in ((1, "a"), (2, "b"), (4, "c")))


def position(
    committed: str | None = None, *, rest: bool = False, hold: Hold | None = None
) -> PartitionPosition:
    offset = None if committed is None else UnitOffset.parse(committed)
    return PartitionPosition("p", "x_p", FILES, offset, rest, hold)


def test_copy_takes_the_files_that_no_stream_has_begun():
    for committed, growing, share in [
        (None, False, "abc"),
        ("1/a:0", False, "abc"),
        ("1/a:10", False, "bc"),
        ("3/x:10", False, "c"),
        ("4/c:1", False, ""),
        ("1/a:10", True, "b"),
        ("4/c:1", True, ""),
    ]:
        found = "".join(one.name for one in share_of_copy(position(committed), growing=growing))
        assert (committed, growing, found) == (committed, growing, share)


def test_what_a_file_has_got_is_left_to_the_stream():
    grown = replace(FILES[0], unit=5, size=12, start=9, after_line=3)
    with pytest.raises(PartlyStreamedError, match="'a'"):
        share_of_copy(replace(position("4/c:1"), files=(*FILES, grown)))


def test_a_partition_is_done_when_no_row_is_left():
    assert position("4/c:5").is_done
    assert not position("4/c:5", rest=True).is_done
    assert not position("2/b:5").is_done
    assert not position("4/c:5", hold=Hold(1, 10, SINCE, "0" * 12)).is_done

"""What a running job says of itself."""

from __future__ import annotations

from airflow_provider_snowpipe.spark.files.groups import FileGroup, SourceFile
from airflow_provider_snowpipe.spark.files.source import FilePartition
from airflow_provider_snowpipe.spark.files.spec import FileSourceSpec
from airflow_provider_snowpipe.spark.progress_lines import Totals, channels_to_show
from airflow_provider_snowpipe.streaming.status import ChannelStatus


def test_rows_per_second_are_those_since_the_last_look() -> None:
    totals = Totals(0.0)
    totals.take(2.0, 200, 1_000)
    totals.take(4.0, 1_200, 600)

    assert totals.line(1, 3) == (
        "snowpipe progress total done=1/3 rows=1200 rows_per_second=500 bytes_behind<=600 seconds_left<=3"
    )


def test_nothing_is_foretold_from_one_look() -> None:
    totals = Totals(0.0)
    totals.take(2.0, 200, 1_000)

    assert totals.seconds_left() is None
    assert totals.line(0, 1) == (
        "snowpipe progress total done=0/1 rows=200 rows_per_second=100 bytes_behind<=1000"
    )


def test_what_is_not_known_is_left_out() -> None:
    totals = Totals(0.0)
    totals.take(2.0, 0, None)

    assert totals.line(0, 2) == "snowpipe progress total done=0/2"


def test_nothing_is_foretold_while_nothing_moves() -> None:
    totals = Totals(0.0)
    for second in (2.0, 4.0, 6.0):
        totals.take(second, 0, 1_000)

    assert totals.seconds_left() is None
    assert totals.rate == 0.0


def test_the_slowest_channels_time_to_commit_is_said_once_it_is_known() -> None:
    totals = Totals(0.0)
    totals.take(2.0, 200, 1_000, None)
    assert "latency" not in totals.line(0, 1)

    totals.take(4.0, 400, 800, 1_250)

    assert totals.line(0, 1).endswith(" latency_ms<=1250")


def _partition(name: str, *files: SourceFile) -> FilePartition:
    return FilePartition(name, FileGroup(name, files), FileSourceSpec("/data"), on_data_loss="fail")


def _look(tokens: dict[str, str | None]) -> dict[str, ChannelStatus]:
    return {name: ChannelStatus(name, "SUCCESS", committed=token) for name, token in tokens.items()}


def test_only_channels_that_moved_get_a_line() -> None:
    partitions = {name: _partition(name) for name in "abc"}
    now = _look({"a": "1:5", "b": "1:7", "c": None})

    assert channels_to_show(now, partitions, {"a": "1:5", "b": "1:5", "c": None}) == ["b"]


def test_of_many_channels_the_ones_furthest_behind_get_a_line() -> None:
    names = [f"c{number:04}" for number in range(10_000)]
    partitions = {
        name: _partition(name, SourceFile("1", f"/{name}", size)) for size, name in enumerate(names)
    }

    shown = channels_to_show(_look(dict.fromkeys(names, "1:5")), partitions, {})

    assert shown == names[-1:-21:-1]

"""What a running job reports of itself."""

import time
from contextlib import nullcontext
from dataclasses import replace
from threading import Event
from types import SimpleNamespace

from airflow_provider_snowpipe.spark.driver.progress import FollowedChannels
from airflow_provider_snowpipe.spark.driver.report import ChannelStart
from airflow_provider_snowpipe.spark.driver.session import ProgressLines
from airflow_provider_snowpipe.spark.source import Behind
from airflow_provider_snowpipe.streaming.errors import SnowpipeError
from airflow_provider_snowpipe.streaming.lag import FileBehind
from airflow_provider_snowpipe.streaming.offsets import UnitOffset
from airflow_provider_snowpipe.streaming.progress import ChannelStatus
from tests.checkpoints import token
from tests.memory_source import MemoryPartition, rows


class BehindPartition(MemoryPartition):
    """A partition that reports rows and bytes."""

    def behind(self, committed):
        left = 10 - (committed.value if committed else 0)
        return Behind(left * 100, left)


def status(name, committed, inserted, **more):
    return ChannelStatus(name, "SUCCESS", committed, rows_inserted=inserted, **more)


def test_many_channels_that_move_are_one_line_per_poll(capsys):
    names = [f"c{number}" for number in range(30)]
    answers = [dict.fromkeys(names, ("10", 20)), None, dict.fromkeys(names, ("5", 15))]
    ended = Event()

    def statuses(_):
        if not answers:
            ended.set()
        if not answers or not (answer := answers.pop()):
            raise SnowpipeError("busy")
        return {name: status(name, *of_channel) for name, of_channel in answer.items()}

    client = nullcontext(SimpleNamespace(channel_statuses=statuses))
    start = {name: status(name, None, 10) for name in names}
    partitions = {name: BehindPartition(name, rows(10)) for name in names}
    with ProgressLines(lambda: client, partitions, start, began=0.0, interval=0.001):
        assert ended.wait(30)

    printed = capsys.readouterr()
    first, second = printed.out.splitlines()
    assert "rows=150 " in first
    assert "rows_behind<=150 bytes_behind<=15000" in first
    assert "rows=300 " in second
    assert "busy" in printed.err


START_OF_BOTH = {name: ChannelStart(10, 0, 0, rows_behind=100) for name in "ab"}


class TestFollowedChannels:
    def test_polls_that_have_some_of_the_channels_add_up(self):
        channels = FollowedChannels(START_OF_BOTH)
        for at, inserted in (50.0, {"a": 20}), (60.0, {"b": 30, "other": 1_000}), (70.0, {"other": 2_000}):
            channels.take({name: status(name, None, rows) for name, rows in inserted.items()}, at)
        line = "channels=2 rows=30 rows_per_second=2 rows_behind<=170 seconds_left<=85"
        assert channels.line() == line

    def test_skipped_rows_are_behind_no_more_and_others_of_the_same_channel_are_no_debt(self):
        channels = FollowedChannels({"a": ChannelStart(10, 2, 0, 50)})
        polled = status("a", None, 20, rows_error_count=5, latency_ms=900)
        channels.take({"a": polled}, 1.0)
        assert channels.line() == "channels=1 rows=10 rejected=3 rows_behind<=37 latency_ms<=900"
        channels.take({"a": replace(polled, rows_inserted=90)}, 2.0)
        assert "rows_behind<=0 seconds_left<=0" in channels.line()

    def test_pace_is_that_since_the_line_before_however_many_polls_there_were(self):
        channels = FollowedChannels(START_OF_BOTH, began=30.0)
        for polls, line in [
            ([(50.0, 20), (51.0, 20)], "rows=20 rows_per_second=1 "),
            ([(71.0, 60), (111.0, 110), (112.0, 110)], "rows=200 rows_per_second=3 "),
            ([], "rows=200 rows_per_second=3 "),
        ]:
            for at, inserted in polls:
                channels.take({name: status(name, None, inserted) for name in "ab"}, at)
            assert line in channels.line()

    def test_files_are_behind_by_their_bytes_until_a_later_one_is_committed(self):
        now = int(time.time() * 1_000)
        files = tuple(FileBehind(unit, size, now) for unit, size in ((1, 100), (2, 200), (3, 60)))
        start = {
            "a": ChannelStart(0, 0, 0, files_behind=files),
            "done": ChannelStart(9, 0, 0, 0, files_behind=()),
        }
        channels = FollowedChannels(start, began=0.0)
        one, two, three = (token(UnitOffset(unit, "a.log", unit)) for unit in (1, 2, 3))

        for polled, at, pace, left, files_left in [
            ({"a": status("a", None, 0), "done": status("done", one, 9)}, 1.0, (0, 0), "<=360", 3),
            ({"a": status("a", two, 50)}, 10.0, (50, 6), "<=260 seconds_left<=26", 2),
            ({"a": status("a", three, 90)}, 30.0, (90, 2), "<=60 seconds_left<=6", 1),
        ]:
            channels.take(polled, at)
            assert channels.line() == (
                f"channels=2 rows={pace[0]} rows_per_second={pace[1]} bytes_behind{left} "
                f"files_behind<={files_left} oldest_file_seconds<=0"
            )

"""What the committed tokens show of a run, the error that ended it, its reports and its progress lines."""

import json
import time
from contextlib import nullcontext
from dataclasses import replace
from threading import Event
from types import SimpleNamespace

import pytest

from airflow_provider_snowpipe.bulk.run_files import WrittenFile
from airflow_provider_snowpipe.spark.driver import outcome, report
from airflow_provider_snowpipe.spark.driver.plan import WriteReport
from airflow_provider_snowpipe.spark.driver.progress import FollowedChannels
from airflow_provider_snowpipe.spark.driver.report import ChannelReport, ChannelStart, RunReport, UiAddresses
from airflow_provider_snowpipe.spark.driver.session import ProgressLines
from airflow_provider_snowpipe.spark.source import Behind
from airflow_provider_snowpipe.streaming import errors
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    PipeFailedOverError,
    SnowpipeError,
    SourcePositionError,
)
from airflow_provider_snowpipe.streaming.lag import FileBacklog, FileBehind
from airflow_provider_snowpipe.streaming.offsets import UnitOffset
from airflow_provider_snowpipe.streaming.progress import ChannelStatus
from tests.checkpoints import binding_of, token
from tests.fake_snowpipe import PIPE
from tests.memory_source import MemoryPartition, rows

REPORT = ChannelReport(
    channel="c", partition="p", from_token=token(3, 4), to_token=token(9, 10), target_token=token(9, 10),
    rows=6, bytes=60, rejected=0, committed=False, inserted_before=100, errors_before=7, rejected_before=7,
)  # fmt: skip


def status(position, name="c", inserted=106, errors=7, **more):
    committed = None if position is None else token(position, 10)
    return ChannelStatus(name, "SUCCESS", committed, inserted, inserted + errors, errors, **more)


def settled(offsets="integer", position=9, now=None, **changes):
    (one,) = outcome.settle([replace(REPORT, **changes)], {"c": now or status(position)}, offsets)
    return one


def test_channel_is_committed_only_at_or_past_its_target_by_the_order_of_its_format():
    for position, counts in [(None, False), (8, False), (9, True), (10, True), (80, True)]:
        one = settled(position=position)
        assert (one.committed, one.to_token) == (counts, None if position is None else token(position, 10))
    for position, counts in [("a.log:9", False), ("b.log:1", True)]:
        one = settled("file:line", position, target_token=token("a.log:10"))
        assert one.committed is counts
    for position in (None, 3):
        assert settled(position=position, target_token=None).committed, "it owes nothing"


def test_token_of_another_format_or_source_is_an_error_with_the_channel():
    with pytest.raises(errors.OffsetTokenError, match="'c'"):
        settled(position="a.log:3")
    with pytest.raises(errors.SourceChangedError, match="'c'"):
        settled(target_token=token(9, binding=binding_of("q")))


def test_rows_are_those_sent_or_those_that_the_service_counted_and_rejected_ones_count_from_the_baseline():
    for sent, inserted, skipped, rejected in [
        (6, 106, 7, 0), (2, 106, 7, 0), (6, 104, 9, 2), (2, 104, 9, 2), (6, 100, 7, 0), (6, 90, 0, 0),
    ]:  # fmt: skip
        one = settled(now=status(9, inserted=inserted, errors=skipped), rows=sent)
        assert (one.rows, one.rejected) == (6, rejected)


def test_rejected_rows_of_all_channels_are_counted_and_the_worst_one_named_and_the_run_that_left_them():
    known = {"last_error_offset_upper_bound": "8"}
    now = {name: status(9, name, last_error_message=f"error of {name}", **known) for name in "abc"}
    rejected = {"a": 1, "b": 4, "c": 0}
    reports = [replace(REPORT, channel=name, rejected=count) for name, count in rejected.items()]
    with pytest.raises(errors.RowsRejectedError, match=r"5 rows on 2 channel.*ERROR_TABLE\(T\)") as refused:
        outcome.refuse_rejected_rows(PIPE, reports, now)
    assert (refused.value.channel, refused.value.rejected) == ("b", 5)
    assert refused.value.last_error == "error of b"
    left = replace(REPORT, rejected=3, unreported=2, unreported_run="20261128-ab12")
    with pytest.raises(errors.RowsRejectedError, match=r"2 of them .*20261128-ab12"):
        outcome.refuse_rejected_rows(PIPE, [left], {"c": status(9)})


CAUSED = """PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
airflow_provider_snowpipe.streaming.errors.ApiError: 409

The above exception was the direct cause of the following exception:

airflow_provider_snowpipe.streaming.errors.ChannelFencedError: channel 'a': another writer
opened it

\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)
"""
PYTHONS = (
    "PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in "
    "driver: 3.11, PySpark cannot run with different versions.\n"
)
PICKLED = (
    "AttributeError: Can't get attribute '_new' on <module 'airflow_provider_snowpipe.spark.driver' from "
    "'/usr/lib/x/airflow_provider_snowpipe/spark/driver.py'>\n"
)
NO_PYTHON = 'java.io.IOException: Cannot run program "python3.99": error=2, No such file\n\tat java.base\n'
LOST = (
    "Task 0 in stage 0.0 failed 4 times, most recent failure: Lost task 0.3 in stage 0.0 (TID 3) (10.0.0.7 "
)
REASON = "exited caused by one of the running tasks) Reason: Command exited with code 137"
CRASHED = "Python worker exited unexpectedly (crashed)"
REPORTED = [
    (CAUSED, "ChannelFencedError", "channel 'a': another writer opened it"),
    ("ModuleNotFoundError: No module named 'arro3'\n", "ConfigurationError", "no module 'arro3'"),
    (PYTHONS, "ConfigurationError", "executors run Python 3.9, the driver Python 3.11"),
    (PICKLED, "ConfigurationError", "at '/usr/lib/x/airflow_provider"),
    (NO_PYTHON, "ConfigurationError", "cannot start Python 'python3.99' (error=2, No such file)"),
    (
        f"{LOST}executor 5): ExecutorLostFailure (executor 5 {REASON}\nDriver stacktrace:\n",
        "ExecutorLostError",
        "a task died 4 times with its process (ExecutorLostFailure (executor 5 exited",
    ),
    (
        f"{LOST}executor 5): org.apache.spark.SparkException: {CRASHED}. Consider setting x\n\tat org\n",
        "ExecutorLostError",
        CRASHED,
    ),
]


@pytest.mark.parametrize(("text", "kind", "message"), REPORTED)
def test_error_that_ended_a_task_or_what_is_wrong_with_the_executors_is_reported(text, kind, message):
    error = outcome.error_of_task(text)
    assert error is not None
    assert outcome.error_type_of(error) == kind
    assert message in str(error)
    assert "PYSPARK_PYTHON" in str(error) or kind != "ConfigurationError" or message.startswith("at ")


def test_error_of_somebody_else_is_not_taken_for_ours():
    assert outcome.error_of_task("java.lang.OutOfMemoryError: Java heap space\n\tat x") is None


def test_reported_error_comes_back_in_its_class_or_keeps_its_name_and_its_delay():
    error = outcome.final_error("PipeNotFoundError", "no pipe")
    assert isinstance(outcome.final_error("SourcePositionError", "gone"), SourcePositionError)
    assert isinstance(error, outcome.TaskFailedError)
    assert (outcome.error_type_of(error), str(error)) == ("PipeNotFoundError", "no pipe")
    assert outcome.error_type_of(SourcePositionError("x")) == "SourcePositionError"
    delay = outcome.TaskFailedError("x", error_type="PipeFailedOverError").retry_delay
    assert delay == PipeFailedOverError.retry_delay is not None


CHANNEL = ChannelReport("p_s_a", "a", None, "a.log:9", "a.log:9", 1, True, rows=9, bytes=90)
RUN_REPORT = RunReport("app", (CHANNEL, ChannelReport("p_s_b", "b", None, None, None, 0, True)), 1.5)


def test_report_comes_back_unchanged_and_a_failed_write_keeps_the_old_one(tmp_path, monkeypatch):
    folder = report.report_folder(str(tmp_path / "report.json"))
    for _ in range(2):
        folder.write("report.json", RUN_REPORT.to_json())
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        folder.write("report.json", RunReport("other", (), 0.0).to_json())
    assert RunReport.from_json((tmp_path / "report.json").read_text()) == RUN_REPORT
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_report_of_written_files_comes_back_unchanged():
    files = (WrittenFile("cut/x", 10, 3),)
    written = WriteReport("app", "file:///shared/a1", "a1", files, ("ID",), (), 1.5)
    assert WriteReport.from_json(written.to_json()) == written
    assert (written.rows, written.bytes) == (3, 10)


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"report_version": 99}', json.dumps({"report_version": 1, "application": "a", "seconds": 1})],
)
def test_text_that_is_no_report_is_refused(text):
    with pytest.raises(ConfigurationError, match="run report"):
        RunReport.from_json(text)


def test_addresses_of_an_applications_page_come_from_sparks_own_settings():
    own, logged = "http://driver:4040", {"spark.eventLog.enabled": "true"}
    proxy = {"spark.ui.reverseProxyUrl": "https://hub/spark/"}
    yarn, master = "spark.yarn.historyServer.address", "spark.master.ui.historyServerUrl"
    for page, settings, running, ended in [
        (own, {}, own, None),
        (own, {"spark.ui.reverseProxy": "true", **proxy}, "https://hub/spark/proxy/app-1/", None),
        (own, {**logged, yarn: "history:18080"}, own, "http://history:18080/history/app-1/"),
        (None, {**logged, master: "https://history/"}, None, "https://history/history/app-1/"),
        (own, {**logged, yarn: "${hadoopconf-rm}:18080"}, own, None),
        ("javascript:alert(1)", {}, None, None),
    ]:
        found = UiAddresses.of_settings(page, "app-1", settings.get)
        assert found == UiAddresses(running, ended), settings


class BehindPartition(MemoryPartition):
    """A partition that reports rows and bytes."""

    def behind(self, committed):
        left = 10 - (committed.value if committed else 0)
        return Behind(left * 100, left)


def status_of(name, committed, inserted, **more):
    return ChannelStatus(name, "SUCCESS", committed, rows_inserted=inserted, **more)


def test_many_channels_are_one_line_per_poll_that_shows_a_move(capsys):
    names = [f"c{number}" for number in range(30)]
    answers = [*[dict.fromkeys(names, ("10", 20))] * 2, None, dict.fromkeys(names, ("5", 15))]
    ended = Event()

    def statuses(_):
        if not answers:
            ended.set()
        if not answers or not (answer := answers.pop()):
            raise SnowpipeError("busy")
        return {name: status_of(name, *of_channel) for name, of_channel in answer.items()}

    client = nullcontext(SimpleNamespace(channel_statuses=statuses))
    start = {name: status_of(name, None, 10) for name in names}
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
            channels.take({name: status_of(name, None, rows) for name, rows in inserted.items()}, at)
        line = "channels=2 rows=30 rows_per_second=2 rows_behind<=170 seconds_left<=85"
        assert channels.line() == line

    def test_skipped_rows_are_behind_no_more_and_others_of_the_same_channel_are_no_debt(self):
        channels = FollowedChannels({"a": ChannelStart(10, 2, 0, 50)})
        polled = status_of("a", None, 20, rows_error_count=5, latency_ms=900)
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
                channels.take({name: status_of(name, None, inserted) for name in "ab"}, at)
            assert line in channels.line()

    def test_backlogs_are_summed_up_with_the_oldest_time_that_is_known(self):
        one = FileBacklog.of([FileBehind(1, 10, 5_000), FileBehind(2, 20, 3_000), FileBehind(3, 5, 9_000)], 2)
        assert FileBacklog.total([None, FileBacklog(1, 2), one]) == FileBacklog(3, 27, 3_000)
        assert FileBacklog.total([None]) is None

    def test_files_are_behind_by_their_bytes_until_a_later_one_is_committed(self):
        now = int(time.time() * 1_000)
        files = tuple(FileBehind(unit, size, now) for unit, size in ((1, 100), (2, 200), (3, 60)))
        begun = ChannelStart(0, 0, 0, files_behind=files)
        start = {"a": begun, "done": ChannelStart(9, 0, 0, 0, files_behind=())}
        channels = FollowedChannels(start, began=0.0)
        one, two, three = (token(UnitOffset(unit, "a.log", unit)) for unit in (1, 2, 3))

        for polled, at, pace, left, files_left in [
            ({"a": status_of("a", None, 0), "done": status_of("done", one, 9)}, 1.0, (0, 0), "<=360", 3),
            ({"a": status_of("a", two, 50)}, 10.0, (50, 6), "<=260 seconds_left<=26", 2),
            ({"a": status_of("a", three, 90)}, 30.0, (90, 2), "<=60 seconds_left<=6", 1),
        ]:
            channels.take(polled, at)
            assert channels.line() == (
                f"channels=2 rows={pace[0]} rows_per_second={pace[1]} bytes_behind{left} "
                f"files_behind<={files_left} oldest_file_seconds<=0"
            )

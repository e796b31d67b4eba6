"""What the committed tokens show of a run, and the error that ended it."""

from dataclasses import replace

import pytest

from airflow_provider_snowpipe.spark.driver import outcome
from airflow_provider_snowpipe.spark.driver.report import ChannelReport
from airflow_provider_snowpipe.streaming import errors
from airflow_provider_snowpipe.streaming.errors import PipeFailedOverError, SourcePositionError
from airflow_provider_snowpipe.streaming.progress import ChannelStatus
from tests.checkpoints import binding_of, token
from tests.fake_snowpipe import PIPE

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


def test_rows_that_an_earlier_try_had_rejected_are_reported_by_this_one_and_are_not_its_rows():
    one = settled(now=status(9, inserted=100, latency_ms=12), rows=0, rejected_before=4)
    assert (one.rejected, one.rows, one.latency_ms) == (3, 0, 12)


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

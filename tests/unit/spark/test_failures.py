import pytest

from airflow_provider_snowpipe.spark.driver.outcome import (
    TaskFailedError,
    error_of_task,
    error_type_of,
    final_error,
)
from airflow_provider_snowpipe.streaming.errors import PipeFailedOverError, SourcePositionError

CAUSED = """org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed 1 times
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
airflow_provider_snowpipe.streaming.errors.ApiError: 409

The above exception was the direct cause of the following exception:

airflow_provider_snowpipe.streaming.errors.ChannelFencedError: channel 'a': another writer
opened it

\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)
"""
AT = "Task 0 in stage 0.0 failed 4 times, most recent failure: Lost task 0.3 in stage 0.0 (TID 3) (10.0.0.7"
REPORTED = {
    "caused": (CAUSED, "ChannelFencedError", "channel 'a': another writer opened it"),
    "package": (
        "Traceback (most recent call last):\nModuleNotFoundError: No module named 'arro3'\n",
        "ConfigurationError",
        "no module 'arro3'",
    ),
    "python": (
        "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has "
        "different version: 3.9 than that in driver: 3.11, PySpark cannot run with different versions.\n",
        "ConfigurationError",
        "executors run Python 3.9, the driver Python 3.11",
    ),
    "attribute": (
        "AttributeError: Can't get attribute '_new' on <module 'airflow_provider_snowpipe.spark.driver' from "
        "'/usr/lib/x/airflow_provider_snowpipe/spark/driver.py'>\n",
        "ConfigurationError",
        "at '/usr/lib/x/airflow_provider",
    ),
    "no python": (
        "Lost task 0.0 in stage 0.0 (TID 0) (localhost executor driver): java.io.IOException: Cannot run "
        'program "python3.99": error=2, No such file or directory\n\tat java.base/java.lang\n',
        "ConfigurationError",
        "cannot start Python 'python3.99' (error=2, No such file or directory)",
    ),
    "executor lost": (
        f"Job aborted due to stage failure: {AT} executor 5): ExecutorLostFailure (executor 5 exited caused "
        "by one of the running tasks) Reason: Command exited with code 137\nDriver stacktrace:\n",
        "ExecutorLostError",
        "a task died 4 times with its process (ExecutorLostFailure (executor 5 exited",
    ),
    "worker lost": (
        f"Job aborted due to stage failure: {AT} executor 5): org.apache.spark.SparkException: Python worker "
        "exited unexpectedly (crashed). Consider setting x\n\tat org.apache\n",
        "ExecutorLostError",
        "Python worker exited unexpectedly (crashed)",
    ),
}


@pytest.mark.parametrize(("text", "kind", "message"), REPORTED.values(), ids=REPORTED)
def test_error_that_ended_a_task_or_what_is_wrong_with_the_executors_is_reported(text, kind, message):
    error = error_of_task(text)
    assert error is not None
    assert error_type_of(error) == kind
    assert message in str(error)
    assert "PYSPARK_PYTHON" in str(error) or kind != "ConfigurationError" or message.startswith("at ")


def test_error_of_somebody_else_is_not_taken_for_ours():
    assert error_of_task("java.lang.OutOfMemoryError: Java heap space\n\tat x") is None


def test_reported_error_comes_back_in_its_class_or_keeps_its_name_and_its_delay():
    error = final_error("PipeNotFoundError", "no pipe")

    assert isinstance(final_error("SourcePositionError", "gone"), SourcePositionError)
    assert isinstance(error, TaskFailedError)
    assert (error_type_of(error), str(error)) == ("PipeNotFoundError", "no pipe")
    assert error_type_of(SourcePositionError("x")) == "SourcePositionError"
    delay = TaskFailedError("x", error_type="PipeFailedOverError").retry_delay
    assert delay == PipeFailedOverError.retry_delay is not None

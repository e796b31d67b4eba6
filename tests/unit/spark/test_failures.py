from airflow_provider_snowpipe.spark.failures import (
    TaskFailedError,
    error_of_task,
    error_type_of,
    final_error,
)
from airflow_provider_snowpipe.streaming.errors import SourcePositionError

SPARK_TEXT = """org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed 1 times
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
airflow_provider_snowpipe.streaming.errors.ChannelFencedError: channel 'a': another writer
opened it

\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)
"""


def test_error_of_the_task_is_found_in_sparks_text():
    error = error_of_task(SPARK_TEXT)

    assert error is not None
    assert str(error) == "channel 'a': another writer opened it"
    assert error_type_of(error) == "ChannelFencedError"


def test_error_of_the_task_is_found_in_the_text_of_a_converted_exception():
    text = SPARK_TEXT.partition("\n\n")[0] + "\n SQLSTATE: 38000\n"

    assert str(error_of_task(text)) == "channel 'a': another writer opened it"


def test_error_of_somebody_else_is_not_taken_for_ours():
    assert error_of_task("java.lang.OutOfMemoryError: Java heap space\n\tat x") is None


def test_executor_without_our_package_is_a_matter_of_installation():
    error = error_of_task(
        "Traceback (most recent call last):\nModuleNotFoundError: No module named 'arro3'\n"
    )

    assert error is not None
    assert error_type_of(error) == "ConfigurationError"
    assert "no module 'arro3'" in str(error)
    assert "PYSPARK_PYTHON" in str(error)


def test_reported_error_comes_back_in_its_class():
    assert isinstance(final_error("SourcePositionError", "gone"), SourcePositionError)


def test_reported_error_that_needs_more_than_a_text_keeps_its_name():
    error = final_error("PipeNotFoundError", "no pipe")

    assert isinstance(error, TaskFailedError)
    assert (error_type_of(error), str(error)) == ("PipeNotFoundError", "no pipe")

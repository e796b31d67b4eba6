import os
import pickle

import pytest

from airflow_provider_snowpipe.spark.driver.session import one_connect_task_each
from airflow_provider_snowpipe.spark.sources.files.reader import Resume
from airflow_provider_snowpipe.spark.sources.registry import open_source
from airflow_provider_snowpipe.spark.sources.tables.spec import TableSourceSpec
from airflow_provider_snowpipe.spark.task.sink import PartitionResult
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.offsets import FileLineOffset


def test_source_that_needs_the_plan_of_a_query_is_refused_over_spark_connect():
    session = type("ConnectSession", (), {"__module__": "pyspark.sql.connect.session"})
    spec = TableSourceSpec(offset_column="ID", query="SELECT 1 ID", name="one")
    with pytest.raises(ConfigurationError, match="spark-submit"):
        open_source(spec, "fail").with_spark(session)


class Server:
    """A server of Spark Connect that answers every job with the same result."""

    def __init__(self, result):
        self.result = pickle.dumps(result)

    def __getattr__(self, name):
        return lambda *_: self

    def collect(self):
        return [{"id": 0, "result": self.result}]


def test_results_of_our_tasks_are_read():
    loaded = PartitionResult("c", FileLineOffset("a.ndjson", 7), unknown_columns={"NOTE": 2})
    for result in (loaded, Resume(1, 7, 90), None):
        assert one_connect_task_each(Server(result), str, ["item"]) == [result]


class Call:
    def __init__(self, function, *arguments):
        self.called = function, arguments

    def __reduce__(self):
        return self.called


@pytest.mark.parametrize(
    "call", [Call(os.mkdir, "made"), Call(one_connect_task_each, None, None, []), Call(pickle.loads, b"N.")]
)
def test_result_that_calls_something_here_is_refused_by_its_name(call, tmp_path, monkeypatch):
    """A server may be somebody else's, and this process has the private key."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=call.called[0].__name__):
        one_connect_task_each(Server(call), str, ["item"])
    assert list(tmp_path.iterdir()) == []

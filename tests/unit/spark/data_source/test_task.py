import time

import pyarrow as pa
import pytest

from airflow_provider_snowpipe.spark.data_source.options import WriteOptions
from airflow_provider_snowpipe.spark.data_source.parts import BatchIdentity
from airflow_provider_snowpipe.spark.data_source.task import BatchesSeen, Task
from airflow_provider_snowpipe.streaming.auth import ScopedToken


@pytest.fixture
def make_task():
    def make(*, partition=0, life=3600.0):
        options = WriteOptions.parse(
            {
                "accountUrl": "https://127.0.0.1:1",
                "database": "D",
                "schema": "S",
                "table": "T",
                "channelPrefix": "ds",
                "partitions": "2",
            }
        )
        token = ScopedToken("scoped-secret", "127.0.0.1", time.time() + life)
        identity = BatchIdentity(5, "00000001", 2)
        return Task(options, token, BatchesSeen(), identity, partition, attempt=3)

    return make


def _rows():
    return iter([pa.record_batch({"ID": [1, 2]})])


def test_token_that_expired_before_the_task_began_leaves_the_batch_incomplete(make_task):
    outcome = make_task(life=-1).run(_rows())

    assert (outcome.complete, outcome.error_type, outcome.channels) == (False, None, ())


def test_partition_beyond_the_promised_number_sends_nothing_and_asks_nobody(make_task):
    outcome = make_task(partition=2).run(_rows())

    assert outcome.error_type == "ConfigurationError"
    assert outcome.error.startswith("the plan has a partition 2, option partitions is 2")
    assert (outcome.partition, outcome.attempt) == (2, 3)

from dataclasses import replace

import pytest

from airflow_provider_snowpipe.spark.data_source.gates import identity_of, settle_batch
from airflow_provider_snowpipe.spark.data_source.options import WriteOptions
from airflow_provider_snowpipe.spark.data_source.parts import (
    GIVEN_WRITER,
    BatchIdentity,
    SupersededError,
    channel_source,
)
from airflow_provider_snowpipe.spark.data_source.source import _describe_abort
from airflow_provider_snowpipe.spark.data_source.task import BatchesSeen, TaskOutcome
from airflow_provider_snowpipe.spark.driver.report import ChannelReport
from airflow_provider_snowpipe.streaming.errors import (
    AuthenticationError,
    ConfigurationError,
    ContinuityError,
    SourceChangedError,
    SourcePositionError,
    WriterActiveError,
)
from airflow_provider_snowpipe.streaming.offsets import BatchDigestOffset

OPTIONS = WriteOptions.parse(
    {
        "accountUrl": "https://a.b.c",
        "database": "D",
        "schema": "S",
        "table": "T",
        "channelPrefix": "ds",
        "partitions": "2",
    }
)
DONE = ChannelReport("ds_0", "ds_0", target_token="5:1/2-00000000-00000001-0-end", rows=1)
LEFT = TaskOutcome(0, 0, (DONE,))
RIGHT = TaskOutcome(1, 0, (replace(DONE, channel="ds_1"),))


def _settle(*tasks, options=OPTIONS):
    return settle_batch(options, tasks, "batch=5", integer_offsets=False)


@pytest.mark.parametrize(
    ("tasks", "error", "text"),
    [
        pytest.param((LEFT, None), WriterActiveError, "without the messages of 1 tasks", id="no-message"),
        pytest.param(
            (LEFT, replace(RIGHT, error_type="SourcePositionError", error="other rows")),
            SourcePositionError,
            "^other rows. 2 rows were sent on 2 channels$",
            id="failed",
        ),
        pytest.param(
            (LEFT, replace(RIGHT, complete=False)),
            AuthenticationError,
            "partitions .1. took",
            id="slow",
        ),
        pytest.param(
            (LEFT, replace(RIGHT, superseded=("ds_1", 9))),
            WriterActiveError,
            "'ds_1' has committed batch 9",
            id="superseded",
        ),
        pytest.param(
            (LEFT, replace(RIGHT, channels=LEFT.channels)),
            ContinuityError,
            "rows of channel 'ds_0' came from 2 partitions",
            id="shared-channel",
        ),
        pytest.param(
            (LEFT,), ConfigurationError, "plan has 1 partitions, option partitions is 2", id="layout"
        ),
    ],
)
def test_batch_is_no_success_whatever_spark_reports(tasks, error, text):
    with pytest.raises(error, match=text) as raised:
        _settle(*tasks)
    assert str(raised.value).startswith("batch=5: ") is (error in (WriterActiveError, AuthenticationError))


@pytest.mark.parametrize(
    "tasks", [(), (TaskOutcome(0, 0, (ChannelReport("ds_0", "ds_0"),)),)], ids=["none", "empty"]
)
def test_batch_without_rows_asks_nobody(tasks):
    assert _settle(*tasks) == ()


def test_abort_reports_which_rows_may_be_in_the_table():
    line = _describe_abort(OPTIONS, [LEFT, None], "batch=5")

    assert line.startswith("snowpipe aborted batch=5: rows that were committed stay in the table")
    assert "ds_0 to 5:1/2-00000000-00000001-0-end" in line
    assert "channels ds_*" in line


@pytest.mark.parametrize(
    ("more", "batch", "query", "identity"),
    [
        ({}, 5, None, BatchIdentity(5, GIVEN_WRITER, 2)),
        ({}, 5, "q", BatchIdentity.of_query(5, "q", 2)),
        ({"offset_column": "ID", "partitions": None}, 5, "q", None),
        ({"partitions": None}, 5, None, BatchIdentity(5, GIVEN_WRITER, 0)),
        ({}, None, "q", None),
    ],
)
def test_batch_is_identified_by_its_number_and_its_query_unless_a_column_identifies_rows(
    more, batch, query, identity
):
    assert identity_of(replace(OPTIONS, **more), batch, query) == identity


def test_all_channels_together_reveal_another_query_or_a_later_batch():
    mine, another = BatchIdentity(5, "00000001", 2), BatchIdentity(1, "00000002", 2)

    def seen(batch, identity):
        token = channel_source(OPTIONS, "ds_7", identity).token(BatchDigestOffset(batch, 1, 0), 1, 0)
        return BatchesSeen({"ds_7": token})

    seen(5, mine).check(OPTIONS, mine)
    with pytest.raises(SupersededError):
        seen(6, mine).check(OPTIONS, mine)
    with pytest.raises(SourceChangedError, match="ds_7"):
        seen(1, another).check(OPTIONS, mine)

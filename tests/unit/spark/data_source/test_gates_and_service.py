"""The driver's two gates against a scripted service: what it finds before, and what is committed after."""

from dataclasses import asdict, replace

import pytest

from airflow_provider_snowpipe.spark.data_source import gates
from airflow_provider_snowpipe.spark.data_source.gates import prepare, settle_batch
from airflow_provider_snowpipe.spark.data_source.options import WriteOptions
from airflow_provider_snowpipe.spark.data_source.task import TaskOutcome
from airflow_provider_snowpipe.spark.driver.report import ChannelReport
from airflow_provider_snowpipe.streaming.errors import (
    CommitTimeoutError,
    OffsetTokenError,
    PipeNotFoundError,
    RowsRejectedError,
    SourcePositionError,
)
from airflow_provider_snowpipe.streaming.offsets import BatchDigestOffset
from tests.fake_snowpipe import URL, error

WRITER = "00000001"
PLAIN = {
    "accountUrl": URL, "database": "DB", "schema": "S", "table": "T", "channelPrefix": "ds",
    "partitions": "2",
}  # fmt: skip


def options(**more):
    return WriteOptions.parse({name: value for name, value in {**PLAIN, **more}.items() if value is not None})


def token(batch=5, row=2, partitions=2, writer=WRITER, rejected=0):
    return str(BatchDigestOffset(batch, row, partitions, 7, writer, rejected, final=True))


@pytest.fixture(autouse=True)
def driver_token(snowpipe, monkeypatch):
    monkeypatch.setattr(gates, "driver_token", lambda options: snowpipe.scoped_token())


class TestPrepare:
    def test_unknown_pipe_is_refused(self, snowpipe):
        snowpipe.fault(before="pipe_info", error=error(404, "ERR_PIPE_DOES_NOT_EXIST_OR_NOT_AUTHORIZED"))

        with pytest.raises(PipeNotFoundError):
            prepare(options(), integer_offsets=False)

    @pytest.mark.parametrize(
        ("integer", "committed"), [(True, "7/4"), (False, "k/4")], ids=["integer", "text"]
    )
    def test_offset_column_over_another_number_of_partitions_is_refused(self, snowpipe, integer, committed):
        snowpipe.channel("ds_3", committed=committed)

        with pytest.raises(SourcePositionError, match="ds_3"):
            prepare(options(offsetColumn="ID"), integer_offsets=integer)

    def test_token_of_another_format_names_the_channel(self, snowpipe):
        snowpipe.channel("ds_0", committed="a.log:2")

        with pytest.raises(OffsetTokenError, match="ds_0"):
            prepare(options(), integer_offsets=False)

    def test_latest_batch_of_each_writer_is_seen_and_empty_channels_report_nothing(self, snowpipe):
        snowpipe.channel("ds_0", committed=token(batch=4))
        snowpipe.channel("ds_1", committed=token(batch=6))
        snowpipe.channel("ds_2")
        snowpipe.channel("ds_3", committed=token(batch=5))
        snowpipe.channel("ds_4", committed=token(batch=1, writer="00000002"))

        seen = prepare(options(), integer_offsets=False).seen

        assert {writer: (name, one.batch) for writer, (name, one) in seen.latest.items()} == {
            WRITER: ("ds_1", 6),
            "00000002": ("ds_4", 1),
        }
        assert sorted(seen.committed) == ["ds_0", "ds_1", "ds_3", "ds_4"]
        assert seen.committed["ds_3"] == token(batch=5)

    def test_rows_skipped_before_are_kept_for_the_own_channels(self, snowpipe):
        snowpipe.channel("ds_1", committed="7/2", rows_error_count=3)
        snowpipe.channel("ds_5", rows_error_count=9)

        seen = prepare(options(offsetColumn="ID"), integer_offsets=True).seen

        assert seen.errors == {"ds_0": 0, "ds_1": 3}
        assert seen.committed == {"ds_1": "7/2"}

    @pytest.mark.parametrize("channel", ["ds_0", "ds_1", "ds_3", "ds_99"])
    def test_fewer_partitions_than_before_are_refused_whichever_channel_has_a_token(self, snowpipe, channel):
        snowpipe.channel(channel, committed=token(partitions=100))

        with pytest.raises(SourcePositionError, match=rf"'{channel}'.*100.*partitions is 2"):
            prepare(options(), integer_offsets=False)

    def test_channels_beyond_the_own_ones_are_polled_to_the_next_hundred(self, snowpipe):
        prepare(options(partitions="101"), integer_offsets=False)

        asked = [name for call in snowpipe.did("status") for name in call.split()[1].split(",")]
        assert asked == [f"ds_{number}" for number in range(200)]

    def test_channels_named_by_a_column_are_not_known_before(self, snowpipe):
        seen = prepare(
            options(partitions=None, channelColumn="K", offsetColumn="ID"), integer_offsets=True
        ).seen

        assert (seen.latest, seen.errors) == ({}, {})
        assert snowpipe.did("status") == []


class TestSettle:
    DONE = ChannelReport("ds_0", "ds_0", target_token=token(), rows=2, errors_before=3, rejected_before=3)

    def settle(self, *channels, **more):
        tasks = [TaskOutcome(0, 0, channels), TaskOutcome(1, 0)]
        return settle_batch(options(**more), tasks, "batch=5", integer_offsets=False)

    @pytest.mark.parametrize(
        ("more", "integer", "target", "committed"),
        [
            ({}, True, "9/2", "10/2"),
            ({}, False, "b/2", "c/2"),
            ({"partitions": None, "channelColumn": "K"}, True, "9", "10"),
            ({"partitions": None, "channelColumn": "K"}, False, "b", "c"),
        ],
    )
    def test_tokens_of_an_offset_column_are_compared_in_its_order(
        self, snowpipe, more, integer, target, committed
    ):
        tasks = [
            TaskOutcome(0, 0, (ChannelReport("ds_0", "ds_0", target_token=target, rows=1),)),
            TaskOutcome(1, 0),
        ]
        write = options(offsetColumn="ID", **more)
        snowpipe.channel("ds_0", committed=committed)
        assert settle_batch(write, tasks, "batch=5", integer_offsets=integer)[0].committed

        snowpipe.channels["ds_0"].committed = "1" + target[1:] if integer else "a" + target[1:]
        with pytest.raises(CommitTimeoutError, match=r"T-STREAMING"):
            settle_batch(write, tasks, "batch=5", integer_offsets=integer)

    @pytest.mark.parametrize("committed", [None, token(row=1), token(batch=4, row=9)])
    def test_message_of_a_task_is_not_believed_without_the_committed_token(self, snowpipe, committed):
        snowpipe.channel("ds_0", committed=committed, rows_error_count=3)

        with pytest.raises(CommitTimeoutError) as missing:
            self.settle(self.DONE)

        assert missing.value.channel == "ds_0"

    def test_channel_that_is_gone_is_a_missing_commit(self, snowpipe):
        with pytest.raises(CommitTimeoutError):
            self.settle(self.DONE)

    def test_rows_skipped_since_the_batch_began_fail_it(self, snowpipe):
        snowpipe.channel("ds_0", committed=token(), rows_error_count=5)

        with pytest.raises(RowsRejectedError) as refused:
            self.settle(self.DONE)
        (report,) = self.settle(self.DONE, onError="continue")

        assert (refused.value.rejected, report.rejected) == (2, 2)

    def test_all_that_the_task_reported_is_in_the_report(self, snowpipe):
        snowpipe.channel("ds_0", committed=token(), rows_inserted=9, rows_error_count=3)
        outcome = {
            "from_token": "f", "target_token": token(), "rows": 2, "bytes": 3, "inserted_before": 7,
            "errors_before": 3, "rejected_before": 3, "append_seconds": 5.0, "commit_seconds": 6.0,
            "requests": 8, "request_seconds": 10.0, "longest_request": 11.0, "retries": 12,
            "dead_lettered": 13,
        }  # fmt: skip

        (report,) = self.settle(ChannelReport("ds_0", "ds_0", **outcome))

        assert asdict(report) == {
            **outcome, "channel": "ds_0", "partition": "ds_0", "to_token": token(), "rejected": 0,
            "committed": True, "latency_ms": 5, "undecoded": 0, "unknown_columns": {},
        }  # fmt: skip

    def test_channel_whose_rows_were_all_put_aside_is_reported(self, snowpipe):
        snowpipe.channel("ds_0")

        (report,) = self.settle(ChannelReport("ds_0", "ds_0", dead_lettered=4))

        assert (report.dead_lettered, report.target_token, report.committed) == (4, None, True)

    def test_error_of_a_task_counts_the_others(self):
        failed = replace(TaskOutcome(0, 0), error_type="SourcePositionError", error="other rows")

        with pytest.raises(SourcePositionError, match="1 more"):
            settle_batch(options(), [failed, failed], "batch=5", integer_offsets=False)

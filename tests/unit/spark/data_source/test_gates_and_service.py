"""The driver's two gates against a scripted service: what it finds before, and what is committed after."""

from dataclasses import asdict, replace

import pytest

from airflow_provider_snowpipe.spark.data_source import gates
from airflow_provider_snowpipe.spark.data_source.gates import prepare, settle_batch
from airflow_provider_snowpipe.spark.data_source.options import WriteOptions
from airflow_provider_snowpipe.spark.data_source.parts import BatchIdentity, channel_source
from airflow_provider_snowpipe.spark.data_source.task import TaskOutcome
from airflow_provider_snowpipe.spark.driver.report import ChannelReport
from airflow_provider_snowpipe.streaming.checkpoint import Checkpoint
from airflow_provider_snowpipe.streaming.errors import (
    CommitTimeoutError,
    ImbalanceError,
    OffsetTokenError,
    PipeNotFoundError,
    RowsRejectedError,
    SourceChangedError,
    SourcePositionError,
)
from airflow_provider_snowpipe.streaming.offsets import BatchDigestOffset, IntegerOffset, LexicographicOffset
from tests.fake_snowpipe import URL, error

WRITER = "00000001"
PLAIN = {
    "accountUrl": URL, "database": "DB", "schema": "S", "table": "T", "channelPrefix": "ds",
    "partitions": "2",
}  # fmt: skip


def options(**more):
    return WriteOptions.parse({name: value for name, value in {**PLAIN, **more}.items() if value is not None})


def token(batch=5, row=2, writer=WRITER, channel="ds_0", rows=0, errors=0, **more):
    source = channel_source(options(**more), channel, BatchIdentity(batch, writer, 2))
    return source.token(BatchDigestOffset(batch, row, 7, final=True), rows, errors)


def ordered(value, channel="ds_0", rows=0, errors=0, **more):
    """The token of a value of the offset column."""
    is_number = isinstance(value, int)
    source = channel_source(options(offsetColumn="ID", **more), channel, None, integer_offsets=is_number)
    return source.token(IntegerOffset(value) if is_number else LexicographicOffset(value), rows, errors)


@pytest.fixture(autouse=True)
def driver_token(snowpipe, monkeypatch):
    monkeypatch.setattr(gates, "driver_token", lambda options: snowpipe.scoped_token())


class TestPrepare:
    def test_unknown_pipe_is_refused(self, snowpipe):
        snowpipe.fault(before="pipe_info", error=error(404, "ERR_PIPE_DOES_NOT_EXIST_OR_NOT_AUTHORIZED"))

        with pytest.raises(PipeNotFoundError):
            prepare(options(), integer_offsets=False)

    @pytest.mark.parametrize("value", [7, "k"])
    def test_offset_column_over_another_number_of_partitions_is_refused(self, snowpipe, value):
        snowpipe.channel("ds_3", committed=ordered(value, "ds_3", partitions="4"))

        with pytest.raises(SourceChangedError, match="ds_3"):
            prepare(options(offsetColumn="ID"), integer_offsets=isinstance(value, int))

    @pytest.mark.parametrize("column", [None, "ID"])
    def test_token_of_another_format_names_the_channel(self, snowpipe, column):
        snowpipe.channel("ds_0", committed="a.log:2")

        with pytest.raises(OffsetTokenError, match="ds_0"):
            prepare(options(offsetColumn=column), integer_offsets=False)

    @pytest.mark.parametrize("committed", [None, *(token(channel="ds_1", rows=rows) for rows in (1, 3))])
    def test_channel_that_counts_other_rows_than_its_checkpoint_is_reported_before_any_row_moves(
        self, snowpipe, caplog, committed
    ):
        snowpipe.channel("ds_1", committed=committed, rows_inserted=1, rows_error_count=1)

        with pytest.raises(ImbalanceError, match="ds_1"):
            prepare(options(onImbalance="fail"), integer_offsets=False)

        assert prepare(options(), integer_offsets=False)
        assert "ds_1" in caplog.text

    def test_batches_of_all_channels_are_seen_and_empty_ones_report_nothing(self, snowpipe):
        snowpipe.channel("ds_0", committed=token(batch=4))
        snowpipe.channel("ds_2")
        snowpipe.channel("ds_3", committed=token(batch=5, channel="ds_3"))

        seen = prepare(options(), integer_offsets=False).seen

        assert seen.batches() == {4, 5}
        assert sorted(seen.committed) == ["ds_0", "ds_3"]

    @pytest.mark.parametrize("channel", ["ds_0", "ds_1", "ds_3", "ds_99"])
    def test_another_number_of_partitions_is_refused_whichever_channel_has_a_token(self, snowpipe, channel):
        snowpipe.channel(channel, committed=token(channel=channel, partitions="100"))
        seen = prepare(options(), integer_offsets=False).seen

        with pytest.raises(SourceChangedError, match=channel):
            seen.check(options(), BatchIdentity(6, WRITER, 2))

    def test_channels_beyond_the_own_ones_are_polled_to_the_next_hundred(self, snowpipe):
        prepare(options(partitions="101"), integer_offsets=False)

        asked = [name for call in snowpipe.did("status") for name in call.split()[1].split(",")]
        assert asked == [f"ds_{number}" for number in range(200)]

    def test_channels_named_by_a_column_are_not_known_before(self, snowpipe):
        seen = prepare(
            options(partitions=None, channelColumn="K", offsetColumn="ID"), integer_offsets=True
        ).seen

        assert seen.committed == {}
        assert snowpipe.did("status") == []


class TestSettle:
    DONE = ChannelReport("ds_0", "ds_0", target_token=token(), rows=2, errors_before=3, rejected_before=3)

    def settle(self, *channels, **more):
        tasks = [TaskOutcome(0, 0, channels), TaskOutcome(1, 0)]
        return settle_batch(options(**more), tasks, "batch=5", integer_offsets=False)

    @pytest.mark.parametrize(
        ("before", "target", "committed"),
        [(1, 9, 10), ("a", "b", "c")],
    )
    @pytest.mark.parametrize("more", [{}, {"partitions": None, "channelColumn": "K"}])
    def test_tokens_of_an_offset_column_are_compared_in_its_order(
        self, snowpipe, more, before, target, committed
    ):
        owed = ordered(target, **more)
        tasks = [
            TaskOutcome(0, 0, (ChannelReport("ds_0", "ds_0", target_token=owed, rows=1),)),
            TaskOutcome(1, 0),
        ]
        write, integer = options(offsetColumn="ID", **more), isinstance(target, int)
        snowpipe.channel("ds_0", committed=ordered(committed, **more))
        assert settle_batch(write, tasks, "batch=5", integer_offsets=integer)[0].committed

        snowpipe.channels["ds_0"].committed = ordered(before, **more)
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
        assert Checkpoint.parse(snowpipe.channels["ds_0"].committed).errors == 5

    def test_all_that_the_task_reported_is_in_the_report(self, snowpipe):
        snowpipe.channel("ds_0", committed=token(errors=3), rows_inserted=9, rows_error_count=3)
        outcome = {
            "from_token": "f", "target_token": token(), "rows": 2, "bytes": 3, "inserted_before": 7,
            "errors_before": 3, "rejected_before": 3, "append_seconds": 5.0, "commit_seconds": 6.0,
            "requests": 8, "request_seconds": 10.0, "longest_request": 11.0, "retries": 12,
            "dead_lettered": 13,
        }  # fmt: skip

        (report,) = self.settle(ChannelReport("ds_0", "ds_0", **outcome))

        assert asdict(report) == {
            **outcome, "channel": "ds_0", "partition": "ds_0", "to_token": token(errors=3), "rejected": 0,
            "committed": True, "latency_ms": 5, "undecoded": 0, "unknown_columns": {}, "unreported": 0,
            "unreported_run": None, "rows_before": 0, "files_found": None, "bytes_found": 0,
            "oldest_found_ms": None,
        }  # fmt: skip

    def test_channel_that_counts_other_rows_than_its_checkpoint_fails_the_write_on_request(self, snowpipe):
        snowpipe.channel("ds_0", committed=token(rows=2), rows_inserted=1, rows_error_count=3)

        with pytest.raises(ImbalanceError, match="ds_0"):
            self.settle(self.DONE, onImbalance="fail")

        assert Checkpoint.parse(snowpipe.channels["ds_0"].committed).errors == 0, "nobody has reported them"
        assert self.settle(self.DONE)[0].committed

    def test_channel_whose_rows_were_all_put_aside_is_reported(self, snowpipe):
        snowpipe.channel("ds_0")

        (report,) = self.settle(ChannelReport("ds_0", "ds_0", dead_lettered=4))

        assert (report.dead_lettered, report.target_token, report.committed) == (4, None, True)

    def test_error_of_a_task_counts_the_others(self):
        failed = replace(TaskOutcome(0, 0), error_type="SourcePositionError", error="other rows")

        with pytest.raises(SourcePositionError, match="1 more"):
            settle_batch(options(), [failed, failed], "batch=5", integer_offsets=False)

"""One Spark task of ``format("snowpipe")`` against a scripted service: replays, crashes, other batches."""

import pyarrow as pa
import pytest

from airflow_provider_snowpipe.spark.data_source.options import WriteOptions
from airflow_provider_snowpipe.spark.data_source.parts import BatchIdentity, channel_source
from airflow_provider_snowpipe.spark.data_source.task import BatchesSeen, Task
from airflow_provider_snowpipe.streaming.errors import ChannelFencedError, CommitTimeoutError
from airflow_provider_snowpipe.streaming.offsets import BatchDigestOffset
from tests.checkpoints import shown
from tests.fake_snowpipe import STALE, URL, KilledError, error

WRITER = "00000001"
IDS = list(range(6))
PLAIN = {"database": "DB", "schema": "S", "table": "T", "channelPrefix": "ds", "partitions": "2"}


@pytest.fixture
def run(snowpipe):
    """Run one attempt at partition 0 of a batch."""

    def run(ids=IDS, batch=5, writer=WRITER, seen=None, life=None, size=2, **more):
        given = {**PLAIN, "accountUrl": URL, "batchBytes": "20", "commitTimeout": "60", **more}
        options = WriteOptions.parse({name: value for name, value in given.items() if value is not None})
        identity = None if options.offset_column else BatchIdentity(batch, writer, options.partitions or 0)
        batches = (pa.record_batch({"ID": ids[low : low + size]}) for low in range(0, len(ids), size))
        task = Task(
            options, snowpipe.scoped_token(life), seen or BatchesSeen(), identity, 0, 0,
            integer_offsets=True,
        )  # fmt: skip
        return task.run(batches)

    return run


def loaded(snowpipe, channel="ds_0"):
    return [row["ID"] for row in snowpipe.channels[channel].rows]


def target(outcome):
    return outcome.channels[0].target_token


def test_batch_that_is_committed_is_compared_and_not_sent_again(snowpipe, run):
    first = run()
    appends = len(snowpipe.appends())

    again = run()

    assert target(again) == target(first)
    assert len(snowpipe.appends()) == appends


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("operation", "skip"), [("open", 0), ("append", 0), ("append", 1), ("append", 2), ("status", 2)]
)
@pytest.mark.parametrize("size", [1, 2, 6])
def test_attempt_after_a_crash_brings_each_row_once_however_batches_are_cut(
    snowpipe, run, when, operation, skip, size
):
    snowpipe.fault(**{when: operation}, skip=skip, error=KilledError())
    with pytest.raises(KilledError):
        run(size=2)

    outcome = run(size=size)

    assert outcome.error_type is None
    assert loaded(snowpipe) == IDS


@pytest.mark.parametrize(
    "other", [[0, 1, 2, 3, 4, 9], [1, 0, 2, 3, 4, 5], [0, 1, 2], [*IDS, 6], []],
    ids=["value", "order", "fewer", "more", "none"],
)  # fmt: skip
def test_replay_with_other_rows_is_refused(snowpipe, run, other):
    run()

    outcome = run(other)

    assert outcome.error_type == "SourcePositionError"
    assert "ds_0" in outcome.error
    assert loaded(snowpipe) == IDS


def test_next_batch_follows(snowpipe, run):
    run()

    run([6, 7], batch=6)

    assert loaded(snowpipe) == [*IDS, 6, 7]


def test_batch_that_the_channel_has_left_behind_sends_nothing(snowpipe, run):
    run(batch=6)

    outcome = run([9], batch=5)

    assert outcome.superseded == ("ds_0", 6)
    assert loaded(snowpipe) == IDS


def test_batch_that_another_channel_has_left_behind_sends_nothing(snowpipe, run):
    options = WriteOptions.parse({**PLAIN, "accountUrl": URL})
    source = channel_source(options, "ds_1", BatchIdentity(6, WRITER, 2))

    outcome = run(seen=BatchesSeen({"ds_1": source.token(BatchDigestOffset(6, 1, 0), 1, 0)}))

    assert outcome.superseded == ("ds_0", 6)
    assert snowpipe.did() == ["status ds_0"]


@pytest.mark.parametrize("ordered", [False, True])
def test_channel_that_was_dropped_since_the_write_began_gets_no_row(snowpipe, run, ordered):
    more = ORDERED if ordered else {}
    run(batch=4, **more)
    seen = BatchesSeen({"ds_0": snowpipe.channels.pop("ds_0").committed})
    appends = len(snowpipe.appends())

    outcome = run(seen=seen, **more)

    assert outcome.error_type == "TokenWentBackError"
    assert len(snowpipe.appends()) == appends


def test_rows_of_another_query_are_refused(snowpipe, run):
    run()

    outcome = run(batch=9, writer="00000002")

    assert outcome.error_type == "SourceChangedError"
    assert loaded(snowpipe) == IDS


def test_empty_partition_opens_no_channel(snowpipe, run):
    outcome = run([])

    assert (target(outcome), outcome.error_type) == (None, None)
    assert snowpipe.did() == ["status ds_0"]


def test_rows_rejected_by_an_attempt_that_died_count_as_not_reported(snowpipe, run):
    snowpipe.rejects = lambda row: row["ID"] == 1
    snowpipe.fault(before="append", skip=1, error=KilledError())
    with pytest.raises(KilledError):
        run()

    again, later = run(), run([6, 7], batch=6)

    assert snowpipe.channels["ds_0"].rows_error_count == 1
    reports = (*again.channels, *later.channels)
    found = [(one.rejected_before, one.unreported, one.unreported_run) for one in reports]
    assert found == [(0, 0, "batch-5"), (0, 1, "batch-5")]


def test_fenced_attempt_is_raised_and_does_not_open_again(snowpipe, run):
    snowpipe.fault(before="append", skip=1, error=error(409, STALE))

    with pytest.raises(ChannelFencedError):
        run()

    assert snowpipe.did("open") == ["open ds_0"]


def test_rows_that_are_not_committed_in_time_are_no_success(snowpipe, run):
    snowpipe.holds_commits = True

    with pytest.raises(CommitTimeoutError):
        run()


ORDERED = {"offsetColumn": "ID"}


class TestOffsetColumn:
    def test_values_are_the_tokens_and_rows_behind_the_committed_one_are_sent(self, snowpipe, run):
        run(IDS[:3], **ORDERED)
        appends = len(snowpipe.appends())

        outcome = run(IDS, **ORDERED)

        assert snowpipe.channels["ds_0"].committed == target(outcome)
        assert shown(target(outcome)) == "5"
        assert [row["ID"] for call in snowpipe.appends()[appends:] for row in call.rows] == [3, 4, 5]

    @pytest.mark.parametrize("ids", [[0, 2, 1], [0, 0, 1], [3, 4, 2]])
    def test_rows_out_of_order_are_refused(self, snowpipe, run, ids):
        outcome = run(ids, size=3, **ORDERED)

        assert outcome.error_type == "ContinuityError"
        assert snowpipe.did("append") == []

    def test_empty_partition_opens_no_channel(self, snowpipe, run):
        assert target(run([], **ORDERED)) is None
        assert snowpipe.did("open") == []

    def test_each_value_of_the_channel_column_has_its_channel(self, snowpipe, run):
        outcome = run([3, 4], size=2, partitions=None, channelColumn="ID", **ORDERED)

        assert [one.channel for one in outcome.channels] == ["ds_3", "ds_4"]
        assert (loaded(snowpipe, "ds_3"), loaded(snowpipe, "ds_4")) == ([3], [4])

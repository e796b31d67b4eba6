"""One Spark task of ``format("snowpipe")`` against a scripted service: replays, crashes, other batches."""

import pyarrow as pa
import pytest

from airflow_provider_snowpipe.spark.data_source.parts import BatchIdentity, channel_source
from airflow_provider_snowpipe.spark.data_source.task import BatchesSeen, Task, row_rules
from airflow_provider_snowpipe.streaming.offsets import BatchDigestOffset
from airflow_provider_snowpipe.streaming.table_schema import TableColumn
from tests.checkpoints import shown
from tests.fake_snowpipe import KilledError
from tests.unit.spark.data_source.write_options import write_options

WRITER = "00000001"
IDS = list(range(6))
ORDERED = {"offsetColumn": "ID"}


@pytest.fixture
def run(snowpipe):
    def run(ids=IDS, batch=5, writer=WRITER, seen=None, life=None, size=2, partition=0, **more):
        options = write_options(batchBytes="20", commitTimeout="60", **more)
        identity = None if options.offset_column else BatchIdentity(batch, writer, options.partitions or 0)
        batches = (pa.record_batch({"ID": ids[low : low + size]}) for low in range(0, len(ids), size))
        given = options, snowpipe.scoped_token(life), seen or BatchesSeen(), identity, partition
        return Task(*given, attempt=3, integer_offsets=True).run(batches)

    return run


def loaded(snowpipe, channel="ds_0"):
    return [row["ID"] for row in snowpipe.channels[channel].rows]


def target(outcome):
    return outcome.channels[0].target_token


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", ["open 0", "append 0", "append 1", "append 2", "status 2"])
@pytest.mark.parametrize("size", [1, 2, 6])
def test_attempt_after_a_crash_brings_each_row_once(snowpipe, run, when, call, size):
    operation, skip = call.split()
    snowpipe.fault(**{when: operation}, skip=int(skip), error=KilledError())
    with pytest.raises(KilledError):
        run(size=2)
    assert run(size=size).error_type is None
    assert loaded(snowpipe) == IDS


def test_replay_with_other_rows_or_of_another_query_is_refused(snowpipe, run):
    run()
    for other in ([0, 1, 2, 3, 4, 9], [1, 0, 2, 3, 4, 5], [0, 1, 2], [*IDS, 6], []):
        outcome = run(other)
        assert (outcome.error_type, "ds_0" in outcome.error) == ("SourcePositionError", True), other
    assert run(batch=9, writer="00000002").error_type == "SourceChangedError"
    assert loaded(snowpipe) == IDS


def test_batch_that_the_channel_has_left_behind_sends_nothing(snowpipe, run):
    run(batch=6)
    assert run([9], batch=5).superseded == ("ds_0", 6)
    assert loaded(snowpipe) == IDS


def test_batch_that_another_channel_has_left_behind_sends_nothing(snowpipe, run):
    source = channel_source(write_options(), "ds_1", BatchIdentity(6, WRITER, 2))
    outcome = run(seen=BatchesSeen({"ds_1": source.token(BatchDigestOffset(6, 1, 0), 1, 0)}))
    assert outcome.superseded == ("ds_0", 6)
    assert snowpipe.did() == ["status ds_0"]


@pytest.mark.parametrize("more", [{}, ORDERED], ids=["digest", "offset-column"])
class TestOfBothKinds:
    def test_channel_that_was_dropped_since_the_write_began_gets_no_row(self, snowpipe, run, more):
        run(batch=4, **more)
        seen = BatchesSeen({"ds_0": snowpipe.channels.pop("ds_0").committed})
        appends = len(snowpipe.appends())
        assert run(seen=seen, **more).error_type == "TokenWentBackError"
        assert len(snowpipe.appends()) == appends

    def test_empty_partition_opens_no_channel(self, snowpipe, run, more):
        outcome = run([], **more)
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


def test_values_of_an_offset_column_are_the_tokens_and_rows_behind_the_committed_one_are_sent(snowpipe, run):
    run(IDS[:3], **ORDERED)
    appends = len(snowpipe.appends())
    outcome = run(IDS, **ORDERED)
    assert snowpipe.channels["ds_0"].committed == target(outcome)
    assert shown(target(outcome)) == "5"
    assert [row["ID"] for call in snowpipe.appends()[appends:] for row in call.rows] == [3, 4, 5]


def test_token_that_expired_before_the_task_began_leaves_the_batch_incomplete(snowpipe, run):
    outcome = run(life=-1)
    assert (outcome.complete, outcome.error_type, outcome.channels) == (False, None, ())
    assert snowpipe.calls == []


def test_partition_beyond_the_promised_number_sends_nothing_and_asks_nobody(snowpipe, run):
    outcome = run(partition=2)
    assert outcome.error_type == "ConfigurationError"
    assert outcome.error.startswith("the plan has a partition 2, option partitions is 2")
    assert (outcome.partition, outcome.attempt, snowpipe.calls) == (2, 3, [])


@pytest.mark.parametrize(
    ("more", "identity", "path", "application"),
    [
        ({}, BatchIdentity(5, "0000abcd", 2), "/dead/query=0000abcd/batch=5", "ds query=0000abcd batch=5"),
        (ORDERED, None, "/dead", "ds by ID"),
    ],
    ids=["query", "offset-column"],
)
def test_rows_are_put_aside_by_their_batch_or_their_column(more, identity, path, application):
    columns = (TableColumn("ID", "NUMBER(38,0)"),)
    options = write_options(onError="dead_letter", deadLetterPath="/dead/", **more)
    rules = row_rules(options, columns, identity)
    alone = row_rules(write_options(checkRows="true"), columns, BatchIdentity(5, "00000001", 2))
    assert (rules.dead_letter_path, rules.application) == (path, application)
    assert (alone.columns, alone.dead_letter_path) == (columns, None)

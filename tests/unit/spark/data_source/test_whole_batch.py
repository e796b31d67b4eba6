"""A batch that comes again over several channels, as a whole, against a scripted service; no Spark."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pyarrow as pa
import pytest

from airflow_provider_snowpipe.spark.data_source import agreement, gates, whole_batch
from airflow_provider_snowpipe.spark.data_source.digested import GIVEN_WRITER
from airflow_provider_snowpipe.spark.data_source.gates import (
    forget_agreement,
    identity_of,
    prepare,
    settle_batch,
)
from airflow_provider_snowpipe.spark.data_source.options import WriteOptions
from airflow_provider_snowpipe.spark.data_source.schema import KAFKA_PARTITION, is_kafka_partition
from airflow_provider_snowpipe.spark.data_source.task import Task
from airflow_provider_snowpipe.spark.data_source.whole_batch import BegunBatch
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    ContinuityError,
    SnowpipeError,
    SourcePositionError,
)
from tests.fake_snowpipe import URL, KilledError

ROUNDS = 30


class Writes:
    """Writes of rows that lie in partitions, as Spark calls for them.

    :param keyed: True names the channel by the row's own column
    """

    def __init__(self, snowpipe, keyed=False):
        self.snowpipe, self.keyed, self.slots = snowpipe, keyed, 8

    def options(self, shares, *, checked=True):
        given = {
            "accountUrl": URL, "database": "DB", "schema": "S", "table": "T", "channelPrefix": "ds",
            "batchBytes": "30", "batchId": "7", "fixedSpread": str(checked).lower(),
        }  # fmt: skip
        given |= {"channelColumn": "K"} if self.keyed else {"partitions": str(len(shares))}
        return WriteOptions.parse(given)

    def write(self, shares, *, checked=True, order=None):
        """One run of a write; its tasks begin in an order of their own."""
        options = self.options(shares, checked=checked)
        identity = identity_of(options, 7, None, GIVEN_WRITER)
        begun = BegunBatch.find(options, identity) if checked else None
        if begun is not None:
            begun.refuse_differences(
                finding
                for number, ids in enumerate(shares)
                for finding in begun.compare(number, self.batches(ids))
            )
        prepared = prepare(options, integer_offsets=False)

        def run(number):
            task = Task(options, prepared.token, prepared.seen, identity, number, 0, write=prepared.write)
            return task.run(self.batches(shares[number]))

        try:
            with ThreadPoolExecutor(1 if checked else self.slots) as slots:
                outcomes = list(slots.map(run, order or range(len(shares))))
            return settle_batch(options, outcomes, "batch=7", integer_offsets=False)
        finally:
            forget_agreement(options, prepared.seen, 7)

    def batches(self, ids):
        for low in range(0, len(ids), 3):
            some = ids[low : low + 3]
            yield pa.record_batch({"ID": some, "K": [f"k{number % 5}" for number in some]})

    def killed(self, shares, appends, **how):
        """A run whose processes die before an append; None if it has fewer."""
        self.snowpipe.fault(before="append", skip=appends, error=KilledError())
        with pytest.raises(KilledError):
            self.write(shares, **how)
        self.snowpipe._faults.clear()

    def refused(self, shares, **how):
        """The error that a run is refused with, None if it ended well or was killed."""
        try:
            self.write(shares, **how)
        except KilledError:
            return None
        except SnowpipeError as error:
            return error if "othing was sent" in str(error) else pytest.fail(str(error))
        assert self.table == _all(shares)
        return None

    @property
    def table(self):
        return sorted(row["ID"] for channel in self.snowpipe.channels.values() for row in channel.rows)


@pytest.fixture
def writes(snowpipe, monkeypatch):
    monkeypatch.setattr(gates, "driver_token", lambda options: snowpipe.scoped_token())
    monkeypatch.setattr(whole_batch, "standing_credentials", lambda path: None)

    def channels(*_, **__):
        return [
            {"name": name, "database_name": "DB", "schema_name": "S", "table_name": "T"}
            for name in snowpipe.channels
        ]

    monkeypatch.setattr(whole_batch, "statement_rows", channels)
    return Writes(snowpipe)


BEGUN = [list(range(10)), list(range(10, 20)), list(range(20, 30))]


def _moved(shares):
    """Rows of the channel that has begun lie in another one, and the other way round."""
    return [shares[2], shares[1], shares[0]]


@pytest.mark.parametrize("checked", [True, False], ids=["write_checked", "df.write"])
@pytest.mark.parametrize("appends", [1, 3, 5, 8])
def test_other_spread_is_refused_before_any_channel_sends_and_the_original_is_accepted(
    snowpipe, writes, checked, appends
):
    writes.killed(BEGUN, appends, checked=checked)
    before, sent = writes.table, len(snowpipe.appends())
    assert before

    for order in ([0, 1, 2], [2, 1, 0]):
        with pytest.raises(SnowpipeError, match="othing was sent"):
            writes.write(_moved(BEGUN), checked=checked, order=order)
    assert (writes.table, len(snowpipe.appends())) == (before, sent)

    writes.write(BEGUN, checked=checked)
    writes.write(BEGUN, checked=checked)  # complete: nothing is left to send
    assert writes.table == list(range(30))
    assert sorted(snowpipe.channels) == ["ds_0", "ds_1", "ds_2"]


def test_plain_write_of_a_begun_batch_needs_a_slot_for_each_partition(snowpipe, writes, monkeypatch):
    monkeypatch.setattr(agreement, "STARTED_WITHIN_SECONDS", 0.1)
    writes.slots = 1
    writes.killed(BEGUN, 5, checked=False)
    before, sent = writes.table, len(snowpipe.appends())

    with pytest.raises(SourcePositionError, match="slot") as refused:
        writes.write(BEGUN, checked=False)
    assert "Nothing was sent" in str(refused.value)
    assert (writes.table, len(snowpipe.appends())) == (before, sent)

    writes.write(BEGUN)
    assert writes.table == list(range(30))


def test_rows_that_a_dead_writer_left_uncommitted_count_as_begun(snowpipe, writes):
    snowpipe.fault(before="append", do=lambda: setattr(snowpipe, "holds_commits", True))
    writes.killed(BEGUN, 2)
    snowpipe.fault(after="open", do=snowpipe.commit)
    assert writes.table == []

    with pytest.raises(SnowpipeError, match="othing was sent"):
        writes.write(_moved(BEGUN))

    snowpipe.holds_commits = False
    writes.write(BEGUN)
    assert writes.table == list(range(30))


def test_batch_that_is_new_or_has_one_channel_is_not_compared(snowpipe, writes):
    shares, one = BEGUN, [list(range(30))]

    assert (
        BegunBatch.find(writes.options(shares), identity_of(writes.options(shares), 7, None, "0" * 8)) is None
    )
    writes.killed(one, 2)
    assert BegunBatch.find(writes.options(one), identity_of(writes.options(one), 7, None, "0" * 8)) is None


def test_channel_of_two_partitions_is_refused_whole(snowpipe, writes):
    writes.keyed = True
    writes.killed([[0, 5, 10, 1, 6, 11]], 1)
    sent = len(snowpipe.appends())

    with pytest.raises(ContinuityError, match="channelColumn"):
        writes.write([[0, 5, 10], [1, 6], [11]])

    assert len(snowpipe.appends()) == sent


def _spread(ids, keyed, by=0):
    """Rows in partitions; those of a channel that a column names lie together, in order."""
    shares = [[n for n in ids if hash((n % 5 if keyed else n, by)) % 3 == one] for one in range(3)]
    return [sorted(share, key=lambda n: n % 5) for share in shares] if keyed else shares


def _other(chance, keyed):
    """The rows 0 to 59, but spread, grown, cut, ordered or made in another way."""
    ids, by = list(range(60)), 0
    match chance.choice(["reshuffled", "grown", "shrunk", "reordered", "changed"]):
        case "reshuffled":
            by = chance.randint(1, 9)
        case "grown":
            ids[chance.randrange(60) : 0] = range(100, 100 + chance.randint(1, 20))
        case "shrunk":
            del ids[chance.randrange(59) :]
        case "reordered":
            chance.shuffle(ids)
        case "changed":
            ids[chance.randrange(60)] = 200
    return _spread(ids, keyed, by)


def _all(shares):
    return sorted(number for share in shares for number in share)


def test_batch_that_was_begun_by_partition_is_refused_by_column(snowpipe, writes):
    writes.killed(BEGUN, 2)
    writes.keyed = True

    with pytest.raises(SourcePositionError, match="channelColumn"):
        writes.write(BEGUN)


@pytest.mark.parametrize("keyed", [False, True], ids=["partitions", "channelColumn"])
@pytest.mark.parametrize("seed", range(ROUNDS))
def test_reruns_that_bring_something_else_are_exact_or_refused_with_nothing_sent(
    snowpipe, writes, seed, keyed
):
    chance = random.Random(seed)
    writes.keyed = keyed
    begun = _spread(range(60), keyed)
    writes.killed(begun, chance.randrange(1, 12), order=chance.sample(range(3), 3))
    for _ in range(4):
        shares, checked = _other(chance, keyed), keyed or chance.random() < 0.7
        before = (writes.table, len(snowpipe.appends()))
        if checked and chance.random() < 0.4:
            snowpipe.fault(before="append", skip=chance.randrange(4), error=KilledError())
        refused = writes.refused(shares, checked=checked, order=chance.sample(range(3), 3))
        snowpipe._faults.clear()
        if refused is None:
            begun = shares  # it fits all that was committed
        else:
            assert (writes.table, len(snowpipe.appends())) == before

    writes.write(begun, order=chance.sample(range(3), 3))
    assert writes.table == _all(begun)


@pytest.mark.parametrize(
    ("more", "metadata", "refused"),
    [
        ({"channelColumn": "K", "offsetColumn": "ID"}, {}, True),
        ({"channelColumn": "K", "offsetColumn": "ID"}, {KAFKA_PARTITION: True}, False),
        ({"channelColumn": "K", "offsetColumn": "ID", "fixedSpread": "true"}, {}, False),
        ({"channelColumn": "K"}, {}, False),
        ({"partitions": "2", "offsetColumn": "ID"}, {}, True),
        ({"partitions": "2", "offsetColumn": "ID", "fixedSpread": "true"}, {}, False),
        ({"partitions": "1", "offsetColumn": "ID"}, {}, False),
        ({"partitions": "2"}, {}, False),
    ],
    ids=["both", "kafka", "promised", "channel", "offset", "offset-promised", "one-channel", "digest"],
)
def test_rows_with_an_offset_column_are_refused_where_nobody_sees_the_plan(more, metadata, refused):
    given = {"accountUrl": URL, "database": "DB", "schema": "S", "table": "T", "channelPrefix": "ds"}
    options = WriteOptions.parse({**given, **more})
    schema = {"fields": [{"name": "K", "metadata": metadata}, {"name": "ID", "metadata": metadata}]}

    with pytest.raises(ConfigurationError, match="write_checked") if refused else nullcontext():
        options.refuse_unknown_spread(from_kafka=is_kafka_partition(schema, options))

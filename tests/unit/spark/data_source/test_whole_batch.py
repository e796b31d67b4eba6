"""A batch that comes again over several channels, as a whole, against a scripted service; no Spark."""

import random
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa
import pytest

from airflow_provider_snowpipe.spark.data_source import agreement, gates
from airflow_provider_snowpipe.spark.data_source.task import Task
from airflow_provider_snowpipe.streaming import errors
from airflow_provider_snowpipe.streaming.batch import Pace
from airflow_provider_snowpipe.streaming.checkpoint import Checkpoint
from airflow_provider_snowpipe.streaming.offsets import BatchDigestOffset
from tests.fake_snowpipe import URL, KilledError
from tests.unit.spark.data_source.write_options import write_options

ROUNDS = 30
DEFAULT_PIPE = {"database_name": "DB", "schema_name": "S", "table_name": "T"}


def seeds(by_day):
    """The seeds of histories: a few by day, all by night."""
    by_night = (pytest.param(seed, marks=pytest.mark.nightly) for seed in range(by_day, 2 * ROUNDS))
    return [*range(by_day), *by_night]


class Turns:
    """Runs tasks of which one goes on at a time; at each request and each wait of one, chance decides which.

    :param chance: a seeded random source
    :param slots: so many have begun and not ended at a time
    """

    def __init__(self, chance, slots):
        self._chance, self._slots = chance, slots
        self._own, self._back, self._next = threading.local(), threading.Semaphore(0), []

    def pause(self):
        """Let another task go on; called by tasks."""
        turn = getattr(self._own, "turn", None)
        if turn is not None:
            self._back.release()
            turn.acquire()

    def map(self, run, numbers):
        pending, running = list(numbers), {}
        ended = {number: Future() for number in pending}
        for _ in range(5000):
            while pending and len(running) < self._slots:
                number = pending.pop(0)
                running[number] = threading.Semaphore(0)
                work = (run, number, running[number], ended[number])
                threading.Thread(target=self._work, args=work, daemon=True).start()
            if not running:
                return [future.result() for future in ended.values()]
            self._next = [number for number in self._next if number in running]
            if not self._next:
                self._next = [self._chance.choice(list(running))] * self._chance.choice([1, 2, 8])
            number = self._next.pop()
            running[number].release()
            self._back.acquire()
            if ended[number].done():
                del running[number]
        return pytest.fail("the tasks wait for each other without an end")

    def _work(self, run, number, turn, ended):
        self._own.turn = turn
        turn.acquire()
        try:
            ended.set_result(run(number))
        except BaseException as error:  # noqa: BLE001  whoever asks for the result meets it
            ended.set_exception(error)
        self._back.release()


class TimeInTurns:
    """A clock that stands still until a task sleeps, which is when another one goes on."""

    def __init__(self, clock, turns):
        self._clock, self._turns, self.monotonic = clock, turns, clock.monotonic

    def sleep(self, seconds):
        self._clock.sleep(seconds)
        self._turns.pause()


class Writes:
    """Writes of rows that lie in partitions, as Spark calls for them."""

    def __init__(self, snowpipe):
        self.snowpipe, self.slots, self.turns, self.query = snowpipe, 8, None, None
        self.keyed = False  # True names the channel by the row's own column

    def options(self, shares, *, checked=True):
        partitions, column = (None, "K") if self.keyed else (str(len(shares)), None)
        given = {"batchBytes": "30", "batchId": "7", "fixedSpread": str(checked).lower()}
        return write_options(**given, partitions=partitions, channelColumn=column)

    def find(self, shares, variants=frozenset()):
        """What is begun of a batch that was to have these rows."""
        options = self.options(shares)
        return gates.BegunBatch.find(options, gates.identity_of(options, 7, self.query), variants)

    def write(self, shares, *, checked=True, order=None):
        """One run of a write; its tasks begin in an order of their own."""
        options = self.options(shares, checked=checked)
        identity = gates.identity_of(options, 7, self.query)
        begun = self.find(shares) if checked else None
        if begun is not None:
            begun.refuse_differences(
                finding
                for number, ids in enumerate(shares)
                for finding in begun.compare(number, self.batches(ids))
            )
        prepared = gates.prepare(options, integer_offsets=False)

        def run(number, attempt=0):
            task = Task(options, prepared, identity, number, attempt)
            try:
                return task.run(self.batches(shares[number]))
            except KilledError:
                if self.turns is None or attempt == 3:
                    raise
                return run(number, attempt + 1)

        try:
            with ThreadPoolExecutor(1 if checked else self.slots) as slots:
                outcomes = list((self.turns or slots).map(run, order or range(len(shares))))
            return gates.settle_batch(options, outcomes, "batch=7", integer_offsets=False)
        finally:
            gates.forget_agreement(options, prepared.seen, 7)

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

    def refused(self, shares, says="othing was sent", **how):
        """Whether a run is refused with such a text; False if it sent all rows, or was killed."""
        try:
            self.write(shares, **how)
        except KilledError:
            return False
        except errors.SnowpipeError as error:
            return says in str(error) or pytest.fail(str(error))
        assert self.table == _all(shares)
        return False

    @property
    def table(self):
        return sorted(row["ID"] for channel in self.snowpipe.channels.values() for row in channel.rows)


@pytest.fixture
def writes(snowpipe, monkeypatch):
    monkeypatch.setattr(gates, "driver_token", lambda options: snowpipe.scoped_token())
    monkeypatch.setattr(gates, "standing_credentials", lambda path: None)
    # Tasks and senders are threads in real time.
    monkeypatch.setattr(agreement, "_POLL_SECONDS", 0.002)
    monkeypatch.setattr(Pace, "take", lambda *_: 0.0)

    def listed(*_, **__):
        return [{**DEFAULT_PIPE, "name": name} for name in snowpipe.channels]

    monkeypatch.setattr(gates, "statement_rows", listed)
    return Writes(snowpipe)


KEYED = [[0, 5, 10, 1, 6, 11]]
BEGUN = [list(range(10)), list(range(10, 20)), list(range(20, 30))]


def _moved(shares):
    """Rows of the channel that has begun lie in another one, and the other way round."""
    return [shares[2], shares[1], shares[0]]


@pytest.mark.parametrize("seed", seeds(12))
def test_tasks_of_a_plain_write_send_all_or_none_in_any_order(snowpipe, writes, monkeypatch, seed):
    chance = random.Random(seed)
    writes.killed(BEGUN, chance.choice([1, 3, 5, 8]), order=chance.sample(range(3), 3))
    writes.turns = Turns(chance, chance.choice([1, 2, 3, 3, 3]))
    monkeypatch.setattr(agreement, "time", TimeInTurns(snowpipe.clock, writes.turns))
    monkeypatch.setattr(agreement, "_POLL_SECONDS", 40)  # the third poll is late
    send = snowpipe.send
    monkeypatch.setattr(snowpipe, "send", lambda *a, **k: (writes.turns.pause(), send(*a, **k))[1])
    for _ in range(chance.choice([0, 0, 1, 2])):
        when, number = chance.choice(["before", "after"]), chance.randrange(3)
        what = chance.choice([("append", f"ds_{number}"), ("open", f"ds_{number}__compared")])
        snowpipe.fault(**{when: what[0]}, channel=what[1], skip=chance.randrange(4), error=KilledError())
    changed = chance.random() < 0.3
    before = writes.table, len(snowpipe.appends())

    shares = _moved(BEGUN) if changed else BEGUN
    refused = writes.refused(shares, says="", checked=False, order=chance.sample(range(3), 3))

    assert refused or not changed
    if refused:
        assert (writes.table, len(snowpipe.appends())) == before
    else:
        assert writes.table == list(range(30))


def test_stream_that_another_driver_overtakes_sends_nothing(snowpipe, writes):
    """What it could have compared is gone: the channel's token is that of a later batch."""
    writes.query = "the stream"
    writes.killed([BEGUN[0], BEGUN[1], []], 1)
    before, sent = writes.table, len(snowpipe.appends())
    channel = snowpipe.channels["ds_0"]
    now = Checkpoint.parse(channel.committed)
    later = str(replace(now, position=replace(now.position, batch=8)))
    snowpipe.fault(after="status", channel="ds_0__compared", do=lambda: setattr(channel, "committed", later))

    with pytest.raises(errors.SnowpipeError, match="Nothing was sent"):
        writes.write([[], BEGUN[1], BEGUN[0]], checked=False)

    assert (writes.table, len(snowpipe.appends())) == (before, sent)


def test_rows_that_a_dead_writer_left_uncommitted_count_as_begun(snowpipe, writes):
    snowpipe.fault(before="append", do=lambda: setattr(snowpipe, "holds_commits", True))
    writes.killed(BEGUN, 2)
    snowpipe.fault(after="open", do=snowpipe.commit)
    assert writes.table == []
    with pytest.raises(errors.SnowpipeError, match="othing was sent"):
        writes.write(_moved(BEGUN))
    snowpipe.holds_commits = False
    writes.write(BEGUN)
    assert writes.table == list(range(30))


def test_batch_that_is_new_or_has_one_channel_is_not_compared(snowpipe, writes):
    one = [list(range(30))]
    assert writes.find(BEGUN) is None
    writes.killed(one, 2)
    assert writes.find(one) is None


def test_channel_of_two_partitions_or_a_batch_begun_by_partition_is_refused(snowpipe, writes):
    writes.keyed = True
    writes.killed(KEYED, 1)
    sent = len(snowpipe.appends())

    with pytest.raises(errors.ContinuityError, match="channelColumn"):
        writes.write([[0, 5, 10], [1, 6], [11]])
    assert len(snowpipe.appends()) == sent

    snowpipe.channels.clear()
    writes.keyed = False
    writes.killed(BEGUN, 2)
    writes.keyed = True
    with pytest.raises(errors.SourcePositionError, match="channelColumn"):
        writes.write(BEGUN)


def test_channels_of_a_source_whose_prefix_begins_alike_are_left_to_it(snowpipe, writes):
    writes.keyed = True
    writes.killed(KEYED, 1)
    snowpipe.channel("ds_daily_0", committed="41")
    snowpipe.channel("ds_t__topic_id", committed="an id")
    snowpipe.channel("other_0")
    writes.write(KEYED)
    assert writes.table == [0, 1, 5, 6, 10, 11]
    opened = {call.channel for call in snowpipe.calls if call.operation == "open"}
    assert opened == {"ds_k0", "ds_k1"}, "whoever writes the others is not shut out"


@pytest.mark.parametrize("listed", ["pipe", "schema"])
def test_channels_of_a_column_are_listed_by_pipe_or_schema(snowpipe, writes, monkeypatch, listed):
    writes.keyed = True
    writes.killed(KEYED, 1)
    asked = []

    def row(name, pipe=None):
        of_pipe = {"parent_domain": "PIPE", "parent_name": pipe} if pipe else {}
        return {**DEFAULT_PIPE, **of_pipe, "name": name}

    def rows(account_url, credentials, statement, *, ca_bundle):
        asked.append((account_url, credentials, statement))
        if "PIPE" in statement:
            return [row("ds_k0")] if listed == "pipe" else []
        return [row("ds_k1", "ANOTHER"), row("ds_k0", "t-streaming"), row("ds_k2")]

    monkeypatch.setattr(gates, "standing_credentials", lambda path: f"credentials of {path}")
    monkeypatch.setattr(gates, "statement_rows", rows)

    begun = writes.find([[]], frozenset("V"))

    assert (list(begun.committed), begun.variants) == (["ds_k0"], {"V"})
    assert asked[0][:2] == (URL, "credentials of None")
    assert [one[2] for one in asked][1:] == ([] if listed == "pipe" else ['SHOW CHANNELS IN SCHEMA "DB"."S"'])


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


@pytest.mark.parametrize("seed", seeds(10))
def test_reruns_that_bring_something_else_are_exact_or_refused_with_nothing_sent(snowpipe, writes, seed):
    chance = random.Random(seed)
    keyed = writes.keyed = bool(seed % 2)
    begun = _spread(range(60), keyed)
    writes.killed(begun, chance.randrange(1, 12), order=chance.sample(range(3), 3))
    for _ in range(4):
        shares, checked = _other(chance, keyed), keyed or chance.random() < 0.7
        before = (writes.table, len(snowpipe.appends()))
        if checked and chance.random() < 0.4:
            snowpipe.fault(before="append", skip=chance.randrange(4), error=KilledError())
        refused = writes.refused(shares, checked=checked, order=chance.sample(range(3), 3))
        snowpipe._faults.clear()
        if refused:
            assert (writes.table, len(snowpipe.appends())) == before
        else:
            begun = shares  # it fits all that was committed

    for _ in range(2):  # complete: nothing is left to send
        writes.write(begun, order=chance.sample(range(3), 3))
        assert writes.table == _all(begun)
    assert not [name for name in snowpipe.channels if "compared" in name]


def test_rows_with_an_offset_column_are_refused_where_nobody_sees_the_plan():
    by_column = {"partitions": None, "channelColumn": "K"}
    for by in (by_column, {"partitions": "2"}):
        with pytest.raises(errors.ConfigurationError, match="write_checked"):
            write_options(**by, offsetColumn="ID").refuse_unknown_spread()
        write_options(**by, offsetColumn="ID", fixedSpread="true").refuse_unknown_spread()
        write_options(**by).refuse_unknown_spread()
    write_options(partitions="1", offsetColumn="ID").refuse_unknown_spread()


class TestFindings:
    @pytest.fixture
    def begun(self, writes):
        writes.killed(BEGUN, 5)
        return writes.find(BEGUN)

    def test_rows_are_compared_as_they_are_sent(self, writes, begun):
        """Without a column, the same rows are others; and this text is no VARIANT."""
        fewer = replace(begun, options=replace(begun.options, omit_columns=frozenset({"K"})))
        parsed = replace(begun, variants=frozenset({"K"}))
        found = [next(iter(other.compare(0, writes.batches(BEGUN[0])))) for other in (fewer, parsed)]
        assert [one.error_type for one in found] == ["SourcePositionError", "EncodingError"]


def test_difference_is_named_with_its_error_and_the_others_are_counted(writes):
    options = writes.options(BEGUN)
    identity = gates.identity_of(options, 7, None)
    token = BatchDigestOffset(7, 3, 0)
    begun = gates.BegunBatch(options, identity, {"ds_0": token, "ds_2": token})
    fine = [gates.Finding(number, f"ds_{number}") for number in range(3)]
    wrong = gates.Finding(2, "ds_2", "SourcePositionError", "other rows")

    begun.refuse_differences(iter(fine))
    for kind, text, findings in [
        ("SourcePosition", r"batch 7 .*nothing was sent: other rows\. ", [*fine[:2], wrong]),
        ("SourcePosition", r"other rows \(1 more", [replace(wrong, partition=0, channel="ds_0"), wrong]),
        ("Configuration", "bad column", [gates.Finding(1, "", "ConfigurationError", "bad column")]),
        ("SourcePosition", r"'ds_0'.*has no row.*'7:3/.*1 more", []),
        ("SourcePosition", "'ds_2'", fine[:2]),
        ("Continuity", "'ds_0' lie in the partitions 0 and 1", [*fine, replace(fine[0], partition=1)]),
    ]:
        with pytest.raises(getattr(errors, f"{kind}Error"), match=text):
            begun.refuse_differences(findings)

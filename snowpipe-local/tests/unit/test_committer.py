"""The committer: what waits for its commit, where it waits, and what never becomes one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from types import SimpleNamespace
from typing import Any

import pytest
from snowpipe_local.engine import committer, database, ingest
from snowpipe_local.engine.channel import TABLE_MISSING, UNCOMMITTED, Append, Channel
from snowpipe_local.engine.ingest import MUST_REOPEN
from snowpipe_local.engine.spool import Spool
from snowpipe_local.errors import Refusal
from snowpipe_local.limits import Limits
from tests.unit.streamed_table import Engine, StreamedTable, row

BOUND = 20.0
NEVER = 3600.0
died: list[BaseException | None] = []


class Clock:
    """The committer's time, which its waits move."""

    def __init__(self) -> None:
        self.now = time.monotonic()
        self.waits: list[float] = []
        self.commits: list[float] = []
        self.condition = self.Condition(self)

    class Condition(threading.Condition):
        """A wait with a bound takes no time: it moves the clock."""

        def __init__(self, clock: Clock) -> None:
            super().__init__()
            self._clock = clock

        def wait(self, timeout: float | None = None) -> bool:
            if timeout is not None:
                self._clock.waits.append(timeout)
                self._clock.now += timeout
            return super().wait(BOUND if timeout is None else 0)


class Gate:
    """An engine of its own whose commits wait, before they take the database's lock, until it is opened."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.reached = threading.Event()
        self.opened = threading.Event()

    def commit(self, *given: Any) -> None:
        self.reached.set()
        assert self.opened.wait(BOUND)
        ingest.commit_group(*given)


@pytest.fixture(autouse=True)
def deaths(monkeypatch):
    """A thread that ended by an exception fails the test that waits for it at once."""
    died.clear()
    monkeypatch.setattr(threading, "excepthook", lambda death: died.append(death.exc_value))


@pytest.fixture
def quick(monkeypatch):
    """A delay that is taken back is noticed at once."""
    monkeypatch.setattr(committer, "_DELAY_POLL_SECONDS", 0.01)


# 100 bytes may wait, 40 of them in memory.
SMALL = Limits(0, 0, 0, queued_bytes=100, queued_bytes_in_memory=40)


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    """An engine, one whose own committer has nothing to do, and a small one."""
    made = [Engine(tmp_path_factory.mktemp("engine"), limits) for limits in (None, None, SMALL)]
    yield made
    for one in made:
        one.catalog.close()


@pytest.fixture
def engine(engines):
    return engines[0]


@pytest.fixture
def small(engines):
    return engines[2]


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(committer, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


@pytest.fixture
def held(engine, quick):
    yield from holding(engine)


@pytest.fixture
def held_small(small, quick):
    yield from holding(small)


def holding(engine: Engine) -> Iterator[Engine]:
    """An engine that commits nothing until its delay is taken back."""
    engine.faults.commit_delay = NEVER
    yield engine
    engine.faults.commit_delay = 0.0
    wait_until(lambda: not engine.database.committer.backlog())


@pytest.fixture
def gate(tmp_path, monkeypatch):
    made = Gate(Engine(tmp_path))
    monkeypatch.setattr(database, "commit_group", made.commit)
    yield made
    made.opened.set()
    made.engine.catalog.close()


def wait_until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + BOUND
    while not condition():
        assert not died
        assert time.monotonic() < deadline
        time.sleep(0.002)


def committed(append: Append) -> None:
    wait_until(append.durable.done)
    append.durable.result(0)


def waiting(engine: Engine, *, spool: bool = True) -> committer.Committer:
    """A committer that was not started: what it is given waits."""
    return new_committer(engine, limits=SMALL, spool=engine.spool if spool else None)


def new_committer(engine: Engine, **given: Any) -> committer.Committer:
    """A committer of its own on the engine's database."""
    default = {"commit": engine.database.commit, "delay": lambda: 0.0, "limits": Limits()}
    return committer.Committer(engine.database, **{**default, **given})


def full(_: object) -> None:
    raise OSError(28, "No space left on device")


def refused(work: Callable[[], Any]) -> tuple[int, str]:
    with pytest.raises(Refusal) as refusal:
        work()
    return refusal.value.status, refusal.value.code


def sized(table: StreamedTable, channel: Channel, size: int) -> Append:
    """An append of exactly so many bytes."""
    append = table.take(channel, row(1, "x" * (size - len(row(1, "")) - 1)))
    assert append.size == size
    return append


class TestTime:
    """When a commit is made, on a clock that the committer's own waits move."""

    @pytest.fixture
    def engine(self, engines):
        return engines[1]

    @pytest.fixture
    def made(self, engine, clock, monkeypatch):
        def commit(group: Sequence[Append]) -> None:
            clock.commits.append(clock.now)
            clock.now += 1.5
            engine.database.commit(group)

        made = new_committer(engine, commit=commit, delay=lambda: engine.faults.commit_delay)
        made._changed = clock.condition
        yield made
        engine.faults.commit_delay = 0.0
        made.stop()

    def sent(self, clock: Clock, engine: Engine) -> Append:
        table = engine.table()
        append = table.take(table.open(), row(1))
        append.received_at = clock.now
        return append

    def test_rows_wait_a_short_time_for_others_and_the_record_has_the_duration(self, made, clock, engine):
        append = self.sent(clock, engine)
        made.enqueue(append)
        made.start()
        committed(append)
        assert clock.commits == [pytest.approx(append.received_at + committer.LINGER_SECONDS, abs=0.002)]
        wait_until(lambda: made.records)
        seconds = pytest.approx(1.5)
        assert made.records == [committer.CommitRecord(1, 1, append.size, own=False, seconds=seconds)]
        [thread] = [one for one in threading.enumerate() if one is made._thread]
        assert (thread.name, thread.daemon) == ("committer-LOCAL", True)

    def test_a_delay_holds_a_commit_back_and_is_checked_repeatedly(self, made, clock, engine):
        engine.faults.commit_delay = 1.0
        append = self.sent(clock, engine)
        made.enqueue(append)
        made.start()
        committed(append)
        assert clock.commits == [
            pytest.approx(append.received_at + 1.0 + committer.LINGER_SECONDS, abs=0.002)
        ]
        assert clock.waits[:20] == [committer._DELAY_POLL_SECONDS] * 20

    def test_an_idle_committer_checkpoints_what_is_new(self, made, clock, engine, monkeypatch):
        checkpoints: list[float] = []

        def checkpoint() -> None:
            engine.database.dirty = False
            checkpoints.append(clock.now)

        monkeypatch.setattr(engine.database, "checkpoint", checkpoint)
        append = self.sent(clock, engine)
        made.enqueue(append)
        made.start()
        wait_until(lambda: checkpoints)
        committed(append)
        assert checkpoints == [pytest.approx(clock.commits[0] + 1.5 + committer.CHECKPOINT_IDLE_SECONDS)]
        second = self.sent(clock, engine)
        made.enqueue(second)
        committed(second)
        wait_until(lambda: len(checkpoints) == 2)

    def test_a_commit_of_a_busy_channel_is_its_own(self, made, clock, engine, monkeypatch):
        monkeypatch.setattr(committer, "OWN_BYTES_PER_SECOND", 100)
        table = engine.table()
        busy, quiet = table.open("busy"), table.open("quiet")
        appends = [sized(table, quiet, 50), sized(table, busy, 400)]
        for append in appends:
            append.received_at = clock.now
            made.enqueue(append)
        pace = {channel.name: made.arrival(channel) for channel in (busy, quiet)}
        made.start()
        for append in appends:
            committed(append)
        assert pace == {"busy": (pytest.approx(200.0), True), "quiet": (pytest.approx(25.0), False)}
        wait_until(lambda: len(made.records) == 2)
        assert sorted((record.own, record.size) for record in made.records) == [(False, 50), (True, 400)]


class TestCommits:
    def test_a_commit_that_fails_does_not_end_the_committer(self, engine, monkeypatch):
        table = engine.table()
        broken, sound = table.open("broken"), table.open("sound")
        with monkeypatch.context() as patch:
            patch.setattr(ingest, "_insert", lambda *_: 1 / 0)
            append = table.send(broken, row(1), token="1")
            with pytest.raises(CancelledError):
                committed(append)
        wait_until(lambda: not engine.database.committer.backlog())
        committed(table.send(sound, row(2), token="2"))
        assert (table.rows(), table.token("broken")) == ([(2, None)], None)
        assert broken.status()["channel_status_code"] == MUST_REOPEN

    def test_a_commit_that_raises_leaves_nothing_in_flight(self, engine, monkeypatch):
        table = engine.table()
        channel = table.open()
        append = table.take(channel, row(1))

        def raise_it(_: object) -> None:
            raise MemoryError

        made = new_committer(engine, commit=raise_it)
        made.enqueue(append)
        monkeypatch.setattr(threading, "excepthook", lambda _: None)
        made.start()
        wait_until(lambda: made.records)
        assert made.backlog() == {}

    def test_a_commit_that_is_held_is_made_when_the_committer_stops(self, engine, quick, monkeypatch):
        monkeypatch.setattr(committer, "LINGER_SECONDS", 0.0)
        table = engine.table()
        channel = table.open()
        checked: list[float] = []

        def delay() -> float:
            checked.append(NEVER)
            return NEVER

        made = new_committer(engine, delay=delay)
        for number in (1, 2):
            made.enqueue(table.take(channel, row(number), token=str(number)))
        made.start()
        wait_until(lambda: len(checked) > 3)
        assert table.rows() == []
        assert made.backlog()[channel].appends == 2
        made.stop()
        assert (table.rows(), table.token()) == ([(1, None), (2, None)], "2")
        assert made.backlog() == {}


class TestBacklog:
    def test_what_waits_is_reported_by_channel_and_shares_a_commit_in_its_order(self, held):
        table = held.table()
        a, b = table.open("a"), table.open("b")
        appends = [table.send(a, row(1)), table.send(b, row(2)), table.send(a, row(3), token="3")]
        made = held.database.committer
        assert {channel.name: entry.appends for channel, entry in made.backlog().items()} == {"a": 2, "b": 1}
        waiting = made.backlog()[a]
        assert waiting.size == appends[0].size + appends[2].size
        assert waiting.received_at == appends[0].received_at
        rate, own = made.arrival(a)
        assert (rate > 0, own, table.rows()) == (True, False, [])
        held.faults.commit_delay = 0.0
        committed(appends[-1])
        assert (table.rows(), table.token("a")) == ([(1, None), (2, None), (3, None)], "3")
        assert a.status()["last_committed_offset_token"] == "3"
        wait_until(lambda: made.records[-1].appends == 3)
        record = made.records[-1]
        assert (record.channels, record.size, record.own) == (2, sum(one.size for one in appends), False)

    def test_what_is_being_committed_still_waits(self, gate):
        table = gate.engine.table()
        channel = table.open()
        append = table.send(channel, row(1))
        assert gate.reached.wait(BOUND)
        assert gate.engine.database.committer.backlog()[channel].appends == 1
        assert refused(lambda: table.open(fail=True)) == (409, UNCOMMITTED)
        gate.opened.set()
        committed(append)
        table.open(fail=True)


class TestBounds:
    def test_too_many_bytes_are_refused_and_nothing_of_them_is_taken(self, held_small):
        table = held_small.table()
        channel = table.open()
        first = table.send(channel, row(1, "x" * 60), token="1")
        before = channel.continuation_token
        assert refused(lambda: table.send(channel, row(2, "x" * 60), token="2"))[0] == 429
        assert channel.continuation_token == before
        held_small.faults.commit_delay = 0.0
        committed(first)
        committed(table.send(channel, row(2, "x" * 60), token="2"))
        # One append above the bound is taken where nothing waits.
        committed(table.send(channel, row(3, "x" * 200), token="3"))
        assert ([one[0] for one in table.rows()], table.token()) == ([1, 2, 3], "3")

    def test_exactly_so_many_bytes_may_wait_and_so_many_of_them_in_memory(self, small):
        made, table = waiting(small), small.table()
        channel = table.open()
        appends = [sized(table, channel, size) for size in (20, 20, 35, 25)]
        for append in appends:
            made.enqueue(append)
        assert [append.parked is not None for append in appends] == [False, False, True, True]
        late = sized(table, channel, 19)
        assert refused(lambda: made.enqueue(late)) == (429, "RECEIVER_SATURATED")
        made.discard(channel)
        assert (made.backlog(), small.spool.files) == ({}, 0)
        again = [sized(table, channel, size) for size in (40, 20, 40)]
        for append in again:
            made.enqueue(append)
        assert [append.parked is not None for append in again] == [False, True, True]
        made.discard(channel)
        without = waiting(small, spool=False)
        append = sized(table, channel, 90)
        without.enqueue(append)
        assert (append.parked, without.backlog()[channel].size) == (None, 90)

    def test_an_append_that_the_disk_refused_counts_no_more(self, small, monkeypatch):
        made, table = waiting(small), small.table()
        channel = table.open()
        made.enqueue(sized(table, channel, 50))
        no_room = (503, "SERVICE_UNAVAILABLE")
        with monkeypatch.context() as patch:
            patch.setattr(small.spool, "park", full)
            assert refused(lambda: made.enqueue(sized(table, channel, 45))) == no_room
        with monkeypatch.context() as patch:
            # There has to be room for the rows and for the log of their commit.
            patch.setattr(small.database, "has_space", lambda size: size <= 60)
            made.enqueue(sized(table, channel, 30))
            assert refused(lambda: made.enqueue(sized(table, channel, 31))) == no_room
        assert refused(lambda: made.enqueue(sized(table, channel, 21)))[0] == 429
        made.enqueue(sized(table, channel, 20))
        assert made.backlog()[channel].appends == 3
        made.discard(channel)


class TestSpool:
    """Appends above the bound of memory wait on disk."""

    def test_they_come_back_with_their_rows_and_leave_nothing_on_disk(self, held_small):
        table = held_small.table()
        channel = table.open()
        appends = [
            table.send(channel, row(1, "x"), token="1"), table.send(channel, row(2, "y"), token="2"),
            table.send(channel, row(3, "z"), b"\xff", token="3"),
        ]  # fmt: skip
        assert [append.parked is not None for append in appends] == [False, False, True]
        assert (held_small.spool.files, appends[2].lines.rows) == (1, 0)
        held_small.faults.commit_delay = 0.0
        committed(appends[-1])
        assert table.rows() == [(1, "x"), (2, "y"), (3, "z")]
        assert (table.token(), channel.status()["rows_error_count"]) == ("3", 1)
        assert held_small.spool.files == 0
        assert table.send(channel, row(4)).parked is None

    def test_rows_that_cannot_be_read_back_are_not_passed_by_the_token(self, held_small):
        table = held_small.table()
        channel = table.open()
        appends = [table.send(channel, row(number, "x" * 20), token=str(number)) for number in (1, 2)]
        appends[1].parked.path.write_bytes(b"")
        held_small.faults.commit_delay = 0.0
        with pytest.raises(CancelledError):
            committed(appends[1])
        assert (table.rows(), table.token()) == ([], None)
        assert channel.status()["channel_status_code"] == MUST_REOPEN
        wait_until(lambda: held_small.spool.files == 0)

    def test_what_waited_on_disk_when_the_process_ended_is_gone_and_was_not_committed(self, tmp_path):
        engine = Engine(tmp_path / "a", Limits(0, 0, 0, queued_bytes_in_memory=1))
        engine.faults.commit_delay = NEVER
        table = engine.table()
        append = table.send(table.open(token="0"), row(1), token="1")
        body = append.parked.path
        with engine.after_a_crash(tmp_path / "copy") as restored:
            assert (table.rows(restored), table.token("c", restored)) == ([], "0")
        engine.catalog.close()
        assert not body.exists()
        body.write_bytes(b"left by a crash")
        home = engine.home
        Spool(home.spool_dir, home.stage_dir, home.spool_keys_file)
        assert not body.exists()


class TestDiscard:
    def test_opening_again_and_dropping_discard_what_is_not_committed(self, held):
        table = held.table()
        channel, dropped, other = table.open("c", token="0"), table.open("e", token="5"), table.open("d")
        gone = [table.send(channel, row(number), token=str(number)) for number in (1, 2)]
        gone.append(table.send(dropped, row(4), token="6"))
        kept = table.send(other, row(3))
        table.open("c")
        held.database.channels.drop(table.pipe, "e")
        assert all(append.durable.cancelled() for append in gone)
        held.faults.commit_delay = 0.0
        committed(kept)
        assert (table.rows(), table.token("c")) == ([(3, None)], "0")
        table.open("c", fail=True)
        assert table.open("e").committed.offset_token is None

    def test_what_an_append_has_on_disk_goes_with_it(self, held, held_small):
        table = held.table()
        channel = table.open()
        for discarded in (True, False):
            append = table.take(channel, row(1))
            append.upload = held.spool.park(b"the file of the upload")
            held.database.committer.enqueue(append)
            if discarded:
                table.open()
            else:
                held.faults.commit_delay = 0.0
                committed(append)
            wait_until(lambda: held.spool.files == 0)
            assert not append.upload.path.exists()
        table = held_small.table()
        channel = table.open()
        for number in (1, 2):
            table.send(channel, row(number, "x" * 20))
        assert held_small.spool.files == 1
        table.open()
        assert held_small.spool.files == 0

    def test_opening_waits_for_a_commit_that_holds_rows_of_the_channel(self, gate):
        table = gate.engine.table()
        append = table.send(table.open(), row(1), token="1")
        assert gate.reached.wait(BOUND)
        opened: list[str | None] = []
        opening = threading.Thread(target=lambda: opened.append(table.open().committed.offset_token))
        opening.start()
        opening.join(0.05)
        assert opened == []
        gate.opened.set()
        opening.join(BOUND)
        committed(append)
        assert (opened, table.rows()) == (["1"], [(1, None)])

    def test_whoever_holds_the_write_lock_does_not_wait_and_the_commit_leaves_the_rows_out(self, gate):
        table = gate.engine.table()
        channel = table.open()
        append = table.send(channel, row(1), token="1")
        assert gate.reached.wait(BOUND)
        table.create(replace=True)
        gate.opened.set()
        with pytest.raises(CancelledError):
            committed(append)
        assert (table.rows(), table.open().committed.offset_token) == ([], None)
        assert channel.status()["channel_status_code"] == TABLE_MISSING

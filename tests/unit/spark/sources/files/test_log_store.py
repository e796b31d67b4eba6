"""The entries and snapshots of a source log, in a storage in memory."""

import datetime as dt
from dataclasses import dataclass, field, replace

import pytest

from airflow_provider_snowpipe.spark.sources.files import log_store
from airflow_provider_snowpipe.spark.sources.files.log import EVENTS
from airflow_provider_snowpipe.spark.sources.files.log_store import LogStore
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SourcePositionError

EVENT = [{"event": "committed", "number": 1, "after_line": 3}]


@dataclass
class Memory:
    """A folder; what fails is an error by the name of the method."""

    files: dict[str, bytes] = field(default_factory=dict)
    fails: dict[str, list[BaseException]] = field(default_factory=dict)
    root: str = "memory:/log"

    def _fail(self, method: str) -> None:
        if errors := self.fails.get(method):
            raise errors.pop()

    def names(self) -> list[str]:
        self._fail("names")
        return ["other.parquet", "e1.parquet", *self.files]

    def read(self, name: str) -> bytes:
        self._fail("read")
        return self.files[name]

    def create(self, name: str, data: bytes) -> bool:
        self._fail("create")
        return self.files.setdefault(name, data) is data

    def delete(self, name: str) -> None:
        del self.files[name]


@pytest.fixture
def memory():
    return Memory()


@pytest.fixture
def store(memory):
    return LogStore(memory, "/in", "account/pipe")


def grow(store, count):
    log = store.read()
    for _ in range(count):
        log = store.append(log, EVENT)
    return log


def names(*numbers, snapshot=()):
    return {f"e{one:012}.parquet" for one in numbers} | {f"s{one:012}.parquet" for one in snapshot}


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(log_store, "_ENTRIES_BEFORE_A_SNAPSHOT", 4)


def test_entries_are_read_as_they_were_added(memory, store):
    empty = store.read()
    assert (empty.log_id, empty.source, empty.number, empty.units) == ("", "", 0, [])
    before = dt.datetime.now(dt.UTC).timestamp() * 1e9
    first = store.append(empty, EVENT, "r1")
    second = replace(store, source="/moved").append(first, [{"event": "deleted", "number": 2}])
    found = store.read()
    assert {*memory.files} == names(1, 2)
    for log in (second, found):
        assert (log.log_id, log.source, log.number) == (first.log_id, "/moved", 2)
        assert log.events["event"].to_pylist() == ["committed", "deleted"]
        assert log.events["number"].to_pylist() == [1, 2]
        assert log.events["run"].to_pylist() == ["r1", ""]
        assert before - 1e6 <= min(log.events["at_ns"].to_pylist()) <= before + 60e9
    assert len(first.log_id) == 16
    assert store.append(empty, EVENT) is None, "the log has other entries now"


@pytest.mark.usefixtures("short")
def test_a_snapshot_replaces_some_entries_and_the_snapshot_before(memory, store):
    early = grow(store, 1)
    late = grow(store, 2)
    kept = dict(memory.files)
    assert {*kept} == names(1, 2, 3)
    grow(store, 1)
    assert store.append(late, EVENT) is None
    assert {*memory.files} == names(snapshot=[4])
    (fourth,), (third,) = names(4), names(3)
    memory.files |= {**kept, fourth: kept[third]}  # as a run leaves them that dies before it has removed them
    assert len(store.read().events) == 4
    grow(store, 6)
    left = names(9, 10, snapshot=[8])
    assert {*memory.files} == left
    log = store.read()
    assert (log.number, log.source, len(log.events), log.log_id) == (10, "/in", 10, early.log_id)
    assert store.append(early, EVENT) is None, "a snapshot has taken the place of its entry"
    assert {*memory.files} == left


@pytest.mark.usefixtures("short")
def test_a_snapshot_that_another_run_has_written_first_leaves_its_entries(memory, store):
    log = grow(store, 3)
    memory.files |= dict.fromkeys(names(snapshot=[4]), b"")
    with pytest.raises(SourcePositionError, match=r"s0+4\.parquet"):
        store.read()
    memory.names = lambda: list(names(1, 2, 3))
    assert store.append(log, EVENT).number == 4
    assert {*memory.files} == names(1, 2, 3, 4, snapshot=[4])


def test_no_entry_is_added_to_a_log_that_is_not_there_or_is_another_one(memory, store):
    log = grow(store, 3)
    kept = dict(memory.files)
    memory.files.clear()
    assert (store.append(log, EVENT), memory.files) == (None, {})
    grow(store, 3)
    other = dict(memory.files)
    assert (store.append(log, EVENT), memory.files) == (None, other)
    memory.files = kept
    assert store.append(log, EVENT).number == 4


def test_entries_that_go_while_they_are_read_are_read_again(memory, store):
    grow(store, 3)
    gone = FileNotFoundError(2, "gone", "e2")
    memory.fails = {"read": 19 * [gone]}
    assert store.read().number == 3
    memory.fails = {"read": 60 * [gone]}
    with pytest.raises(SourcePositionError, match="e2 is missing"):
        store.read()


def test_a_log_with_a_gap_or_with_entries_of_two_logs_is_damaged(memory, store):
    grow(store, 3)
    (first,), (second,) = names(1), names(2)
    for number, name in (1, first), (2, second):
        kept = memory.files.pop(name)
        with pytest.raises(SourcePositionError, match=rf"'memory:/log'.*entry {number} is missing"):
            store.read()
        memory.files[name] = kept
    other = LogStore(Memory(), "/in", "account/pipe")
    grow(other, 2)
    memory.files[second] = other.storage.files[second]
    with pytest.raises(SourcePositionError, match="2 logs"):
        store.read()
    memory.files[second] = kept
    assert store.read().number == 3


@pytest.mark.parametrize("cut", [0, 3, 50, -1, -5])
def test_an_entry_that_is_cut_is_damaged(memory, store, cut):
    grow(store, 1)
    memory.files = {name: data[:cut] for name, data in memory.files.items()}
    with pytest.raises(SourcePositionError, match=r"e0+1\.parquet"):
        store.read()


class PanicException(BaseException):
    """What Arro3 raises where its Rust code has panicked."""


@pytest.mark.parametrize(
    ("raised", "expected"),
    [(PanicException(), SourcePositionError), (KeyboardInterrupt(), KeyboardInterrupt)],
)
def test_a_panic_of_the_reader_is_damage_and_an_interrupt_is_not(store, monkeypatch, raised, expected):
    grow(store, 1)

    def read(*_, **__):
        raise raised

    monkeypatch.setattr(log_store, "read_parquet", read)
    with pytest.raises(expected):
        store.read()


@pytest.mark.parametrize(("name", "changed"), [("_VERSION", "2"), ("EVENTS", EVENTS.remove(0))])
def test_an_entry_of_another_release_is_refused(store, monkeypatch, name, changed):
    grow(store, 1)
    monkeypatch.setattr(log_store, name, changed)
    with pytest.raises(SourcePositionError, match="release"):
        store.read()


def test_a_folder_that_cannot_be_used_is_named(memory, store):
    for method, word, act in [("names", "read", store.read), ("create", "written", lambda: grow(store, 1))]:
        memory.fails = {method: [OSError("denied")]}
        with pytest.raises(ConfigurationError, match=rf"'/in' cannot be {word} in 'memory:/log' \(denied\)"):
            act()

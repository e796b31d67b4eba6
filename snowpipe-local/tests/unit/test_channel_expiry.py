"""Channels that were inactive for 30 days are gone with their tokens, on a clock that a test moves."""

import pytest
from snowpipe_local.datadir import Clock
from snowpipe_local.engine.channel import ELASTIC, MISSING
from snowpipe_local.errors import DataDirectoryError, Refusal
from snowpipe_local.limits import Limits
from tests.unit.streamed_table import Engine, StreamedTable, row

DAY = 86_400.0


class Restarted(StreamedTable):
    """A table, of which a pipe takes two channels, and a service on it that can be started again."""

    def __init__(self, folder, clock):
        self.folder, self.clock = folder, clock
        self.engine = Engine(folder, Limits(0.0, 0.0, 2), clock)
        super().__init__(self.engine.database, "T")

    def restart(self):
        self.engine.catalog.close()
        self.engine = Engine(self.folder, Limits(0.0, 0.0, 2), self.clock)
        self.database = self.engine.database

    def names(self):
        return [channel.name for channel in self.database.channels]


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def table(tmp_path, clock):
    made = Restarted(tmp_path, clock)
    yield made
    made.engine.catalog.close()


def test_an_inactive_channel_is_gone_after_30_days_and_its_token_with_it(table, clock):
    channel = table.open("c", token="41")
    elastic = table.elastic()
    clock.move(29 * DAY)
    assert table.database.channels.find(table.pipe, "c") is channel
    clock.move(2 * DAY)
    assert table.database.channels.find(table.pipe, "c") is None
    stored = table.database.store.load_channels(table.database.committer_cursor)
    assert (table.names(), [name for _, name, _ in stored]) == ([], [ELASTIC])
    with pytest.raises(Refusal) as refusal:
        channel.accept("1_0", "r", lambda c, r: pytest.fail("taken"), lambda append: None)
    assert (refusal.value.status, refusal.value.code) == (404, MISSING)
    again = table.open("c")
    assert again.committed.offset_token is None
    assert abs(again.status()["created_on_ms"] - clock.now_ms()) < DAY * 1000
    assert table.database.channels.find(table.pipe, ELASTIC) is elastic
    table.restart()
    assert table.token("c") is None


def test_an_expired_channel_that_nobody_looked_for_has_no_token_and_takes_no_room(table, clock):
    table.open("a", token="41")
    table.open("b")
    with pytest.raises(Refusal):
        table.open("c")
    clock.move(31 * DAY)
    assert [table.open(name).committed.offset_token for name in ("a", "d")] == [None, None]


def test_a_commit_and_an_opening_keep_a_channel_for_another_30_days(table, clock):
    committed, opened = table.open("committed"), table.open("opened", token="41")
    for token in ("1", "2", "3"):
        clock.move(20 * DAY)
        table.database.commit([table.take(committed, row(1), token=token)])
        assert table.open("opened") is opened
    assert (table.token("committed"), table.token("opened")) == ("3", "41")
    clock.move(31 * DAY)
    assert table.names() == []


def test_activity_is_remembered_over_a_restart(table, clock):
    table.open("old")
    clock.move(20 * DAY)
    table.open("young")
    table.restart()
    assert table.names() == ["old", "young"]
    clock.move(15 * DAY)
    for _ in range(2):
        table.restart()
        assert table.names() == ["young"]


def test_a_moved_clock_stays_moved_over_a_restart_and_never_goes_back(tmp_path):
    file = tmp_path / "clock"
    clock = Clock.kept_in(file)
    assert clock.moved_seconds == 0
    clock.move(1.5)
    clock.move(DAY)
    for seconds in [-1.0, float("nan"), float("inf"), 1e12]:
        with pytest.raises(ValueError, match="forward"):
            clock.move(seconds)
    assert clock.moved_seconds == Clock.kept_in(file).moved_seconds == DAY + 1.5
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text("soon")
    with pytest.raises(DataDirectoryError, match="clock"):
        Clock.kept_in(file)

"""Channels that were inactive for 30 days are gone with their tokens, on a clock that a test moves."""

from __future__ import annotations

import time

import pytest
from snowpipe_local.catalog import Catalog
from snowpipe_local.datadir import Clock
from snowpipe_local.engine.channel import ELASTIC, MISSING, Append, Channel
from snowpipe_local.engine.database import Database
from snowpipe_local.engine.lines import split_lines
from snowpipe_local.errors import DataDirectoryError, Refusal
from snowpipe_local.faults import Faults
from snowpipe_local.limits import Limits
from snowpipe_local.tables import NUMBER, Column, Table

DAY = 86_400.0


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def start(tmp_path, clock):
    running: list[Catalog] = []

    def again() -> Database:
        while running:
            running.pop().close()
        catalog = Catalog(tmp_path, Faults(), Limits(0.0, 0.0, 2), clock=clock)
        running.append(catalog)
        return catalog.database("LOCAL")

    yield again
    for catalog in running:
        catalog.close()


def _with_table(database: Database) -> Database:
    table = Table("LOCAL", "PUBLIC", "T", (Column("ID", NUMBER),), database.clock.now_ms())
    database.tables.create(table, [f"CREATE TABLE {table.path} ({table.columns[0].ddl()})"], replace=False)
    return database


def _open(database: Database, name: str, token: str | None = None) -> Channel:
    pipe = database.pipes.resolve("PUBLIC", "T-STREAMING")
    return database.channels.open(pipe, name, offset_token=token, fail_on_uncommitted_rows=False)


def _found(database: Database, name: str) -> bool:
    return database.channels.find(database.pipes.resolve("PUBLIC", "T-STREAMING"), name) is not None


def _send(database: Database, channel: Channel, token: str) -> None:
    def make(client: int, row: int) -> Append:
        lines = split_lines(b'{"id":1}\n')
        return Append(channel, client, row, f"r{token}", lines, None, token, time.monotonic())

    made: list[Append] = []
    channel.accept(channel.continuation_token, f"r{token}", make, made.append)
    database.commit(made)


def test_an_inactive_channel_is_gone_after_30_days_and_its_token_with_it(start, clock):
    database = _with_table(start())
    channel = _open(database, "c", "41")
    clock.move(29 * DAY)
    assert _found(database, "c")
    clock.move(2 * DAY)
    assert not _found(database, "c")
    assert list(database.channels) == []
    with pytest.raises(Refusal) as refusal:
        channel.accept("1_0", "r", lambda c, r: pytest.fail("taken"), lambda append: None)
    assert (refusal.value.status, refusal.value.code) == (404, MISSING)
    assert _open(database, "c").committed.offset_token is None


def test_a_commit_keeps_a_channel_for_another_30_days(start, clock):
    database = _with_table(start())
    channel = _open(database, "c")
    for token in ("1", "2", "3"):
        clock.move(20 * DAY)
        _send(database, channel, token)
    assert list(database.channels) == [channel]
    assert channel.committed.offset_token == "3"
    clock.move(31 * DAY)
    assert list(database.channels) == []


def test_activity_is_remembered_over_a_restart(start, clock):
    database = _with_table(start())
    _open(database, "old", "1")
    clock.move(20 * DAY)
    _open(database, "young", "2")
    database = start()
    assert [channel.name for channel in database.channels] == ["old", "young"]
    clock.move(15 * DAY)
    assert [channel.name for channel in start().channels] == ["young"]
    assert [channel.name for channel in start().channels] == ["young"]


def test_opening_again_keeps_a_channel_for_another_30_days(start, clock):
    database = _with_table(start())
    channel = _open(database, "c", "41")
    for _ in range(3):
        clock.move(20 * DAY)
        assert _open(database, "c") is channel
    assert channel.committed.offset_token == "41"


def test_a_channel_that_expired_does_not_come_back_with_its_token(start, clock):
    database = _with_table(start())
    _open(database, "c", "41")
    clock.move(31 * DAY)
    assert not _found(database, "c")
    assert database.store.load_channels(database.committer_cursor) == []
    _open(database, "c")
    (channel,) = start().channels
    assert channel.committed.offset_token is None


def test_a_channel_that_is_opened_after_it_expired_is_a_new_one(start, clock):
    database = _with_table(start())
    _open(database, "c", "41")
    clock.move(31 * DAY)
    channel = _open(database, "c")
    assert channel.committed.offset_token is None
    assert abs(channel.status()["created_on_ms"] - clock.now_ms()) < DAY * 1000


def test_a_channel_that_expired_leaves_room_for_another(start, clock):
    database = _with_table(start())
    for name in ("a", "b"):
        _open(database, name)
    with pytest.raises(Refusal):
        _open(database, "c")
    clock.move(31 * DAY)
    for name in ("c", "d"):
        _open(database, name)


def test_the_elastic_channel_does_not_expire(start, clock):
    database = _with_table(start())
    pipe = database.pipes.resolve("PUBLIC", "T-STREAMING")
    elastic = database.channels.find(pipe, ELASTIC)
    clock.move(31 * DAY)
    assert list(database.channels) == []
    assert database.channels.find(pipe, ELASTIC) is elastic


def test_a_moved_clock_stays_moved_over_a_restart(tmp_path):
    file = tmp_path / "clock"
    clock = Clock.kept_in(file)
    assert clock.moved_seconds == 0
    clock.move(1.5)
    clock.move(DAY)
    assert Clock.kept_in(file).moved_seconds == DAY + 1.5
    assert file.stat().st_mode & 0o777 == 0o600


def test_the_clock_only_moves_forward_by_a_sensible_time(tmp_path):
    for seconds in [-1.0, float("nan"), float("inf"), 1e12]:
        clock = Clock.kept_in(tmp_path / "clock")
        with pytest.raises(ValueError, match="forward"):
            clock.move(seconds)
        assert clock.moved_seconds == 0


def test_a_clock_file_without_a_number_is_named(tmp_path):
    (tmp_path / "clock").write_text("soon")
    with pytest.raises(DataDirectoryError, match="clock"):
        Clock.kept_in(tmp_path / "clock")

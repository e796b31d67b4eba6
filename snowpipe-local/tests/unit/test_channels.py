"""Channels in their database: sessions and tokens are durable, fenced and dropped ones are shut out."""

import pytest
from snowpipe_local.engine.channel import (
    ELASTIC,
    INVALID_ROW_SEQUENCER,
    MISSING,
    STALE,
    TOO_MANY_CHANNELS,
    UNCOMMITTED,
    Channel,
)
from snowpipe_local.errors import Refusal
from snowpipe_local.limits import Limits
from tests.unit.streamed_table import Engine, StreamedTable, row


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    made = Engine(tmp_path_factory.mktemp("engine"), Limits(0.0, 0.0, 3))
    yield made
    made.catalog.close()


@pytest.fixture
def table(engine):
    return engine.table()


def refused(table: StreamedTable, channel: Channel, token: str) -> str:
    with pytest.raises(Refusal) as refusal:
        channel.accept(token, "another", lambda *_: pytest.fail("taken"), lambda _: None)
    return refusal.value.code


class TestOpen:
    def test_a_writer_of_an_older_session_is_shut_out_and_no_answer_to_it_is_repeated(self, table):
        channel = table.open()
        append = table.take(channel, row(1))
        table.database.commit([append])
        stale = channel.continuation_token
        table.open()
        assert refused(table, channel, stale) == STALE
        assert channel.continuation_token == "2_0"
        table.database.commit([table.take(channel, row(2), request=append.request_id)])
        assert table.rows() == [(1, None), (2, None)]

    def test_opening_and_dropping_are_refused_while_rows_are_uncommitted_and_fence_nobody(self, table):
        channel = table.open()
        append = table.take(channel, row(1), token="1")
        drop = table.database.channels.drop
        for careful in (
            lambda: table.open(fail=True), lambda: drop(table.pipe, "c", fail_on_uncommitted_rows=True),
        ):  # fmt: skip
            with pytest.raises(Refusal) as refusal:
                careful()
            assert refusal.value.code == UNCOMMITTED
        table.database.commit([append, table.take(channel, row(2), token="2")])
        assert table.open(fail=True).committed.offset_token == "2"

    def test_a_pipe_has_so_many_channels_and_no_more_until_one_is_dropped(self, table):
        for name, code in [
            ("", "INVALID_CHANNEL_NAME"), ("elastic", "ERR_RESERVED_CHANNEL_NAME"),
            (ELASTIC, "ERR_RESERVED_CHANNEL_NAME"),
        ]:  # fmt: skip
            with pytest.raises(Refusal) as refusal:
                table.open(name)
            assert (refusal.value.status, refusal.value.code) == (400, code)
        for name in "abc":
            table.open(name)
        with pytest.raises(Refusal) as refusal:
            table.open("d")
        assert (refusal.value.status, refusal.value.code) == (400, TOO_MANY_CHANNELS)
        table.open("a")
        table.elastic()
        table.database.channels.drop(table.pipe, "a")
        table.open("d")


class TestDrop:
    def test_a_channel_that_nobody_opened_is_neither_dropped_nor_found(self, table):
        channels = table.database.channels
        for call in (channels.drop, channels.get, lambda *one: channels.set_offset_token(*one, "1")):
            with pytest.raises(Refusal, match="unknown") as refusal:
                call(table.pipe, "unknown")
            assert (refusal.value.status, refusal.value.code) == (404, MISSING)
        for name in (ELASTIC, "elastic"):
            with pytest.raises(Refusal) as refusal:
                channels.drop(table.pipe, name)
            assert (refusal.value.status, refusal.value.code) == (400, "ERR_RESERVED_CHANNEL_NAME")

    def test_a_table_that_is_dropped_leaves_the_channels_of_others(self, table, engine):
        other = engine.table()
        kept, gone = table.open(token="1"), other.open(token="2")
        other.database.tables.drop("PUBLIC", other.name)
        assert (kept.is_dropped, gone.is_dropped) == (False, True)
        opened = list(table.database.channels)
        assert kept in opened
        assert gone not in opened
        assert table.open() is kept


def test_channels_are_listed_by_pipe_and_name_without_the_elastic_one(engine):
    tables = [engine.table() for _ in range(2)]
    for table in reversed(tables):
        for name in ("b", "a"):
            table.open(name)
        table.elastic()
    listed = [(one.pipe.table, one.name) for one in engine.database.channels]
    names = sorted(table.name for table in tables)
    assert [one for one in listed if one[0] in names] == [
        (name, channel) for name in names for channel in "ab"
    ]


class TestRestart:
    def test_names_and_limits_hold_for_channels_that_were_there_and_for_new_ones(self, tmp_path):
        limits = Limits(0.001, 0.0, 0)
        first = Engine(tmp_path, limits)
        table = first.table()
        table.open("old")
        first.catalog.close()
        again = Engine(tmp_path, limits)
        table.database = again.database
        for name in ("old", "new"):
            channel = table.open(name)
            assert channel.status()["database_name"] == "LOCAL"
            assert channel.status()["pipe_name"] == f"{table.name}-STREAMING"
            table.take(channel, row(1))
            with pytest.raises(Refusal) as refusal:
                table.take(channel, row(2))
            assert refusal.value.status == 429
        again.catalog.close()

    def test_sessions_tokens_and_the_last_request_outlive_the_process(self, engine, table, tmp_path):
        kept, gone = table.open("kept", token="0"), table.open("gone", token="0")
        table.open("kept")
        first, last = table.take(kept, row(1), token="1"), table.take(kept, row(2), token="2")
        table.database.commit([first])
        table.database.channels.set_offset_token(table.pipe, "kept", "40")
        assert table.token("kept") == "40"
        table.database.commit([last])
        assert table.token("kept") == "2", "the session goes on"
        table.take(kept, row(3), token="3")  # taken, and not committed
        table.database.channels.drop(table.pipe, gone.name)
        table.database.channels.set_offset_token(table.pipe, "kept", "41")
        with engine.after_a_crash(tmp_path / "copy") as restored:
            (channel,) = [one for one in restored.channels if one.pipe.key == table.pipe.key]
            assert (channel.name, channel.committed.offset_token) == ("kept", "41")
            assert channel.continuation_token == "2_2"
            assert table.rows(restored) == [(1, None), (2, None)]
            # What was committed is answered again, what was lost is taken again, another request is refused.
            assert channel.accept("2_1", last.request_id, lambda *_: pytest.fail("taken"), print) == "2_2"
            assert refused(table, channel, "2_1") == INVALID_ROW_SEQUENCER
            assert refused(table, channel, "1_2") == STALE

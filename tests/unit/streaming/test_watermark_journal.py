"""Messages are written down before they go and forgotten when they have arrived."""

import pytest

from airflow_provider_snowpipe.streaming.offset_events import (
    Step,
    Watermark,
    WatermarkJournal,
    fed_by,
    journals_fed_by,
)
from tests.asset_state import AssetState

pytestmark = pytest.mark.asyncio


@pytest.fixture
def store():
    return AssetState()


def step(rows):
    return Step(Watermark(True, rows), {"id": str(rows)})


async def reopened(store):
    """What another process finds: the messages it has to send again, and where it goes on."""
    journal = WatermarkJournal(store, "k")
    messages = await journal.load()
    assert all(message["redelivered"] for message in messages)
    return [message["id"] for message in messages], journal.watermark.rows


async def written(store, *rows):
    journal = WatermarkJournal(store, "k")
    await journal.load()
    for poll, number in enumerate(rows):
        await journal.write(step(number))
        journal.sent_with(poll)
    return journal


async def test_a_message_that_is_written_down_is_sent_again_until_it_has_arrived(store):
    assert await reopened(store) == ([], 0)
    journal = await written(store, 1, 2, 3)
    assert await reopened(store) == (["1", "2", "3"], 3)
    await journal.arrived(1)
    assert await reopened(store) == (["3"], 3)


async def test_messages_that_are_sent_again_arrive_like_others(store):
    await written(store, 1)
    journal = WatermarkJournal(store, "k")
    await journal.load()
    await journal.write(step(2))
    journal.sent_with(9)
    await journal.arrived(9)
    assert await reopened(store) == ([], 2)


async def test_a_poll_that_this_watcher_never_had_reports_nothing(store):
    journal = await written(store, 1)
    await journal.arrived(5)
    assert await reopened(store) == (["1"], 1)


async def test_a_message_that_could_not_be_written_down_is_not_kept(store):
    journal = await written(store, 1)
    store.broken = True
    with pytest.raises(RuntimeError, match="answer"):
        await journal.write(step(2))
    store.broken = False
    await journal.write(step(3))
    assert await reopened(store) == (["1", "3"], 3)


async def test_a_watermark_may_move_without_a_message(store):
    journal = await written(store)
    await journal.write(Step(Watermark(True, 4)))
    assert await reopened(store) == ([], 4)


async def test_without_a_store_the_memory_is_the_process():
    journal = WatermarkJournal(None, "")
    await journal.load()
    await journal.write(step(1))
    journal.sent_with(0)
    await journal.arrived(0)
    assert journal.watermark.rows == 1


async def test_journals_are_found_by_their_stream_while_they_read_it():
    class Stream:
        """A source of polls."""

    stream, journal = Stream(), WatermarkJournal(None, "")
    with fed_by(stream, journal):
        assert journals_fed_by(stream) == [journal]
        assert journals_fed_by(Stream()) == []
    assert journals_fed_by(stream) == []

"""Messages are written down before they go and forgotten when they have arrived."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from airflow_provider_snowpipe.streaming.offset_events import (
    Step,
    Watermark,
    WatermarkJournal,
    fed_by,
    journals_fed_by,
)
from tests.asset_state import AssetState


@pytest.fixture
def store() -> AssetState:
    return AssetState()


def step(rows: int) -> Step:
    return Step(Watermark(True, rows), {"id": str(rows)})


async def reopened(store: AssetState) -> tuple[list[str], int]:
    """What another process finds: the messages it has to send again, and where it goes on."""
    journal = WatermarkJournal(store, "k")
    messages = await journal.load()
    assert all(message["redelivered"] for message in messages)
    return [message["id"] for message in messages], journal.watermark.rows


async def written(store: AssetState, *rows: int) -> WatermarkJournal:
    journal = WatermarkJournal(store, "k")
    await journal.load()
    for poll, number in enumerate(rows):
        await journal.write(step(number))
        journal.sent_with(poll)
    return journal


def test_nothing_is_kept_at_first(store: AssetState) -> None:
    assert asyncio.run(reopened(store)) == ([], 0)


def test_a_message_that_is_written_down_is_sent_again(store: AssetState) -> None:
    async def run() -> Any:
        await written(store, 1, 2)
        return await reopened(store)

    assert asyncio.run(run()) == (["1", "2"], 2)


def test_a_message_that_has_arrived_is_not(store: AssetState) -> None:
    async def run() -> Any:
        journal = await written(store, 1, 2, 3)
        await journal.arrived(1)
        return await reopened(store)

    assert asyncio.run(run()) == (["3"], 3)


def test_messages_that_are_sent_again_arrive_like_others(store: AssetState) -> None:
    async def run() -> Any:
        await written(store, 1)
        journal = WatermarkJournal(store, "k")
        await journal.load()
        await journal.write(step(2))
        journal.sent_with(9)
        await journal.arrived(9)
        return await reopened(store)

    assert asyncio.run(run()) == ([], 2)


def test_a_poll_that_this_watcher_never_had_reports_nothing(store: AssetState) -> None:
    async def run() -> Any:
        journal = await written(store, 1)
        await journal.arrived(5)
        return await reopened(store)

    assert asyncio.run(run()) == (["1"], 1)


def test_a_message_that_could_not_be_written_down_is_not_kept(store: AssetState) -> None:
    async def run() -> Any:
        journal = await written(store, 1)
        store.broken = True
        with pytest.raises(RuntimeError, match="no answer"):
            await journal.write(step(2))
        store.broken = False
        await journal.write(step(3))
        return await reopened(store)

    assert asyncio.run(run()) == (["1", "3"], 3)


def test_a_watermark_may_move_without_a_message(store: AssetState) -> None:
    async def run() -> Any:
        journal = await written(store)
        await journal.write(Step(Watermark(True, 4)))
        return await reopened(store)

    assert asyncio.run(run()) == ([], 4)


def test_without_a_store_the_memory_is_the_process() -> None:
    async def run() -> int:
        journal = WatermarkJournal(None, "")
        await journal.load()
        await journal.write(step(1))
        journal.sent_with(0)
        await journal.arrived(0)
        return journal.watermark.rows

    assert asyncio.run(run()) == 1


def test_journals_are_found_by_their_stream_while_they_read_it() -> None:
    class Stream:
        """A source of polls."""

    async def run() -> None:
        stream, journal = Stream(), WatermarkJournal(None, "")
        with fed_by(stream, journal):
            assert journals_fed_by(stream) == [journal]
            assert journals_fed_by(Stream()) == []
        assert journals_fed_by(stream) == []

    asyncio.run(run())

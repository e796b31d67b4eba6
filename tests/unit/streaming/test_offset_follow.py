"""Following channels by the beginning of their names."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import pytest

from airflow_provider_snowpipe.streaming.offset_events import (
    FollowRules,
    OffsetFollower,
    OffsetRule,
    WatermarkJournal,
)
from airflow_provider_snowpipe.streaming.polling import ChannelListing, StatusPoll, shared_listing
from airflow_provider_snowpipe.streaming.progress import ChannelStatus

pytestmark = pytest.mark.usefixtures("jumping_loop")


class Pipe:
    """A pipe's client and its listing, both with the same channels; rows by channel."""

    def __init__(self, **rows: int) -> None:
        self.rows = dict(rows)
        self.asked: set[str] = set()
        self.listings = 0
        self.fail: Exception | None = None

    async def connect(self) -> Pipe:
        return self

    def channel_statuses(self, names: Sequence[str]) -> dict[str, ChannelStatus]:
        self.asked.update(names)
        return {
            name: ChannelStatus(name, "SUCCESS", str(self.rows[name]), rows_inserted=self.rows[name])
            if name in self.rows
            else ChannelStatus.missing(name)
            for name in names
        }

    def close(self) -> None:
        """Nothing to give back."""

    async def names(self) -> list[str]:
        self.listings += 1
        if self.fail is not None:
            raise self.fail
        return list(self.rows)


async def pipe_name() -> str:
    return "DB.S.T-STREAMING"


class Following:
    """A follower of a pipe, driven poll by poll in a task of its own."""

    def __init__(self, pipe: Pipe, **rules: Any) -> None:
        self.pipe = pipe
        self.messages: list[dict[str, Any]] = []
        self.polls = 0
        self.poll = StatusPoll(pipe.connect)
        given = {"channel": None, "prefix": "", "rule": OffsetRule(), "interval": 0.02, "list_interval": 0.05}
        self.follower = OffsetFollower(
            FollowRules(**{**given, **rules}),
            poll=self.poll,
            listing=ChannelListing(pipe.names),
            journal=WatermarkJournal(None, ""),
            pipe_name=pipe_name,
        )

    async def __aenter__(self) -> Following:
        self.task = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def _read(self) -> None:
        async with self.follower.following(), aclosing(self.poll.follow()) as polls:
            async for polled in polls:
                self.messages += await self.follower.take(self.polls, polled)
                self.polls += 1

    async def until_reported(self, count: int) -> None:
        async with asyncio.timeout(240):
            while len(self.messages) < count:
                await asyncio.sleep(0.01)

    async def until_polled(self, times: int = 2) -> None:
        goal = self.polls + times
        async with asyncio.timeout(240):
            while self.polls < goal:
                await asyncio.sleep(0.01)


def test_channels_are_found_by_the_beginning_of_their_names() -> None:
    pipe = Pipe(p_a=1, p_b=2, other=9)

    async def run() -> list[dict[str, Any]]:
        async with Following(pipe, prefix="p_") as following:
            await following.until_polled()
            pipe.rows["p_b"] = 5
            pipe.rows["other"] = 50
            await following.until_reported(1)
            return following.messages

    (message,) = asyncio.run(run())
    assert set(message["channels"]) == {"p_b"}
    assert message["rows"] == 3
    assert pipe.asked == {"p_a", "p_b"}


def test_a_channel_made_later_is_found_and_reported_from_its_first_row() -> None:
    pipe = Pipe(p_a=1)

    async def run() -> list[dict[str, Any]]:
        async with Following(pipe, prefix="p_") as following:
            await following.until_polled()
            pipe.rows["p_new"] = 4
            await following.until_reported(1)
            return following.messages

    (message,) = asyncio.run(run())
    assert message["channels"]["p_new"]["previous_rows"] == 0
    assert message["rows"] == 4


def test_a_watch_of_no_channel_yet_waits_for_the_first() -> None:
    pipe = Pipe()

    async def run() -> list[dict[str, Any]]:
        async with Following(pipe, prefix="p_") as following:
            async with asyncio.timeout(240):
                while not pipe.listings:
                    await asyncio.sleep(0.01)
            pipe.rows["p_a"] = 3
            await following.until_reported(1)
            return following.messages

    (message,) = asyncio.run(run())
    assert message["rows"] == 3


def test_a_listing_that_fails_is_made_again(caplog: pytest.LogCaptureFixture) -> None:
    pipe = Pipe(p_a=1)
    pipe.fail = RuntimeError("no sign-in")

    async def run() -> list[dict[str, Any]]:
        async with Following(pipe, prefix="p_", start="beginning") as following:
            async with asyncio.timeout(240):
                while pipe.listings < 2:
                    await asyncio.sleep(0.01)
            pipe.fail = None
            await following.until_reported(1)
            return following.messages

    (message,) = asyncio.run(run())
    assert message["rows"] == 1
    assert "listing the channels failed: RuntimeError: no sign-in" in caplog.text


def test_those_who_ask_at_once_share_one_listing() -> None:
    pipe = Pipe(a=1)

    async def run() -> list[tuple[str, ...]]:
        listing = shared_listing("key", pipe.names)
        assert shared_listing("key", pipe.names) is listing
        return await asyncio.gather(*(listing.names(60) for _ in range(5)))

    assert asyncio.run(run()) == [("a",)] * 5
    assert pipe.listings == 1

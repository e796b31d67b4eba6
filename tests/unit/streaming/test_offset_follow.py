"""Following channels by the beginning of their names."""

import asyncio
from contextlib import aclosing

import pytest

from airflow_provider_snowpipe.streaming.offset_events import FollowRules, OffsetFollower, WatermarkJournal
from airflow_provider_snowpipe.streaming.polling import ChannelListing, StatusPoll, shared_listing
from airflow_provider_snowpipe.streaming.progress import ChannelStatus
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("jumping_loop")


class Pipe:
    """A pipe's client and its listing, both with the same channels; rows by channel."""

    def __init__(self, **rows):
        self.rows = dict(rows)
        self.asked = set()
        self.listings = 0
        self.fail = None

    async def connect(self):
        return self

    def channel_statuses(self, names):
        self.asked.update(names)
        return {
            name: ChannelStatus(name, "SUCCESS", str(self.rows[name]), rows_inserted=self.rows[name])
            if name in self.rows
            else ChannelStatus.missing(name)
            for name in names
        }

    def close(self):
        """Nothing to give back."""

    async def names(self):
        self.listings += 1
        if self.fail is not None:
            raise self.fail
        return list(self.rows)

    async def name(self):
        return "DB.S.T-STREAMING"


class Following:
    """A follower of a pipe's channels p_…, driven poll by poll."""

    def __init__(self, pipe, start):
        self.messages = []
        self.polls = 0
        self.poll = StatusPoll(pipe.connect)
        rules = {"channel": None, "prefix": "p_", "interval": 0.02, "list_interval": 0.05, **start}
        self.follower = OffsetFollower(
            FollowRules(**rules),
            poll=self.poll,
            listing=ChannelListing(pipe.names),
            journal=WatermarkJournal(None, ""),
            pipe_name=pipe.name,
        )

    async def read(self):
        async with self.follower.following(), aclosing(self.poll.follow()) as polls:
            async for polled in polls:
                self.messages += await self.follower.take(self.polls, polled)
                self.polls += 1


def message_after(pipe, began, change, **start):
    """The one message that a change brings, once the follower has begun."""

    async def run():
        following = Following(pipe, start)
        task = asyncio.create_task(following.read())
        await until(lambda: began(following))
        change()
        await until(lambda: following.messages)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return following.messages

    (message,) = asyncio.run(run())
    return message


def polled_twice(following):
    return following.polls >= 2


def test_channels_are_found_by_the_beginning_of_their_names_and_from_their_first_row():
    pipe = Pipe(p_a=1, p_b=2, other=9)
    message = message_after(pipe, polled_twice, lambda: pipe.rows.update(p_b=5, other=50))
    assert (set(message["channels"]), message["rows"]) == ({"p_b"}, 3)
    assert pipe.asked == {"p_a", "p_b"}
    message = message_after(pipe, polled_twice, lambda: pipe.rows.update(p_new=4))
    assert (message["channels"]["p_new"]["previous_rows"], message["rows"]) == (0, 4)


def test_a_watch_of_no_channel_yet_waits_for_the_first():
    pipe = Pipe()
    assert message_after(pipe, lambda _: pipe.listings, lambda: pipe.rows.update(p_a=3))["rows"] == 3


def test_a_listing_that_fails_is_made_again(caplog):
    pipe = Pipe(p_a=1)
    pipe.fail = RuntimeError("no sign-in")

    def heal():
        pipe.fail = None

    assert message_after(pipe, lambda _: pipe.listings >= 2, heal, start="beginning")["rows"] == 1
    assert "RuntimeError: no sign-in" in caplog.text


def test_those_who_ask_at_once_share_one_listing():
    pipe = Pipe(a=1)

    async def run():
        listing = shared_listing("key", pipe.names)
        assert shared_listing("key", pipe.names) is listing
        return await asyncio.gather(*(listing.names(60) for _ in range(5)))

    assert asyncio.run(run()) == [("a",)] * 5
    assert pipe.listings == 1

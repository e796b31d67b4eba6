"""One poll for many waiters, and the channels that are followed by the beginning of their names."""

import asyncio
import gc
import threading
import time
import weakref
from contextlib import aclosing

import pytest

from airflow_provider_snowpipe.streaming import errors
from airflow_provider_snowpipe.streaming.offset_events import FollowRules, OffsetFollower, WatermarkJournal
from airflow_provider_snowpipe.streaming.polling import ChannelListing, StatusPoll, shared_poll
from airflow_provider_snowpipe.streaming.progress import ChannelStatus
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("jumping_loop")

INTERVAL = 0.6


class Pipe:
    """A pipe's client for one event loop, and its listing: counts what it is asked, fails and stalls as set.

    :param rows: the rows of its channels by name; another one has the token ``a:1``
    """

    def __init__(self, **rows):
        self.rows = rows
        self.asked = []
        self.clients = self.closed = self.listings = 0
        self.fail = lambda _: None
        self.fail_listing = None
        self.answers = threading.Event()
        self.answers.set()

    async def connect(self):
        self.clients += 1
        return self

    def channel_statuses(self, names):
        self.asked.append(list(names))
        assert self.answers.wait(240)
        error = self.fail(len(self.asked))
        if error is not None:
            raise error
        rows = {name: self.rows.get(name, 0) for name in names}
        return {name: ChannelStatus(name, "SUCCESS", "a:1", rows_inserted=rows[name]) for name in names}

    def close(self):
        self.closed += 1

    async def names(self):
        self.listings += 1
        if self.fail_listing is not None:
            raise self.fail_listing
        return list(self.rows)

    async def name(self):
        return "DB.S.T-STREAMING"


@pytest.fixture
def pipe():
    return Pipe()


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    yield
    deadline = time.monotonic() + 60
    while any(thread.name.startswith("snowpipe-status") for thread in threading.enumerate()):
        assert time.monotonic() < deadline, threading.enumerate()
        time.sleep(0.01)


async def poll_repeatedly(poll, names, count, interval=INTERVAL):
    found = []
    async with aclosing(poll.follow()) as stream:
        with poll.waiting(names, interval):
            async for polled in stream:
                found.append(polled)
                if len(found) == count:
                    break
    return found


def polling(poll, name, count, interval=INTERVAL):
    return asyncio.ensure_future(poll_repeatedly(poll, [name], count, interval))


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 240))


def test_three_hundred_waiters_cost_one_request_for_each_hundred_channels(pipe):
    async def main():
        poll = StatusPoll(pipe.connect)
        return await asyncio.gather(*(polling(poll, f"c{number % 150}", 3) for number in range(300)))

    results = run(main())
    assert [len(names) for names in pipe.asked[:6]] == [100, 50] * 3
    assert len(pipe.asked) in (6, 8)
    assert (pipe.clients, pipe.closed) == (1, 1)
    assert all(len(polled.statuses) == 150 for some in results for polled in some)


def test_rounds_keep_the_interval_however_many_join_late(pipe):
    async def main():
        poll = StatusPoll(pipe.connect)
        clock = asyncio.get_running_loop().time
        began = clock()
        waiters = [polling(poll, "slow", 3, interval=60.0), polling(poll, "a", 5)]
        for number in range(40):
            await asyncio.sleep(INTERVAL / 20)
            waiters.append(polling(poll, f"b{number}", 1))
        await asyncio.gather(*waiters)
        return clock() - began

    seconds = run(main())

    assert len(pipe.asked) <= seconds / (INTERVAL * 0.9) + 2
    assert seconds < 60, "the fastest one sets the pace"


@pytest.mark.parametrize("down", [errors.RetriesExhaustedError("away"), ZeroDivisionError("unforeseen")])
def test_a_failed_round_is_reported_to_all_and_the_next_one_comes(pipe, down):
    pipe.fail = lambda count: down if count == 1 else None

    async def main():
        poll = StatusPoll(pipe.connect)
        return await asyncio.gather(*(polling(poll, f"c{number}", 2) for number in range(20)))

    for first, second in run(main()):
        assert set(first.errors.values()) == {down}
        assert second.errors == {}
    assert pipe.clients == 1


@pytest.mark.parametrize(
    "refusal", [errors.AuthenticationError("x"), errors.PipeFailedOverError("x", http_status=410)]
)
def test_refused_credentials_are_read_again_and_a_pipe_that_failed_over_gets_a_new_client(pipe, refusal):
    pipe.fail = lambda count: refusal if count in (2, 4, 5) else None
    first, second, third = run(poll_repeatedly(StatusPoll(pipe.connect), ["c"], 3))
    assert (first.errors, second.errors, third.errors) == ({}, {}, {"c": refusal})
    assert (pipe.clients, pipe.closed) == (3, 3)


def test_a_connection_that_cannot_be_made_is_tried_again(pipe):
    failures = [ConnectionError("the API server is away"), ConnectionError("still")]
    left = list(failures)

    async def connect():
        if left:
            raise left.pop(0)
        return pipe

    found = run(poll_repeatedly(StatusPoll(connect), ["c"], 3, interval=0.02))
    assert [polled.errors.get("c") for polled in found] == [*failures, None]


def test_a_hanging_pipe_holds_up_neither_the_event_loop_nor_another_pipe(pipe):
    hanging = [Pipe() for _ in range(12)]
    for one in hanging:
        one.answers.clear()

    async def main():
        stuck = [polling(StatusPoll(one.connect), "c", 1) for one in hanging]
        await until(lambda: all(one.asked for one in hanging))
        await poll_repeatedly(StatusPoll(pipe.connect), ["c"], 1)
        ended = [task.done() for task in stuck]
        for one in hanging:
            one.answers.set()
        await asyncio.wait(stuck)
        return ended

    assert run(main()) == [False] * 12


def test_waiters_come_and_go_and_nothing_is_left(pipe):
    polls = []

    async def main():
        before = asyncio.all_tasks()
        for clients in (1, 2, 3):
            tasks = [polling(shared_poll("key", pipe.connect), f"c{n}", 999, 0.01) for n in range(30)]
            polls.append(weakref.ref(shared_poll("key", pipe.connect)))
            # A request of the round before may still come in.
            await until(
                lambda made=clients: pipe.clients == made and pipe.asked and len(pipe.asked[-1]) == 30
            )
            pipe.asked.clear()
            for leaving in (tasks[:15], tasks[15:]):
                for task in leaving:
                    task.cancel()
                await asyncio.wait(leaving)
        assert asyncio.all_tasks() == before
        assert shared_poll("key", pipe.connect) is not shared_poll("other", pipe.connect)

    run(main())
    gc.collect()

    assert (pipe.clients, pipe.closed) == (3, 3)
    assert [one() for one in polls] == [None] * 3


class Following:
    """A follower of a pipe's channels p_…, driven poll by poll."""

    def __init__(self, pipe, start):
        self.messages = []
        self.polls = 0
        self.poll = StatusPoll(pipe.connect)
        rules = {"channel": None, "prefix": "p_", "interval": 0.02, "list_interval": 0.05, **start}
        given = {"listing": ChannelListing(pipe.names), "journal": WatermarkJournal(None, "")}
        self.follower = OffsetFollower(FollowRules(**rules), poll=self.poll, pipe_name=pipe.name, **given)

    async def read(self):
        async with self.follower.following(), aclosing(self.poll.follow()) as polls:
            async for polled in polls:
                self.messages += await self.follower.take(self.polls, polled)
                self.polls += 1


def message_after(pipe, began, change, **start):
    """The one message that a change brings, once the follower has begun."""

    async def main():
        following = Following(pipe, start)
        task = asyncio.create_task(following.read())
        await until(lambda: began(following))
        change()
        await until(lambda: following.messages)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return following.messages

    (message,) = run(main())
    return message


class TestFollowing:
    def test_finds_them_and_those_that_are_made_later_from_their_first_row(self):
        pipe = Pipe(p_a=1, p_b=2, other=9)

        def polled_twice(following):
            return following.polls >= 2

        message = message_after(pipe, polled_twice, lambda: pipe.rows.update(p_b=5, other=50))
        assert (set(message["channels"]), message["rows"]) == ({"p_b"}, 3)
        assert {name for names in pipe.asked for name in names} == {"p_a", "p_b"}
        message = message_after(pipe, polled_twice, lambda: pipe.rows.update(p_new=4))
        assert (message["channels"]["p_new"]["previous_rows"], message["rows"]) == (0, 4)
        pipe = Pipe()
        assert message_after(pipe, lambda _: pipe.listings, lambda: pipe.rows.update(p_a=3))["rows"] == 3

    def test_lists_again_when_a_listing_fails(self, caplog):
        pipe = Pipe(p_a=1)
        pipe.fail_listing = RuntimeError("no sign-in")

        def heal():
            pipe.fail_listing = None

        assert message_after(pipe, lambda _: pipe.listings >= 2, heal, start="beginning")["rows"] == 1
        assert "RuntimeError: no sign-in" in caplog.text

"""Steps between watermarks: every commit is in one of them, and in one only; they are written down first."""

import json
import random

import pytest

from airflow_provider_snowpipe.streaming import offset_events
from airflow_provider_snowpipe.streaming.progress import SUCCESS, ChannelStatus
from tests.asset_state import AssetState
from tests.checkpoints import token

PIPE = "DB.S.T-STREAMING"
BEGUN = offset_events.Watermark(begun=True)


def polled(made=1, **channels):
    """A token and a number of rows for each channel; None for one that does not exist."""
    return {
        name: ChannelStatus.missing(name)
        if value is None
        else ChannelStatus(name, SUCCESS, value[0], rows_inserted=value[1], created_on_ms=made)
        for name, value in channels.items()
    }


def watch(every_rows=None, watermark=BEGUN):
    return offset_events.OffsetWatch(PIPE, every_rows, watermark)


def reported(one, statuses):
    """See a poll and make the step that is due; its message."""
    step = one.see(statuses)
    if step is None:
        return None
    one.accept(step)
    return step.message


def test_what_is_committed_before_is_no_news_and_channels_that_turn_up_are_from_their_first_row():
    one = watch(watermark=offset_events.Watermark())
    assert one.see(polled(c1=("1", 1))) is None, "the channels are not known yet"
    one.start_with(["c1", "c2"])

    assert reported(one, polled(c1=("5", 5))) is None
    assert not one.watermark.begun
    assert reported(one, polled(c2=None)) is None
    assert one.watermark.begun

    message = reported(one, polled(c1=("6", 6), c2=("7", 7), c3=("9", 9)))
    assert message["channels"]["c1"] == {"token": "6", "rows": 6, "previous_token": "5", "previous_rows": 5}
    assert (message["rows"], message["channels"]["c3"]["previous_token"]) == (17, None)


class TestEveryMove:
    def test_is_no_news_where_rejected_rows_are_marked_as_reported(self):
        one = watch()
        reported(one, polled(c1=(token(9, rows=10), 9)))
        assert reported(one, polled(c1=(token(9, rows=10, errors=1), 9))) is None
        message = reported(one, polled(c1=(token(10, rows=11, errors=1), 10)))
        assert (message["rows"], message["channels"]["c1"]["previous_rows"]) == (1, 9)

    def test_a_channel_made_again_counts_from_zero(self):
        one = watch()
        reported(one, polled(c1=("8", 8)))
        for status in (None, (None, 0)):
            assert reported(one, polled(made=2, c1=status)) is None
        message = reported(one, polled(made=2, c1=("8", 8)))
        previous = message["channels"]["c1"]["previous_rows"]
        assert (message["rows"], message["total_rows"], previous) == (8, 16, 0)


@pytest.mark.parametrize("every", [None, 1, 7], ids=["moves", "every-1", "every-7"])
@pytest.mark.parametrize("seeds", [range(5), pytest.param(range(5, 500), marks=pytest.mark.nightly)])
def test_steps_tile_the_commits_whenever_the_watch_dies(seeds, every):
    for seed in seeds:
        tiled(random.Random(seed), every)


def tiled(chance, every):
    """Commits, polls and deaths in any order: the steps made have no gap and no overlap."""
    rows = {"a": 0, "b": 0, "c": 0}
    kept, messages = BEGUN, []
    one = watch(every, kept)
    for _ in range(200):
        rows[chance.choice("abc")] += chance.randrange(5)
        if chance.random() < 0.1:
            one = watch(every, offset_events.Watermark.from_json(json.loads(json.dumps(kept.to_json()))))
        asked = chance.sample("abc", chance.randrange(4))
        step = one.see(polled(**{name: (str(rows[name]), rows[name]) for name in asked}))
        if step is not None and chance.random() < 0.9:
            one.accept(step)
            kept = step.watermark
            messages += [step.message] if step.message is not None else []
    last = one.see(polled(**{name: (str(count), count) for name, count in rows.items()}))
    messages += [last.message] if last is not None and last.message is not None else []

    for name, count in rows.items():
        steps = [message["channels"][name] for message in messages if name in message["channels"]]
        starts = [step["previous_rows"] for step in steps]
        ends = [step["rows"] for step in steps]
        assert starts == [0, *ends[:-1]][: len(steps)]
        if every is None:
            assert (ends or [0])[-1] == count
    if every is not None:
        reached = [n for m in messages for n in range(m["first"], m["last"] + every, every)]
        assert reached == list(range(every, sum(rows.values()) + 1, every))


async def reopened(store):
    """What another process finds: the messages it has to send again, and where it goes on."""
    journal = offset_events.WatermarkJournal(store, "k")
    messages = await journal.load()
    assert all(message["redelivered"] for message in messages)
    return [message["id"] for message in messages], journal.watermark.rows


async def written(store, *rows, first_poll=0):
    journal = offset_events.WatermarkJournal(store, "k")
    await journal.load()
    for poll, number in enumerate(rows, first_poll):
        await journal.write(offset_events.Step(offset_events.Watermark(True, number), {"id": str(number)}))
        journal.sent_with(poll)
    return journal


@pytest.mark.asyncio
class TestJournal:
    @pytest.fixture
    def store(self):
        return AssetState()

    async def test_a_message_that_is_written_down_is_sent_again_until_it_has_arrived(self, store):
        assert await reopened(store) == ([], 0)
        journal = await written(store, 1, 2, 3)
        assert await reopened(store) == (["1", "2", "3"], 3)
        await journal.arrived(1)
        assert await reopened(store) == (["3"], 3)
        await journal.arrived(5)
        assert await reopened(store) == (["3"], 3), "it never had such a poll"
        again = await written(store, 4, first_poll=9)
        await again.arrived(9)
        assert await reopened(store) == ([], 4)
        await again.write(offset_events.Step(offset_events.Watermark(True, 5)))
        assert await reopened(store) == ([], 5)

    async def test_a_message_that_could_not_be_written_down_is_not_kept(self, store):
        journal = await written(store, 1)
        store.broken = True
        with pytest.raises(RuntimeError, match="answer"):
            await journal.write(offset_events.Step(offset_events.Watermark(True, 2), {"id": "2"}))
        store.broken = False
        await journal.write(offset_events.Step(offset_events.Watermark(True, 3), {"id": "3"}))
        assert await reopened(store) == (["1", "3"], 3)

    async def test_without_a_store_the_memory_is_the_process(self):
        journal = await written(None, 1)
        await journal.arrived(0)
        assert journal.watermark.rows == 1

"""What the watchers of a stream get of the polls whose events Airflow has stored."""

import asyncio

import pytest

pytest.importorskip("airflow.triggers.shared_stream", reason="Airflow has it since 3.3")

from airflow.triggers.shared_stream import AdvanceItem, AdvanceOutcome

from airflow_provider_snowpipe.streaming.offset_events import Step, Watermark, WatermarkJournal, fed_by
from airflow_provider_snowpipe.streaming.polling import StatusPoll
from airflow_provider_snowpipe.triggers.offset import CommitStream
from tests.asset_state import AssetState


def item(number, *, failed=0):
    return AdvanceItem(number, AdvanceOutcome(acked=1, failed=failed, rejected=0))


async def _connect():
    raise AssertionError("nothing is asked here")


async def left_after(state, *items):
    """The messages of three polls that are still kept after some were acknowledged."""
    poll = StatusPoll(_connect)
    journal = WatermarkJournal(state, "k")
    await journal.load()
    with fed_by(poll, journal):
        for number in (1, 2, 3):
            await journal.write(Step(Watermark(True, number), {"id": str(number)}))
            journal.sent_with(number)
        await CommitStream(poll).advance(items)
    return [message["id"] for message in await WatermarkJournal(state, "k").load()]


def test_polls_whose_events_are_stored_are_forgotten():
    assert asyncio.run(left_after(AssetState(), item(1), item(2))) == ["3"]


def test_a_poll_that_failed_for_one_is_made_up_for_by_the_next():
    assert asyncio.run(left_after(AssetState(), item(1, failed=1))) == ["1", "2", "3"]
    assert asyncio.run(left_after(AssetState(), item(1, failed=1), item(2))) == ["3"]


def test_a_store_that_does_not_answer_ends_nothing(caplog):
    class Breaking(AssetState):
        writes = 0

        async def aset(self, key, value):
            self.writes += 1
            if self.writes > 3:
                raise RuntimeError("no answer from the API server")
            await super().aset(key, value)

    assert asyncio.run(left_after(Breaking(), item(3))) == ["1", "2", "3"]
    assert "a watermark was not written" in caplog.text

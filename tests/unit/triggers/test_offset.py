"""The trigger of asset watchers: through the triggerer's shared streams, and through deaths of it."""

import asyncio
import contextlib
import json
from types import SimpleNamespace

import pytest

from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.offset_events import Step, Watermark, WatermarkJournal, fed_by
from airflow_provider_snowpipe.streaming.polling import StatusPoll
from airflow_provider_snowpipe.triggers.offset import CommitStream, SnowpipeOffsetTrigger, store_of
from tests.airflow_connections import statuses
from tests.airflow_version import AIRFLOW
from tests.asset_state import AssetState
from tests.refusals import refused
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("jumping_loop")
SHARED = pytest.mark.skipif(AIRFLOW < (3, 3), reason="Airflow has shared streams since 3.3")


def make(conn_id="conn", **options):
    arguments = {"channel": "c1", "table": "T", "poll_interval": 0.02, **options}
    return SnowpipeOffsetTrigger(snowflake_conn_id=conn_id, **arguments)


class Commits:
    """A channel whose rows grow by themselves from poll to poll, until they stand at ``last``."""

    def __init__(self, service, last):
        self.rows, self.last = 0, last
        service.on("bulk-channel-status", lambda _: self._status())

    def _status(self):
        self.rows = min(self.rows + 3, self.last)
        known = {"last_committed_offset_token": str(self.rows), "rows_inserted": self.rows}
        return statuses(c1={**known, "created_on_ms": 1})


async def first_events(trigger, count, seconds=240):
    async def collect():
        async with contextlib.aclosing(trigger.run()) as events:
            return [(await anext(events)).payload for _ in range(count)]

    return await asyncio.wait_for(collect(), seconds)


class TestArguments:
    def test_that_are_wrong_are_refused_where_the_dag_is_read(self):
        for options, text in [
            ({"channel_prefix": "p"}, "are both given"),
            ({"pipe": "P"}, "are both given"),
            ({"every_rows": 0}, "every_rows is 0"),
            ({"start": "yesterday"}, "start is 'yesterday'"),
            ({"poll_interval": 0}, "poll_interval is 0"),
            ({"channel": "ELASTIC"}, "reserved for the elastic channel"),
        ]:
            refused(ConfigurationError, lambda given: make(**given), [options], text)

    def test_of_the_pace_do_not_change_the_watermark(self):
        paced = make(poll_interval=60, list_interval=5, start="beginning")
        others = [make(every_rows=5), make(channel="c2"), make(table="U")]
        assert paced.watermark_key() == make().watermark_key()
        assert make().watermark_key() not in [one.watermark_key() for one in others]
        key, *of_others = (one.shared_stream_key() for one in (make(), *others))
        assert [one == key for one in of_others] == [True, True, False], "watchers of a pipe share its polls"


class TestWithoutSharedStreams:
    """As before Airflow 3.3, where no state is kept."""

    def test_reports_what_is_committed_from_the_first_poll_on(self, service, service_connection):
        Commits(service, 9)
        first, second = asyncio.run(first_events(make(service_connection), 2))
        assert first["pipe"] == "DB.S.T-STREAMING"
        assert first["channels"]["c1"] == {"token": "6", "rows": 6, "previous_token": "3", "previous_rows": 3}
        assert second["channels"]["c1"]["previous_token"] == "6"
        assert first["redelivered"] is False

    def test_a_connection_to_another_account_reports_nothing(self, service, service_connection, caplog):
        Commits(service, 9)

        async def run():
            events = asyncio.create_task(first_events(make(service_connection, account="other"), 1))
            await until(lambda: "account" in caplog.text or events.done())
            assert not events.done()
            events.cancel()
            await asyncio.gather(events, return_exceptions=True)

        asyncio.run(run())
        assert "account" in caplog.text


@contextlib.asynccontextmanager
async def triggerer(trigger, state, database):
    """As much of a triggerer as an event trigger meets: streams, a database, and its confirmations.

    :param database: gets the events that are stored, and outlives the triggerer
    :return: reports to the streams what was stored, as the next state sync does
    """
    from airflow.triggers.shared_stream import SharedStreamManager

    streams, unconfirmed, key = SharedStreamManager(), [], trigger.shared_stream_key()
    trigger.asset_state_store = state

    async def watch():
        stream = streams.subscribe(trigger_id=0, trigger=trigger, key=key)
        try:
            async for event in trigger.filter_shared_stream(stream):
                seq = streams.bind_pending_event(trigger_id=0, key=key)
                database.append(event.payload)
                unconfirmed.append(-1 if seq is None else seq)
        finally:
            await streams.unsubscribe(0, key)

    def confirm():
        streams.confirm_persisted(unconfirmed)
        unconfirmed.clear()

    task = asyncio.create_task(watch())
    try:
        yield confirm
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def kept(state):
    (text,) = state.values.values()
    return json.loads(text)


@SHARED
class TestThroughSharedStreams:
    def test_an_event_of_which_nobody_knows_is_sent_again_unchanged(self, service, service_connection):
        commits = Commits(service, 6)
        state, events = AssetState(), []

        def has_last():
            return events and events[-1]["channels"]["c1"]["token"] == str(commits.last)

        async def live(*, confirms):
            async with triggerer(make(service_connection), state, events) as confirm:
                # Each event has to be confirmed before there is a next one.
                await until(lambda: (confirms and confirm()) or has_last())
                await until(lambda: not confirms or confirm() or not kept(state)["sent"])

        for commits.last, confirms in (6, False), (12, True), (15, True):
            asyncio.run(live(confirms=confirms))

        first, again, *others = events
        assert (first["redelivered"], again["redelivered"]) == (False, True)
        assert {**first, "redelivered": True} == again
        steps = [event["channels"]["c1"] for event in (first, *others)]
        assert [step["previous_token"] for step in steps] == ["3", *(step["token"] for step in steps[:-1])]
        assert steps[-1]["token"] == "15"
        assert not any(event["redelivered"] for event in others)

    def test_nothing_is_reported_that_could_not_be_written_down(self, service, service_connection):
        Commits(service, 6)
        state, events = AssetState(), []

        async def run():
            async with triggerer(make(service_connection, start="beginning"), state, events):
                state.broken = True
                await asyncio.sleep(0.3)
                assert events == []
                state.broken = False
                await until(lambda: events)

        asyncio.run(run())
        assert events[0]["channels"]["c1"]["previous_token"] is None


async def left_after(state, *polls):
    """The messages of three polls that are still kept after some were acknowledged: (poll, failed)."""
    from airflow.triggers.shared_stream import AdvanceItem, AdvanceOutcome

    poll, journal = StatusPoll(None), WatermarkJournal(state, "k")
    items = [AdvanceItem(n, AdvanceOutcome(acked=1, failed=failed, rejected=0)) for n, failed in polls]
    await journal.load()
    with fed_by(poll, journal):
        for number in (1, 2, 3):
            await journal.write(Step(Watermark(True, number), {"id": str(number)}))
            journal.sent_with(number)
        await CommitStream(poll).advance(items)
    return [message["id"] for message in await WatermarkJournal(state, "k").load()]


@SHARED
class TestStream:
    @pytest.mark.parametrize(
        ("polls", "left"),
        [([(1, 0), (2, 0)], ["3"]), ([(1, 1)], ["1", "2", "3"]), ([(1, 1), (2, 0)], ["3"])],
        ids=["stored", "failed for one", "made up for by the next"],
    )
    def test_polls_whose_events_are_stored_are_forgotten(self, polls, left):
        assert asyncio.run(left_after(AssetState(), *polls)) == left

    def test_a_store_that_does_not_answer_ends_nothing(self, caplog):
        class Breaking(AssetState):
            writes = 0

            async def aset(self, key, value):
                self.writes += 1
                if self.writes > 3:
                    raise RuntimeError("no answer from the API server")
                await super().aset(key, value)

        assert asyncio.run(left_after(Breaking(), (3, 0))) == ["1", "2", "3"]
        assert "watermark" in caplog.text


def test_a_state_is_in_the_store_of_each_asset_that_shares_the_trigger():
    one, other = AssetState(), AssetState()
    states = store_of(SimpleNamespace(_by_name={"b": other, "a": one}))
    asyncio.run(states.aset("k", {"v": 1}))
    one.values.clear()
    assert asyncio.run(states.aget("k")) == {"v": 1}
    assert other.values


def test_airflow_still_finds_the_assets_of_a_trigger_by_name():
    """What ``store_of`` relies on, and Airflow does not document."""
    context = pytest.importorskip("airflow.sdk.execution_time.context")
    if not hasattr(context, "AssetStateStoreAccessors"):
        pytest.skip("Airflow has it since 3.3")
    from airflow.sdk import Asset

    accessors = context.AssetStateStoreAccessors(inlets=[Asset("a"), Asset("b")])
    assert sorted(accessors._by_name) == ["a", "b"]

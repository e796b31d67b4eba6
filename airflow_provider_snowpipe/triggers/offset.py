"""The trigger that starts DAGs when channels commit."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Hashable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.triggers import BaseEventTrigger
from airflow.triggers.base import TriggerEvent

from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook, refuse_two_pipes
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.names import check_channel_name
from airflow_provider_snowpipe.streaming.offset_events import (
    START_NOW,
    FollowRules,
    OffsetFollower,
    WatermarkJournal,
    journals_fed_by,
)
from airflow_provider_snowpipe.streaming.polling import ChannelListing, StatusPoll, shared_in_loop
from airflow_provider_snowpipe.triggers.commit import StoredTrigger, named_pipe, status_poll

if TYPE_CHECKING:
    from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer

    from airflow_provider_snowpipe.streaming.commits import PolledStatuses

log = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False, repr=False)
class SnowpipeOffsetTrigger(StoredTrigger, BaseEventTrigger):
    """Start DAGs when channels commit: an ``AssetWatcher``'s trigger, one event for each step.

    Without ``every_rows`` there is an event whenever a poll finds that a channel has committed something.
    Rows of all channels are added up, and one event reports all that moved since the last one.

    **What is guaranteed.** On Airflow 3.3 and later, *at least once*: each commit has an event, also when the
    triggerer is killed, as each is written to the asset's state store before it is sent, and taken off there
    when Airflow has it in its database. If that is not known of an event when the triggerer dies, it is sent
    again, the same (``id``) but for ``"redelivered": true``; only such an event can be a double. Consecutive
    events share the watermark between them (``previous_token`` and ``previous_rows``), without gap or
    overlap. A trigger of Airflow 3.3.2 cannot ask which events are stored, so exactly once is not possible.

    Before Airflow 3.3 triggers have no state: each start of the triggerer is a new beginning (``start``), so
    commits made meanwhile are not reported, or again. Airflow 2 has no asset watchers.

    All watchers that name the same pipe of the same connection share one poll.

    :param channel: the channel; None for all whose names begin with ``channel_prefix``
    :param channel_prefix: beginning of the channels' names, new ones too; None for all channels of the pipe
    :param every_rows: report when the rows committed since the watch began reach the next multiple of this
    :param start: ``now`` reports what is committed after the watch began, ``beginning`` what was before, too
    :param table: the channels belong to this table's default pipe
    :param pipe: the channels belong to this pipe; not together with ``table``
    :param database: the pipe's database, None for the connection's
    :param schema: the pipe's schema, None for the connection's
    :param snowflake_conn_id: the connection's id
    :param account: refuse a connection to another account than this
    :param poll_interval: seconds between two polls
    :param list_interval: seconds between two searches for new channels
    :raises ConfigurationError: if an argument is wrong
    """

    channel: str | None = None
    channel_prefix: str | None = None
    every_rows: int | None = None
    start: str = START_NOW
    table: str | None = None
    pipe: str | None = None
    database: str | None = None
    schema: str | None = None
    snowflake_conn_id: str = SnowpipeHook.default_conn_name
    account: str | None = None
    poll_interval: float = 5.0
    list_interval: float = 60.0

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_two_pipes(self.table, self.pipe)
        if self.channel is not None:
            check_channel_name(self.channel)
        self._rules()

    def shared_stream_key(self) -> Hashable:
        """What the watchers of one poll have in common: connection and pipe, as they were named."""
        return ("snowpipe commits", *named_pipe(self))

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        """Make the poll of all watchers of one key, which gets what Airflow has stored (Airflow 3.3).

        :param kwargs: arguments of one of them; only those of the key count
        """
        from airflow.triggers.shared_stream import SharedStreamProducer

        class CommitStreamProducer(CommitStream, SharedStreamProducer):
            """With Airflow's base, which earlier releases have not."""

        return CommitStreamProducer(cls(**kwargs)._poll())

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[NumberedAnswer]
    ) -> AsyncGenerator[TriggerEvent]:
        """Turn the polls of the shared poll into this watcher's events."""
        store = store_of(self.asset_state_store)
        follower = self._follower(WatermarkJournal(store, self.watermark_key()))
        async with follower.following():
            async for numbered in shared_stream:
                for message in await follower.take(numbered.number, numbered.answer):
                    yield TriggerEvent(message)  # type: ignore[no-untyped-call]

    async def run(self) -> AsyncGenerator[TriggerEvent]:
        """Send events where the triggerer shares no streams, from a watermark that ends with the process."""
        journal = WatermarkJournal(None, "")
        follower = self._follower(journal)
        async with follower.following(), aclosing(self._poll().follow()) as answers:
            async for numbered in _numbered(answers):
                for message in await follower.take(numbered.number, numbered.answer):
                    yield TriggerEvent(message)  # type: ignore[no-untyped-call]
                await journal.arrived(numbered.number)

    def watermark_key(self) -> str:
        """The watermark's key in the asset's state store.

        It depends on what is watched and reported, so that a change of the pace keeps the watermark.
        """
        what = [
            *self.shared_stream_key(),  # type: ignore[misc]
            self.channel,
            self.channel_prefix or "",
            self.every_rows,
        ]
        return "snowpipe_watermark_" + hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]

    def _rules(self) -> FollowRules:
        return FollowRules(
            self.channel,
            self.channel_prefix or "",
            self.every_rows,
            self.start,
            self.poll_interval,
            self.list_interval,
        )

    def _follower(self, journal: WatermarkJournal) -> OffsetFollower:
        return OffsetFollower(
            self._rules(),
            poll=self._poll(),
            listing=self._listing(),
            journal=journal,
            pipe_name=self._pipe_name,
        )

    def _hook(self) -> SnowpipeHook:
        return SnowpipeHook.of(self)

    def _poll(self) -> StatusPoll:
        return status_poll(self, self.shared_stream_key())

    def _listing(self) -> ChannelListing:
        async def list_names() -> list[str]:
            hook = self._hook()
            return [listed.name for listed in await hook.in_thread(hook.list_channels)]

        return shared_in_loop(ChannelListing, self.shared_stream_key(), partial(ChannelListing, list_names))

    async def _pipe_name(self) -> str:
        hook = self._hook()
        pipe = await hook.in_thread(hook.pipe_name)
        if self.account is not None and hook.account().lower() != self.account.lower():
            raise ConfigurationError(
                f"connection {self.snowflake_conn_id!r} is to account {hook.account()!r}, and the account to "
                f"watch is {self.account!r}: name another connection"
            )
        return str(pipe)


class AssetStates:
    """One state in the stores of all assets that share a trigger.

    Airflow has one trigger for watchers with the same arguments; the state outlives any of the assets.
    """

    def __init__(self, accessors: list[Any]) -> None:
        self._accessors = accessors

    async def aget(self, key: str) -> Any:
        """Read a value, None if no asset has it."""
        for accessor in self._accessors:
            value = await accessor.aget(key)
            if value is not None:
                return value
        return None

    async def aset(self, key: str, value: Any) -> None:
        """Write a value to every asset."""
        for accessor in self._accessors:
            await accessor.aset(key, value)


def store_of(accessors: Any) -> AssetStates | None:
    """Find the stores behind what Airflow 3.3 gives an event trigger."""
    if accessors is None:
        return None
    # Airflow 3.3.2 has no public way to list them; by itself the object serves a single asset only.
    by_name: dict[str, Any] = getattr(accessors, "_by_name", {})
    return AssetStates([by_name[name] for name in sorted(by_name)] or [accessors])


# -- The shared stream of polls behind watchers of commits; Airflow 3.3 or later -------------------------


_numbers = itertools.count()
"""Numbers of polls, unique in this process, so that no poll of a stream that ended is taken for another's."""


@dataclass(frozen=True, slots=True)
class NumberedAnswer:
    """A poll at the channels and its number."""

    number: int
    answer: PolledStatuses


async def _numbered(answers: AsyncIterator[PolledStatuses]) -> AsyncGenerator[NumberedAnswer]:
    async for answer in answers:
        yield NumberedAnswer(next(_numbers), answer)


class CommitStream:
    """Polls for all watchers of a pipe, and reports to them which of their events Airflow has stored.

    The triggerer calls :meth:`advance` with a poll when all events of it are in Airflow's database (3.3.2).
    """

    def __init__(self, poll: StatusPoll) -> None:
        self._poll = poll

    async def open_stream(self) -> AsyncGenerator[tuple[NumberedAnswer, int]]:
        """Poll for ever."""
        async with aclosing(self._poll.answers()) as answers:
            async for numbered in _numbered(answers):
                yield numbered, numbered.number

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Let the watchers forget what they keep for the case that an event is lost.

        A poll with an event that was not stored is skipped: its watcher reads this stream no more.
        """
        stored = [item.broker_payload for item in batch if not item.outcome.failed]
        if not stored:
            return
        for journal in journals_fed_by(self._poll):
            try:
                await journal.arrived(max(stored))
            except Exception as error:  # noqa: BLE001  its next write makes up for it
                log.warning("a watermark was not written: %s: %s", type(error).__name__, error)

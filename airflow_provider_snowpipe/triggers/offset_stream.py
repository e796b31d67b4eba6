"""The shared stream of polls behind watchers of commits; Airflow 3.3 or later."""

from __future__ import annotations

import itertools
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from airflow.providers.common.compat.sdk import AirflowOptionalProviderFeatureException

from airflow_provider_snowpipe.streaming.commits import PolledStatuses
from airflow_provider_snowpipe.streaming.offset_events import journals_fed_by
from airflow_provider_snowpipe.streaming.polling import StatusPoll

try:
    from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer
except ImportError as error:
    raise AirflowOptionalProviderFeatureException("shared streams need Airflow 3.3 or later") from error

log = logging.getLogger(__name__)

_numbers = itertools.count()
"""Numbers of polls, unique in this process, so that no poll of a stream that ended is taken for another's."""


@dataclass(frozen=True, slots=True)
class NumberedAnswer:
    """A poll at the channels and its number.

    :param number: grows from poll to poll
    :param answer: what was seen
    """

    number: int
    answer: PolledStatuses


class CommitStreamProducer(SharedStreamProducer):
    """Polls for all watchers of a pipe, and tells them which of their events Airflow has stored.

    The triggerer calls :meth:`advance` with a poll when every event that any watcher derived from it is in
    Airflow's database ("persistence-gated advance", Airflow 3.3.2).

    :param poll: the poll
    """

    def __init__(self, poll: StatusPoll) -> None:
        self._poll = poll

    async def open_stream(self) -> AsyncGenerator[tuple[NumberedAnswer, int]]:
        """Poll for ever."""
        async with aclosing(self._poll.answers()) as answers:
            async for answer in answers:
                number = next(_numbers)
                yield NumberedAnswer(number, answer), number

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Let the watchers forget what they keep for the case that an event is lost.

        A poll of which one watcher's event was not stored is passed over; the next one makes up for it, as
        the watcher that failed reads this stream no more.

        :param batch: polls, in their order
        """
        stored = [item.broker_payload for item in batch if not item.outcome.failed]
        if not stored:
            return
        for journal in journals_fed_by(self._poll):
            try:
                await journal.arrived(max(stored))
            except Exception as error:  # noqa: BLE001  its next write makes up for it
                log.warning("a watermark was not written: %s: %s", type(error).__name__, error)

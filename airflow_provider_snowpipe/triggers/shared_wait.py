"""What the triggers have in common that wait for one event among others who wait for the same service."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, Generic, TypeVar

from airflow.providers.common.compat.triggers import BaseEventTrigger
from airflow.triggers.base import TriggerEvent

from airflow_provider_snowpipe.streaming.shared_poll import SharedPoll

Look = TypeVar("Look")


class SharedWaitTrigger(BaseEventTrigger, Generic[Look]):
    """Wait in a poll that many triggers share, and send one event.

    Since Airflow 3.3 the triggerer shares the poll among all triggers of one ``shared_stream_key()``. Before
    that, and wherever ``run`` is called, they share it by themselves, within their event loop.
    """

    @abstractmethod
    def _poll(self) -> SharedPoll[Look]:
        """The poll of this trigger's key."""

    @abstractmethod
    async def _wait(self, looks: AsyncIterator[Look]) -> TriggerEvent:
        """Announce what is waited for to the poll, read its looks, and return the event."""

    @classmethod
    async def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncGenerator[Look]:
        """Poll for all triggers of one key; what each of them waits for, the poll knows by itself.

        :param kwargs: arguments of one of them, of which only the key's count
        """
        async with aclosing(cls(**kwargs)._poll().looks()) as looks:
            async for look in looks:
                yield look

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Look]) -> AsyncGenerator[TriggerEvent]:
        """Wait in the shared poll; one event.

        :param shared_stream: the poll's looks
        """
        yield await self._wait(shared_stream)

    async def run(self) -> AsyncGenerator[TriggerEvent]:
        """Wait where the triggerer shares no streams; one event."""
        async with aclosing(self._poll().follow()) as looks:
            event = await self._wait(looks)
        yield event

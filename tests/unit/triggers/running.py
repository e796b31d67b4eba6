"""Triggers of one event as a triggerer runs them: each alone, or through the streams that they share."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any


async def _only(events: AsyncIterator[Any]) -> Any:
    (event,) = [event async for event in events]
    return event.payload


def payloads(*triggers: Any) -> list[Any]:
    """The payload of each trigger, run on one event loop."""

    async def run() -> list[Any]:
        return list(await asyncio.gather(*(_only(trigger.run()) for trigger in triggers)))

    return asyncio.run(asyncio.wait_for(run(), 240))


def payloads_of_shared_streams(*triggers: Any) -> list[Any]:
    """The same through the streams of Airflow 3.3 and later."""
    from airflow.triggers.shared_stream import SharedStreamManager

    manager = SharedStreamManager()

    async def one(number: int, trigger: Any) -> Any:
        key = trigger.shared_stream_key()
        stream = manager.subscribe(trigger_id=number, trigger=trigger, key=key)
        try:
            return await _only(trigger.filter_shared_stream(stream))
        finally:
            await manager.unsubscribe(number, key)

    async def run() -> list[Any]:
        found = await asyncio.gather(*(one(number, trigger) for number, trigger in enumerate(triggers)))
        assert manager._groups == {}
        return list(found)

    return asyncio.run(asyncio.wait_for(run(), 240))


def event(trigger: Any) -> Any:
    """The one event of a trigger."""
    return payloads(trigger)[0]

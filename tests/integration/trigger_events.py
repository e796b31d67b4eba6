"""What a trigger sends to the task that waits for it."""

import asyncio
from contextlib import aclosing
from importlib import import_module
from typing import Any


def event_of(trigger: Any, seconds: float = 600) -> dict[str, Any]:
    """The payload of a trigger's first event; it runs as Airflow makes it from its serialized form."""
    path, arguments = trigger.serialize()
    module, _, name = path.rpartition(".")
    made = getattr(import_module(module), name)(**arguments)

    async def first() -> Any:
        async with aclosing(made.run()) as events:
            return (await anext(events)).payload

    return dict(asyncio.run(asyncio.wait_for(first(), seconds)))

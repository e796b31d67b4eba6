"""Waiting for a condition within a limit of time."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(
    condition: Callable[[], T], *, seconds: float = 240, what: str = "the condition", every: float = 0.02
) -> T:
    """Ask until the answer is true, and return it."""
    deadline = time.monotonic() + seconds
    while not (seen := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what} ({seen!r})"
        time.sleep(every)
    return seen


async def until(condition: Callable[[], object], *, seconds: float = 240) -> None:
    """Let the event loop go on until a condition holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)

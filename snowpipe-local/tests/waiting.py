"""Waiting for a condition within a limit of time."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], *, seconds: float = 240, what: str = "the condition") -> T:
    """Ask until the answer is true, and return it.

    :param what: names what is waited for
    :raises AssertionError: with the last answer, after so many seconds
    """
    deadline = time.monotonic() + seconds
    while not (seen := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what} ({seen!r})"
        time.sleep(0.02)
    return seen

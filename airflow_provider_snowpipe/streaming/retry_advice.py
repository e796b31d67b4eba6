"""What another try of a task is worth, and when it may start at the earliest.

The answer is the error class's own (:class:`~airflow_provider_snowpipe.streaming.errors.SnowpipeError`); here
the error is found, in a chain of exceptions or in the text that another process left.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from airflow_provider_snowpipe.streaming.errors import SnowpipeError, error_class

_NAMED = re.compile(r"snowpipe error: (?P<kind>\w+): ")


class Worth(StrEnum):
    """What another try is worth."""

    RETRY = "retry"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class RetryAdvice:
    """What to do about an error.

    :param worth: try again, do not, or nothing is known about it
    :param reason: why, in words
    :param delay_seconds: wait this long at least, None for the task's own delay
    """

    worth: Worth
    reason: str
    delay_seconds: float | None = None


def advise(error: BaseException) -> RetryAdvice:
    """Say what another try is worth, by the error itself or the first one in its chain that is known.

    :param error: what ended the task; an error of the Spark job is known by its text
    """
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        advice = _of(current)
        if advice is not None:
            return advice
        current = current.__cause__ or current.__context__
    return RetryAdvice(Worth.UNKNOWN, "no error of this provider")


def _of(error: BaseException) -> RetryAdvice | None:
    if isinstance(error, SnowpipeError):
        return _answer(error)
    named = _NAMED.search(str(error))
    if named is None:
        return None
    kind = error_class(named["kind"])
    return None if kind.__name__ != named["kind"] else _answer(kind)


def _answer(error: SnowpipeError | type[SnowpipeError]) -> RetryAdvice:
    worth = Worth.RETRY if error.retryable else Worth.FAIL
    return RetryAdvice(worth, error.retry_reason, error.retry_delay)

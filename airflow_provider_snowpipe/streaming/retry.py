"""Which answers are worth repeating, for how long, and what the others mean.

The table is SDK 1.9.1's, as observed, with bounded budgets instead of its ten hours and with
``Retry-After`` honoured, which the SDK ignores.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_snowpipe.streaming.answer import IF_NO_ANSWER, Answer, UnreachableError
from airflow_provider_snowpipe.streaming.errors import (
    ApiError,
    AuthenticationError,
    ConfigurationError,
    PipeFailedOverError,
    RetriesExhaustedError,
)

log = logging.getLogger(__name__)

_UNAUTHORIZED = frozenset({401, 403})
_TRANSIENT = frozenset({408, 429})
_MOST_REFRESHES = 2
"""A fresh scoped token that is refused twice is a matter of rights, which no repetition mends."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long and how often one logical request is repeated.

    :param budget_seconds: give up when this much time has passed since the first attempt
    :param initial_seconds: the first pause
    :param multiplier: growth of the pause
    :param cap_seconds: the longest pause
    :param jitter: share of the pause that is drawn at random, 0 to 1
    """

    budget_seconds: float = 120.0
    initial_seconds: float = 0.5
    multiplier: float = 2.0
    cap_seconds: float = 20.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        if self.budget_seconds < 0 or self.initial_seconds <= 0 or self.multiplier < 1:
            raise ConfigurationError(
                f"{self} is not usable: budget_seconds >= 0, initial_seconds > 0, multiplier >= 1"
            )
        if not 0 <= self.jitter <= 1:
            raise ConfigurationError(f"retry jitter is {self.jitter}: it must lie between 0 and 1")

    def pause(self, retry_count: int, retry_after: float | None) -> float:
        """Seconds to wait before repetition ``retry_count`` (the first one is 1)."""
        pause = min(self.initial_seconds * self.multiplier ** (retry_count - 1), self.cap_seconds)
        pause *= 1 - self.jitter * random.random()  # noqa: S311  spreads repetitions, guards no secret
        return max(pause, retry_after or 0.0)


def is_transient(answer: Answer) -> bool:
    """True when the same request may succeed later.

    A 404 without a JSON code comes from something between us and the service, not from the service
    (observed with SDK 1.9.1, which treats it as a server error too).
    """
    if answer.status in _TRANSIENT or answer.status >= 500:
        return True
    if answer.status == 409 and answer.code == "ERR_OPEN_CHANNEL_IN_PROGRESS":
        return True
    return answer.status == 404 and not answer.code


def repeat(
    policy: RetryPolicy,
    what: str,
    attempt: Callable[[int], Answer],
    *,
    refresh: Callable[[], bool],
) -> Answer:
    """Make one logical request, repeating it while that is safe and worth it.

    The caller's ``attempt`` keeps the request id and the continuation token over all repetitions: a time-out
    means that the outcome is unknown, not that the request failed.

    :param policy: pauses and budget
    :param what: the request in words, for errors ("append to channel 'c'")
    :param attempt: makes attempt number ``retry_count`` and returns its answer
    :param refresh: renews the credential after a 401 or 403; returns False where that is impossible
    :return: the answer, which has a 2xx status
    :raises AuthenticationError: if the credentials stay refused
    :raises RetriesExhaustedError: if the budget is used up
    :raises ApiError: for every refusal that repeating cannot mend
    """
    deadline = time.monotonic() + policy.budget_seconds
    retry_count = 0
    refreshes = 0
    while True:
        retry_after: float | None = None
        remedy = "run again, which resumes from the committed token"
        try:
            answer = attempt(retry_count)
        except UnreachableError as error:
            reason = str(error)
            remedy = f"another run resumes from the committed token. {IF_NO_ANSWER}"
        else:
            if answer.ok:
                return answer
            reason = answer.describe()
            if answer.status in _UNAUTHORIZED:
                refreshes += 1
                if refreshes > _MOST_REFRESHES or not refresh():
                    raise AuthenticationError(
                        f"{what}: the service refuses the credentials ({reason}). Check the user, its key or "
                        "token, and the role's rights; opening the channel again does not help"
                    )
            elif not is_transient(answer):
                raise refusal(what, answer)
            retry_after = answer.retry_after
        retry_count += 1
        pause = policy.pause(retry_count, retry_after)
        if time.monotonic() + pause > deadline:
            raise RetriesExhaustedError(
                f"{what}: no success within {policy.budget_seconds:g} s and {retry_count} attempts "
                f"(last: {reason}). The outcome is unknown; {remedy}",
                retry_after=retry_after,
            )
        log.warning("%s: %s; repeating in %.1f s (retry %d)", what, reason, pause, retry_count)
        time.sleep(pause)


def refusal(what: str, answer: Answer) -> ApiError:
    """Build the error for an answer that is final.

    :param what: the request in words
    :param answer: the answer, which has no 2xx status and is not transient
    """
    if answer.status == 410:
        return PipeFailedOverError(
            f"{what}: the pipe failed over to another place ({answer.describe()}); make a new client and "
            "open the channels again",
            http_status=answer.status,
            code=answer.code,
        )
    return ApiError(f"{what}: {answer.describe()}", http_status=answer.status, code=answer.code)

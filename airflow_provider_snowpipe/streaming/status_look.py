"""One round of status requests: an answer, or an error, for every channel asked after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from airflow_provider_snowpipe.streaming.errors import (
    ApiError,
    AuthenticationError,
    PipeFailedOverError,
    PipeNotFoundError,
    RetriesExhaustedError,
    SnowpipeError,
)
from airflow_provider_snowpipe.streaming.status import STATUS_NAMES_PER_REQUEST, ChannelStatus

_OUTAGES = (RetriesExhaustedError, PipeFailedOverError, PipeNotFoundError, AuthenticationError)
"""Errors that the next request would meet as well."""


class StatusSource(Protocol):
    """As much of a client as a look needs."""

    def channel_statuses(self, names: Sequence[str]) -> dict[str, ChannelStatus]:
        """Ask after channels; a status for every name."""

    def close(self) -> None:
        """Give the connections back."""


@dataclass(frozen=True, slots=True)
class StatusLook:
    """What one round of status requests said; each channel asked after is in one of the two.

    :param statuses: a status for every channel that the service answered for
    :param errors: what went wrong instead, by channel
    """

    statuses: Mapping[str, ChannelStatus] = field(default_factory=dict)
    errors: Mapping[str, Exception] = field(default_factory=dict)

    @classmethod
    def failed(cls, names: Sequence[str], error: Exception) -> StatusLook:
        """Build the look that brought nothing but one error.

        :param names: the channels asked after
        :param error: what went wrong
        """
        return cls(errors=dict.fromkeys(names, error))


def look_at(source: StatusSource, names: Sequence[str]) -> StatusLook:
    """Ask after channels, 100 a request, such that one request's failure harms no other's channels.

    A request that is refused for what it asks is repeated in halves, until the refusal concerns one channel
    only. An outage (unreachable, credentials refused, no such pipe) ends the round instead of being met once
    for each hundred: the channels not asked after yet get the same error.

    :param source: a client of the pipe
    :param names: the channels' names, each once
    """
    statuses: dict[str, ChannelStatus] = {}
    errors: dict[str, Exception] = {}
    waiting = [
        list(names[start : start + STATUS_NAMES_PER_REQUEST])
        for start in range(0, len(names), STATUS_NAMES_PER_REQUEST)
    ]
    while waiting:
        some = waiting.pop(0)
        try:
            statuses.update(source.channel_statuses(some))
        except _OUTAGES as error:
            for unasked in (some, *waiting):
                errors.update(dict.fromkeys(unasked, error))
            break
        except SnowpipeError as error:
            if len(some) > 1 and isinstance(error, ApiError) and 400 <= error.http_status < 500:
                middle = len(some) // 2
                waiting[:0] = [some[:middle], some[middle:]]
            else:
                errors.update(dict.fromkeys(some, error))
    return StatusLook(statuses, errors)

"""What the service says of a channel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SUCCESS = "SUCCESS"
REJECTED_ROWS = "REJECTED ROWS"
"""Shown in place of ``SUCCESS``, which says that the channel can be used and nothing of its rows."""
CHANNEL_MISSING = "ERR_CHANNEL_DOES_NOT_EXIST_OR_NOT_AUTHORIZED"
STATUS_NAMES_PER_REQUEST = 100
"""Most channels that one status request may ask after."""


@dataclass(frozen=True, slots=True)
class ChannelStatus:
    """One channel's state as a status request or an open call reports it.

    Counters are cumulative over the channel's whole life, reopenings included ("Channels and exactly-once
    delivery"); compare them with their value at open.

    :param channel: the channel's name
    :param code: ``SUCCESS``, or the reason why the channel cannot be used; a refusal arrives as data here,
        never as an HTTP error
    :param committed: the offset token of the last commit, None for NULL
    :param rows_inserted: rows that became visible in the table
    :param rows_parsed: rows read, good and bad
    :param rows_error_count: rows skipped because they did not fit
    :param last_error_offset_upper_bound: the last skipped row lies at or before this offset token
    :param last_error_message: the service's text for it
    :param created_on_ms: creation time, milliseconds since 1970
    :param latency_ms: average time from append to commit, milliseconds
    """

    channel: str
    code: str
    committed: str | None = None
    rows_inserted: int = 0
    rows_parsed: int = 0
    rows_error_count: int = 0
    last_error_offset_upper_bound: str | None = None
    last_error_message: str | None = None
    created_on_ms: int | None = None
    latency_ms: int | None = None

    @property
    def exists(self) -> bool:
        """False when the service knows no such channel (or the role may not see it)."""
        return self.code != CHANNEL_MISSING

    @property
    def is_valid(self) -> bool:
        """True when rows can be appended without opening the channel again."""
        return self.code == SUCCESS

    @property
    def shown(self) -> str:
        """The status for people: the code, unless a usable channel has rows that the service rejected."""
        return REJECTED_ROWS if self.is_valid and self.rows_error_count else self.code

    @classmethod
    def missing(cls, channel: str) -> ChannelStatus:
        """Build the status of a channel that the service left out of its answer."""
        return cls(channel=channel, code=CHANNEL_MISSING)

    @classmethod
    def from_json(cls, body: Mapping[str, Any], *, channel: str | None = None) -> ChannelStatus:
        """Read the object of an open or bulk status answer.

        The documentation and SDK 1.9.1 name two fields differently (``rows_errors`` and
        ``rows_error_count``); both are read.

        :param body: the JSON object
        :param channel: the name asked for, where the object is keyed by it
        """
        errors = body.get("rows_error_count")
        if errors is None:
            errors = body.get("rows_errors", 0)
        name = channel if channel is not None else str(body.get("channel_name", ""))
        return cls(
            channel=name,
            code=str(body.get("channel_status_code") or CHANNEL_MISSING),
            committed=_text(body.get("last_committed_offset_token")),
            rows_inserted=int(body.get("rows_inserted") or 0),
            rows_parsed=int(body.get("rows_parsed") or 0),
            rows_error_count=int(errors or 0),
            last_error_offset_upper_bound=_text(body.get("last_error_offset_upper_bound")),
            last_error_message=_text(body.get("last_error_message")),
            created_on_ms=_integer(body.get("created_on_ms")),
            latency_ms=_integer(body.get("snowflake_avg_processing_latency_ms")),
        )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _integer(value: object) -> int | None:
    return int(value) if isinstance(value, int | float | str) and value != "" else None

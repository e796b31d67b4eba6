"""What the service says of a channel."""

from __future__ import annotations

import datetime as dt
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
    :param last_error_at_ms: when that was, milliseconds since 1970
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
    last_error_at_ms: int | None = None
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

    def rejected_since(self, since_ms: int) -> int:
        """Rows that it has surely, or may have, rejected since a time.

        A channel counts rejected rows over its whole life, and says of the last one alone when that was. So
        it is all of them where the channel was made since then, else the last one, or none. One whose time
        it does not say counts, since nobody may have reported it.

        :param since_ms: the time, milliseconds since 1970
        """
        if self.created_on_ms is not None and self.created_on_ms >= since_ms:
            return self.rows_error_count
        last = self.last_error_at_ms
        return int(self.rows_error_count > 0 and (last is None or last >= since_ms))

    @classmethod
    def missing(cls, channel: str) -> ChannelStatus:
        """Build the status of a channel that the service left out of its answer."""
        return cls(channel=channel, code=CHANNEL_MISSING)

    @classmethod
    def from_json(cls, body: Mapping[str, Any], *, channel: str | None = None) -> ChannelStatus:
        """Read the object of an open or bulk status answer.

        The documentation and SDK 1.9.1 name two fields differently (``rows_errors`` and ``rows_error_count``,
        ``last_error_timestamp`` and ``last_error_timestamp_ms``); both are read.

        :param body: the JSON object
        :param channel: the name asked for, where the object is keyed by it
        """
        errors = body.get("rows_error_count")
        if errors is None:
            errors = body.get("rows_errors", 0)
        last = body.get("last_error_timestamp_ms")
        if last is None:
            last = body.get("last_error_timestamp")
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
            last_error_at_ms=_milliseconds(last),
            created_on_ms=_integer(body.get("created_on_ms")),
            latency_ms=_integer(body.get("snowflake_avg_processing_latency_ms")),
        )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _integer(value: object) -> int | None:
    return int(value) if isinstance(value, int | float | str) and value != "" else None


def _milliseconds(value: object) -> int | None:
    """A time as milliseconds since 1970: a number of them, or ISO 8601; None for anything else."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float) or str(value).isdigit():
        return int(value)  # type: ignore[call-overload, no-any-return]
    try:
        found = dt.datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return int((found if found.tzinfo else found.replace(tzinfo=dt.UTC)).timestamp() * 1_000)

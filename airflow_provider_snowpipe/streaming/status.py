"""What the service says of a channel: in a status answer, and in ``SHOW CHANNELS``."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, SupportsInt

from airflow_provider_snowpipe.streaming.names import PipeName, full_name

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
    return int(value) if isinstance(value, SupportsInt | str) and value != "" else None


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


# -- The channels of a pipe as ``SHOW CHANNELS`` lists them, and the SQL about channels ------------------

UPDATE_OFFSET_TOKEN = "SELECT SYSTEM$SNOWPIPE_STREAMING_UPDATE_CHANNEL_OFFSET_TOKEN(%s, %s, %s)"  # noqa: S105
"""Sets a channel's token; takes the table's full name, the channel and the token (needs INSERT)."""


@dataclass(frozen=True, slots=True)
class ListedChannel:
    """One row of ``SHOW CHANNELS``.

    :param name: the channel's name
    :param database: of the pipe
    :param schema: of the pipe
    :param table: the table that the channel writes to
    :param pipe: the pipe, None for a channel whose parent is no pipe
    :param offset_token: the committed offset token, None for NULL
    :param client_sequencer: grows with every opening of the channel
    :param row_sequencer: grows with every append that is committed
    :param created_on: when the channel was made
    """

    name: str
    database: str
    schema: str
    table: str
    pipe: str | None = None
    offset_token: str | None = None
    client_sequencer: int | None = None
    row_sequencer: int | None = None
    created_on: dt.datetime | None = None

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Read a row, whose keys are the columns' names in lower case."""
        created = row.get("created_on")
        return cls(
            name=str(row["name"]),
            database=str(row["database_name"]),
            schema=str(row["schema_name"]),
            table=str(row["table_name"]),
            pipe=str(row["parent_name"]) if row.get("parent_domain") == "PIPE" else None,
            offset_token=None if row.get("offset_token") is None else str(row["offset_token"]),
            client_sequencer=_integer(row.get("client_sequencer")),
            row_sequencer=_integer(row.get("row_sequencer")),
            created_on=created if isinstance(created, dt.datetime) else None,
        )


def show_channels(pipe: PipeName) -> str:
    """The statement that lists the channels of a pipe."""
    return f"SHOW CHANNELS IN PIPE {full_name(pipe.database, pipe.schema, pipe.pipe)}"


# -- Telling whether somebody writes to a channel, from two observations of it -----------------------------
#
# The service does not say when a channel was last written to. What it does say moves with every write: the
# committed token and the row counter (status), the number of openings and of appends (``SHOW CHANNELS``).
# Two observations with the same numbers mean that nobody wrote in between. A writer that was idle all that
# time is not seen, so whoever changes a token opens the channel first, which shuts such a writer out.


@dataclass(frozen=True, slots=True)
class ChannelState:
    """What one time shows of a channel.

    :param status: the answer to a status request
    :param listed: its row in ``SHOW CHANNELS``, None where the role may not see it
    """

    status: ChannelStatus
    listed: ListedChannel | None = None


def signs_of_a_writer(before: ChannelState, after: ChannelState) -> list[str]:
    """Say what moved between two observations of a channel; empty when nothing did.

    :param before: the earlier one
    :param after: the later one
    """
    moved = [
        ("the committed token", before.status.committed or "NULL", after.status.committed or "NULL"),
        ("the number of rows read", before.status.rows_parsed, after.status.rows_parsed),
    ]
    if before.listed is not None and after.listed is not None:
        moved += [
            ("the number of openings", before.listed.client_sequencer, after.listed.client_sequencer),
            ("the number of appends", before.listed.row_sequencer, after.listed.row_sequencer),
        ]
    return [f"{what} went from {old} to {new}" for what, old, new in moved if old != new]

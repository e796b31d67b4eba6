"""What is known of a channel: what the service reports of it, what a run owes on it, and how far it is.

Pure and single-threaded: whoever appends calls :meth:`ChannelProgress.accept`, whoever reads a status calls
:meth:`ChannelProgress.observe`, and a channel's owner does both from one thread.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self, SupportsInt

from airflow_provider_snowpipe.streaming.checkpoint import Checkpoint, OnImbalance, is_checkpoint, position_of
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    ContinuityError,
    OffsetTokenError,
    SourceChangedError,
    TokenWentBackError,
)
from airflow_provider_snowpipe.streaming.names import PipeName, check_channel_name
from airflow_provider_snowpipe.streaming.offsets import Offset, offset_class

SUCCESS = "SUCCESS"
REJECTED_ROWS = "REJECTED ROWS"
"""Shown instead of ``SUCCESS``, which means that the channel can be used and nothing of its rows."""
CHANNEL_MISSING = "ERR_CHANNEL_DOES_NOT_EXIST_OR_NOT_AUTHORIZED"
STATUS_NAMES_PER_REQUEST = 100


# pragma: no mutate start (whole answers are read: tests/unit/streaming/test_names_and_status.py)


@dataclass(frozen=True, slots=True)
class ChannelStatus:
    """One channel's state as a status request or an open call reports it.

    Counters are cumulative over the channel's whole life; compare them with their value at open.

    :param code: ``SUCCESS``, or why the channel cannot be used; data here, never an HTTP error
    :param last_error_offset_upper_bound: the last skipped row lies at or before this offset token
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
    def rows_counted(self) -> int:
        """Rows that the channel has taken, those that did not fit among them."""
        return self.rows_inserted + self.rows_error_count

    @property
    def shown(self) -> str:
        """The status for people: the code, unless a usable channel has rows that the service rejected."""
        return REJECTED_ROWS if self.is_valid and self.rows_error_count else self.code

    @property
    def last_error(self) -> str | None:
        """The last row that the service skipped, in words; None where it reports none."""
        at = self.last_error_offset_upper_bound
        words = (self.last_error_message, None if at is None else f"at or before {at}")
        return ", ".join(filter(None, words)) or None

    @classmethod
    def missing(cls, channel: str) -> ChannelStatus:
        """Build the status of a channel that the service left out of its answer."""
        return cls(channel=channel, code=CHANNEL_MISSING)

    @classmethod
    def from_json(cls, body: Mapping[str, Any], *, channel: str | None = None) -> ChannelStatus:
        """Read the object of an open or bulk status answer.

        Documentation and SDK 1.9.1 name the count of errors differently; both names are read.
        """
        errors = body.get("rows_error_count")
        name = channel if channel is not None else str(body.get("channel_name", ""))
        return cls(
            channel=name,
            code=str(body.get("channel_status_code") or CHANNEL_MISSING),
            committed=_text(body.get("last_committed_offset_token")),
            rows_inserted=int(body.get("rows_inserted") or 0),
            rows_parsed=int(body.get("rows_parsed") or 0),
            rows_error_count=int((body.get("rows_errors") if errors is None else errors) or 0),
            last_error_offset_upper_bound=_text(body.get("last_error_offset_upper_bound")),
            last_error_message=_text(body.get("last_error_message")),
            created_on_ms=_integer(body.get("created_on_ms")),
            latency_ms=_integer(body.get("snowflake_avg_processing_latency_ms")),
        )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _integer(value: object) -> int | None:
    return int(value) if isinstance(value, SupportsInt | str) and value != "" else None


# -- The channels of a pipe as ``SHOW CHANNELS`` lists them, and the SQL about channels ------------------

UPDATE_OFFSET_TOKEN = "SELECT SYSTEM$SNOWPIPE_STREAMING_UPDATE_CHANNEL_OFFSET_TOKEN(%s, %s, %s)"  # noqa: S105
"""Sets a channel's token; takes the table's full name, the channel and the token (needs INSERT)."""


@dataclass(frozen=True, slots=True)
class ListedChannel:
    """One row of ``SHOW CHANNELS``."""

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
    return f"SHOW CHANNELS IN PIPE {pipe.quoted}"


# -- Whether somebody writes to a channel, from two observations of it -------------------------------------
#
# The service does not report when a channel was last written to. What it reports moves with every write: the
# committed token and the row counter (status), the number of openings and of appends (``SHOW CHANNELS``).
# Two observations with the same numbers mean that nobody wrote in between. A writer that was idle all that
# time is not seen, so whoever changes a token opens the channel first, which shuts such a writer out.


@dataclass(frozen=True, slots=True)
class ChannelState:
    """What one time shows of a channel."""

    status: ChannelStatus
    listed: ListedChannel | None = None


def signs_of_a_writer(before: ChannelState, after: ChannelState) -> list[str]:
    """Describe what moved between two observations of a channel; empty when nothing did."""
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


# pragma: no mutate end


# -- How far a channel is: what is committed, what was sent, what is still owed --------------------------


@dataclass(frozen=True, slots=True)
class Progress:
    """What one channel has durably committed, and what a run still owes it."""

    committed: Offset | None
    target: Offset

    def is_complete(self) -> bool:
        """True when the committed position is at or past the target; NULL is never complete."""
        return self.committed is not None and self.committed >= self.target


@dataclass(slots=True)
class ChannelProgress:
    """All offset state of one channel during one session.

    *Committed* is what the service has proved, *sent* what it may still lose. A *gap* is a position that does
    not follow directly, legal only in a source that skips positions (Kafka compaction).
    """

    channel: str
    committed: Offset | None
    gaps_legal: bool = False
    sent: Offset | None = field(init=False, default=None)

    def accept(self, start: Offset, end: Offset) -> None:
        """Take the rows from ``start`` to ``end`` as the next ones, or refuse them.

        :raises ContinuityError: if the rows are not the next ones, or end before they start
        """
        if end < start:
            raise ContinuityError(
                f"channel {self.channel!r}: rows end at {end}, before they start at {start}; nothing was sent"
            )
        last = self.sent if self.sent is not None else self.committed
        if last is not None and start <= last:
            raise ContinuityError(
                f"channel {self.channel!r}: rows start at {start}, but {last} was already taken; nothing was "
                "sent. Resume from just after the committed token, in the source's order"
            )
        if last is not None and not self.gaps_legal and not start.follows(last):
            raise ContinuityError(
                f"channel {self.channel!r}: rows start at {start}, but the last one taken was {last} and "
                "this source has no gaps; nothing was sent. Rows between the two are missing"
            )
        self.sent = end

    def observe(self, committed: Offset | None) -> None:
        """Take over the committed position of a status answer.

        :raises TokenWentBackError: if it is behind one that was already seen
        """
        if committed is not None and (self.committed is None or committed >= self.committed):
            self.committed = committed
            return
        if committed == self.committed:
            return
        raise TokenWentBackError(
            f"channel {self.channel!r}: the committed token went from {self.committed} back to "
            f"{'NULL' if committed is None else committed}; the channel was reset or recreated while this "
            "run was writing. Find out who did it, then run again: it resumes from the token found then"
        )


# -- What a run owes on its channels: the targets that a load hands on and a wait is for -----------------


@dataclass(frozen=True, slots=True)
class ChannelTarget:
    """What one run owes on one channel, as the XCom ``targets`` of the tasks that load carries it.

    :param token: the offset token that proves the run complete: a checkpoint, or a bare position; None for a
        channel that owes nothing, because the run had no row for it and nothing was ever committed
    :param offset_format: of a bare position, or an author's class; None where a checkpoint names it
    :param errors: rejected rows of the channel that were reported before; None accepts rejected rows
    """

    token: str | None
    offset_format: str | None = None
    errors: int | None = None
    rows: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The value in the mapping ``targets``."""
        return asdict(self)

    @classmethod
    def read(cls, channel: str, value: Any, offset_format: str | None = None) -> Self:
        """Read the value of a channel: what :meth:`to_json` gives, or a token."""
        is_name = isinstance(channel, str) and channel
        if is_name and isinstance(value, int) and not isinstance(value, bool):
            value = str(value)  # what a DAG that renders templates as native objects makes of digits
        if is_name and isinstance(value, str):
            return cls(value, offset_format)
        if (
            is_name
            and isinstance(value, Mapping)
            and "token" in value
            and not (set(value) - set(cls.__slots__))
        ):
            target = cls(**value)
            texts = (target.token, target.offset_format)
            if all(text is None or isinstance(text, str) for text in texts) and all(
                map(_is_count, (target.errors, target.rows))
            ):
                named = target.offset_format or (None if is_checkpoint(target.token) else offset_format)
                return replace(target, offset_format=named)
        raise ConfigurationError(
            f"targets has the entry {channel!r}: {value!r}: give a channel's name and its target token, both "
            f"text, or the keys {', '.join(cls.__slots__)} as the XCom 'targets' of a load has them"
        )

    def positions(self, channel: str) -> type[Offset] | None:
        """The class of its positions, None where its token names it."""
        if self.offset_format is not None:
            return offset_class(self.offset_format)
        if self.token is not None and not is_checkpoint(self.token):
            raise OffsetTokenError(
                f"channel {channel!r}: target token {self.token[:200]!r} is not a checkpoint: name the "
                "format of the program that writes it, offset_format=…, or use the XCom 'targets' of the load"
            )
        return None

    def progress(self, status: ChannelStatus) -> Progress | None:
        """How far the channel is, None where it owes nothing."""
        if self.token is None:
            return None
        channel, positions = status.channel, self.positions(status.channel)
        target = position_of(self.token, positions, channel=channel)
        committed = status.committed
        if committed is None:
            return Progress(None, target)
        if is_checkpoint(self.token) and is_checkpoint(committed):
            owed = Checkpoint.parse(self.token, positions, channel=channel)
            found = Checkpoint.parse(committed, type(target), channel=channel)
            if owed.binding != found.binding:
                raise SourceChangedError(
                    f"channel {channel!r}: its target {self.token} and its committed token {found} are of "
                    "different sources or numberings. Wait for the target of the load that writes there now"
                )
        return Progress(position_of(committed, type(target), channel=channel), target)


@dataclass(frozen=True, slots=True)
class CommitTargets:
    """What a wait is for: an offset token for each channel, and what counts as failure."""

    targets: Mapping[str, ChannelTarget]
    on_imbalance: OnImbalance = "warn"

    @classmethod
    def parse(
        cls,
        targets: Mapping[str, Any] | Sequence[Any] | str,
        offset_format: str | None = None,
        *,
        fail_on_rejected_rows: bool | None = None,
        on_imbalance: OnImbalance = "warn",
    ) -> CommitTargets:
        """Read targets.

        :param targets: a :class:`ChannelTarget` as JSON or a target token for each channel; a mapping, a list
            of mappings, or the JSON text of one. Without a channel there is nothing to wait for
        :param offset_format: the format of bare positions, as a program outside of this package writes them
        :param fail_on_rejected_rows: of every channel, of none, or None for those with reported ones
        """
        found: dict[str, ChannelTarget] = {}
        for channel, value in all_targets(targets).items():
            target = ChannelTarget.read(channel, value, offset_format)
            positions = target.positions(channel)
            if target.token is not None:
                position_of(target.token, positions, channel=channel)
            errors = None if fail_on_rejected_rows is False else target.errors
            if errors is None and fail_on_rejected_rows:
                token = target.token if is_checkpoint(target.token) else None
                errors = 0 if token is None else Checkpoint.parse(token, positions).errors
            found[check_channel_name(channel)] = replace(target, errors=errors)
        return cls(found, on_imbalance)

    @property
    def offset_format(self) -> str | None:
        """The format of all positions, None where there is none or they have several."""
        owed = {name: one for name, one in self.targets.items() if one.token is not None}
        names = {one.offset_format or type(position_of(str(one.token))).format_name for one in owed.values()}
        return names.pop() if len(names) == 1 else None

    def progress(self, status: ChannelStatus) -> Progress | None:
        """How far a channel is, None where it owes nothing; see :meth:`ChannelTarget.progress`."""
        target = self.targets.get(status.channel)
        return None if target is None else target.progress(status)


def all_targets(targets: Any) -> dict[str, Any]:
    """Targets in one mapping, such as those of all instances of a mapped task."""
    given = _read_json(targets)
    if isinstance(given, Mapping) or not isinstance(given, Sequence) or isinstance(given, str | bytes):
        return _mapping(given)
    if not given:  # as an XCom that no instance has
        raise ConfigurationError(
            "targets is an empty list: give a mapping or a list of them, such as the XCom 'targets' of the "
            "tasks that load, or skip this task where none of them runs"
        )
    found: dict[str, Any] = {}
    for one in given:
        for channel, target in _mapping(one).items():
            if found.setdefault(channel, target) != target:
                raise ConfigurationError(
                    f"targets has two entries of channel {channel!r}: {found[channel]!r} and {target!r}: a "
                    "channel has one writer, so wait for one of them in a task of its own"
                )
    return found


def _is_count(value: Any) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0)


def _mapping(value: Any) -> dict[str, Any]:
    """Take a mapping, or the JSON text of one, as a template renders it."""
    value = _read_json(value)
    if not isinstance(value, Mapping):
        raise ConfigurationError(
            f"targets is {value!r}: give a mapping of channel names, such as the XCom 'targets' of the load"
        )
    return dict(value)


def _read_json(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        raise ConfigurationError(
            f"targets is the text {value[:80]!r}, which is not a JSON object: give a mapping, an XCom such "
            'as load.output["targets"], or a template that ends in "| tojson"'
        ) from None

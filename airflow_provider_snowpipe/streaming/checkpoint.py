"""The offset token that this package commits with its rows: a position, and what the position means.

A position alone shows *where* a channel stands. A checkpoint also shows whose rows these are and how they are
numbered (the *binding*), how many rows were sent up to here, which run sent them, and how many rejected rows
have been reported. So a reader needs no other record to notice another source, another numbering, a lost or
doubled row, or a rejected row that nobody has reported.

Grammar (docs/reference/checkpoints.md)::

    token   = position "~" code version "." binding "." rows "." run "." errors

for example ``messages_1.log:20~f1.9c0f6a2d41b7e3aa.120.20261128T0205Z-3f.0``.
"""

from __future__ import annotations

import logging
import re
from dataclasses import astuple, dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal, Self

from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    ImbalanceError,
    OffsetTokenError,
    SourceChangedError,
)
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset, Offset, offset_class_of_code

if TYPE_CHECKING:
    from airflow_provider_snowpipe.streaming.progress import ChannelStatus

log = logging.getLogger(__name__)

Rebind = Literal["continue", "restart"]
"""What an author says of a channel whose positions are another source's: they mean the same, or nothing."""

OnImbalance = Literal["warn", "fail"]

_VERSION = 1
_SOURCE_DIGITS, _READING_DIGITS = 10, 6
_MOST_RUN = 20
_COUNT = r"0|[1-9][0-9]{0,14}"
_FORM = re.compile(
    rf"(?P<position>.+)~(?P<code>[a-z])(?P<version>[1-9][0-9]?)\.(?P<binding>[0-9a-f]{{16}})\.(?P<rows>{_COUNT})"
    rf"\.(?P<run>[A-Za-z0-9_-]{{1,{_MOST_RUN}}})\.(?P<errors>{_COUNT})",
    re.ASCII | re.DOTALL,
)
_AS_WRITTEN = "{}~{}{}.{}.{}.{}.{}"
_RUN = re.compile(rf"[A-Za-z0-9_-]{{1,{_MOST_RUN}}}", re.ASCII)
_BEGUN = "NULL-"
"""Begins what stands for the run in the record of a channel without a token."""
_NOT_OF_A_RUN = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Binding:
    """What the positions of a channel mean.

    :param source: the source partition in words: the same in every run, other ones for every other partition
    :param reading: everything that decides how its rows are numbered, or which rows it has, in words
    :param lost: how the source may have lost its own record of earlier loads, and the remedy, as sentences;
        empty where it has one
    :param restarted: digits of source partitions whose positions mean nothing, since rows are loaded again
    """

    source: str
    reading: str = ""
    lost: str = ""
    restarted: frozenset[str] = frozenset()

    @property
    def digest(self) -> str:
        """16 hexadecimal digits: ten stand for the source partition, six for how it is read."""
        return f"{_digest(self.source, _SOURCE_DIGITS)}{_digest(self.reading, _READING_DIGITS)}"

    @property
    def source_digest(self) -> str:
        """Its first ten digits: the source partition, however it is read."""
        return _digest(self.source, _SOURCE_DIGITS)

    def __str__(self) -> str:
        return f"{self.source} ({self.reading})" if self.reading else self.source


def _digest(text: str, digits: int) -> str:
    return blake2b(text.encode(), digest_size=8).hexdigest()[:digits]


def run_mark(run: str, began: str = "") -> str:
    """Name a run within a checkpoint, for people: when it began, and four digits of its own.

    :param run: what identifies the run, stable across its retries
    :param began: when, as text; characters that a checkpoint cannot hold are left out
    :return: at most 20 letters, digits, ``-`` and ``_``
    """
    mark = _digest(run, 4)
    shown = _NOT_OF_A_RUN.sub("", began)[: _MOST_RUN - len(mark) - 1]
    return f"{shown}-{mark}" if shown else mark


@dataclass(frozen=True, slots=True)
class _Written:
    """A checkpoint as it is written: its parts, whatever the class of its position."""

    position: str
    code: str
    version: int
    binding: str
    rows: int
    run: str
    errors: int

    @classmethod
    def of(cls, token: str | None) -> Self | None:
        """Take a token apart, None for one that is not a checkpoint."""
        found = _FORM.fullmatch(token or "")
        if found is None:
            return None
        position, code, version, binding, rows, run, errors = found.groups()
        return cls(position, code, int(version), binding, int(rows), run, int(errors))

    def __str__(self) -> str:
        return _AS_WRITTEN.format(*astuple(self))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A committed position with what it means.

    :param position: of the last row
    :param binding: the digest of whose rows these are and how they are numbered
    :param rows: rows sent on the channel up to here, over its whole life; ``rows_inserted`` and
        ``rows_error_count`` of the channel together are as many
    :param run: the run that wrote it, as :func:`run_mark` names it
    :param errors: rejected rows of the channel that have been reported
    """

    position: Offset
    binding: str
    rows: int
    run: str
    errors: int = 0

    @classmethod
    def parse(cls, text: str, positions: type[Offset] | None = None, *, channel: str | None = None) -> Self:
        """Read a token.

        :param positions: the class of its position; None takes the one that the token names
        :param channel: where it comes from, for the error's text
        :raises OffsetTokenError: if it is not a checkpoint, or one of other positions
        """
        whose = "" if channel is None else f"channel {channel!r}: "
        found = _parts_of(text, whose)
        if positions is None:
            positions = offset_class_of_code(found.code)
            if positions is None:
                raise OffsetTokenError(
                    f"{whose}offset token {text[:200]!r} has positions of a class of its author: name the "
                    "class, offset_format=…"
                )
        if found.code != positions.code:
            raise OffsetTokenError(
                f"{whose}offset token {text[:200]!r} has positions of another kind than "
                f"{positions.format_name!r}: the source was changed to one of another kind. Put it back, "
                "load it into a table of its own, or reset the token to a position of this kind"
            )
        position = positions.parse(found.position, channel=channel)
        return cls(position, found.binding, found.rows, found.run, found.errors)

    def __str__(self) -> str:
        meaning = (self.binding, self.rows, self.run, self.errors)
        return _AS_WRITTEN.format(self.position, self.position.code, _VERSION, *meaning)

    @property
    def source(self) -> str:
        """The digits of the binding that stand for the source partition, however it is read."""
        return self.binding[:_SOURCE_DIGITS]


def _parts_of(text: str, whose: str) -> _Written:
    """Take a checkpoint apart.

    :param whose: what stands before the error's text
    :raises OffsetTokenError: if it is not a checkpoint that this release reads
    """
    found = _Written.of(text)
    if found is None:
        raise OffsetTokenError(
            f"{whose}offset token {text[:200]!r} is not a checkpoint: another program has set it. "
            "Reset it to the last row that is in the table, or load through another channel"
        )
    if found.version != _VERSION:
        raise OffsetTokenError(
            f"{whose}offset token {text[:200]!r} is a checkpoint of version {found.version}; this "
            f"release reads version {_VERSION}. Use the release that wrote it"
        )
    return found


def source_of_token(token: str) -> str:
    """The digits of a token that stand for its source partition, whatever the class of its position.

    :return: empty for what is not a checkpoint
    """
    found = _Written.of(token)
    return "" if found is None else found.binding[:_SOURCE_DIGITS]


def is_begun(token: str, status: ChannelStatus | None = None) -> bool:
    """Return whether a token is what :meth:`ChannelSource.begun` has written.

    :param status: a channel; True only if it is the one that it was written of
    """
    found = _Written.of(token)
    run = token if found is None else found.run
    if status is None:
        return run.startswith(_BEGUN)
    return status.exists and run in (begun_token(status.created_on_ms), begun_token(0))


def begun_token(created_on_ms: int | None) -> str:
    """Write what stands for the token of a channel without one that is about to get rows."""
    return f"{_BEGUN}{created_on_ms or 0}"


def is_checkpoint(token: str | None) -> bool:
    """Return whether a token has the form of a checkpoint."""
    return _Written.of(token) is not None


def position_of(token: str, positions: type[Offset] | None = None, *, channel: str | None = None) -> Offset:
    """Read the position of a token: of a checkpoint, or of a bare text whose format is named.

    :param positions: the class of the position; required for a bare text
    :raises OffsetTokenError: if it is neither
    """
    if positions is None or is_checkpoint(token):
        return Checkpoint.parse(token, positions, channel=channel).position
    return positions.parse(token, channel=channel)


def balanced(token: str, status: ChannelStatus, positions: type[Offset] | None = None) -> str:
    """Write the token that a channel is to be set to, so that its counters match it.

    A bare position gets the binding of the channel's own checkpoint; without one it stays bare.

    :param token: a checkpoint or a bare position
    :param status: the channel as it is now
    :param positions: the class of the position; None takes that of the checkpoint
    :raises OffsetTokenError: if the position is of another class than the channel's
    """
    known, now = None, status.committed
    if now is not None and is_checkpoint(now):
        known = Checkpoint.parse(now, positions, channel=status.channel)
    if is_checkpoint(token):
        base = Checkpoint.parse(token, positions, channel=status.channel)
    elif known is not None:
        base = replace(known, position=type(known.position).parse(token, channel=status.channel))
    else:
        return token
    # Rejected rows that nobody has reported stay so.
    errors = min((known or base).errors, status.rows_error_count)
    return str(replace(base, rows=status.rows_counted, errors=errors))


def rebound(status: ChannelStatus, binding: str | None) -> str:
    """Write the channel's token for another binding: its position means the same there.

    :param binding: the digits of the other binding
    :raises OffsetTokenError: if the channel has no checkpoint
    :raises ConfigurationError: if these are not the digits of a binding
    """
    if binding is None or not re.fullmatch("[0-9a-f]{16}", binding):
        raise ConfigurationError(
            f"binding is {binding!r}: give its 16 hexadecimal digits, as the error of the load shows them"
        )
    found = _Written.of(status.committed)
    if found is None:
        raise OffsetTokenError(
            f"channel {status.channel!r} has the token {status.committed or 'NULL'}: it is not a checkpoint"
        )
    return str(replace(found, binding=binding, rows=status.rows_counted))


def described(token: str) -> dict[str, object]:
    """Explain a token: what each of its parts says, by name.

    :raises OffsetTokenError: if it is not a checkpoint
    """
    found = _parts_of(token, "")
    positions = offset_class_of_code(found.code)
    return {
        "position": found.position,
        "format": "of its author's class" if positions is None else positions.format_name,
        "version": found.version,
        "binding": found.binding,
        "rows": found.rows,
        "run": found.run,
        "reported_errors": found.errors,
    }


def reported(status: ChannelStatus) -> str | None:
    """Write the channel's token once its rejected rows are reported; None where all of them were before.

    :param status: the status by which they are reported
    """
    found = _Written.of(status.committed)
    if found is None or found.errors == status.rows_error_count:
        return None
    return str(replace(found, errors=status.rows_error_count))


def excess_of(status: ChannelStatus) -> int:
    """Rows that a channel counts more than were sent up to its checkpoint; negative where it counts fewer.

    :return: 0 where its token is another program's
    """
    found = _Written.of(status.committed)
    return 0 if found is None else status.rows_counted - found.rows


def same_position(one: str | None, other: str | None) -> bool:
    """Return whether two tokens stand for one position of one source, however many rows led to it."""
    first, second = _Written.of(one), _Written.of(other)
    if first is None or second is None:
        return one == other
    parts = [(part.position, part.code, part.binding) for part in (first, second)]
    return parts[0] == parts[1]


# -- The source of one channel: it reads the channel's token, and writes the next one ---------------------


@dataclass(frozen=True, slots=True)
class Start:
    """Where a writer of a channel begins.

    :param position: the committed position, None where it begins at the source's first row
    :param rows: rows sent on the channel before
    :param errors: rejected rows of the channel that have been reported
    :param run: the run that wrote the token, None for NULL and for a bare token
    :param excess: rows that the channel counts more than its token, 0 where they balance or nobody knows
    :param restarted: rows of the channel that it sends again, since its source begins again
    """

    position: Offset | None
    rows: int
    errors: int
    run: str | None = None
    excess: int = 0
    restarted: int = 0


@dataclass(frozen=True, slots=True)
class ChannelSource:
    """Whose rows a channel gets, and how its tokens are read and written.

    :param positions: the class of its positions
    :param run: the run that writes, as :func:`run_mark` names it
    :param rebind: what to do about a token of another binding; None refuses it
    :param is_bare: True writes bare positions, as the Snowflake Kafka connector does, and reads them
    """

    positions: type[Offset]
    binding: Binding
    run: str = "0"
    rebind: Rebind | None = None
    is_bare: bool = False

    def __post_init__(self) -> None:
        if not _RUN.fullmatch(self.run):
            raise ConfigurationError(
                f"run is {self.run!r}: give 1 to {_MOST_RUN} letters, digits, - and _, as run_mark does"
            )
        if self.is_bare and self.positions is not IntegerOffset:
            raise ConfigurationError(
                f"bare offset tokens are decimal numbers; the source has positions "
                f"{self.positions.format_name!r}: leave connector_name out"
            )

    def start(self, status: ChannelStatus) -> Start:
        """Read where a channel stands.

        A bare position is read where the source writes such, or where its author says that positions mean the
        same (``rebind="continue"``).

        :raises SourceChangedError: if its token is another source's, or its rows are numbered otherwise
        :raises OffsetTokenError: if its token is not a checkpoint
        """
        token, counted = status.committed, status.rows_counted
        if token is None:
            return Start(None, 0, 0, excess=counted)
        position, found = self._read(token, status.channel)
        if found is None:
            return Start(position, counted, status.rows_error_count)
        if found.binding == self.binding.digest:
            return Start(position, found.rows, found.errors, found.run, excess_of(status))
        return Start(position, counted, found.errors, found.run, restarted=0 if position else counted)

    def read(self, token: str, *, channel: str) -> Offset | None:
        """Read the position of a token; None for one of another binding where the source begins again.

        :raises SourceChangedError: if it is another source's
        :raises OffsetTokenError: if it is not a checkpoint
        """
        return self._read(token, channel)[0]

    def _read(self, token: str, channel: str) -> tuple[Offset | None, Checkpoint | None]:
        """The position of a token, as :meth:`read`, and its checkpoint, None for a bare position."""
        if (self.is_bare or self.rebind == "continue") and not is_checkpoint(token):
            return self.positions.parse(token, channel=channel), None
        found = Checkpoint.parse(token, self.positions, channel=channel)
        rebind = "restart" if found.source in self.binding.restarted else self.rebind
        if found.binding == self.binding.digest or rebind == "continue":
            return found.position, found
        if rebind is None:
            raise source_changed(channel, found, self.binding)
        return None, found

    def is_own(self, token: str) -> bool:
        """Return whether a token is one that the source writes, of this binding."""
        found = _Written.of(token)
        return self.is_bare if found is None else found.binding == self.binding.digest

    def token(self, position: Offset, rows: int, errors: int) -> str:
        """Write the token of a position.

        :param rows: rows sent on the channel up to it
        :param errors: rejected rows of the channel that have been reported
        """
        if self.is_bare:
            return str(position)
        return str(Checkpoint(position, self.binding.digest, rows, self.run, errors))

    def begun(self, status: ChannelStatus, end: Offset | None = None) -> str:
        """Write what is known of a channel without a token that is about to get rows.

        It has the form of a checkpoint of 0 rows, and instead of the run it has the time when the channel was
        created, or 0, which is all of it for bare positions. So a channel that has lost rows is told from one
        that has not committed any.

        :param end: up to which position rows will be sent, None where that is not known
        """
        created = begun_token(status.created_on_ms)
        what = ("NULL" if end is None else end, self.positions.code, _VERSION, self.binding.digest, 0)
        return created if self.is_bare else _AS_WRITTEN.format(*what, created, 0)


def source_changed(
    channel: str, found: Checkpoint, binding: Binding, before: str | None = None
) -> SourceChangedError:
    """Build the error of a channel that has loaded another source than the one that is to be loaded.

    :param before: the binding of its checkpoint in words, None where nobody has kept them
    """
    same = found.source == binding.source_digest
    what = "rows of the same source, numbered in another way" if same else "rows of another source"
    earlier = f": {before}" if before else f" (binding {found.binding})"
    return SourceChangedError(
        f"channel {channel!r} has committed {what}{earlier}. Its position {found.position} means nothing for "
        f"{binding} (binding {binding.digest}). Nothing was sent. {binding.lost}Set rebind='continue' where "
        "positions mean the same rows, or rebind='restart' to load from the source's beginning"
    )


def check_balance(channel: str, excess: int, on_imbalance: OnImbalance) -> None:
    """Compare what a channel counts with its checkpoint.

    :param excess: how many rows more it counts, negative for fewer
    :raises ImbalanceError: if they differ and that is an error; else it is logged
    """
    if not excess:
        return
    more = "more" if excess > 0 else "fewer"
    error = ImbalanceError(
        f"channel {channel!r} counts {abs(excess):,} {more} rows than its checkpoint: another program "
        "wrote to it, its token was set by hand, or it was dropped and created again. Compare the table with "
        "the source (airflow snowpipe audit); on_imbalance='warn' goes on"
    )
    if on_imbalance == "fail":
        raise error
    log.warning("%s", error)

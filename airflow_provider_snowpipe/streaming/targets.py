"""What a run owes on its channels: the targets that a load hands on and a wait is for, and reading them."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, Self

from airflow_provider_snowpipe.streaming.errors import ConfigurationError, OffsetTokenError
from airflow_provider_snowpipe.streaming.names import check_channel_name
from airflow_provider_snowpipe.streaming.offsets import LexicographicOffset, Offset, offset_class
from airflow_provider_snowpipe.streaming.progress import Progress
from airflow_provider_snowpipe.streaming.status import ChannelStatus

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChannelTarget:
    """What one run owes on one channel, as the XCom ``targets`` of the tasks that load carries it.

    :param token: the offset token that proves the run complete; None for a channel that owes nothing,
        because the run had no row for it and nothing was ever committed
    :param offset_format: the token's format, None where only the token was handed on
    :param rejected_baseline: rows that the service had skipped before the run began; None where skipped rows
        are accepted
    :param rows: rows that the run sent
    """

    token: str | None
    offset_format: str | None = None
    rejected_baseline: int | None = None
    rows: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The value in the mapping ``targets``."""
        return asdict(self)

    @classmethod
    def read(cls, channel: str, value: Any) -> Self:
        """Read the value of a channel: what :meth:`to_json` gives, or a plain token.

        :param channel: the channel's name
        :param value: the value
        :raises ConfigurationError: if it is neither
        """
        is_name = isinstance(channel, str) and channel
        if is_name and isinstance(value, str):
            return cls(value)
        if (
            is_name
            and isinstance(value, Mapping)
            and "token" in value
            and not (set(value) - set(cls.__slots__))
        ):
            target = cls(**value)
            counts = (target.rejected_baseline, target.rows)
            texts = (target.token, target.offset_format)
            if all(text is None or isinstance(text, str) for text in texts) and all(map(_is_count, counts)):
                return target
        raise ConfigurationError(
            f"targets has the entry {channel!r}: {value!r}: give a channel's name and its target token, both "
            f"text, or the keys {', '.join(cls.__slots__)} as the XCom 'targets' of a load has them"
        )


@dataclass(frozen=True, slots=True)
class CommitTargets:
    """What a wait is for: an offset token for each channel, and what counts as failure.

    :param targets: the position that each channel has to commit, None for a channel that owes nothing
    :param formats: the name of the format of each channel's tokens
    :param guessed: channels whose format nobody but the author of the wait has named
    :param rejected_baseline: channels on which a skipped row ends the wait, with the rows that were skipped
        before and do not count
    """

    targets: Mapping[str, Offset | None]
    formats: Mapping[str, str] = field(default_factory=dict)
    guessed: frozenset[str] = frozenset()
    rejected_baseline: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def parse(
        cls,
        targets: Mapping[str, Any] | str,
        offset_format: str | None = None,
        *,
        fail_on_rejected_rows: bool | None = None,
        rejected_baseline: Mapping[str, int] | str | None = None,
    ) -> CommitTargets:
        """Read targets.

        :param targets: a :class:`ChannelTarget` as JSON or a plain target token for each channel; a mapping
            or its JSON text. Without a channel there is nothing to wait for
        :param offset_format: the format of plain tokens; None where they tell it by themselves
        :param fail_on_rejected_rows: True judges every channel by its skipped rows, None those whose target
            has a baseline, False none
        :param rejected_baseline: rows skipped before that do not count, by channel, in place of the targets'
            own; the same
        :raises OffsetTokenError: if a token does not have its format, or could have several
        :raises ConfigurationError: if a token or a count is of another type, or two formats contradict
        """
        found = {
            channel: ChannelTarget.read(channel, value)
            for channel, value in _mapping("targets", targets).items()
        }
        given = {} if rejected_baseline is None else _mapping("rejected_baseline", rejected_baseline)
        for channel, count in given.items():
            if count is None or not _is_count(count):
                raise ConfigurationError(
                    f"rejected_baseline of channel {channel!r} is {count!r}: give the number of rows that "
                    "were skipped before, 0 or more"
                )
        formats: dict[str, str] = {}
        positions: dict[str, Offset | None] = {}
        baseline: dict[str, int] = {}
        for channel, target in found.items():
            check_channel_name(channel)
            if target.token is None:
                positions[channel] = None
            else:
                formats[channel] = _format_of(channel, target, offset_format)
                positions[channel] = offset_class(formats[channel]).parse(target.token, channel=channel)
            counted = given.get(channel, target.rejected_baseline)
            if fail_on_rejected_rows or (fail_on_rejected_rows is None and counted is not None):
                baseline[channel] = counted or 0
        guessed = frozenset(name for name, target in found.items() if target.offset_format is None)
        return cls(positions, formats, guessed, baseline)

    @property
    def offset_format(self) -> str | None:
        """The format of all tokens, None where there is none or they have several."""
        names = set(self.formats.values())
        return names.pop() if len(names) == 1 else None

    def progress(self, status: ChannelStatus) -> Progress | None:
        """How far a channel is, None where it owes nothing.

        :param status: its status
        :raises OffsetTokenError: if its committed token does not have the target's format, or has reached
            the target in this format and not in another one that both tokens have, and nobody but the author
            of the wait has named the format
        """
        target = self.targets.get(status.channel)
        if target is None:
            return None
        known = status.committed
        spelled = offset_class(self.formats[status.channel])
        progress = Progress(None if known is None else spelled.parse(known, channel=status.channel), target)
        if known is not None and progress.is_complete():
            if status.channel in self.guessed:
                _refuse_other_order(status.channel, known, str(target), self.formats[status.channel])
            if spelled is LexicographicOffset:
                _warn_of_digits(status.channel, known, str(target))
        return progress


def _format_of(channel: str, target: ChannelTarget, given: str | None) -> str:
    """The format of a target's token: what it carries, what the author says, or the only one that fits."""
    carried = target.offset_format
    if carried is not None and given is not None and carried != given:
        raise ConfigurationError(
            f"offset_format is {given!r}, and the target of channel {channel!r} is of the format "
            f"{carried!r}: leave offset_format out"
        )
    if (named := carried or given) is not None:
        return named
    token = str(target.token)
    fitting = [name for name in _SELF_EVIDENT if _parsed(name, token) is not None]
    if len(fitting) == 1:
        return fitting[0]
    could = (
        f"could be of {' or '.join(map(repr, fitting))}" if fitting else "is of no format that shows itself"
    )
    raise OffsetTokenError(
        f"channel {channel!r}: target token {token[:200]!r} {could}: name the one that wrote it, "
        "offset_format=…, or hand on the XCom 'targets' of the load, which names it"
    )


_SELF_EVIDENT = (
    "integer",
    "file:line",
    "topic:partition:offset",
    "batch:row",
    "file:line/digest",
    "batch:row/digest",
    "integer/partitions",
)
"""Formats that a token shows by itself; any text is of the format ``lexicographic``."""


def _refuse_other_order(channel: str, committed: str, target: str, named: str) -> None:
    for other in _SELF_EVIDENT:
        pair = _parsed(other, committed), _parsed(other, target)
        if other == named or None in pair:
            continue
        try:
            behind = bool(pair[0] < pair[1])
        except OffsetTokenError:
            behind = True
        if behind:
            raise OffsetTokenError(
                f"channel {channel!r}: the committed token {committed!r} is at or past {target!r} in the "
                f"format {named!r} and before it in the format {other!r}: hand on the XCom 'targets' of the "
                "load, which names the format, or name the right one, offset_format=…"
            )


@lru_cache(maxsize=256)
def _warn_of_digits(channel: str, committed: str, target: str) -> None:
    """Warn, once, of numbers that have another order as texts."""
    if committed.isdigit() and target.isdigit() and len(committed) != len(target):
        log.warning(
            "channel %r: tokens %s and %s are numbers of unequal length, which the format 'lexicographic' "
            "orders as texts: write them with leading zeros, or use the format 'integer'",
            channel,
            committed,
            target,
        )


def _parsed(name: str, token: str) -> Any:
    """A token in a format, None where it is not of it; plain tokens are of the plain format only."""
    try:
        found = offset_class(name).parse(token)
    except (OffsetTokenError, ConfigurationError):
        return None
    plain = name.endswith("/digest") and not getattr(found, "digest", "")
    return None if plain else found


def _is_count(value: Any) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0)


def _mapping(name: str, value: Any) -> dict[str, Any]:
    """Take a mapping, or the JSON text of one, as a template renders it."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise ConfigurationError(
                f"{name} is the text {value[:80]!r}, which is no JSON object: give a mapping, an XCom such "
                'as load.output["targets"], or a template that ends in "| tojson"'
            ) from None
    if not isinstance(value, Mapping):
        raise ConfigurationError(
            f"{name} is {value!r}: give a mapping of channel names, such as the XCom 'targets' of the load"
        )
    return dict(value)

"""Turning looks at channels into steps: who is told about which commits, each of them once.

A *step* leads from one watermark to the next. Consecutive steps share the watermark between them, so that
together they cover every commit since the watch began, and no commit twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from airflow_provider_snowpipe.streaming.errors import ConfigurationError, OffsetTokenError
from airflow_provider_snowpipe.streaming.offsets import Offset, offset_class
from airflow_provider_snowpipe.streaming.status import ChannelStatus


@dataclass(frozen=True, slots=True)
class ChannelMark:
    """What a channel had committed at some moment.

    :param token: the committed offset token, None for NULL
    :param rows: rows inserted in the channel's life
    :param created_on_ms: when that life began, milliseconds since 1970; a channel that is dropped and made
        again counts from zero
    """

    token: str | None = None
    rows: int = 0
    created_on_ms: int | None = None

    @classmethod
    def of(cls, status: ChannelStatus) -> Self:
        """Take the mark that a status shows; a channel that does not exist has committed nothing."""
        if not status.exists:
            return cls()
        return cls(status.committed, status.rows_inserted, status.created_on_ms)

    def rows_until(self, later: ChannelMark) -> int:
        """Rows that became visible between this mark and a later one of the same channel."""
        made_again = self.created_on_ms != later.created_on_ms or later.rows < self.rows
        return later.rows if made_again else later.rows - self.rows


@dataclass(frozen=True, slots=True)
class Watermark:
    """Up to where somebody has been told of commits.

    :param begun: False before the watch has seen every channel that it started with
    :param rows: rows counted since the watch began
    :param channels: the channels' marks; one that is not among them had committed nothing
    """

    begun: bool = False
    rows: int = 0
    channels: Mapping[str, ChannelMark] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Write it as JSON values."""
        marks = {name: [mark.token, mark.rows, mark.created_on_ms] for name, mark in self.channels.items()}
        return {"begun": self.begun, "rows": self.rows, "channels": marks}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_json` wrote."""
        marks = {name: ChannelMark(*mark) for name, mark in value["channels"].items()}
        return cls(bool(value["begun"]), int(value["rows"]), marks)


@dataclass(frozen=True, slots=True)
class OffsetRule:
    """Which commits are worth a message: all of them, every so many rows, or the one past a position.

    :param passes: tell once of each channel that has committed this position or a later one
    :param every_rows: tell when the rows of all channels together reach the next multiple of this
    """

    passes: Offset | None = None
    every_rows: int | None = None

    def __post_init__(self) -> None:
        if self.passes is not None and self.every_rows is not None:
            raise ConfigurationError(
                f"passes={str(self.passes)!r} and every_rows={self.every_rows} are both given: drop one, or "
                "watch twice"
            )
        if self.every_rows is not None and (isinstance(self.every_rows, bool) or self.every_rows < 1):
            raise ConfigurationError(f"every_rows is {self.every_rows!r}: give a number of 1 or more")

    @classmethod
    def of(cls, *, passes: str | None, every_rows: int | None, offset_format: str) -> Self:
        """Read the rule from a trigger's arguments.

        :raises ConfigurationError: if they contradict each other, or the token is not of the format
        """
        return cls(offset_class(offset_format).parse(passes) if passes is not None else None, every_rows)


@dataclass(frozen=True, slots=True)
class Step:
    """What one look adds.

    :param watermark: up to where one has been told, once the message is out
    :param message: the message, None where the watermark moves silently
    """

    watermark: Watermark
    message: dict[str, Any] | None = None


class OffsetWatch:
    """The memory of one watcher between looks.

    :meth:`see` says which step is due, :meth:`accept` makes it; a step that is not accepted is due again.

    :param pipe: the pipe's name, for the messages
    :param rule: which commits are worth a message
    :param watermark: from where to go on
    """

    def __init__(self, pipe: str, rule: OffsetRule, watermark: Watermark) -> None:
        self._pipe = pipe
        self._rule = rule
        self._first: frozenset[str] | None = None
        self._seen: dict[str, ChannelMark] = {}
        self._rows = watermark.rows
        self.watermark = watermark
        self.problems: dict[str, str] = {}
        if watermark.begun:
            self._seen = dict(watermark.channels)

    def start_with(self, names: Collection[str]) -> None:
        """Say which channels there are when the watch begins: what they have committed by then is no news.

        :param names: the channels; one that turns up later is news from its first row
        """
        if self._first is None:
            self._first = frozenset(names)

    def see(self, statuses: Mapping[str, ChannelStatus]) -> Step | None:
        """Take in one look.

        :param statuses: of some or all of the watched channels
        :returns: the step that is due, None if there is none
        """
        if not self.watermark.begun:
            return self._begin(statuses)
        for name, status in statuses.items():
            if status.exists:
                mark = ChannelMark.of(status)
                self._rows += self._seen.get(name, ChannelMark()).rows_until(mark)
                self._seen[name] = mark
        if self._rule.every_rows is not None:
            return self._count(self._rule.every_rows)
        if self._rule.passes is not None:
            return self._pass(self._rule.passes)
        return self._move()

    def accept(self, step: Step) -> None:
        """Make a step.

        :param step: what :meth:`see` returned last
        """
        if not self.watermark.begun:
            self._seen, self._rows = dict(step.watermark.channels), step.watermark.rows
        self.watermark = step.watermark

    def _begin(self, statuses: Mapping[str, ChannelStatus]) -> Step | None:
        if self._first is None:
            return None
        for name in self._first & statuses.keys():
            self._seen.setdefault(name, ChannelMark.of(statuses[name]))
        if self._first - self._seen.keys():
            return None
        return Step(Watermark(True, 0, {name: self._seen[name] for name in self._first}))

    def _count(self, every: int) -> Step | None:
        told, now = self.watermark.rows // every, self._rows // every
        if now == told:
            return None
        first, last = (told + 1) * every, now * every
        return self._step(self._moved(), {"every_rows": every, "first": first, "last": last})

    def _pass(self, position: Offset) -> Step | None:
        passed: list[str] = []
        changed = False
        for name, mark in self._seen.items():
            before = self._is_past(name, self._told(name), position)
            now = self._is_past(name, mark, position)
            changed = changed or before != now
            if now and not before:
                passed.append(name)
        if passed:
            return self._step(passed, {"passes": str(position)})
        # A channel that was reset to before the position may pass it again.
        return Step(self._now()) if changed else None

    def _move(self) -> Step | None:
        moved = self._moved()
        if moved:
            return self._step(moved, {})
        changed = any(self.watermark.channels.get(name) != mark for name, mark in self._seen.items())
        return Step(self._now()) if changed else None

    def _moved(self) -> list[str]:
        return [name for name, mark in self._seen.items() if _has_moved(self._told(name), mark)]

    def _is_past(self, name: str, mark: ChannelMark, position: Offset) -> bool:
        if mark.token is None:
            return False
        try:
            return bool(type(position).parse(mark.token, channel=name) >= position)
        except OffsetTokenError as error:
            self.problems[name] = str(error)
            return False

    def _told(self, name: str) -> ChannelMark:
        return self.watermark.channels.get(name, ChannelMark())

    def _now(self) -> Watermark:
        return replace(self.watermark, rows=self._rows, channels=dict(self._seen))

    def _step(self, names: Collection[str], more: Mapping[str, Any]) -> Step:
        message: dict[str, Any] = {
            "pipe": self._pipe,
            "channels": {
                name: {
                    "token": self._seen[name].token,
                    "rows": self._seen[name].rows,
                    "previous_token": self._told(name).token,
                    "previous_rows": self._told(name).rows,
                }
                for name in sorted(names)
            },
            "rows": self._rows - self.watermark.rows,
            "total_rows": self._rows,
            **more,
        }
        return Step(self._now(), {**message, "id": _identity(message)})


def _has_moved(before: ChannelMark, now: ChannelMark) -> bool:
    return before.rows_until(now) > 0 or (now.token is not None and now.token != before.token)


def _identity(message: Mapping[str, Any]) -> str:
    """A name for a message that is the same wherever and whenever the message is made."""
    text = json.dumps(message, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]

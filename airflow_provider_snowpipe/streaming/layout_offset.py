"""Offset tokens of a channel that is named after a partition's number: they say how many there are.

Partition 2 of 4 holds other rows than partition 2 of 8. A token without the number of partitions would let
a writer with another layout skip rows that were never sent, or send rows that were.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from airflow_provider_snowpipe.streaming.errors import OffsetTokenError
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset, LexicographicOffset, Offset


@dataclass(frozen=True, slots=True)
class _LayoutOffset(Offset):
    """A position within one of a number of partitions.

    Two of them compare only when they are of the same layout.

    :param position: the position within the partition
    :param partitions: the number of partitions, 1 or more
    """

    position: Any
    partitions: int
    _position_class: ClassVar[type[Offset]]

    @classmethod
    def parse(cls, text: str, *, channel: str | None = None) -> Self:
        """Read a position with the number of partitions behind its last slash."""
        position, _, number = text.rpartition("/")
        if not position or not number.isascii() or not number.isdigit() or number[0] == "0":
            cls._refuse(text, channel)
        try:
            return cls(cls._position_class.parse(position), int(number))
        except OffsetTokenError:
            cls._refuse(text, channel)

    def __str__(self) -> str:
        return f"{self.position}/{self.partitions}"

    def next(self) -> Self:
        """The following position of the same layout."""
        return replace(self, position=self.position.next())

    def follows(self, previous: Self) -> bool:
        """True when the positions follow each other."""
        following: bool = self.position.follows(previous.position)
        return following

    def steps_to(self, target: Self) -> int | None:
        """What the positions say."""
        steps: int | None = self.position.steps_to(target.position)
        return steps

    def sort_key(self) -> tuple[Any, ...]:
        """Order by position."""
        key: tuple[Any, ...] = self.position.sort_key()
        return key

    def __lt__(self, other: object) -> bool:
        if type(other) is not type(self) or not isinstance(other, _LayoutOffset):
            return NotImplemented
        if other.partitions != self.partitions:
            raise OffsetTokenError(
                f"offset tokens {self} and {other} belong to different numbers of partitions and have no "
                "order: write with the number that the channels were begun with"
            )
        before: bool = self.position < other.position
        return before


@dataclass(frozen=True, slots=True)
class IntegerLayoutOffset(_LayoutOffset):
    """A number within one of several partitions, ``120455/4``."""

    format_name: ClassVar[str] = "integer/partitions"
    example: ClassVar[str] = "120455/4"
    _position_class: ClassVar[type[Offset]] = IntegerOffset


@dataclass(frozen=True, slots=True)
class TextLayoutOffset(_LayoutOffset):
    """A text, ordered by its code points, within one of several partitions, ``2013-01-01T05:15:00Z/4``."""

    format_name: ClassVar[str] = "lexicographic/partitions"
    example: ClassVar[str] = "2013-01-01T05:15:00Z/4"
    _position_class: ClassVar[type[Offset]] = LexicographicOffset

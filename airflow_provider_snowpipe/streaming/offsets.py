"""Offset token formats: how a position in a source is written, compared and continued.

The service stores an offset token as an opaque string and never compares it ("Channels and exactly-once
delivery"), so the order is the client's to know. One class per format, which a job names once.
"""

from __future__ import annotations

import importlib
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields, replace
from functools import total_ordering
from typing import Any, ClassVar, NoReturn, Self

from airflow_provider_snowpipe.streaming.errors import ConfigurationError, OffsetTokenError


@total_ordering
class Offset(ABC):
    """A position in one partition of a source: that of the last row taken.

    A subclass is a frozen dataclass. Comparing offsets of two classes raises ``TypeError``.
    """

    format_name: ClassVar[str]
    example: ClassVar[str]
    code: ClassVar[str] = "x"
    """The letter by which a checkpoint names the class; ``x`` for a class of an author."""
    form: ClassVar[re.Pattern[str]]
    """How a position is written, with a group for each field; not needed with an own ``parse``."""

    @classmethod
    def parse(cls, text: str, *, channel: str | None = None) -> Self:
        """Read an offset token.

        :param text: the token as the service stores it
        :param channel: the channel it came from, for the error's text
        :raises OffsetTokenError: if the text does not have this format
        """
        found = cls.form.fullmatch(text)
        if found is None:
            cls._refuse(text, channel)
        numbers = {one.name for one in fields(cls) if one.type in (int, "int")}  # type: ignore[arg-type]
        values = found.groupdict().items()
        return cls(**{name: int(value) if name in numbers else value for name, value in values})

    @abstractmethod
    def __str__(self) -> str:
        """The token as it is sent."""

    @abstractmethod
    def next(self) -> Self:
        """The smallest position after this one that the source may hold next."""

    @property
    def piece(self) -> int:
        """The number of the piece of the partition that it is in, such as a file; 0 where there are none."""
        return 0

    def follows(self, previous: Self) -> bool:
        """True when no position can lie between ``previous`` and this one.

        :param previous: the last position taken
        """
        return self == previous.next()

    def steps_to(self, target: Self) -> int | None:
        """How many positions ``target`` lies ahead of this one, None where the format cannot count.

        :param target: a later position of the same partition
        """
        return None

    @abstractmethod
    def sort_key(self) -> tuple[Any, ...]:
        """A tuple whose order is the order of positions within one partition."""

    def __lt__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.sort_key() < other.sort_key()

    @classmethod
    def _refuse(cls, text: str, channel: str | None) -> NoReturn:
        whose = f"channel {channel!r}: " if channel is not None else ""
        raise OffsetTokenError(
            f"{whose}offset token {text[:200]!r} is not of the format {cls.format_name!r} "
            f"(for example {cls.example!r}): name the format that wrote it, or reset the channel's token"
        )


class _PlainOffset(Offset):
    """A position whose fields are texts that are not empty, or numbers that are not negative."""

    def __post_init__(self) -> None:
        name: str
        for name in self.__slots__:
            value = getattr(self, name)
            if value == "":
                raise ConfigurationError(f"{name} of the position is empty: give a text")
            if isinstance(value, int) and value < 0:
                raise ConfigurationError(f"{name} is {value}: it must be 0 or more")


class _CountedOffset(_PlainOffset):
    """A number that counts within a group, such as a line's within a file: the last part of the sort key."""

    _order: ClassVar[tuple[str, ...]]
    """The fields by which positions are ordered; the last one counts."""

    def next(self) -> Self:
        """The next number of the same group."""
        number = self._order[-1]
        return replace(self, **{number: getattr(self, number) + 1})  # type: ignore[type-var]

    def sort_key(self) -> tuple[Any, ...]:
        """Order by group, then number."""
        return tuple([getattr(self, name) for name in self._order])

    def follows(self, previous: Self) -> bool:
        """True for the next number of the group, and for the first one of a later group."""
        (*group, number), (*before, last) = self.sort_key(), previous.sort_key()
        if group == before:
            return bool(number == last + 1)
        return group > before and bool(number == 1)

    def steps_to(self, target: Self) -> int | None:
        """How much larger the other number is, within one group."""
        (*group, number), (*other, last) = self.sort_key(), target.sort_key()
        return last - number if group == other else None


_NUMBER = "0|[1-9][0-9]{0,18}"
"""Decimal digits: no sign, no blanks, no leading zeros, no other scripts' digits."""


@dataclass(frozen=True, slots=True)
class IntegerOffset(_CountedOffset):
    """A decimal number, as the Snowflake Kafka connector writes a Kafka offset."""

    value: int
    format_name: ClassVar[str] = "integer"
    code: ClassVar[str] = "i"
    example: ClassVar[str] = "120455"
    form = re.compile(f"(?P<value>{_NUMBER})")
    _order = ("value",)

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, slots=True)
class FileLineOffset(_CountedOffset):
    """A line of a file, where a partition is a series of files in lexicographic order.

    :param file: the file's name within its partition; ordered by code point, as ``sorted`` does
    :param line: number of the line, counted from 1; 0 is the position before a file's first line
    """

    file: str
    line: int
    format_name: ClassVar[str] = "file:line"
    code: ClassVar[str] = "f"
    example: ClassVar[str] = "messages_1.log:20"
    form = re.compile(f"(?P<file>.+):(?P<line>{_NUMBER})", re.DOTALL)
    _order = ("file", "line")

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class UnitOffset(_CountedOffset):
    """A line of a unit of a source log, that is of a file or of a piece of one.

    :param file: the file's name within its partition, for people
    :param line: number of the line in the whole file, counted from 1; 0 is the position before the first line
    """

    unit: int
    file: str = field(compare=False)
    line: int
    format_name: ClassVar[str] = "unit/file:line"
    code: ClassVar[str] = "u"
    example: ClassVar[str] = "17/messages_1.log:20"
    form = re.compile(f"(?P<unit>[1-9][0-9]{{0,18}})/(?P<file>.+):(?P<line>{_NUMBER})", re.DOTALL)
    _order = ("unit", "line")

    def __post_init__(self) -> None:
        _PlainOffset.__post_init__(self)
        if self.unit < 1:
            raise ConfigurationError(f"unit is {self.unit}: it must be 1 or more")

    def __str__(self) -> str:
        return f"{self.unit}/{self.file}:{self.line}"

    @property
    def piece(self) -> int:
        """The unit."""
        return self.unit

    def follows(self, previous: Self) -> bool:
        """True for the next line of the unit, and for any of a later unit, which may begin within a file."""
        if self.unit == previous.unit:
            return self.line == previous.line + 1
        return self.unit > previous.unit and self.line > 0


@dataclass(frozen=True, slots=True)
class TopicPartitionOffset(_PlainOffset):
    """An offset that also names its topic and partition.

    They compare within one partition only: another one's token shows that the wrong channel was opened.
    """

    topic: str
    partition: int
    offset: int
    format_name: ClassVar[str] = "topic:partition:offset"
    code: ClassVar[str] = "t"
    example: ClassVar[str] = "orders:7:120455"
    form = re.compile(f"(?P<topic>.+):(?P<partition>{_NUMBER}):(?P<offset>{_NUMBER})", re.DOTALL)

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}:{self.offset}"

    def next(self) -> Self:
        """The following offset of the same partition."""
        return type(self)(self.topic, self.partition, self.offset + 1)

    def steps_to(self, target: Self) -> int | None:
        """The number of offsets, within one partition."""
        same = (target.topic, target.partition) == (self.topic, self.partition)
        return target.offset - self.offset if same else None

    def sort_key(self) -> tuple[int]:
        """Order by offset."""
        return (self.offset,)

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, TopicPartitionOffset):
            return NotImplemented
        if (self.topic, self.partition) != (other.topic, other.partition):
            raise OffsetTokenError(
                f"offset tokens {self} and {other} belong to different partitions and have no order: "
                "use one channel for each topic and partition"
            )
        return self.offset < other.offset


@dataclass(frozen=True, slots=True)
class BatchRowOffset(_CountedOffset):
    """A row of a micro-batch: the batch's id and the number of rows of it that the channel has taken.

    :param row: number of the row within the channel's share of the batch, counted from 1; 0 before the first
    """

    batch: int
    row: int
    format_name: ClassVar[str] = "batch:row"
    code: ClassVar[str] = "b"
    example: ClassVar[str] = "17:5000"
    form = re.compile(f"(?P<batch>{_NUMBER}):(?P<row>{_NUMBER})")
    _order = ("batch", "row")

    def __str__(self) -> str:
        return f"{self.batch}:{self.row}"


@dataclass(frozen=True, slots=True)
class LexicographicOffset(_PlainOffset):
    """A text ordered by its code points (zero-padded numbers, ISO dates, log sequence numbers)."""

    text: str
    format_name: ClassVar[str] = "lexicographic"
    code: ClassVar[str] = "l"
    example: ClassVar[str] = "2013-01-01T05:15:00Z/000042"
    form = re.compile("(?P<text>.+)", re.DOTALL)

    def __str__(self) -> str:
        return self.text

    def next(self) -> Self:
        """The smallest text that sorts after this one."""
        return type(self)(self.text + "\0")

    def follows(self, previous: Self) -> bool:
        """True for any later text: nobody knows which texts the source holds."""
        return self > previous

    def sort_key(self) -> tuple[str]:
        """Order by code points."""
        return (self.text,)


# -- The position of a micro-batch's rows, which proves that a replay brings the same rows again ----------
#
# A micro-batch has no row identity of its own. So the position shows which rows it stands for: how many of
# the channel's share, and a running checksum over exactly these. A replay with other rows, or in another
# order, does not fit. Which query counts the batches, and over how many partitions, is in the binding.


@dataclass(frozen=True, slots=True)
class BatchDigestOffset(_CountedOffset):
    """A row of a channel's share of a micro-batch, with what proves which rows came before it.

    :param digest: CRC-32 of the share's NDJSON with this row; in an append's start token, of the rows before
    """

    batch: int
    row: int
    digest: int
    final: bool = False
    format_name: ClassVar[str] = "batch:row/digest"
    code: ClassVar[str] = "d"
    example: ClassVar[str] = "17:5000/9f3ac1d2"
    form = re.compile(rf"(?P<batch>{_NUMBER}):(?P<row>{_NUMBER})/(?P<digest>[0-9a-f]{{8}})(?P<final>-end)?")
    _order = ("batch", "row")

    def __post_init__(self) -> None:
        if not self.form.fullmatch(str(self)):
            raise ConfigurationError(
                f"{self!r} is not a batch:row/digest offset: numbers are 0 or more, the digest has 32 bits"
            )

    @classmethod
    def parse(cls, text: str, *, channel: str | None = None) -> Self:
        """Read ``17:5000/9f3ac1d2``; the share's last row has ``-end`` behind it."""
        found = cls.form.fullmatch(text)
        if found is None:
            cls._refuse(text, channel)
        return cls(
            int(found["batch"]), int(found["row"]), int(found["digest"], 16), found["final"] is not None
        )

    def __str__(self) -> str:
        return f"{self.batch}:{self.row}/{self.digest:08x}{'-end' if self.final else ''}"

    def next(self) -> Self:
        """The next row of the same share."""
        return replace(self, row=self.row + 1, final=False)


# -- Formats by their names -------------------------------------------------------------------------------

_FORMATS: dict[str, type[Offset]] = {
    offset.format_name: offset
    for offset in (
        IntegerOffset,
        FileLineOffset,
        UnitOffset,
        TopicPartitionOffset,
        BatchRowOffset,
        LexicographicOffset,
        BatchDigestOffset,
    )
}


def offset_class_of_code(code: str) -> type[Offset] | None:
    """The class that a checkpoint names by a letter, None for a class of an author."""
    return next((one for one in _FORMATS.values() if one.code == code), None)


def known_formats() -> frozenset[str]:
    """The names of the formats that come with this package."""
    return frozenset(_FORMATS)


def offset_class(format_name: object) -> type[Offset]:
    """Find the class of an offset token format.

    :param format_name: ``integer``, ``file:line``, ``unit/file:line``, ``topic:partition:offset``,
        ``batch:row``, ``batch:row/digest``, ``lexicographic``, or ``package.module.Class`` for a caller's
        own subclass of :class:`Offset`
    """
    if not isinstance(format_name, str):  # as a template gives it that rendered nothing
        raise ConfigurationError(
            f"offset format is {format_name!r}: give its name as text, such as {IntegerOffset.format_name!r}"
        )
    known = _FORMATS.get(format_name)
    if known is not None:
        return known
    module_name, _, class_name = format_name.rpartition(".")
    if module_name and not format_name.startswith("."):
        try:
            found = getattr(importlib.import_module(module_name), class_name, None)
        except ImportError as error:
            raise ConfigurationError(
                f"offset format {format_name!r} cannot be imported ({error}): install it where the job runs"
            ) from error
        if isinstance(found, type) and issubclass(found, Offset):
            return found
    known_names = ", ".join(sorted(_FORMATS))
    raise ConfigurationError(
        f"offset format {format_name!r} is unknown: use {known_names}, or the path of a subclass of Offset"
    )

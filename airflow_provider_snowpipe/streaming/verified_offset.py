"""Offset tokens that also say what the file held, so that a changed file is noticed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Self

from airflow_provider_snowpipe.streaming.errors import OffsetTokenError
from airflow_provider_snowpipe.streaming.offsets import FILE_WITH_DIGEST, FileLineOffset, Offset


@dataclass(frozen=True, slots=True)
class VerifiedFileLineOffset(Offset):
    """A line of a file, with a digest of the file as it was when that line was sent.

    Positions are compared without the digest. A token without one, as ``file:line`` writes it, is taken, so
    that a channel can go over to this format.

    :param file: the file's name within its partition; ordered by code point, as ``sorted`` does
    :param line: number of the line, counted from 1; 0 is the place before a file's first line
    :param digest: 16 hexadecimal digits, empty if there is none
    """

    file: str
    line: int
    digest: str = field(default="", compare=False)
    format_name: ClassVar[str] = "file:line/digest"
    example: ClassVar[str] = "messages_1.log@9f3a1200c4d5e6f7:20"

    def __post_init__(self) -> None:
        FileLineOffset(self.file, self.line)

    @classmethod
    def parse(cls, text: str, *, channel: str | None = None) -> Self:
        """Read ``messages_1.log@9f3a1200c4d5e6f7:20``, or the same without the digest."""
        name, _, number = text.rpartition(":")
        found = FILE_WITH_DIGEST.fullmatch(name)
        plain = f"{found['file']}:{number}" if found else text
        try:
            place = FileLineOffset.parse(plain)
        except OffsetTokenError:
            cls._refuse(text, channel)
        return cls(place.file, place.line, found["digest"] if found else "")

    def __str__(self) -> str:
        return f"{self.file}@{self.digest}:{self.line}" if self.digest else f"{self.file}:{self.line}"

    @property
    def place(self) -> FileLineOffset:
        """The position without the digest."""
        return FileLineOffset(self.file, self.line)

    def next(self) -> Self:
        """The next line of the same file."""
        return type(self)(self.file, self.line + 1)

    def follows(self, previous: Self) -> bool:
        """True for the next line, and for the first line of a later file."""
        return self.place.follows(previous.place)

    def steps_to(self, target: Self) -> int | None:
        """The number of lines, within one file."""
        return self.place.steps_to(target.place)

    def sort_key(self) -> tuple[str, int]:
        """Order by file, then line."""
        return (self.file, self.line)

"""The offset token of a micro-batch's rows, which proves that a replay brings the same rows again.

A micro-batch has no row identity of its own. So the token says which rows it stands for: how many of the
channel's share, a running checksum over exactly these, over how many partitions the batch was spread, and
who wrote it. A replay with other rows, in another order or over another layout does not fit the token.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.offsets import Offset

_NUMBER = "0|[1-9][0-9]{0,18}"
_FORM = re.compile(
    rf"(?P<batch>{_NUMBER}):(?P<row>{_NUMBER})/(?P<partitions>{_NUMBER})-(?P<digest>[0-9a-f]{{8}})"
    rf"-(?P<writer>[0-9a-f]{{8}})-(?P<rejected>{_NUMBER})(?P<final>-end)?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class BatchDigestOffset(Offset):
    """A row of a channel's share of a micro-batch, with what proves which rows came before it.

    Ordered by batch and row. Two tokens of different writers have no order that means anything: whoever
    resumes compares ``writer`` and ``partitions`` first.

    :param batch: the micro-batch's id, 0 or more
    :param row: number of the row within the share, counted from 1
    :param partitions: number of partitions of the batch, 0 where a column names the channel
    :param digest: CRC-32 of the share's NDJSON up to and with this row; in the start token of an append, of
        the rows before it
    :param writer: eight hexadecimal digits that stand for the query whose batches are counted
    :param rejected_before: rows that the service had skipped on the channel before this batch
    :param final: True for the share's last row
    """

    batch: int
    row: int
    partitions: int
    digest: int
    writer: str
    rejected_before: int = 0
    final: bool = False
    format_name: ClassVar[str] = "batch:row/digest"
    example: ClassVar[str] = "17:5000/4-9f3ac1d2-5d41402a-0"

    def __post_init__(self) -> None:
        if not _FORM.fullmatch(str(self)):
            raise ConfigurationError(
                f"{self!r} is no batch:row/digest offset: numbers are 0 or more, the digest has 32 bits, the "
                "writer eight hexadecimal digits"
            )

    @classmethod
    def parse(cls, text: str, *, channel: str | None = None) -> Self:
        """Read ``17:5000/4-9f3ac1d2-5d41402a-0``; the share's last row has ``-end`` behind it."""
        found = _FORM.fullmatch(text)
        if found is None:
            cls._refuse(text, channel)
        return cls(
            batch=int(found["batch"]),
            row=int(found["row"]),
            partitions=int(found["partitions"]),
            digest=int(found["digest"], 16),
            writer=found["writer"],
            rejected_before=int(found["rejected"]),
            final=found["final"] is not None,
        )

    def __str__(self) -> str:
        return (
            f"{self.batch}:{self.row}/{self.partitions}-{self.digest:08x}-{self.writer}-"
            f"{self.rejected_before}{'-end' if self.final else ''}"
        )

    def next(self) -> Self:
        """The next row of the same share."""
        return replace(self, row=self.row + 1, final=False)

    def follows(self, previous: Self) -> bool:
        """True for the next row of the share, and for the first row of a later batch."""
        if self.batch == previous.batch:
            return self.row == previous.row + 1
        return self.batch > previous.batch and self.row == 1

    def steps_to(self, target: Self) -> int | None:
        """The number of rows, within one batch."""
        return target.row - self.row if target.batch == self.batch else None

    def sort_key(self) -> tuple[int, int]:
        """Order by batch, then row."""
        return (self.batch, self.row)

"""Exact splitting of CSV into fields, one after the other: for what the fast path cannot decide."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from airflow_provider_snowpipe.local.loading.csv_dialect import CsvDialect
from airflow_provider_snowpipe.local.loading.csv_fields import Fields

_BLANKS = b" \t"


class _IncompleteError(Exception):
    """The block ends inside a record."""


class _BrokenError(Exception):
    """A record cannot be split."""


@dataclass(slots=True)
class _Scanner:
    block: bytes
    dialect: CsvDialect
    values: list[bytes | None] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    after: re.Pattern[bytes] = field(init=False)
    bare: re.Pattern[bytes] = field(init=False)
    enclosed: re.Pattern[bytes] = field(init=False)

    def __post_init__(self) -> None:
        dialect = self.dialect
        record = rb"\r?\n" if dialect.record == b"\n" else re.escape(dialect.record)
        parts = [rb"(?P<end>" + record + rb")"]
        if dialect.field:
            parts.append(rb"(?P<field>" + re.escape(dialect.field) + rb")")
        self.after = re.compile(rb"|".join(parts))
        escape = rb"(?P<escape>" + re.escape(dialect.bare_escape) + rb")|" if dialect.bare_escape else b""
        self.bare = re.compile(escape + rb"|".join(parts), re.DOTALL)
        enclosed = [re.escape(dialect.quote)] + ([re.escape(dialect.escape)] if dialect.escape else [])
        self.enclosed = re.compile(rb"|".join(enclosed))

    def record(self, position: int) -> int:
        """Read one record; return where the next one starts."""
        while True:
            self.starts.append(position)
            position, is_last = self._field(position)
            if is_last:
                return position

    def _field(self, position: int) -> tuple[int, bool]:
        start = self._blanks(position)
        if self.dialect.quote and self.block.startswith(self.dialect.quote, start):
            return self._quoted(start)
        return self._bare(position)

    def _blanks(self, position: int) -> int:
        while self.dialect.trim and self.block[position : position + 1] in (b" ", b"\t"):
            position += 1
        return position

    def _bare(self, position: int) -> tuple[int, bool]:
        parts: list[bytes] = []
        start = position
        while True:
            match = self.bare.search(self.block, position)
            if match is None:
                raise _IncompleteError
            if match.lastgroup == "escape":
                parts.append(self.block[start : match.start()])
                start, position = match.end(), match.end() + 1
                continue
            parts.append(self.block[start : match.start()])
            self._store(b"".join(parts), self.block[self.starts[-1] : match.start()], quoted=False)
            return match.end(), match.lastgroup == "end"

    def _quoted(self, position: int) -> tuple[int, bool]:
        parts: list[bytes] = []
        position += 1
        while True:
            match = self.enclosed.search(self.block, position)
            if match is None:
                raise _IncompleteError
            parts.append(self.block[position : match.start()])
            following = self.block[match.end() : match.end() + 1]
            if not following:
                raise _IncompleteError
            if match[0] == self.dialect.quote and following != self.dialect.quote:
                break
            parts.append(following)
            position = match.end() + 1
        position = self._blanks(match.end())
        ended = self.after.match(self.block, position)
        if ended is None and self.block[position:] == b"\r":
            raise _IncompleteError
        if ended is None:
            found = self.block[position : position + 1].decode(errors="replace")
            raise _BrokenError(
                f"Found character '{found}' instead of field delimiter '{self.dialect.field.decode()}'"
            )
        value = b"".join(parts)
        self._store(value, value, quoted=True)
        return ended.end(), ended.lastgroup == "end"

    def _store(self, value: bytes, raw: bytes, *, quoted: bool) -> None:
        if self.dialect.trim:
            value, raw = value.strip(_BLANKS), raw.strip(_BLANKS)
        absent = raw in self.dialect.nulls or (not value and not quoted and self.dialect.empty_is_null)
        self.values.append(None if absent else value)


def split_exactly(block: bytes, dialect: CsvDialect, *, final: bool) -> Fields:
    """Split a block field by field; a record that cannot be split ends at its line.

    :param block: complete records, and perhaps the start of one more.
    :param final: nothing follows; an incomplete record is a broken one.
    """
    scanner = _Scanner(block, dialect)
    first: list[int] = []
    count: list[int] = []
    broken: dict[int, str] = {}
    position = 0
    while position < len(block):
        before, begun = len(scanner.values), len(scanner.starts)
        reason = None
        try:
            following = scanner.record(position)
        except _IncompleteError:
            if not final:
                del scanner.values[before:], scanner.starts[begun:]
                break
            following, reason = len(block), "Unterminated enclosed field or missing record delimiter"
        except _BrokenError as error:
            skipped = block.find(dialect.record, position)
            following = len(block) if skipped < 0 else skipped + len(dialect.record)
            reason = str(error)
        blank = block[position:following] in (b"\n", b"\r\n", dialect.record)
        position = following
        if reason is not None:
            broken[len(first)] = reason
            del scanner.values[before:], scanner.starts[begun + 1 :]
            scanner.values.append(None)
        elif blank and dialect.skip_blank:
            continue
        first.append(before)
        count.append(len(scanner.values) - before)
    return Fields(
        pa.array(scanner.values, pa.large_binary()).cast(pa.large_string()),
        np.array(first, dtype=np.int64),
        np.array(count, dtype=np.int64),
        np.array(scanner.starts, dtype=np.int64),
        position,
        broken,
    )

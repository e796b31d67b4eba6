"""Keys of rows that match no column of the table: the service passes their values over and counts nothing.

Arrow reads a block and finds the keys of all its rows and how often each has a value. A source writes its
rows alike, as a rule. So after one block was read, the next ones are compared with it by what costs next to
nothing: the number of keys in all, and the keys of three rows. What differs is read, and so is every eighth
block. A row that has another key instead of one of its own, amid rows that do not, may be missed in
between; ``fail`` reads every block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from airflow_provider_snowpipe.streaming.arguments import MOST_NAMES, OnUnknown, add_counts, named
from airflow_provider_snowpipe.streaming.errors import UnknownColumnsError
from airflow_provider_snowpipe.streaming.row_values import BlockLines, Fault, parse_row
from airflow_provider_snowpipe.streaming.table_schema import TableColumn

_READ_ANYWAY = 8
_SAMPLED_ROWS = 64
_QUOTE, _COLON = ord('"'), ord(":")
NO_KEY = Fault(None, "no key of the row is a column of the table")


@dataclass(frozen=True, slots=True)
class _KeysFound:
    """What a block of rows has of keys that match no column."""

    unknown: Mapping[str, int] = field(default_factory=dict)
    strangers: Sequence[int] = ()


_NOTHING = _KeysFound()


class KeyCheck:
    """Answers through the rows of one channel for keys that match no column; letters count as they are not.

    :param reads_all: True reads every block
    """

    def __init__(self, columns: Iterable[TableColumn], *, reads_all: bool = False) -> None:
        self._known = frozenset(column.name.upper() for column in columns)
        self._reads_all = reads_all
        self._keys_of_row: float = 0.0
        self._seen: frozenset[str] = frozenset()
        self._all_have_all = False
        self._passed = 0

    def check(self, body: bytes | memoryview, rows: int) -> _KeysFound:
        """Find the keys of a block that match no column."""
        if not rows:
            return _NOTHING
        octets = np.frombuffer(body, np.uint8)
        pairs = int(np.count_nonzero((octets[1:] == _COLON) & (octets[:-1] == _QUOTE)))
        lines = BlockLines.of(body) if self._reads_all or not self._is_alike(body, rows, pairs) else None
        if lines is None:
            self._passed += 1
            return _KeysFound({name: rows for name in self._seen if name.upper() not in self._known})
        self._passed = 0
        found = self._read(lines)
        if found is None:
            self._keys_of_row = 0.0
            return self._sampled(lines, body)
        # Only where all rows have all keys does their number show that the next block has the same.
        uniform = self._all_have_all and self._seen and pairs and pairs % rows == 0
        self._keys_of_row = pairs / rows if uniform else 0.0
        return found

    def _is_alike(self, body: bytes | memoryview, rows: int, pairs: int) -> bool:
        if not self._keys_of_row or pairs != rows * self._keys_of_row or self._passed + 1 >= _READ_ANYWAY:
            return False
        text = bytes(body)
        middle = text.find(b"\n", len(text) // 2) + 1
        last = text.rstrip(b"\r\n").rfind(b"\n") + 1
        return all(_keys(text[start : _line_end(text, start)]) == self._seen for start in {0, middle, last})

    def _read(self, lines: BlockLines) -> _KeysFound | None:
        """Let Arrow read a block; None where it cannot."""
        high = lines.rows
        if not lines.hold_objects(0, high):
            return None
        data = lines.slice(0, high)
        try:
            table = pj.read_json(
                pa.BufferReader(pa.py_buffer(data)),
                read_options=pj.ReadOptions(use_threads=False, block_size=len(data) + 1),
            )
        except pa.ArrowInvalid:
            return None
        if table.num_rows != high:
            return None
        filled = {
            name: high - column.null_count
            for name, column in zip(table.column_names, table.columns, strict=True)
        }
        self._seen = frozenset(filled)
        self._all_have_all = all(count == high for count in filled.values())
        unknown = {name: count or high for name, count in filled.items() if name.upper() not in self._known}
        if not unknown:
            return _NOTHING
        return _KeysFound(unknown, tuple(self._strangers(lines, table)))

    def _strangers(self, lines: BlockLines, table: pa.Table) -> Iterator[int]:
        """Rows of which no key matches a column, among those without a value in any column."""
        empty = np.ones(table.num_rows, np.bool_)
        for name in table.column_names:
            if name.upper() in self._known:
                empty &= pc.is_null(table.column(name)).to_numpy()
        for row in np.flatnonzero(empty).tolist():
            if self._is_stranger(lines.row(row)):
                yield row

    def _sampled(self, lines: BlockLines, body: bytes | memoryview) -> _KeysFound:
        """Check some rows of a block that Arrow cannot read, and count the keys that they name."""
        if not lines.rows:
            return _NOTHING
        sample = np.unique(np.linspace(0, lines.rows - 1, _SAMPLED_ROWS, dtype=np.int64)).tolist()
        names: set[str] = set()
        for row in sample:
            names |= _keys(lines.row(row))
        text = bytes(body)
        unknown = {
            name: max(1, min(lines.rows, text.count(f'"{name}"'.encode())))
            for name in names
            if name.upper() not in self._known
        }
        return _KeysFound(unknown, tuple(row for row in sample if self._is_stranger(lines.row(row))))

    def _is_stranger(self, line: bytes) -> bool:
        keys = _keys(line)
        return bool(keys) and not any(key.upper() in self._known for key in keys)


class UnknownKeys:
    """The keys of one channel's rows that match no column, counted by the rows that have them.

    :param policy: ``warn`` counts them and refuses rows of which no key matches; ``fail`` refuses each
    """

    def __init__(self, columns: Iterable[TableColumn], policy: OnUnknown, channel: str) -> None:
        self._columns = tuple(columns)
        self._fails = policy == "fail"
        self._channel = channel
        self._check = KeyCheck(self._columns, reads_all=self._fails)
        self.counts: dict[str, int] = {}

    def check(self, body: bytes | memoryview, rows: int, where: str) -> Sequence[int]:
        """Count the keys of some rows that match no column.

        :return: the rows of which no key matches, for :meth:`refuse`
        :raises UnknownColumnsError: if there is one and the policy is ``fail``
        """
        found = self._check.check(body, rows)
        if found.unknown and self._fails:
            raise UnknownColumnsError(
                f"channel {self._channel!r}: rows {where} have keys for which the table has no column: "
                f"{named(found.unknown)}. Neither they nor a row after them were sent, as "
                f"unknown_columns='fail' sets; the table has {self._some_columns()}. Rename the keys, add "
                "the columns (evolve_columns=True), or choose unknown_columns='warn'"
            )
        self.counts = add_counts(self.counts, found.unknown)
        return found.strangers

    def refuse(self, strangers: Sequence[int], where: str) -> None:
        """Refuse rows that would be rows of nothing but NULL.

        :raises UnknownColumnsError: if there is one
        """
        if strangers:
            raise UnknownColumnsError(
                f"channel {self._channel!r}: row {strangers[0] + 1} of {where} has no key for which the "
                f"table has a column ({len(strangers)} such row(s)): its keys are among "
                f"{named(self.counts)}, and the table has {self._some_columns()}. It would be a row of "
                "NULLs; neither it nor a row after it was sent. Load it into the right table, rename the "
                "keys, or choose unknown_columns='ignore'"
            )

    def _some_columns(self) -> str:
        names = [column.name for column in self._columns]
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        return ", ".join(names[:MOST_NAMES]) + more


def _keys(line: bytes) -> frozenset[str]:
    try:
        return frozenset(key for key, _ in parse_row(line.decode("utf-8")) or ())
    except (UnicodeDecodeError, RecursionError):
        return frozenset()


def _line_end(text: bytes, start: int) -> int:
    end = text.find(b"\n", start)
    return len(text) if end < 0 else end

"""The keys of rows: those that match no column of the table, and two of one row that match the same one.

The service skips the value of a key without a column and counts nothing, and of two keys for one column it
keeps one value. So the keys of every row are read: quotes and brackets are found by numpy, a string before a
colon at the depth of the row is a key, and Arrow counts them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_provider_snowpipe.streaming.arguments import OnUnknown, add_counts, named
from airflow_provider_snowpipe.streaming.errors import UnfitRowsError, UnknownColumnsError
from airflow_provider_snowpipe.streaming.names import counted, first_few
from airflow_provider_snowpipe.streaming.ndjson import BlockLines
from airflow_provider_snowpipe.streaming.row_values import Fault
from airflow_provider_snowpipe.streaming.table_schema import TableColumn

_QUOTE, _COLON, _ESCAPE, _BLANK = ord('"'), ord(":"), ord("\\"), ord(" ")
_OPEN, _CLOSE, _TO_BRACE = ord("{"), ord("}"), 0x20
"""A square bracket with this bit is the brace of its side."""
NO_KEY = Fault(None, "no key of the row is a column of the table")

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RowKeys:
    """The keys of a block's rows, without those of nested objects."""

    names: list[str]
    codes: Positions
    rows: Positions

    @classmethod
    def of(cls, lines: BlockLines) -> RowKeys:
        """Read the keys of all rows that are one object each, as far as quotes and brackets show it."""
        octets = np.frombuffer(lines.data, np.uint8)
        quotes = _quotes(octets)
        counts = np.diff(np.searchsorted(quotes, np.append(lines.starts, len(octets))))
        torn = np.flatnonzero(counts % 2)
        if len(torn):
            octets = octets.copy()
            for row in torn.tolist():
                octets[lines.starts[row] : lines.ends[row] - 1] = _BLANK
            quotes = _quotes(octets)
            counts[torn] = 0
        behind = _behind_blanks(octets, quotes[1::2] + 1)
        keys = np.flatnonzero(octets[behind] == _COLON)
        starts, ends = quotes[::2][keys] + 1, quotes[1::2][keys]
        rows = np.repeat(np.arange(lines.rows), counts // 2)[keys]
        top = _at_depth_of_row(octets, quotes, lines, starts, rows)
        starts, ends, rows = starts[top], ends[top], rows[top]
        if not len(rows):
            return cls([], rows, rows)
        # Every second value of the column is a key, the others are what lies between two of them.
        offsets = pa.py_buffer(np.stack((starts, ends), axis=1).reshape(-1))
        texts = pa.Array.from_buffers(
            pa.large_binary(), 2 * len(rows) - 1, [None, offsets, pa.py_buffer(lines.data)]
        )
        found = texts.take(pa.array(np.arange(0, 2 * len(rows), 2))).dictionary_encode()
        codes = found.indices.to_numpy().astype(np.int64)
        return cls([_key(text) for text in found.dictionary.to_pylist()], codes, rows)

    def counted(self, chosen: npt.NDArray[np.bool_]) -> dict[str, int]:
        """The rows that have each of some keys, by key."""
        rows = np.unique(self.rows[chosen] * len(self.names) + self.codes[chosen]) % len(self.names)
        found: dict[str, int] = {}
        for code, count in enumerate(np.bincount(rows).tolist()):
            if count:
                found[self.names[code]] = found.get(self.names[code], 0) + count
        return found


def _quotes(octets: npt.NDArray[np.uint8]) -> Positions:
    """Where strings begin and end: quotes behind an even number of backslashes."""
    quotes = np.flatnonzero(octets == _QUOTE)
    escaping = quotes[octets[quotes - 1] == _ESCAPE]
    if not len(escaping):
        return quotes
    escapes = np.flatnonzero(octets == _ESCAPE)
    first = np.maximum.accumulate(np.where(np.diff(escapes, prepend=-2) > 1, np.arange(len(escapes)), 0))
    last = np.searchsorted(escapes, escaping) - 1
    odd = escaping[(last - first[last]) % 2 == 0]
    return np.setdiff1d(quotes, odd, assume_unique=True)


def _behind_blanks(octets: npt.NDArray[np.uint8], at: Positions) -> Positions:
    """The next byte that is neither a blank nor a tab."""
    blank = np.flatnonzero((octets[at] == _BLANK) | (octets[at] == ord("\t")))
    while len(blank):
        at[blank] += 1
        blank = blank[(octets[at[blank]] == _BLANK) | (octets[at[blank]] == ord("\t"))]
    return at


def _at_depth_of_row(
    octets: npt.NDArray[np.uint8], quotes: Positions, lines: BlockLines, keys: Positions, rows: Positions
) -> npt.NDArray[np.bool_]:
    """Mark the keys that are a row's own; none of a row whose brackets close before its end or never."""
    braces = octets | _TO_BRACE
    brackets = np.flatnonzero((braces == _OPEN) | (braces == _CLOSE))
    brackets = brackets[np.searchsorted(quotes, brackets) % 2 == 0]
    # Number of open brackets behind each, with none at the beginning.
    depth = np.append(0, np.cumsum(np.where(braces[brackets] == _OPEN, 1, -1)))
    first, last = (np.searchsorted(brackets, ends) for ends in (lines.starts, lines.ends))
    before = depth[first]
    inner = np.stack((np.minimum(first + 1, len(brackets)), last), axis=1).reshape(-1)
    closed = (depth[last] == before) & (np.minimum.reduceat(depth, inner)[::2] > before)
    own: npt.NDArray[np.bool_] = (depth[np.searchsorted(brackets, keys)] - before[rows] == 1) & closed[rows]
    return own


def _key(text: bytes) -> str:
    """A key without its escapes."""
    name = text.decode(errors="replace")
    try:
        return str(json.loads(f'"{name}"'))
    except ValueError:
        return name


@dataclass(frozen=True, slots=True)
class _KeysFound:
    """What is wrong with the keys of a block of rows.

    :param unknown: rows that have a key without a column, by key
    :param partly: those of them that have a key with a column, too
    :param faults: rows without a key that has a column, and rows with two keys for one
    """

    unknown: Mapping[str, int] = field(default_factory=dict)
    partly: Mapping[str, int] = field(default_factory=dict)
    faults: Mapping[int, Fault] = field(default_factory=dict)


class KeyCheck:
    """Compares the keys of rows with a table's columns; case does not count."""

    def __init__(self, columns: Iterable[TableColumn]) -> None:
        self._known = {column.name.upper(): number for number, column in enumerate(columns)}
        self.matched: set[str] = set()
        """The columns so far that keys of rows have matched, in capital letters."""

    def check(self, body: bytes | memoryview) -> _KeysFound:
        """Find the keys of a block that match no column, and the rows that they are wrong in."""
        lines = BlockLines.of(body)
        keys = RowKeys.of(lines)
        if not keys.names:
            return _KeysFound()
        column_of_code = np.array([self._known.get(name.upper(), -1) for name in keys.names])
        columns = column_of_code[keys.codes]
        known = columns >= 0
        pairs = np.sort(keys.rows[known] * len(self._known) + columns[known])
        twice = pairs[1:][pairs[1:] == pairs[:-1]]
        names = list(self._known)
        self.matched.update(names[number] for number in column_of_code[column_of_code >= 0].tolist())
        faults = {
            row: Fault(names[column], "two keys of the row mean this column")
            for row, column in zip(*(one.tolist() for one in divmod(twice, len(self._known))), strict=True)
        }
        if known.all():
            return _KeysFound(faults=faults)
        has_column = np.zeros(lines.rows, np.bool_)
        has_column[keys.rows[known]] = True
        strangers = np.unique(keys.rows[~has_column[keys.rows]])
        faults.update(dict.fromkeys(strangers.tolist(), NO_KEY))
        partly = keys.counted(~known & has_column[keys.rows])
        return _KeysFound(keys.counted(~known) if len(strangers) else partly, partly, faults)


class UnknownKeys:
    """The keys of one channel's rows that match no column, counted by the rows that have them.

    :param policy: ``fail`` refuses each; ``warn`` counts them and refuses rows without a key that matches
    :param puts_aside: True where rows without a key that matches are put aside instead of refused
    """

    def __init__(
        self, columns: Iterable[TableColumn], policy: OnUnknown, channel: str, *, puts_aside: bool = False
    ) -> None:
        self._columns = tuple(columns)
        self._puts_aside = puts_aside
        self._fails = policy == "fail"
        self._channel = channel
        self._check = KeyCheck(self._columns)
        self.counts: dict[str, int] = {}

    @property
    def matched(self) -> Set[str]:
        """The columns that keys of the rows so far have matched, in capital letters."""
        return self._check.matched

    def check(self, body: bytes | memoryview, where: str) -> Mapping[int, Fault]:
        """Count the keys of some rows that match no column; the rows that must not be sent, and why."""
        found = self._check.check(body)
        refused = found.partly if self._puts_aside else found.unknown
        if refused and self._fails:
            raise UnknownColumnsError(
                f"channel {self._channel!r}: rows {where} have keys for which the table has no column: "
                f"{named(refused)}. Neither they nor a row after them were sent; the table has "
                f"{self._some_columns()}. Rename the keys, add the columns (evolve_columns=True), or let "
                "such values be lost (unknown_columns='warn')"
            )
        self.counts = add_counts(self.counts, found.unknown)
        return found.faults

    def refuse(self, faults: Mapping[int, Fault], where: str) -> None:
        """Refuse rows that would lose all values, or one of two."""
        if not faults:
            return
        row = min(faults)
        which = f"channel {self._channel!r}: row {row + 1} of {where}"
        count = f"({counted(len(faults), 'such row')})"
        if faults[row] != NO_KEY:
            raise UnfitRowsError(
                f"{which} has two keys for column {faults[row].column!r}, so that one value would be lost "
                f"{count}. Neither it nor a row after it was sent: leave one key out, or put such rows aside "
                "with on_error 'dead_letter'"
            )
        raise UnknownColumnsError(
            f"{which} has no key for which the table has a column {count}: its keys are among "
            f"{named(self.counts)}, and the table has {self._some_columns()}. It would be a row of "
            "NULLs; neither it nor a row after it was sent. Load it into the right table, rename the "
            "keys, or choose unknown_columns='ignore'"
        )

    def _some_columns(self) -> str:
        return first_few([column.name for column in self._columns])

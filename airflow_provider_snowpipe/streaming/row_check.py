"""Rows compared with a table's columns before they are sent, block by block.

A block of NDJSON is parsed once by Arrow with a schema that holds only what can go wrong, and the columns
are judged as a whole; rows that are not sure to fit are checked one by one
(:mod:`~airflow_provider_snowpipe.streaming.row_values`). A row that stops the parser is left out where Arrow
reports which one; where it does not, the block is halved until its bad rows are alone. What Arrow passes
is certain; what it does not pass costs time, never a good row.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.ndjson import BlockLines
from airflow_provider_snowpipe.streaming.row_values import Fault, JsonNumber, RowValues, is_number, parse_row
from airflow_provider_snowpipe.streaming.table_schema import ColumnType, TableColumn

# pragma: no mutate start (compared value by value with the service: test_row_check_agrees.py)

Rows = npt.NDArray[np.int64]
_ALONE = 32
"""Rows that are checked one by one rather than parsed again."""
_STOPS = 64
"""Once one row in so many has stopped the parser, the others are checked one by one, too."""
_DOUBTFUL = 4
"""Once one row in so many is not sure, the source is learned again: it may write its columns otherwise."""
_IN_ROW = re.compile(r" in row ([0-9]{1,18})\s*\Z")
"""Arrow reports in which row of what it parses it met an error (observed with pyarrow 26), not always."""
_SAMPLE = 16
_NO_ROWS: Rows = np.empty(0, np.int64)
_ESCAPED_KEY = r"\\u00(?:24|3[0-9]|4[1-9a-fA-F]|5[0-9aAfF]|6[1-9a-fA-F]|7[0-9aA])"
"""A letter, a digit, ``_`` or ``$`` written as an escape: nobody does that, but a key could hide in it."""
_LONG_FRACTION = "|".join(
    [
        r"0\.0*[1-9][0-9]{17}",
        *(rf"[1-9][0-9]{{{whole},}}\.[0-9]{{{17 - whole}}}" for whole in (0, 3, 7, 11, 15)),
    ]
)
"""Most fractions of 18 digits (all take five times as long): no program writes more than 17 of a FLOAT."""
_NO_COLUMN = pa.field("\0", pa.bool_())
"""Arrow counts no rows without a column."""


@dataclass(frozen=True, slots=True)
class RowFault:
    """A row that does not fit.

    :param line: its number among the block's lines, counted from 0; differs where lines are blank
    """

    row: int
    line: int
    fault: Fault


@dataclass(frozen=True, slots=True)
class CheckedBlock:
    """What a check found."""

    lines: BlockLines
    faults: tuple[RowFault, ...]

    def good_rows(self) -> bytes | memoryview:
        """The other rows as NDJSON, the block itself where no row is bad."""
        return self.lines.without([fault.row for fault in self.faults])


class RowCheck:
    """The check of one channel's rows; remembers how its source writes the columns.

    :param only_exact: True finds only values that the columns would round or cut
    """

    def __init__(self, columns: Sequence[TableColumn], *, only_exact: bool = False) -> None:
        if not columns:
            raise ConfigurationError(
                "rows are to be checked, but the table's columns are not known: give the plan its columns"
            )
        self._values = RowValues(columns, only_exact=only_exact)
        self._forms = [ColumnForm(column) for column in columns]
        seen: dict[str, str] = {}
        for form in self._forms:
            twin = seen.setdefault(form.column.name.upper(), form.column.name)
            if twin != form.column.name:
                raise ConfigurationError(
                    f"columns {twin!r} and {form.column.name!r} differ only in case, which keys of rows do "
                    "not: such a table's rows cannot be checked before they are sent; rename one"
                )
        self._by_key = {form.column.name.upper(): form for form in reversed(self._forms)}
        self._suspicious = [_ESCAPED_KEY if all(form.has_plain_name for form in self._forms) else r"\\"]
        if any(form.column.exact and form.type.kind == "FLOAT" for form in self._forms):
            self._suspicious.append(_LONG_FRACTION)
        self._met = False
        self._spelled: Mapping[str, ColumnForm] = {}
        self._stopped_at: int | None = None

    def check(self, body: bytes | memoryview) -> CheckedBlock:
        """Find the rows that the service would skip."""
        lines = BlockLines.of(body)
        if not self._met:
            self._met = True
            self._learn(lines, 0, lines.rows)
        self._spelled = _spelled_otherwise(self._forms, lines.whole, lines.data)
        suspects = [
            *(_rows_with(lines, pattern) for pattern in self._suspicious),
            self._suspects(lines, 0, lines.rows, may_learn=True),
        ]
        faults = []
        for row in np.unique(np.concatenate(suspects)).tolist():
            fault = self._values.fault(lines.row(row))
            if fault is not None:
                faults.append(RowFault(row, int(lines.numbers[row]), fault))
        return CheckedBlock(lines, tuple(faults))

    def _suspects(self, lines: BlockLines, low: int, high: int, *, may_learn: bool = False) -> Rows:
        """Rows from ``low`` to ``high`` that must be checked one by one."""
        suspects, stops, most_stops = [_NO_ROWS], 0, 1 + (high - low) // _STOPS
        while low < high:
            found = self._parsed(lines, low, high)
            if may_learn and (found is None or len(found) > (high - low) // _DOUBTFUL):
                may_learn = False
                if self._learn(lines, low, high):
                    self._spelled = _spelled_otherwise(self._forms, lines.whole, lines.data)
                    continue
            if found is not None:
                suspects.append(found + low)
                break
            stops += 1
            if high - low <= _ALONE or stops > most_stops:
                suspects.append(np.arange(low, high, dtype=np.int64))
                break
            if self._stopped_at is None:
                middle = (low + high) // 2
                suspects.append(self._suspects(lines, low, middle))
                low = middle
            else:
                bad = low + self._stopped_at
                suspects += [self._suspects(lines, low, bad), np.array([bad], np.int64)]
                low = bad + 1
        return np.concatenate(suspects)

    def _learn(self, lines: BlockLines, low: int, high: int) -> bool:
        """Learn how some rows write the columns; True if that changed what Arrow has to read."""
        samples = np.unique(np.linspace(low, high - 1, _SAMPLE, dtype=np.int64)) if high > low else _NO_ROWS
        met: dict[int, list[tuple[str, object]]] = {}
        for row in samples.tolist():
            try:
                pairs = parse_row(lines.row(row).decode("utf-8"))
            except (UnicodeDecodeError, RecursionError):
                continue
            for key, value in pairs or ():
                form = self._by_key.get(key.upper())
                if form is not None:
                    met.setdefault(id(form), []).append((key, value))
        return any([form.meet(met[id(form)]) for form in self._forms if id(form) in met])

    def _parsed(self, lines: BlockLines, low: int, high: int) -> Rows | None:
        """Rows that are not certainly good, None where Arrow cannot parse them all."""
        self._stopped_at = None
        if not lines.hold_objects(low, high):
            return None
        data = lines.slice(low, high)
        longest = lines.longest
        readable = [form for form in self._forms if form.form(longest) not in (Form.UNREAD, Form.OPAQUE)]
        keys = [(one.key, one) for one in readable]
        keys += [(key, one) for key, one in self._spelled.items() if one in readable]
        schema = pa.schema([_NO_COLUMN, *(pa.field(key, _ARROW[one.form(longest)]) for key, one in keys)])
        try:
            table = pj.read_json(
                pa.BufferReader(pa.py_buffer(data)),
                read_options=pj.ReadOptions(use_threads=False, block_size=len(data) + 1),
                parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
            )
        except pa.ArrowInvalid as error:
            at = _IN_ROW.search(str(error))
            if at is not None and int(at[1]) < high - low:
                self._stopped_at = int(at[1])
            return None
        if table.num_rows != high - low:
            return None
        doubt = np.zeros(high - low, np.bool_)
        for form in self._forms:
            if form.form(longest) is not Form.UNREAD:
                doubt |= self._doubts(form, table, lines, low, high)
        for key, form in self._spelled.items():
            if form in readable:
                doubt |= pc.is_valid(table.column(key)).to_numpy()
        return np.flatnonzero(doubt)

    @staticmethod
    def _doubts(form: ColumnForm, table: pa.Table, lines: BlockLines, low: int, high: int) -> Mask:
        """Rows with a column that is not sure to fit."""
        if form.form(lines.longest) is Form.OPAQUE:
            return np.ones(high - low, np.bool_)
        values = table.column(form.key).combine_chunks()
        empty: Mask = pc.is_null(values).to_numpy(zero_copy_only=False)
        doubt: Mask = ~empty & ~form.certain(values, lines.longest)
        if form.column.nullable or not empty.any():
            return doubt
        if not form.column.fills_itself:
            return doubt | empty
        rows = np.flatnonzero(empty)
        named = pc.match_substring_regex(lines.as_array(low, high).take(pa.array(rows)), form.named_anywhere)
        doubt[rows] = named.to_numpy(zero_copy_only=False)
        return doubt


def _rows_with(lines: BlockLines, pattern: str) -> Rows:
    if not pc.match_substring_regex(lines.whole, pattern)[0].as_py():
        return _NO_ROWS
    matches = pc.match_substring_regex(lines.as_array(0, lines.rows), pattern)
    return np.flatnonzero(matches.to_numpy(zero_copy_only=False))


# -- How a source writes a column, and which of its values are certainly good ----------------------------
#
# Arrow reads a key as one JSON type; a source writes a column in one, as a rule. The form is learned from a
# few rows, and a column that no type can spoil is not read at all.

Mask = npt.NDArray[np.bool_]
_ANY = frozenset({"VARCHAR", "VARIANT", "ARRAY"})
"""Types that take every JSON value, but for its length."""
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_$]+")
_SPELLINGS_IN_A_PATTERN = 200
_LATEST_EPOCH = 9.2e18
_EARLIEST_EPOCH = -6.2e10
_DAY = (
    r"[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    r"|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:\.[0-9]{1,9})?)?"
_TIMESTAMP = rf"^{_DAY}(?:[T ]{_CLOCK}(?:Z|[+-](?:0[0-9]|1[0-4])(?::?[0-5][0-9])?)?)?$"
_CERTAIN_TEXTS = {
    "FLOAT": r"^-?[0-9]{1,18}(?:\.[0-9]{1,18})?(?:[eE][-+]?[0-9]{1,2})?$",
    "BOOLEAN": r"^(?i:true|false|yes|no|on|off|t|f|y|n|0|1)$",
    "BINARY": r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
    "DATE": _TIMESTAMP,
    "TIME": rf"^{_CLOCK}$",
    "TIMESTAMP_NTZ": _TIMESTAMP,
    "TIMESTAMP_LTZ": _TIMESTAMP,
    "TIMESTAMP_TZ": _TIMESTAMP,
}


_EXACT_TEXTS = {
    "BOOLEAN": r"^(?i:true|false)$",
    "DATE": rf"^{_DAY}$",
    "TIMESTAMP_NTZ": rf"^{_DAY}(?:[T ]{_CLOCK})?$",
}
"""Texts that lose nothing in a column whose type was inferred from other rows."""
_EXACT_IN_A_DOUBLE = 2**53


class Form(Enum):
    """A way to read a column with Arrow."""

    UNREAD = "unread, since nothing can spoil it"
    OPAQUE = "unread, since Arrow has no type for it"
    NUMBER = "number"
    INTEGER = "integer"
    DECIMAL = "number or text"
    TEXT = "text"
    BOOLEAN = "boolean"
    OBJECT = "object"


_ARROW = {
    Form.NUMBER: pa.float64(),
    Form.INTEGER: pa.int64(),
    Form.DECIMAL: pa.decimal256(76, 38),
    Form.TEXT: pa.string(),
    Form.BOOLEAN: pa.bool_(),
    Form.OBJECT: pa.struct([]),
}
_FIRST = {"NUMBER": Form.NUMBER, "FLOAT": Form.NUMBER, "BOOLEAN": Form.BOOLEAN, "OBJECT": Form.OBJECT}


class ColumnForm:
    """One column as a source writes it."""

    def __init__(self, column: TableColumn) -> None:
        self.column = column
        self.type: ColumnType = column.column_type
        self.key = column.name
        self.has_plain_name = _PLAIN_NAME.fullmatch(column.name) is not None
        self.named_anywhere = rf"(?i:{re.escape(column.name)})\"|\\u"
        self._form = _FIRST.get(self.type.kind, Form.TEXT)

    def form(self, longest: int) -> Form:
        """How to read the column."""
        if self.type.kind in _CERTAIN_TEXTS or self.type.kind in _FIRST:
            return self._form
        known = self.type.kind in _ANY
        if self.column.nullable and (not known or self._takes_all(longest)):
            return Form.UNREAD
        return self._form if known else Form.OPAQUE

    def meet(self, met: Sequence[tuple[str, object]]) -> bool:
        """Take note of how some rows write the column; True if it is to be read in another way now."""
        before = self.key, self._form
        self.key = Counter(key for key, _ in met).most_common(1)[0][0]
        texts_count = self.type.kind not in ("NUMBER", "FLOAT")
        forms = {
            _form_of(value)
            for _, value in met
            if value is not None and (texts_count or not isinstance(value, str) or is_number(value))
        }
        if forms and self.type.kind != "OBJECT":
            self._form = self._form_for(forms)
        return (self.key, self._form) != before

    def certain(self, values: pa.Array, longest: int) -> Mask:
        """Mark the values that the service takes for sure; NULL is left as it is."""
        if self._takes_all(longest):
            return np.ones(len(values), np.bool_)
        return _JUDGES[self.form(longest)](self, values)

    def _takes_all(self, longest: int) -> bool:
        """True if no value of a row of that size can spoil the column."""
        return self.type.kind in _ANY and (self.type.length is None or self.type.length >= longest)

    def _form_for(self, forms: set[Form]) -> Form:
        if self.column.exact and self.type.kind == "NUMBER" and self.type.scale:
            return Form.DECIMAL
        if forms <= {Form.NUMBER, Form.INTEGER}:
            exact = self.type.kind in _ANY and Form.NUMBER not in forms
            return Form.INTEGER if exact else Form.NUMBER
        if self.type.kind in ("NUMBER", "FLOAT"):
            return Form.TEXT if self.type.kind == "FLOAT" and forms == {Form.TEXT} else Form.DECIMAL
        if len(forms) > 1 or (forms == {Form.OPAQUE} and self.type.kind not in _ANY):
            return self._form
        return next(iter(forms))

    def _number(self, values: pa.Array) -> Mask:
        numbers = values.cast(pa.float64(), safe=False) if pa.types.is_decimal(values.type) else values
        found: npt.NDArray[np.float64] = numbers.to_numpy(zero_copy_only=False)
        kind = self.type
        if kind.kind == "NUMBER":
            precision, scale = kind.digits
            largest = 10.0 ** (precision - scale) - 10.0**-scale
            fits: Mask = np.abs(found) <= largest * (1 - 1e-12)
            return fits & self._is_exact(values, found) if self.column.exact else fits
        if kind.kind == "FLOAT":
            long: Mask = (
                self.column.exact & (found == np.floor(found)) & (np.abs(found) >= _EXACT_IN_A_DOUBLE)
            )
            return np.isfinite(found) & ~long
        if kind.kind == "BOOLEAN":
            known: Mask = np.isin(found, (0, 1)) if self.column.exact else np.isfinite(found)
            return known
        if kind.kind in _CERTAIN_TEXTS and kind.kind != "BINARY":
            whole: Mask = found == np.floor(found)
            return whole & (found >= _EARLIEST_EPOCH) & (found <= _LATEST_EPOCH)
        # How long a fraction is as text is not known here.
        return np.zeros(len(found), np.bool_)

    def _is_exact(self, values: pa.Array, found: npt.NDArray[np.float64]) -> Mask:
        """Mark the numbers that have no more fractional digits than the column."""
        if pa.types.is_decimal(values.type):
            cut = values.cast(pa.decimal256(76, self.type.digits[1]), safe=False).cast(values.type)
            return _mask(pc.equal(values, cut))
        exact: Mask = (found == np.floor(found)) & (np.abs(found) < _EXACT_IN_A_DOUBLE)
        return exact

    def _integer(self, values: pa.Array) -> Mask:
        digits = pc.utf8_length(values.cast(pa.string()))
        # One less: zero may have a sign.
        return _mask(pc.less(digits, self.type.length or 0))

    def _text(self, values: pa.Array) -> Mask:
        kind = self.type
        if kind.kind == "VARCHAR":
            return _mask(pc.less_equal(pc.utf8_length(values), kind.length or 0))
        known = _EXACT_TEXTS if self.column.exact else _CERTAIN_TEXTS
        good = _mask(pc.match_substring_regex(values, known.get(kind.kind, _CERTAIN_TEXTS[kind.kind])))
        if kind.kind == "BINARY":
            good &= _mask(pc.less_equal(pc.multiply(pc.binary_length(values), 3), 4 * (kind.length or 0)))
        return good

    def _boolean(self, values: pa.Array) -> Mask:
        fits = self.type.kind == "VARCHAR" and (self.type.length or 0) >= len("false")
        return np.full(len(values), fits or self.type.kind == "BOOLEAN")

    def _object(self, values: pa.Array) -> Mask:
        return np.full(len(values), self.type.kind == "OBJECT")


_JUDGES: dict[Form, Callable[[ColumnForm, pa.Array], Mask]] = {
    Form.NUMBER: ColumnForm._number,
    Form.DECIMAL: ColumnForm._number,
    Form.INTEGER: ColumnForm._integer,
    Form.TEXT: ColumnForm._text,
    Form.BOOLEAN: ColumnForm._boolean,
    Form.OBJECT: ColumnForm._object,
}


def _spelled_otherwise(
    forms: Sequence[ColumnForm], body: pa.Array, data: bytes | memoryview
) -> dict[str, ColumnForm]:
    """Find keys that may mean a column in a spelling other than the one that is read."""
    wrong = [(form, pattern) for form in forms for pattern in _patterns(form.key)]
    found: dict[str, ColumnForm] = {}
    for begin in range(0, len(wrong), _SPELLINGS_IN_A_PATTERN):
        some = wrong[begin : begin + _SPELLINGS_IN_A_PATTERN]
        if not _matches(body, [pattern for _, pattern in some]):
            continue
        for form in {id(form): form for form, _ in some}.values():
            if _matches(body, list(_patterns(form.key))):
                key = re.escape(form.key).encode()
                for spelled in set(re.findall(rb'"(%b)"[ \t]*:' % key, data, re.IGNORECASE)):
                    if spelled.decode() != form.key:
                        found[spelled.decode()] = form
    return found


def _matches(body: pa.Array, patterns: Sequence[str]) -> bool:
    pattern = '"(?:' + "|".join(patterns) + ')"[ \\t]*:'
    return bool(pc.match_substring_regex(body, pattern)[0].as_py())


def _patterns(key: str) -> Iterator[str]:
    for index, character in enumerate(key):
        if character.swapcase() != character:
            rest = re.escape(key[index + 1 :])
            yield f"{re.escape(key[:index])}{re.escape(character.swapcase())}(?i:{rest})"


def _form_of(value: Any) -> Form:
    if isinstance(value, JsonNumber):
        return Form.INTEGER if re.fullmatch(r"-?[0-9]{1,18}", value) else Form.NUMBER
    if isinstance(value, str):
        return Form.TEXT
    if isinstance(value, bool):
        return Form.BOOLEAN
    return Form.OPAQUE if type(value) is list else Form.OBJECT


def _mask(values: pa.Array) -> Mask:
    found: Mask = pc.fill_null(values, False).to_numpy(zero_copy_only=False)
    return found


# pragma: no mutate end

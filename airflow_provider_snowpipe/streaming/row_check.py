"""Rows held against a table's columns before they are sent, block by block.

A block of NDJSON is parsed once by Arrow with a schema that holds only what can go wrong, and the columns
are judged as a whole; rows of which that is not sure are looked at one by one
(:mod:`~airflow_provider_snowpipe.streaming.row_values`). A row that stops the parser is left out where Arrow
says which one it is; where it does not, the block is halved until its bad rows are alone. What Arrow passes
is certain; what it does not pass costs time, never a good row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from airflow_provider_snowpipe.streaming.block_lines import BlockLines
from airflow_provider_snowpipe.streaming.column_forms import ColumnForm, Form, Mask, spelled_otherwise
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.row_values import Fault, RowValues, parse_row
from airflow_provider_snowpipe.streaming.table_columns import TableColumn

Rows = npt.NDArray[np.int64]
_ALONE = 32
"""Rows that are looked at one by one rather than parsed again."""
_STOPS = 64
"""Once one row in so many has stopped the parser, the others are looked at one by one, too."""
_DOUBTFUL = 4
"""Once one row in so many is not sure, the source is looked at anew: it may write its columns otherwise."""
_IN_ROW = re.compile(r" in row ([0-9]{1,18})\s*\Z")
"""Arrow says in which row of what it parses it met an error (observed with pyarrow 26), not always."""
_SAMPLE = 16
_NO_ROWS: Rows = np.empty(0, np.int64)
_ESCAPED_KEY = r"\\u00(?:24|3[0-9]|4[1-9a-fA-F]|5[0-9aAfF]|6[1-9a-fA-F]|7[0-9aA])"
"""A letter, a digit, ``_`` or ``$`` written as an escape: nobody does that, but a key could hide in it."""
_NO_COLUMN = pa.field("\0", pa.bool_())
"""Arrow counts no rows without a column."""


@dataclass(frozen=True, slots=True)
class RowFault:
    """A row that does not fit.

    :param row: its number among the block's rows, counted from 0
    :param line: its number among the block's lines, counted from 0; differs where lines are blank
    :param fault: the column and the reason
    """

    row: int
    line: int
    fault: Fault


@dataclass(frozen=True, slots=True)
class CheckedBlock:
    """What a check found.

    :param lines: the block's rows
    :param faults: the rows that do not fit, in order
    """

    lines: BlockLines
    faults: tuple[RowFault, ...]

    def good_rows(self) -> bytes | memoryview:
        """The other rows as NDJSON, the block itself where no row is bad."""
        return self.lines.without([fault.row for fault in self.faults])


class RowCheck:
    """The check of one channel's rows; remembers how its source writes the columns.

    :param columns: the table's columns
    :raises ConfigurationError: if there is none, or two differ only in case
    """

    def __init__(self, columns: Sequence[TableColumn]) -> None:
        if not columns:
            raise ConfigurationError(
                "rows are to be checked, but the table's columns are not known: give the plan its columns"
            )
        self._values = RowValues(columns)
        self._forms = [ColumnForm(column) for column in columns]
        self._refuse_twins()
        self._by_key = {form.column.name.upper(): form for form in reversed(self._forms)}
        self._plain = all(form.has_plain_name for form in self._forms)
        self._met = False
        self._spelled: Mapping[str, ColumnForm] = {}
        self._stopped_at: int | None = None
        self.parses = 0

    def _refuse_twins(self) -> None:
        seen: dict[str, str] = {}
        for form in self._forms:
            twin = seen.setdefault(form.column.name.upper(), form.column.name)
            if twin != form.column.name:
                raise ConfigurationError(
                    f"columns {twin!r} and {form.column.name!r} differ only in case, which keys of rows do "
                    "not: such a table's rows cannot be checked before they are sent; rename one"
                )

    def check(self, body: bytes | memoryview) -> CheckedBlock:
        """Find the rows that the service would skip.

        :param body: NDJSON
        """
        lines = BlockLines.of(body)
        if not self._met:
            self._met = True
            self._learn(lines, 0, lines.rows)
        self._spelled = spelled_otherwise(self._forms, lines.whole, lines.data)
        suspects = (self._escaped_keys(lines), self._suspects(lines, 0, lines.rows, may_learn=True))
        faults = []
        for row in np.unique(np.concatenate(suspects)).tolist():
            fault = self._values.fault(lines.row(row))
            if fault is not None:
                faults.append(RowFault(row, lines.line_number(row), fault))
        return CheckedBlock(lines, tuple(faults))

    def _escaped_keys(self, lines: BlockLines) -> Rows:
        """Rows in which an escape may hide a column's name."""
        escapes = _ESCAPED_KEY if self._plain else r"\\"
        if not pc.match_substring_regex(lines.whole, escapes)[0].as_py():
            return _NO_ROWS
        matches = pc.match_substring_regex(lines.as_array(0, lines.rows), escapes)
        return np.flatnonzero(matches.to_numpy(zero_copy_only=False))

    def _suspects(self, lines: BlockLines, low: int, high: int, *, may_learn: bool = False) -> Rows:
        """Rows from ``low`` to ``high`` that must be looked at one by one."""
        suspects, stops, most_stops = [_NO_ROWS], 0, 1 + (high - low) // _STOPS
        while low < high:
            found = self._parsed(lines, low, high)
            if may_learn and (found is None or len(found) > (high - low) // _DOUBTFUL):
                may_learn = False
                if self._learn(lines, low, high):
                    self._spelled = spelled_otherwise(self._forms, lines.whole, lines.data)
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
        """Look how some rows write the columns; True if that changed what Arrow is told to read."""
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
        if not lines.look_like_objects(low, high):
            return None
        data = lines.slice(low, high)
        longest = lines.longest
        wanted = [form for form in self._forms if form.form(longest) not in (Form.UNREAD, Form.OPAQUE)]
        keys = [(one.key, one) for one in wanted]
        keys += [(key, one) for key, one in self._spelled.items() if one in wanted]
        schema = pa.schema([_NO_COLUMN, *(pa.field(key, one.arrow_type(longest)) for key, one in keys)])
        self.parses += 1
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
            if form in wanted:
                doubt |= pc.is_valid(table.column(key)).to_numpy()
        return np.flatnonzero(doubt)

    @staticmethod
    def _doubts(form: ColumnForm, table: pa.Table, lines: BlockLines, low: int, high: int) -> Mask:
        """Rows of which one column is not sure."""
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

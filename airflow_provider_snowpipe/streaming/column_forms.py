"""How a source writes a column, and which of its values are certainly good.

Arrow reads a key as one JSON type; a source writes a column in one, as a rule. The form is learned from a
few rows, and a column that no type can spoil is not read at all.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_snowpipe.streaming.row_values import JsonNumber, is_number
from airflow_provider_snowpipe.streaming.table_columns import ColumnType, TableColumn

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
_MOMENT = rf"^{_DAY}(?:[T ]{_CLOCK}(?:Z|[+-](?:0[0-9]|1[0-4])(?::?[0-5][0-9])?)?)?$"
_CERTAIN_TEXTS = {
    "FLOAT": r"^-?[0-9]{1,18}(?:\.[0-9]{1,18})?(?:[eE][-+]?[0-9]{1,2})?$",
    "BOOLEAN": r"^(?i:true|false|yes|no|on|off|t|f|y|n|0|1)$",
    "BINARY": r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
    "DATE": _MOMENT,
    "TIME": rf"^{_CLOCK}$",
    "TIMESTAMP_NTZ": _MOMENT,
    "TIMESTAMP_LTZ": _MOMENT,
    "TIMESTAMP_TZ": _MOMENT,
}


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
    """One column as a source writes it.

    :param column: the column
    """

    def __init__(self, column: TableColumn) -> None:
        self.column = column
        self.type: ColumnType = column.column_type
        self.key = column.name
        self.has_plain_name = _PLAIN_NAME.fullmatch(column.name) is not None
        self.named_anywhere = rf"(?i:{re.escape(column.name)})\"|\\u"
        self._form = _FIRST.get(self.type.kind, Form.TEXT)

    def form(self, longest: int) -> Form:
        """How to read the column.

        :param longest: bytes of the longest row; a value is no longer than that
        """
        if self.type.kind in _CERTAIN_TEXTS or self.type.kind in _FIRST:
            return self._form
        known = self.type.kind in _ANY
        if self.column.nullable and (not known or self._takes_all(longest)):
            return Form.UNREAD
        return self._form if known else Form.OPAQUE

    def arrow_type(self, longest: int) -> pa.DataType:
        """The type to read it as."""
        return _ARROW[self.form(longest)]

    def meet(self, met: Sequence[tuple[str, object]]) -> bool:
        """Take note of how some rows write the column.

        :param met: the keys that name it and their values, at least one
        :returns: True if it is to be read in another way now
        """
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
        """Mark the values that the service takes for sure; nothing is said of NULL.

        :param values: as :meth:`arrow_type` reads them
        :param longest: bytes of the longest row
        """
        if self._takes_all(longest):
            return np.ones(len(values), np.bool_)
        return _JUDGES[self.form(longest)](self, values)

    def _takes_all(self, longest: int) -> bool:
        """True if no value of a row of that size can spoil the column."""
        return self.type.kind in _ANY and (self.type.length is None or self.type.length >= longest)

    def _form_for(self, forms: set[Form]) -> Form:
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
            largest = 10.0 ** ((kind.precision or 38) - (kind.scale or 0)) - 10.0 ** -(kind.scale or 0)
            fits: Mask = np.abs(found) <= largest * (1 - 1e-12)
            return fits
        if kind.kind in ("FLOAT", "BOOLEAN"):
            return np.isfinite(found)
        if kind.kind in _CERTAIN_TEXTS and kind.kind != "BINARY":
            whole: Mask = found == np.floor(found)
            return whole & (found >= _EARLIEST_EPOCH) & (found <= _LATEST_EPOCH)
        # How long a fraction is as text is not known here.
        return np.zeros(len(found), np.bool_)

    def _integer(self, values: pa.Array) -> Mask:
        digits = pc.utf8_length(values.cast(pa.string()))
        # One less: zero may have a sign.
        return _mask(pc.less(digits, self.type.length or 0))

    def _text(self, values: pa.Array) -> Mask:
        kind = self.type
        if kind.kind == "VARCHAR":
            return _mask(pc.less_equal(pc.utf8_length(values), kind.length or 0))
        good = _mask(pc.match_substring_regex(values, _CERTAIN_TEXTS[kind.kind]))
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


def spelled_otherwise(
    forms: Sequence[ColumnForm], body: pa.Array, data: bytes | memoryview
) -> dict[str, ColumnForm]:
    """Find keys that may mean a column in a spelling other than the one that is read.

    Keys of nested objects are among them: what is a row's own key only a parser can tell.

    :param forms: the columns
    :param body: the block as one Arrow value
    :param data: the block
    """
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
    for index, letter in enumerate(key):
        if letter.swapcase() != letter:
            rest = re.escape(key[index + 1 :])
            yield f"{re.escape(key[:index])}{re.escape(letter.swapcase())}(?i:{rest})"


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

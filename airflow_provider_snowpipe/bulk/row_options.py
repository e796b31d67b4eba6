"""The options by which COPY makes rows of a file, and how they differ from those that are expected."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from airflow_provider_snowpipe.streaming.names import STRING_LITERAL, read_string_literal

_TOKEN = re.compile(
    rf"""(?P<text>{STRING_LITERAL}) | \$\$(?P<raw>.*?)\$\$ | (?:--|//)[^\n]* | /\*.*?\*/
    | (?P<word>(?:"(?:[^"]|"")+"|[\w$@%~]+)(?:\.(?:"(?:[^"]|"")+"|[\w$%~]+))*) | (?P<mark>=>|[=(),])""",
    re.DOTALL | re.VERBOSE,
)
_HEX = re.compile(r"(?:0x|\\x)([0-9A-Fa-f]{2})", re.IGNORECASE)
_AUTO_FORMATS = {
    "DATE_FORMAT": "AUTO",
    "TIME_FORMAT": "AUTO",
    "TIMESTAMP_FORMAT": "AUTO",
    "BINARY_FORMAT": "HEX",
}
_COMMON = {"TRIM_SPACE": False, "NULL_IF": (), "REPLACE_INVALID_CHARACTERS": False}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "CSV": {
        **_AUTO_FORMATS,
        **_COMMON,
        "COMPRESSION": "AUTO",
        "NULL_IF": ("\\N",),
        "RECORD_DELIMITER": "\n",
        "FIELD_DELIMITER": ",",
        "PARSE_HEADER": False,
        "SKIP_HEADER": 0,
        "SKIP_BLANK_LINES": False,
        "ESCAPE": None,
        "ESCAPE_UNENCLOSED_FIELD": "\\",
        "FIELD_OPTIONALLY_ENCLOSED_BY": None,
        "EMPTY_FIELD_AS_NULL": True,
        "ERROR_ON_COLUMN_COUNT_MISMATCH": True,
        "VALIDATE_UTF8": True,
        "SKIP_BYTE_ORDER_MARK": True,
        "ENCODING": "UTF8",
    },
    "JSON": {
        **_AUTO_FORMATS,
        **_COMMON,
        "COMPRESSION": "AUTO",
        "STRIP_OUTER_ARRAY": False,
        "STRIP_NULL_VALUES": False,
        "ALLOW_DUPLICATE": False,
        "ENABLE_OCTAL": False,
        "IGNORE_UTF8_ERRORS": False,
        "SKIP_BYTE_ORDER_MARK": True,
    },
    "PARQUET": {**_COMMON, "BINARY_AS_TEXT": True},
    "AVRO": _COMMON,
    "ORC": _COMMON,
}
"""Options that change rows, with Snowflake's defaults (page "CREATE FILE FORMAT", format type options)."""
_HARMLESS = {"TYPE", "FILE_EXTENSION", "MULTI_LINE", "COMPRESSION", "SNAPPY_COMPRESSION"}
"""Options that change no row: without MULTI_LINE a quoted value may not go on in the next line."""
OF_COPY = {
    "MATCH_BY_COLUMN_NAME": "NONE",
    "TRUNCATECOLUMNS": False,
    "ENFORCE_LENGTH": True,
    "INCLUDE_METADATA": (),
}
"""Options of COPY itself that change rows, with their defaults."""
_LETTERS = {
    "RECORD_DELIMITER",
    "FIELD_DELIMITER",
    "ESCAPE",
    "ESCAPE_UNENCLOSED_FIELD",
    "FIELD_OPTIONALLY_ENCLOSED_BY",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """An option that has another value than it needs for the same rows.

    :param expected: the value that makes the same rows
    """

    option: str
    given: Any
    expected: Any

    def __str__(self) -> str:
        return f"{self.option} = {_shown(self.given)} in place of {_shown(self.expected)}"


@dataclass(frozen=True, slots=True)
class RowOptions:
    """What decides the rows that a COPY makes of a file.

    :param file_format: options by name in capitals, the name of a file format, or None for the stage's own
    :param options: the other options, by name in capitals
    :param columns: the columns that are filled in this order, None for the table's own or by name
    :param transforms: True where the statement selects from the file
    """

    file_format: Mapping[str, Any] | str | None
    options: Mapping[str, Any] = field(default_factory=dict)
    columns: Sequence[str] | None = None
    transforms: bool = False

    @classmethod
    def of(cls, options: Mapping[str, Any], columns: Sequence[str] | None = None) -> Self:
        """Take options as :class:`CopyOptions` takes them."""
        given = {name.upper(): value for name, value in options.items()}
        if "TRUNCATE_COLUMNS" in given:
            given["TRUNCATECOLUMNS"] = given.pop("TRUNCATE_COLUMNS")
        form = given.pop("FILE_FORMAT", None)
        return cls(_format(form), given, columns)

    @classmethod
    def of_statement(cls, statement: str) -> Self:
        """Read a COPY statement, such as that of a pipe.

        :param statement: as ``DESCRIBE PIPE`` shows it
        """
        reader = _Reader(statement)
        columns, transforms, options = reader.read()
        form = options.pop("FILE_FORMAT", None)
        return cls(_format(form), options, columns, transforms)

    def differences(self, expected: RowOptions, compressions: Collection[str] = ()) -> list[Difference]:
        """The options that make other rows than expected; what cannot be judged is in :meth:`doubts`.

        :param expected: with a file format by its options
        :param compressions: how the files are compressed, in capitals, if that goes by their names
        """
        found = []
        if isinstance(self.file_format, Mapping) and isinstance(expected.file_format, Mapping):
            found = _differences(self.file_format, expected.file_format, compressions)
        if self.transforms:
            return found
        for name, default in OF_COPY.items():
            given, needed = (_value(name, one.options.get(name), default) for one in (self, expected))
            if given != needed:
                found.append(Difference(name, given, needed))
        if (
            self.columns is not None
            and expected.columns is not None
            and [*self.columns] != [*expected.columns]
        ):
            found.append(Difference("the columns", tuple(self.columns), tuple(expected.columns)))
        return found

    def doubts(self) -> list[str]:
        """What cannot be judged, each in words that go on after "cannot be judged: "."""
        found = []
        if self.transforms:
            found.append("its statement selects from the files")
        if isinstance(self.file_format, str):
            found.append(f"it names the file format {self.file_format}")
        elif self.file_format is None:
            found.append("it has no FILE_FORMAT, so that the stage's own counts")
        else:
            kind = self.file_format.get("TYPE")
            if kind is None:
                found.append("its FILE_FORMAT has no TYPE, so that the stage's own counts")
            known = {*_HARMLESS, *_DEFAULTS.get(_value("TYPE", kind), _DEFAULTS["CSV"])}
            found += [f"it sets {name}" for name in self.file_format if kind and name not in known]
        return found


def _differences(
    given: Mapping[str, Any], expected: Mapping[str, Any], compressions: Collection[str]
) -> list[Difference]:
    needed = str(_value("TYPE", expected["TYPE"]))
    kind = _value("TYPE", given.get("TYPE", needed))
    if kind != needed:
        return [Difference("TYPE", kind, needed)]
    found = []
    for name, default in _DEFAULTS[needed].items():
        if name not in given and "TYPE" not in given:
            continue  # the stage's own counts
        if name == "EMPTY_FIELD_AS_NULL" and expected.get("FIELD_DELIMITER", "") is None:
            continue  # a blank line is not a row
        left, right = (
            _value(name, one[name]) if name in one else _value(name, default) for one in (given, expected)
        )
        if left == right or (name == "COMPRESSION" and _same_compression(left, right, compressions)):
            continue
        found.append(Difference(name, left, right))
    return found


def _same_compression(given: str, expected: str, found: Collection[str]) -> bool:
    if expected == "AUTO":
        return set(found) <= {given}
    return given == "AUTO" and set(found) <= {expected}


def _format(form: Any) -> Mapping[str, Any] | str | None:
    if not isinstance(form, Mapping):
        return None if form is None else str(form)
    options = {str(name).upper(): value for name, value in form.items()}
    return str(options["FORMAT_NAME"]) if "FORMAT_NAME" in options else options


def _value(name: str, value: Any, default: Any = None) -> Any:
    """A value in one spelling, whichever way it was written."""
    if value is None or (name == "INCLUDE_METADATA" and not value):
        # A keyword's word in Python; an option of COPY that is None is left out.
        return default if name in OF_COPY else "NONE" if name == "COMPRESSION" else None
    if isinstance(value, bool | int):
        return value
    if name == "NULL_IF":
        return tuple(sorted({value} if isinstance(value, str) else set(value)))
    if not isinstance(value, str):
        return value
    word = value.upper()
    if word in ("TRUE", "FALSE"):
        return word == "TRUE"
    if name == "SKIP_HEADER" and value.isdigit():
        return int(value)
    if name in _LETTERS:
        if word == "NONE" or not value:
            return None
        decoded = _HEX.sub(lambda found: chr(int(found[1], 16)), value)
        return read_string_literal(f"'{value}'") if decoded == value else decoded
    return "UTF8" if name == "ENCODING" and word in ("UTF-8", "UTF_8") else word


def _shown(value: Any) -> str:
    if value is None:
        return "NONE"
    if isinstance(value, bool):
        return str(value).upper()
    return f"({', '.join(map(repr, value))})" if isinstance(value, tuple) else repr(value)


class _Reader:
    """The parts of a COPY statement, without what is in comments and texts."""

    def __init__(self, statement: str) -> None:
        self._tokens = [found for found in _TOKEN.finditer(statement) if found.lastgroup]
        self._index = 0

    def read(self) -> tuple[list[str] | None, bool, dict[str, Any]]:
        """Columns, whether the statement selects, and its options."""
        columns: list[str] | None = None
        transforms = False
        options: dict[str, Any] = {}
        before = ""
        while self._index < len(self._tokens):
            token = self._next()
            if token["mark"] == "(" and before != "FROM" and columns is None and not options:
                columns = [_name(one) for one in self._list()]
            elif token["mark"] == "(":
                transforms = transforms or before == "FROM"
                self._list()
            elif token["word"] and self._peek() == "=":
                self._next()
                options[token["word"].upper()] = self._read_value()
            before = (token["word"] or "").upper()
        return columns, transforms, options

    def _next(self) -> re.Match[str]:
        self._index += 1
        return self._tokens[self._index - 1]

    def _peek(self, ahead: int = 0) -> str | None:
        index = self._index + ahead
        return self._tokens[index]["mark"] if index < len(self._tokens) else None

    def _read_value(self) -> Any:
        if self._index == len(self._tokens):
            return None
        token = self._next()
        if token["mark"] != "(":
            return _scalar(token)
        if self._peek(1) not in ("=", "=>"):
            return tuple(self._list())
        options: dict[str, Any] = {}
        while self._index < len(self._tokens) and self._peek() != ")":
            name = self._next()
            if self._peek() in ("=", "=>"):
                self._next()
                options[str(name["word"]).upper()] = self._read_value()
        self._index += 1
        return options

    def _list(self) -> list[Any]:
        """The values up to the parenthesis that ends them; those in inner ones are among them."""
        values, depth = [], 1
        while self._index < len(self._tokens):
            token = self._next()
            depth += {"(": 1, ")": -1}.get(token["mark"] or "", 0)
            if not depth:
                break
            if not token["mark"]:
                values.append(_scalar(token))
        return values


def _scalar(token: re.Match[str]) -> Any:
    if token["text"] is not None:
        return read_string_literal(token["text"])
    if token["raw"] is not None:
        return token["raw"]
    word = token["word"] or ""
    return int(word) if word.isdigit() else word


def _name(word: Any) -> str:
    text = str(word)
    return text[1:-1].replace('""', '"') if text.startswith('"') else text.upper()

"""Values as they are written in a SQL statement, where Snowflake binds none: options of COPY."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_snowpipe.streaming.errors import ConfigurationError

_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
_ESCAPE = re.compile(r"''|\\(?:u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})|([0-7]{1,3})|(.))", re.DOTALL)
_CONTROLS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}

STRING_LITERAL = r"'(?:[^'\\]|''|\\.)*'"
"""Regular expression of a text between single quotes, for ``re.DOTALL``."""

OptionValue = str | bool | int | float | None | Sequence[str]
"""None is written as the word NONE."""


def string_literal(text: str) -> str:
    """Write a text so that Snowflake reads it letter by letter.

    In quotes a backslash begins an escape sequence (page "String & binary data types"), so it is doubled.

    :param text: the text
    :raises ConfigurationError: if it holds a NUL character
    """
    if "\0" in text:
        raise ConfigurationError(f"the text {text[:40]!r} has a NUL character, which no SQL text can have")
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def read_string_literal(written: str) -> str:
    """Read a text between single quotes as Snowflake does.

    :param written: the text with its quotes; escape sequences begin with a backslash
    """
    return _ESCAPE.sub(_unescaped, written[1:-1])


def string_list(texts: Sequence[str]) -> str:
    """Write texts as a list in parentheses.

    :param texts: at least one
    """
    return f"({', '.join(map(string_literal, texts))})"


def option(name: str, value: OptionValue) -> str:
    """Write one option, ``NAME = value``.

    :param name: the option's name, in any case
    :param value: its value
    :raises ConfigurationError: if the name is none, or the value has no form in SQL
    """
    written = name.upper()
    if not _NAME.fullmatch(written):
        raise ConfigurationError(
            f"option {name!r} is no name of an option: give letters, digits and underlines"
        )
    return f"{written} = {_value(written, value)}"


def option_group(name: str, values: Mapping[str, Any]) -> str:
    """Write options in parentheses, ``NAME = (A = 1 B = 'x')``.

    :param name: the name of them all
    :param values: at least one
    """
    return f"{name} = ({' '.join(option(*pair) for pair in values.items())})"


def _unescaped(found: re.Match[str]) -> str:
    unicode, byte, octal, letter = found.groups()
    if unicode or byte:
        return chr(int(unicode or byte, 16))
    if octal:
        return chr(int(octal, 8))
    return "'" if letter is None else _CONTROLS.get(letter, letter)


def _value(name: str, value: Any) -> str:
    if value is None:
        return "NONE"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return string_literal(value)
    if isinstance(value, Sequence) and all(isinstance(one, str) for one in value):
        return string_list(value) if value else "()"
    raise ConfigurationError(
        f"option {name} is {value!r}: give a text, a number, True, False, None or a list of texts"
    )

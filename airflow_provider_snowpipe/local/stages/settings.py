"""Reading of option lists of stages, file formats and COPY: ``TYPE = CSV NULL_IF = ('', 'x')``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

from airflow_provider_snowpipe.local.errors import SqlError, compilation_error


class Word(str):
    """A value that was written without quotes: a keyword, or the name of an object."""

    __slots__ = ()


Setting: TypeAlias = "str | Word | int | bool | tuple[Setting, ...] | Mapping[str, Setting]"

_NAME = re.compile(r"\s*,?\s*([A-Za-z_]\w*)\s*(?:=(?!>)|=>)\s*")
_NUMBER = re.compile(r"-?\d+(?![\w.])")
_WORD = re.compile(r'(?:"(?:[^"]|"")+"|[\w$%@~-]+)(?:\.(?:"(?:[^"]|"")+"|[\w$%~-]+))*')
_STRING = re.compile(r"'((?:[^'\\]|\\.|'')*)'", re.DOTALL)
_DOLLARS = re.compile(r"\$\$(.*?)\$\$", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|[0-7]{1,3}|.)|''", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0"}
_BLANK = re.compile(r"\s*")


def read_settings(text: str) -> tuple[dict[str, Setting], str]:
    """Read ``NAME = value`` pairs, separated by blanks or commas, from the start of a text.

    :param text: SQL text.
    :returns: upper-case name to value, and the text after the last pair.
    :raises SqlError: for a value that cannot be read, or a name that appears twice.
    """
    settings: dict[str, Setting] = {}
    position = 0
    while match := _NAME.match(text, position):
        name = match[1].upper()
        if name in settings:
            raise compilation_error(f"duplicate property '{name}'.")
        settings[name], position = _value(name, text, match.end())
    return settings, text[position:].strip()


def read_literal(text: str) -> tuple[str, str]:
    """Read a string literal from the start of a text.

    :returns: its value with escapes undone, and the rest of the text.
    :raises SqlError: when the text does not start with a literal.
    """
    stripped = text.lstrip()
    for pattern in (_STRING, _DOLLARS):
        match = pattern.match(stripped)
        if match is not None:
            value = unescape(match[1]) if pattern is _STRING else match[1]
            return value, stripped[match.end() :].strip()
    raise compilation_error(f"syntax error: expected a string at '{stripped[:20]}'.")


def unescape(text: str) -> str:
    r"""Undo the escapes of a string literal: ``''``, ``\n``, ``\t``, ``\\``, octal, ``\x`` and ``\u``."""
    return _ESCAPE.sub(_unescaped, text)


def invalid_parameter(name: str) -> SqlError:
    """Return Snowflake's error for an option that a statement does not know (001420)."""
    return SqlError("001420", "22023", f"SQL compilation error:\ninvalid parameter '{name}'")


def invalid_value(name: str, value: object, wanted: str) -> SqlError:
    """Return Snowflake's error for a value that an option does not take (001008).

    :param wanted: what the option takes.
    """
    return SqlError(
        "001008",
        "22023",
        f"SQL compilation error:\ninvalid value [{value}] for parameter '{name}'; it takes {wanted}.",
    )


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    if code is None:
        return "'"
    if code[0] in "ux" and len(code) > 1:
        # Half of a surrogate pair is no character.
        return chr(int(code[1:], 16)).encode("utf-8", "replace").decode()
    if code in _ESCAPED:
        return _ESCAPED[code]
    return chr(int(code, 8)) if code[0] in "01234567" else code


def _value(name: str, text: str, position: int) -> tuple[Setting, int]:
    position = _after_blank(text, position)
    if text.startswith("(", position):
        return _nested(name, text, position + 1)
    for pattern in (_STRING, _DOLLARS, _NUMBER, _WORD):
        match = pattern.match(text, position)
        if match is not None:
            return _scalar(pattern, match), match.end()
    # The value itself is not shown: it may be a credential.
    raise compilation_error(f"syntax error: the value of {name} cannot be read.")


def _scalar(pattern: re.Pattern[str], match: re.Match[str]) -> Setting:
    if pattern is _STRING:
        return unescape(match[1])
    if pattern is _DOLLARS:
        return match[1]
    if pattern is _NUMBER:
        return int(match[0])
    word = match[0]
    return word.upper() == "TRUE" if word.upper() in {"TRUE", "FALSE"} else Word(word)


def _nested(name: str, text: str, position: int) -> tuple[Setting, int]:
    if _NAME.match(text, position):
        settings: dict[str, Setting] = {}
        while match := _NAME.match(text, position):
            settings[match[1].upper()], position = _value(match[1].upper(), text, match.end())
        return settings, _closed(name, text, position)
    values: list[Setting] = []
    position = _after_blank(text, position)
    while not text.startswith(")", position):
        value, position = _value(name, text, position)
        values.append(value)
        position = _after_blank(text, position)
        if text.startswith(",", position):
            position = _after_blank(text, position + 1)
        elif not text.startswith(")", position):
            break
    return tuple(values), _closed(name, text, position)


def _closed(name: str, text: str, position: int) -> int:
    position = _after_blank(text, position)
    if not text.startswith(")", position):
        raise compilation_error(f"syntax error: the list of {name} is not closed.")
    return position + 1


def _after_blank(text: str, position: int) -> int:
    match = _BLANK.match(text, position)
    return match.end() if match else position

"""Values of the options of stages, file formats and COPY, and the errors for wrong ones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

from airflow_provider_snowpipe.local.errors import SqlError, compilation_error


class Word(str):
    """A value that was written without quotes: a keyword, or the name of an object."""

    __slots__ = ()


Setting: TypeAlias = "str | Word | int | bool | tuple[Setting, ...] | Mapping[str, Setting]"

_STRING = re.compile(r"'((?:[^'\\]|\\.|'')*)'", re.DOTALL)
_DOLLARS = re.compile(r"\$\$(.*?)\$\$", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|[0-7]{1,3}|.)|''", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0"}


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

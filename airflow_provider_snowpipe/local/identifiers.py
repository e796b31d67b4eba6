"""Snowflake identifier rules: unquoted names are upper-cased, quoted names are kept."""

from __future__ import annotations

import re
from collections.abc import Iterable

from airflow_provider_snowpipe.local.errors import compilation_error

_PART = re.compile(r'\s*(?:"((?:[^"]|"")+)"|([A-Za-z_][\w$]*))')
_DOT = re.compile(r"\s*\.")


def quote(name: str) -> str:
    """Quote one identifier for DuckDB or Snowflake.

    :param name: exact name, any characters.
    """
    return '"' + name.replace('"', '""') + '"'


def quote_path(*parts: str) -> str:
    """Quote and join the parts of a qualified name."""
    return ".".join(quote(part) for part in parts)


def literal(text: str) -> str:
    """Quote a text as a SQL string literal."""
    return "'" + text.replace("'", "''") + "'"


def read_path(text: str) -> tuple[tuple[str, ...], str]:
    """Read a dotted identifier from the start of a text.

    :param text: SQL text that starts with an identifier.
    :returns: the parts under Snowflake's case rules, and the rest of the text.
    :raises SqlError: when the text does not start with an identifier.
    """
    parts: list[str] = []
    position = 0
    while True:
        match = _PART.match(text, position)
        if match is None:
            raise compilation_error(
                f"syntax error: expected an identifier at '{text[position : position + 30]}'."
            )
        quoted, bare = match.groups()
        parts.append(quoted.replace('""', '"') if quoted is not None else bare.upper())
        position = match.end()
        dot = _DOT.match(text, position)
        if dot is None:
            return tuple(parts), text[position:].strip()
        position = dot.end()


def find_name(name: str, names: Iterable[str]) -> str | None:
    """Find a name the way the streaming REST API does: exact first, then ignoring case.

    :param name: the name as the client sent it.
    :param names: an iterable of existing names.
    :returns: the existing spelling, or None.
    """
    candidates = list(names)
    if name in candidates:
        return name
    folded = name.upper()
    return next((candidate for candidate in candidates if candidate.upper() == folded), None)

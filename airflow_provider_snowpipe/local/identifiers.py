"""Snowflake identifier rules: unquoted names are upper-cased, quoted names are kept."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from airflow_provider_snowpipe.local.errors import compilation_error

_PART = re.compile(r'\s*(?:"((?:[^"]|"")+)"|([A-Za-z_][\w$]*))')
_QUOTED = re.compile(r'"((?:[^"]|"")+)"')
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


@dataclass(frozen=True, slots=True)
class UrlName:
    """A name in a URL of the streaming REST API.

    :param text: the name, without quotes around it.
    :param is_quoted: it was quoted, and means no name in other case.
    """

    text: str
    is_quoted: bool = False

    @classmethod
    def read(cls, segment: str) -> UrlName:
        """Read a decoded path segment; one that is not wholly a quoted identifier is taken as it is.

        The Kafka connector 4 quotes the pipe; the SDK passes on what it is given (observed).
        """
        quoted = _QUOTED.fullmatch(segment)
        return cls(segment) if quoted is None else cls(quoted[1].replace('""', '"'), is_quoted=True)

    def find(self, names: Iterable[str]) -> str | None:
        """Find the name: letter by letter if it was quoted, else as :func:`find_name`."""
        if self.is_quoted:
            return self.text if self.text in names else None
        return find_name(self.text, names)


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

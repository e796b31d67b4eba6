"""Splitting of a text with several statements."""

from __future__ import annotations

import re

from sqlglot import TokenType

from airflow_provider_snowpipe.local.errors import SqlError
from airflow_provider_snowpipe.local.sql.reader import tokens

_COMMENT = re.compile(r"\A(?:\s+|--[^\n]*(?:\n|\Z)|//[^\n]*(?:\n|\Z)|/\*.*?\*/)", re.DOTALL)


def split_statements(text: str) -> list[str]:
    """Split at semicolons that are outside of strings, quoted names and comments.

    :param text: statements, with or without a closing semicolon; empty ones are dropped.
    :raises SqlError: when a string, name or comment is not closed.
    """
    return [statement for _, statement in numbered_statements(text)]


def numbered_statements(text: str) -> list[tuple[int, str]]:
    """Split as :func:`split_statements` does; each statement has the line of its first word, from 1.

    :raises SqlError: when a string, name or comment is not closed.
    """
    statements: list[tuple[int, str]] = []
    start, first = 0, -1
    for token in tokens(text):
        if token.token_type != TokenType.SEMICOLON:
            first = token.start if first < 0 else first
            continue
        if first >= 0:
            statements.append((text.count("\n", 0, first) + 1, text[start : token.start].strip()))
        start, first = token.end + 1, -1
    if first >= 0:
        statements.append((text.count("\n", 0, first) + 1, text[start:].strip()))
    return statements


def strip_comments(statement: str) -> str:
    """Remove blanks and comments before the first keyword."""
    while match := _COMMENT.match(statement):
        statement = statement[match.end() :]
    return statement


def check_count(statements: list[str], wanted: int) -> None:
    """Compare with ``MULTI_STATEMENT_COUNT``; 0 stands for any number.

    :raises SqlError: 000008 for another number, 000900 for none at all.
    """
    if not statements:
        raise SqlError("000900", "42601", "SQL compilation error:\nEmpty SQL statement.")
    if wanted not in (0, len(statements)):
        raise SqlError(
            "000008",
            "0A000",
            f"Actual statement count {len(statements)} did not match the desired statement count {wanted}.",
        )

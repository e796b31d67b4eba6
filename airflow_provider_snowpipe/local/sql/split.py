"""Splitting of a text with several statements."""

from __future__ import annotations

import sqlglot
from sqlglot import TokenType
from sqlglot.errors import SqlglotError

from airflow_provider_snowpipe.local.errors import SqlError, compilation_error


def split_statements(text: str) -> list[str]:
    """Split at semicolons that are outside of strings, quoted names and comments.

    :param text: statements, with or without a closing semicolon; empty ones are dropped.
    :raises SqlError: when a string, name or comment is not closed.
    """
    try:
        tokens = sqlglot.tokenize(text, dialect="snowflake")
    except SqlglotError as error:
        raise compilation_error(f"syntax error: {error}") from error
    statements: list[str] = []
    start, is_empty = 0, True
    for token in tokens:
        if token.token_type != TokenType.SEMICOLON:
            is_empty = False
            continue
        if not is_empty:
            statements.append(text[start : token.start].strip())
        start, is_empty = token.end + 1, True
    if not is_empty:
        statements.append(text[start:].strip())
    return statements


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

"""Names of result columns: an expression without alias is named by its text."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import Token, TokenType, exp

_WRITTEN = "written"
_OPENING = frozenset({TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE})
_CLOSING = frozenset({TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE})
_ENDS = frozenset(
    {TokenType.FROM, TokenType.WHERE, TokenType.GROUP_BY, TokenType.ORDER_BY, TokenType.HAVING,
     TokenType.QUALIFY, TokenType.LIMIT, TokenType.OFFSET, TokenType.FETCH, TokenType.INTO, TokenType.UNION,
     TokenType.EXCEPT, TokenType.INTERSECT, TokenType.SEMICOLON}
)  # fmt: skip


def note_written(tree: exp.Expr, tokens: Sequence[Token], text: str) -> None:
    """Keep the text of each projection of a query beside its expression.

    A query whose list cannot be told apart token by token keeps none; its columns are then named by what
    :func:`written` makes of the expression.
    """
    select = tree
    while isinstance(select, exp.SetOperation):
        select = select.this
    if not isinstance(select, exp.Select):
        return
    found = _projections(tokens, text)
    if len(found) == len(select.expressions):
        for projection, part in zip(select.expressions, found, strict=True):
            projection.meta[_WRITTEN] = part


def written(projection: exp.Expr) -> str:
    """Return the name of a projection without alias: its text in upper case."""
    return str(projection.meta.get(_WRITTEN) or projection.sql(dialect="snowflake")).upper()


def _projections(tokens: Sequence[Token], text: str) -> list[str]:
    """Return the texts between the first SELECT outside of parentheses and its FROM."""
    depth, start, parts = 0, -1, []
    for token in tokens:
        if token.token_type in _OPENING:
            depth += 1
        elif token.token_type in _CLOSING:
            depth -= 1
        if depth:
            continue
        if start < 0:
            if token.token_type == TokenType.SELECT:
                start = token.end + 1
        elif token.token_type in {TokenType.DISTINCT, TokenType.ALL}:
            start = token.end + 1
        elif token.token_type == TokenType.COMMA:
            parts.append(text[start : token.start].strip())
            start = token.end + 1
        elif token.token_type in _ENDS:
            return [*parts, text[start : token.start].strip()]
    return [*parts, text[start:].strip()] if start >= 0 else []

"""Heads and property lists of owned statements: ``CREATE kind name A = 'x' B = TRUE``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import Token, TokenType, exp

from airflow_provider_snowpipe.local.errors import SqlError, compilation_error
from airflow_provider_snowpipe.local.identifiers import read_path

# -- Names of columns: an expression without alias is named by its text; lists of names ------------------

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


def read_list(text: str) -> list[str]:
    """Read names separated by commas.

    :raises SqlError: for anything else.
    """
    found: list[str] = []
    rest = text
    while True:
        path, rest = read_path(rest)
        found.append(path[-1])
        if not rest:
            return found
        if not rest.startswith(","):
            raise compilation_error(f"syntax error: unexpected '{rest[:30]}'.")
        rest = rest[1:]


# -- Heads and property lists of owned statements: ``CREATE kind name A = 'x' B = TRUE`` -----------------

_PROPERTY = re.compile(
    r"\s*(?P<name>\w+)\s*=\s*(?P<value>'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|\([^()]*\)|\$\$.*?\$\$|[\w.$+-]+)\s*,?",
    re.DOTALL,
)
_TEXT = re.compile(r"'((?:[^']|'')*)'")


@dataclass(frozen=True, slots=True)
class Head:
    """Start of a CREATE, ALTER, DROP or DESCRIBE statement.

    :param replace: OR REPLACE was said.
    :param tolerant: IF EXISTS or IF NOT EXISTS was said.
    :param path: name of the object.
    :param rest: the text behind the name.
    """

    replace: bool
    tolerant: bool
    path: tuple[str, ...]
    rest: str

    @property
    def name(self) -> str:
        """Last part of the name."""
        return self.path[-1]


def read_head(text: str, kind: str, *, parts: int = 1) -> Head:
    """Read the start of a statement about an object.

    :param kind: for example ``ROLE`` or ``FILE FORMAT``.
    :param parts: most parts that the name may have.
    :raises SqlError: 001003 when the statement has another form.
    """
    words = r"\s+".join(kind.split())
    match = re.match(
        rf"\w+\s+(?P<replace>OR\s+REPLACE\s+)?(?:\w+\s+)??{words}\s+(?P<exists>IF\s+(?:NOT\s+)?EXISTS\s+)?(?P<rest>.*)",
        text,
        re.IGNORECASE | re.DOTALL,
    )
    if match is None:
        raise compilation_error(f"syntax error: {kind} needs a name.")
    path, rest = read_path(match["rest"])
    if len(path) > parts:
        raise compilation_error(f"'{'.'.join(path)}' has too many parts.")
    return Head(bool(match["replace"]), bool(match["exists"]), path, rest)


def read_properties(text: str) -> dict[str, str]:
    """Read ``NAME = value`` pairs; values keep their quotes or parentheses off.

    An error names the property only: the text may hold a password.

    :returns: upper-case name to value, in order.
    :raises SqlError: 001003 for anything else.
    """
    found: dict[str, str] = {}
    position, last = 0, ""
    while position < len(text.rstrip()):
        match = _PROPERTY.match(text, position)
        if match is None:
            place = f"after {last}" if last else "in the list of properties"
            raise compilation_error(f"syntax error {place}: expected NAME = value.")
        last = match["name"].upper()
        if last in found:
            raise compilation_error(f"property {last} is set twice.")
        found[last] = plain(match["value"])
        position = match.end()
    return found


def plain(value: str) -> str:
    """Return a written value without its quotes, doubled quotes undone; bare words stay as they are."""
    if value.startswith("'"):
        return value[1:-1].replace("''", "'").replace("\\n", "\n")
    if value.startswith('"'):
        return value[1:-1].replace('""', '"')
    if value.startswith("$$"):
        return value[2:-2]
    if value.startswith("("):
        inner = value[1:-1].strip()
        return ",".join(_TEXT.findall(inner)) if "'" in inner else inner
    return value


def flag(name: str, value: str) -> bool:
    """Read TRUE or FALSE.

    :raises SqlError: 001008 for another value.
    """
    if value.upper() in {"TRUE", "FALSE"}:
        return value.upper() == "TRUE"
    raise invalid(name, value, "TRUE or FALSE")


def whole(name: str, value: str) -> int:
    """Read a whole number that is not negative; NULL is 0.

    :raises SqlError: 001008 for another value.
    """
    if value.upper() == "NULL":
        return 0
    if value.isascii() and value.isdigit() and len(value) < 16:
        return int(value)
    raise invalid(name, value, "a whole number")


def invalid(name: str, value: str, expected: str) -> SqlError:
    """Return the error for a property value that its property does not take (001008)."""
    return SqlError(
        "001008",
        "22023",
        f"SQL compilation error:\ninvalid value [{value[:80]}] for parameter '{name}': expected {expected}.",
    )

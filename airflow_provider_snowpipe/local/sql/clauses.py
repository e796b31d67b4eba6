"""What a statement of a fixed form may say after its first words: the rest is refused, not skipped."""

from __future__ import annotations

import re

from airflow_provider_snowpipe.local.errors import compilation_error

_PART = r'(?:"(?:[^"]|"")+"|[\w$]+)'
_NAME = rf"{_PART}(?:\s*\.\s*{_PART})*"
_TEXT = r"'(?:[^'\\]|''|\\.)*'"
_EXISTS = r"(?:IF\s+EXISTS\s+)?"
_BLANK = re.compile(r"(?:\s+|--[^\n]*|//[^\n]*|/\*.*?\*/)+", re.DOTALL)
_KINDS = r"(?:TABLE|VIEW|SCHEMA|DATABASE|SEQUENCE|STAGE|PIPE|FILE\s+FORMAT|ROLE|USER|WAREHOUSE)"
_OTHER = r"(?!(?:LIKE|STARTS|LIMIT)\b)"
_SCOPE = (
    r"(?:IN|FOR)\s+(?:(?:ACCOUNT|SESSION)\b|(?:DATABASE|SCHEMA|TABLE|VIEW|PIPE|USER|WAREHOUSE|TASK)\b"
    rf"(?:\s+{_OTHER}{_NAME})?|{_OTHER}{_NAME})"
)
_NARROWING = (rf"LIKE\s+{_TEXT}", rf"STARTS\s+WITH\s+{_TEXT}", rf"LIMIT\s+(?:\d+|NULL)(?:\s+FROM\s+{_TEXT})?")
_OWNED = r"(?:TABLE|VIEW|PIPE|STAGE|FILE\s+FORMAT|SEQUENCE|SCHEMA|DATABASE|WAREHOUSE)"
_GRANTS = (
    rf"ON\s+(?:ACCOUNT|(?:{_OWNED}|USER|ROLE|INTEGRATION)\s+{_NAME})",
    rf"(?:TO|OF)\s+(?:DATABASE\s+)?(?:(?:ROLE|USER)\s+)?{_NAME}",
    rf"IN\s+(?:SCHEMA|DATABASE)\s+{_NAME}",
)

# Start of a statement, and the clauses that may follow it in any order, each once.
_FORMS: tuple[tuple[re.Pattern[str], tuple[re.Pattern[str], ...]], ...] = tuple(
    (
        re.compile(head, re.IGNORECASE | re.DOTALL),
        tuple(re.compile(clause, re.IGNORECASE | re.DOTALL) for clause in clauses),
    )
    for head, *clauses in (
        (rf"DROP\s+(?:TABLE|VIEW|SCHEMA|DATABASE)\s+{_EXISTS}{_NAME}", r"(?:CASCADE|RESTRICT)\b"),
        (rf"DROP\s+{_KINDS}\s+{_EXISTS}{_NAME}",),
        (
            rf"DESC(?:RIBE)?\s+{_KINDS}\s+{_NAME}",
            r"TYPE\s*=\s*(?:COLUMNS|STAGE)\b",
        ),
        (rf"TRUNCATE\s+(?:TABLE\s+)?(?!ERROR_TABLE\s*\(){_EXISTS}{_NAME}",),
        (rf"USE\s+(?:DATABASE|SCHEMA|ROLE|WAREHOUSE|SECONDARY\s+ROLES)\s+{_NAME}",),
        (rf"USE\s+(?!(?:DATABASE|SCHEMA|ROLE|WAREHOUSE|SECONDARY)\s){_NAME}",),
        (r"(?:COMMIT|ROLLBACK)(?:\s+WORK)?\b",),
        (rf"(?:GRANT|REVOKE)\s+ROLE\s+{_NAME}\s+(?:TO|FROM)\s+(?:ROLE|USER)\s+{_NAME}",),
        (rf"ALTER\s+(?:TABLE|STAGE|FILE\s+FORMAT)\s+{_EXISTS}{_NAME}\s+RENAME\s+TO\s+{_NAME}",),
        (rf"ALTER\s+TABLE\s+{_EXISTS}{_NAME}\s+RENAME\s+COLUMN\s+{_PART}\s+TO\s+{_PART}",),
        (rf"ALTER\s+TABLE\s+{_EXISTS}{_NAME}\s+SWAP\s+WITH\s+{_NAME}",),
        (rf"ALTER\s+WAREHOUSE\s+{_EXISTS}(?:{_NAME}\s+)?(?:SUSPEND|RESUME)\b", r"IF\s+SUSPENDED\b"),
        (rf"ALTER\s+SESSION\s+SET(?:\s+\w+\s*=\s*(?:{_TEXT}|[\w.+-]+)\s*,?)+",),
        (r"ALTER\s+SESSION\s+UNSET\s+\w+(?:\s*,\s*\w+)*",),
        (r"UNSET\s+(?:\(\s*\w+(?:\s*,\s*\w+)*\s*\)|\w+(?:\s*,\s*\w+)*)",),
        (r"SHOW\s+(?:FUTURE\s+)?GRANTS\b", *_GRANTS, *_NARROWING),
        (
            r"SHOW\s+(?:TERSE\s+)?(?:(?:USER|EXTERNAL|MATERIALIZED|DYNAMIC|ICEBERG|FILE|PRIMARY|UNIQUE|IMPORTED|"
            r"EXPORTED)\s+)?\w+",
            r"HISTORY\b",
            _SCOPE,
            *_NARROWING,
        ),
    )
)


def check(text: str) -> None:
    """Refuse words at the end of a statement that belong to nothing in it.

    :param text: a statement without its closing semicolon; one of another form is not looked at.
    :raises SqlError: 001003 that names the word and its place, as Snowflake does.
    """
    for head, clauses in _FORMS:
        start = head.match(text)
        if start is not None:
            _check_rest(text, start.end(), list(clauses))
            return


def unread(text: str, position: int) -> None:
    """Refuse what stands at a position of a statement.

    :raises SqlError: 001003, unless there are only blanks and comments.
    """
    _check_rest(text, position, [])


def _check_rest(text: str, position: int, clauses: list[re.Pattern[str]]) -> None:
    while True:
        blank = _BLANK.match(text, position)
        position = blank.end() if blank else position
        if position >= len(text):
            return
        found = next(((c, m) for c in clauses if (m := c.match(text, position))), None)
        if found is None:
            break
        clauses.remove(found[0])
        position = found[1].end()
    word = re.match(rf"{_TEXT}|{_PART}|.", text[position:], re.DOTALL)
    line = text.count("\n", 0, position) + 1
    column = position - (text.rfind("\n", 0, position) + 1)
    raise compilation_error(
        f"syntax error line {line} at position {column} unexpected '{word[0][:80] if word else ''}'."
    )

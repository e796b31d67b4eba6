"""Statements for the fuzz tests: those of all other tests, and mutations of their tokens."""

import ast
import functools
import re
from pathlib import Path

from hypothesis import strategies as st

_TESTS = Path(__file__).parents[1]
_FIRST = re.compile(
    r"\s*(?:SELECT|WITH|VALUES|INSERT|UPDATE|DELETE|MERGE|CREATE|ALTER|DROP|TRUNCATE|SHOW|DESC|DESCRIBE|USE|BEGIN|"
    r"COMMIT|ROLLBACK|COPY|PUT|GET|LIST|LS|REMOVE|RM|GRANT|REVOKE|CALL|COMMENT|EXECUTE|EXPLAIN|UNDROP|SET|UNSET)\b"
    r"(?:\s|\Z)"
)
_TOKEN = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|\$\$|\w+|\s+|::|=>|<>|.", re.DOTALL)
# What could take the service away from the other cases is not mutated.
_SPARED = re.compile(
    r"GUARD|\b(?:DATABASE|USER|ACCOUNTADMIN)\b.*\b(?:LOCAL|DEMO)\b|\bDROP\s+DATABASE\b|\bRENAME\b",
    re.I | re.S,
)
_HALF = re.compile("[\ud800-\udfff]")
_WORDS = """
    $$ :: => || -- /* */ // NULL TRUE 0 -1 1e400 '' t q id v $1 :1 ? 1.5.2 AS IN SELECT FROM WHERE TABLE
    SCHEMA DATABASE PIPE LIKE DISTINCT LATERAL read_text('/etc/passwd') duckdb_tables() _snowpipe.channels
    IDENTIFIER('t') TABLE( CAST( 'a'::DATE VARCHAR(0) NUMBER(99,99) TIMESTAMP_TZ GEOGRAPHY OBJECT LIMIT EXCEPT
    PIVOT END
"""
_POOL = (
    *"()[]{}.,;:=<>*/%+-?|&^~@$#!\\`'\"\n\x00\ud7ff\u00e9", *_WORDS.split(), '""', "9" * 50, "IF EXISTS",
    "OR REPLACE", "INTERVAL '1 day'", "ORDER BY", "GROUP BY ALL", "UNION ALL", "SAMPLE (1)",
    "AT (OFFSET => -60)", "CASE WHEN",
)  # fmt: skip


@functools.cache
def known_statements() -> tuple[str, ...]:
    """Return every statement written in the tests, in the order of their text."""
    found = set()
    for file in sorted(_TESTS.glob("**/*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and _FIRST.match(node.value):
                found.add(node.value)
    # Half of a surrogate pair is no text that JSON can carry.
    whole = {text for text in found if not _HALF.search(text)}
    return tuple(sorted(text for text in whole if not _SPARED.search(text)))


def _mutate(statement: str, changes: list[tuple[str, int, int, str]]) -> str:
    tokens = _TOKEN.findall(statement)
    for kind, one, two, word in changes:
        if not tokens:
            break
        here, there = one % len(tokens), two % len(tokens)
        match kind:
            case "drop":
                del tokens[here]
            case "twice":
                tokens.insert(here, tokens[here])
            case "swap":
                tokens[here], tokens[there] = tokens[there], tokens[here]
            case "put":
                tokens.insert(here, f" {word} ")
            case "instead":
                tokens[here] = word
            case "cut":
                del tokens[here:]
            case "nest":
                tokens[here:here] = [word * (two % 40)]
    return "".join(tokens)


_CHANGES = st.tuples(
    st.sampled_from(["drop", "twice", "swap", "put", "put", "instead", "instead", "cut", "nest"]),
    st.integers(0, 200),
    st.integers(0, 200),
    st.one_of(st.sampled_from(_POOL), st.text(max_size=5)),
)


def mutated() -> st.SearchStrategy[str]:
    """Draw a statement of the tests with one to five changes, a part of two of them, or random text."""
    known = st.sampled_from(known_statements())
    changed = st.builds(_mutate, known, st.lists(_CHANGES, min_size=1, max_size=5))
    joined = st.builds(
        lambda one, two, cut: " ".join([*one.split()[:cut], *two.split()[cut:]]),
        known,
        known,
        st.integers(1, 8),
    )
    nested = st.builds(
        lambda opened, depth, middle: f"SELECT {opened * depth}{middle}",
        st.sampled_from(["(", "[", "NOT ", "-", "1+", "CASE WHEN ", "f(", "(SELECT "]),
        st.sampled_from([30, 300, 3000]),
        st.sampled_from(["", "1", "1" + ")" * 30]),
    )
    safe = st.one_of(changed, changed, changed, joined, nested, st.text(max_size=80))
    return safe.filter(lambda text: not _SPARED.search(text))

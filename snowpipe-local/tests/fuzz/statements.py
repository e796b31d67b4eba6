"""Statements for the fuzz tests: those of all other tests, and mutations of their tokens."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

from hypothesis import strategies as st

_TESTS = Path(__file__).parents[1]
_FIRST = re.compile(
    r"\s*(?:SELECT|WITH|VALUES|INSERT|UPDATE|DELETE|MERGE|CREATE|ALTER|DROP|TRUNCATE|SHOW|DESC|DESCRIBE|USE|BEGIN|"
    r"COMMIT|ROLLBACK|COPY|PUT|GET|LIST|LS|REMOVE|RM|GRANT|REVOKE|CALL|COMMENT|EXECUTE|EXPLAIN|UNDROP|SET|UNSET)\b"
    r"(?:\s|\Z)",
)
_TOKEN = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|\$\$|\w+|\s+|::|=>|<>|.", re.DOTALL)
# What could take the service away from the other cases is not mutated.
_SPARED = re.compile(
    r"GUARD|\b(?:DATABASE|USER|ACCOUNTADMIN)\b.*\b(?:LOCAL|DEMO)\b|\bDROP\s+DATABASE\b|\bRENAME\b",
    re.I | re.S,
)
_HALF = re.compile("[\ud800-\udfff]")
_EXTRA = (
    "SELECT * FROM t",
    "SELECT id, v:a[0].b::INT FROM t WHERE name LIKE 'a%' QUALIFY row_number() OVER (ORDER BY id) = 1",
    "MERGE INTO t USING (SELECT 1 AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET name = 'x' "
    "WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)",
    "CREATE OR REPLACE TABLE q (id INT IDENTITY(1, 1), n NUMBER(10,2) DEFAULT 1 NOT NULL, "
    "s VARCHAR(3), t TIMESTAMP_NTZ)",
    "CREATE OR REPLACE PIPE p AS COPY INTO t (id) "
    "FROM (SELECT $1:a::INT FROM TABLE(DATA_SOURCE(TYPE => 'STREAMING')))",
    "SELECT f.value FROM t, LATERAL FLATTEN(input => t.v) f", "SELECT SYSTEM$PIPE_STATUS('local.public.p')",
    "SHOW CHANNELS LIKE 'a%' IN TABLE t", "SHOW TERSE TABLES LIKE 'x' IN SCHEMA local.public",
    "DESCRIBE TABLE t",
    "INSERT INTO t (id, v) SELECT 1, PARSE_JSON('{\"a\":[1,{}]}')",
    "UPDATE t SET name = id::VARCHAR WHERE id IN (1, 2)",
    "DELETE FROM t USING q WHERE t.id = q.id", "USE SCHEMA local.public",
    "ALTER SESSION SET TIMEZONE = 'UTC'",
    "SELECT * FROM ERROR_TABLE(t)", "TRUNCATE TABLE IF EXISTS q", "ALTER TABLE t SET ERROR_LOGGING = TRUE",
    "SELECT TO_TIMESTAMP('2026-01-01'), DATEADD(day, 1, CURRENT_DATE), IFF(1 = 1, 'a', NULL), "
    "ARRAY_AGG(id) FROM t",
    "WITH RECURSIVE r AS (SELECT 1 n UNION ALL SELECT n + 1 FROM r WHERE n < 3) SELECT * FROM r",
)  # fmt: skip
_POOL = (
    *"()[]{}.,;:=<>*/%+-?|&^~@$#!\\`'\"", "$$", "::", "=>", "||", "--", "/*", "*/", "//", "\n", "\x00",
    "\ud7ff", "\u00e9",
    "NULL", "TRUE", "0", "-1", "1e400", "9" * 50, "''", '""', "t", "q", "id", "v", "$1", ":1", "?", "1.5.2",
    "AS", "IN",
    "SELECT", "FROM", "WHERE", "TABLE", "SCHEMA", "DATABASE", "PIPE", "IF EXISTS", "OR REPLACE", "LIKE",
    "DISTINCT",
    "LATERAL", "read_text('/etc/passwd')", "duckdb_tables()", "_snowpipe.channels", "IDENTIFIER('t')",
    "TABLE(", "CAST(",
    "'a'::DATE", "VARCHAR(0)", "NUMBER(99,99)", "TIMESTAMP_TZ", "GEOGRAPHY", "OBJECT", "INTERVAL '1 day'",
    "LIMIT",
    "ORDER BY", "GROUP BY ALL", "UNION ALL", "EXCEPT", "PIVOT", "SAMPLE (1)", "AT (OFFSET => -60)",
    "CASE WHEN", "END",
)  # fmt: skip


@functools.cache
def known_statements() -> tuple[str, ...]:
    """Return every statement written in the tests, in the order of their text."""
    found = set(_EXTRA)
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

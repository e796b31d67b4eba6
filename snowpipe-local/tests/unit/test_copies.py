"""However often a function needs an operand, it is written once: nested calls stay short."""

from __future__ import annotations

import pytest
from snowpipe_local.sql import once, translate
from tests.unit.sql_sessions import SqlSessions

# Of a column, and the call around it: each writes the operand several times, through a macro or a template.
CALLS = (
    ("z", "ADD_MONTHS({}, 1)"), ("z", "DATEADD(HOUR, 2, {})"), ("s", "{}::TIMESTAMP_TZ::VARCHAR"),
    ("s", "{}::TIMESTAMP_NTZ::VARCHAR"), ("s", "TRY_TO_DATE({})::VARCHAR"),
    ("n", "CEIL({}, 2)"), ("n", "CBRT({})"), ("n", "WIDTH_BUCKET({}, 1, 9, 3)"), ("n", "DIV0(1, {})"),
    ("n", "ZEROIFNULL({})"), ("n", "GREATEST({}, 1)"), ("n", "({} IN (1, 2))::INT"),
    ("n", "CASE {} WHEN 1 THEN 2 WHEN 2 THEN 3 END"), ("s", "SUBSTR({}, -LENGTH('abc'))"),
    ("s", "SPLIT_PART({}, ',', 1)"),
    ("s", "LPAD('abc', LENGTH({}), 'x')"), ("s", "REGEXP_INSTR({}, '1')::VARCHAR"), ("v", "PARSE_JSON({})"),
    ("v", "AS_ARRAY({})"), ("v", "ARRAY_APPEND({}, 1)"), ("v", "OBJECT_CONSTRUCT(UPPER('a'), {})"),
)  # fmt: skip


@pytest.fixture(scope="module")
def sql(tmp_path_factory):
    sql = SqlSessions(tmp_path_factory.mktemp("copies"))
    sql.run(
        "CREATE TABLE t (s VARCHAR, n INT, z TIMESTAMP_TZ, v VARIANT)",
        "INSERT INTO t VALUES ('2024-01-31 10:00:00.000 +0200', 2, '2024-01-31 10:00 +0200', NULL)",
    )
    yield sql
    sql.close()


def nested(column: str, call: str, depth: int) -> str:
    expression = column
    for _ in range(depth):
        expression = call.format(expression)
    return expression


def sizes(sql: SqlSessions, expression: str) -> tuple[int, int, int]:
    """Return the length of the text for the engine, its words with macros, and the length of its plan."""
    tree = translate.prepare(sql.session(), translate.parse(f"SELECT {expression} FROM t"))
    text = once.to_sql(tree)
    plan = sql.session().cursor.execute(f"EXPLAIN {text}").fetchall()[0][1]
    return len(text), once.weight(tree), len("".join(plan.split()))


def test_what_the_engine_gets_grows_with_the_depth_of_calls_not_as_a_power_of_it(sql):
    sql.session().cursor.execute("SET explain_output = 'all'")
    for column, call in CALLS:
        four, eight, twelve = (sizes(sql, nested(column, call, depth)) for depth in (4, 8, 12))

        assert max(twelve[0], twelve[1] / 4) <= 12_000, call
        for before, between, after in zip(four, eight, twelve, strict=True):
            assert after - between <= 2 * max(between - before, 1000), call


def test_a_call_in_a_call_has_the_value_that_it_has_step_by_step(sql):
    for column, call in CALLS:
        step = f"SELECT {column} AS x FROM t"
        for _ in range(4):
            step = f"SELECT {call.format('x')} AS x FROM ({step})"
        assert sql.values(f"SELECT {nested(column, call, 4)} FROM t") == sql.values(step), call

"""However often a function needs an operand, it is written once: nested calls stay short."""

import pytest
from snowpipe_local.sql import once, translate
from tests.unit.sql_sessions import SqlSessions

# Of a column, and the call around it: each writes the operand several times, through a macro or a template.
CALLS = (
    ("z", "ADD_MONTHS({}, 1)"), ("s", "{}::TIMESTAMP_TZ::VARCHAR"), ("s", "TRY_TO_DATE({})::VARCHAR"),
    ("n", "CEIL({}, 2)"), ("n", "DIV0(1, {})"), ("n", "GREATEST({}, 1)"), ("n", "({} IN (1, 2))::INT"),
    ("n", "CASE {} WHEN 1 THEN 2 WHEN 2 THEN 3 END"), ("s", "SUBSTR({}, -LENGTH('abc'))"),
    ("s", "LPAD('abc', LENGTH({}), 'x')"), ("v", "PARSE_JSON({})"), ("v", "ARRAY_APPEND({}, 1)"),
    ("v", "OBJECT_CONSTRUCT(UPPER('a'), {})"),
)  # fmt: skip


@pytest.fixture(scope="module")
def sql(module_sql):
    module_sql.run(
        "CREATE TABLE t (s VARCHAR, n INT, z TIMESTAMP_TZ, v VARIANT)",
        "INSERT INTO t VALUES ('2024-01-31 10:00:00.000 +0200', 2, '2024-01-31 10:00 +0200', NULL)",
    )
    return module_sql


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


def test_what_the_engine_gets_of_nested_calls_is_short_and_has_the_value_of_the_steps(sql):
    sql.session().cursor.execute("SET explain_output = 'all'")
    for column, call in CALLS:
        text, words, plan = sizes(sql, nested(column, call, 12))
        # A function that writes its operand twice would write it 4,096 times.
        assert (text <= 12_000, words <= 60_000, plan <= 5_000) == (True,) * 3, (call, text, words, plan)
    for column, call in CALLS:
        step = f"SELECT {column} AS x FROM t"
        for _ in range(4):
            step = f"SELECT {call.format('x')} AS x FROM ({step})"
        assert sql.values(f"SELECT {nested(column, call, 4)} FROM t") == sql.values(step), call


def test_an_operand_has_a_name_beside_aggregates_and_subqueries_too(sql):
    moved = "ADD_MONTHS({}::TIMESTAMP_TZ, 1)::VARCHAR"
    later = "2024-02-29 10:00:00.000 +0200"
    for query, rows in (
        (f"SELECT {moved.format('MAX(s)')} AS x FROM t HAVING x IS NOT NULL", [(later,)]),
        (f"SELECT {moved.format('s')}, COUNT(*) FROM t GROUP BY {moved.format('s')}", [(later, 1)]),
        (f"SELECT {moved.format('s')} IN (SELECT s FROM t) FROM t", [(False,)]),
        (f"SELECT {moved.format('(SELECT s FROM t)')} BETWEEN '2024' AND (SELECT 'z')", [(True,)]),
        (f"SELECT n FROM t QUALIFY {moved.format('MIN(s) OVER ()')} = '{later}'", [(2,)]),
    ):
        assert sql.values(query) == rows, query

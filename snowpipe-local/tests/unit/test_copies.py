"""What stays short for the engine: an operand of nested calls is written once, a long list is two nodes."""

import pytest
from snowpipe_local.sql import once, translate
from tests.unit.sql_sessions import SqlSessions

MANY = 150

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
        "CREATE TABLE once (s VARCHAR, n INT, z TIMESTAMP_TZ, v VARIANT)",
        "INSERT INTO once VALUES ('2024-01-31 10:00:00.000 +0200', 2, '2024-01-31 10:00 +0200', NULL)",
        "CREATE TABLE t (id INT, n NUMBER(10, 2), f FLOAT, s VARCHAR, d DATE, tz TIMESTAMP_TZ, v VARIANT)",
        "INSERT INTO t SELECT 1, 1.00, 1.5, '1', '2024-01-01', '2024-01-01 10:00:00 +05:30', PARSE_JSON('1')"
        " UNION ALL SELECT 2, 2.50, 2.0, 'x y', '2024-02-29', '2024-01-01 04:30:00 Z', PARSE_JSON('\"x\"')"
        " UNION ALL SELECT 3, NULL, NULL, NULL, NULL, NULL, NULL",
    )
    return module_sql


def nested(column: str, call: str, depth: int) -> str:
    expression = column
    for _ in range(depth):
        expression = call.format(expression)
    return expression


def sizes(sql: SqlSessions, expression: str) -> tuple[int, int, int]:
    """Return the length of the text for the engine, its words with macros, and the length of its plan."""
    tree = translate.prepare(sql.session(), translate.parse(f"SELECT {expression} FROM once"))
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
        step = f"SELECT {column} AS x FROM once"
        for _ in range(4):
            step = f"SELECT {call.format('x')} AS x FROM ({step})"
        assert sql.values(f"SELECT {nested(column, call, 4)} FROM once") == sql.values(step), call


def test_an_operand_has_a_name_beside_aggregates_and_subqueries_too(sql):
    moved = "ADD_MONTHS({}::TIMESTAMP_TZ, 1)::VARCHAR"
    later = "2024-02-29 10:00:00.000 +0200"
    for query, rows in (
        (f"SELECT {moved.format('MAX(s)')} AS x FROM once HAVING x IS NOT NULL", [(later,)]),
        (f"SELECT {moved.format('s')}, COUNT(*) FROM once GROUP BY {moved.format('s')}", [(later, 1)]),
        (f"SELECT {moved.format('s')} IN (SELECT s FROM once) FROM once", [(False,)]),
        (f"SELECT {moved.format('(SELECT s FROM once)')} BETWEEN '2024' AND (SELECT 'z')", [(True,)]),
        (f"SELECT n FROM once QUALIFY {moved.format('MIN(s) OVER ()')} = '{later}'", [(2,)]),
    ):
        assert sql.values(query) == rows, query


def test_a_long_list_means_what_a_short_one_means_in_every_statement(sql):
    numbers, texts = "{}", "'{}'"
    for column, searched, other in [
        ("id", "2", numbers), ("id", "'2'", texts), ("n", "1", numbers), ("f", "2", numbers),
        ("s", "'x y'", "'{} a'"), ("d", "'2024-02-29'", "'1{}-01-01'"), ("v", "1", numbers),
        ("tz", "'2024-01-01 10:00:00 +0530'", "'1{}-01-01 01:00:00 +0200'"), ("v", "'x'", texts),
        ("v::VARCHAR", "'x'", texts), ("LOWER(s)", "'x y'", texts),
    ]:  # fmt: skip
        others = [other.format(number) for number in range(700, 700 + MANY)]
        for position in (0, 75, MANY) if column == "id" else (75,):
            listed = ", ".join([*others[:position], searched, *others[position:]])
            found = f"SELECT id, {column} IN ({{}}) FROM t ORDER BY 1"
            short = sql.values(found.format(f"{searched}, {others[0]}"))
            assert sql.values(found.format(listed)) == short
            assert True in {answer for _, answer in short}
    listed = ", ".join(str(number) for number in range(2, MANY))
    sql.run(f"CREATE OR REPLACE TABLE c AS SELECT id FROM t WHERE id IN ({listed})")
    sql.run(f"CREATE OR REPLACE VIEW w AS SELECT id, id IN ({listed}) AS listed FROM t")
    assert sql.values("SELECT id FROM c ORDER BY 1") == [(2,), (3,)]
    assert sql.values("SELECT listed FROM w ORDER BY id") == [(False,), (True,), (True,)]
    sql.run(f"UPDATE c SET id = 0 WHERE id IN ({listed}) AND id NOT IN ({listed.removeprefix('2, ')})")
    assert sql.values("SELECT id FROM c ORDER BY 1") == [(0,), (3,)]
    sql.run(f"MERGE INTO c USING t ON c.id = t.id AND t.id IN ({listed}) WHEN MATCHED THEN DELETE")
    assert sql.values("SELECT id FROM c") == [(0,)]
    named = sql.session()
    assert named is not None
    assert list(sql.run(f"SELECT id IN ({listed}) FROM t")[0]) == [f"ID IN ({listed})"]


def test_a_long_list_is_one_or_two_nodes_unless_another_value_is_in_it(sql):
    def nodes(*values):
        return sum(1 for _ in translate.parse(f"SELECT id FROM t WHERE s IN ({', '.join(values)})").walk())

    for value in ["{}", "'a{}'"]:
        assert nodes(*(value.format(number) for number in range(20_000))) < 20
    texts = [f"'{number}'" for number in range(MANY)]
    for value in ["'it''s'", "'back\\\\slash'", "'line\\nend'", "NULL", "-1", "1.5", "1e3", "id"]:
        assert nodes(value, *texts) > MANY
    assert sql.refused(f"SELECT id FROM t WHERE s IN ($1, {', '.join(texts)})").code

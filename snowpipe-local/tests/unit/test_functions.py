"""Snowflake's functions, VARIANT paths and table functions, as the local service answers them."""

import datetime as dt
from decimal import Decimal

import pytest
from snowpipe_local.sql import checks, front

DOCUMENT = '{"a":{"b":[1,2,{"c":"x"}]},"name":"bob","arr":[1,2,3]}'


@pytest.fixture(scope="module")
def sql(module_sql):
    module_sql.run(
        "CREATE TABLE t (id INT, v VARIANT, s VARCHAR, ts TIMESTAMP_NTZ, d DATE, n NUMBER(10,2))",
        f"INSERT INTO t SELECT 1, PARSE_JSON('{DOCUMENT}'), 'a', '2026-01-02 03:04:05'::TIMESTAMP_NTZ, "
        "'2026-01-02'::DATE, 1.5",
        "CREATE TABLE many (id INT, s VARCHAR)", "INSERT INTO many VALUES (1, 'b'), (2, 'a'), (3, NULL)",
        "CREATE TABLE list AS SELECT 1 AS first, 'a' AS left_",
    )  # fmt: skip
    return module_sql


def test_result_scan_reads_earlier_results_like_a_table(sql):
    sql.run("SHOW TABLES")
    named = 'SELECT "name" FROM TABLE(RESULT_SCAN(LAST_QUERY_ID())) WHERE "rows" = 3'
    assert sql.values(named) == [("MANY",)]
    sql.run("SELECT id, s FROM many", "SELECT 7")
    joined = (
        "SELECT r.s, m.id FROM TABLE(RESULT_SCAN(LAST_QUERY_ID(-2))) r JOIN many m ON r.id = m.id "
        "WHERE r.s IS NOT NULL ORDER BY 2"
    )
    assert sql.values(joined) == [("b", 1), ("a", 2)]
    sql.run("SELECT v, d, ts, n FROM t")
    assert sql.values("SELECT v:name::STRING, d, n FROM TABLE(RESULT_SCAN(LAST_QUERY_ID()))") == [
        ("bob", dt.date(2026, 1, 2), Decimal("1.50"))
    ]
    assert sql.refused("SELECT * FROM TABLE(RESULT_SCAN('nope'))").code == "000709"


def test_session_variables_and_execute_immediate(sql):
    sql.run("SET (lowest, word) = (2, 'a')")
    assert sql.values("SELECT id FROM many WHERE id >= $lowest AND s = $word") == [(2,)]
    assert [row["name"] for row in sql.run("SHOW VARIABLES")] == ["LOWEST", "WORD"]
    sql.run("SET of_many = 'public.many'")
    assert sql.values("SELECT COUNT(*) FROM TABLE($of_many)") == [(3,)]
    sql.run("UNSET (lowest, word, of_many)")
    assert sql.run("SHOW VARIABLES") == []
    sql.run("SET v = REPEAT('x', 256)", "UNSET v")
    assert "Its size is 258; the limit is 256" in sql.refused("SET v = REPEAT('é', 129)").message
    assert sql.values("EXECUTE IMMEDIATE $$SELECT 'it''s'$$") == [("it's",)]
    assert sql.refused("EXECUTE IMMEDIATE some_variable").code == "000002"


def test_errors_have_snowflakes_number_and_text(sql):
    for statement, code, words in [
        ("INSERT INTO w (n) VALUES (NULL)", "100072", "NULL result in a non-nullable column 'N'"),
        ("INSERT INTO w (n) VALUES ('it''s')", "100038", "Numeric value 'it's' is not recognized"),
        ("SELECT 'maybe'::BOOLEAN", "100037", "Boolean value 'maybe' is not recognized"),
        ("SELECT 'x'::DATE", "100040", "Date 'x' is not recognized"),
        ("SELECT 'x'::TIMESTAMP_NTZ", "100035", "Timestamp 'x' is not recognized"),
        ("SELECT 'x'::TIME", "100108", "Time 'x' is not recognized"),
        ("SELECT nope FROM w", "000904", "invalid identifier 'NOPE'"),
        ("SELECT n FROM w a, w b", "002028", "ambiguous column name 'N'"),
        ("SELECT n FROM w GROUP BY n + 1", "000979", "[N] is not a valid group by expression"),
        ("SELECT (SELECT column1 FROM VALUES (1), (2))", "090150", "subquery returns more than one row."),
        ("SELECT 1 UNION SELECT 1, 2", "001789", "result columns for set operator input branches"),
        ("INSERT INTO w (n) VALUES (1, 2)", "002020", "column list: expected 1 columns but 2"),
        ("INSERT INTO w (n, n) VALUES (1, 2)", "002025", "duplicate column name 'N'"),
        ("SELECT 300::TINYINT * 1e37::NUMBER(38,0)", "100046", "Number out of representable range"),
        ("SELEC 1", "001003", "SQL compilation error:\nsyntax error: unexpected 'SELEC'."),
        ("SELECT 1 +", "001003", "syntax error: an expression is missing. Line 1, Col: 10."),
    ]:
        sql.run("CREATE OR REPLACE TABLE w (n INT NOT NULL)")
        error = sql.refused(statement)
        assert (error.code, error.message.endswith(words)) == (code, True), error.message
    # "Identifier requirements": double-quoted identifiers
    sql.run('CREATE OR REPLACE TABLE cased ("a" INT, B INT)', "INSERT INTO cased VALUES (1, 2)")
    assert sql.values('SELECT "a", b, "B" FROM cased') == [(1, 2, 2)]
    for name in ("a", "A", '"A"', '"b"'):
        assert sql.refused(f"SELECT {name} FROM cased").code == "000904"


def bound(sql, statement, *values):
    bindings = {str(number): {"type": "TEXT", "value": value} for number, value in enumerate(values, 1)}
    return front.execute(sql.session(), statement, bindings).rows


def test_bound_values_are_cast_and_name_things(sql):
    for query, values, rows in [
        ("SELECT ?::VARIANT, ?::INT + 1", ("a", "2"), [('"a"', 3)]),
        ("SELECT IDENTIFIER(?) FROM IDENTIFIER(?) WHERE id = ?", ("s", "local.public.many", "2"), [("a",)]),
        ("SELECT IDENTIFIER('id') FROM many m WHERE IDENTIFIER(:2) = :1", ("a", "s"), [(2,)]),
        ("SELECT COUNT(*) FROM IDENTIFIER(?)", ('"MANY"',), [(3,)]),
        ("SELECT 'IDENTIFIER(?)', ?", ("x",), [("IDENTIFIER(?)", "x")]),
    ]:
        assert [tuple(row) for row in bound(sql, query, *values)] == rows
    sql.run("CREATE OR REPLACE TABLE named (id INT)")
    bound(sql, "INSERT INTO IDENTIFIER(?) VALUES (?)", "named", "1")
    bound(sql, "UPDATE IDENTIFIER(?) SET id = ?", "named", "2")
    assert sql.values("SELECT id FROM named") == [(2,)]


def test_too_few_and_too_many_arguments(sql):
    for call, expected, got in [
        ("NVL(1)", 2, 1), ("ARRAY_CONTAINS([1, (2), {'a': 3}])", 2, 1), ("LAG() OVER (ORDER BY 1)", 1, 0),
    ]:  # fmt: skip
        refused = sql.refused(f"SELECT 1,\n  {call}")
        written = call.partition(" OVER")[0]
        assert (refused.code, refused.sqlstate) == ("000938", "22023")
        assert refused.message == (
            "SQL compilation error: error line 2 at position 2\n"
            f"not enough arguments for function [{written}], expected {expected}, got {got}"
        )
    for call, expected, got in [
        ("CURRENT_DATE(1)", 0, 1), ("PARSE_JSON('1', 'd', 'x')", 2, 3), ("IS_ARRAY([1, 2], 3)", 1, 2),
    ]:  # fmt: skip
        refused = sql.refused(f"SELECT {call}")
        assert (refused.code, refused.sqlstate) == ("000939", "22023")
        assert refused.message == (
            "SQL compilation error: error line 1 at position 7\n"
            f"too many arguments for function [{call}] expected {expected}, got {got}"
        )


def test_functions_of_other_databases_are_unknown(sql):
    assert len(checks.FOREIGN) > 250
    codes = {name: sql.refused(f"SELECT {name}(1)").code for name in checks.FOREIGN}
    assert {name: code for name, code in codes.items() if code != "002140"} == {}
    for call in ["LIST(1)", "FIRST(1)", "STRPOS('a', 'b')", "DATE_ADD('2026-01-01', 1)", "IF(1, 2, 3)"]:
        refused = sql.refused(f"SELECT {call}")
        assert (refused.code, refused.sqlstate) == ("002140", "42601")
        assert refused.message == f"SQL compilation error:\nUnknown function {call.partition('(')[0]}"
    assert sql.values("SELECT first FROM list") == [(1,)]
    assert sql.values("SELECT left FROM (SELECT 1, 2) AS right (left, list)") == [(1,)]
    assert sql.values("WITH last (upper) AS (SELECT 5) SELECT upper FROM last") == [(5,)]
    assert sql.values("SELECT 1 WHERE 'first(' <> 'nvl(1)' AND \"UPPER\"('a') = 'A'") == [(1,)]

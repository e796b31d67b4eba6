"""Snowflake's functions, VARIANT paths and table functions, as the local service answers them."""

import datetime as dt
import hashlib
import re
from decimal import Decimal

import pytest
from snowpipe_local.sql import front

DOCUMENT = '{"a":{"b":[1,2,{"c":"x"}]},"name":"bob","arr":[1,2,3]}'


@pytest.fixture(scope="module")
def sql(module_sql):
    module_sql.run(
        "CREATE TABLE t (id INT, v VARIANT, s VARCHAR, ts TIMESTAMP_NTZ, d DATE, n NUMBER(10,2))",
        f"INSERT INTO t SELECT 1, PARSE_JSON('{DOCUMENT}'), 'a', '2026-01-02 03:04:05'::TIMESTAMP_NTZ, "
        "'2026-01-02'::DATE, 1.5",
        "CREATE TABLE many (id INT, s VARCHAR)", "INSERT INTO many VALUES (1, 'b'), (2, 'a'), (3, NULL)",
    )  # fmt: skip
    return module_sql


# SUM, AVG, MEDIAN, STDDEV, VARIANCE: usage notes
def test_aggregates_of_texts_and_of_no_rows(sql):
    text = "SELECT SUM(a), AVG(a), SUM(DISTINCT a), MEDIAN(a), STDDEV(a), VARIANCE_POP(a), MAX(a) FROM texts"
    sql.run("CREATE TABLE texts (a VARCHAR)", "INSERT INTO texts VALUES ('1.5'), ('10.5'), ('1.5'), (NULL)")
    assert sql.values(text) == [(13.5, 4.5, 12.0, 1.5, pytest.approx(5.196152), 18.0, "10.5")]
    window = "SELECT DISTINCT SUM(a) OVER (PARTITION BY a) FROM texts ORDER BY 1"
    assert sql.values(window) == [(3.0,), (10.5,), (None,)]
    # COUNT_IF: returns
    assert sql.values("SELECT COUNT_IF(id > 1), COUNT_IF(s > 'b') FROM many") == [(2, 0)]
    assert sql.values("SELECT COUNT_IF(id > 1) FROM many WHERE id > 9") == [(0,)]
    window = "SELECT DISTINCT COUNT_IF(id > 1) OVER (PARTITION BY s) FROM many ORDER BY 1"
    assert sql.values(window) == [(0,), (1,)]
    averages = "SELECT AVG(id) OVER (ORDER BY id) FROM many QUALIFY AVG(id) OVER (ORDER BY id) > 1 ORDER BY 1"
    assert [str(row[0]) for row in sql.values(averages)] == ["1.500000", "2.000000"]
    assert sql.values(f"SELECT 1{' / 1' * 30}")[0][0] == 1
    query = "SELECT RANDOM(1) FROM TABLE(GENERATOR(ROWCOUNT => 100))"
    first, again = sql.values(query), sql.values(query)
    assert first == again
    assert len(set(first)) == 100
    # ARRAY_REVERSE, ARRAY_SORT, ARRAY_REMOVE, ARRAY_REMOVE_AT, BASE64_ENCODE, MD5_NUMBER_LOWER64
    digest = hashlib.md5(b"Snowflake").hexdigest()  # noqa: S324
    query = "SELECT MD5_NUMBER_LOWER64(s), MD5_NUMBER_UPPER64(s) FROM (SELECT 'Snowflake' AS s)"
    assert sql.values(query) == [(int(digest[16:], 16), int(digest[:16], 16))]


# Data types outside of the service
def test_a_type_that_is_not_kept_is_refused(sql):
    for kind in [
        "DECFLOAT", "VECTOR(INT, 3)", "GEOMETRY", "ARRAY(INT)", "OBJECT(a INT)", "MAP(VARCHAR, INT)",
        "INTERVAL DAY",
    ]:  # fmt: skip
        for text in (
            f"SELECT NULL::{kind}", f"CREATE TABLE no (a {kind})", f"ALTER TABLE t ADD COLUMN no {kind}",
        ):  # fmt: skip
            error = sql.refused(text)
            assert error.code == "000002"
            assert kind.partition("(")[0].partition(" ")[0] in error.message


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
    sql.run("UNSET (lowest, word)")
    assert sql.run("SHOW VARIABLES") == []
    sql.run("SET v = REPEAT('x', 256)", "UNSET v")
    assert "Its size is 258; the limit is 256" in sql.refused("SET v = REPEAT('é', 129)").message
    assert sql.values("EXECUTE IMMEDIATE $$SELECT 'it''s'$$") == [("it's",)]
    assert sql.refused("EXECUTE IMMEDIATE some_variable").code == "000002"


def test_no_query_reads_files_or_the_engines_own_tables(sql, tmp_path):
    (tmp_path / "secret.csv").write_text("a\n1\n")
    for query in (
        f"SELECT * FROM read_csv('{tmp_path}/secret.csv')", f"SELECT * FROM '{tmp_path}/secret.csv'",
        f"SELECT * FROM TABLE(read_csv('{tmp_path}/secret.csv'))", "SELECT * FROM _lent_0123",
        "SELECT * FROM duckdb_tables()", 'SELECT * FROM "_snowpipe".tables',
        "SELECT * FROM IDENTIFIER('local._snowpipe.tables')",
    ):  # fmt: skip
        assert sql.refused(query).code in {"000002", "002003", "001003", "002140"}, query


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


def test_a_function_of_snowflakes_that_the_service_lacks_is_unsupported(sql):
    for call, named in [
        ("TO_XML(v)", "TO_XML"), ("COMPRESS(s, 'zlib')", "COMPRESS"), ("SHA2(s, 512)", "SHA2 of 512 bits"),
        ("ARRAYS_ZIP([1], [2])", "ARRAYS_ZIP"), ("FILTER([1, 2], x -> x > 1)", "FILTER"),
        ("BASE64_ENCODE(s, 76)", "BASE64_ENCODE"), ("ARRAY_SORT(v:arr, FALSE)", "ARRAY_SORT"),
    ]:  # fmt: skip
        refused = sql.refused(f"SELECT {call} FROM t")
        assert refused.code == "000002"
        assert named in refused.message
        assert not re.search("duckdb|transpile", refused.message, re.IGNORECASE)

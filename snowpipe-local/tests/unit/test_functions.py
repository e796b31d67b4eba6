"""Snowflake's functions, VARIANT paths and table functions, as the local service answers them."""

import datetime as dt
import hashlib
import re
from decimal import Decimal

import pytest
from snowpipe_local.errors import SqlError
from snowpipe_local.sql import front
from tests.unit.sql_sessions import SqlSessions

DOCUMENT = '{"a":{"b":[1,2,{"c":"x"}]},"name":"bob","arr":[1,2,3]}'


@pytest.fixture(scope="module")
def sql(tmp_path_factory):
    sql = SqlSessions(tmp_path_factory.mktemp("functions"))
    sql.run(
        "CREATE TABLE t (id INT, v VARIANT, s VARCHAR, ts TIMESTAMP_NTZ, d DATE, n NUMBER(10,2))",
        f"INSERT INTO t SELECT 1, PARSE_JSON('{DOCUMENT}'), 'a', '2026-01-02 03:04:05'::TIMESTAMP_NTZ, "
        "'2026-01-02'::DATE, 1.5",
        "CREATE TABLE many (id INT, s VARCHAR)", "INSERT INTO many VALUES (1, 'b'), (2, 'a'), (3, NULL)",
    )  # fmt: skip
    yield sql
    sql.close()


# SUM, AVG, MEDIAN, STDDEV, VARIANCE: usage notes
def test_aggregates_of_numbers_read_text(sql):
    text = "SELECT SUM(a), AVG(a), SUM(DISTINCT a), MEDIAN(a), STDDEV(a), VARIANCE_POP(a), MAX(a) FROM texts"
    sql.run("CREATE TABLE texts (a VARCHAR)", "INSERT INTO texts VALUES ('1.5'), ('10.5'), ('1.5'), (NULL)")
    assert sql.values(text) == [(13.5, 4.5, 12.0, 1.5, pytest.approx(5.196152), 18.0, "10.5")]
    window = "SELECT DISTINCT SUM(a) OVER (PARTITION BY a) FROM texts ORDER BY 1"
    assert sql.values(window) == [(3.0,), (10.5,), (None,)]


# COUNT_IF: returns
def test_count_if_of_no_row_that_fits_and_of_no_row_is_zero(sql):
    assert sql.values("SELECT COUNT_IF(id > 1), COUNT_IF(s > 'b') FROM many") == [(2, 0)]
    assert sql.values("SELECT COUNT_IF(id > 1) FROM many WHERE id > 9") == [(0,)]
    window = "SELECT DISTINCT COUNT_IF(id > 1) OVER (PARTITION BY s) FROM many ORDER BY 1"
    assert sql.values(window) == [(0,), (1,)]


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


def test_an_expression_has_snowflakes_value(sql):
    for expression, value in [
        ("v:a.b[0]::INT", 1), ("v:name::STRING", "bob"), ("v['name']::VARCHAR", "bob"),
        ("v:a.b[2].c::STRING", "x"), ("v:arr[0] + 1", 2.0), ("v:name = 'bob'", True),
        ("v:arr[1] > 1.5", True), ("UPPER(v:name)", "BOB"), ("v:name || '!'", "bob!"),
        ("v:name LIKE 'b%'", True), ("v:name IN ('ann', 'bob')", True),
        ("COALESCE(v:nope, v:name)::STRING", "bob"), ("v:nope", None), ("TYPEOF(v:arr)", "ARRAY"),
        ("TYPEOF(v:arr[0])", "INTEGER"), ("TYPEOF(v:name)", "VARCHAR"), ("TRY_PARSE_JSON('{')", None),
        ("PARSE_JSON('{\"k\":[1]}'):k[0]::INT", 1), ("OBJECT_CONSTRUCT('a', 1, 'b', NULL)", '{"a":1}'),
        ("OBJECT_CONSTRUCT('k', v:name):k::STRING", "bob"),
        ("{'a': 1, 'B': [1, 'x']}", '{"B":[1,"x"],"a":1}'), ("ARRAY_CONSTRUCT(1, 'x', NULL)", '[1,"x",null]'),
        ("ARRAY_SIZE(v:arr)", 3), ("ARRAY_CONTAINS(2::VARIANT, v:arr)", True),
        ("ARRAY_APPEND(ARRAY_CONSTRUCT(1), 'x')", '[1,"x"]'),
        ("ARRAY_CAT(ARRAY_CONSTRUCT(1), ARRAY_CONSTRUCT(2))", "[1,2]"),
        ("ARRAY_SLICE(ARRAY_CONSTRUCT(1, 2, 3), 0, 2)", "[1,2]"), ("ARRAY_POSITION(3::VARIANT, v:arr)", 2),
        ("ARRAY_TO_STRING(v:arr, '-')", "1-2-3"),
        ("OBJECT_INSERT(OBJECT_CONSTRUCT('a', 1), 'b', 2)", '{"a":1,"b":2}'),
        ("OBJECT_DELETE(OBJECT_CONSTRUCT('a', 1, 'b', 2), 'a')", '{"b":2}'), ("IS_OBJECT(v)", True),
        ("AS_INTEGER(v:arr[2])", 3), ("TO_TIMESTAMP('2026-01-01 00:00:00')", dt.datetime(2026, 1, 1)),
        ("TO_TIMESTAMP_NTZ(1767225600)", dt.datetime(2026, 1, 1)),
        ("TO_TIMESTAMP(1767225600000, 3)", dt.datetime(2026, 1, 1)),
        ("TO_TIMESTAMP('01/02/2026', 'MM/DD/YYYY')", dt.datetime(2026, 1, 2)),
        ("TO_TIMESTAMP_TZ('2026-01-01 02:00:00 +02:00')", dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),
        ("TO_DATE('01.02.2026', 'DD.MM.YYYY')", dt.date(2026, 2, 1)), ("TRY_TO_TIMESTAMP('x')", None),
        ("TRY_TO_DATE('x')", None), ("TIME('10:11:12')", dt.time(10, 11, 12)),
        ("TO_NUMBER('12.345', 10, 2)", Decimal("12.35")), ("TRY_TO_NUMBER('x')", None),
        ("TO_CHAR(ts, 'YYYY-MM-DD\"T\"HH24:MI:SS')", "2026-01-02T03:04:05"),
        ("TO_TIMESTAMP('2026-01-02 12:30', 'YYYY-MM-DD HH12:MI')", dt.datetime(2026, 1, 2, 0, 30)),
        ("TO_VARCHAR(ts, 'YYYY-MM-DD' || ' ' || ('HH24' || ':MI'))", "2026-01-02 03:04"),
        ("TO_CHAR(ts, CONCAT('YYYY', '-MM'))", "2026-01"), ("TO_CHAR(ts, 'YYYY'::VARCHAR)", "2026"),
        ("DATEADD(DAY, 1, d)", dt.date(2026, 1, 3)),
        ("DATEADD(HOUR, 1, ts)", dt.datetime(2026, 1, 2, 4, 4, 5)),
        ("DATEADD(DAY, 1, '2026-01-02 03:04:05')", dt.datetime(2026, 1, 3, 3, 4, 5)),
        ("DATEDIFF(DAY, d, '2026-02-01'::DATE)", 30), ("DATE_TRUNC('MONTH', d)", dt.date(2026, 1, 1)),
        ("DATE_TRUNC('HOUR', ts)", dt.datetime(2026, 1, 2, 3)), ("LAST_DAY(d)", dt.date(2026, 1, 31)),
        ("IFF(id = 1, 'one', 'other')", "one"), ("NVL(NULL, 2)", 2), ("NVL2(NULL, 1, 2)", 2),
        ("ZEROIFNULL(NULL)", 0), ("DECODE(id, 1, 'a', 'b')", "a"), ("EQUAL_NULL(NULL, NULL)", True),
        ("BOOLAND(TRUE, FALSE)", False), ("DIV0(1, 0)", 0), ("WIDTH_BUCKET(5, 0, 10, 5)", 3),
        ("SPLIT_PART('a,b', ',', 2)", "b"), ("REGEXP_SUBSTR('abc', 'b.')", "bc"),
        ("SHA2('a')", "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"),
        ("BASE64_DECODE_STRING('YQ==')", "a"), ("CURRENT_ACCOUNT()", "LOCAL"),
        ("CURRENT_SCHEMAS()", '["LOCAL.PUBLIC"]'), ("IS_ROLE_IN_SESSION('SYSADMIN')", True),
        ("CURRENT_TRANSACTION()", None),
    ]:  # fmt: skip
        assert sql.values(f"SELECT {expression} FROM t") == [(value,)]


def test_a_query_returns_snowflakes_rows(sql):
    for query, rows in [
        ("SELECT LISTAGG(s, ',') WITHIN GROUP (ORDER BY s) FROM many", [("a,b",)]),
        ("SELECT ARRAY_AGG(id) WITHIN GROUP (ORDER BY id DESC) FROM many", [("[3,2,1]",)]),
        ("SELECT OBJECT_AGG(s, id) FROM many WHERE id = 1", [('{"b":1}',)]),
        ("SELECT id FROM many QUALIFY ROW_NUMBER() OVER (ORDER BY s NULLS LAST) = 1", [(2,)]),
        ("SELECT RATIO_TO_REPORT(id) OVER () FROM many WHERE id < 2", [(1.0,)]),
        ("SELECT BITOR_AGG(id) FROM many", [(3,)]),
        ("SELECT column1, column2 FROM VALUES (1, 'x'), (2, 'y') ORDER BY 1", [(1, "x"), (2, "y")]),
        ("SELECT $2 FROM VALUES (1, 'x') AS v", [("x",)]),
        ("SELECT COUNT(*) FROM TABLE(GENERATOR(ROWCOUNT => 1000))", [(1000,)]),
        ("SELECT SEQ4() FROM TABLE(GENERATOR(ROWCOUNT => 2))", [(0,), (1,)]),
        ("SELECT value FROM TABLE(SPLIT_TO_TABLE('a,b', ',')) ORDER BY index", [("a",), ("b",)]),
        ("SELECT id FROM IDENTIFIER('local.public.t')", [(1,)]),
        (
            "SELECT f.index, f.path, f.value::INT, f.key FROM t, LATERAL FLATTEN(v:arr) f ORDER BY 1",
            [(0, "[0]", 1, None), (1, "[1]", 2, None), (2, "[2]", 3, None)],
        ),
        (
            "SELECT f.value:c::STRING FROM t, LATERAL FLATTEN(INPUT => v, PATH => 'a.b') f WHERE f.index = 2",
            [("x",)],
        ),
        (
            "SELECT f.path FROM t, TABLE(FLATTEN(v, MODE => 'OBJECT', RECURSIVE => TRUE)) f ORDER BY 1",
            [("a",), ("a.b",), ("arr",), ("name",)],
        ),
        (
            "SELECT f.path FROM t, LATERAL FLATTEN(v, PATH => 'a.b', MODE => 'ARRAY', RECURSIVE => TRUE) f "
            "ORDER BY f.path",
            [("a.b[0]",), ("a.b[1]",), ("a.b[2]",)],
        ),
        ("SELECT f.key FROM t, LATERAL FLATTEN(v:arr, MODE => 'OBJECT') f", []),
        ("SELECT f.key FROM t, LATERAL FLATTEN(v:a, MODE => 'both') f", [("b",)]),
        ('SELECT id AS "x", "x" + 1 FROM t ORDER BY "x"', [(1, 2)]),
        ("SELECT RANDOM(7) = RANDOM(7), RANDOM(7) = RANDOM(8)", [(True, False)]),
        ("SELECT key FROM TABLE(FLATTEN(PARSE_JSON('{\"k\":1}')))", [("k",)]),
        ("SELECT t.id, f.value FROM t, LATERAL FLATTEN(INPUT => v:nope, OUTER => TRUE) f", [(1, None)]),
        (
            "SELECT f.path FROM t, TABLE(FLATTEN(v:a, RECURSIVE => TRUE)) f ORDER BY 1",
            [("b",), ("b[0]",), ("b[1]",), ("b[2]",), ("b[2].c",)],
        ),
        (
            "WITH e AS (SELECT f.value AS item FROM t, LATERAL FLATTEN(v:a.b) f) "
            "SELECT item:c::STRING, item::STRING FROM e WHERE item:c = 'x'",
            [("x", '{"c":"x"}')],
        ),
    ]:
        assert sql.values(query) == rows


def test_random_with_a_seed_repeats_itself_and_differs_by_row(sql):
    query = "SELECT RANDOM(1) FROM TABLE(GENERATOR(ROWCOUNT => 100))"
    first, again = sql.values(query), sql.values(query)
    assert first == again
    assert len(set(first)) == 100


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


def test_session_variables_are_set_used_and_forgotten(sql):
    sql.run("SET (lowest, word) = (2, 'a')")
    assert sql.values("SELECT id FROM many WHERE id >= $lowest AND s = $word") == [(2,)]
    assert [row["name"] for row in sql.run("SHOW VARIABLES")] == ["LOWEST", "WORD"]
    sql.run("UNSET (lowest, word)")
    assert sql.run("SHOW VARIABLES") == []


def test_execute_immediate_runs_the_text_of_one_statement(sql):
    assert sql.values("EXECUTE IMMEDIATE $$SELECT 'it''s'$$") == [("it's",)]
    assert sql.refused("EXECUTE IMMEDIATE some_variable").code == "000002"


def test_what_is_not_known_is_refused_by_name(sql):
    for query, code in [
        ("SELECT NO_SUCH_FUNCTION(1)", "002140"), ("SELECT list_value(1, 2)", "002140"),
        ("SELECT range(1)", "002140"), ("SELECT * FROM range(3)", "002140"),
        ("SELECT STRUCT_PACK(a := 1)", "002140"), ("SELECT epoch_ms(1) FROM VALUES (1)", "002140"),
        ("SELECT strptime('2024', '%Y')", "002140"), ("SELECT SOUNDEX('a')", "000002"),
        ("SELECT OBJECT_CONSTRUCT('a', 'b', NULL)", "001003"),
        ("SELECT 1 AS t, TABLE(FLATTEN(PARSE_JSON('[1]')))", "001003"),
        ("CREATE TABLE FUNCTION f() RETURNS INT AS '1'", "000002"),
        ("SELECT TO_CHAR(1.5, '9,999.00')", "000002"), ("SELECT * FROM t AT(OFFSET => -60)", "000002"),
        ("SELECT id INTO x FROM t", "000002"),
        ("SELECT * FROM TABLE(FLATTEN(INPUT => 1, MODE => 'SOME'))", "001003"),
        ('SELECT "id" FROM t', "000904"), ('SELECT 1 FROM t WHERE "Id" = 1', "000904"),
        ("SELECT * FROM TABLE(NO_SUCH_TABLE_FUNCTION())", "000002"),
        ("SELECT * FROM TABLE(GENERATOR(ROWCOUNT => 'x'))", "000002"),
        ("SELECT * FROM TABLE(GENERATOR(ROWCOUNT => 1.5))", "000002"),
        ("BEGIN LET x := 1; RETURN x; END", "000002"), ("SELECT 'a' COLLATE 'en-ci' = 'A'", "000002"),
        ("CREATE TABLE c (a VARCHAR COLLATE 'en-ci')", "000002"), ("SELECT 1::HUGEINT", "000002"),
        ("SELECT 'a'::JSON", "000002"), ("SELECT 'a' SIMILAR TO 'b'", "000002"), ("SELECT (1, 2)", "000002"),
        ("SELECT 5 & 3", "001003"), ("SELECT COUNT(*) FILTER (WHERE id > 1) FROM t", "001003"),
        ("SELECT CURRENT_TIMESTAMP AT TIME ZONE 'UTC'", "001003"),
        ("SELECT DISTINCT ON (id) id FROM t", "001003"),
        ("SELECT id FROM t SEMI JOIN t u USING (id)", "001003"),
        ("SELECT id FROM t LIMIT 10 PERCENT", "001003"),
        ("SELECT id FROM t FETCH FIRST 1 ROWS WITH TIES", "001003"),
        ("SELECT id FROM t USING SAMPLE 10", "001003"),
        ("SELECT id FROM t EXCEPT ALL SELECT id FROM t", "001003"),
        ("SELECT id FROM t INTERSECT ALL SELECT id FROM t", "001003"),
        ("INSERT OR REPLACE INTO t (id) VALUES (1)", "001003"),
        ("INSERT INTO t (id) VALUES (1) ON CONFLICT DO NOTHING", "001003"),
        ("INSERT INTO t DEFAULT VALUES", "001003"), ("UPDATE t SET (id) = (1)", "001003"),
        ("UPDATE t SET (id, v) = (1, NULL)", "001003"),
        ("CREATE TABLE c (a INT GENERATED ALWAYS AS (b + 1), b INT)", "000002"),
        ("SELECT rowid FROM t", "000904"), ('SELECT t."rowid" FROM t', "000904"),
        ("UPDATE t SET id = 1 WHERE RowId = 0", "000904"), ("SELECT 'a' 'b'", "001003"),
        ("SELECT X'4'", "001003"), ("SELECT RANK() OVER (PARTITION BY id) FROM t", "002303"),
        ("SELECT TRY_CAST(id AS VARCHAR) FROM t", "001065"), ("SELECT GETVARIABLE('A')", "000002"),
    ]:  # fmt: skip
        assert sql.refused(query).code == code


# "String & binary data types"
def test_binary_is_written_in_hex_and_char_has_one_letter(sql):
    for expression, value in [
        ("X'41FF'::VARCHAR", "41FF"), ("TO_CHAR(X'41')", "41"), ("TO_CHAR(X'41', 'utf-8')", "A"),
        ("TO_VARCHAR(X'41', 'base64')", "QQ=="), ("(X'41' || X'42')::VARCHAR", "4142"),
        ("CAST('abc' AS CHAR)", "a"),
    ]:  # fmt: skip
        assert sql.values(f"SELECT {expression}") == [(value,)]


def test_no_query_reads_files_or_the_engines_own_tables(sql, tmp_path):
    (tmp_path / "secret.csv").write_text("a\n1\n")
    for query in (
        f"SELECT * FROM read_csv('{tmp_path}/secret.csv')", f"SELECT * FROM '{tmp_path}/secret.csv'",
        f"SELECT * FROM TABLE(read_csv('{tmp_path}/secret.csv'))", "SELECT * FROM _lent_0123",
        "SELECT * FROM duckdb_tables()", 'SELECT * FROM "_snowpipe".tables',
        "SELECT * FROM IDENTIFIER('local._snowpipe.tables')",
    ):  # fmt: skip
        assert sql.refused(query).code in {"000002", "002003", "001003", "002140"}, query


def test_a_division_by_zero_fails_instead_of_being_infinite(sql):
    for expression in ["1 / 0", "1.5 / 0", "n / (id - 1)", "1::FLOAT / 0", "MOD(5, 0)"]:
        with pytest.raises(SqlError, match="zero") as caught:
            sql.run(f"SELECT {expression} FROM t")
        assert caught.value.code == "100051"


def test_errors_have_snowflakes_number_and_text(sql):
    for statement, code, words in [
        ("INSERT INTO w (n) VALUES (NULL)", "100072", "NULL result in a non-nullable column 'N'"),
        ("INSERT INTO w (n) VALUES ('it''s')", "100038", "Numeric value 'it's' is not recognized"),
        ("SELECT 'maybe'::BOOLEAN", "100037", "Boolean value 'maybe' is not recognized"),
        ("SELECT 'x'::DOUBLE", "100038", "Numeric value 'x' is not recognized"),
        ("SELECT 'x'::DATE", "100040", "Date 'x' is not recognized"),
        ("SELECT 'x'::TIMESTAMP_NTZ", "100035", "Timestamp 'x' is not recognized"),
        ("SELECT 'x'::TIME", "100108", "Time 'x' is not recognized"),
        ("SELECT nope FROM w", "000904", "SQL compilation error:\ninvalid identifier 'NOPE'"),
        ("SELECT a.nope FROM w a", "000904", "SQL compilation error:\ninvalid identifier 'NOPE'"),
        ("SELECT nope", "000904", "SQL compilation error:\ninvalid identifier 'NOPE'"),
        ("UPDATE w SET nope = 1", "000904", "SQL compilation error:\ninvalid identifier 'NOPE'"),
        ("INSERT INTO w (nope) VALUES (1)", "000904", "SQL compilation error:\ninvalid identifier 'NOPE'"),
        ("SELECT n FROM w a, w b", "002028", "SQL compilation error:\nambiguous column name 'N'"),
        (
            "SELECT n FROM w GROUP BY n + 1", "000979",
            "SQL compilation error:\n[N] is not a valid group by expression",
        ),
        ("SELECT TRUE + 1", "001044", "SQL compilation error:\nInvalid argument types for function '+'"),
        ("SELECT x.n FROM w", "000904", "SQL compilation error:\ninvalid identifier 'X'"),
        (
            "SELECT (SELECT column1 FROM VALUES (1), (2))", "090150",
            "Single-row subquery returns more than one row.",
        ),
        (
            "SELECT 1 UNION SELECT 1, 2", "001789",
            "SQL compilation error:\ninvalid number of result columns for set operator input branches",
        ),
        (
            "INSERT INTO w (n) VALUES (1, 2)", "002020",
            "SQL compilation error:\nInsert value list does not match column list: expected 1 columns but 2",
        ),
        ("INSERT INTO w (n, n) VALUES (1, 2)", "002025", "SQL compilation error:\nduplicate column name 'N'"),
        (
            "SELECT 300::TINYINT * 1e30::NUMBER(38,0) * 1e30::NUMBER(38,0)", "100046",
            "Number out of representable range",
        ),
        ("SELECT '2020-13-01'::DATE", "100040", "Date '2020-13-01' is not recognized"),
        (
            "SELECT '2020-13-01 00:00:00'::TIMESTAMP", "100035",
            "Timestamp '2020-13-01 00:00:00' is not recognized",
        ),
        ("SELEC 1", "001003", "SQL compilation error:\nsyntax error: unexpected 'SELEC'."),
        (
            "SELECT 1 +", "001003",
            "SQL compilation error:\nsyntax error: an expression is missing. Line 1, Col: 10.",
        ),
    ]:  # fmt: skip
        sql.run("CREATE OR REPLACE TABLE w (n INT NOT NULL)")
        error = sql.refused(statement)
        assert (error.code, error.message) == (code, words)


def test_a_statement_that_is_not_supported_is_named(sql):
    for statement, feature in [
        ("create or replace stream s on table t", "CREATE STREAM"),
        ("CREATE STORAGE  INTEGRATION i TYPE = EXTERNAL_STAGE", "CREATE STORAGE INTEGRATION"),
        ("CREATE TASK t AS SELECT 1", "CREATE TASK"), ("EXPLAIN SELECT 1", "EXPLAIN"),
    ]:  # fmt: skip
        assert f"Unsupported feature '{feature}'" in sql.refused(statement).message


def test_to_timestamp_takes_columns_of_every_type(sql):
    for expression, value in [
        ("TO_TIMESTAMP('1700000000000')", dt.datetime(2023, 11, 14, 22, 13, 20)),
        ("TO_TIMESTAMP_LTZ('1700000000')", dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=dt.UTC)),
        ("TO_TIMESTAMP_NTZ(micros)", dt.datetime(2023, 11, 14, 22, 13, 20, 5)),
        ("TO_TIMESTAMP(written)", dt.datetime(2026, 1, 1, 2, 0, 0, 500000)),
        ("TO_TIMESTAMP_TZ(zoned)", dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),
        ("TO_TIMESTAMP(seconds)", dt.datetime(2023, 11, 14, 22, 13, 20)),
        ("TO_TIMESTAMP_NTZ(v:at)", dt.datetime(2026, 1, 1, 2, 0)),
        ("TO_TIMESTAMP_NTZ(v:epoch)", dt.datetime(2023, 11, 14, 22, 13, 20)),
        ("TO_TIMESTAMP_NTZ(v:none)", None),
        ("TO_TIMESTAMP_NTZ('2026-01-01'::DATE + 0)", dt.datetime(2026, 1, 1)),
        ("TRY_TO_TIMESTAMP_NTZ(bad)", None), ("TO_TIMESTAMP(NULL::VARCHAR)", None),
        ("'1700000000'::TIMESTAMP", dt.datetime(2023, 11, 14, 22, 13, 20)),
        ("'1700000000000'::TIMESTAMP_LTZ", dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=dt.UTC)),
        ("micros::TIMESTAMP_NTZ", dt.datetime(2023, 11, 14, 22, 13, 20, 5)),
        ("written::TIMESTAMP_NTZ::TIMESTAMP_NTZ", dt.datetime(2026, 1, 1, 2, 0, 0, 500000)),
        ("zoned::TIMESTAMP_TZ", dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),
        ("'2026-01-01T00:00:00 +0530'::TIMESTAMP_TZ", dt.datetime(2025, 12, 31, 18, 30, tzinfo=dt.UTC)),
        ("v:at::TIMESTAMP_NTZ", dt.datetime(2026, 1, 1, 2, 0)),
        ("TO_DATE(TO_TIMESTAMP(0))", dt.date(1970, 1, 1)), ("TO_DATE('1700000000')", dt.date(2023, 11, 14)),
    ]:  # fmt: skip
        source = (
            "SELECT '1700000000000005' micros, '2026-01-01 02:00:00.5' written, 'x' bad, 1700000000 seconds, "
            "'2026-01-01 02:00:00 +02:00' zoned, "
            """PARSE_JSON('{"at": "2026-01-01T02:00:00", "epoch": 1700000000, "none": null}') v"""
        )
        assert sql.values(f"SELECT {expression} FROM ({source})") == [(value,)]


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


def test_dml_takes_its_table_from_a_bound_value(sql):
    sql.run("CREATE OR REPLACE TABLE named (id INT)")
    bound(sql, "INSERT INTO IDENTIFIER(?) VALUES (?)", "named", "1")
    bound(sql, "UPDATE IDENTIFIER(?) SET id = ?", "named", "2")
    assert sql.values("SELECT id FROM named") == [(2,)]


def test_quotients_and_averages_have_snowflakes_scale(sql):
    for expression, value in [
        ("1 / 3", "0.333333"), ("n / 3", "1.16666667"), ("n / 0.0001", "35000.00000000"),
        ("1 / 2 / 3", "0.166666666667"), ("1 / (2 / 3)", "1.499999"), ("w / 3", "0.333333333333"),
        ("MAX(deep) / 3", "0.33333333333333"), ("SUM(id) / COUNT(*)", "1.500000"), ("AVG(id)", "1.500000"),
        ("AVG(DISTINCT n)", "4.00000000"), ("AVG(id) + AVG(n) / 2", "3.500000000000"),
        ("AVG(CASE WHEN id = 1 THEN n END)", "3.50000000"), ("MAX(AVG(n)) OVER ()", "4.00000000"),
        ("DIV0(1, 0)", "0.000000"), ("NULL / 3", None), ("1::FLOAT / 4", 0.25), ("1 / 4::FLOAT", 0.25),
        ("AVG(n::FLOAT)", 4.0), ("PARSE_JSON('3') / 4", 0.75),
    ]:  # fmt: skip
        source = (
            "SELECT i AS id, x::NUMBER(10,2) AS n, 1::NUMBER(20,10) AS w, 1::NUMBER(20,14) AS deep "
            "FROM VALUES (1, 3.5), (2, 4.5) AS v (i, x)"
        )
        rows = sql.values(f"SELECT {expression} FROM ({source}) GROUP BY ALL ORDER BY 1")
        found = rows[0][0]
        assert found == value if isinstance(value, (float, type(None))) else str(found) == value


def test_an_average_over_a_window_and_a_long_chain_of_divisions(sql):
    averages = "SELECT AVG(id) OVER (ORDER BY id) FROM many QUALIFY AVG(id) OVER (ORDER BY id) > 1 ORDER BY 1"
    assert [str(row[0]) for row in sql.values(averages)] == ["1.500000", "2.000000"]
    assert sql.values(f"SELECT 1{' / 1' * 30}")[0][0] == 1


# "Identifier requirements": double-quoted identifiers
def test_a_quoted_column_is_found_in_its_own_case_only(sql):
    sql.run('CREATE OR REPLACE TABLE cased ("a" INT, B INT)', "INSERT INTO cased VALUES (1, 2)")
    assert sql.values('SELECT "a", b, "B" FROM cased') == [(1, 2, 2)]
    for name in ("a", "A", '"A"', '"b"'):
        assert sql.refused(f"SELECT {name} FROM cased").code == "000904"


# ARRAY_REVERSE, ARRAY_SORT, ARRAY_REMOVE, ARRAY_REMOVE_AT, BASE64_ENCODE, MD5_NUMBER_LOWER64
def test_arrays_and_encodings(sql):
    for expression, value in [
        ("ARRAY_REVERSE(v:arr)", "[3,2,1]"),
        ("ARRAY_SORT(ARRAY_CONSTRUCT(10, 9, 'a', 1.5))", '[1.5,9,10,"a"]'),
        ("ARRAY_REMOVE(v:arr, 2)", "[1,3]"),
        ("ARRAY_REMOVE_AT(v:arr, 0)", "[2,3]"),
        ("ARRAY_REMOVE_AT(ARRAY_CONSTRUCT(1, 2, 3), -1)", "[1,2]"),
        ("BASE64_ENCODE('é')", "w6k="),
        ("BASE64_ENCODE(TO_BINARY('FF00'))", "/wA="),
        ("MD5_NUMBER_LOWER64('Snowflake')", int(hashlib.md5(b"Snowflake").hexdigest()[16:], 16)),  # noqa: S324
        ("MD5_NUMBER_UPPER64('Snowflake')", int(hashlib.md5(b"Snowflake").hexdigest()[:16], 16)),  # noqa: S324
    ]:
        assert sql.values(f"SELECT {expression} FROM t") == [(value,)]


def test_a_function_of_snowflakes_that_the_service_lacks_is_unsupported(sql):
    for call, named in [
        ("AS_DATE(v:a)", "AS_DATE"), ("TO_XML(v)", "TO_XML"), ("GET_IGNORE_CASE(v, 'A')", "GET_IGNORE_CASE"),
        ("APPROX_TOP_K(id)", "APPROX_TOP_K"), ("COMPRESS(s, 'zlib')", "COMPRESS"),
        ("COLLATE(s, 'en-ci')", "COLLATE"), ("SHA2(s, 512)", "SHA2 of 512 bits"), ("SOUNDEX(s)", "SOUNDEX"),
        ("ARRAYS_ZIP([1], [2])", "ARRAYS_ZIP"), ("FILTER([1, 2], x -> x > 1)", "FILTER"),
        ("BASE64_ENCODE(s, 76)", "BASE64_ENCODE"), ("ARRAY_SORT(v:arr, FALSE)", "ARRAY_SORT"),
    ]:  # fmt: skip
        refused = sql.refused(f"SELECT {call} FROM t")
        assert refused.code == "000002"
        assert named in refused.message
        assert not re.search("duckdb|transpile", refused.message, re.IGNORECASE)

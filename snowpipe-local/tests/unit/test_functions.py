"""Snowflake's functions, VARIANT paths and table functions, as the local service answers them."""

import datetime as dt
import hashlib
import re
from decimal import Decimal

import pytest
from snowpipe_local.errors import SqlError
from snowpipe_local.sql import front
from tests.unit.sql_sessions import SqlSessions, listed, pairs

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
        ("v:a.b[0]::INT", 1), ("v:name::STRING", "bob"), ("v:a.b[2].c::STRING", "x"), ("v:arr[0] + 1", 2.0),
        ("v:name = 'bob'", True), ("UPPER(v:name)", "BOB"), ("v:name LIKE 'b%'", True),
        ("COALESCE(v:nope, v:name)::STRING", "bob"), ("v:nope", None), ("TRY_PARSE_JSON('{')", None),
        ("PARSE_JSON('{\"k\":[1]}'):k[0]::INT", 1), ("OBJECT_CONSTRUCT('k', v:name):k::STRING", "bob"),
        ("{'a': 1, 'B': [1, 'x']}", '{"B":[1,"x"],"a":1}'), ("ARRAY_SIZE(v:arr)", 3),
        ("ARRAY_CONTAINS(2::VARIANT, v:arr)", True), ("ARRAY_POSITION(3::VARIANT, v:arr)", 2),
        ("IS_OBJECT(v)", True), ("AS_INTEGER(v:arr[2])", 3),
        ("TO_TIMESTAMP('01/02/2026', 'MM/DD/YYYY')", dt.datetime(2026, 1, 2)),
        ("TO_DATE('01.02.2026', 'DD.MM.YYYY')", dt.date(2026, 2, 1)),
        ("TIME('10:11:12')", dt.time(10, 11, 12)), ("TO_NUMBER('12.345', 10, 2)", Decimal("12.35")),
        ("TRY_TO_NUMBER('x')", None), ("TO_CHAR(ts, 'YYYY-MM-DD\"T\"HH24:MI:SS')", "2026-01-02T03:04:05"),
        ("TO_TIMESTAMP('2026-01-02 12:30', 'YYYY-MM-DD HH12:MI')", dt.datetime(2026, 1, 2, 0, 30)),
        ("TO_VARCHAR(ts, 'YYYY-MM-DD' || ' ' || ('HH24' || ':MI'))", "2026-01-02 03:04"),
        ("TO_CHAR(ts, 'YYYY'::VARCHAR)", "2026"), ("IFF(id = 1, 'one', 'other')", "one"), ("NVL(NULL, 2)", 2),
        ("NVL2(NULL, 1, 2)", 2), ("ZEROIFNULL(NULL)", 0), ("EQUAL_NULL(NULL, NULL)", True),
        ("BOOLAND(TRUE, FALSE)", False), ("WIDTH_BUCKET(5, 0, 10, 5)", 3),
        ("SHA2('a')", "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"),
        ("BASE64_DECODE_STRING('YQ==')", "a"), ("CURRENT_ACCOUNT()", "LOCAL"),
        ("CURRENT_SCHEMAS()", '["LOCAL.PUBLIC"]'), ("IS_ROLE_IN_SESSION('SYSADMIN')", True),
    ]:  # fmt: skip
        assert sql.values(f"SELECT {expression} FROM t") == [(value,)]


def test_a_query_returns_snowflakes_rows(sql):
    for query, rows in [
        ("SELECT LISTAGG(s, ',') WITHIN GROUP (ORDER BY s) FROM many", [("a,b",)]),
        ("SELECT ARRAY_AGG(id) WITHIN GROUP (ORDER BY id DESC) FROM many", [("[3,2,1]",)]),
        ("SELECT OBJECT_AGG(s, id) FROM many WHERE id = 1", [('{"b":1}',)]),
        ("SELECT id FROM many QUALIFY ROW_NUMBER() OVER (ORDER BY s NULLS LAST) = 1", [(2,)]),
        ("SELECT column1, column2 FROM VALUES (1, 'x'), (2, 'y') ORDER BY 1", [(1, "x"), (2, "y")]),
        ("SELECT SEQ4() FROM TABLE(GENERATOR(ROWCOUNT => 2))", [(0,), (1,)]),
        ("SELECT value FROM TABLE(SPLIT_TO_TABLE('a,b', ',')) ORDER BY index", [("a",), ("b",)]),
        (
            "SELECT f.value:c::STRING FROM t, LATERAL FLATTEN(INPUT => v, PATH => 'a.b') f WHERE f.index = 2",
            [("x",)],
        ),
        (
            "SELECT f.path FROM t, LATERAL FLATTEN(v, PATH => 'a.b', MODE => 'ARRAY', RECURSIVE => TRUE) f "
            "ORDER BY f.path",
            [("a.b[0]",), ("a.b[1]",), ("a.b[2]",)],
        ),
        ("SELECT f.key FROM t, LATERAL FLATTEN(v:arr, MODE => 'OBJECT') f", []),
        ("SELECT f.key FROM t, LATERAL FLATTEN(v:a, MODE => 'both') f", [("b",)]),
        ('SELECT id AS "x", "x" + 1 FROM t ORDER BY "x"', [(1, 2)]),
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
    sql.run("SET v = REPEAT('x', 256)", "UNSET v")
    assert "Its size is 258; the limit is 256" in sql.refused("SET v = REPEAT('é', 129)").message


def test_execute_immediate_runs_the_text_of_one_statement(sql):
    assert sql.values("EXECUTE IMMEDIATE $$SELECT 'it''s'$$") == [("it's",)]
    assert sql.refused("EXECUTE IMMEDIATE some_variable").code == "000002"


REFUSED = {
    "000002": """
SELECT SOUNDEX('a'); CREATE TABLE FUNCTION f() RETURNS INT AS '1'; SELECT TO_CHAR(1.5, '9,999.00')
SELECT * FROM t AT(OFFSET => -60); SELECT id INTO x FROM t; SELECT * FROM TABLE(NO_SUCH_TABLE_FUNCTION())
SELECT * FROM TABLE(GENERATOR(ROWCOUNT => 'x')); SELECT * FROM TABLE(GENERATOR(ROWCOUNT => 1.5))
SELECT 'a' COLLATE 'en-ci' = 'A'; CREATE TABLE c (a VARCHAR COLLATE 'en-ci'); SELECT 1::HUGEINT
SELECT 'a' SIMILAR TO 'b'; SELECT (1, 2); CREATE TABLE c (a INT GENERATED ALWAYS AS (b + 1), b INT)
SELECT GETVARIABLE('A'); BEGIN LET x := 1 END""",
    "000904": """
SELECT "id" FROM t; SELECT 1 FROM t WHERE "Id" = 1; SELECT rowid FROM t; SELECT t."rowid" FROM t
UPDATE t SET id = 1 WHERE RowId = 0""",
    "001003": """
SELECT OBJECT_CONSTRUCT('a', 'b', NULL); SELECT 1 AS t, TABLE(FLATTEN(PARSE_JSON('[1]'))); SELECT X'4'
SELECT * FROM TABLE(FLATTEN(INPUT => 1, MODE => 'SOME')); SELECT 5 & 3; SELECT 'a' 'b'
SELECT COUNT(*) FILTER (WHERE id > 1) FROM t; SELECT CURRENT_TIMESTAMP AT TIME ZONE 'UTC'
SELECT DISTINCT ON (id) id FROM t; SELECT id FROM t SEMI JOIN t u USING (id)
SELECT id FROM t LIMIT 10 PERCENT; SELECT id FROM t FETCH FIRST 1 ROWS WITH TIES
SELECT id FROM t USING SAMPLE 10; SELECT id FROM t EXCEPT ALL SELECT id FROM t
INSERT OR REPLACE INTO t (id) VALUES (1); INSERT INTO t (id) VALUES (1) ON CONFLICT DO NOTHING
INSERT INTO t DEFAULT VALUES; UPDATE t SET (id, v) = (1, NULL)""",
    "001065": "SELECT TRY_CAST(id AS VARCHAR) FROM t",
    "002140": """
SELECT NO_SUCH_FUNCTION(1); SELECT list_value(1, 2); SELECT range(1); SELECT * FROM range(3)
SELECT STRUCT_PACK(a := 1); SELECT epoch_ms(1) FROM VALUES (1); SELECT strptime('2024', '%Y')""",
    "002303": "SELECT RANK() OVER (PARTITION BY id) FROM t",
}


@pytest.mark.parametrize("code", REFUSED)
def test_what_is_not_known_is_refused_by_name(sql, code):
    assert {query: sql.refused(query).code for query in listed(REFUSED[code])} == dict.fromkeys(
        listed(REFUSED[code]), code
    )


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


def test_to_timestamp_takes_columns_of_every_type(sql):
    source = (
        "SELECT '1700000000000005' micros, '2026-01-01 02:00:00.5' written, 'x' bad, 1700000000 seconds, "
        "'2026-01-01 02:00:00 +02:00' zoned, "
        """PARSE_JSON('{"at": "2026-01-01T02:00:00", "epoch": 1700000000, "none": null}') v"""
    )
    for expression, value in pairs("""
TO_TIMESTAMP('1700000000000') -> 2023-11-14 22:13:20; TO_TIMESTAMP(seconds) -> 2023-11-14 22:13:20
TO_TIMESTAMP_LTZ('1700000000') -> 2023-11-14 22:13:20+00:00; TO_TIMESTAMP_NTZ(v:epoch) -> 2023-11-14 22:13:20
TO_TIMESTAMP_NTZ(micros) -> 2023-11-14 22:13:20.000005; TO_TIMESTAMP_NTZ(v:at) -> 2026-01-01 02:00:00
TO_TIMESTAMP(written) -> 2026-01-01 02:00:00.500000; TO_TIMESTAMP_TZ(zoned) -> 2026-01-01 02:00:00+02:00
TO_TIMESTAMP_NTZ('2026-01-01'::DATE + 0) -> 2026-01-01 00:00:00; TO_TIMESTAMP_NTZ(v:none) -> None
TRY_TO_TIMESTAMP_NTZ(bad) -> None; TO_TIMESTAMP(NULL::VARCHAR) -> None
'1700000000000'::TIMESTAMP_LTZ -> 2023-11-14 22:13:20+00:00; zoned::TIMESTAMP_TZ -> 2026-01-01 02:00:00+02:00
micros::TIMESTAMP_NTZ -> 2023-11-14 22:13:20.000005; v:at::TIMESTAMP_NTZ -> 2026-01-01 02:00:00
written::TIMESTAMP_NTZ::TIMESTAMP_NTZ -> 2026-01-01 02:00:00.500000
TO_DATE(TO_TIMESTAMP(0)) -> 1970-01-01; TO_DATE('1700000000') -> 2023-11-14"""):
        [(found,)] = sql.values(f"SELECT {expression} FROM ({source})")
        assert str(found) == value, expression


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
        ("1 / 3", "0.333333"), ("n / 0.0001", "35000.00000000"), ("1 / 2 / 3", "0.166666666667"),
        ("1 / (2 / 3)", "1.499999"), ("w / 3", "0.333333333333"), ("MAX(deep) / 3", "0.33333333333333"),
        ("SUM(id) / COUNT(*)", "1.500000"), ("AVG(id) + AVG(n) / 2", "3.500000000000"),
        ("MAX(AVG(n)) OVER ()", "4.00000000"), ("DIV0(1, 0)", "0.000000"), ("NULL / 3", None),
        ("1::FLOAT / 4", 0.25), ("AVG(n::FLOAT)", 4.0), ("PARSE_JSON('3') / 4", 0.75),
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
    for expression, value in pairs("""
ARRAY_REVERSE(v:arr) -> [3,2,1]; ARRAY_SORT(ARRAY_CONSTRUCT(10, 9, 'a', 1.5)) -> [1.5,9,10,"a"]
ARRAY_REMOVE(v:arr, 2) -> [1,3]; ARRAY_REMOVE_AT(v:arr, 0) -> [2,3]; ARRAY_REMOVE_AT(v:arr, -1) -> [1,2]
BASE64_ENCODE('é') -> w6k=; BASE64_ENCODE(TO_BINARY('FF00')) -> /wA="""):
        assert sql.values(f"SELECT {expression} FROM t") == [(value,)]
    digest = hashlib.md5(b"Snowflake").hexdigest()  # noqa: S324
    numbers = (int(digest[16:], 16), int(digest[:16], 16))
    query = "SELECT MD5_NUMBER_LOWER64(s), MD5_NUMBER_UPPER64(s) FROM (SELECT 'Snowflake' AS s)"
    assert sql.values(query) == [numbers]


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

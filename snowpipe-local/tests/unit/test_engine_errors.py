"""Errors that clients read: whatever the engine beneath raises, they have Snowflake's number and words."""

import re

import duckdb
import pytest
from snowpipe_local.errors import SqlError
from snowpipe_local.sql import front
from snowpipe_local.sql.checks import translate_error
from tests.unit.sql_sessions import listed

ENGINE_WORDS = re.compile(
    r"\w+ Error:|[Dd]uck[Dd][Bb]|Candidate|LINE \d|\bMacro\b|STRUCT\(|_LITERAL|\bBLOB\b|"
    r"explicit (?:type )?cast|Did you mean|casting from|"
    r"DECIMAL\(|INT64|HUGEINT|BIGINT|lambda|\b_[a-z]+\b|[a-z]+_[a-z]+\(\)|\bSET \w+ ?="
)
# One for each error of the engine that a statement can provoke.
STATEMENTS = listed("""
SELECT FROM (SELECT 1); SELECT 'a' + 1; SELECT TRUE + 1; SELECT UPPER(1, 2); SELECT SQRT(-1); SELECT LN(0)
SELECT FACTORIAL(100); SELECT 99999999999999999999999999999999999999 * 10; SELECT 1000.5::NUMBER(4,2)
SELECT 'abc'::DATE; SELECT 'abc'::TIME; SELECT 'abc'::TIMESTAMP; SELECT 'abc'::BOOLEAN; SELECT 'xyz'::BINARY
SELECT ts::NUMBER FROM t; SELECT ok::DATE FROM t; SELECT d::BOOLEAN FROM t; SELECT d::NUMBER FROM t
SELECT b::NUMBER FROM t; SELECT 1.5::TIME; SELECT TO_TIMESTAMP(ok) FROM t; SELECT b::TIMESTAMP_TZ FROM t
SELECT PARSE_JSON('{'); SELECT PARSE_JSON('[1,'); SELECT nope FROM t; SELECT t.nope FROM t; SELECT x.id FROM t
SELECT * FROM nope; SELECT * FROM nope.nope; SELECT * FROM nope.nope.nope; SELECT id FROM t, t t2
SELECT id, COUNT(*) FROM t; SELECT id FROM t WHERE COUNT(*) > 1
SELECT id FROM t WHERE ROW_NUMBER() OVER () = 1; SELECT SUM(COUNT(*)) FROM t; SELECT id FROM t ORDER BY 5
SELECT id FROM t GROUP BY 7; SELECT id FROM t LIMIT -1; SELECT id FROM t LIMIT id
SELECT (SELECT id, s FROM t); SELECT (SELECT column1 FROM VALUES (1), (2)); SELECT 1 UNION SELECT 1, 2
SELECT d FROM t UNION SELECT 1; SELECT CASE WHEN TRUE THEN d ELSE 1 END FROM t; SELECT GREATEST(d, 1) FROM t
SELECT d > 1 FROM t; SELECT d = ok FROM t; SELECT REGEXP_LIKE('a', '('); SELECT REGEXP_REPLACE('a', '[', 'b')
SELECT REGEXP_SUBSTR('a', '(?=a)'); SELECT REGEXP_COUNT('a', '*'); SELECT SPLIT('a')
SELECT REPEAT('a', 999999999999); SELECT CHR(-1); SELECT CHR(99999999); SELECT DATEADD('nope', 1, d) FROM t
SELECT DATEDIFF('nope', d, d) FROM t; SELECT DATE_TRUNC('DAY', 'x'); SELECT TO_CHAR(ok, 'YYYY') FROM t
SELECT TO_DATE('2026', 'QQQ'); SELECT TO_TIMESTAMP('x', 'YYYY'); SELECT TO_NUMBER('1', 99, 2)
SELECT TO_NUMBER('1', 5, 9); SELECT TO_BINARY('x'); SELECT TO_BINARY('x', 'BASE64')
SELECT CONVERT_TIMEZONE('Nowhere', ts) FROM t; SELECT TRY_CAST(id AS DATE) FROM t; SELECT ARRAY_CONTAINS(1, 2)
SELECT OBJECT_KEYS('x'); SELECT f.nope FROM t, LATERAL FLATTEN(v) f; SELECT LAG(id) FROM t
SELECT SUM(id) OVER (PARTITION BY id ROWS BETWEEN 1 FOLLOWING AND 1 PRECEDING) FROM t
SELECT NTILE(0) OVER (ORDER BY id) FROM t; SELECT PERCENTILE_CONT(5) WITHIN GROUP (ORDER BY id) FROM t
SELECT APPROX_PERCENTILE(id, 5) FROM t; SELECT COUNT(DISTINCT *) FROM t; SELECT BITSHIFTLEFT(1, 1000)
SELECT 1 / 0; INSERT INTO t (id) VALUES (1); INSERT INTO t (id, ok) VALUES (1)
INSERT INTO t (id, id, ok) VALUES (1, 1, TRUE); INSERT INTO t VALUES (1)
INSERT INTO t (n, ok) VALUES (99999, TRUE); INSERT INTO t (b, ok) SELECT id, ok FROM t
INSERT INTO t (v, ok) VALUES ('{', TRUE); INSERT INTO t (id, ok) SELECT id FROM t; UPDATE t SET nope = 1
MERGE INTO t USING (SELECT 1 AS id UNION ALL SELECT 1) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET n = 2
WITH a AS (SELECT 1), a AS (SELECT 2) SELECT * FROM a; SELECT * FROM (SELECT 1) AS a (x, y)
SELECT * FROM t JOIN t t2 USING (nope); SELECT * FROM t, t; SELECT * EXCLUDE (nope) FROM t
SELECT * REPLACE (1 AS nope) FROM t; SELECT id FROM t QUALIFY 1; SELECT * FROM t SAMPLE (200)
SELECT * FROM t SAMPLE (-1); SELECT * FROM VALUES (1, 2), (1); SELECT $1; SELECT $nope
SELECT 'a' COLLATE nope; SELECT 1::NOPE; SELECT CAST(1 AS VARCHAR(-1)); SELECT POSITION('a')
SELECT STRUCT_PACK(1); SELECT LIST_VALUE(1) + 1; SELECT GROUPING(id) FROM t
SELECT id FROM t UNION SELECT id FROM t ORDER BY s; SELECT TO_DATE(s, s) FROM t""")


@pytest.fixture(scope="module")
def sql(module_sql):
    module_sql.run(
        "CREATE TABLE t (id INT, s VARCHAR(5), v VARIANT, d DATE, ts TIMESTAMP_NTZ, tz TIMESTAMP_TZ, "
        "b BINARY, f FLOAT, n NUMBER(5,2), ok BOOLEAN NOT NULL)",
        "INSERT INTO t SELECT 1, 'a', PARSE_JSON('{\"a\":1}'), '2026-01-01', '2026-01-01', "
        "'2026-01-01', TO_BINARY('ff'), 1.5, 1.5, TRUE",
    )
    return module_sql


def error_of(sql, statement):
    try:
        sql.run("BEGIN", statement)
    except SqlError as error:
        return error
    finally:
        sql.run("ROLLBACK")
    return None


def test_no_error_names_the_engine(sql, caplog):
    errors = [error for error in (error_of(sql, statement) for statement in STATEMENTS) if error is not None]
    for error in errors:
        assert re.fullmatch(r"\d{6}", error.code)
        assert error.code != "000603", error.message
        assert ENGINE_WORDS.search(error.message) is None, error.message
    # The table knows every one of them.
    assert "no words of its own" not in caplog.text
    assert sum(isinstance(error.__cause__, duckdb.Error) for error in errors) > 87
    assert translate_error(duckdb.InterruptException("INTERRUPT Error: Interrupted!")).code == "000604"
    assert not caplog.records


def test_a_bound_value_as_a_key_is_refused(sql):
    for statement, clause in [
        ("SELECT id FROM t ORDER BY ?", "ORDER BY"),
        ("SELECT id FROM t UNION SELECT 2 ORDER BY :1 DESC", "ORDER BY"),
        ("SELECT COUNT(*) FROM t GROUP BY ?", "GROUP BY"),
    ]:
        with pytest.raises(SqlError) as error:
            front.execute(sql.session(), statement, {"1": {"type": "FIXED", "value": "1"}})
        words = f"Unsupported feature 'a bound value as a key of {clause}' in the local Snowpipe service."
        assert (error.value.code, error.value.sqlstate, error.value.message) == ("000002", "0A000", words)


def test_an_error_that_the_table_does_not_know_keeps_its_text_in_the_log(caplog):
    for error, code in [
        (duckdb.BinderException, "000904"), (duckdb.CatalogException, "002003"),
        (duckdb.ConversionException, "100038"), (duckdb.InvalidInputException, "100069"),
        (duckdb.NotImplementedException, "000002"), (duckdb.InternalException, "000603"),
    ]:  # fmt: skip
        translated = translate_error(error("Binder Error: strange text of duckdb\n\nLINE 1: SELECT"))
        assert translated.code == code
        assert "strange" not in translated.message
        assert "strange" in caplog.text

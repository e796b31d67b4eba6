"""Errors that clients read: whatever the engine beneath raises, they have Snowflake's number and words."""

import re

import duckdb
import pytest
from snowpipe_local.errors import SqlError
from snowpipe_local.sql import front
from snowpipe_local.sql.checks import translate_error
from tests.unit.sql_sessions import SqlSessions

ENGINE_WORDS = re.compile(
    r"\w+ Error:|[Dd]uck[Dd][Bb]|Candidate|LINE \d|\bMacro\b|STRUCT\(|_LITERAL|\bBLOB\b|"
    r"explicit (?:type )?cast|Did you mean|casting from|"
    r"DECIMAL\(|INT64|HUGEINT|BIGINT|lambda|\b_[a-z]+\b|[a-z]+_[a-z]+\(\)|\bSET \w+ ?=",
)
# Every kind of failure that a statement can provoke in the engine.
STATEMENTS = """
SELECT FROM (SELECT 1)
SELECT 'a' + 1
SELECT TRUE + 1
SELECT d + ts FROM t
SELECT SUM(s) FROM t
SELECT SUM(ok) FROM t
SELECT AVG(s) FROM t
SELECT UPPER(1, 2)
SELECT ABS('x')
SELECT ABS(s) FROM t
SELECT SQRT(-1)
SELECT LN(0)
SELECT LN(-1)
SELECT POWER(10, 1000)
SELECT EXP(10000)
SELECT FACTORIAL(100)
SELECT 99999999999999999999999999999999999999 * 10
SELECT 9223372036854775807 + 9223372036854775807
SELECT SUM(99999999999999999999999999999999999999::NUMBER(38,0)) FROM t, t t2
SELECT '99999999999999999999999999999999999999'::NUMBER(38,0) * 99999999999::NUMBER(38,0)
SELECT 1e308::FLOAT * 10
SELECT 1000.5::NUMBER(4,2)
SELECT 'abc'::NUMBER
SELECT 'abc'::INT
SELECT ''::INT
SELECT '1.5.5'::FLOAT
SELECT 'abc'::DATE
SELECT 'abc'::TIME
SELECT 'abc'::TIMESTAMP
SELECT 'abc'::TIMESTAMP_TZ
SELECT 'abc'::TIMESTAMP_LTZ
SELECT 'abc'::BOOLEAN
SELECT 'xyz'::BINARY
SELECT ts::NUMBER FROM t
SELECT ok::DATE FROM t
SELECT d::BOOLEAN FROM t
SELECT d::NUMBER FROM t
SELECT b::NUMBER FROM t
SELECT 1::DATE
SELECT 1.5::TIME
SELECT TO_TIMESTAMP(ok) FROM t
SELECT ok::TIMESTAMP FROM t
SELECT b::TIMESTAMP_TZ FROM t
SELECT v::TIMESTAMP FROM t
SELECT v::INT FROM t
SELECT v::BOOLEAN FROM t
SELECT v::DATE FROM t
SELECT v:a::DATE FROM t
SELECT PARSE_JSON('{')
SELECT PARSE_JSON('[1,')
SELECT PARSE_JSON(1)
SELECT PARSE_JSON(d) FROM t
SELECT v:a.b.c + 'x' FROM t
SELECT v + v FROM t
SELECT nope FROM t
SELECT t.nope FROM t
SELECT x.id FROM t
SELECT * FROM nope
SELECT * FROM nope.nope
SELECT * FROM nope.nope.nope
SELECT id FROM t, t t2
SELECT id, COUNT(*) FROM t
SELECT id FROM t GROUP BY s
SELECT COUNT(*) FROM t HAVING id > 1
SELECT id FROM t WHERE COUNT(*) > 1
SELECT id FROM t WHERE ROW_NUMBER() OVER () = 1
SELECT SUM(COUNT(*)) FROM t
SELECT SUM(SUM(id)) FROM t
SELECT id FROM t ORDER BY 5
SELECT id FROM t GROUP BY 7
SELECT id FROM t ORDER BY nope
SELECT id FROM t LIMIT -1
SELECT id FROM t LIMIT 'x'
SELECT id FROM t LIMIT id
SELECT id FROM t OFFSET -1
SELECT (SELECT id, s FROM t)
SELECT (SELECT column1 FROM VALUES (1), (2))
SELECT id IN (SELECT id, s FROM t) FROM t
SELECT * FROM t WHERE id = (SELECT s FROM t)
SELECT 1 UNION SELECT 1, 2
SELECT 1 UNION SELECT 'a'
SELECT d FROM t UNION SELECT 1
SELECT ts FROM t UNION SELECT b FROM t
SELECT id FROM t INTERSECT SELECT v FROM t
SELECT CASE WHEN 1 THEN 2 END
SELECT CASE WHEN TRUE THEN 'a' ELSE 1 END
SELECT CASE WHEN TRUE THEN d ELSE 1 END FROM t
SELECT COALESCE(1, 'a')
SELECT COALESCE(d, 1) FROM t
SELECT IFF('a', 1, 2)
SELECT IFF(1 = 1, d, ok) FROM t
SELECT GREATEST(1, 'a')
SELECT GREATEST(d, 1) FROM t
SELECT d > 1 FROM t
SELECT d = ok FROM t
SELECT ts > id FROM t
SELECT b = 1 FROM t
SELECT b = 'x' FROM t
SELECT tz > 5 FROM t
SELECT tz + 1 FROM t
SELECT tz || 'x' FROM t
SELECT SUM(tz) FROM t
SELECT ok AND 5 FROM t
SELECT NOT 'a'
SELECT NOT d FROM t
SELECT -'a'
SELECT -d FROM t
SELECT d * 2 FROM t
SELECT s * 2 FROM t
SELECT s LIKE 1 FROM t
SELECT d LIKE '2026%' FROM t
SELECT REGEXP_LIKE('a', '(')
SELECT REGEXP_REPLACE('a', '[', 'b')
SELECT REGEXP_SUBSTR('a', '(?=a)')
SELECT REGEXP_COUNT('a', '*')
SELECT SPLIT('a')
SELECT SPLIT_PART('a', ',')
SELECT SUBSTR('abc')
SELECT SUBSTR('abc', 'x')
SELECT LEFT('abc', 'x')
SELECT LEFT(d, 2) FROM t
SELECT REPEAT('a', -1)
SELECT REPEAT('a', 999999999999)
SELECT LPAD('a', 'x', 'b')
SELECT CHR(-1)
SELECT CHR(99999999)
SELECT DATEADD('nope', 1, d) FROM t
SELECT DATEADD(DAY, 'x', d) FROM t
SELECT DATEADD(DAY, 1, 'x')
SELECT DATEADD(DAY, 1, ok) FROM t
SELECT DATEADD(DAY, 1, id) FROM t
SELECT DATEDIFF('nope', d, d) FROM t
SELECT DATEDIFF(DAY, 'x', d) FROM t
SELECT DATEDIFF(DAY, 1, 2)
SELECT DATE_TRUNC('nope', d) FROM t
SELECT DATE_TRUNC('DAY', 'x')
SELECT DATE_TRUNC('DAY', 1)
SELECT DATE_PART('nope', d) FROM t
SELECT EXTRACT(NOPE FROM d) FROM t
SELECT YEAR('x')
SELECT YEAR(1)
SELECT HOUR(d) FROM t
SELECT LAST_DAY('x')
SELECT MONTHNAME(5)
SELECT DAYNAME('x')
SELECT TO_CHAR(d, 5) FROM t
SELECT TO_CHAR(ok, 'YYYY') FROM t
SELECT TO_DATE('x', 'YYYY-MM-DD')
SELECT TO_DATE('2026', 'QQQ')
SELECT TO_TIMESTAMP('x', 'YYYY')
SELECT TO_TIME('x')
SELECT TO_NUMBER('x')
SELECT TO_NUMBER('1', 99, 2)
SELECT TO_NUMBER('1', 5, 9)
SELECT TO_DECIMAL('x', 10, 2)
SELECT TO_DOUBLE('x')
SELECT TO_BOOLEAN('x')
SELECT TO_BINARY('x')
SELECT TO_BINARY('x', 'BASE64')
SELECT BASE64_DECODE_STRING('!!')
SELECT HEX_DECODE_STRING('zz')
SELECT CONVERT_TIMEZONE('Nowhere', ts) FROM t
SELECT CONVERT_TIMEZONE('UTC', 'Nowhere', ts) FROM t
SELECT TRY_CAST(id AS DATE) FROM t
SELECT TRY_TO_NUMBER(d) FROM t
SELECT ARRAY_SIZE('x')
SELECT ARRAY_SIZE(1)
SELECT ARRAY_CONTAINS(1, 2)
SELECT ARRAY_APPEND(1, 2)
SELECT ARRAY_SLICE(ARRAY_CONSTRUCT(1), 'a', 'b')
SELECT ARRAY_TO_STRING(1, ',')
SELECT OBJECT_KEYS(1)
SELECT OBJECT_KEYS('x')
SELECT OBJECT_INSERT(1, 2, 3)
SELECT GET(v, 'a', 'b') FROM t
SELECT GET_PATH(v, 1) FROM t
SELECT v[id] FROM t
SELECT * FROM TABLE(FLATTEN(1))
SELECT * FROM TABLE(FLATTEN('x'))
SELECT * FROM TABLE(FLATTEN(INPUT => d)) , t
SELECT f.nope FROM t, LATERAL FLATTEN(v) f
SELECT LAG(id) FROM t
SELECT ROW_NUMBER() FROM t
SELECT SUM(id) OVER (ORDER BY nope) FROM t
SELECT SUM(id) OVER (PARTITION BY id ROWS BETWEEN 1 FOLLOWING AND 1 PRECEDING) FROM t
SELECT NTILE(0) OVER (ORDER BY id) FROM t
SELECT LISTAGG(id, 5) FROM t
SELECT MEDIAN(s) FROM t
SELECT STDDEV(s) FROM t
SELECT CORR(s, d) FROM t
SELECT PERCENTILE_CONT(5) WITHIN GROUP (ORDER BY id) FROM t
SELECT APPROX_PERCENTILE(id, 5) FROM t
SELECT MODE(id, 2) FROM t
SELECT ANY_VALUE() FROM t
SELECT COUNT(id, s, d, 5) FROM t
SELECT COUNT(DISTINCT *) FROM t
SELECT MAX_BY(id) FROM t
SELECT BITAND('a', 1)
SELECT BITSHIFTLEFT(1, 1000)
SELECT MOD(1, 'a')
SELECT ROUND('x')
SELECT ROUND(1.5, 'x')
SELECT ROUND(d) FROM t
SELECT CEIL(d) FROM t
SELECT FLOOR('x')
SELECT TRUNC('x')
SELECT SIN('x')
SELECT LOG(0, 5)
SELECT LOG(-1, 5)
SELECT RANDOM('x')
SELECT UNIFORM(1, 'a', RANDOM())
SELECT HASH()
SELECT MD5()
SELECT MD5(d) FROM t
SELECT LENGTH(d) FROM t
SELECT LENGTH(1)
SELECT LENGTH(v) FROM t
SELECT CONCAT()
SELECT s || d FROM t
SELECT NULLIF(1, 'a')
SELECT NVL(1, 'x')
SELECT DECODE(1, 'a', 2)
SELECT ZEROIFNULL('x')
SELECT DIV0('a', 1)
SELECT WIDTH_BUCKET('a', 0, 10, 5)
SELECT 1 / 0
SELECT MOD(1, 0)
INSERT INTO t (id) VALUES (1)
INSERT INTO t (id, ok) VALUES ('x', TRUE)
INSERT INTO t (id, ok) VALUES (1, 'maybe')
INSERT INTO t (id, ok) VALUES (1)
INSERT INTO t (id, ok) VALUES (1, TRUE, 3)
INSERT INTO t (nope, ok) VALUES (1, TRUE)
INSERT INTO t (id, id, ok) VALUES (1, 1, TRUE)
INSERT INTO t VALUES (1)
INSERT INTO t (n, ok) VALUES (99999, TRUE)
INSERT INTO t (d, ok) VALUES (5, TRUE)
INSERT INTO t (d, ok) VALUES (TRUE, TRUE)
INSERT INTO t (ts, ok) VALUES (TRUE, TRUE)
INSERT INTO t (tz, ok) SELECT ok, ok FROM t
INSERT INTO t (d, ok) SELECT id, ok FROM t
INSERT INTO t (b, ok) SELECT id, ok FROM t
INSERT INTO t (b, ok) VALUES (5, TRUE)
INSERT INTO t (f, ok) VALUES ('x', TRUE)
INSERT INTO t (f, ok) SELECT d, ok FROM t
INSERT INTO t (v, ok) VALUES ('{', TRUE)
INSERT INTO t (v, ok) SELECT '{', TRUE
INSERT INTO t (id, ok) SELECT id FROM t
UPDATE t SET id = 'x'
UPDATE t SET nope = 1
UPDATE t SET ok = NULL
UPDATE t SET d = id
UPDATE t SET id = id + 'x'
UPDATE t SET n = 99999
DELETE FROM t WHERE nope = 1
DELETE FROM t WHERE id = 'x'
MERGE INTO t USING (SELECT 1 AS id UNION ALL SELECT 1) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET n = 2
MERGE INTO t USING (SELECT 1 AS id) s ON t.nope = s.id WHEN MATCHED THEN UPDATE SET n = 2
MERGE INTO t USING (SELECT 1 AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET nope = 2
WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1, 2 FROM r) SELECT * FROM r
WITH a AS (SELECT 1), a AS (SELECT 2) SELECT * FROM a
WITH a (x, y) AS (SELECT 1) SELECT * FROM a
SELECT * FROM (SELECT 1) AS a (x, y)
SELECT a.* FROM t
SELECT t.*, nope.* FROM t
SELECT * FROM t JOIN t t2 ON t.id
SELECT * FROM t JOIN t t2 USING (nope)
SELECT * FROM t NATURAL JOIN t t2
SELECT * FROM t, t
SELECT * FROM t t1 JOIN t t1 ON TRUE
SELECT * EXCLUDE (nope) FROM t
SELECT * REPLACE (1 AS nope) FROM t
SELECT * RENAME (nope AS x) FROM t
SELECT id FROM t QUALIFY 1
SELECT id FROM t PIVOT (SUM(id) FOR s IN ('a'))
SELECT * FROM t SAMPLE (200)
SELECT * FROM t SAMPLE (-1)
SELECT * FROM VALUES (1, 2), (1)
SELECT * FROM VALUES (1), ('a')
SELECT $1
SELECT :1
SELECT ?
SELECT $nope
SELECT CURRENT_DATE('x')
SELECT SEQ4('x')
SELECT INTERVAL '1 nope'
SELECT d + INTERVAL '1 nope' FROM t
SELECT 'a' COLLATE nope
SELECT 1::NOPE
SELECT 1::NUMBER(50, 2)
SELECT CAST(1 AS VARCHAR(-1))
SELECT 'x'::VARCHAR(0)
SELECT DATE_FROM_PARTS(2026, 13, 45)
SELECT DATE_FROM_PARTS('x', 1, 1)
SELECT TIME_FROM_PARTS(25, 1, 1)
SELECT TIMESTAMP_FROM_PARTS(2026, 1, 1, 25, 0, 0)
SELECT STRTOK('a', 5)
SELECT JAROWINKLER_SIMILARITY(1, 2)
SELECT EDITDISTANCE(1, 2)
SELECT TRANSLATE('a', 'b')
SELECT INITCAP(1)
SELECT STARTSWITH(1, 2)
SELECT CONTAINS(1, 2)
SELECT CHARINDEX(1, 2)
SELECT POSITION('a')
SELECT ASCII(1)
SELECT UNICODE(1)
SELECT LOWER(d) FROM t
SELECT TRIM(1)
SELECT REVERSE(1)
SELECT REPLACE(1, 2, 3)
SELECT INSERT('abc', 'x', 1, 'z')
SELECT ENCRYPT('a', 'b')
SELECT STRUCT_PACK(1)
SELECT LIST_VALUE(1) + 1
SELECT {'a': 1} + 1
SELECT [1, 2] + 1
SELECT ARRAY_CONSTRUCT(1)::INT
SELECT OBJECT_CONSTRUCT('a', 1)::DATE
SELECT OBJECT_CONSTRUCT(1, 2)
SELECT ARRAY_AGG(nope) FROM t
SELECT GROUPING(id) FROM t
SELECT GROUPING_ID(id) FROM t
SELECT id FROM t GROUP BY ALL HAVING nope
SELECT id FROM t GROUP BY CUBE (nope)
SELECT EXISTS (SELECT nope FROM t)
SELECT id FROM t WHERE id IN ('x')
SELECT id FROM t WHERE id BETWEEN 'a' AND 'b'
SELECT id FROM t WHERE d IN (1, 2)
SELECT id FROM t WHERE s
SELECT id FROM t UNION SELECT id FROM t ORDER BY s
SELECT ROUND(id, s) FROM t
SELECT TO_DATE(s, s) FROM t
SELECT id FROM t WHERE d
SELECT id FROM t WHERE 'x'
""".strip().split("\n")


@pytest.fixture(scope="module")
def sql(tmp_path_factory):
    sql = SqlSessions(tmp_path_factory.mktemp("errors"))
    sql.run(
        "CREATE TABLE t (id INT, s VARCHAR(5), v VARIANT, d DATE, ts TIMESTAMP_NTZ, tz TIMESTAMP_TZ, "
        "b BINARY, f FLOAT, n NUMBER(5,2), ok BOOLEAN NOT NULL)",
        "INSERT INTO t SELECT 1, 'a', PARSE_JSON('{\"a\":1}'), '2026-01-01', '2026-01-01', "
        "'2026-01-01', TO_BINARY('ff'), 1.5, 1.5, TRUE",
    )
    yield sql
    sql.close()


def error_of(sql, statement):
    try:
        sql.run("BEGIN", statement)
    except SqlError as error:
        return error
    finally:
        sql.run("ROLLBACK")
    return None


@pytest.mark.parametrize("statement", STATEMENTS)
def test_no_error_names_the_engine(sql, statement, caplog):
    error = error_of(sql, statement)
    if error is not None:
        assert re.fullmatch(r"\d{6}", error.code)
        assert error.code != "000603", error.message
        assert ENGINE_WORDS.search(error.message) is None, error.message
        # The table knows every one of them.
        assert "no words of its own" not in caplog.text


@pytest.mark.parametrize(
    ("statement", "code", "words"),
    [
        ("SELECT FROM", "001003", "syntax error: Expected table name at the end."),
        ("DELETE FROM WHERE", "001003", "syntax error: Expected table name at 'WHERE'."),
        ("SELECT 'abc", "001003", "syntax error: a string, a name or a comment is not closed."),
        ("SELECT TO_NUMBER('1,2', '9,9')", "000002", "Unsupported feature 'TO_NUMBER in this form'"),
        ("SELECT REGEXP_REPLACE('a', 'b', 'c', 1, 2)", "000002", "'REGEXP_REPLACE occurrence=2'"),
    ],
)
def test_what_cannot_be_read_or_written_gets_an_error_in_plain_words(sql, statement, code, words):
    error = sql.refused(statement)
    assert (error.code, words in error.message) == (code, True), error.message


@pytest.mark.parametrize(
    ("statement", "clause"),
    [
        ("SELECT id FROM t ORDER BY ?", "ORDER BY"),
        ("SELECT id FROM t UNION SELECT 2 ORDER BY :1 DESC", "ORDER BY"),
        ("SELECT COUNT(*) FROM t GROUP BY ?", "GROUP BY"),
    ],
)
def test_a_bound_value_as_a_key_is_refused_by_name(sql, statement, clause):
    with pytest.raises(SqlError) as error:
        front.execute(sql.session(), statement, {"1": {"type": "FIXED", "value": "1"}})
    words = f"Unsupported feature 'a bound value as a key of {clause}' in the local Snowpipe service."
    assert (error.value.code, error.value.sqlstate, error.value.message) == ("000002", "0A000", words)


def test_the_catalogue_provokes_errors_of_the_engine(sql):
    errors = [error_of(sql, statement) for statement in STATEMENTS[:60]]
    assert sum(isinstance(e.__cause__, duckdb.Error) for e in errors if e is not None) > 30


@pytest.mark.parametrize(
    ("statement", "at", "named"),
    [
        ('SELECT frob("T"."ID", 1) + 2', "frob", " [frob(T.ID, 1)]"),
        ("SELECT a FROM t WHERE (f(b))", "f(b", " [f(b)]"),
        ("SELECT x[1, 2], y", "x[", " [x[1, 2]]"),
        ("SELECT _ntz(a)", "_ntz", ""),
        ("SELECT json_extract(a, '$')", "json_extract", ""),
    ],
)
def test_an_expression_that_is_not_valid_is_named(statement, at, named):
    engine_error = f"Binder Error: strange\n\nLINE 1: {statement}\n{' ' * (8 + statement.index(at))}^"
    message = translate_error(duckdb.BinderException(engine_error)).message
    assert f"invalid expression{named}: " in message
    assert "strange" not in message


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (duckdb.BinderException, "000904"),
        (duckdb.CatalogException, "002003"),
        (duckdb.ConversionException, "100038"),
        (duckdb.InvalidInputException, "100069"),
        (duckdb.NotImplementedException, "000002"),
        (duckdb.InternalException, "000603"),
    ],
)
def test_an_error_that_the_table_does_not_know_keeps_its_text_in_the_log(error, code, caplog):
    translated = translate_error(error("Binder Error: strange text of duckdb\n\nLINE 1: SELECT"))
    assert translated.code == code
    assert "strange" not in translated.message
    assert "strange" in caplog.text


def test_a_statement_that_was_cancelled_is_no_error_to_be_logged(caplog):
    assert translate_error(duckdb.InterruptException("INTERRUPT Error: Interrupted!")).code == "000604"
    assert not caplog.records

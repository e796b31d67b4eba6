"""Multi-table INSERT, VALIDATE, GET_DDL and the names of system functions' columns."""

import pytest
from snowpipe_local.sql import front
from snowpipe_local.sql.results import MULTI_TABLE_INSERT
from tests.unit.sql_sessions import pairs


def values(local, statement):
    return [tuple(row.values()) for row in local.sql(statement)]


@pytest.fixture
def targets(local):
    for name in ("t1", "t2", "t3"):
        local.sql(f"CREATE TABLE {name} (n1 INT, n2 INT DEFAULT 7)")
    local.sql("CREATE TABLE src (n1 INT, n2 INT)")
    local.sql("INSERT INTO src VALUES (1, 11), (5, 55), (101, 111)")
    return local


def test_every_row_goes_into_every_table_that_its_condition_chooses(targets):
    rows = targets.sql(
        "INSERT ALL INTO t1 INTO t1 (n1, n2) VALUES (n2, n1) INTO t2 (n1, n2) VALUES (n1, DEFAULT) "
        "INTO t3 (n1) VALUES (n2 * 2) SELECT n1, n2 FROM src WHERE n1 < 100"
    )
    assert rows == [
        {
            "number of rows inserted into t1": 4, "number of rows inserted into t2": 2,
            "number of rows inserted into t3": 2,
        }
    ]  # fmt: skip
    assert values(targets, "SELECT * FROM t1 ORDER BY 1") == [(1, 11), (5, 55), (11, 1), (55, 5)]
    assert values(targets, "SELECT * FROM t2 ORDER BY 1") == [(1, 7), (5, 7)]
    assert values(targets, "SELECT * FROM t3 ORDER BY 1") == [(22, 7), (110, 7)]
    for kind, expected in [
        ("ALL", {"t1": [101], "t2": [5, 101], "t3": [1, 5, 101]}),
        ("FIRST", {"t1": [101], "t2": [5], "t3": [1, 5]}),
    ]:  # fmt: skip
        chosen = "WHEN n1 > 100 THEN INTO t1 WHEN n1 > 3 THEN INTO t2 INTO t3 ELSE INTO t3"
        targets.sql(f"INSERT OVERWRITE {kind} {chosen} SELECT * FROM src")
        for table, numbers in expected.items():
            assert values(targets, f"SELECT n1 FROM {table} ORDER BY n1") == [(n,) for n in numbers]


def test_all_tables_or_none_get_rows_of_a_query_that_runs_once(targets):
    targets.sql("CREATE TABLE strict (n1 INT NOT NULL)")
    refused = targets.refused("INSERT ALL INTO t1 INTO strict (n1) VALUES (NULL) SELECT * FROM src")
    assert refused.code == "100072"
    for statement in ("BEGIN", "INSERT ALL INTO t1 INTO t2 SELECT * FROM src", "ROLLBACK"):
        targets.sql(statement)
    assert values(targets, "SELECT count(*) FROM t1") == [(0,)]
    for statement in ["INSERT FIRST INTO t1 SELECT * FROM src", "INSERT ALL SELECT 1"]:
        assert targets.refused(statement).code == "001003"
    result = front.execute(
        targets.session,
        "INSERT ALL INTO t1 (n1) VALUES (r) INTO t2 (n1) VALUES (r) SELECT random() % 9999 + ? AS r",
        {"1": {"type": "FIXED", "value": "0"}},
    )
    assert result.statement_type == MULTI_TABLE_INSERT
    assert values(targets, "SELECT n1 FROM t1") == values(targets, "SELECT n1 FROM t2")


def test_validate_reports_all_errors_of_a_past_copy(local):
    local.sql("CREATE TABLE t (a INT)")
    local.put("a.csv", b"1\nx\n2\ny\n")
    local.put("b.csv", b"3\n")
    local.sql("COPY INTO t FROM @s ON_ERROR = CONTINUE")
    query_id = local.session.query_id
    expected = [("s/a.csv", 2, "x"), ("s/a.csv", 4, "y")]
    for job in ("_last", query_id):
        found = f"SELECT file, line, rejected_record FROM TABLE(VALIDATE(t, JOB_ID => '{job}'))"
        assert values(local, found) == expected
    count = "SELECT count(*) FROM TABLE(VALIDATE(local.public.t, job_id => '_last')) v"
    assert values(local, count) == [(2,)]
    local.put("c.csv", b"1\nx\ny\n")
    local.refused("COPY INTO t FROM @s FILES = ('c.csv')")  # which was aborted
    assert values(local, "SELECT line FROM TABLE(VALIDATE(t, JOB_ID => '_last'))") == [(2,), (3,)]


def test_validate_refuses_what_it_does_not_know(local):
    local.sql("CREATE TABLE t (a INT)")
    local.put("a.csv", b"1\n")
    for arguments in (
        "t, JOB_ID => '_last'", "t, JOB_ID => 'none'", "t", "JOB_ID => '_last'", "t, X => '_last'",
    ):  # fmt: skip
        assert local.refused(f"SELECT * FROM TABLE(VALIDATE({arguments}))").code == "001003"
    local.sql("COPY INTO t FROM (SELECT $1 FROM @s)")
    assert "transform" in local.refused("SELECT * FROM TABLE(VALIDATE(t, JOB_ID => '_last'))").message


def test_the_ddl_creates_the_same_object_again(local):
    local.sql("CREATE TABLE of_p (a INT)")
    for made, kind, name in [
        (
            "TABLE t (id INT NOT NULL COMMENT 'it''s', n VARCHAR(5) DEFAULT 'x', \"q\" FLOAT, "
            "k INT AUTOINCREMENT) CLUSTER BY (id) ERROR_LOGGING = TRUE COMMENT = 'c'", "TABLE", "t",
        ),
        ("VIEW v (a) AS SELECT 1 AS x", "VIEW", "public.v"),
        ("FILE FORMAT f TYPE = CSV FIELD_DELIMITER = '|' NULL_IF = ('', 'N')", "FILE_FORMAT", "f"),
        ("FILE FORMAT j TYPE = JSON STRIP_OUTER_ARRAY = TRUE", "file_format", "local.public.j"),
        ("SEQUENCE q START 5 INCREMENT 2", "SEQUENCE", "q"),
        ("PIPE p COMMENT = 'c' AS COPY INTO of_p FROM @s", "PIPE", "p"),
    ]:  # fmt: skip
        local.sql(f"CREATE {made}")
        ask = f"SELECT GET_DDL('{kind}', '{name}')"
        ((written,),) = values(local, ask)
        local.sql(written.rstrip(";"))
        assert values(local, ask) == [(written,)]
    text = "create or replace TABLE OF_P (\n\tA NUMBER(38,0)\n);"
    assert values(local, "SELECT GET_DDL('TABLE', 'OF_P')") == [(text,)]
    full = text.replace("TABLE OF_P", "TABLE LOCAL.PUBLIC.OF_P")
    assert values(local, "SELECT GET_DDL('TABLE', 'OF_P', TRUE)") == [(full,)]
    for arguments, code in [
        ("'STAGE', 's'", "000002"), ("'TABLE', 'none'", "002003"), ("'TABLE'", "000938"),
        ("'TABLE', 'a b'", "001003"),
    ]:  # fmt: skip
        assert local.refused(f"SELECT GET_DDL({arguments})").code == code


def test_the_ddl_of_a_schema_has_what_is_in_it(local):
    for statement in ("CREATE TABLE t (a INT)", "CREATE VIEW v AS SELECT a FROM t", "CREATE SEQUENCE q"):
        local.sql(statement)
    ((schema,),) = values(local, "SELECT GET_DDL('SCHEMA', 'public')")
    starts = [part.split(" (")[0].split(" start")[0] for part in schema.split("\n\n")]
    assert starts[:4] == [
        "create or replace schema PUBLIC;", "create or replace sequence Q", "create or replace TABLE T",
        "create or replace view V AS SELECT a FROM t;",
    ]  # fmt: skip
    assert values(local, "SELECT GET_DDL('DATABASE', 'local')")[0][0].endswith(schema)


# -- TRY_* of aggregates and window functions ("TRY_PARSE_JSON", "TRY_CAST") --------------------------


def test_what_is_tried_may_be_an_aggregate(local):
    local.sql("CREATE TABLE t AS SELECT x::VARCHAR AS x FROM VALUES (1), (2) v (x)")
    for expression, expected in pairs("""
TRY_PARSE_JSON('[' || LISTAGG(x, ',') WITHIN GROUP (ORDER BY x) || ']')[1]::INT -> 2
TRY_PARSE_JSON(LISTAGG(x, ',')) -> None; TRY_TO_BINARY(MAX(x), 'UTF-8') -> b'2'
TRY_TO_BINARY(MAX(x) || '0', 'HEX') -> b' '
TRY_TO_DATE(MAX(x) || '024-01-01') -> 2024-01-01; TRY_TO_TIMESTAMP(MAX(x) || ' nope') -> None
TRY_TO_TIME(MIN(x) || '0:00:00') -> 10:00:00; TRY_TO_NUMBER(MAX(x)) -> 2; TRY_TO_BOOLEAN(MIN(x)) -> True
TRY_CAST(MAX(x) || MIN(x) AS INT) -> 21; TRY_TO_DATE((SELECT MAX(x) FROM t) || '024-01-01') -> 2024-01-01
TRY_TO_DOUBLE(MIN(x)) -> 1.0; TRY_TO_DATE(MAX(MAX(x)) OVER () || '024-01-01') -> 2024-01-01"""):
        assert [str(one) for (one,) in values(local, f"SELECT {expression} FROM t LIMIT 1")] == [expected]


def test_clauses_that_the_engine_writes_in_another_way(local):
    for statement in (
        "CREATE TABLE l (k INT, v INT)", "INSERT INTO l VALUES (1, 5), (1, 30), (2, 20), (3, NULL)",
        "CREATE TABLE r (k INT, v INT)", "INSERT INTO r VALUES (1, 10), (2, 15)", "SET name = 'public.l'",
    ):  # fmt: skip
        local.sql(statement)
    for query, expected in (
        pairs("""
k, v FROM l ORDER BY ALL -> [(1, 5), (1, 30), (2, 20), (3, None)]
k, COUNT(*) FROM l GROUP BY ALL ORDER BY ALL DESC -> [(3, 1), (2, 1), (1, 2)]
* FROM r ORDER BY ALL DESC NULLS LAST -> [(2, 15), (1, 10)]
x FROM (WITH c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 2) SELECT x FROM c) -> [(1,), (2,)]
l.k, r.v AS w FROM l ASOF JOIN r MATCH_CONDITION (l.v >= r.v) ON l.k = r.k ORDER BY 2, 1 -> \
[(1, 10), (2, 15), (1, None), (3, None)]
a.k, b.v FROM l a ASOF JOIN r b MATCH_CONDITION (a.v <= b.v) ORDER BY 2, 1 -> \
[(1, 10), (1, None), (2, None), (3, None)]
l.k, r.v FROM l, r WHERE l.k = r.k (+) AND l.v > 5 ORDER BY l.k -> [(1, 10), (2, 15)]
a.k, b.v FROM l a, r b WHERE b.k (+) = a.k AND b.v (+) > 12 ORDER BY 2, 1 -> \
[(2, 15), (1, None), (1, None), (3, None)]
COUNT(*) FROM local..l -> [(4,)]; COUNT(*) FROM TABLE($name) -> [(4,)]; COUNT(*) FROM TABLE('l') -> [(4,)]""")
    ):
        assert (
            str([tuple(int(v) if v else v for v in one) for one in values(local, f"SELECT {query}")])
            == expected
        )


def test_forms_of_a_clause_that_are_not_known_are_named(local):
    local.sql("CREATE TABLE t (k INT, v INT)")
    for query, named in [
        ("SELECT * FROM t PIVOT (SUM(v) FOR k IN (ANY ORDER BY k))", "PIVOT"),
        ("SELECT * FROM t PIVOT (SUM(v) FOR k IN (SELECT k FROM t))", "PIVOT"),
        ("SELECT * FROM t ASOF JOIN t u MATCH_CONDITION (t.v >= u.v) USING (k)", "ASOF JOIN"),
        ("SELECT SYSTEM$WAIT(0), 1", "SYSTEM$WAIT beside"), ("SELECT SYSTEM$WAIT(0) FROM t", "SYSTEM$WAIT"),
    ]:  # fmt: skip
        error = local.refused(query)
        assert (error.code, named in error.message) == ("000002", True)
    local.sql("CREATE PIPE p AS COPY INTO t (k) FROM @s")
    call = "SELECT SYSTEM$PIPE_STATUS('p')"
    assert list(local.sql(call)[0]) == ["system$pipe_status('p')"]
    for alias in ("AS s", "s"):
        assert list(local.sql(f"{call} {alias}")[0]) == ["s"]
    assert local.refused(f"{call} AS a b").code == "001003"

"""Multi-table INSERT, VALIDATE, GET_DDL and the names of system functions' columns."""

import pytest
from snowpipe_local.sql import front
from snowpipe_local.sql.results import MULTI_TABLE_INSERT


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
    assert targets.values("SELECT * FROM t1 ORDER BY 1") == [(1, 11), (5, 55), (11, 1), (55, 5)]
    assert targets.values("SELECT * FROM t2 ORDER BY 1") == [(1, 7), (5, 7)]
    assert targets.values("SELECT * FROM t3 ORDER BY 1") == [(22, 7), (110, 7)]
    for kind, expected in [
        ("ALL", {"t1": [101], "t2": [5, 101], "t3": [1, 5, 101]}),
        ("FIRST", {"t1": [101], "t2": [5], "t3": [1, 5]}),
    ]:  # fmt: skip
        chosen = "WHEN n1 > 100 THEN INTO t1 WHEN n1 > 3 THEN INTO t2 INTO t3 ELSE INTO t3"
        targets.sql(f"INSERT OVERWRITE {kind} {chosen} SELECT * FROM src")
        for table, numbers in expected.items():
            assert targets.values(f"SELECT n1 FROM {table} ORDER BY n1") == [(n,) for n in numbers]


def test_all_tables_or_none_get_rows_of_a_query_that_runs_once(targets):
    targets.sql("CREATE TABLE strict (n1 INT NOT NULL)")
    refused = targets.refused("INSERT ALL INTO t1 INTO strict (n1) VALUES (NULL) SELECT * FROM src")
    assert refused.code == "100072"
    for statement in ("BEGIN", "INSERT ALL INTO t1 INTO t2 SELECT * FROM src", "ROLLBACK"):
        targets.sql(statement)
    assert targets.values("SELECT count(*) FROM t1") == [(0,)]
    for statement in ["INSERT FIRST INTO t1 SELECT * FROM src", "INSERT ALL SELECT 1"]:
        assert targets.refused(statement).code == "001003"
    result = front.execute(
        targets.session,
        "INSERT ALL INTO t1 (n1) VALUES (r) INTO t2 (n1) VALUES (r) SELECT random() % 9999 + ? AS r",
        {"1": {"type": "FIXED", "value": "0"}},
    )
    assert result.statement_type == MULTI_TABLE_INSERT
    assert targets.values("SELECT n1 FROM t1") == targets.values("SELECT n1 FROM t2")


def test_validate_reports_all_errors_of_a_past_copy(local):
    local.sql("CREATE TABLE t (a INT)")
    local.put("a.csv", b"1\nx\n2\ny\n")
    local.put("b.csv", b"3\n")
    local.sql("COPY INTO t FROM @s ON_ERROR = CONTINUE")
    query_id = local.session.query_id
    expected = [("s/a.csv", 2, "x"), ("s/a.csv", 4, "y")]
    for job in ("_last", query_id):
        found = f"SELECT file, line, rejected_record FROM TABLE(VALIDATE(t, JOB_ID => '{job}'))"
        assert local.values(found) == expected
    count = "SELECT count(*) FROM TABLE(VALIDATE(local.public.t, job_id => '_last')) v"
    assert local.values(count) == [(2,)]
    local.put("c.csv", b"1\nx\ny\n")
    local.refused("COPY INTO t FROM @s FILES = ('c.csv')")  # which was aborted
    assert local.values("SELECT line FROM TABLE(VALIDATE(t, JOB_ID => '_last'))") == [(2,), (3,)]


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
        ((written,),) = local.values(ask)
        local.sql(written.rstrip(";"))
        assert local.values(ask) == [(written,)]
    text = "create or replace TABLE OF_P (\n\tA NUMBER(38,0)\n);"
    assert local.values("SELECT GET_DDL('TABLE', 'OF_P')") == [(text,)]
    full = text.replace("TABLE OF_P", "TABLE LOCAL.PUBLIC.OF_P")
    assert local.values("SELECT GET_DDL('TABLE', 'OF_P', TRUE)") == [(full,)]
    for arguments, code in [
        ("'STAGE', 's'", "000002"), ("'TABLE', 'none'", "002003"), ("'TABLE'", "000938"),
        ("'TABLE', 'a b'", "001003"),
    ]:  # fmt: skip
        assert local.refused(f"SELECT GET_DDL({arguments})").code == code


def test_the_ddl_of_a_schema_has_what_is_in_it(local):
    for statement in ("CREATE TABLE t (a INT)", "CREATE VIEW v AS SELECT a FROM t", "CREATE SEQUENCE q"):
        local.sql(statement)
    ((schema,),) = local.values("SELECT GET_DDL('SCHEMA', 'public')")
    starts = [part.split(" (")[0].split(" start")[0] for part in schema.split("\n\n")]
    assert starts[:4] == [
        "create or replace schema PUBLIC;", "create or replace sequence Q", "create or replace TABLE T",
        "create or replace view V AS SELECT a FROM t;",
    ]  # fmt: skip
    assert local.values("SELECT GET_DDL('DATABASE', 'local')")[0][0].endswith(schema)


def test_a_column_of_a_system_function_has_its_call_or_alias_as_name(local):
    local.sql("CREATE TABLE t (k INT, v INT)")
    local.sql("CREATE PIPE p AS COPY INTO t (k) FROM @s")
    call = "SELECT SYSTEM$PIPE_STATUS('p')"
    assert list(local.sql(call)[0]) == ["system$pipe_status('p')"]
    for alias in ("AS s", "s"):
        assert list(local.sql(f"{call} {alias}")[0]) == ["s"]
    assert local.refused(f"{call} AS a b").code == "001003"

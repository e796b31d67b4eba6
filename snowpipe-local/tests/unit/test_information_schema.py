"""INFORMATION_SCHEMA: queried like any other tables, and showing what the roles may see only."""

import re

import pytest
from snowpipe_local.sql import front
from snowpipe_local.sql.results import DOCUMENTED


@pytest.fixture(scope="module")
def sql(module_sql):
    module_sql.run(
        "CREATE TABLE t (id INT NOT NULL, s VARCHAR(10) DEFAULT 'x', n NUMBER(10,2)) CLUSTER BY (id)",
        "INSERT INTO t (id) VALUES (1), (2)", "COMMENT ON TABLE t IS 'rows'",
        "COMMENT ON COLUMN t.n IS 'number'", "CREATE VIEW w AS SELECT id FROM t",
        "CREATE SEQUENCE sq START 3", "CREATE STAGE st", "CREATE FILE FORMAT ff TYPE = JSON",
        "CREATE PIPE p AS COPY INTO t (id) FROM "
        "(SELECT $1:id::INT FROM TABLE(DATA_SOURCE(TYPE => 'STREAMING')))",
        "CREATE DATABASE other", "CREATE TABLE elsewhere (x INT)", "USE SCHEMA local.public", "CREATE ROLE r",
        "CREATE USER ann DEFAULT_ROLE = r", "GRANT ROLE r TO USER ann",
        "GRANT USAGE ON DATABASE local TO ROLE r", "GRANT USAGE ON SCHEMA local.public TO ROLE r",
        "GRANT SELECT ON VIEW w TO ROLE r",
    )  # fmt: skip
    return module_sql


def test_views_list_their_objects_with_columns_and_types(sql):
    assert sql.values(
        "SELECT c.column_name, c.ordinal_position, c.is_nullable, c.data_type, c.character_maximum_length, "
        "c.numeric_scale, c.column_default, c.comment FROM local.information_schema.columns c "
        "JOIN information_schema.tables t USING (table_schema, table_name) "
        "WHERE t.table_name = 'T' ORDER BY c.ordinal_position"
    ) == [
        ("ID", 1, "NO", "NUMBER", None, 0, None, None), ("S", 2, "YES", "TEXT", 10, None, "'x'", None),
        ("N", 3, "YES", "NUMBER", None, 2, None, "number"),
    ]  # fmt: skip
    for query, rows in [
        ("SELECT schema_name FROM information_schema.schemata ORDER BY 1", ["INFORMATION_SCHEMA", "PUBLIC"]),
        ("SELECT database_name FROM information_schema.databases ORDER BY 1", ["LOCAL", "OTHER"]),
        ("SELECT table_name FROM other.information_schema.tables", ["ELSEWHERE"]),
        ("SELECT table_name FROM information_schema.views WHERE is_secure = 'NO'", ["W"]),
        ("SELECT pipe_name FROM information_schema.pipes WHERE definition LIKE 'COPY%'", ["P"]),
        ("SELECT stage_name FROM information_schema.stages WHERE stage_type = 'Internal Named'", ["ST"]),
        ("SELECT file_format_type FROM information_schema.file_formats", ["JSON"]),
        ("SELECT sequence_name FROM information_schema.sequences WHERE start_value = 3", ["SQ"]),
        ("SELECT grantee FROM information_schema.table_privileges WHERE privilege_type = 'SELECT'", ["R"]),
        ("SELECT MAX(role_name) FROM information_schema.enabled_roles", ["USERADMIN"]),
    ]:
        assert [row[0] for row in sql.values(query)] == rows


def test_a_role_sees_what_it_may_use_and_missing_objects_answer_as_snowflake(sql):
    for query, rows in (
        ("SELECT table_name FROM information_schema.tables", ["W"]),
        ("SELECT DISTINCT table_name FROM information_schema.columns", ["W"]),
        ("SELECT database_name FROM information_schema.databases", ["LOCAL"]),
        ("SELECT stage_name FROM information_schema.stages", []),
        ("SELECT pipe_name FROM information_schema.pipes", []),
    ):
        assert [row[0] for row in sql.values(query, "ANN")] == rows
    for unseen in ("other.information_schema.tables", "information_schema.nope"):
        assert sql.refused(f"SELECT * FROM {unseen}", "ANN").code == "002003"
    sql.run("CREATE OR REPLACE VIEW v AS SELECT COUNT(*) AS n FROM information_schema.sequences")
    assert sql.values("SELECT n FROM v") == [(1,)]
    sql.run("DROP VIEW v")
    assert sql.refused("INSERT INTO information_schema.tables VALUES (1)").code in {"000002", "002003"}
    for statement in [
        "SHOW OBJECTS IN SCHEMA missing", "SHOW TABLES IN local.missing", "SHOW VIEWS IN DATABASE missing",
        "SHOW TERSE SCHEMAS IN DATABASE missing", "SHOW USER FUNCTIONS IN SCHEMA missing.s",
        "SHOW COLUMNS IN SCHEMA missing", "USE SCHEMA missing", "USE DATABASE missing", "USE missing.public",
    ]:  # fmt: skip
        assert sql.refused(statement).code == "002043"


def test_every_show_statement_and_view_has_its_documented_columns(sql):
    """A statement whose columns depend on its clauses has no line in the table of documented ones."""
    own = {"SHOW GRANTS", "SHOW FUTURE GRANTS"}
    statements = {
        re.sub(r"\[.*?\] |USER (?=[FP])", "", words) for words in front.STATEMENTS if words.startswith("SHOW")
    }
    views = {name for name in DOCUMENTED if " " not in name}
    assert {name for name in DOCUMENTED if name.startswith("SHOW")} == statements - own
    for name in statements - own:
        assert [column.name for column in front.execute(sql.session(), name).columns] == list(
            DOCUMENTED[name]
        )
    for name in views:
        described = sql.values(f"DESCRIBE VIEW information_schema.{name}")
        assert [row[0] for row in described] == list(DOCUMENTED[name])
        found = front.execute(sql.session(), f"SELECT * FROM information_schema.{name}").columns
        assert [column.name for column in found] == list(DOCUMENTED[name])


def test_keys_are_listed(sql):
    sql.run("CREATE TABLE k (a INT, b INT, c INT UNIQUE, PRIMARY KEY (a, b))")
    for scope in ("IN TABLE k", "IN SCHEMA", "IN ACCOUNT"):
        rows = sql.run(f"SHOW PRIMARY KEYS {scope}")
        keys = [(row["table_name"], row["column_name"], row["key_sequence"]) for row in rows]
        assert keys == [("K", "A", 1), ("K", "B", 2)], scope
    assert [row["column_name"] for row in sql.run("SHOW UNIQUE KEYS IN TABLE k")] == ["C"]
    constraints = "SELECT constraint_type FROM information_schema.table_constraints ORDER BY 1"
    assert sql.values(constraints) == [("PRIMARY KEY",), ("UNIQUE",)]
    assert sql.refused("SHOW PRIMARY KEYS IN TABLE missing").code == "002003"
    sql.run("DROP TABLE k")

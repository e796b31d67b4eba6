"""INFORMATION_SCHEMA: queried like any other tables, and showing what the roles may see only."""

import pytest
from tests.unit.sql_sessions import SqlSessions


@pytest.fixture(scope="module")
def sql(tmp_path_factory):
    sql = SqlSessions(tmp_path_factory.mktemp("information"))
    sql.run(
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
    yield sql
    sql.close()


def test_columns_join_with_tables_and_have_their_types(sql):
    assert sql.values(
        "SELECT c.column_name, c.ordinal_position, c.is_nullable, c.data_type, c.character_maximum_length, "
        "c.numeric_scale, c.column_default, c.comment FROM local.information_schema.columns c "
        "JOIN information_schema.tables t USING (table_schema, table_name) "
        "WHERE t.table_name = 'T' ORDER BY c.ordinal_position"
    ) == [
        ("ID", 1, "NO", "NUMBER", None, 0, None, None), ("S", 2, "YES", "TEXT", 10, None, "'x'", None),
        ("N", 3, "YES", "NUMBER", None, 2, None, "number"),
    ]  # fmt: skip


def test_every_view_lists_its_objects(sql):
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


def test_a_role_sees_what_it_may_use(sql):
    for query, rows in (
        ("SELECT table_name FROM information_schema.tables", ["W"]),
        ("SELECT DISTINCT table_name FROM information_schema.columns", ["W"]),
        ("SELECT database_name FROM information_schema.databases", ["LOCAL"]),
        ("SELECT stage_name FROM information_schema.stages", []),
        ("SELECT pipe_name FROM information_schema.pipes", []),
    ):
        assert [row[0] for row in sql.values(query, "ANN")] == rows
    assert sql.refused("SELECT * FROM other.information_schema.tables", "ANN").code == "002003"


def test_a_view_and_a_ctas_can_be_built_on_it(sql):
    sql.run("CREATE OR REPLACE VIEW v AS SELECT COUNT(*) AS n FROM information_schema.sequences")
    assert sql.values("SELECT n FROM v") == [(1,)]
    sql.run("CREATE OR REPLACE TABLE snapshot AS SELECT sequence_name FROM information_schema.sequences")
    assert sql.values("SELECT * FROM snapshot") == [("SQ",)]
    sql.run("DROP VIEW v", "DROP TABLE snapshot")


def test_an_unknown_view_does_not_exist(sql):
    assert sql.refused("SELECT * FROM information_schema.nope").code == "002003"
    assert sql.refused("INSERT INTO information_schema.tables VALUES (1)").code in {"000002", "002003"}

"""Options of CREATE TABLE and ALTER TABLE SET: comments, stage options, keys, what is not known."""

import dataclasses

import duckdb
import pytest


def comments(local):
    return {row["name"]: row["comment"] for row in local.sql("SHOW TABLES")}


def test_alter_table_sets_several_options_and_unknown_ones_are_refused(local):
    local.sql("CREATE TABLE t (a INT)")
    local.sql("ALTER TABLE t SET ERROR_LOGGING = TRUE COMMENT = 'it''s', DATA_RETENTION_TIME_IN_DAYS = 1")
    (row,) = local.sql("SHOW TABLES")
    assert (row["comment"], row["error_logging"]) == ("it's", "Y")
    local.sql("ALTER TABLE t UNSET COMMENT, ERROR_LOGGING")
    (row,) = local.sql("SHOW TABLES")
    assert (row["comment"], row["error_logging"]) == ("", "N")
    for statement, word in [
        ("CREATE TABLE u (a INT) FOO = 1", "FOO"), ("ALTER TABLE t UNSET FOO", "FOO"),
        ("CREATE TABLE u (a INT) STAGE_FILE_FORMAT = (TYPE = CSV FOO = 1)", "FOO"),
    ]:  # fmt: skip
        assert word in local.refused(statement).message


def test_a_transient_table_is_shown_as_one(local):
    shown = "SELECT table_name, is_transient FROM information_schema.tables ORDER BY 1"
    local.sql("CREATE TRANSIENT TABLE t (a INT) STAGE_FILE_FORMAT = (TYPE = JSON)")
    local.sql("CREATE TABLE u LIKE t")
    local.sql("CREATE OR REPLACE TRANSIENT TABLE v CLONE t")
    local.sql("ALTER TABLE t RENAME TO w")
    assert {row["name"]: row["kind"] for row in local.sql("SHOW TABLES")} == {
        "U": "TABLE", "V": "TRANSIENT", "W": "TRANSIENT",
    }  # fmt: skip
    assert local.values(shown) == [("U", "NO"), ("V", "YES"), ("W", "YES")]
    [ddl] = local.sql("SELECT GET_DDL('TABLE', 'w')")[0].values()
    assert ddl.startswith("create or replace TRANSIENT TABLE W (")
    local.sql("CREATE OR REPLACE TABLE w (a INT)")
    assert local.sql("SHOW TABLES LIKE 'W'")[0]["kind"] == "TABLE"


def test_the_stage_format_of_a_table_or_stage_counts_for_copy_and_select(local):
    local.sql(
        "CREATE TABLE t (a INT, b VARCHAR) STAGE_FILE_FORMAT = (FIELD_DELIMITER = '|' "
        "error_on_column_count_mismatch = false) STAGE_COPY_OPTIONS = (ON_ERROR = CONTINUE) COMMENT = 'x'"
    )
    assert comments(local) == {"T": "x"}
    file = local.put_table("T", "a.csv", b"1|x|more\nbad|y\n")
    assert local.sql("SELECT $2 AS b FROM @%t ORDER BY 1") == [{"b": "x"}, {"b": "y"}]
    assert local.sql("COPY INTO t")[0]["status"] == "PARTIALLY_LOADED"
    local.sql("ALTER TABLE t SET STAGE_FILE_FORMAT = (FIELD_DELIMITER = ';')")
    file.write_bytes(b"2;z\n")
    local.sql("COPY INTO t")
    assert local.sql("SELECT * FROM t ORDER BY a") == [{"a": 1, "b": "x"}, {"a": 2, "b": "z"}]
    local.sql("CREATE STAGE st STAGE_FILE_FORMAT = (FIELD_DELIMITER = '|')")
    local.put("a.csv", b"1|x\n", "ST")
    assert local.sql("SELECT $2 AS b FROM @st") == [{"b": "x"}]
    local.sql("ALTER STAGE st SET STAGE_FILE_FORMAT = (FIELD_DELIMITER = 'x')")
    assert local.sql("SELECT $1 AS b FROM @st") == [{"b": "1|"}]


def _keys(local):
    return {row["name"]: row["primary key"] + row["unique key"] for row in local.sql("DESCRIBE TABLE k")}


def test_columns_have_part_in_keys_and_new_ones_need_values_for_the_rows(local):
    local.sql("CREATE TABLE k (a INT, b INT, c INT UNIQUE, PRIMARY KEY (a, b))")
    assert _keys(local) == {"A": "YN", "B": "YN", "C": "NY"}
    local.sql("ALTER TABLE k DROP PRIMARY KEY")
    local.sql("ALTER TABLE k ADD CONSTRAINT u UNIQUE (b)")
    local.sql("ALTER TABLE k RENAME COLUMN c TO d")
    assert _keys(local) == {"A": "NN", "B": "NY", "D": "NY"}
    local.sql("ALTER TABLE k ADD PRIMARY KEY (d)")
    assert _keys(local) == {"A": "NN", "B": "NY", "D": "YY"}
    local.sql("CREATE TABLE filled (a INT)")
    local.sql("ALTER TABLE filled ADD COLUMN first INT NOT NULL")
    local.sql("INSERT INTO filled VALUES (1, 2)")
    for column in ["c INT NOT NULL", "c INT IDENTITY"]:
        assert "non-empty table 'FILLED'" in local.refused(f"ALTER TABLE filled ADD COLUMN {column}").message
    local.sql("ALTER TABLE filled ADD COLUMN c INT NOT NULL DEFAULT 5")
    assert local.sql("SELECT c FROM filled") == [{"c": 5}]


def test_the_key_is_shown_and_one_that_no_row_can_have_is_refused(local):
    local.sql('CREATE TABLE keyed (id INT, "At" TIMESTAMP_NTZ) CLUSTER BY LINEAR(id, TO_DATE("At"))')
    assert [row["cluster_by"] for row in local.sql("SHOW TABLES")] == ['LINEAR(ID, TO_DATE("At"))']
    for key, reason in (("nope", "invalid identifier 'NOPE'"), ("(SELECT 1)", "CLUSTER BY")):
        error = local.refused(f"CREATE TABLE refused (id INT) CLUSTER BY ({key})")
        assert reason.upper() in error.message.upper(), key


def test_a_column_of_the_key_cannot_be_lost(local):
    local.sql("CREATE TABLE t (k INT, other INT) CLUSTER BY (k)")
    table = local.database.tables.find("PUBLIC", "T")
    kept = dataclasses.replace(table, columns=table.columns[1:])
    with pytest.raises(duckdb.BinderException):
        local.database.tables.change(kept, [f'ALTER TABLE {table.path} DROP COLUMN "K"'])
    assert local.database.tables.find("PUBLIC", "T") == table

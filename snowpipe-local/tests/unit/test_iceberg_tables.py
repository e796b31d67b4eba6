"""CREATE ICEBERG TABLE with Snowflake as its catalog ("Data types for Apache Iceberg tables")."""

from tests.unit.streamed_table import MadeTable

CREATE = "CREATE ICEBERG TABLE t ({}) EXTERNAL_VOLUME = 'v' CATALOG = 'SNOWFLAKE' BASE_LOCATION = 'b/'"
COLUMNS = (
    "a INT NOT NULL, l LONG, b STRING, f DOUBLE, d DATE, n DECIMAL(9, 2), ts TIMESTAMP_NTZ(6), o BOOLEAN"
)


def test_columns_have_the_types_that_iceberg_s_words_stand_for(local):
    local.sql(CREATE.format(COLUMNS) + " COMMENT = 'c'")
    assert [row["type"] for row in local.sql("DESCRIBE ICEBERG TABLE t")] == [
        "NUMBER(10,0)", "NUMBER(19,0)", "VARCHAR(16777216)", "FLOAT", "DATE", "NUMBER(9,2)",
        "TIMESTAMP_NTZ(6)", "BOOLEAN",
    ]  # fmt: skip
    (row,) = local.sql("SHOW ICEBERG TABLES LIKE 't' IN SCHEMA public")
    assert (row["external_volume_name"], row["catalog_name"], row["base_location"]) == (
        "v", "SNOWFLAKE", "b/",
    )  # fmt: skip
    assert (row["iceberg_table_type"], row["can_write_metadata"], row["comment"]) == ("MANAGED", "Y", "c")
    assert [row["is_iceberg"] for row in local.sql("SHOW TABLES")] == ["Y"]


def test_it_is_used_as_a_table(local):
    local.sql("CREATE ICEBERG TABLE IF NOT EXISTS t (a INT, ts TIMESTAMP_LTZ(6))")
    local.put("a.csv", b"1,2024-01-02 03:04:05.123456\n")
    assert local.sql("COPY INTO t FROM @s")[0]["status"] == "LOADED"
    MadeTable(local.database).send_at_once(b'{"A":2}')
    local.sql("ALTER ICEBERG TABLE t ADD COLUMN c STRING")
    local.sql("ALTER ICEBERG TABLE t SET COMMENT = 'c'")
    assert local.sql("SELECT count(*) AS n, max(c) AS c FROM t") == [{"n": 2, "c": None}]
    local.sql("CREATE ICEBERG TABLE u AS SELECT a, b FROM (SELECT 1 AS a, 'x' AS b)")
    assert local.sql("SELECT * FROM u") == [{"a": 1, "b": "x"}]
    ((written),) = local.sql("SELECT GET_DDL('ICEBERG_TABLE', 't') AS d")
    local.sql(written["d"].rstrip(";"))
    assert local.sql("SELECT GET_DDL('TABLE', 't') AS d") == [written]
    local.sql("DROP ICEBERG TABLE t")
    assert [row["name"] for row in local.sql("SHOW ICEBERG TABLES")] == ["U"]


def test_what_there_is_not_is_refused(local):
    local.sql("CREATE TABLE plain (a INT)")
    local.sql("CREATE ICEBERG TABLE lake (a INT)")
    for column in ["v VARIANT", "s VARCHAR(10)", "t TIMESTAMP_NTZ"]:
        for statement in (CREATE.format(column), f"ALTER ICEBERG TABLE lake ADD COLUMN {column}"):
            refused = local.refused(statement)
            assert refused.code in {"001003", "000002"}
            assert column.split()[1].partition("(")[0] in refused.message
    for statement, word in [
        ("CREATE ICEBERG TABLE t (a INT) PARTITION BY (a)", "PARTITION"),
        ("CREATE ICEBERG TABLE t (a INT) CATALOG = 'glue'", "glue"),
        ("CREATE TABLE t (a INT) EXTERNAL_VOLUME = 'v'", "EXTERNAL_VOLUME"),
        ("CREATE TEMPORARY ICEBERG TABLE t (a INT)", "temporary"),
        ("CREATE ICEBERG TABLE t CLONE plain", "CLONE"), ("DROP ICEBERG TABLE plain", "PLAIN"),
    ]:  # fmt: skip
        assert word in local.refused(statement).message


def test_creating_one_needs_its_own_privilege(local):
    for statement in (
        "CREATE ROLE r", "GRANT ROLE r TO USER demo", "GRANT USAGE ON DATABASE local TO ROLE r",
        "GRANT USAGE, CREATE TABLE ON SCHEMA public TO ROLE r",
    ):  # fmt: skip
        local.sql(statement)
    other = local.new_session()
    other.role, other.secondary_roles = "R", False
    assert local.refused(CREATE.format("a INT"), session=other).code == "003001"
    local.sql("GRANT CREATE ICEBERG TABLE ON SCHEMA public TO ROLE r")
    local.sql(CREATE.format("a INT"), session=other)
    other.close()

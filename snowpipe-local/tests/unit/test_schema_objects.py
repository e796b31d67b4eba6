"""Views, sequences, temporary tables, copies and changes of tables, comments; what SHOW lists of them."""

from decimal import Decimal

import pytest
from tests.unit.sql_sessions import SqlSessions


@pytest.fixture
def sql(sql):
    sql.run("CREATE TABLE t (id INT, s VARCHAR(10), v VARIANT)")
    sql.run("INSERT INTO t SELECT 1, 'a', PARSE_JSON('{\"k\":\"x\"}') UNION ALL SELECT 2, 'b', NULL")
    return sql


def test_a_view_reads_its_tables_as_they_are_now_and_is_stored_replaced_and_dropped(sql):
    sql.run("CREATE VIEW w (number, doc) COMMENT = 'all' AS SELECT id, v FROM t WHERE id > 0")
    assert sql.values("SELECT number, doc:k::STRING FROM w ORDER BY 1") == [(1, "x"), (2, None)]
    sql.run("INSERT INTO t (id) VALUES (3)")
    assert sql.values("SELECT COUNT(*) FROM local.public.w x JOIN t ON x.number = t.id") == [(3,)]
    assert [(r["name"], r["type"]) for r in sql.run("DESC VIEW w")] == [
        ("NUMBER", "NUMBER(38,0)"), ("DOC", "VARIANT"),
    ]  # fmt: skip
    (shown,) = sql.run("SHOW VIEWS")
    assert (shown["name"], shown["comment"], shown["owner"]) == ("W", "all", "ACCOUNTADMIN")
    assert shown["text"].startswith("CREATE VIEW w (number, doc)")
    assert sql.refused("CREATE VIEW w AS SELECT s FROM t").code == "002002"
    sql.run(
        "CREATE OR REPLACE VIEW w AS SELECT s FROM t WHERE id < 3",
        "CREATE VIEW IF NOT EXISTS w AS SELECT 1 AS x",
    )
    sql.restart()
    assert sql.values("SELECT s FROM w ORDER BY 1") == [("a",), ("b",)]
    assert sql.refused("INSERT INTO w VALUES (1)").code == "000002"
    sql.run("DROP TABLE t")
    error = sql.refused("SELECT * FROM w")
    assert (error.code, "Failure during expansion of view 'W'" in error.message) == ("002037", True)
    sql.run("DROP VIEW w", "DROP VIEW IF EXISTS w")
    assert sql.refused("SELECT * FROM w").code == "002003"


def test_a_sequence_counts_and_fills_columns(sql):
    sql.run("CREATE SEQUENCE sq START 5 INCREMENT 2 COMMENT = 'odd'")
    assert sql.values("SELECT sq.NEXTVAL") == [(5,)]
    assert sql.values("SELECT local.public.sq.nextval AS n") == [(7,)]
    sql.run("CREATE TABLE numbered (id INT DEFAULT sq.NEXTVAL, x INT)", "INSERT INTO numbered (x) VALUES (1)")
    sql.run("INSERT INTO numbered SELECT sq.NEXTVAL, 2")
    assert sql.values("SELECT id, x FROM numbered ORDER BY x") == [(9, 1), (11, 2)]
    (shown,) = sql.run("SHOW SEQUENCES")
    assert (shown["name"], shown["interval"], shown["comment"]) == ("SQ", 2, "odd")
    assert shown["next_value"] == sql.run("DESCRIBE SEQUENCE sq")[0]["next_value"] == 13
    sql.restart()
    assert sql.values("SELECT sq.NEXTVAL") == [(13,)]
    sql.run("DROP SEQUENCE sq", "INSERT INTO numbered (x) VALUES (3)")
    assert sql.refused("SELECT sq.NEXTVAL").code in {"000904", "002003"}


def test_temporary_tables_belong_to_their_session_and_end_with_it(sql):
    sql.run("CREATE TEMPORARY TABLE t (x INT)", "INSERT INTO t VALUES (7)", "UPDATE t SET x = t.x + 1")
    assert sql.values("SELECT t.x FROM t") == [(8,)]
    assert sql.values("SELECT COUNT(*) FROM t", role="ACCOUNTADMIN") == [(2,)]
    assert sorted(row["kind"] for row in sql.run("SHOW TABLES LIKE 'T'")) == ["TABLE", "TEMPORARY"]
    assert len(sql.run("SHOW TABLES", role="ACCOUNTADMIN")) == 1
    assert [row["name"] for row in sql.run("DESCRIBE TABLE t")] == ["X"]
    sql.run("DELETE FROM t WHERE t.x = 8", "TRUNCATE TABLE t", "DROP TABLE t")
    assert sql.values("SELECT COUNT(*) FROM t") == [(2,)]
    sql.run("CREATE OR REPLACE TEMP TABLE u AS SELECT 1 AS one", "CREATE TEMP TABLE c CLONE t")
    assert sql.values("SELECT COUNT(*) FROM c") == [(2,)]
    sql.session().close()
    assert sql.refused("SELECT * FROM u").code == "002003"
    assert [table.name for table in sql.catalog.database("LOCAL").tables] == ["T"]
    sql.refused("CREATE TEMPORARY TABLE t AS SELECT TO_DATE('x') AS d")
    assert len(sql.values("SELECT id FROM t")) == 2
    sql.run("CREATE OR REPLACE TEMPORARY TABLE t AS SELECT MAX(id) AS id FROM t")
    assert sql.values("SELECT id FROM t") == [(2,)]
    sql.run("DROP TABLE t")
    assert len(sql.values("SELECT id FROM t")) == 2
    for words in ["VOLATILE", "LOCAL TEMPORARY", "GLOBAL TEMP", "OR REPLACE local volatile"]:
        sql.run("DROP TABLE IF EXISTS passing", f"CREATE {words} TABLE passing (x INT)")
        assert sql.run("SHOW TABLES LIKE 'PASSING'")[0]["kind"] == "TEMPORARY"
        assert sql.refused("SELECT * FROM passing", role="ACCOUNTADMIN").code == "002003"
    for kind in ["DATABASE d", "SCHEMA s", "PIPE p AS COPY INTO t FROM @%t"]:
        assert sql.refused(f"CREATE TEMPORARY {kind}").code == "000002"


def test_temporary_tables_of_a_crashed_service_are_gone_at_the_next_start(tmp_path):
    first = SqlSessions(tmp_path)
    first.run("CREATE TEMPORARY TABLE gone (x INT)")
    first.catalog.close()
    again = SqlSessions(tmp_path)
    assert list(again.catalog.database("LOCAL").tables) == []
    again.close()


def test_tables_and_views_have_no_name_in_common(sql):
    sql.run("CREATE VIEW w AS SELECT id FROM t")
    for statement in [
        "CREATE OR REPLACE TABLE w (a INT)", "CREATE TABLE IF NOT EXISTS w (a INT)",
        "CREATE TABLE w AS SELECT 1 AS a", "CREATE OR REPLACE TABLE w CLONE t",
        "ALTER TABLE t RENAME TO w", "CREATE OR REPLACE VIEW t AS SELECT 1 AS x",
    ]:  # fmt: skip
        error = sql.refused(statement)
        assert (error.code, error.sqlstate) == ("001998", "42710")
        assert "already exists as" in error.message
        assert sql.values("SELECT id FROM w ORDER BY 1") == [(1,), (2,)]
    for kind, name, found in (("TABLE", "w", "VIEW"), ("VIEW", "t", "TABLE")):
        for tolerant in ["", "IF EXISTS"]:
            error = sql.refused(f"DROP {kind} {tolerant} {name}")
            assert (error.code, error.sqlstate) == ("002203", "42601")
            assert f"Object found is of type '{found}', not specified type '{kind}'" in error.message


def test_copy_grants_keeps_those_of_the_replaced_table_or_view_and_takes_those_of_a_source(sql):
    own, read = ("OWNERSHIP", "ACCOUNTADMIN"), ("SELECT", "READER")
    sql.run("CREATE ROLE reader", "CREATE TABLE other (id INT)", "CREATE VIEW w AS SELECT id FROM t")
    sql.run("GRANT SELECT ON TABLE t TO ROLE reader", "GRANT SELECT ON VIEW w TO ROLE reader")
    for statement, target, granted in [
        ("CREATE TABLE a CLONE t COPY GRANTS", "TABLE a", [own, read]),
        ("CREATE TABLE b CLONE t", "TABLE b", [own]),
        ("CREATE OR REPLACE VIEW w COPY GRANTS AS SELECT s FROM t", "VIEW w", [own, read]),
        ("CREATE OR REPLACE VIEW w AS SELECT s FROM t", "VIEW w", [own]),
        ("GRANT INSERT ON FUTURE TABLES IN SCHEMA public TO ROLE reader", "TABLE t", [own, read]),
        ("CREATE OR REPLACE TABLE t COPY GRANTS (id INT)", "TABLE t", [own, read]),
        ("CREATE OR REPLACE TABLE t COPY GRANTS AS SELECT 1 AS id", "TABLE t", [own, read]),
        ("CREATE OR REPLACE TABLE t LIKE other COPY GRANTS", "TABLE t", [own, read]),
        ("CREATE OR REPLACE TABLE t CLONE other COPY GRANTS", "TABLE t", [own, read]),
    ]:
        sql.run(statement)
        shown = sql.run(f"SHOW GRANTS ON {target}")
        assert sorted((row["privilege"], row["grantee_name"]) for row in shown) == granted, statement


def test_a_default_size_or_constraint_that_would_not_hold_is_refused(sql):
    for code, columns in {
        "002023": ["a INT DEFAULT 'x'", "a DATE DEFAULT 'yesterday'", "a NUMBER(3, 0) DEFAULT 1234"],
        "100078": ["a VARCHAR(3) DEFAULT 'long'"], "000002": ["x INT, CHECK (x > 1)", "x INT CHECK (x > 1)"],
        "001003": ["x VARCHAR(134217729)", "x VARCHAR(0)", "x BINARY(67108865)", "x TIMESTAMP_NTZ(10)"],
        "000904": ["a INT, PRIMARY KEY (b)", '"a" INT, PRIMARY KEY (a)', "a INT, CONSTRAINT k UNIQUE (b)"],
    }.items():  # fmt: skip
        for column in columns:
            assert sql.refused(f"CREATE TABLE bad ({column})").code == code, column
            assert sql.run("SHOW TABLES LIKE 'BAD'") == []
    assert sql.refused("ALTER TABLE t ADD COLUMN a INT DEFAULT 'x'").code == "002023"
    sql.run(
        "CREATE TABLE n (a INT DEFAULT '5', b VARCHAR(3) DEFAULT 'abc', c DATE DEFAULT CURRENT_DATE, "
        "d VARIANT DEFAULT NULL, e TIMESTAMP_TZ DEFAULT CURRENT_TIMESTAMP, f BINARY DEFAULT 'AB')"
    )


def test_a_reserved_word_names_something_in_quotes_only(sql):
    for statement in ["CREATE TABLE order (a INT)", "CREATE ROLE grant", "ALTER TABLE t ADD COLUMN from INT"]:
        assert sql.refused(statement).code == "001003"
    sql.run('CREATE TABLE "ORDER" ("GROUP" INT, value INT, date DATE)')
    sql.run('ALTER TABLE "ORDER" ADD COLUMN "FROM" INT')
    assert [row["name"] for row in sql.run('DESC TABLE "ORDER"')] == ["GROUP", "VALUE", "DATE", "FROM"]
    for columns in ["(a INT, a INT)", '(a INT, "a" INT)', "AS SELECT 1 AS a, 2 AS a"]:
        assert sql.refused(f"CREATE TABLE n {columns}").code == "002025"
    for kind in ["DATABASE", "SCHEMA", "STAGE", "SEQUENCE"]:
        assert "255" in sql.refused(f"CREATE {kind} {'N' * 256}").message
    # A database's name is that of a file.
    assert sql.refused(f"CREATE DATABASE {'N' * 250}").code == "000002"
    sql.run(f"CREATE DATABASE {'N' * 200}")


def test_copies_of_tables_have_rows_of_their_own_and_count_by_themselves(sql):
    sql.run("CREATE TABLE l LIKE t", "CREATE TABLE c CLONE local.public.t", "INSERT INTO c (id) VALUES (3)")
    assert sql.values("SELECT (SELECT COUNT(*) FROM l), (SELECT COUNT(*) FROM c)") == [(0, 3)]
    assert sql.values("SELECT COUNT(*) FROM t") == [(2,)]
    assert sql.refused("CREATE TABLE l LIKE t").code == "002002"
    sql.run("CREATE OR REPLACE TABLE l CLONE c", "CREATE TABLE IF NOT EXISTS l LIKE t")
    assert sql.refused("CREATE TABLE x CLONE t AT (OFFSET => -60)").code == "000002"
    sql.run("CREATE TABLE down (n INT IDENTITY(0, -5), b INT)", "INSERT INTO down (b) VALUES (1), (2)")
    sql.run("CREATE SEQUENCE falling START 3 INCREMENT -1")
    assert sql.values("SELECT n FROM down ORDER BY b") == [(0,), (-5,)]
    assert sql.values("SELECT falling.NEXTVAL") == [(3,)]
    sql.run("CREATE TABLE a (n INT IDENTITY(10, 5), b INT)", "INSERT INTO a (b) VALUES (1), (2)")
    sql.run("CREATE TABLE d CLONE a", "CREATE TABLE m LIKE a")
    for table in ("d", "m", "a"):
        sql.run(f"INSERT INTO {table} (b) VALUES (3)")
    assert sql.values("SELECT n FROM d ORDER BY 1") == [(10,), (15,), (20,)]
    assert sql.values("SELECT n FROM m") == [(10,)]
    assert sql.values("SELECT n FROM a ORDER BY 1") == [(10,), (15,), (20,)]
    sql.run("CREATE OR REPLACE TABLE a CLONE a", "INSERT INTO a (b) VALUES (4)")
    assert sql.values("SELECT MAX(n) FROM a") == [(25,)]


def test_columns_are_added_renamed_widened_and_dropped(sql):
    sql.run(
        "ALTER TABLE t ADD COLUMN extra VARCHAR DEFAULT 'q', n NUMBER(5,2)",
        "ALTER TABLE t ADD COLUMN IF NOT EXISTS extra INT", "ALTER TABLE t RENAME COLUMN extra TO more",
        "ALTER TABLE t ALTER s VARCHAR(12)", "CREATE TABLE c (a VARCHAR COLLATE 'utf8')",
        "ALTER TABLE t ALTER COLUMN s SET DATA TYPE VARCHAR(20), COLUMN id SET NOT NULL",
        "ALTER TABLE t MODIFY COLUMN n TYPE NUMBER(10,2)", "ALTER TABLE t ALTER id DROP NOT NULL",
        "ALTER TABLE t DROP COLUMN v", "ALTER TABLE t DROP COLUMN IF EXISTS v",
        "ALTER TABLE t ADD PRIMARY KEY (id)",
    )  # fmt: skip
    sql.restart()
    assert [(r["name"], r["type"], r["null?"]) for r in sql.run("DESC TABLE t")] == [
        ("ID", "NUMBER(38,0)", "Y"), ("S", "VARCHAR(20)", "Y"), ("MORE", "VARCHAR(16777216)", "Y"),
        ("N", "NUMBER(10,2)", "Y"),
    ]  # fmt: skip
    assert sql.values("SELECT more FROM t WHERE id = 1") == [("q",)]
    for statement, code in (
        ("ALTER TABLE t ADD COLUMN s INT", "001430"), ("ALTER TABLE t DROP COLUMN nope", "000904"),
        ("ALTER TABLE t RENAME COLUMN s TO more", "001430"),
        ("ALTER TABLE t ALTER COLUMN s TYPE VARCHAR(5)", "002108"),
        ("ALTER TABLE t ALTER COLUMN s TYPE INT", "002108"), ("ALTER TABLE nope ADD COLUMN x INT", "002003"),
        ("ALTER TABLE t JUMP", "000002"),
    ):  # fmt: skip
        assert sql.refused(statement).code == code, statement
    sql.run("ALTER TABLE IF EXISTS nope ADD COLUMN x INT")
    sql.run("ALTER TABLE t ALTER COLUMN id SET DATA TYPE NUMBER(5, 0)")
    assert sql.run("DESCRIBE TABLE t")[0]["type"] == "NUMBER(5,0)"
    sql.run("INSERT INTO t (id) VALUES (12345)")
    assert sql.refused("ALTER TABLE t ALTER COLUMN id SET DATA TYPE NUMBER(4, 0)").sqlstate == "22003"
    assert sql.run("DESCRIBE TABLE t")[0]["type"] == "NUMBER(5,0)"
    assert sql.refused("ALTER TABLE t ALTER COLUMN id SET DATA TYPE NUMBER(5, 1)").code == "002108"


def test_tables_are_renamed_and_swapped_with_their_grants_and_temporary_ones_stay_with_their_session(sql):
    sql.run("CREATE ROLE r", "GRANT SELECT ON TABLE t TO ROLE r", "CREATE TABLE o (x INT)")
    sql.run("ALTER TABLE t RENAME TO renamed")
    assert [r["name"] for r in sql.run("SHOW GRANTS TO ROLE r")] == ["LOCAL.PUBLIC.RENAMED"]
    assert sql.refused("SELECT * FROM t").code == "002003"
    assert sql.refused("ALTER TABLE renamed RENAME TO o").code == "002002"
    sql.run("ALTER TABLE renamed SWAP WITH o")
    assert sql.values("SELECT COUNT(*) FROM o") == [(2,)]
    assert [r["name"] for r in sql.run("SHOW GRANTS TO ROLE r")] == ["LOCAL.PUBLIC.O"]
    assert [r["name"] for r in sql.run("DESC TABLE renamed")] == ["X"]
    sql.run("CREATE TEMPORARY TABLE o (y INT)", "INSERT INTO o VALUES (7)")
    assert sql.refused("ALTER TABLE o SWAP WITH renamed").code == "000002"
    sql.run("ALTER TABLE o RENAME TO passing")
    assert sql.values("SELECT y, (SELECT COUNT(*) FROM o) FROM passing") == [(7, 2)]
    assert sql.refused("SELECT * FROM passing", role="ACCOUNTADMIN").code == "002003"


def test_rows_are_replaced_by_a_query_or_stay(sql):
    sql.run("CREATE TABLE o (id INT NOT NULL)", "INSERT INTO o VALUES (1), (2)")
    assert sql.values("INSERT OVERWRITE INTO o SELECT id + 10 FROM o WHERE id = 2") == [(1,)]
    assert sql.values("SELECT id FROM o") == [(12,)]
    sql.refused("INSERT OVERWRITE INTO o SELECT NULL")
    assert sql.values("SELECT id FROM o") == [(12,)]
    sql.run("BEGIN", "INSERT INTO o VALUES (13)", "INSERT OVERWRITE INTO o VALUES (14), (15)")
    assert sql.values("SELECT id FROM o ORDER BY id") == [(14,), (15,)]
    sql.run("ROLLBACK")
    assert sql.values("SELECT id FROM o") == [(12,)]
    for expected in (3, 4, 5):
        sql.run("CREATE OR REPLACE TABLE t AS SELECT MAX(id) + 1 AS id FROM t")
        assert sql.values("SELECT id FROM t") == [(expected,)]
    sql.run("CREATE OR REPLACE TABLE t CLONE t")
    assert sql.values("SELECT id FROM t") == [(5,)]
    sql.refused("CREATE OR REPLACE TABLE t AS SELECT id::BOOLEAN AS b, TO_DATE('x') AS d FROM t")
    assert sql.values("SELECT id FROM t") == [(5,)]
    sql.run("CREATE OR REPLACE TABLE t LIKE t")
    assert sql.values("SELECT id FROM t") == []


def test_comments_are_kept_and_shown(sql):
    sql.run(
        "COMMENT ON TABLE t IS 'it''s'", "COMMENT ON COLUMN t.id IS 'key'",
        "COMMENT IF EXISTS ON TABLE nope IS 'x'", "ALTER SCHEMA public SET COMMENT = 'all'",
        "ALTER DATABASE local SET COMMENT = 'mine'", "ALTER TABLE t ALTER COLUMN s COMMENT 'text'",
    )  # fmt: skip
    shown = {row["column_name"]: row["comment"] for row in sql.run("SHOW COLUMNS IN TABLE t")}
    assert shown == {"ID": "key", "S": "text", "V": ""}
    assert len(sql.run("SHOW COLUMNS IN SCHEMA public")) == len(sql.run("SHOW COLUMNS")) == 3
    json_type = '{"type":"FIXED","precision":38,"scale":0,"nullable":true}'
    assert sql.run("SHOW COLUMNS LIKE 'id' IN TABLE t")[0]["data_type"] == json_type
    described = [sql.run(f"DESCRIBE {kind}")[0]["name"] for kind in ("SCHEMA public", "DATABASE local")]
    assert described == ["T", "PUBLIC"]
    assert [row["comment"] for row in sql.run("SHOW OBJECTS")] == ["it's"]
    sql.run("ALTER TABLE t SET COMMENT = ''")
    assert [row["comment"] for row in sql.run("SHOW OBJECTS")] == [""]
    assert sql.refused("COMMENT ON COLUMN t.nope IS 'x'").code == "000904"


def test_a_clustering_key_is_set_and_dropped_and_options_without_effect_are_accepted(sql):
    sql.run(
        "CREATE TABLE o (id INT) CLUSTER BY (id) DATA_RETENTION_TIME_IN_DAYS = 1",
        "ALTER TABLE o SET DATA_RETENTION_TIME_IN_DAYS = 0, ENABLE_SCHEMA_EVOLUTION = TRUE",
        "ALTER TABLE o SET CHANGE_TRACKING = TRUE", "ALTER TABLE o UNSET DATA_RETENTION_TIME_IN_DAYS",
        "ALTER TABLE o SUSPEND RECLUSTER", "ALTER TABLE o RESUME RECLUSTER",
        "ALTER TABLE t CLUSTER BY (id, s)",
    )  # fmt: skip
    shown = [(row["cluster_by"], row["enable_schema_evolution"]) for row in sql.run("SHOW TABLES")]
    assert shown == [("LINEAR(ID)", "Y"), ("LINEAR(ID, S)", "N")]
    sql.run("ALTER TABLE t DROP CLUSTERING KEY")
    assert not sql.run("SHOW TABLES LIKE 'T'")[0]["cluster_by"]
    assert sql.refused("ALTER TABLE o SET ERROR_LOGGING = 1").code == "001003"
    assert sql.refused("ALTER TABLE o SET FAVOURITE_COLOUR = 1").code == "000002"


def test_create_table_as_select_takes_columns_with_and_without_types(sql):
    sql.run(
        "CREATE TABLE listed (a, b VARCHAR(3) NOT NULL, c VARIANT) AS SELECT 1.5, 22, i FROM (SELECT 7 AS i)"
    )
    described = [(row["name"], row["type"], row["null?"]) for row in sql.run("DESC TABLE listed")]
    assert described == [("A", "NUMBER(2,1)", "Y"), ("B", "VARCHAR(3)", "N"), ("C", "VARIANT", "Y")]
    assert sql.values("SELECT a, b, c FROM listed") == [(Decimal("1.5"), "22", "7")]
    assert sql.refused("CREATE TABLE other (a VARCHAR(2)) AS SELECT 700").code == "100078"
    assert sql.refused("CREATE TABLE other (a INT NOT NULL) AS SELECT NULL").code == "100072"
    assert sql.refused("CREATE TABLE other (a, b) AS SELECT 1").code == "002026"


# Overview of constraints: a PRIMARY KEY implies NOT NULL
def test_names_of_columns_and_keys(sql):
    sql.run("CREATE TABLE keyed (a INT, b INT, c INT UNIQUE, CONSTRAINT k PRIMARY KEY (a, b), UNIQUE (b, c))")
    assert [row["null?"] for row in sql.run("DESCRIBE TABLE keyed")] == ["N", "N", "Y"]
    assert sql.refused("INSERT INTO keyed VALUES (NULL, 1, 1)").code == "100072"
    sql.run("CREATE TABLE of_rows (rowid INT, b INT)", "INSERT INTO of_rows (rowid, b) VALUES (7, 8)")
    assert sql.values("SELECT r.rowid FROM of_rows r WHERE rowid = 7") == [(7,)]
    assert sql.values("WITH c AS (SELECT b AS rowid FROM of_rows) SELECT rowid FROM c") == [(8,)]
    assert sql.values("SELECT rowid FROM (VALUES (1)) v (rowid)") == [(1,)]
    sql.run("CREATE OR REPLACE TABLE st (id INT)", "INSERT INTO st VALUES (1)")
    for query in [
        "SELECT public.st.id FROM public.st", "SELECT local.public.st.id FROM st WHERE public.st.id = 1",
        "SELECT public.st.id FROM public.st GROUP BY public.st.id ORDER BY local.public.st.id",
    ]:  # fmt: skip
        assert sql.values(query) == [(1,)]
    for query in ["SELECT other.st.id FROM st", "SELECT public.st.id FROM st AS x"]:
        assert sql.refused(query).code == "000904"


# CREATE TABLE .. AS SELECT, CREATE VIEW, DESCRIBE
def test_a_column_of_a_query_keeps_the_length_that_it_has_in_its_table(sql):
    sql.run("CREATE TABLE long_names (name VARCHAR(20), b BINARY(4), v VARIANT)")
    for query, types in [
        ("SELECT * FROM long_names", ["VARCHAR(20)", "BINARY(4)", "VARIANT"]),
        ("SELECT name AS n, UPPER(name) AS u FROM long_names", ["VARCHAR(20)", "VARCHAR(16777216)"]),
        ("SELECT a.name FROM long_names a JOIN long_names c ON a.name = c.name", ["VARCHAR(20)"]),
        ("SELECT name FROM (SELECT name || name AS name FROM long_names)", ["VARCHAR(16777216)"]),
        ("SELECT name FROM long_names UNION ALL SELECT name || name FROM long_names", ["VARCHAR(16777216)"]),
        ("SELECT q.*, MAX(name) OVER () AS m FROM (SELECT name FROM long_names) q", ["VARCHAR(20)"] * 2),
        ("SELECT 'x'::VARCHAR(5) AS a, CAST(1 AS CHAR(3)) AS b", ["VARCHAR(5)", "VARCHAR(3)"]),
    ]:
        for kind in ["TABLE", "VIEW"]:
            sql.run(f"CREATE OR REPLACE {kind} made_{kind} AS {query}")
            assert [row["type"] for row in sql.run(f"DESCRIBE {kind} made_{kind}")] == types


def test_a_view_shows_more_than_its_reader_may_read_and_the_text_of_a_secure_one_is_for_its_owner(sql):
    sql.run(
        "CREATE VIEW w AS SELECT MAX(id) AS id FROM t", "CREATE SECURE VIEW x AS SELECT 1 AS id",
        "CREATE VIEW hidden AS SELECT id FROM t", "CREATE ROLE reader", "GRANT ROLE reader TO USER demo",
        "GRANT USAGE ON DATABASE local TO ROLE reader", "GRANT USAGE ON SCHEMA public TO ROLE reader",
        "GRANT SELECT ON VIEW w TO ROLE reader", "GRANT SELECT ON VIEW x TO ROLE reader",
    )  # fmt: skip
    sql.session(role="READER").secondary_roles = False
    assert sql.values("SELECT w.id, x.id FROM w, x", role="READER") == [(2, 1)]
    for unseen in ("hidden", "t"):
        assert sql.refused(f"SELECT * FROM {unseen}", role="READER").code == "002003"
    assert [row["name"] for row in sql.run("SHOW OBJECTS", role="READER")] == ["W", "X"]
    sql.run("DROP VIEW hidden")
    listed = "SELECT view_definition FROM information_schema.views WHERE table_schema = 'PUBLIC'"
    for role, hidden in (("", 0), ("READER", 1)):
        texts = [row["text"] for row in sql.run("SHOW VIEWS", role=role)]
        listing = [text for (text,) in sql.values(listed, role=role)]
        [(ddl,)] = sql.values("SELECT GET_DDL('SCHEMA', 'PUBLIC')", role=role)
        assert (texts.count(None), listing.count(None), 1 - ddl.count("secure view")) == (hidden,) * 3
    assert sql.refused("SELECT GET_DDL('VIEW', 'X')", role="READER").code == "002003"


def test_last_altered_moves_with_rows_and_columns(sql):
    def altered():
        [(at, created)] = sql.values(
            "SELECT last_altered, created FROM information_schema.tables WHERE table_name = 'FRESH'"
        )
        assert at >= created
        return at

    sql.run("CREATE TABLE fresh (id INT)")
    clock = sql.catalog.clock
    known = [altered()]
    for statements in [
        ["INSERT INTO fresh VALUES (1)"], ["BEGIN", "UPDATE fresh SET id = 2", "COMMIT"],
        ["ALTER TABLE fresh ADD COLUMN s VARCHAR"], ["TRUNCATE TABLE fresh"],
    ]:  # fmt: skip
        clock.move(1)
        sql.run(*statements)
        known.append(altered())
        assert known[-1] > known[-2]
    clock.move(1)
    sql.run("BEGIN", "INSERT INTO fresh (id) VALUES (3)", "ROLLBACK", "SELECT * FROM fresh")
    assert altered() == known[-1]
    sql.restart()
    assert altered() == known[-1]


def test_dml_never_writes_what_is_too_long(sql):
    sql.run(
        "CREATE OR REPLACE TABLE t (id INT, s VARCHAR(3), b BINARY(2))",
        "INSERT INTO t VALUES (1, 'x', 'ff')", "CREATE TABLE long (s VARCHAR, b BINARY)",
        "INSERT INTO long VALUES ('abcd', 'ff0011')",
    )  # fmt: skip
    for statement in [
        "INSERT INTO t (s) VALUES ('abcd')", "INSERT INTO t (id, s) SELECT 1, s FROM long",
        "INSERT INTO t (b) SELECT b FROM long", "INSERT OVERWRITE INTO t (s) SELECT s FROM long",
        "UPDATE t SET s = s || 'abc'", "UPDATE t SET s = long.s FROM long",
        "MERGE INTO t USING long ON t.s = long.s WHEN NOT MATCHED THEN INSERT (s) VALUES (long.s)",
        "MERGE INTO t USING long ON t.id = 1 WHEN MATCHED THEN UPDATE SET t.b = long.b",
    ]:  # fmt: skip
        error = sql.refused(statement)
        assert (error.code, error.sqlstate, "too long" in error.message) == ("100078", "22000", True)
        assert sql.values("SELECT * FROM t") == [(1, "x", b"\xff")]
    merge = (
        "MERGE INTO t USING (SELECT 1 AS i UNION ALL SELECT 1) s ON t.id = s.i "
        "WHEN MATCHED THEN UPDATE SET t.s = 'y'"
    )
    assert sql.refused(merge).code == "100090"

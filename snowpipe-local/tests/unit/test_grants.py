"""Statements about roles, users, grants and warehouses, and what they allow."""

import base64

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from snowpipe_local.accounts import fingerprint, public_key_pem
from tests.unit.sql_sessions import SqlSessions


def granted(rows):
    return [(row["privilege"], row["grantee_name"]) for row in rows]


USAGE = ("GRANT USAGE ON DATABASE local TO ROLE r", "GRANT USAGE ON SCHEMA local.public TO ROLE r")


@pytest.fixture
def sql(sql: SqlSessions) -> SqlSessions:
    sql.run(
        "CREATE ROLE r", "CREATE USER ann DEFAULT_ROLE = r PASSWORD = 'correct horse'",
        "GRANT ROLE r TO USER ann", "CREATE TABLE t (id INT)", "INSERT INTO t VALUES (1), (2)",
    )  # fmt: skip
    return sql


def test_a_table_is_hidden_until_usage_and_a_privilege_on_it_are_granted(sql):
    assert sql.refused("SELECT * FROM t", "ANN").code == "002003"
    sql.run(*USAGE)
    hidden = sql.refused("SELECT * FROM t", "ANN")
    assert (hidden.code, hidden.sqlstate) == ("002003", "42S02")
    assert hidden.message == sql.refused("SELECT * FROM none", "ANN").message.replace("NONE", "T")
    assert sql.run("SHOW TABLES", user="ANN") == []
    sql.run("GRANT SELECT ON TABLE t TO ROLE r")
    assert sql.values("SELECT count(*) FROM t", "ANN") == [(2,)]
    assert [row["name"] for row in sql.run("SHOW TABLES", user="ANN")] == ["T"]


def test_every_change_of_rows_needs_its_own_privilege(sql):
    sql.run(*USAGE, "GRANT SELECT ON TABLE t TO ROLE r")
    for privilege, statement in [
        ("INSERT", "INSERT INTO t VALUES (3)"), ("UPDATE", "UPDATE t SET id = 4"),
        ("DELETE", "DELETE FROM t"), ("TRUNCATE", "TRUNCATE TABLE t"),
        ("UPDATE", "MERGE INTO t USING (SELECT 1 AS i) s ON t.id = s.i WHEN MATCHED THEN UPDATE SET id = 9"),
    ]:  # fmt: skip
        error = sql.refused(statement, "ANN")
        assert (error.code, error.sqlstate) == ("003001", "42501")
        assert error.message == "SQL access control error:\nInsufficient privileges to operate on table 'T'"
        sql.run(f"GRANT {privilege} ON TABLE t TO r")
        sql.run(statement, user="ANN")
        sql.run(f"REVOKE {privilege} ON TABLE t FROM ROLE r")
        assert sql.refused(statement, "ANN").code == "003001"
    sql.run("CREATE TABLE other (id INT)")
    for query in (
        "SELECT * FROM t JOIN other ON t.id = other.id", "SELECT (SELECT max(id) FROM other) FROM t",
        "WITH o AS (SELECT * FROM other) SELECT * FROM o", "CREATE TABLE copied AS SELECT * FROM other",
    ):  # fmt: skip
        assert sql.refused(query, "ANN").code in {"002003", "003001"}


def test_creating_needs_the_privilege_and_makes_the_current_role_owner(sql):
    assert sql.refused("CREATE TABLE mine (id INT)", "ANN").code == "002003"  # for the database is hidden
    sql.run(*USAGE)
    error = sql.refused("CREATE TABLE mine (id INT)", "ANN")
    assert "Insufficient privileges to operate on schema 'PUBLIC'" in error.message
    sql.run("GRANT CREATE TABLE ON SCHEMA local.public TO ROLE r")
    sql.run("CREATE TABLE mine (id INT)", "INSERT INTO mine VALUES (1)", user="ANN")
    assert granted(sql.run("SHOW GRANTS ON TABLE mine", user="ANN")) == [("OWNERSHIP", "R")]
    assert sql.refused("SELECT * FROM mine").code == "002003"
    sql.run("GRANT ROLE r TO ROLE sysadmin")
    assert sql.values("SELECT * FROM mine") == [(1,)]
    sql.run("DROP ROLE r")  # what it owned goes to the role that dropped it
    assert granted(sql.run("SHOW GRANTS ON TABLE mine")) == [("OWNERSHIP", "ACCOUNTADMIN")]
    assert sql.values("SELECT * FROM mine") == [(1,)]
    assert sql.refused("SELECT * FROM mine", "ANN").code == "002003"


def test_only_the_owner_alters_replaces_and_drops_and_ownership_moves_with_a_word_about_grants(sql):
    sql.run(*USAGE, "GRANT ALL PRIVILEGES ON TABLE t TO ROLE r", "GRANT ALL ON SCHEMA public TO ROLE r")
    for statement in (
        "DROP TABLE t", "ALTER TABLE t SET ERROR_LOGGING = TRUE", "CREATE OR REPLACE TABLE t (id INT)",
        "DROP SCHEMA local.public",
    ):  # fmt: skip
        assert sql.refused(statement, "ANN").code == "003001"
    error = sql.refused("GRANT OWNERSHIP ON TABLE t TO ROLE r")
    assert (error.code, "Dependent grant of privilege" in error.message) == ("003036", True)
    sql.run("GRANT OWNERSHIP ON TABLE t TO ROLE r COPY CURRENT GRANTS")
    assert len(sql.run("SHOW GRANTS ON TABLE t", user="ANN")) > 2
    sql.run("ALTER TABLE t SET ERROR_LOGGING = TRUE", "CREATE OR REPLACE TABLE t (id INT)", user="ANN")
    sql.run("CREATE TABLE u (id INT)", "GRANT SELECT ON TABLE u TO ROLE r")
    sql.run("GRANT OWNERSHIP ON TABLE u TO ROLE r REVOKE CURRENT GRANTS")
    assert granted(sql.run("SHOW GRANTS ON TABLE u", user="ANN")) == [("OWNERSHIP", "R")]


def test_grants_on_all_and_on_future_tables_and_with_the_grant_option(sql):
    sql.run(
        *USAGE, "CREATE TABLE u (id INT)", "GRANT SELECT ON ALL TABLES IN SCHEMA local.public TO ROLE r",
        "GRANT SELECT, INSERT ON FUTURE TABLES IN SCHEMA local.public TO ROLE r",
        "CREATE TABLE later (id INT)",
    )  # fmt: skip
    assert sql.values("SELECT count(*) FROM u", "ANN") == [(0,)]
    assert sql.refused("INSERT INTO u VALUES (1)", "ANN").code == "003001"
    sql.run("INSERT INTO later VALUES (1)", user="ANN")
    future = sql.run("SHOW FUTURE GRANTS IN SCHEMA local.public")
    assert [(row["privilege"], row["grant_on"], row["name"]) for row in future] == [
        ("INSERT", "TABLE", "LOCAL.PUBLIC.<TABLE>"), ("SELECT", "TABLE", "LOCAL.PUBLIC.<TABLE>"),
    ]  # fmt: skip
    sql.run("REVOKE INSERT ON FUTURE TABLES IN SCHEMA local.public FROM ROLE r", "CREATE TABLE last (i INT)")
    assert len(sql.run("SHOW FUTURE GRANTS TO ROLE r")) == 1
    assert sql.refused("INSERT INTO last VALUES (1)", "ANN").code == "003001"
    sql.run(*USAGE, "CREATE ROLE other", "GRANT SELECT ON TABLE t TO ROLE r")
    assert sql.refused("GRANT SELECT ON TABLE t TO ROLE other", "ANN").code == "003001"
    sql.run("GRANT SELECT ON TABLE t TO ROLE r WITH GRANT OPTION")
    sql.run("GRANT SELECT ON TABLE t TO ROLE other", user="ANN")
    sql.run("REVOKE GRANT OPTION FOR SELECT ON TABLE t FROM ROLE r CASCADE")
    assert sql.refused("GRANT SELECT ON TABLE t TO ROLE other", "ANN").code == "003001"


def test_roles_are_used_and_inherited_by_those_they_were_granted_to(sql):
    sql.run("CREATE ROLE secret")
    error = sql.refused("USE ROLE secret", "ANN")
    assert error.code == "003013"
    assert "Requested role 'SECRET' is not assigned to the executing user" in error.message
    assert sql.refused("USE ROLE nowhere").code == "002043"
    sql.run("GRANT ROLE secret TO ROLE r", "GRANT ROLE r TO USER demo")
    sql.run("USE ROLE secret", user="ANN")
    assert sql.values("SELECT CURRENT_ROLE(), CURRENT_USER()", "ANN") == [("SECRET", "ANN")]
    sql.run("REVOKE ROLE secret FROM ROLE r")
    assert sql.refused("USE ROLE secret", "ANN").code == "003013"
    sql.run("CREATE ROLE IF NOT EXISTS r", "CREATE ROLE lower_", "GRANT ROLE lower_ TO ROLE r")
    assert "inherit itself" in sql.refused("GRANT ROLE r TO ROLE lower_").message
    assert "System role 'SYSADMIN' cannot be dropped" in sql.refused("DROP ROLE sysadmin").message
    assert sql.refused("GRANT ROLE accountadmin TO USER ann", "ANN").code == "003001"
    assert [row["role"] for row in sql.run("SHOW GRANTS TO USER ann")] == ["R"]
    (shown,) = sql.run("SHOW ROLES LIKE 'r'")
    assert (shown["assigned_to_users"], shown["granted_roles"], shown["owner"]) == (2, 1, "ACCOUNTADMIN")
    assert [row["name"] for row in sql.run("SHOW ROLES STARTS WITH 'SY' LIMIT 1")] == ["SYSADMIN"]


def test_secondary_roles_are_off_until_asked_for(sql):
    sql.run("GRANT ROLE r TO USER demo", "USE ROLE r")
    assert sql.refused("SELECT * FROM t").code == "002003"
    sql.run("USE SECONDARY ROLES ALL")
    assert sql.values("SELECT count(*) FROM t") == [(2,)]
    sql.run("USE SECONDARY ROLES NONE")
    assert sql.refused("SELECT * FROM t").code == "002003"


def test_grants_survive_a_restart_and_die_with_a_dropped_or_replaced_table(sql):
    sql.run(*USAGE, "GRANT SELECT ON TABLE t TO ROLE r", "CREATE WAREHOUSE w WAREHOUSE_SIZE = 'LARGE'")
    sql.restart()
    assert sql.values("SELECT count(*) FROM t", "ANN") == [(2,)]
    assert sql.run("SHOW WAREHOUSES LIKE 'w'")[0]["size"] == "Large"
    sql.run("CREATE OR REPLACE TABLE t (id INT)")
    assert sql.refused("SELECT * FROM t", "ANN").code == "002003"
    sql.run("GRANT SELECT ON TABLE t TO ROLE r", "DROP SCHEMA local.public", "CREATE SCHEMA local.public")
    assert not [row for row in sql.run("SHOW GRANTS TO ROLE r") if row["granted_on"] != "DATABASE"]


def _key() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).public_key()
    return base64.b64encode(
        key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    ).decode()


def test_secrets_of_users_show_once_or_never(sql):
    first, second = _key(), _key()
    sql.run(f"ALTER USER ann SET RSA_PUBLIC_KEY = '{first}', RSA_PUBLIC_KEY_2 = '{second}' EMAIL = 'a@b.c'")
    shown = {row["property"]: row["value"] for row in sql.run("DESCRIBE USER ann")}
    assert shown["RSA_PUBLIC_KEY_FP"] == fingerprint(public_key_pem(first))
    names = ("RSA_PUBLIC_KEY_2", "PASSWORD", "DEFAULT_ROLE", "EMAIL")
    assert [shown[name] for name in names] == [second, "********", "R", "a@b.c"]
    sql.run("ALTER USER ann UNSET RSA_PUBLIC_KEY_2")
    assert {r["property"]: r["value"] for r in sql.run("DESC USER ann")}["RSA_PUBLIC_KEY_2_FP"] == "null"
    for wrong in ("RSA_PUBLIC_KEY = 'c2VjcmV0'", "PASSWORD = 'c2VjcmV0"):
        assert "c2VjcmV0" not in sql.refused(f"ALTER USER ann SET {wrong}").message
    assert "correct horse" not in (sql.folder / "access.json").read_text()
    (made,) = sql.run("ALTER USER ann ADD PROGRAMMATIC ACCESS TOKEN ci ROLE_RESTRICTION = 'R'")
    assert made["token_name"] == "CI"
    assert made["token_secret"] not in (sql.folder / "access.json").read_text()
    assert sql.refused("ALTER USER ann ADD PAT ci").code == "002002"
    sql.run("ALTER USER ann REMOVE PAT ci")
    assert sql.refused("ALTER USER ann REMOVE PAT ci").code == "002043"
    assert sql.refused("ALTER USER demo ADD PAT mine", "ANN").code == "003001"


def test_users_are_made_by_those_who_may_with_keys_tokens_and_files_of_their_own(sql):
    assert "account 'LOCAL'" in sql.refused("CREATE USER bob", "ANN").message
    assert [row["name"] for row in sql.run("SHOW USERS", user="ANN")] == ["ANN"]
    assert [row["name"] for row in sql.run("SHOW USERS")] == ["ANN", "DEMO"]
    assert sql.refused("ALTER USER demo SET COMMENT = 'x'", "ANN").code == "003001"
    assert sql.refused("CREATE USER ann").code == "002002"
    assert sql.refused("CREATE USER x FAVOURITE_COLOUR = 'red'").code == "000002"
    assert "cannot be dropped" in sql.refused("DROP USER demo").message
    sql.run("CREATE USER IF NOT EXISTS ann", "DROP USER ann", "DROP USER IF EXISTS ann")
    assert sql.refused("DESCRIBE USER ann").code == "002043"
    sql.run("CREATE USER eve", "GRANT USAGE ON DATABASE local TO ROLE PUBLIC")
    sql.run("COPY INTO @~/mine/ FROM (SELECT 1)", user="EVE")
    assert len(sql.values("LIST @~", "EVE")) == 1
    sql.run("DROP USER eve", "CREATE USER eve")
    assert sql.values("LIST @~", "EVE") == []


def test_a_warehouse_remembers_its_size_and_state(sql):
    sql.run("CREATE WAREHOUSE w WITH WAREHOUSE_SIZE = XSMALL AUTO_SUSPEND = 60 INITIALLY_SUSPENDED = TRUE")
    (shown,) = sql.run("SHOW WAREHOUSES LIKE 'W'")
    assert (shown["state"], shown["size"], shown["auto_suspend"]) == ("SUSPENDED", "X-Small", 60)
    assert list(shown)[16:18] == ["other", "created_on"]  # which clients read by position
    error = sql.refused("ALTER WAREHOUSE w SUSPEND")
    assert (error.code, error.message) == ("090064", "Invalid state. Warehouse 'W' cannot be suspended.")
    sql.run("ALTER WAREHOUSE w RESUME", "ALTER WAREHOUSE w RESUME IF SUSPENDED")
    sql.run("ALTER WAREHOUSE w SET WAREHOUSE_SIZE = 'X-LARGE', COMMENT = 'big'", "USE WAREHOUSE w")
    (shown,) = sql.run("SHOW WAREHOUSES LIKE 'W'")
    assert (shown["size"], shown["started_clusters"]) == ("X-Large", 1)
    assert sql.refused("ALTER WAREHOUSE w SET WAREHOUSE_SIZE = 'HUGE'").code == "001008"
    assert sql.refused("USE WAREHOUSE w", "ANN").code == "002043"
    sql.run("GRANT USAGE ON WAREHOUSE w TO ROLE r")
    sql.run("USE WAREHOUSE w", user="ANN")
    assert sql.refused("ALTER WAREHOUSE w SUSPEND", "ANN").code == "003001"


def test_a_temporary_table_needs_no_privilege_but_that_on_a_table_it_hides(sql):
    sql.run(
        "CREATE ROLE loader", "GRANT USAGE ON DATABASE local TO ROLE loader", "CREATE TABLE kept (x INT)",
        "GRANT SELECT ON TABLE kept TO ROLE loader", "CREATE USER lou DEFAULT_ROLE = loader",
        "GRANT ROLE loader TO USER lou",
    )  # fmt: skip
    assert sql.refused("CREATE TEMPORARY TABLE staged (x INT)", user="LOU").code == "002003"
    sql.run("GRANT USAGE ON SCHEMA local.public TO ROLE loader")
    assert sql.refused("CREATE TABLE staged (x INT)", user="LOU").code == "003001"
    sql.run("CREATE TEMPORARY TABLE staged (x INT)", "INSERT INTO staged VALUES (1)", user="LOU")
    sql.run("CREATE TEMP TABLE two AS SELECT * FROM staged", "CREATE TEMP TABLE three CLONE two", user="LOU")
    assert sql.values("SELECT COUNT(*) FROM three", user="LOU") == [(1,)]
    for copied in ("(x INT)", "LIKE staged"):
        assert sql.refused(f"CREATE TEMPORARY TABLE kept {copied}", user="LOU").code == "003001"
    assert sql.values("SELECT COUNT(*) FROM kept", user="LOU") == [(0,)]

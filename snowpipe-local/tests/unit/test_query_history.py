"""QUERY_HISTORY, SESSIONS and LOGIN_HISTORY: the statements of the service, by SQL and over restarts."""

import dataclasses
import time

import pytest
from snowpipe_local import query_history
from snowpipe_local.query_history import QueryHistory, text_hash, without_secrets

HISTORY = "SELECT * FROM TABLE(INFORMATION_SCHEMA.QUERY_HISTORY{0}) ORDER BY start_time, query_id"


@pytest.fixture
def connector(service):
    return service.connect(CLIENT_APP_ID="Tests")


def rows(connector, statement):
    answer = connector.query(statement)
    assert answer["success"], answer["message"]
    names = [column["name"] for column in answer["data"]["rowtype"]]
    return [dict(zip(names, row, strict=True)) for row in answer["data"]["rowset"]]


def test_a_statement_shows_with_its_outcome(connector):
    connector.query("ALTER SESSION SET QUERY_TAG = 'nightly'")
    connector.query("CREATE TABLE t (a INT)")
    connector.query("INSERT INTO t VALUES (1), (2)")
    connector.query("SELECT * FROM nowhere")
    shown = {row["QUERY_TEXT"]: row for row in rows(connector, HISTORY.format("()"))}
    inserted, failed = shown["INSERT INTO t VALUES (1), (2)"], shown["SELECT * FROM nowhere"]
    assert (inserted["QUERY_TYPE"], inserted["EXECUTION_STATUS"]) == ("INSERT", "SUCCESS")
    assert (inserted["ROWS_PRODUCED"], inserted["QUERY_TAG"]) == ("2", "nightly")
    assert (inserted["USER_NAME"], inserted["DATABASE_NAME"], inserted["SCHEMA_NAME"]) == (
        "DEMO", "LOCAL", "PUBLIC",
    )  # fmt: skip
    assert (failed["EXECUTION_STATUS"], failed["ERROR_CODE"]) == ("FAILED_WITH_ERROR", "002003")
    assert "NOWHERE" in failed["ERROR_MESSAGE"]
    assert [row["EXECUTION_STATUS"] for row in shown.values()][-1] == "RUNNING"
    # Rows were counted by such names; a text in one kept the statement from ending.
    for name in ("rows_loaded", "number of rows inserted"):
        assert rows(connector, f"""SELECT 'x' AS "{name}" """) == [{name: "x"}]
    counted = "SELECT SUM(rows_inserted) AS n FROM snowflake.account_usage.query_history"
    assert rows(connector, counted) == [{"N": "2"}]


def test_arguments_choose_statements(service, connector):
    for number in range(3):
        connector.query(f"SELECT {number}")
    other = service.connect()
    other.query("SELECT 'other'")

    def texts(arguments, variant=""):
        statement = HISTORY.replace("QUERY_HISTORY", f"QUERY_HISTORY{variant}").format(arguments)
        return [
            row["QUERY_TEXT"] for row in rows(connector, statement) if row["EXECUTION_STATUS"] == "SUCCESS"
        ]

    assert texts("(RESULT_LIMIT => 2)") == ["SELECT 'other'"]
    assert "SELECT 'other'" not in texts("()", "_BY_SESSION")
    assert texts("(END_TIME_RANGE_START => DATEADD(hour, 1, CURRENT_TIMESTAMP()))") == []
    assert "SELECT 2" in texts("(DATEADD(hour, -1, CURRENT_TIMESTAMP()), CURRENT_TIMESTAMP(), 1000)")
    assert "SELECT 2" in texts("('DEMO')", "_BY_USER")
    assert texts("(USER_NAME => 'X')", "_BY_USER") == []
    assert texts("('NONE')", "_BY_WAREHOUSE") == []
    for arguments in ["(NO => 1)", "(RESULT_LIMIT => 0)", "(RESULT_LIMIT => 10001)"]:
        assert connector.query(HISTORY.format(arguments))["code"] == "001003"
    refused = connector.query("SELECT * FROM TABLE(INFORMATION_SCHEMA.TASK_HISTORY())")
    assert (refused["code"], "TASK_HISTORY" in refused["message"]) == ("000002", True)


def test_others_see_their_own_statements_and_those_of_warehouses_they_monitor(service, connector):
    for statement in (
        "CREATE WAREHOUSE w", "CREATE ROLE r", "GRANT USAGE ON DATABASE local TO ROLE r",
        "GRANT USAGE ON SCHEMA local.public TO ROLE r", "USE DATABASE local",
        "CREATE USER u PASSWORD = 'pass-of-u' DEFAULT_ROLE = r", "GRANT ROLE r TO USER u",
        "SELECT 'in w'",
    ):  # fmt: skip
        assert connector.query(statement)["success"], statement
    other = service.connect("U", "pass-of-u")

    def texts():
        return {row["QUERY_TEXT"] for row in rows(other, HISTORY.format("()"))}

    assert texts() == {HISTORY.format("()")}
    assert other.query("SELECT * FROM snowflake.account_usage.query_history")["code"] == "002003"
    connector.query("GRANT MONITOR ON WAREHOUSE w TO ROLE r")
    assert "SELECT 'in w'" in texts()


def test_the_account_s_view_has_user_client_statement_and_rows(service, connector):
    connector.query("CREATE TABLE t (a INT)")
    connector.query("INSERT INTO  t\n VALUES (1)")
    service.login("NOBODY", "wrong")
    sent = {"statement": "DELETE FROM local.public.t"}
    assert service.call("POST", "/api/v2/statements", sent, token=service.jwt()).status == 200
    inserted, deleted = rows(
        connector,
        "SELECT q.user_name, client_ip, client_application_id, reported_client_type, query_hash, "
        "rows_inserted, q.error_code FROM snowflake.account_usage.query_history q "
        "JOIN snowflake.account_usage.sessions s ON q.session_id = s.session_id "
        "JOIN snowflake.account_usage.login_history l ON l.event_id = s.login_event_id "
        "WHERE query_type IN ('INSERT', 'DELETE') ORDER BY start_time",
    )
    assert inserted | {"REPORTED_CLIENT_TYPE": ""} == {
        "USER_NAME": "DEMO", "CLIENT_IP": "127.0.0.1", "CLIENT_APPLICATION_ID": "Tests",
        "QUERY_HASH": text_hash("INSERT INTO t VALUES (1)"), "ROWS_INSERTED": "1", "ERROR_CODE": None,
        "REPORTED_CLIENT_TYPE": "",
    }  # fmt: skip
    assert deleted["REPORTED_CLIENT_TYPE"] == "SQL_API"
    (refused,) = rows(
        connector, "SELECT * FROM snowflake.account_usage.login_history WHERE is_success = 'NO'"
    )
    assert (refused["USER_NAME"], refused["ERROR_CODE"]) == ("NOBODY", "390100")


def test_secrets_are_not_kept_and_other_words_stay_as_they_are():
    for text in [
        "CREATE USER u PASSWORD = 'hidden'",
        "CREATE STAGE s URL = 's3://b' CREDENTIALS = (AWS_KEY_ID = 'hidden' AWS_SECRET_KEY = 'hidden')",
        "EXECUTE IMMEDIATE 'CREATE USER u PASSWORD = ''hidden'''",
        "EXECUTE IMMEDIATE $$CREATE USER u PASSWORD = 'hidden'$$",
        r"EXECUTE IMMEDIATE 'CREATE USER u PASSWORD = \'hidden\''", "CREATE USER u PASSWORD = 'hidden",
        'CREATE USER u PASSWORD = "hidden"', "CREATE USER u PASSWORD /* of u */ = -- so\n 'hidden'",
        "SELECT$$a$$;ALTER USER u SET PASSWORD='hidden'",
        "EXECUTE IMMEDIATE 'CREATE USER u PASSWORD = ' || '''hidden'''",
        "EXECUTE IMMEDIATE 'ALTER USER u SET PASS' || 'WORD = ''hidden'''",
        "BEGIN LET password VARCHAR := 'hidden'; END", "CREATE USER u PASSWORD = ('hidden')",
        "ALTER USER u SET \"PASSWORD\" = 'hidden'", "ALTER USER u SET PASSWORD = 'a' || 'hidden'",
        "CALL SYSTEM$X('PASSWORD', 'hidden')", "CREATE STAGE s URL='https://u:hidden@h/b'",
        "CREATE USER u COMMENT = '" + "x" * 99_950 + "' PASSWORD = 'hidden'",
    ]:  # fmt: skip
        assert "hidden" not in without_secrets(text)
        assert "***" in without_secrets(text)
    for text in (
        "CREATE TABLE t (password VARCHAR, token INT DEFAULT 1) COMMENT = 'it''s a token'",
        "SELECT * FROM t WHERE password = 'shown'",
        "COPY INTO tokens FROM '@s/a' FILE_FORMAT = (TYPE = 'CSV') ON_ERROR = 'CONTINUE'",
        "CREATE PIPE my_token AS COPY INTO t FROM '@s/a'",
        "CREATE TABLE user (password VARCHAR DEFAULT 'x', user_key INT) COMMENT = 'a' || 'b'",
    ):
        assert without_secrets(text) == text
    for unit in ["TOKEN", "TOKEN ", "TOKEN='", "TOKEN/*", "TOKEN=$$", 'TOKEN="', "'TOKEN'", "'"]:
        before = time.process_time()
        without_secrets("CREATE " + unit * (100_000 // len(unit)))
        assert time.process_time() - before < 3


def test_the_hash_of_a_statement_tries_out_no_secret(service, connector):
    for password in ("first", "second"):
        connector.query(f"ALTER USER demo SET PASSWORD = '{password}'")
    hashes = [entry.text_hash for entry in service.catalog.queries.statements()[-2:]]
    assert hashes[0] == hashes[1]


def statement(text):
    return query_history.Statement(text, text, "h", "SELECT", 1, "U", "R", None, None, None, None, "", 5)


def test_history_is_bounded_and_survives_a_restart(tmp_path, monkeypatch):
    monkeypatch.setattr(query_history, "MOST_STATEMENTS", 3)
    monkeypatch.setattr(query_history, "_FILE_BYTES", 2000)
    history = QueryHistory(tmp_path / "h.ndjson")
    for number in range(20):
        made = dataclasses.replace(statement(str(number)), end_ms=6, status="SUCCESS")
        history.begin(made)
        history.end(made)
    history.login(1, "U", "127.0.0.1", "c", 7)
    assert [s.query_id for s in history.statements()] == ["17", "18", "19"]
    with (tmp_path / "h.ndjson").open("a") as file:
        file.write('["statement", {"other": 1}]\n["statement", {"query')
    again = QueryHistory(tmp_path / "h.ndjson")
    assert again.statements() == history.statements()
    assert again.logins() == history.logins()
    again.login(2, "U", "127.0.0.1", "c", 8)
    assert [login.at_ms for login in QueryHistory(tmp_path / "h.ndjson").logins()] == [1, 2]
    again.close()
    history.close()
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 5000
    monkeypatch.setattr(query_history, "MOST_CHARACTERS", 10)
    history = QueryHistory()
    for text in ("12345678", "abcd", "efgh"):
        history.begin(statement(text))
    assert [s.text for s in history.statements()] == ["abcd", "efgh"]

"""``serve --init FILE.sql``: the declared setup of a service."""

import os
import signal
import threading

import pytest
from snowpipe_local.errors import ConfigurationError
from snowpipe_local.server import InitFile

SETUP = """-- The setup of a project; 'quoted; text' and; all
CREATE DATABASE d;
CREATE SCHEMA IF NOT EXISTS d.s;
CREATE TABLE d.s.t (a INT, b VARCHAR); -- a comment

/* another; one */
CREATE ROLE loader;
GRANT INSERT, SELECT ON TABLE d.s.t TO ROLE loader;
CREATE USER u PASSWORD = 'a; long password' DEFAULT_ROLE = loader;
GRANT ROLE loader TO USER u;
MERGE INTO d.s.t USING (SELECT 1 AS a) n ON t.a = n.a WHEN NOT MATCHED THEN INSERT (a, b) VALUES (n.a, 'x;y')
"""


@pytest.fixture
def file(tmp_path):
    return tmp_path / "setup.sql"


def run(local, file, text):
    file.write_text(text)
    InitFile.read(file).run(local.catalog, "DEMO")


def test_twice_has_the_same_effect_as_once(local, file):
    for _ in range(2):
        run(local, file, SETUP)
        assert local.sql("SELECT * FROM d.s.t") == [{"a": 1, "b": "x;y"}]
    assert [row["name"] for row in local.sql("SHOW ROLES LIKE 'loader'")] == ["LOADER"]
    assert len([row for row in local.sql("SHOW GRANTS TO ROLE loader") if row["granted_on"] == "TABLE"]) == 2


def test_a_wrong_statement_is_named_with_its_line_and_without_its_secrets(local, file):
    with pytest.raises(ConfigurationError) as error:
        run(local, file, "CREATE TABLE t (a INT);\n\n-- one\nDROP TABLE\n  nowhere;\nCREATE TABLE u (a INT)")
    for words in ("line 4", "002003", "DROP TABLE nowhere"):
        assert words in str(error.value)
    assert [row["name"] for row in local.sql("SHOW TABLES")] == ["T"]
    with pytest.raises(ConfigurationError) as error:
        run(local, file, "CREATE USER u PASSWORD = 'hidden' WRONG = 1")
    assert "hidden" not in str(error.value)


def test_a_signal_stops_a_statement_that_runs(local, file):
    class AskedError(Exception):
        pass

    def asked(*_signal):
        raise AskedError

    def ask_while_it_runs():
        while not any(session.is_busy for session in list(local.catalog.sessions.values())):
            if ended.wait(0.01):
                return
        os.kill(os.getpid(), signal.SIGUSR1)

    slow = "WITH n AS (SELECT SEQ4() AS i FROM TABLE(GENERATOR(ROWCOUNT => 40000))) "
    before = signal.signal(signal.SIGUSR1, asked)
    ended, asking = threading.Event(), threading.Thread(target=ask_while_it_runs)
    asking.start()
    try:
        with pytest.raises(AskedError):
            run(local, file, f"CREATE TABLE t AS {slow} SELECT SUM(a.i * b.i) AS s FROM n a, n b")
    finally:
        ended.set()
        asking.join()
        signal.signal(signal.SIGUSR1, before)
    assert local.sql("SHOW TABLES") == []


def test_what_cannot_run_at_every_start_is_refused_before_anything_runs(file):
    for text, word in [
        ("SELECT 1;\n-- rows\ninsert into t values (1)", "line 3"), ("PUT file:///a @s", "PUT"),
        ("SELECT 1;\n\nSELECT 'open\n", "setup.sql.*line 3"),
    ]:  # fmt: skip
        file.write_text(text)
        with pytest.raises(ConfigurationError, match=word):
            InitFile.read(file)

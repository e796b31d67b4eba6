"""What goes on while a statement writes: channels do, and what alters the statement's table waits for it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from snowpipe_local.sql import front, relations
from tests.unit.sql_sessions import SqlSessions
from tests.unit.streamed_table import StreamedTable, row

SECONDS = 10.0


@pytest.fixture
def held(monkeypatch):
    """Lets a statement that reads a GENERATOR with a TIMELIMIT write until the event is set."""
    reads, may_end = threading.Event(), threading.Event()

    class Clock:
        now = 0.0

        @classmethod
        def monotonic(cls) -> float:
            reads.set()
            cls.now += 1e9 if may_end.is_set() else 0.0
            return cls.now

    monkeypatch.setattr(relations, "time", Clock)
    yield reads, may_end
    may_end.set()


@contextmanager
def writing(
    sql: SqlSessions, held: tuple[threading.Event, threading.Event], statement: str
) -> Iterator[None]:
    """Run a statement on another thread while the block runs, and to its end behind it."""
    reads, may_end = held
    errors: list[BaseException] = []

    def run() -> None:
        try:
            front.execute(sql.session("DEMO", "ACCOUNTADMIN"), statement)
        except BaseException as error:  # noqa: BLE001 - raised below, on the test's thread
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert reads.wait(SECONDS)
        yield
        assert thread.is_alive()
    finally:
        may_end.set()
        thread.join(SECONDS)
    assert not errors, errors


def within(work) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


SLOW = "FROM TABLE(GENERATOR(TIMELIMIT => 60))"
LONG = {
    "insert": f"INSERT INTO filled SELECT 1, 'x' {SLOW}",
    "overwrite": f"INSERT OVERWRITE INTO filled SELECT 1, 'x' {SLOW}",
    "merge": f"MERGE INTO filled USING (SELECT 1 AS id {SLOW}) AS g ON filled.id = g.id "
    "WHEN NOT MATCHED THEN INSERT (id) VALUES (g.id)",
}
MADE = {"replace": f"CREATE OR REPLACE TABLE filled AS SELECT 1 AS id {SLOW}"}


@pytest.mark.parametrize("statement", [*LONG.values(), *MADE.values()], ids=[*LONG, *MADE])
def test_channels_are_opened_and_their_rows_committed_while_a_statement_writes(sql, held, statement):
    database = sql.catalog.database("LOCAL")
    filled, other = StreamedTable(database, "FILLED"), StreamedTable(database, "OTHER")
    sql.run("INSERT INTO filled VALUES (1, 'old'), (2, 'old')")
    same = statement in LONG.values()

    def stream() -> None:
        for table in (filled, other) if same else (other,):
            table.send(table.open(), row(7), token="7").durable.result(SECONDS)

    with writing(sql, held, statement):
        thread = within(stream)
        thread.join(SECONDS)
        assert not thread.is_alive()
        assert other.token() == "7"
        assert database.checkpoint() is not same  # it is postponed
    if same:
        assert (filled.token(), sql.values("SELECT COUNT(*) FROM filled WHERE id = 7")) == ("7", [(1,)])
        kept = 0 if "OVERWRITE" in statement else 1
        assert sql.values("SELECT COUNT(*) FROM filled WHERE id = 2") == [(kept,)]


@pytest.mark.parametrize(
    "change", ["ALTER TABLE filled ADD COLUMN more NUMBER", "DROP TABLE filled", "TRUNCATE TABLE filled"]
)
def test_what_alters_a_table_waits_for_its_writer_and_channels_of_others_commit(sql, held, change):
    sql.run("CREATE TABLE filled (id NUMBER, name VARCHAR)")
    other = StreamedTable(sql.catalog.database("LOCAL"), "OTHER")
    session = other.open()
    with writing(sql, held, LONG["insert"]):
        waits = within(lambda: sql.run(change))
        waits.join(0.3)
        assert waits.is_alive()
        other.send(session, row(1), token="1").durable.result(SECONDS)
        assert waits.is_alive()
    waits.join(SECONDS)
    assert not waits.is_alive()
    assert other.token() == "1"


def test_a_commit_that_adds_a_column_and_what_alters_a_table_do_not_wait_for_each_other(sql, held):
    sql.run("CREATE TABLE filled (id NUMBER, name VARCHAR)")
    other = StreamedTable(sql.catalog.database("LOCAL"), "OTHER")
    sql.run("ALTER TABLE other SET ENABLE_SCHEMA_EVOLUTION = TRUE")
    session = other.open()
    with writing(sql, held, LONG["insert"]):
        alters = within(lambda: sql.run("ALTER TABLE filled ADD COLUMN more NUMBER"))
        sent = other.send(session, b'{"ID":1,"ADDED":2}\n', token="1")
        alters.join(0.3)
        assert alters.is_alive()
    alters.join(SECONDS)
    sent.durable.result(SECONDS)
    assert not alters.is_alive()
    assert sql.values("SELECT id, added FROM other") == [(1, 2)]

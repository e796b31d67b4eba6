"""COPY in a transaction with a ledger: what a request commits, rolls back and waits for."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from snowpipe_local.engine import transactions
from snowpipe_local.sql.session import Session
from tests.unit.service_in_process import Connector, ServiceInProcess

from tests.waiting import wait_until

CLAIM = "UPDATE ledger SET state = 'loading' WHERE work = 'a' AND state = 'planned'"
COPY = "COPY INTO t FROM @s FILES = ('a.csv')"
DONE = (
    "UPDATE ledger SET state = 'loaded', loaded = (SELECT ARRAY_AGG(OBJECT_CONSTRUCT(*)) "
    "FROM TABLE(RESULT_SCAN(LAST_QUERY_ID()))) WHERE work = 'a'"
)
HISTORY = (
    "SELECT file_name, row_count FROM TABLE(INFORMATION_SCHEMA.COPY_HISTORY("
    "TABLE_NAME => 't', START_TIME => DATEADD(hour, -1, CURRENT_TIMESTAMP())))"
)


class Api:
    """The SQL API: each request is a session of its own."""

    def __init__(self, service: ServiceInProcess) -> None:
        self.service = service

    def run(self, *statements: str) -> tuple[int, list[list[str]]]:
        """Run statements as one request; return HTTP status and the rows of the last one."""
        body = {"statement": ";".join(statements), "database": "LOCAL", "schema": "PUBLIC"}
        body |= {"parameters": {"MULTI_STATEMENT_COUNT": str(len(statements))}}
        token = self.service.jwt()
        answer = self.service.call("POST", "/api/v2/statements", body, token=token)
        if answer.status == 200 and len(statements) > 1:
            last = answer.json()["statementHandles"][-1]
            answer = self.service.call("GET", f"/api/v2/statements/{last}", token=token)
        return answer.status, answer.json().get("data", [])

    def state(self) -> tuple[list[list[str]], ...]:
        """Return rows of the table, states of the ledger and files in the load history."""
        queries = ("SELECT id FROM t ORDER BY id", "SELECT state FROM ledger", HISTORY)
        return tuple(self.run(query)[1] for query in queries)

    def session(self, *statements: str) -> Connector:
        """Run statements in a new session of the connector."""
        session = self.service.connect()
        for statement in statements:
            assert session.query(statement)["success"]
        return session

    @contextmanager
    def waiting(self, work: Callable[[], object]) -> Iterator[list[object]]:
        """Run something in a thread that waits for a lock; after the block it must have ended."""
        found: list[object] = []
        thread = threading.Thread(target=lambda: found.append(work()))
        thread.start()
        wait_until(lambda: bool(self.service.catalog.locks.waiting))
        assert not found
        yield found
        thread.join()


NOTHING = ([], [["planned"]], [])
LOADED = ([["1"]], [["loaded"]], [["a.csv", "1"]])


@pytest.fixture
def api(service: ServiceInProcess) -> Api:
    made = Api(service)
    for statement in (
        "CREATE TABLE ledger (work VARCHAR, state VARCHAR, loaded VARIANT)",
        "INSERT INTO ledger SELECT 'a', 'planned', NULL", "CREATE TABLE t (id INT)", "CREATE STAGE s",
        "COPY INTO @s/a.csv FROM (SELECT 1) SINGLE = TRUE FILE_FORMAT = (TYPE = CSV COMPRESSION = NONE)",
    ):  # fmt: skip
        assert made.run(statement)[0] == 200
    return made


def test_rows_load_history_and_ledger_commit_together(api: Api) -> None:
    assert api.run("BEGIN", CLAIM, COPY, DONE, "COMMIT")[0] == 200
    assert api.state() == LOADED
    [[kept]] = api.run("SELECT loaded[0]:file || loaded[0]:status || loaded[0]:rows_loaded FROM ledger")[1]
    assert kept == "s/a.csvLOADED1"
    # A second one finds its work done, and the file loaded.
    assert api.run("BEGIN", CLAIM)[1] == [["0", "0"]]
    assert api.run(COPY)[1][0][1] == "LOAD_SKIPPED"


def test_nothing_is_left_of_a_request_that_does_not_commit(api: Api) -> None:
    for statements, status in [
        (("BEGIN", CLAIM, COPY, DONE, "ROLLBACK"), 200),
        # The session ends with the request, and an open transaction with the session.
        (("BEGIN", CLAIM, COPY, DONE), 200),
        # What follows a failed statement never runs.
        (("BEGIN", CLAIM, COPY, "SELECT 1/0", "COMMIT"), 422),
        (("BEGIN", CLAIM, COPY, DONE.replace("loaded =", "missing ="), "COMMIT"), 422),
        (("BEGIN", CLAIM, COPY.replace("a.csv", "missing.csv"), "COMMIT"), 422),
    ]:
        assert api.run(*statements)[0] == status
        assert api.state() == NOTHING
    # The load history has forgotten the file as well.
    assert api.run("BEGIN", CLAIM, COPY, DONE, "COMMIT")[0] == 200
    assert api.state() == LOADED


def test_ddl_and_a_later_failure_of_the_session_keep_a_copy(api: Api) -> None:
    session = api.session("BEGIN", CLAIM, COPY)
    assert not session.query("SELECT 1/0")["success"]
    assert session.query("COMMIT")["success"]
    assert api.state() == ([["1"]], [["loading"]], [["a.csv", "1"]])
    ddl = ("CREATE TABLE other (id INT)", "UPDATE ledger SET state = 'after'", "ROLLBACK")
    assert api.run("BEGIN", "INSERT INTO t VALUES (2)", *ddl)[0] == 200
    # The UPDATE after the DDL was committed by itself.
    assert api.state()[:2] == ([["1"], ["2"]], [["after"]])


@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK"])
def test_who_claims_the_same_work_waits_for_the_first_one(api: Api, ending: str) -> None:
    first = api.session("BEGIN", CLAIM, COPY, DONE)
    with api.waiting(lambda: api.run("BEGIN", "SELECT COUNT(*) FROM ledger", CLAIM)) as found:
        assert first.query(ending)["success"]
    assert found == [(200, [["0" if ending == "COMMIT" else "1", "0"]])]


def test_what_a_transaction_has_changed_before_it_waited_is_kept(api: Api) -> None:
    first = api.session("BEGIN", CLAIM)
    insert = "INSERT INTO ledger SELECT 'b', 'planned', NULL"
    second = api.session("BEGIN", insert, "SELECT * FROM ledger", COPY)
    with api.waiting(
        lambda: second.query("UPDATE ledger SET state = state || '!'")["data"]["rowset"]
    ) as found:
        assert first.query("COMMIT")["success"]
    assert found == [[["2", "0"]]]
    assert second.query("COMMIT")["success"]
    rows, states, _ = api.state()
    assert (rows, sorted(states)) == ([["1"]], [["loading!"], ["planned!"]])


def test_one_table_is_loaded_by_one_transaction_at_a_time(api: Api) -> None:
    first = api.session("BEGIN", COPY)
    with api.waiting(lambda: api.run("COPY INTO t FROM @s")) as found:
        assert first.query("COMMIT")["success"]
    assert found == [(200, [["Copy executed with 0 files processed."]])]
    assert api.state()[0] == [["1"]]


def test_a_wait_has_an_end(api: Api) -> None:
    first, second = api.session("BEGIN", CLAIM), api.session()
    for parameters in ({"LOCK_TIMEOUT": "0"}, {"LOCK_TIMEOUT": "1"}):
        answer = second.query(CLAIM, parameters=parameters)
        assert (answer["code"], "LOCK_TIMEOUT" in answer["message"]) == ("000625", True)
    assert second.query(CLAIM, parameters={"STATEMENT_TIMEOUT_IN_SECONDS": 1})["code"] == "000630"
    # The one that waited is as it was, and so is the one that it waited for.
    assert second.query("SELECT 1")["success"]
    assert first.query("COMMIT")["success"]
    assert api.state()[1] == [["loading"]]


def test_so_many_may_wait_for_one_table(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "_MOST_WAITERS", 1)
    first = api.session("BEGIN", CLAIM)
    with api.waiting(lambda: api.run(CLAIM)) as found:
        refused = api.session().query(CLAIM)
        assert (refused["code"], "waiters" in refused["message"]) == ("000625", True)
        assert first.query("ROLLBACK")["success"]
    assert found == [(200, [["1", "0"]])]


def test_of_two_transactions_that_wait_for_each_other_one_goes_on(api: Api) -> None:
    first, second = api.session("BEGIN", CLAIM), api.session("BEGIN", "DELETE FROM t")
    with api.waiting(lambda: first.query(COPY)):
        refused = second.query(CLAIM)
        assert (refused["code"], "deadlock" in refused["message"]) == ("000625", True)
        assert second.query("ROLLBACK")["success"]
    assert first.query("COMMIT")["success"]
    assert api.state()[:2] == ([["1"]], [["loading"]])


def test_an_idle_transaction_that_blocks_another_one_is_aborted(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = api.session("BEGIN", CLAIM, COPY)
    monkeypatch.setattr(transactions, "_IDLE_SECONDS", 0.0)
    assert api.run(CLAIM) == (200, [["1", "0"]])
    assert left.query("COMMIT")["code"] == "000625"
    assert left.query("ROLLBACK")["success"]
    assert api.state() == ([], [["loading"]], [])


def test_a_session_that_ends_while_it_waits_is_gone(api: Api) -> None:
    api.session("BEGIN", CLAIM)
    second = api.session()
    with api.waiting(lambda: second.query(CLAIM)["success"]) as found:
        catalog = api.service.catalog
        sessions = [known for known in catalog.sessions.values() if isinstance(known, Session)]
        [waiting] = [known for known in sessions if known.transaction in catalog.locks.waiting]
        waiting.end()
    assert found == [False]

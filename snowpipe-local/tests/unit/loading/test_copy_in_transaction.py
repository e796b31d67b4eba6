"""COPY in a transaction with a ledger: what a request commits, rolls back and waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable

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
        self._service = service

    def run(self, *statements: str) -> tuple[int, list[list[str]]]:
        """Run statements as one request; return HTTP status and the rows of the last one."""
        body = {
            "statement": ";".join(statements), "database": "LOCAL", "schema": "PUBLIC",
            "parameters": {"MULTI_STATEMENT_COUNT": str(len(statements))},
        }  # fmt: skip
        token = self._service.jwt()
        answer = self._service.call("POST", "/api/v2/statements", body, token=token)
        if answer.status == 200 and len(statements) > 1:
            last = answer.json()["statementHandles"][-1]
            answer = self._service.call("GET", f"/api/v2/statements/{last}", token=token)
        return answer.status, answer.json().get("data", [])

    def state(self) -> tuple[list[list[str]], list[list[str]], list[list[str]]]:
        """Return rows of the table, states of the ledger and files in the load history."""
        return tuple(  # type: ignore[return-value]
            self.run(query)[1]
            for query in ("SELECT id FROM t ORDER BY id", "SELECT state FROM ledger", HISTORY)
        )


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


def do(session: Connector, *statements: str) -> None:
    for statement in statements:
        assert session.query(statement)["success"]


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


def test_ddl_commits_what_came_before_it(api: Api) -> None:
    assert api.run("BEGIN", CLAIM, COPY, "CREATE TABLE other (id INT)", DONE, "ROLLBACK")[0] == 200
    # The UPDATE after it was committed by itself.
    assert api.state() == LOADED


def test_a_copy_is_kept_when_a_later_statement_of_the_session_fails(
    service: ServiceInProcess, api: Api
) -> None:
    session = service.connect()
    do(session, "BEGIN", CLAIM, COPY)
    assert not session.query("SELECT 1/0")["success"]
    assert session.query("COMMIT")["success"]
    assert api.state() == ([["1"]], [["loading"]], [["a.csv", "1"]])


# -- Two at the same time --------------------------------------------------------------------------------


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    return thread, found


def waits(service: ServiceInProcess) -> bool:
    return bool(service.catalog.locks.waiting)


@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK"])
def test_who_claims_the_same_work_waits_for_the_first_one(
    service: ServiceInProcess, api: Api, ending: str
) -> None:
    first = service.connect()
    do(first, "BEGIN", CLAIM, COPY, DONE)
    thread, found = in_thread(lambda: api.run("BEGIN", "SELECT COUNT(*) FROM ledger", CLAIM))
    wait_until(lambda: waits(service))
    assert not found
    assert first.query(ending)["success"]
    thread.join()
    claimed = "0" if ending == "COMMIT" else "1"
    assert found == [(200, [[claimed, "0"]])]


def test_what_a_transaction_has_changed_before_it_waited_is_kept(service: ServiceInProcess, api: Api) -> None:
    first, second = service.connect(), service.connect()
    do(first, "BEGIN", CLAIM)
    do(second, "BEGIN", "INSERT INTO ledger SELECT 'b', 'planned', NULL", "SELECT * FROM ledger", COPY)
    thread, found = in_thread(lambda: second.query("UPDATE ledger SET state = state || '!'"))
    wait_until(lambda: waits(service))
    assert first.query("COMMIT")["success"]
    thread.join()
    assert [answer["data"]["rowset"] for answer in found] == [[["2", "0"]]]  # type: ignore[index]
    assert second.query("COMMIT")["success"]
    assert sorted(api.state()[1]) == [["loading!"], ["planned!"]]
    assert api.state()[0] == [["1"]]


def test_one_table_is_loaded_by_one_transaction_at_a_time(service: ServiceInProcess, api: Api) -> None:
    first = service.connect()
    do(first, "BEGIN", COPY)
    thread, found = in_thread(lambda: api.run("COPY INTO t FROM @s"))
    wait_until(lambda: waits(service))
    assert first.query("COMMIT")["success"]
    thread.join()
    assert found == [(200, [["Copy executed with 0 files processed."]])]
    assert api.state()[0] == [["1"]]


def test_a_wait_has_an_end(service: ServiceInProcess, api: Api) -> None:
    first, second = service.connect(), service.connect()
    do(first, "BEGIN", CLAIM)
    for parameters in ({"LOCK_TIMEOUT": "0"}, {"LOCK_TIMEOUT": "1"}):
        answer = second.query(CLAIM, parameters=parameters)
        assert (answer["code"], "LOCK_TIMEOUT" in answer["message"]) == ("000625", True)
    assert second.query(CLAIM, parameters={"STATEMENT_TIMEOUT_IN_SECONDS": 1})["code"] == "000630"
    # The one that waited is as it was, and so is the one that it waited for.
    assert second.query("SELECT 1")["success"]
    assert first.query("COMMIT")["success"]
    assert api.state()[1] == [["loading"]]


def test_so_many_may_wait_for_one_table(
    service: ServiceInProcess, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "_MOST_WAITERS", 1)
    first = service.connect()
    do(first, "BEGIN", CLAIM)
    thread, found = in_thread(lambda: api.run(CLAIM))
    wait_until(lambda: waits(service))
    refused = service.connect().query(CLAIM)
    assert (refused["code"], "waiters" in refused["message"]) == ("000625", True)
    assert first.query("ROLLBACK")["success"]
    thread.join()
    assert found == [(200, [["1", "0"]])]


def test_of_two_transactions_that_wait_for_each_other_one_goes_on(
    service: ServiceInProcess, api: Api
) -> None:
    first, second = service.connect(), service.connect()
    for session, change in ((first, CLAIM), (second, "DELETE FROM t")):
        do(session, "BEGIN", change)
    thread, _ = in_thread(lambda: first.query(COPY))
    wait_until(lambda: waits(service))
    refused = second.query(CLAIM)
    assert (refused["code"], "deadlock" in refused["message"]) == ("000625", True)
    assert second.query("ROLLBACK")["success"]
    thread.join()
    assert first.query("COMMIT")["success"]
    assert api.state()[:2] == ([["1"]], [["loading"]])


def test_an_idle_transaction_that_blocks_another_one_is_aborted(
    service: ServiceInProcess, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = service.connect()
    do(left, "BEGIN", CLAIM, COPY)
    monkeypatch.setattr(transactions, "_IDLE_SECONDS", 0.0)
    assert api.run(CLAIM) == (200, [["1", "0"]])
    assert left.query("COMMIT")["code"] == "000625"
    assert left.query("ROLLBACK")["success"]
    assert api.state() == ([], [["loading"]], [])


def test_a_session_that_ends_while_it_waits_is_gone(service: ServiceInProcess, api: Api) -> None:
    first, second = service.connect(), service.connect()
    do(first, "BEGIN", CLAIM)
    thread, found = in_thread(lambda: second.query(CLAIM))
    wait_until(lambda: waits(service))
    [session] = [
        known
        for known in service.catalog.sessions.values()
        if isinstance(known, Session) and known.transaction in service.catalog.locks.waiting
    ]
    session.end()
    thread.join()
    assert [answer["success"] for answer in found] == [False]  # type: ignore[index]

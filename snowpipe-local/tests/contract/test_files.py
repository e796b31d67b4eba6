"""File pipes by Snowpipe's REST API, COPY and the load history, by the Python connector and plain HTTP."""

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import snowflake.connector
from tests.contract.account import SECONDS, Account

from tests.waiting import wait_until

Put = Callable[[str, dict[str, str]], None]


@pytest.fixture
def put(account: Account, tmp_path: Path) -> Put:
    """Upload files uncompressed to a stage."""

    def upload(stage: str, files: dict[str, str]) -> None:
        for name, text in files.items():
            (tmp_path / name).write_text(text)
            account.rows(f"PUT 'file://{tmp_path / name}' @{stage} AUTO_COMPRESS=FALSE OVERWRITE=TRUE")

    return upload


def new_pipe(account: Account) -> tuple[str, str, str]:
    """A table, a stage and a pipe between them."""
    table = account.new_table("id INT, s VARCHAR")
    account.rows(f"CREATE STAGE {table}_STAGE")
    account.rows(f"CREATE PIPE {table}_PIPE AS COPY INTO {table} FROM @{table}_STAGE")
    return table, f"{table}_STAGE", f"{account.database}.{account.schema}.{table}_PIPE"


def ask(account: Account, pipe: str, call: str, method: str = "GET", **more: Any) -> Any:
    params = {"requestId": str(uuid.uuid4()), **more.pop("params", {})}
    return account.call(method, f"/v1/data/pipes/{pipe}/{call}", params=params, **more)


def reported(account: Account, pipe: str, count: int) -> dict[str, Any]:
    """Wait until the report has so many files, and return them by path."""
    found: dict[str, Any] = {}

    def enough() -> bool:
        answer = ask(account, pipe, "insertReport")
        assert answer.status_code == 200, answer.text
        found.update({file["path"]: file for file in answer.json()["files"] if file["complete"]})
        return len(found) >= count

    wait_until(enough, seconds=SECONDS)
    return found


def test_submitted_files_are_loaded_once_and_reported(account: Account, put: Put) -> None:
    table, stage, pipe = new_pipe(account)
    put(stage, {"a.csv": "1,x\n2,y\n", "b.csv": "no number,x\n"})
    body = {"files": [{"path": "a.csv", "size": 8}, {"path": "b.csv"}]}
    answer = ask(account, pipe, "insertFiles", "POST", json=body)
    assert (answer.status_code, answer.json()["status"]) == (200, "success")
    files = reported(account, pipe, 2)
    assert (files["a.csv"]["status"], files["b.csv"]["status"]) == ("LOADED", "LOAD_FAILED")
    counted = [files["a.csv"][name] for name in ("rowsInserted", "rowsParsed", "errorsSeen")]
    assert counted == [2, 2, 0]
    assert files["b.csv"]["firstError"]
    mark = ask(account, pipe, "insertReport").json()["nextBeginMark"]
    assert ask(account, pipe, "insertFiles", "POST", json=body).status_code == 200
    put(stage, {"c.csv": "3,z\n"})
    ask(account, pipe, "insertFiles", "POST", json={"files": [{"path": "c.csv"}]})
    reported(account, pipe, 3)
    later = ask(account, pipe, "insertReport", params={"beginMark": mark}).json()["files"]
    assert {file["path"] for file in later} - {"b.csv"} == {"c.csv"}
    assert account.rows(f"SELECT id FROM {table} ORDER BY id") == [{"id": 1}, {"id": 2}, {"id": 3}]


def test_the_load_history_scan_covers_a_range(account: Account, put: Put) -> None:
    _, stage, pipe = new_pipe(account)
    put(stage, {"a.csv": "1,x\n"})
    ask(account, pipe, "insertFiles", "POST", json={"files": [{"path": "a.csv"}]})
    reported(account, pipe, 1)
    hour_ago = "to_char(dateadd(hour, -1, sysdate()), 'YYYY-MM-DD\"T\"HH24:MI:SS') || 'Z'"
    (start,) = account.rows(f'SELECT {hour_ago} AS "startTimeInclusive"')
    answer = ask(account, pipe, "loadHistoryScan", params={"startTimeInclusive": start["starttimeinclusive"]})
    assert answer.status_code == 200, answer.text
    names = "pipe completeResult startTimeInclusive rangeStartTime rangeEndTime files"
    assert set(names.split()) <= set(answer.json())
    assert [file["path"] for file in answer.json()["files"]] == ["a.csv"]


def test_unknown_pipes_and_too_many_files_are_refused_and_the_status_of_a_pipe_is_json(
    account: Account,
) -> None:
    _, _, pipe = new_pipe(account)
    assert ask(account, pipe + "X", "insertReport").status_code == 404
    files = [{"path": f"{number}.csv"} for number in range(5001)]
    assert ask(account, pipe, "insertFiles", "POST", json={"files": files}).status_code == 400

    def status() -> dict[str, Any]:
        (row,) = account.rows("SELECT SYSTEM$PIPE_STATUS(%s) AS s", pipe)
        return dict(json.loads(row["s"]))

    assert (status()["executionState"], status()["pendingFileCount"]) == ("RUNNING", 0)
    account.rows(f"ALTER PIPE {pipe} SET PIPE_EXECUTION_PAUSED = TRUE")
    assert status()["executionState"] == "PAUSED"


def test_copy_reports_each_file_and_loads_it_once(account: Account, put: Put) -> None:
    table, stage, _ = new_pipe(account)
    put(stage, {"a.csv": "1,x\n2,y\n", "b.csv": "3,z\nno number,x\n"})
    done = {
        row["file"].rpartition("/")[2]: row
        for row in account.rows(f"COPY INTO {table} FROM @{stage} ON_ERROR = CONTINUE")
    }
    assert (done["a.csv"]["status"], done["b.csv"]["status"]) == ("LOADED", "PARTIALLY_LOADED")
    partly = done["b.csv"]
    assert [partly[name] for name in ("rows_parsed", "rows_loaded", "errors_seen")] == [2, 1, 1]
    names = "error_limit first_error first_error_line first_error_character first_error_column_name"
    assert set(names.split()) <= set(partly)
    assert account.rows(f"COPY INTO {table} FROM @{stage} ON_ERROR = CONTINUE") == [
        {"status": "Copy executed with 0 files processed."}
    ]
    assert account.count(table) == 3


def test_copy_stops_at_an_error_with_nothing_loaded(account: Account, put: Put) -> None:
    table, stage, _ = new_pipe(account)
    put(stage, {"a.csv": "1,x\n", "b.csv": "no number,x\n"})
    with pytest.raises(snowflake.connector.errors.ProgrammingError) as refused:
        account.rows(f"COPY INTO {table} FROM @{stage}")
    assert refused.value.errno == 100038
    assert account.count(table) == 0


def test_the_load_history_lists_files_of_a_table(account: Account, put: Put) -> None:
    table, stage, _ = new_pipe(account)
    put(stage, {"a.csv": "1,x\n2,y\n"})
    account.rows(f"COPY INTO {table} FROM @{stage}")
    history = (
        "SELECT file_name, row_count, row_parsed, error_count, status, table_name, pipe_name FROM "
        "TABLE(information_schema.copy_history(table_name => %s, "
        "start_time => dateadd(hour, -1, current_timestamp())))"
    )
    (row,) = wait_until(lambda: account.rows(history, table), seconds=SECONDS)
    assert (row["file_name"], row["row_count"], row["row_parsed"], row["error_count"]) == ("a.csv", 2, 2, 0)
    assert (row["status"], row["table_name"], row["pipe_name"]) == ("Loaded", table, None)


def test_copy_and_its_mark_in_a_ledger_commit_as_one(account: Account, put: Put) -> None:
    """A guess until it was seen: load metadata is rolled back with the transaction of its COPY."""
    table, stage, _ = new_pipe(account)
    account.rows(f"CREATE TABLE {table}_LOADS (work VARCHAR, state VARCHAR, report ARRAY)")
    account.rows(f"INSERT INTO {table}_LOADS SELECT 'w', 'planned', NULL")
    put(stage, {"a.csv": "1,x\n2,y\n"})
    copy = f"COPY INTO {table} FROM @{stage} FILES = ('a.csv')"
    mark = (
        f"UPDATE {table}_LOADS SET state = 'loaded', report = r.report FROM (SELECT ARRAY_AGG(o) AS report "
        "FROM (SELECT OBJECT_CONSTRUCT(*) AS o FROM TABLE(RESULT_SCAN(LAST_QUERY_ID())))) AS r "
        "WHERE work = 'w' AND state = 'planned'"
    )
    check = 'SELECT 1 / "number of rows updated" AS own FROM TABLE(RESULT_SCAN(LAST_QUERY_ID()))'

    account.rows("BEGIN")
    account.rows(copy)
    account.rows("ROLLBACK")
    assert account.count(table) == 0
    for statement in ("BEGIN", copy, mark, check, "COMMIT"):
        account.rows(statement)
    assert account.count(table) == 2
    (row,) = account.rows(f"SELECT state, report[0]:rows_loaded::INT AS rows_loaded FROM {table}_LOADS")
    assert row == {"state": "loaded", "rows_loaded": 2}

    account.rows("BEGIN")
    account.rows(f"{copy} FORCE = TRUE")
    account.rows(mark)
    with pytest.raises(snowflake.connector.errors.ProgrammingError) as refused:
        account.rows(check)
    assert refused.value.errno == 100051
    account.rows("ROLLBACK")
    assert account.count(table) == 2

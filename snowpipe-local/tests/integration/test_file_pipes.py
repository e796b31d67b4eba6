"""File pipes: the Snowpipe REST API, queues that survive crashes, pausing, refreshing, and their reports."""

import datetime as dt
import json
import signal
import uuid
from typing import Any

import jwt
import psutil
import pytest
import requests
from snowpipe_local.testing import LocalService
from tests.contract.account import Account
from tests.streaming_rest import refused

from tests.waiting import wait_until


def call(
    service: LocalService, pipe: str, verb: str, *, token: str | None = None, **options: Any
) -> requests.Response:
    method = "POST" if verb == "insertFiles" else "GET"
    params = {"requestId": str(uuid.uuid4()), **options.pop("params", {})}
    path = f"/v1/data/pipes/{pipe}/{verb}"
    return Account.local(service).call(method, path, token=token, params=params, **options)


def insert(service: LocalService, pipe: str, *paths: str) -> dict[str, Any]:
    answer = call(service, pipe, "insertFiles", json={"files": [{"path": path} for path in paths]})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def report(service: LocalService, pipe: str, **params: str) -> dict[str, Any]:
    answer = call(service, pipe, "insertReport", params=params)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def wait_for_files(service: LocalService, pipe: str, count: int) -> list[dict[str, Any]]:
    wait_until(lambda: len(report(service, pipe)["files"]) >= count)
    return list(report(service, pipe)["files"])


def status(service: LocalService, pipe: str) -> dict[str, Any]:
    (row,) = service.sql(f"SELECT SYSTEM$PIPE_STATUS('{pipe}')")
    return dict(json.loads(next(iter(row.values()))))


def put(service: LocalService, path: str, *rows: str) -> None:
    """Write a CSV file of rows with two columns, such as ``1, 'x'``, into a stage."""
    values = ", ".join(f"({row})" for row in rows)
    options = "SINGLE = TRUE FILE_FORMAT = (COMPRESSION = NONE)"
    service.sql(f"COPY INTO @{path} FROM (SELECT * FROM VALUES {values}) {options}")


def make(service: LocalService, name: str, options: str = "", copy: str = "") -> str:
    """Create table, stage and pipe of one name; return the pipe's full name."""
    service.sql(f"CREATE TABLE {name} (id INT, name VARCHAR)")
    service.sql(f"CREATE STAGE {name}_stage")
    service.sql(f"CREATE PIPE {name}_pipe {options} AS COPY INTO {name} FROM @{name}_stage {copy}")
    return f"LOCAL.PUBLIC.{name.upper()}_PIPE"


def test_submitted_files_are_reported_with_their_times_and_what_is_wrong_with_them(
    local_service: LocalService,
) -> None:
    pipe = make(local_service, "fp1", copy="PATTERN = '.*[.]csv' ON_ERROR = CONTINUE")
    put(local_service, "fp1_stage/a.csv", "1, 'x'", "2, 'y'")
    put(local_service, "fp1_stage/b.csv", "'1', 'x'", "'bad', 'x'")
    put(local_service, "fp1_stage/b.txt", "2, 'x'")
    listed = {"data": "a.csv\nb.csv\n\nb.txt\ngone.csv\n", "headers": {"Content-Type": "text/plain"}}
    assert call(local_service, pipe, "insertFiles", **listed).json()["unmatchedPatternFiles"] == ["b.txt"]
    files = {file["path"]: file for file in wait_for_files(local_service, pipe, 3)}
    loaded, partly, gone = files["a.csv"], files["b.csv"], files["gone.csv"]
    assert (loaded["complete"], loaded["fileSize"], gone["status"]) == (True, 8, "LOAD_FAILED")
    received, inserted = (
        dt.datetime.fromisoformat(loaded[name]) for name in ("timeReceived", "lastInsertTime")
    )
    assert received <= inserted
    assert (partly["status"], partly["rowsInserted"], partly["errorsSeen"]) == ("PARTIALLY_LOADED", 1, 1)
    assert partly["firstError"] == "Numeric value 'bad' is not recognized"
    assert (partly["firstErrorLineNum"], partly["firstErrorCharacterPos"]) == (2, 1)
    assert partly["firstErrorColumnName"] == '"FP1"["ID":1]'
    assert "was not found" in gone["systemError"]
    start = {"startTimeInclusive": loaded["timeReceived"], "endTimeExclusive": loaded["timeReceived"]}
    assert call(local_service, pipe, "loadHistoryScan", params=start).json()["files"] == []


def test_names_credentials_and_bodies_are_checked(local_service: LocalService) -> None:
    pipe = make(local_service, "fp6")
    for wrong in (
        'LOCAL.PUBLIC."fp6_pipe"', "FP6_PIPE", "NO.PUBLIC.P", "LOCAL.PUBLIC.FP6",
        "LOCAL.PUBLIC.FP6-STREAMING",
    ):  # fmt: skip
        answer = call(local_service, wrong, "insertReport")
        assert (answer.status_code, answer.json()["code"]) == (404, "390404")
    for right in ('LOCAL.PUBLIC."FP6_PIPE"', "Local.Public.Fp6_Pipe"):
        assert call(local_service, right, "insertReport").status_code == 200
    pat = (local_service.data_dir / "demo_pat").read_text().strip()
    forged = jwt.encode({"sub": "LOCAL.DEMO"}, "x" * 32, algorithm="HS256")
    for token in (pat, forged, "nonsense"):
        assert call(local_service, pipe, "insertReport", token=token).status_code == 401
    assert call(local_service, pipe, "loadHistoryScan").status_code == 400
    assert call(local_service, pipe, "insertReport", params={"beginMark": "x"}).status_code == 400
    bodies: list[tuple[Any, int]] = [
        ({"files": [{"path": "x" * 1025}]}, 400), ({"files": [{"path": ""}]}, 400), ([], 400),
        ({"files": [{"path": "x", "size": "big"}]}, 400), ({"files": [{"path": "x"}] * 5000}, 200),
        ({"files": [{"path": "é" * 512, "size": 3}]}, 200),
    ]  # fmt: skip
    for body, code in bodies:
        assert call(local_service, pipe, "insertFiles", json=body).status_code == code, str(body)[:60]


def test_a_dropped_table_or_stage_stops_the_pipe_until_it_is_back(local_service: LocalService) -> None:
    pipe = make(local_service, "fp8")
    local_service.sql("DROP TABLE fp8")
    insert(local_service, pipe, "a.csv")
    assert status(local_service, pipe)["executionState"] == "STOPPED_MISSING_TABLE"
    local_service.sql("CREATE TABLE fp8 (id INT, name VARCHAR)")
    local_service.sql("DROP STAGE fp8_stage")
    wait_until(lambda: status(local_service, pipe)["executionState"] == "STOPPED_STAGE_DROPPED")
    local_service.sql("CREATE STAGE fp8_stage")
    put(local_service, "fp8_stage/a.csv", "1, 'x'")
    wait_for_files(local_service, pipe, 1)


def test_pipes_are_shown_described_commented_and_dropped(local_service: LocalService) -> None:
    make(local_service, "fp10", "COMMENT = 'it''s mine' AUTO_INGEST = TRUE", "PATTERN = '.*'")
    (row,) = local_service.sql("SHOW PIPES LIKE 'FP10%'")
    shown = [row[name] for name in ("name", "kind", "comment", "pattern")]
    assert shown == ["FP10_PIPE", "STAGE", "it's mine", ".*"]
    assert row["definition"].startswith("COPY INTO fp10 FROM @fp10_stage")
    local_service.sql("ALTER PIPE fp10_pipe SET COMMENT = 'yours'")
    assert local_service.sql("DESC PIPE fp10_pipe")[0]["comment"] == "yours"
    create = "fp10_pipe AS COPY INTO fp10 FROM @fp10_stage"
    assert "already exists" in refused(local_service, f"CREATE PIPE {create}")
    local_service.sql(f"CREATE PIPE IF NOT EXISTS {create}")
    local_service.sql("DROP PIPE fp10_pipe")
    assert "002003" in refused(local_service, "DESC PIPE fp10_pipe")
    local_service.sql("DROP PIPE IF EXISTS fp10_pipe")
    local_service.sql("ALTER PIPE IF EXISTS fp10_pipe SET PIPE_EXECUTION_PAUSED = TRUE")
    for option in ("PURGE = TRUE", "FILES = ('a')", "ON_ERROR = ABORT_STATEMENT"):
        reason = option.split()[2 if "ABORT" in option else 0]
        assert reason in refused(local_service, f"CREATE PIPE {create} {option}")
    for copy, reason in (
        ("COPY INTO fp10 FROM @~/x", "user stage"), ("COPY INTO fp10 FROM @nowhere", "002003"),
        ("COPY INTO nowhere FROM @fp10_stage", "002003"), ("SELECT 1", "syntax error"),
    ):  # fmt: skip
        assert reason in refused(local_service, f"CREATE PIPE fp11_pipe AS {copy}")


@pytest.mark.parametrize(
    "point", ["after-load-commit", pytest.param("before-load-commit", marks=pytest.mark.nightly)]
)
def test_a_crash_neither_loses_nor_doubles_a_submitted_file(crash_service: LocalService, point: str) -> None:
    service = crash_service
    pipe = make(service, "crash")
    files = [f"{number}.csv" for number in range(20)]
    for number, file in enumerate(files):
        put(service, f"crash_stage/{file}", f"{number}, 'x'")
    service.set_faults(f"kill-{point}=1")
    dying = psutil.Process(service.pid)
    insert(service, pipe, *files)
    assert dying.wait(timeout=300) == -signal.SIGKILL
    service.kill()
    service.restart()
    wait_for_files(service, pipe, 20)
    assert [row["ID"] for row in service.sql("SELECT id FROM crash ORDER BY id")] == list(range(20))
    assert len(report(service, pipe)["files"]) == 20
    assert status(service, pipe)["pendingFileCount"] == 0

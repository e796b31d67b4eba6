"""File pipes: the Snowpipe REST API, queues that survive crashes, pausing, refreshing, and their reports."""

from __future__ import annotations

import datetime as dt
import json
import signal
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import psutil
import pytest
import requests
import snowflake.connector
from snowpipe_local.testing import LocalService

from tests.waiting import wait_until


def call(
    service: LocalService, pipe: str, verb: str, *, token: str | None = None, **options: Any
) -> requests.Response:
    bearer = token or service.key_pair_jwt()
    return requests.request(
        "POST" if verb == "insertFiles" else "GET",
        f"{service.url}/v1/data/pipes/{pipe}/{verb}",
        params={"requestId": str(uuid.uuid4()), **options.pop("params", {})},
        headers={"Authorization": f"BEARER {bearer}", **options.pop("headers", {})},
        verify=str(service.ca_file),
        timeout=30,
        **options,
    )


def insert(service: LocalService, pipe: str, *paths: str) -> dict[str, Any]:
    answer = call(service, pipe, "insertFiles", json={"files": [{"path": path} for path in paths]})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def report(service: LocalService, pipe: str, **params: str) -> dict[str, Any]:
    answer = call(service, pipe, "insertReport", params=params)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def status(service: LocalService, pipe: str) -> dict[str, Any]:
    (row,) = service.sql(f"SELECT SYSTEM$PIPE_STATUS('{pipe}')")
    return dict(json.loads(next(iter(row.values()))))


def wait_for_files(service: LocalService, pipe: str, count: int) -> list[dict[str, Any]]:
    wait_until(lambda: len(report(service, pipe)["files"]) >= count)
    return list(report(service, pipe)["files"])


def numbers(service: LocalService, table: str) -> list[int]:
    return [row["ID"] for row in service.sql(f"SELECT id FROM {table} ORDER BY id")]


def put(service: LocalService, folder: Path, stage: str, files: dict[str, str]) -> None:
    """Upload files with PUT, uncompressed."""
    folder.mkdir(exist_ok=True, parents=True)
    for name, content in files.items():
        (folder / name).write_text(content)
    with snowflake.connector.connect(
        **service.connector_arguments,
    ) as connection:
        connection.cursor().execute(f"PUT 'file://{folder}/*' @{stage} AUTO_COMPRESS=FALSE OVERWRITE=TRUE")


@pytest.fixture
def uploads(
    local_service: LocalService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, dict[str, str]], None]:
    monkeypatch.setenv("SSL_CERT_FILE", str(local_service.ca_file))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(local_service.ca_file))
    return lambda stage, files: put(local_service, tmp_path / uuid.uuid4().hex, stage, files)


Uploads = Callable[[str, dict[str, str]], None]


def make(service: LocalService, name: str, options: str = "", copy: str = "") -> str:
    """Create table, stage and pipe of one name; return the pipe's full name."""
    service.sql(f"CREATE OR REPLACE TABLE {name} (id INT, name VARCHAR)")
    service.sql(f"CREATE OR REPLACE STAGE {name}_stage")
    service.sql(f"CREATE OR REPLACE PIPE {name}_pipe {options} AS COPY INTO {name} FROM @{name}_stage {copy}")
    return f"LOCAL.PUBLIC.{name.upper()}_PIPE"


def test_submitted_files_are_loaded_and_reported(local_service: LocalService, uploads: Uploads) -> None:
    pipe = make(local_service, "fp1")
    uploads("fp1_stage", {"a.csv": "1,x\n2,y\n", "b.csv": "bad,x\n", "c.csv": "3,z\n"})
    answer = insert(local_service, pipe, "a.csv", "b.csv", "c.csv", "gone.csv")
    assert answer["status"] == "success"
    uuid.UUID(answer["requestId"])
    files = {file["path"]: file for file in wait_for_files(local_service, pipe, 4)}
    assert numbers(local_service, "fp1") == [1, 2, 3]
    assert {name: file["status"] for name, file in files.items()} == {
        "a.csv": "LOADED",
        "b.csv": "LOAD_FAILED",
        "c.csv": "LOADED",
        "gone.csv": "LOAD_FAILED",
    }
    loaded, failed = files["a.csv"], files["b.csv"]
    assert (loaded["rowsInserted"], loaded["rowsParsed"], loaded["errorsSeen"]) == (2, 2, 0)
    assert (loaded["complete"], loaded["fileSize"]) == (True, 8)
    assert dt.datetime.fromisoformat(loaded["timeReceived"]) <= dt.datetime.fromisoformat(
        loaded["lastInsertTime"]
    )
    assert failed["firstError"] == "Numeric value 'bad' is not recognized"
    assert (failed["firstErrorLineNum"], failed["firstErrorCharacterPos"]) == (1, 1)
    assert failed["firstErrorColumnName"] == '"FP1"["ID":1]'
    assert "was not found" in files["gone.csv"]["systemError"]


def test_reports_continue_after_a_mark_and_history_scans_a_range(
    local_service: LocalService, uploads: Uploads
) -> None:
    pipe = make(local_service, "fp3")
    uploads("fp3_stage", {"a.csv": "1,x\n", "b.csv": "2,x\n"})
    insert(local_service, pipe, "a.csv")
    wait_for_files(local_service, pipe, 1)
    first = report(local_service, pipe)
    assert first["pipe"] == pipe
    assert first["completeResult"] is True
    insert(local_service, pipe, "b.csv")
    wait_for_files(local_service, pipe, 2)
    second = report(local_service, pipe, beginMark=first["nextBeginMark"])
    assert [file["path"] for file in second["files"]] == ["b.csv"]
    third = report(local_service, pipe, beginMark=second["nextBeginMark"])
    assert (third["files"], third["nextBeginMark"]) == ([], second["nextBeginMark"])
    hour_ago = (dt.datetime.now(dt.UTC) - dt.timedelta(hours=1)).isoformat()
    answer = call(local_service, pipe, "loadHistoryScan", params={"startTimeInclusive": hour_ago}).json()
    assert [file["path"] for file in answer["files"]] == ["a.csv", "b.csv"]
    assert answer["completeResult"] is True
    early = call(
        local_service,
        pipe,
        "loadHistoryScan",
        params={"startTimeInclusive": hour_ago, "endTimeExclusive": answer["rangeStartTime"]},
    ).json()
    assert early["files"] == []


def test_plain_text_lists_and_patterns(local_service: LocalService, uploads: Uploads) -> None:
    pipe = make(local_service, "fp4", copy="PATTERN = '.*[.]csv' ON_ERROR = CONTINUE")
    uploads("fp4_stage", {"a.csv": "1,x\nbad,y\n", "b.txt": "2,x\n"})
    answer = call(
        local_service, pipe, "insertFiles", data="a.csv\n\nb.txt\n", headers={"Content-Type": "text/plain"}
    ).json()
    assert answer["unmatchedPatternFiles"] == ["b.txt"]
    (file,) = wait_for_files(local_service, pipe, 1)
    assert (file["status"], file["rowsInserted"], file["errorsSeen"]) == ("PARTIALLY_LOADED", 1, 1)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"files": [{"path": "x"}] * 5001}, 400),
        ({"files": [{"path": "x" * 1025}]}, 400),
        ({"files": [{"path": ""}]}, 400),
        ({"files": [{"name": "x"}]}, 400),
        ({"files": [{"path": "x", "size": "big"}]}, 400),
        ({"files": "x"}, 400),
        ([], 400),
        ({"files": [{"path": "x"}] * 5000}, 200),
        ({"files": [{"path": "é" * 512, "size": 3}]}, 200),
    ],
    ids=["too many", "too long", "empty", "no path", "size", "no list", "array", "most", "longest"],
)
def test_limits_of_insert_files(local_service: LocalService, body: Any, code: int) -> None:
    local_service.sql("CREATE TABLE IF NOT EXISTS fp5 (id INT)")
    local_service.sql("CREATE STAGE IF NOT EXISTS fp5_stage")
    local_service.sql("CREATE PIPE IF NOT EXISTS fp5_pipe AS COPY INTO fp5 FROM @fp5_stage")
    assert call(local_service, "LOCAL.PUBLIC.FP5_PIPE", "insertFiles", json=body).status_code == code


def test_names_are_those_of_sql_and_credentials_are_key_pairs(local_service: LocalService) -> None:
    pipe = make(local_service, "fp6")
    for wrong in (
        'LOCAL.PUBLIC."fp6_pipe"',
        "FP6_PIPE",
        "NO.PUBLIC.P",
        "LOCAL.PUBLIC.FP6",
        "LOCAL.PUBLIC.FP6-STREAMING",
    ):
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


def test_a_dropped_table_or_stage_stops_the_pipe_until_it_is_back(
    local_service: LocalService, uploads: Uploads
) -> None:
    pipe = make(local_service, "fp8")
    local_service.sql("DROP TABLE fp8")
    insert(local_service, pipe, "a.csv")
    assert status(local_service, pipe)["executionState"] == "STOPPED_MISSING_TABLE"
    local_service.sql("CREATE TABLE fp8 (id INT, name VARCHAR)")
    local_service.sql("DROP STAGE fp8_stage")
    wait_until(lambda: status(local_service, pipe)["executionState"] == "STOPPED_STAGE_DROPPED")
    local_service.sql("CREATE STAGE fp8_stage")
    uploads("fp8_stage", {"a.csv": "1,x\n"})
    wait_for_files(local_service, pipe, 1)


def test_pipes_are_shown_described_commented_and_dropped(local_service: LocalService) -> None:
    make(local_service, "fp10", "COMMENT = 'it''s mine' AUTO_INGEST = TRUE", "PATTERN = '.*'")
    (row,) = local_service.sql("SHOW PIPES LIKE 'FP10%'")
    assert (row["name"], row["kind"], row["comment"], row["pattern"]) == (
        "FP10_PIPE",
        "STAGE",
        "it's mine",
        ".*",
    )
    assert row["definition"].startswith("COPY INTO fp10 FROM @fp10_stage")
    local_service.sql("ALTER PIPE fp10_pipe SET COMMENT = 'yours'")
    assert local_service.sql("DESC PIPE fp10_pipe")[0]["comment"] == "yours"
    assert "already exists" in refused(
        local_service, "CREATE PIPE fp10_pipe AS COPY INTO fp10 FROM @fp10_stage"
    )
    local_service.sql("CREATE PIPE IF NOT EXISTS fp10_pipe AS COPY INTO fp10 FROM @fp10_stage")
    local_service.sql("DROP PIPE fp10_pipe")
    assert "002003" in refused(local_service, "DESC PIPE fp10_pipe")
    local_service.sql("DROP PIPE IF EXISTS fp10_pipe")
    local_service.sql("ALTER PIPE IF EXISTS fp10_pipe SET PIPE_EXECUTION_PAUSED = TRUE")


def refused(service: LocalService, statement: str) -> str:
    done = service.cli("sql", statement)
    assert done.returncode == 1
    return done.stderr


@pytest.mark.parametrize(
    ("copy", "reason"),
    [
        ("COPY INTO fp11 FROM @fp11_stage PURGE = TRUE", "PURGE"),
        ("COPY INTO fp11 FROM @fp11_stage FORCE = TRUE", "FORCE"),
        ("COPY INTO fp11 FROM @fp11_stage SIZE_LIMIT = 5", "SIZE_LIMIT"),
        ("COPY INTO fp11 FROM @fp11_stage FILES = ('a')", "FILES"),
        ("COPY INTO fp11 FROM @fp11_stage RETURN_FAILED_ONLY = TRUE", "RETURN_FAILED_ONLY"),
        ("COPY INTO fp11 FROM @fp11_stage VALIDATION_MODE = RETURN_ERRORS", "VALIDATION_MODE"),
        ("COPY INTO fp11 FROM @fp11_stage ON_ERROR = ABORT_STATEMENT", "ABORT_STATEMENT"),
        ("COPY INTO fp11 FROM @~/x", "user stage"),
        ("COPY INTO fp11 FROM @nowhere", "002003"),
        ("COPY INTO nowhere FROM @fp11_stage", "002003"),
        ("SELECT 1", "syntax error"),
    ],
)
def test_a_copy_statement_that_no_pipe_allows_is_refused(
    local_service: LocalService, copy: str, reason: str
) -> None:
    local_service.sql("CREATE TABLE IF NOT EXISTS fp11 (id INT)")
    local_service.sql("CREATE STAGE IF NOT EXISTS fp11_stage")
    assert reason in refused(local_service, f"CREATE PIPE fp11_pipe AS {copy}")


@pytest.mark.parametrize(
    "point", ["after-load-commit", pytest.param("before-load-commit", marks=pytest.mark.nightly)]
)
def test_a_crash_neither_loses_nor_doubles_a_submitted_file(
    crash_service: LocalService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    service = crash_service
    monkeypatch.setenv("SSL_CERT_FILE", str(service.ca_file))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(service.ca_file))
    pipe = make(service, "crash")
    files = {f"{number}.csv": f"{number},x\n" for number in range(20)}
    put(service, tmp_path / "upload", "crash_stage", files)
    service.set_faults(f"kill-{point}=1")
    dying = psutil.Process(service.pid)
    insert(service, pipe, *files)
    assert dying.wait(timeout=300) == -signal.SIGKILL
    service.kill()
    service.restart()
    wait_for_files(service, pipe, 20)
    assert numbers(service, "crash") == list(range(20))
    assert len(report(service, pipe)["files"]) == 20
    assert status(service, pipe)["pendingFileCount"] == 0

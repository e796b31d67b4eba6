"""AUTO_INGEST: uploads, folders and events of buckets feed pipes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from snowpipe_local.testing import LocalService

from tests.s3_service import KEY_ID, SECRET, S3Service, s3_service


@pytest.fixture
def service(crash_service: LocalService) -> LocalService:
    return crash_service


@pytest.fixture
def folder(service: LocalService) -> Path:
    return service.new_folder()


def count(service: LocalService, table: str) -> int:
    return int(service.sql(f"SELECT count(*) AS n FROM {table}")[0]["N"])


def wait_for_rows(service: LocalService, table: str, rows: int) -> None:
    deadline = time.monotonic() + 240
    while (found := count(service, table)) < rows:
        assert time.monotonic() < deadline, f"{table} has {found} rows of {rows}"
    assert found == rows


def arrive(folder: Path, name: str, content: str) -> None:
    """Let a file arrive at once, as a careful writer does."""
    folder.mkdir(parents=True, exist_ok=True)
    hidden = folder.parent / f".{name}"
    hidden.write_text(content)
    hidden.rename(folder / name)


def test_files_of_a_folder_are_loaded_when_they_arrive(service: LocalService, folder: Path) -> None:
    arrive(folder / "in", "before.csv", "0\n")
    service.sql("CREATE TABLE watched (id INT)")
    service.sql(f"CREATE STAGE watched_stage URL = 'file://{folder}/'")
    service.sql("CREATE PIPE watched_pipe AUTO_INGEST = TRUE AS COPY INTO watched FROM @watched_stage/in/")
    arrive(folder / "in", "a.csv", "1\n")
    arrive(folder / "in" / "deep", "b.csv", "2\n")
    arrive(folder / "out", "c.csv", "3\n")
    wait_for_rows(service, "watched", 2)
    service.kill()
    arrive(folder / "in", "while-down.csv", "4\n")
    service.restart()
    wait_for_rows(service, "watched", 3)
    # Once for a pipe, even when the content changes; a file that failed is not tried again and again.
    arrive(folder / "in", "a.csv", "5\n")
    arrive(folder / "in", "bad.csv", "bad\n")
    arrive(folder / "in", "d.csv", "6\n")
    wait_for_rows(service, "watched", 4)
    assert sorted(row["ID"] for row in service.sql("SELECT id FROM watched")) == [1, 2, 4, 6]
    (row,) = service.sql(
        "SELECT count(*) AS n FROM TABLE(INFORMATION_SCHEMA.COPY_HISTORY(TABLE_NAME => 'WATCHED', "
        "START_TIME => '2020-01-01'::TIMESTAMP_LTZ, PIPE_NAME => 'WATCHED_PIPE')) "
        "WHERE status = 'Load failed'"
    )
    assert row["N"] == 1


def test_an_upload_to_an_internal_stage_is_loaded(
    service: LocalService, connect: Callable[[], Any], tmp_path: Path
) -> None:
    service.sql("CREATE TABLE uploaded (id INT)")
    service.sql("CREATE STAGE uploaded_stage")
    service.sql("CREATE PIPE uploaded_pipe AUTO_INGEST = TRUE AS COPY INTO uploaded FROM @uploaded_stage")
    (tmp_path / "a.csv").write_text("1\n2\n")
    with connect() as connection:
        connection.cursor().execute(f"PUT 'file://{tmp_path}/a.csv' @uploaded_stage")
    wait_for_rows(service, "uploaded", 2)
    service.sql("CREATE OR REPLACE STAGE uploaded_stage")
    (tmp_path / "b.csv").write_text("3\n")
    with connect() as connection:
        connection.cursor().execute(f"PUT 'file://{tmp_path}/b.csv' @uploaded_stage")
    wait_for_rows(service, "uploaded", 3)


@pytest.fixture
def connect(service: LocalService, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    import snowflake.connector

    monkeypatch.setenv("SSL_CERT_FILE", str(service.ca_file))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(service.ca_file))
    return lambda: snowflake.connector.connect(
        **service.connector_arguments,
    )


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Service]:
    with s3_service() as running:
        running.put("events", {"in/a b.csv": b"1\n", "in/b.csv": b"2\n", "out/c.csv": b"3\n"})
        yield running


def notify(service: LocalService, body: Any, token: str | None = None) -> requests.Response:
    bearer = token or service.key_pair_jwt()
    return requests.post(
        f"{service.url}/v1/notifications/s3",
        json=body,
        headers={"Authorization": f"Bearer {bearer}"},
        verify=str(service.ca_file),
        timeout=30,
    )


def event(key: str, name: str = "ObjectCreated:Put", bucket: str = "events") -> dict[str, Any]:
    return {"eventName": name, "s3": {"bucket": {"name": bucket}, "object": {"key": key, "size": 2}}}


def test_events_of_a_bucket_feed_the_pipes_on_it(service: LocalService, s3: S3Service) -> None:
    service.sql("CREATE TABLE bucketed (id INT)")
    service.sql(
        f"CREATE STAGE bucket_stage URL = 's3://events/in/' ENDPOINT = '{s3.endpoint}' "
        f"CREDENTIALS = (AWS_KEY_ID = '{KEY_ID}' AWS_SECRET_KEY = '{SECRET}')"
    )
    service.sql("CREATE PIPE bucket_pipe AUTO_INGEST = TRUE AS COPY INTO bucketed FROM @bucket_stage")
    service.sql("CREATE PIPE quiet_pipe AS COPY INTO bucketed FROM @bucket_stage")
    records = [
        event("in/a+b.csv"),
        event("out/c.csv"),
        event("in/b.csv", bucket="other"),
        event("in/b.csv", name="ObjectRemoved:Delete"),
    ]
    answer = notify(service, {"Records": records})
    assert (answer.status_code, answer.json()["queuedFiles"]) == (200, 1)
    wait_for_rows(service, "bucketed", 1)
    assert notify(service, {"Records": [event("in/b.csv"), event("in/a+b.csv")]}).json()["queuedFiles"] == 2
    wait_for_rows(service, "bucketed", 2)


@pytest.mark.parametrize("body", [{}, {"Records": 1}, {"Records": [{}]}, {"Records": [1]}, {"Message": "{"}])
def test_what_is_no_event_is_refused(service: LocalService, body: Any) -> None:
    assert notify(service, body).status_code == 400


def test_events_need_a_key_pair_token(service: LocalService) -> None:
    assert notify(service, {"Records": []}, token="nonsense").status_code == 401

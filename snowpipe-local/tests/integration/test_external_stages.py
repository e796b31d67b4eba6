"""External stages on an S3 service and on folders of this machine, and pipes that load what arrives there."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from snowpipe_local.catalog import Catalog
from snowpipe_local.errors import SqlError
from snowpipe_local.faults import Faults
from snowpipe_local.sql import front
from snowpipe_local.sql.session import Session
from snowpipe_local.sql.stage_references import resolve_location
from snowpipe_local.stages.storage import Outside, Storage
from snowpipe_local.testing import LocalService
from tests.contract.account import Account

from tests.conftest import ServiceFactory
from tests.s3_service import KEY_ID, SECRET, S3Service, s3_service
from tests.waiting import wait_until

FILES = {
    "in/2026/a.csv": b"1\n",
    "in/2026/b.csv.gz": b"22\n",
    "in/": b"",
    "input.csv": b"333\n",
    "in/with blank/\u00fc.csv": b"4\n",
}


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Service]:
    with s3_service() as service:
        service.put("lake", FILES)
        yield service


@pytest.fixture
def session(s3: S3Service, tmp_path: Path) -> Iterator[Session]:
    outside = Outside((), f"http://{s3.endpoint}", {"AWS_KEY_ID": KEY_ID, "AWS_SECRET_KEY": SECRET})
    catalog = Catalog(tmp_path, Faults(), storage=Storage(tmp_path / "staged", tmp_path, outside))
    yield Session(catalog, "DEMO", "LOCAL", "PUBLIC")
    catalog.close()


def _names(session: Session, statement: str) -> list[str]:
    return [row[0] for row in front.execute(session, statement).rows]


def test_a_bucket_is_listed_below_the_url_of_the_stage(session: Session) -> None:
    front.execute(session, "CREATE STAGE lake URL = 's3://lake/in/' STORAGE_INTEGRATION = my_integration")
    in_2026 = ["s3://lake/in/2026/a.csv", "s3://lake/in/2026/b.csv.gz"]
    assert _names(session, "LIST @lake") == [*in_2026, "s3://lake/in/with blank/\u00fc.csv"]
    assert _names(session, "LIST @lake PATTERN = '.*[.]gz'") == in_2026[1:]
    assert "MY_INTEGRATION" in front.execute(session, "SHOW STAGES").rows[0]
    # A URL without a closing slash is a prefix.
    front.execute(session, "CREATE STAGE prefix URL = 's3://lake/in'")
    assert len(_names(session, "LIST @prefix")) == 4
    assert _names(session, "LIST @prefix/2026/") == in_2026
    location, _ = resolve_location(session, "@prefix/2026/")
    assert location.path_of("a.csv") == location.list()[0].path
    assert location.metadata_name(location.list()[0]) == "in/2026/a.csv"


def test_an_object_is_read_from_a_private_file_as_it_was_listed_or_not_at_all(
    session: Session, s3: S3Service
) -> None:
    location, _ = resolve_location(session, "'s3://lake/in/2026/b'")
    (file,) = location.list()
    assert file.etag == hashlib.md5(b"22\n", usedforsecurity=False).hexdigest()
    with location.local_copy(file) as path:
        assert (path.read_bytes(), path.name.endswith(".csv.gz")) == (b"22\n", True)
        assert path.stat().st_mode & 0o077 == 0
    s3.put("swap", {"a": b"old"})
    location, _ = resolve_location(session, "'s3://swap/a'")
    (file,) = location.list()
    s3.client.put_object(Bucket="swap", Key="a", Body=b"new")
    with pytest.raises(SqlError, match=r"PreconditionFailed|412"), location.local_copy(file):
        pass
    assert list((session.catalog.storage.readable_folders[0] / "downloads").iterdir()) == []


def test_removing_deletes_the_objects(session: Session, s3: S3Service) -> None:
    s3.put("bin", {f"x/{number}": b"" for number in range(3)} | {"y": b""})
    front.execute(session, "CREATE STAGE bin URL = 's3://bin/'")
    assert len(_names(session, "REMOVE @bin/x")) == 3
    assert s3.keys("bin") == ["y"]


def test_what_cannot_be_done_with_a_bucket_is_refused_with_its_remedy(
    session: Session, tmp_path: Path
) -> None:
    for bucket in ("lake", "gone"):
        front.execute(session, f"CREATE STAGE {bucket} URL = 's3://{bucket}/'")
    session.moves_files = True
    refusals = [("PUT file:///x @lake", "external stage"), ("GET @lake file:///tmp", "external stage")]
    refusals.append(("LIST @gone", "s3://gone"))
    far = "s3.amazonaws.com 10.0.0.1:9000 127.0.0.1.nip.io 127.0.0.1@evil.example:80 localhost/x ftp://localhost"
    create = "CREATE STAGE far URL = 's3compat://b/' ENDPOINT ="
    refusals.extend((f"{create} '{endpoint}'", "ENDPOINT") for endpoint in far.split())
    for statement, reason in refusals:
        with pytest.raises(SqlError, match=reason):
            front.execute(session, statement)
    catalog = Catalog(tmp_path / "without", Faults())
    session = Session(catalog, "DEMO", "LOCAL", "PUBLIC")
    front.execute(session, "CREATE STAGE lake URL = 's3://lake/'")
    with pytest.raises(SqlError, match="--s3-endpoint"):
        front.execute(session, "LIST @lake")
    catalog.close()


def test_a_stage_has_its_own_endpoint_and_credentials_and_the_service_knows_one_for_plain_urls(
    s3: S3Service, service_factory: ServiceFactory
) -> None:
    service = service_factory(options=("--s3-endpoint", f"http://{s3.endpoint}"))
    service.sql("CREATE STAGE plain URL = 's3://lake/'")
    assert len(service.sql("LIST @plain")) == 4
    service.sql(
        f"CREATE STAGE lake URL = 's3compat://lake/in/' ENDPOINT = '{s3.endpoint}' "
        f"CREDENTIALS = (AWS_KEY_ID = '{KEY_ID}' AWS_SECRET_KEY = '{SECRET}')"
    )
    assert [row["name"] for row in service.sql("LIST @lake/2026")] == [
        "s3compat://lake/in/2026/a.csv",
        "s3compat://lake/in/2026/b.csv.gz",
    ]


def wait_for_rows(service: LocalService, table: str, rows: int) -> None:
    def found() -> list[int]:
        return [row["ID"] for row in service.sql(f"SELECT id FROM {table}")]

    wait_until(lambda: len(found()) >= rows, what=f"{rows} rows of {table}")
    assert len(found()) == rows


def arrive(folder: Path, name: str, content: str) -> None:
    """Let a file arrive at once, as a careful writer does."""
    folder.mkdir(parents=True, exist_ok=True)
    hidden = folder.parent / f".{name}"
    hidden.write_text(content)
    hidden.rename(folder / name)


def test_files_of_a_folder_are_loaded_when_they_arrive(crash_service: LocalService) -> None:
    service, folder = crash_service, crash_service.new_folder()
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


def test_an_unload_into_an_internal_stage_is_loaded_also_where_the_stage_was_replaced(
    crash_service: LocalService,
) -> None:
    service = crash_service
    service.sql("CREATE TABLE uploaded (id INT)")
    for rows, values in ((2, "(1), (2)"), (3, "(3)")):
        service.sql("CREATE OR REPLACE STAGE uploaded_stage")
        service.sql(
            "CREATE PIPE IF NOT EXISTS uploaded_pipe AUTO_INGEST = TRUE "
            "AS COPY INTO uploaded FROM @uploaded_stage"
        )
        service.sql(
            f"COPY INTO @uploaded_stage/a{rows}.csv FROM (SELECT * FROM VALUES {values}) SINGLE = TRUE"
        )
        wait_for_rows(service, "uploaded", rows)


def notify(service: LocalService, body: Any, token: str | None = None) -> requests.Response:
    return Account.local(service).call("POST", "/v1/notifications/s3", token=token, json=body)


def event(key: str, name: str = "ObjectCreated:Put", bucket: str = "events") -> dict[str, Any]:
    return {"eventName": name, "s3": {"bucket": {"name": bucket}, "object": {"key": key, "size": 2}}}


def test_events_of_a_bucket_feed_the_pipes_on_it(local_service: LocalService, s3: S3Service) -> None:
    service = local_service
    s3.put("events", {"in/a b.csv": b"1\n", "in/b.csv": b"2\n", "out/c.csv": b"3\n"})
    service.sql("CREATE TABLE bucketed (id INT)")
    service.sql(
        f"CREATE STAGE bucket_stage URL = 's3://events/in/' ENDPOINT = '{s3.endpoint}' "
        f"CREDENTIALS = (AWS_KEY_ID = '{KEY_ID}' AWS_SECRET_KEY = '{SECRET}')"
    )
    service.sql("CREATE PIPE bucket_pipe AUTO_INGEST = TRUE AS COPY INTO bucketed FROM @bucket_stage")
    service.sql("CREATE PIPE quiet_pipe AS COPY INTO bucketed FROM @bucket_stage")
    removed = event("in/b.csv", name="ObjectRemoved:Delete")
    records = [event("in/a+b.csv"), event("out/c.csv"), event("in/b.csv", bucket="other"), removed]
    answer = notify(service, {"Records": records})
    assert (answer.status_code, answer.json()["queuedFiles"]) == (200, 1)
    wait_for_rows(service, "bucketed", 1)
    assert notify(service, {"Records": [event("in/b.csv"), event("in/a+b.csv")]}).json()["queuedFiles"] == 2
    wait_for_rows(service, "bucketed", 2)
    for body in ({}, {"Records": 1}, {"Records": [{}]}, {"Records": [1]}, {"Message": "{"}):
        assert notify(service, body).status_code == 400
    assert notify(service, {"Records": []}, token="nonsense").status_code == 401

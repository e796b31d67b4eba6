"""External stages on an S3 service of this machine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from snowpipe_local.catalog import Catalog
from snowpipe_local.errors import SqlError
from snowpipe_local.faults import Faults
from snowpipe_local.sql import front
from snowpipe_local.sql.session import Session
from snowpipe_local.sql.stage_references import resolve_location
from snowpipe_local.stages.storage import Outside, Storage
from snowpipe_local.testing import LocalService

from tests.conftest import ServiceFactory
from tests.s3_service import KEY_ID, SECRET, S3Service, s3_service

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
    assert _names(session, "LIST @lake") == [
        "s3://lake/in/2026/a.csv",
        "s3://lake/in/2026/b.csv.gz",
        "s3://lake/in/with blank/\u00fc.csv",
    ]
    assert _names(session, "LIST @lake/2026/a") == ["s3://lake/in/2026/a.csv"]
    assert _names(session, "LIST @lake PATTERN = '.*[.]gz'") == ["s3://lake/in/2026/b.csv.gz"]
    shown = front.execute(session, "SHOW STAGES").rows[0]
    assert "MY_INTEGRATION" in shown


def test_a_url_without_closing_slash_is_a_prefix(session: Session) -> None:
    front.execute(session, "CREATE STAGE lake URL = 's3://lake/in'")
    assert len(_names(session, "LIST @lake")) == 4
    assert _names(session, "LIST @lake/2026/") == ["s3://lake/in/2026/a.csv", "s3://lake/in/2026/b.csv.gz"]
    location, _ = resolve_location(session, "@lake/2026/")
    assert location.path_of("a.csv") == location.list()[0].path
    assert location.metadata_name(location.list()[0]) == "in/2026/a.csv"


def test_an_object_is_read_from_a_private_file_that_goes_away(session: Session) -> None:
    location, rest = resolve_location(session, "'s3://lake/in/2026/b' x")
    assert rest == "x"
    (file,) = location.list()
    assert file.etag == hashlib.md5(b"22\n", usedforsecurity=False).hexdigest()
    assert location.listed_name(file) == "s3://lake/in/2026/b.csv.gz"
    with location.local_copy(file) as path:
        assert path.read_bytes() == b"22\n"
        assert path.name.endswith(".csv.gz")
        assert path.stat().st_mode & 0o077 == 0
    assert not path.exists()


def test_an_object_that_was_replaced_is_not_read_as_the_one_that_was_listed(
    session: Session, s3: S3Service
) -> None:
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


def test_putting_files_into_an_external_stage_is_refused(session: Session) -> None:
    front.execute(session, "CREATE STAGE lake URL = 's3://lake/'")
    session.moves_files = True
    for statement in ("PUT file:///x @lake", "GET @lake file:///tmp"):
        with pytest.raises(SqlError, match="external stage"):
            front.execute(session, statement)


def test_a_missing_bucket_is_an_error_that_names_it(session: Session) -> None:
    front.execute(session, "CREATE STAGE gone URL = 's3://gone/'")
    with pytest.raises(SqlError, match="s3://gone"):
        front.execute(session, "LIST @gone")


def test_without_an_endpoint_the_remedy_is_named(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path, Faults())
    session = Session(catalog, "DEMO", "LOCAL", "PUBLIC")
    front.execute(session, "CREATE STAGE lake URL = 's3://lake/'")
    with pytest.raises(SqlError, match="--s3-endpoint"):
        front.execute(session, "LIST @lake")
    catalog.close()


@pytest.mark.parametrize(
    "endpoint",
    [
        "s3.amazonaws.com",
        "10.0.0.1:9000",
        "127.0.0.1.nip.io",
        "127.0.0.1@evil.example:80",
        "localhost/x",
        "ftp://localhost",
    ],
)
def test_an_endpoint_of_another_machine_is_refused(session: Session, endpoint: str) -> None:
    with pytest.raises(SqlError, match="ENDPOINT"):
        front.execute(session, f"CREATE STAGE far URL = 's3compat://b/' ENDPOINT = '{endpoint}'")


def test_a_stage_brings_its_own_endpoint_and_credentials_and_keeps_them(
    s3: S3Service, crash_service: LocalService
) -> None:
    service = crash_service
    service.sql(
        f"CREATE STAGE lake URL = 's3compat://lake/in/' ENDPOINT = '{s3.endpoint}' "
        f"CREDENTIALS = (AWS_KEY_ID = '{KEY_ID}' AWS_SECRET_KEY = '{SECRET}')"
    )
    service.kill()
    service.start()
    assert [row["name"] for row in service.sql("LIST @lake/2026")] == [
        "s3compat://lake/in/2026/a.csv",
        "s3compat://lake/in/2026/b.csv.gz",
    ]


def test_the_service_knows_an_endpoint_for_plain_s3_urls(
    s3: S3Service, service_factory: ServiceFactory
) -> None:
    service = service_factory(options=("--s3-endpoint", f"http://{s3.endpoint}"))
    service.sql("CREATE STAGE lake URL = 's3://lake/'")
    assert len(service.sql("LIST @lake")) == 4

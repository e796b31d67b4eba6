"""A service that is killed while a file arrives keeps every file that it acknowledged, whole, and no part."""

import hashlib
import ssl
import uuid
from http.client import HTTPSConnection
from urllib.parse import urlsplit

import pytest
import snowflake.connector

from tests.local_service import LocalService
from tests.waiting import wait_until

CONTENT = b"0123456789" * 500_000


def test_an_acknowledged_file_survives_whole_and_nothing_of_an_upload_that_was_cut(
    admin_service: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = admin_service
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(service.ca_file))
    with snowflake.connector.connect(**service.connector_arguments) as connection:
        connection.cursor().execute("CREATE STAGE arrivals")
        answer = connection.cmd_query("PUT file:///x @arrivals", 1, uuid.uuid4(), is_file_transfer=True)
    stage = answer["data"]["stageInfo"]
    trusted = ssl.create_default_context(cafile=str(service.ca_file))
    headers = {"Authorization": f"Bearer {stage['creds']['GCS_ACCESS_TOKEN']}"}

    def upload(name: str, part: bytes) -> HTTPSConnection:
        http = HTTPSConnection(urlsplit(service.url).netloc, context=trusted, timeout=60)
        length = {"Content-Length": str(len(CONTENT))}
        http.request("PUT", f"/{stage['location']}{name}", body=part, headers={**headers, **length})
        return http

    assert upload("whole", CONTENT).getresponse().status == 200
    upload("cut", CONTENT[:-1])
    incoming = service.data_dir / "staged_files" / "incoming"
    wait_until(lambda: any(incoming.iterdir()), what="the part of a file")
    service.kill()
    service.start()

    (listed,) = service.sql("LIST @arrivals")
    expected = ("arrivals/whole", len(CONTENT), hashlib.md5(CONTENT, usedforsecurity=False).hexdigest())
    assert (listed["name"], listed["size"], listed["md5"]) == expected
    assert list(incoming.iterdir()) == []

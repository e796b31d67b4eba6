"""A service that is killed while files arrive keeps every file that it acknowledged, whole, and no part."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import requests
import snowflake.connector

from tests.local_service import LocalService
from tests.waiting import wait_until

_FILES_BEFORE_THE_KILL = 20
_WRITERS = 3


def _content(name: str) -> bytes:
    return hashlib.sha256(name.encode()).hexdigest().encode() * 5000


def _stage_of(service: LocalService) -> dict[str, Any]:
    """Make a stage; where its files go."""
    with snowflake.connector.connect(**service.connector_arguments) as connection:
        connection.cursor().execute("CREATE STAGE arrivals")
        answer = connection.cmd_query("PUT file:///x @arrivals", 1, uuid.uuid4(), is_file_transfer=True)
        found: dict[str, Any] = answer["data"]["stageInfo"]
    return found


def test_every_acknowledged_file_survives_whole(
    tmp_path: Path, service_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    service: LocalService = service_factory()
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(service.ca_file))
    stage = _stage_of(service)
    url = f"{service.url}/{stage['location']}"
    headers = {"Authorization": f"Bearer {stage['creds']['GCS_ACCESS_TOKEN']}"}
    stored, done = set[str](), Event()

    def names(writer: int) -> Iterator[str]:
        number = 0
        while not done.is_set():
            yield f"{writer}/{number}.bin"
            number += 1

    def upload(writer: int) -> None:
        for name in names(writer):
            try:
                answer = requests.put(url + name, data=_content(name), headers=headers, timeout=60)
            except requests.RequestException:
                # The service is down, or went down with this upload: nothing was promised.
                done.wait(0.05)
                continue
            if answer.status_code == 200:
                stored.add(name)

    with ThreadPoolExecutor(_WRITERS) as pool:
        writers = [pool.submit(upload, number) for number in range(_WRITERS)]
        try:
            wait_until(lambda: len(stored) >= _FILES_BEFORE_THE_KILL, what="files that are acknowledged")
            service.kill()
            service.start()
        finally:
            done.set()
    assert all(writer.result() is None for writer in writers)
    listed = {row["name"].removeprefix("arrivals/"): row for row in service.sql("LIST @arrivals")}
    assert stored <= set(listed)
    for name, row in listed.items():
        content = _content(name)
        expected = (len(content), hashlib.md5(content, usedforsecurity=False).hexdigest())
        assert (row["size"], row["md5"]) == expected, name
    assert list((service.data_dir / "staged_files" / "incoming").iterdir()) == []

"""A service that is killed while files arrive keeps every file that it acknowledged, whole, and no part."""

from __future__ import annotations

import hashlib
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.local_service import LocalService

_KILLS = 1
_FILES_BETWEEN_KILLS = 20
_WRITERS = 3


def _content(name: str) -> bytes:
    return hashlib.sha256(name.encode()).hexdigest().encode() * 5000


def _instructions(service: LocalService) -> dict[str, Any]:
    import snowflake.connector

    with snowflake.connector.connect(
        **service.connector_arguments,
    ) as connection:
        connection.cursor().execute("CREATE STAGE arrivals")
        answer = connection.cmd_query("PUT file:///x @arrivals", 1, uuid.uuid4(), is_file_transfer=True)
        data: dict[str, Any] = answer["data"]
    return data


def test_every_acknowledged_file_survives_whole(
    tmp_path: Path, service_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    service: LocalService = service_factory()
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(service.ca_file))
    data = _instructions(service)
    url = f"{service.url}/{data['stageInfo']['location']}"
    headers = {"Authorization": f"Bearer {data['stageInfo']['creds']['GCS_ACCESS_TOKEN']}"}
    stored: set[str] = set()
    enough, done = threading.Condition(), threading.Event()

    def upload(writer: int) -> None:
        number = 0
        while not done.is_set():
            name = f"{writer}/{number}.bin"
            number += 1
            try:
                answer = requests.put(url + name, data=_content(name), headers=headers, timeout=60)
            except requests.RequestException:
                # The service is down, or went down with this upload: nothing was promised.
                done.wait(0.05)
                continue
            if answer.status_code == 200:
                with enough:
                    stored.add(name)
                    enough.notify_all()

    writers = [threading.Thread(target=upload, args=(number,)) for number in range(_WRITERS)]
    for writer in writers:
        writer.start()
    try:
        for _ in range(_KILLS):
            with enough:
                target = len(stored) + _FILES_BETWEEN_KILLS
                assert enough.wait_for(lambda target=target: len(stored) >= target, 300)
            service.kill()
            service.start()
    finally:
        done.set()
        for writer in writers:
            writer.join()
    listed = {row["name"].removeprefix("arrivals/"): row for row in service.sql("LIST @arrivals")}
    assert stored <= set(listed)
    for name, row in listed.items():
        content = _content(name)
        expected = (len(content), hashlib.md5(content, usedforsecurity=False).hexdigest())
        assert (row["size"], row["md5"]) == expected, name
    assert list((service.data_dir / "staged_files" / "incoming").iterdir()) == []

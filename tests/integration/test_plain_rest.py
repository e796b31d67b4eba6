"""The streaming REST API by plain HTTP: a real curl, or requests where there is none."""

from __future__ import annotations

import gzip
import json
import shutil
import socket
import ssl
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import requests
import zstandard

from airflow_provider_snowpipe.local.accounts import sign_key_pair_jwt
from airflow_provider_snowpipe.local.datadir import DataDirectory
from airflow_provider_snowpipe.local.environment import fetch
from tests.local_service import LocalService

Answer = tuple[int, str, str]
Send = Callable[[str, str, Mapping[str, str], bytes | None], Answer]
BASE = "/v2/streaming/databases/LOCAL/schemas/PUBLIC"
DATA = "/v2/streaming/data/databases/LOCAL/schemas/PUBLIC"


def _by_curl(service: LocalService, folder: Path) -> Send:
    def send(method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        # Headers go through a file: a command line can be read by every user of the machine.
        config, content = folder / "curl.config", folder / "body"
        lines = [f'header = "{name}: {value}"' for name, value in headers.items()]
        if body is not None:
            content.write_bytes(body)
            lines.append(f'data-binary = "@{content}"')
        config.write_text("\n".join(lines))
        done = subprocess.run(
            [
                "curl", "--silent", "--show-error", "--max-time", "60", "--noproxy", "*", "--request", method,
                "--cacert", str(service.ca_file), "--config", str(config),
                "--write-out", "\n%{http_code} %{content_type}", service.url + path,
            ],
            capture_output=True, timeout=300, check=False, env={"PATH": "/usr/bin:/bin"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr.decode()
        text, _, told = done.stdout.decode().rpartition("\n")
        status, _, kind = told.partition(" ")
        return int(status), kind, text

    return send


def _by_requests(service: LocalService, _folder: Path) -> Send:
    http = requests.Session()
    http.trust_env = False

    def send(method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        answer = http.request(
            method, service.url + path, headers=headers, data=body, verify=str(service.ca_file), timeout=60
        )
        return answer.status_code, answer.headers["content-type"], answer.text

    return send


class Rest:
    """One client of the REST API."""

    def __init__(self, send: Send, service: LocalService) -> None:
        self.send = send
        self.service = service
        self.token = self.exchange()

    def exchange(self) -> str:
        """Go through hostname and token exchange."""
        jwt = {"Authorization": f"Bearer {sign_key_pair_jwt(DataDirectory(self.service.data_dir))}"}
        assert self.send("GET", "/v2/streaming/hostname", jwt, None) == (
            200, "text/plain; charset=utf-8", "127.0.0.1",
        )  # fmt: skip
        form = {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "scope": "127.0.0.1"}
        headers = {**jwt, "Content-Type": "application/x-www-form-urlencoded"}
        status, kind, token = self.send("POST", "/oauth/token", headers, urlencode(form).encode())
        assert (status, kind, token.count(".")) == (200, "text/plain; charset=utf-8", 2)
        return token

    def call(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send with the scoped token."""
        return self.send(method, path, {"Authorization": f"Bearer {self.token}", **(headers or {})}, body)

    def sql(self, statement: str) -> list[dict[str, Any]]:
        """Run one statement without a process of its own."""
        names, rows = fetch(DataDirectory(self.service.data_dir), statement)
        return [dict(zip(names, row, strict=True)) for row in rows]

    def open(self, table: str) -> str:
        """Make a new table, open the channel ``c`` of it and return the continuation token."""
        self.sql(f"CREATE OR REPLACE TABLE {table} (id INT, s VARCHAR)")
        status, _, text = self.call("PUT", f"{BASE}/pipes/{table}-STREAMING/channels/c", b"{}")
        assert status == 200, text
        token: str = json.loads(text)["next_continuation_token"]
        return token

    def append(
        self, table: str, body: bytes, headers: Mapping[str, str] | None = None, **query: str
    ) -> Answer:
        """Append to the channel ``c``."""
        sent = urlencode({"requestId": str(uuid.uuid4()), **query})
        return self.call("POST", f"{DATA}/pipes/{table}-STREAMING/channels/c/rows?{sent}", body, headers)

    def committed(self, table: str) -> str | None:
        """Return the committed token of the channel ``c``."""
        path = f"{BASE}/pipes/{table}-STREAMING:bulk-channel-status"
        status, _, text = self.call("POST", path, b'{"channel_names":["c"]}')
        assert status == 200, text
        token: str | None = json.loads(text)["channel_statuses"]["c"]["last_committed_offset_token"]
        return token

    def wait(self, table: str, token: str) -> None:
        """Wait until the channel ``c`` has committed a token."""
        deadline = time.monotonic() + 240
        while self.committed(table) != token:
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.fixture
def rest(local_service: LocalService, tmp_path: Path) -> Rest:
    make = _by_requests if shutil.which("curl") is None else _by_curl
    return Rest(make(local_service, tmp_path), local_service)


@pytest.mark.parametrize("encoding", ["identity", "gzip", "zstd", None])
def test_rows_arrive_in_every_encoding(rest: Rest, encoding: str | None) -> None:
    body = b'{"id":1,"s":"a"}\n{"id":2,"s":"\xc3\xa4"}\n'
    encoded = {"gzip": gzip.compress, "zstd": zstandard.compress}.get(str(encoding), bytes)(body)
    token = rest.open("ENCODED")
    headers = {"Content-Type": "application/x-ndjson"} | ({"Content-Encoding": encoding} if encoding else {})
    sent = {"continuationToken": token, "startOffsetToken": "1", "endOffsetToken": "2"}
    status, kind, text = rest.append("ENCODED", encoded, headers, **sent)
    assert (status, kind) == (200, "application/json"), text
    assert list(json.loads(text)) == ["next_continuation_token"]
    rest.wait("ENCODED", "2")
    rows = rest.sql("SELECT id, s FROM encoded ORDER BY id")
    assert rows == [{"ID": 1, "S": "a"}, {"ID": 2, "S": "\u00e4"}]


def test_the_single_offset_token_of_older_clients_is_committed(rest: Rest) -> None:
    token = rest.open("OLDER")
    assert rest.append("OLDER", b'{"id":1}\n', continuationToken=token, offsetToken="7")[0] == 200
    rest.wait("OLDER", "7")


def test_an_end_offset_token_wins_over_the_single_one(rest: Rest) -> None:
    token = rest.open("BOTH")
    sent = {"continuationToken": token, "offsetToken": "7", "endOffsetToken": "8"}
    assert rest.append("BOTH", b'{"id":1}\n', **sent)[0] == 200
    rest.wait("BOTH", "8")


def test_a_body_of_four_mebibytes_is_taken_and_one_byte_more_is_not(rest: Rest) -> None:
    token = rest.open("LARGE")
    row = b'{"id":1}' + b" " * 1015 + b"\n"
    body = row * 4096
    assert len(body) == 4 << 20
    status, _, text = rest.append("LARGE", body + b"\n", continuationToken=token, endOffsetToken="1")
    assert (status, json.loads(text)["code"]) == (413, "REQUEST_TOO_LARGE")
    assert rest.append("LARGE", body, continuationToken=token, endOffsetToken="1")[0] == 200
    rest.wait("LARGE", "1")
    assert rest.sql("SELECT count(*) n FROM large") == [{"N": 4096}]


def test_rows_of_the_tables_route_are_durable_when_it_answers(rest: Rest) -> None:
    rest.sql("CREATE OR REPLACE TABLE elastic (id INT, s VARCHAR)")
    path = f"{DATA}/tables/ELASTIC/rows?requestId={uuid.uuid4()}"
    for _ in range(2):
        status, _, text = rest.call("POST", path, b'{"id":1}\n{"id":2}\n')
        assert (status, json.loads(text)["message"]) == (200, "OK")
    assert rest.sql("SELECT count(*) n FROM elastic") == [{"N": 2}]
    assert [pipe["name"] for pipe in rest.sql("SHOW PIPES LIKE 'ELASTIC%'")] == ["ELASTIC-STREAMING"]


@pytest.mark.parametrize("name", ["offsetToken", "startOffsetToken", "endOffsetToken", "continuationToken"])
def test_the_tables_route_takes_no_tokens(rest: Rest, name: str) -> None:
    rest.sql("CREATE TABLE IF NOT EXISTS untold (id INT)")
    path = f"{DATA}/tables/UNTOLD/rows?requestId={uuid.uuid4()}&{name}=1"
    status, _, text = rest.call("POST", path, b'{"id":1}\n')
    assert (status, json.loads(text)["code"]) == (400, "INVALID_REQUEST")


def test_a_dropped_channel_is_gone_and_says_what_it_had_committed(rest: Rest) -> None:
    token = rest.open("DROPPED")
    assert rest.append("DROPPED", b'{"id":1}\n', continuationToken=token, endOffsetToken="4")[0] == 200
    rest.wait("DROPPED", "4")
    status, _, text = rest.call("DELETE", f"{BASE}/pipes/DROPPED-STREAMING/channels/c")
    assert (status, json.loads(text)) == (200, {"last_committed_offset_token": "4"})
    status, _, text = rest.append("DROPPED", b'{"id":1}\n', continuationToken=token)
    assert (status, json.loads(text)["code"]) == (404, "ERR_CHANNEL_DOES_NOT_EXIST_OR_NOT_AUTHORIZED")


def _raw(service: LocalService, head: str, body: bytes, *, end: bool) -> bytes:
    """Send bytes as they are and return what comes back until the connection ends or is silent."""
    context = ssl.create_default_context(cafile=str(service.ca_file))
    with (
        socket.create_connection(("127.0.0.1", service.port), timeout=240) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
    ):
        secured.sendall(head.encode() + body)
        if end:
            secured.unwrap()
            return b""
        answer = b""
        while b"\r\n\r\n" not in answer or not answer.endswith(b"}"):
            part = secured.recv(65536)
            if not part:
                break
            answer += part
        return answer


def _head(rest: Rest, table: str, token: str, *more: str) -> str:
    query = urlencode({"requestId": str(uuid.uuid4()), "continuationToken": token, "endOffsetToken": "1"})
    lines = [
        f"POST {DATA}/pipes/{table}-STREAMING/channels/c/rows?{query} HTTP/1.1", "Host: 127.0.0.1",
        f"Authorization: Bearer {rest.token}", *more, "", "",
    ]  # fmt: skip
    return "\r\n".join(lines)


def test_a_body_shorter_than_its_content_length_is_never_appended(
    local_service: LocalService, tmp_path: Path
) -> None:
    rest = Rest(_by_requests(local_service, tmp_path), local_service)
    token = rest.open("SHORT")
    _raw(local_service, _head(rest, "SHORT", token, "Content-Length: 500"), b'{"id":666}\n', end=True)
    assert rest.append("SHORT", b'{"id":1}\n', continuationToken=token, endOffsetToken="2")[0] == 200
    rest.wait("SHORT", "2")
    assert rest.sql("SELECT id FROM short") == [{"ID": 1}]


def test_bytes_beyond_the_content_length_are_no_part_of_the_body(
    local_service: LocalService, tmp_path: Path
) -> None:
    rest = Rest(_by_requests(local_service, tmp_path), local_service)
    token = rest.open("BEYOND")
    head = _head(rest, "BEYOND", token, "Content-Length: 9")
    answer = _raw(local_service, head, b'{"id":1}\n{"id":666}\n', end=False)
    # The rest is no request, so the connection ends with a 400, ahead of the append's own answer or after it.
    assert answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 400")), answer
    # Sent again, as after every unknown end, the append is answered and its rows are there once.
    again = _raw(local_service, head, b'{"id":1}\n', end=False)
    assert again.startswith(b"HTTP/1.1 200"), again
    rest.wait("BEYOND", "1")
    assert rest.sql("SELECT id FROM beyond") == [{"ID": 1}]


@pytest.mark.parametrize(
    "lines",
    [
        ("Content-Length: -5",),
        ("Content-Length: 9x",),
        ("Content-Length: 9", "Content-Length: 5"),
        ("Content-Length: 9", "Transfer-Encoding: chunked"),
        ("Content-Length: 99999999999999999999999",),
    ],
    ids=["negative", "no-number", "two", "and-chunked", "endless"],
)
def test_a_content_length_that_contradicts_itself_appends_nothing(
    local_service: LocalService, tmp_path: Path, lines: tuple[str, ...]
) -> None:
    rest = Rest(_by_requests(local_service, tmp_path), local_service)
    token = rest.open("CONTRADICTING")
    answer = _raw(local_service, _head(rest, "CONTRADICTING", token, *lines), b'{"id":666}\n', end=False)
    assert answer.startswith(b"HTTP/1.1 400"), answer
    assert rest.append("CONTRADICTING", b'{"id":1}\n', continuationToken=token, endOffsetToken="2")[0] == 200
    rest.wait("CONTRADICTING", "2")
    assert rest.sql("SELECT id FROM contradicting") == [{"ID": 1}]

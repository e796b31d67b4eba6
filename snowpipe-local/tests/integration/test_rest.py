"""The streaming REST API: its refusals, the edges of its documentation, and bytes that no client sends."""

import socket
import ssl
import uuid
from pathlib import Path
from urllib.parse import urlencode

import pytest
from snowpipe_local.testing import LocalService
from tests.streaming_rest import Rest, continuation

DATA = "/v2/streaming/data/databases/LOCAL/schemas/PUBLIC"
ROW = b'{"id":1}\n'


@pytest.fixture
def rest(local_service: LocalService) -> Rest:
    local_service.sql("CREATE OR REPLACE TABLE t (id INT, name VARCHAR(10))")
    return Rest(local_service, "T")


@pytest.fixture
def token(rest: Rest) -> str:
    """The continuation token of a new channel ``c``."""
    return continuation(rest.open("c"))


def ids(service: LocalService) -> list[int]:
    return [row["ID"] for row in service.sql("SELECT id FROM t ORDER BY id")]


@pytest.mark.parametrize("end", ["", "8"], ids=["alone", "beside-an-end"])
def test_single_offset_token_of_older_clients_is_committed_where_no_end_is_given(
    rest: Rest, token: str, end: str
) -> None:
    assert rest.append("c", token, ROW, end, params={"offsetToken": "7"}).status_code == 200
    rest.wait_for_token("c", end or "7")


def _raw(service: LocalService, head: str, body: bytes, *, end: bool = False) -> bytes:
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


def _head(rest: Rest, token: str, *more: str) -> str:
    query = urlencode({"requestId": str(uuid.uuid4()), "continuationToken": token, "endOffsetToken": "1"})
    path = f"{DATA}/pipes/T-STREAMING/channels/c/rows?{query}"
    bearer = f"Authorization: Bearer {rest.account.scoped_token}"
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", bearer, *more]
    return "\r\n".join([*lines, "", ""])


def test_a_body_that_contradicts_its_length_is_never_appended(
    local_service: LocalService, rest: Rest, token: str
) -> None:
    _raw(local_service, _head(rest, token, "Content-Length: 500"), b'{"id":666}\n', end=True)
    for lines in (
        ("Content-Length: -5",), ("Content-Length: 9x",), ("Content-Length: 9", "Content-Length: 5"),
        ("Content-Length: 9", "Transfer-Encoding: chunked"), ("Content-Length: 99999999999999999999999",),
    ):  # fmt: skip
        answer = _raw(local_service, _head(rest, token, *lines), b'{"id":666}\n')
        assert answer.startswith(b"HTTP/1.1 400"), answer
    assert rest.append("c", token, ROW, "2").status_code == 200
    rest.wait_for_token("c", "2")
    assert ids(local_service) == [1]


def test_a_second_service_on_a_directory_or_port_is_refused(
    local_service: LocalService, tmp_path: Path
) -> None:
    done = local_service.cli("serve", "--port", "0")
    assert (done.returncode, "another snowpipe-local already serves" in done.stderr) == (1, True)
    done = LocalService(tmp_path).cli("serve", "--port", str(local_service.port))
    assert (done.returncode, "is in use" in done.stderr) == (1, True)


def test_the_service_prints_no_error_for_any_of_this(local_service: LocalService) -> None:
    assert "Traceback" not in local_service.log_file.read_text()

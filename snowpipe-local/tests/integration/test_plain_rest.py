"""The streaming REST API at the edges of its documentation, and by bytes that no client would send."""

from __future__ import annotations

import socket
import ssl
import uuid
from urllib.parse import urlencode

import pytest
from snowpipe_local.testing import LocalService
from tests.streaming_rest import Rest, continuation

DATA = "/v2/streaming/data/databases/LOCAL/schemas/PUBLIC"
ROW = b'{"id":1}\n'


@pytest.fixture
def rest(local_service: LocalService) -> Rest:
    local_service.sql("CREATE OR REPLACE TABLE plain (id INT, s VARCHAR)")
    return Rest(local_service, "PLAIN")


@pytest.fixture
def token(rest: Rest) -> str:
    """The continuation token of a new channel ``c``."""
    return continuation(rest.open("c"))


def ids(service: LocalService) -> list[int]:
    return [row["ID"] for row in service.sql("SELECT id FROM plain ORDER BY id")]


@pytest.mark.parametrize("end", ["", "8"], ids=["alone", "beside-an-end"])
def test_single_offset_token_of_older_clients_is_committed_where_no_end_is_given(
    rest: Rest, token: str, end: str
) -> None:
    assert rest.append("c", token, ROW, end, params={"offsetToken": "7"}).status_code == 200
    rest.wait_for_token("c", end or "7")


def test_a_body_of_four_mebibytes_is_taken_and_one_byte_more_is_not(
    local_service: LocalService, rest: Rest, token: str
) -> None:
    body = (b'{"id":1}' + b" " * 1015 + b"\n") * 4096
    assert len(body) == 4 << 20
    refused = rest.append("c", token, body + b"\n", "1")
    assert (refused.status_code, refused.json()["code"]) == (413, "REQUEST_TOO_LARGE")
    assert rest.append("c", token, body, "1").status_code == 200
    rest.wait_for_token("c", "1")
    assert len(ids(local_service)) == 4096


def test_rows_of_the_tables_route_are_durable_at_its_answer(local_service: LocalService, rest: Rest) -> None:
    url = f"{local_service.url}{DATA}/tables/PLAIN/rows"
    for _ in range(2):
        answer = rest.call("POST", url, rest.token, params={"requestId": str(uuid.uuid4())}, data=ROW * 2)
        assert (answer.status_code, answer.json()["message"]) == (200, "OK")
    assert len(ids(local_service)) == 4
    shown = local_service.sql("SHOW PIPES LIKE 'PLAIN%'")
    assert [pipe["name"] for pipe in shown] == ["PLAIN-STREAMING"]


@pytest.mark.parametrize("name", ["offsetToken", "startOffsetToken", "endOffsetToken", "continuationToken"])
def test_the_tables_route_takes_no_tokens(local_service: LocalService, rest: Rest, name: str) -> None:
    url = f"{local_service.url}{DATA}/tables/PLAIN/rows"
    sent = {"requestId": str(uuid.uuid4()), name: "1"}
    answer = rest.call("POST", url, rest.token, params=sent, data=ROW)
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")


def test_a_dropped_channel_is_gone_and_reports_what_it_had_committed(rest: Rest, token: str) -> None:
    rest.append("c", token, ROW, "4")
    rest.wait_for_token("c", "4")
    dropped = rest.drop("c")
    assert (dropped.status_code, dropped.json()) == (200, {"last_committed_offset_token": "4"})
    refused = rest.append("c", token, ROW)
    code = "ERR_CHANNEL_DOES_NOT_EXIST_OR_NOT_AUTHORIZED"
    assert (refused.status_code, refused.json()["code"]) == (404, code)


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


def _head(rest: Rest, token: str, *more: str) -> str:
    query = urlencode({"requestId": str(uuid.uuid4()), "continuationToken": token, "endOffsetToken": "1"})
    lines = [
        f"POST {DATA}/pipes/PLAIN-STREAMING/channels/c/rows?{query} HTTP/1.1", "Host: 127.0.0.1",
        f"Authorization: Bearer {rest.token}", *more, "", "",
    ]  # fmt: skip
    return "\r\n".join(lines)


def _appended_afterwards(service: LocalService, rest: Rest, token: str) -> list[int]:
    assert rest.append("c", token, ROW, "2").status_code == 200
    rest.wait_for_token("c", "2")
    return ids(service)


def test_a_body_shorter_than_its_content_length_is_never_appended(
    local_service: LocalService, rest: Rest, token: str
) -> None:
    _raw(local_service, _head(rest, token, "Content-Length: 500"), b'{"id":666}\n', end=True)
    assert _appended_afterwards(local_service, rest, token) == [1]


def test_bytes_beyond_the_content_length_are_no_part_of_the_body(
    local_service: LocalService, rest: Rest, token: str
) -> None:
    head = _head(rest, token, "Content-Length: 9")
    answer = _raw(local_service, head, b'{"id":1}\n{"id":666}\n', end=False)
    # The rest is no request, so the connection ends with a 400, ahead of the append's own answer or after it.
    assert answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 400")), answer
    # Sent again, as after every unknown end, the append is answered and its rows are there once.
    again = _raw(local_service, head, ROW, end=False)
    assert again.startswith(b"HTTP/1.1 200"), again
    rest.wait_for_token("c", "1")
    assert ids(local_service) == [1]


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
    local_service: LocalService, rest: Rest, token: str, lines: tuple[str, ...]
) -> None:
    answer = _raw(local_service, _head(rest, token, *lines), b'{"id":666}\n', end=False)
    assert answer.startswith(b"HTTP/1.1 400"), answer
    assert _appended_afterwards(local_service, rest, token) == [1]

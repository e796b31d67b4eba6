"""Requests as they are, over one connection, and the form of every answer of the local service."""

import http.client
import json
import ssl
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import psutil
from hypothesis import currently_in_test_context, note
from snowpipe_local.accounts import sign_key_pair_jwt
from snowpipe_local.datadir import DataDirectory
from snowpipe_local.testing import LocalService

# Longer than any answer that is not a hang: a statement is cancelled after STATEMENT_SECONDS.
ANSWER_SECONDS = 240
# Of the service, for one answer: unlike seconds of the clock they do not grow on a busy machine.
ANSWER_CPU_SECONDS = 10.0
STATEMENT_SECONDS = 4
_JWT_SECONDS = 120.0
Headers = Mapping[str, str | bytes]
_PLAIN_PATHS = ("/v2/streaming/hostname", "/oauth/token")
_FORBIDDEN = (
    "INTERNAL_ERROR",
    "STORAGE_FAILED",
    "internal error in the local",
    "INTERNAL Error",
    "invalidated",
)


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer; ``json`` is None when the content is no JSON."""

    status: int
    content_type: str
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body) if self.content_type.startswith("application/json") else None

    @property
    def code(self) -> str | None:
        """Code of a refusal."""
        found = self.json
        return found.get("code") if isinstance(found, dict) else None


class Wire:
    """One kept connection to a service, and the credentials of its user."""

    def __init__(self, service: LocalService) -> None:
        self.service = service
        self._context = ssl.create_default_context(cafile=str(service.ca_file))
        self._connection: http.client.HTTPSConnection | None = None
        self._scoped: str | None = None
        self._jwt = (-_JWT_SECONDS, "")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def jwt(self) -> str:
        """A key-pair JWT; signing takes longer than most requests, so it is used for a while."""
        signed_at, token = self._jwt
        if time.monotonic() - signed_at > _JWT_SECONDS:
            token = sign_key_pair_jwt(DataDirectory(self.service.data_dir))
            self._jwt = (time.monotonic(), token)
        return token

    @property
    def scoped(self) -> str:
        """A scoped token, fetched once."""
        if self._scoped is None:
            form = {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "scope": "127.0.0.1"}
            answer = self.send("POST", "/oauth/token", bearer(self.jwt), urlencode(form).encode())
            assert answer.status == 200, answer.body
            self._scoped = answer.body.decode()
        return self._scoped

    def send(
        self, method: str, target: str, headers: Headers | None = None, body: bytes | None = None
    ) -> Answer:
        """Send one request and check the form of its answer; a hang is a failure."""
        if currently_in_test_context():
            # Printed for the smallest failing case.
            note(f"{method} {target} {(body or b'')[:2000]!r}")
        before = self._cpu_seconds()
        try:
            answer = self._exchange(method, target, headers or {}, body)
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError, ssl.SSLError):
            # An idle connection may be closed at any time; a second end without an answer is a failure.
            self.close()
            answer = self._exchange(method, target, headers or {}, body)
        check(answer, method, target)
        spent = self._cpu_seconds() - before
        assert spent < ANSWER_CPU_SECONDS, f"{spent:.1f} s: {method} {target[:300]} {(body or b'')[:600]!r}"
        return answer

    def _cpu_seconds(self) -> float:
        times = psutil.Process(self.service.pid).cpu_times()
        return times.user + times.system

    def _exchange(self, method: str, target: str, headers: Headers, body: bytes | None) -> Answer:
        if self._connection is None:
            self._connection = http.client.HTTPSConnection(
                "127.0.0.1", self.service.port, timeout=ANSWER_SECONDS, context=self._context
            )
        connection = self._connection
        try:
            connection.putrequest(method, target, skip_accept_encoding=True)
            for name, value in headers.items():
                connection.putheader(name, value)
            if body is not None and not any(name.lower() == "content-length" for name in headers):
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            response = connection.getresponse()
            content = response.read()
        except Exception:
            self.close()
            raise
        if response.will_close:
            self.close()
        return Answer(response.status, response.headers.get("content-type", ""), content)

    # -- calls ----------------------------------------------------------------------------------------------

    def sql(self, statement: str, *, timeout: int = STATEMENT_SECONDS, **more: Any) -> Answer:
        sent = {"statement": statement, "database": "LOCAL", "schema": "PUBLIC", "timeout": timeout, **more}
        sent.setdefault("parameters", {"MULTI_STATEMENT_COUNT": 0})
        headers = {**bearer(self.jwt), "Content-Type": "application/json"}
        return self.send("POST", "/api/v2/statements", headers, json.dumps(sent).encode())

    def rows(self, statement: str, **more: Any) -> list[list[str | None]]:
        """Return the rows of a statement that must succeed."""
        answer = self.sql(statement, timeout=60, **more)
        assert answer.status == 200, (statement, answer.body)
        return answer.json["data"]

    def open(self, table: str, channel: str, database: str = "LOCAL", **body: Any) -> dict[str, Any]:
        answer = self.send("PUT", channel_path(table, channel, database), bearer(self.scoped), _json(body))
        assert answer.status == 200, answer.body
        return answer.json

    def status(self, table: str, channel: str, database: str = "LOCAL") -> dict[str, Any]:
        path = channel_path(table, "", database).replace("/channels/", ":bulk-channel-status")
        answer = self.send("POST", path, bearer(self.scoped), _json({"channel_names": [channel]}))
        assert answer.status == 200, answer.body
        return answer.json["channel_statuses"][channel]

    def append(
        self,
        table: str,
        channel: str,
        body: bytes,
        query: Mapping[str, str],
        headers: Headers | None = None,
        database: str = "LOCAL",
        kind: str = "rows",
    ) -> Answer:
        """Append a body; the query names its tokens, a requestId is added."""
        sent = {"requestId": str(uuid.uuid4()), "retryCount": "0", **query}
        path = f"{channel_path(table, channel, database, data=True)}/{kind}?{urlencode(sent)}"
        return self.send("POST", path, {**bearer(self.scoped), **(headers or {})}, body)


def bearer(token: str) -> dict[str, str | bytes]:
    """Return the header that carries a token."""
    return {"Authorization": f"Bearer {token}".encode()}


def channel_path(table: str, channel: str, database: str = "LOCAL", *, data: bool = False) -> str:
    """Return the path of a channel of a table's default pipe."""
    plane = "data/" if data else ""
    pipe, channel = f"{quote(table, safe='')}-STREAMING", quote(channel, safe="")
    return f"/v2/streaming/{plane}databases/{database}/schemas/PUBLIC/pipes/{pipe}/channels/{channel}"


def check(answer: Answer, method: str, target: str) -> None:
    """Fail for a server error, a failure inside the service, or a refusal without code and message."""
    exchange = f"{method} {target[:300]} -> {answer.status} {answer.content_type} {answer.body[:600]!r}"
    assert answer.status < 500, exchange
    if any(words.encode() in answer.body for words in _FORBIDDEN):
        own = _without_rows(answer)
        assert not any(words in own for words in _FORBIDDEN), exchange
    if (answer.status, answer.body) == (400, b"Invalid HTTP request received."):
        # Not a request to the parser of HTTP, so nothing of ours has seen it.
        return
    if method == "HEAD":
        return
    if answer.status >= 400:
        found = answer.json
        assert isinstance(found, dict), exchange
        assert isinstance(found["code"], str), exchange
        assert isinstance(found["message"], str), exchange
    elif answer.content_type.startswith("text/plain"):
        assert target.partition("?")[0] in _PLAIN_PATHS, exchange
    elif not answer.content_type.startswith(("application/xml", "application/octet-stream")):
        assert isinstance(answer.json, dict), exchange


def _without_rows(answer: Answer) -> str:
    """The body without the rows of a result: the history of statements repeats how earlier ones failed."""
    found = answer.json
    match found:
        case {"success": True, "data": {"rowset": _}}:
            del found["data"]["rowset"]
        case {"resultSetMetaData": _, "data": _}:
            del found["data"]
        case _:
            return answer.body.decode(errors="replace")
    return json.dumps(found)


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()

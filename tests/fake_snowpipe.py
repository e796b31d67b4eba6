"""A pipe's service in this process, in the place of :class:`Transports`, without a socket.

A test can read every call in order, hold commits and release them, and put a fault before or after any call.
Every wait ends at once.
"""

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import jwt
import pyarrow as pa
import pytest

from airflow_provider_snowpipe.spark.task import sink
from airflow_provider_snowpipe.streaming.auth import ProgrammaticAccessToken, ScopedToken
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.http import Answer, UnreachableError
from airflow_provider_snowpipe.streaming.names import PipeName
from airflow_provider_snowpipe.streaming.progress import ListedChannel
from tests.checkpoints import shown
from tests.jumping_time import JumpingTime

URL = "https://account.example.com"
HOST = "ingest.example.com"
PIPE = PipeName("DB", "S", "T-STREAMING")
_PIPE_PATH = "/databases/DB/schemas/S/pipes/T-STREAMING"
PAT = "pat-secret"
STALE = "STALE_CONTINUATION_TOKEN_SEQUENCER"
UNCOMMITTED = "ERR_CHANNEL_HAS_UNCOMMITTED_DATA"
MISSING = "ERR_CHANNEL_DOES_NOT_EXIST_OR_NOT_AUTHORIZED"
PIPE_MISSING = "ERR_PIPE_DOES_NOT_EXIST_OR_NOT_AUTHORIZED"
ROW_SEQ_GAP = "ERR_CHANNEL_MUST_BE_REOPENED_DUE_TO_ROW_SEQ_GAP"
_CHANNEL = re.compile(
    r"/v2/streaming(?P<data>/data)?(?P<pipe>/databases/.+)/channels/(?P<name>[^/]+)(/rows)?"
)
_PIPE = re.compile(r"/v2/streaming(?P<pipe>/databases/.+):(?P<verb>pipe-info|bulk-channel-status)")
_ON_CHANNEL = {"PUT": "open", "DELETE": "drop", "POST": "append"}
_ON_PIPE = {"pipe-info": "pipe_info", "bulk-channel-status": "status"}


class KilledError(BaseException):
    """The end of the process that made a call, as far as one process can play it."""


def error(
    status: int, code: str = "", message: str = "scripted", *, retry_after: float | None = None
) -> Answer:
    """An error answer as the service gives it; without a code the body is no JSON."""
    body = json.dumps({"code": code, "message": message}) if code else "<html>"
    return Answer(status, body.encode(), retry_after)


@dataclass(frozen=True)
class Call:
    """One attempt of a request as it arrived.

    :param operation: ``hostname``, ``token``, ``pipe_info``, ``open``, ``append``, ``status`` or ``drop``
    :param channel: the channel of the last path segment; of a status request the names, with commas
    :param body: the JSON body; of an append its NDJSON
    """

    operation: str
    channel: str = ""
    query: Mapping[str, str] = field(default_factory=dict)
    bearer: str = field(default="", repr=False)
    body: Any = None

    @property
    def rows(self) -> list[Any]:
        return [json.loads(line) for line in self.body.splitlines() if line.strip()]

    @property
    def positions(self) -> tuple[str | None, str | None]:
        return shown(self.query["startOffsetToken"]), shown(self.query["endOffsetToken"])

    def __str__(self) -> str:
        if self.operation == "append":
            start, end = self.positions
            return f"append {self.channel} {start}..{end}"
        return f"{self.operation} {self.channel}".strip()


@dataclass
class FakeChannel:
    """One channel as the service keeps it.

    :param session: the client sequencer, which grows with each open
    :param next_append: the row sequencer that the next append must have
    :param received: appends that are not committed yet
    :param answered: the answer of each request id of the session
    """

    committed: str | None = None
    code: str = "SUCCESS"
    rows: list[Any] = field(default_factory=list)
    rows_inserted: int = 0
    rows_error_count: int = 0
    last_error_message: str | None = None
    last_error_offset: str | None = None
    last_error_at_ms: int | None = None
    session: int = 0
    next_append: int = 0
    received: list[Call] = field(default_factory=list)
    answered: dict[str, Answer] = field(default_factory=dict)
    created_on_ms: int = 1700000000000
    """When it was created; a channel that was dropped before it is older."""

    @property
    def position(self) -> str | None:
        return shown(self.committed)

    def open(self) -> str:
        """Begin a session, which ends the one before and discards what it left uncommitted."""
        self.session, self.next_append, self.code = self.session + 1, 0, "SUCCESS"
        self.received, self.answered = [], {}
        return f"{self.session}_0"

    def commit(self, rejects: Callable[[Any], bool]) -> None:
        """Make the received rows visible and move the token, in one step."""
        for append in self.received:
            good = [row for row in append.rows if not rejects(row)]
            bad = len(append.rows) - len(good)
            self.rows += good
            self.rows_inserted += len(good)
            self.committed = append.query["endOffsetToken"] or self.committed
            if bad:
                self.rows_error_count += bad
                self.last_error_message = f"{bad} row(s) do not fit"
                self.last_error_offset = self.committed
        self.received = []

    def status(self, name: str) -> dict[str, Any]:
        return {
            "database_name": PIPE.database,
            "schema_name": PIPE.schema,
            "pipe_name": PIPE.pipe,
            "channel_name": name,
            "channel_status_code": self.code,
            "last_committed_offset_token": self.committed,
            "created_on_ms": self.created_on_ms,
            "rows_inserted": self.rows_inserted,
            "rows_error_count": self.rows_error_count,
            "rows_parsed": self.rows_inserted + self.rows_error_count,
            "last_error_offset_upper_bound": self.last_error_offset,
            "last_error_message": self.last_error_message,
            "last_error_timestamp_ms": self.last_error_at_ms,
            "snowflake_avg_processing_latency_ms": 5,
        }


@dataclass
class _Fault:
    when: str
    operation: str
    channel: str | None
    error: Answer | BaseException | None
    do: Callable[[], Any] | None
    skip: int
    times: float

    def meets(self, when: str, call: Call) -> bool:
        if (when, call.operation) != (self.when, self.operation) or self.channel not in (None, call.channel):
            return False
        if self.skip > 0 or self.times <= 0:
            self.skip -= 1
            return False
        self.times -= 1
        return True


class FakeSnowpipe:
    """The service of one pipe, its connections, and the clock of whoever uses it."""

    def __init__(self, clock: JumpingTime) -> None:
        self.clock = clock
        self.calls: list[Call] = []
        self.channels: dict[str, FakeChannel] = {}
        self.holds_commits = False
        self.rejects: Callable[[Any], bool] = lambda row: False
        self.token_life = 3600.0
        self._rows_of_dropped: list[Any] = []
        self._dropped = 0
        self._faults: list[_Fault] = []
        self._tokens: dict[str, float] = {}
        self._lock = threading.RLock()

    @classmethod
    def everywhere(cls, monkeypatch: pytest.MonkeyPatch) -> Self:
        """Make one the service of every client, and its clock the time of whoever waits."""
        fake = cls(JumpingTime.everywhere(monkeypatch))
        for module in ("streaming.client", "spark.task.sink"):
            monkeypatch.setattr(f"airflow_provider_snowpipe.{module}.Transports", lambda *_: fake)
        sink.process_transports.cache_clear()
        return fake

    def client(self, credentials: Any = None, **options: Any) -> SnowpipeClient:
        return SnowpipeClient(
            URL, credentials or ProgrammaticAccessToken(PAT), PIPE, transports=self, **options
        )

    def scoped_token(self, life: float | None = None) -> ScopedToken:
        expires_at = self.clock.time() + (self.token_life if life is None else life)
        text = jwt.encode({"exp": expires_at, "jti": len(self._tokens)}, "x" * 32, algorithm="HS256")
        self._tokens[text] = expires_at
        return ScopedToken(text, HOST, expires_at)

    def fault(
        self,
        *,
        before: str | None = None,
        after: str | None = None,
        error: Answer | BaseException | None = None,
        do: Callable[[], Any] | None = None,
        channel: str | None = None,
        skip: int = 0,
        times: float = 1,
    ) -> None:
        """Put a fault before calls, which then do nothing, or after them: done, but the answer is another.

        :param after: the operation; without ``error`` and ``do`` its answer is lost
        :param error: the answer instead, or what is raised; without it the call goes on after ``do``
        """
        if after is not None and error is None and do is None:
            error = UnreachableError("the answer was lost")
        when = "after" if before is None else "before"
        self._faults.append(_Fault(when, before or after or "", channel, error, do, skip, times))

    def heal(self) -> None:
        """Forget the faults that no call has met yet, and commit at once again."""
        self._faults, self.holds_commits = [], False

    @property
    def table(self) -> list[Any]:
        return [*self._rows_of_dropped, *(row for one in self.channels.values() for row in one.rows)]

    def listed(self) -> list[ListedChannel]:
        table = str(PIPE.default_table)
        return [
            ListedChannel(name, PIPE.database, PIPE.schema, table, PIPE.pipe, one.committed)
            for name, one in self.channels.items()
        ]

    def channel(self, name: str, **state: Any) -> FakeChannel:
        """A channel, made with this state if it is not there."""
        return self.channels.setdefault(
            name, FakeChannel(**{"created_on_ms": 1700000000000 + self._dropped, **state})
        )

    def open_elsewhere(self, name: str) -> None:
        self.channel(name).open()

    def commit(self) -> None:
        with self._lock:
            for channel in self.channels.values():
                channel.commit(self.rejects)

    def did(self, *operations: str) -> list[str]:
        """The calls in order, as text; of these operations only, if some are named."""
        return [str(call) for call in self.calls if not operations or call.operation in operations]

    def appends(self) -> list[Call]:
        return [call for call in self.calls if call.operation == "append"]

    def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        query: Mapping[str, str],
        json_body: Any = None,
        form: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Answer:
        operation, channel, pipe = _operation(method, urlsplit(url).path, json_body)
        bearer = headers["Authorization"].removeprefix("Bearer ")
        given = _decoded(body, headers) if body is not None else json_body or form
        call = Call(operation, channel, query, bearer, given)
        with self._lock:
            self.calls.append(call)
        instead = self._meet("before", call)
        if instead is not None:
            return instead
        with self._lock:
            answer = self._answer(call, pipe)
        return self._meet("after", call) or answer

    def close(self) -> None:
        """Give nothing back: there are no connections."""

    def _meet(self, when: str, call: Call) -> Answer | None:
        with self._lock:
            met = [fault for fault in self._faults if fault.meets(when, call)]
        for fault in met:
            if fault.do is not None:
                fault.do()
            if isinstance(fault.error, BaseException):
                raise fault.error
        return next((fault.error for fault in met if isinstance(fault.error, Answer)), None)

    def _answer(self, call: Call, pipe: str | None) -> Answer:
        if call.operation == "hostname":
            return Answer(200, HOST.encode())
        if call.operation == "token":
            return Answer(200, self.scoped_token().token.encode())
        if self._tokens.get(call.bearer, 0.0) <= self.clock.time():
            return error(401, "390318", "the scoped token is unknown or has expired")
        if pipe != _PIPE_PATH:
            return error(404, PIPE_MISSING)
        answer: Answer = getattr(self, f"_{call.operation}")(call)
        return answer

    def _pipe_info(self, call: Call) -> Answer:
        return _json({"parameter_overrides": {}})

    def _status(self, call: Call) -> Answer:
        names = call.body["channel_names"]
        if len(names) > 100:
            return error(400, "TOO_MANY_CHANNELS")
        found = {name: self.channels[name].status(name) for name in names if name in self.channels}
        return _json({"channel_statuses": found})

    def _open(self, call: Call) -> Answer:
        channel = self.channel(call.channel)
        if channel.received and call.body["fail_on_uncommitted_rows"]:
            return error(409, UNCOMMITTED)
        token = channel.open()
        channel.committed = call.body.get("offset_token", channel.committed)
        return _json({"next_continuation_token": token, "channel_status": channel.status(call.channel)})

    def _drop(self, call: Call) -> Answer:
        gone = self.channels.pop(call.channel, None)
        if gone is None:
            return error(404, MISSING)
        self._rows_of_dropped += gone.rows
        self._dropped += 1
        return _json({})

    def _append(self, call: Call) -> Answer:
        channel, request_id = self.channels.get(call.channel), call.query["requestId"]
        if channel is None:
            return error(404, MISSING)
        session, _, number = call.query["continuationToken"].partition("_")
        if int(session) != channel.session:
            return error(409, STALE)
        if channel.code != "SUCCESS":
            return error(409, channel.code)
        if request_id in channel.answered:
            return channel.answered[request_id]
        if int(number) != channel.next_append:
            return error(409, ROW_SEQ_GAP)
        channel.next_append += 1
        channel.received.append(call)
        if not self.holds_commits:
            channel.commit(self.rejects)
        answer = _json({"next_continuation_token": f"{session}_{channel.next_append}"})
        return channel.answered.setdefault(request_id, answer)


def _operation(method: str, path: str, body: Any) -> tuple[str, str, str | None]:
    if path in ("/v2/streaming/hostname", "/oauth/token"):
        return path.rsplit("/", 1)[-1], "", None
    if found := _PIPE.fullmatch(path):
        names = body["channel_names"] if found["verb"] == "bulk-channel-status" else []
        return _ON_PIPE[found["verb"]], ",".join(names), found["pipe"]
    if found := _CHANNEL.fullmatch(path):
        return _ON_CHANNEL[method], unquote(found["name"]), found["pipe"]
    raise AssertionError(f"the service has no {method} {path}")


def _decoded(body: bytes, headers: Mapping[str, str]) -> bytes:
    encoding = headers.get("Content-Encoding")
    if encoding is None:
        return body
    size = int(headers["x-snowflake-uncompressed-content-length"])
    return bytes(pa.Codec(encoding).decompress(body, size, asbytes=True))


def _json(body: Any) -> Answer:
    return Answer(200, json.dumps(body).encode())


@pytest.fixture
def snowpipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSnowpipe]:
    """The service of every client that is made during the test, and a time that jumps."""
    yield FakeSnowpipe.everywhere(monkeypatch)
    sink.process_transports.cache_clear()

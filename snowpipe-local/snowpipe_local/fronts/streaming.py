"""Snowpipe Streaming REST API v2: hostname, token, pipe-info, channels, rows.

Shapes are those that SDK 1.9.1 needs (observed); a comment marks where the documentation differs.
"""

from __future__ import annotations

import base64
import binascii
import secrets
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass
from types import NoneType
from typing import Any

from snowpipe_local.access.access import require
from snowpipe_local.access.model import Securable
from snowpipe_local.accounts import INGEST_HOST, Account
from snowpipe_local.catalog import Catalog
from snowpipe_local.engine.channel import ELASTIC, PIPE_MISSING, TABLE_MISSING, Append, Channel
from snowpipe_local.engine.database import Database
from snowpipe_local.engine.ingest import MUST_REOPEN
from snowpipe_local.engine.lines import Lines, split_lines
from snowpipe_local.engine.spool import SpoolError
from snowpipe_local.errors import NotAllowed, Refusal, SqlError
from snowpipe_local.faults import Faults
from snowpipe_local.fronts import sessions
from snowpipe_local.fronts.http import Request, Response, decode_body
from snowpipe_local.fronts.http import answer as fault_answer
from snowpipe_local.fronts.stage_files import UPLOAD_BUCKET, Fragment, Stage, read_fragment
from snowpipe_local.limits import Limits
from snowpipe_local.names import DEFAULT_PIPE_SUFFIX, Pipe
from snowpipe_local.tables import UrlName

# -- Privileges of streaming calls, refused in the shape of what does not exist --------------------------

WRITE = ("OPERATE",)
STATUS = ("OPERATE", "MONITOR")


PipePath = tuple[UrlName, UrlName, UrlName]
"""Database, schema and pipe as a URL names them."""


def authorized_pipe(
    catalog: Catalog, roles: frozenset[str], path: PipePath, privileges: tuple[str, ...]
) -> tuple[Database, Pipe]:
    """Return a pipe that some roles may use; a default pipe is created on first use.

    USAGE on database and schema is needed, and INSERT on the table of a default pipe, or one of the
    privileges on a custom pipe.

    :param privileges: :data:`WRITE` or :data:`STATUS`.
    :raises Refusal: 404 for what does not exist or is not authorized; the answer does not show which.
    """
    database = catalog.database_for_url(path[0])
    _, schema, name = path
    exact = schema.find(database.schemas)
    if exact is None:
        raise _missing(PIPE_MISSING, f"schema {database.name}.{schema.text}")
    namespace = f"{database.name}.{exact}"
    text = name.text if name.is_quoted else name.text.upper()
    found = name.find([pipe.key.name for pipe in database.pipes if pipe.key.schema == exact])
    if not text.endswith(DEFAULT_PIPE_SUFFIX):
        if found is None:
            raise _missing(PIPE_MISSING, f"pipe {namespace}.{name.text}")
        target = Securable("PIPE", (database.name, exact, found))
        _check(catalog, roles, target, privileges, PIPE_MISSING, f"pipe {namespace}.{found}")
        return database, database.pipes.resolve(exact, found)
    default_table = UrlName(name.text[: -len(DEFAULT_PIPE_SUFFIX)], name.is_quoted)
    table = default_table.find(database.tables.names(exact))
    if table is not None:
        # Before the pipe is created: a call that is refused leaves nothing behind.
        target = Securable("TABLE", (database.name, exact, table))
        _check(catalog, roles, target, ("INSERT",), TABLE_MISSING, f"table {namespace}.{table}")
        return database, database.pipes.resolve(exact, table + DEFAULT_PIPE_SUFFIX)
    if found is None:
        raise _missing(TABLE_MISSING, f"table {namespace}.{default_table.text}")
    pipe = database.pipes.resolve(exact, found)
    target = Securable("TABLE", (database.name, exact, pipe.table))
    _check(catalog, roles, target, ("INSERT",), TABLE_MISSING, f"table {namespace}.{default_table.text}")
    return database, pipe


def _check(
    catalog: Catalog,
    roles: frozenset[str],
    target: Securable,
    privileges: tuple[str, ...],
    code: str,
    named: str,
) -> None:
    held = next((word for word in privileges if catalog.access.allows(roles, word, target)), privileges[0])
    try:
        require(catalog.access, roles, held, target)
    except SqlError as error:
        raise _missing(code, named) from error


def _missing(code: str, named: str) -> Refusal:
    return Refusal(404, code, f"{named} does not exist or not authorized")


_ELASTIC_WAIT_SECONDS = 25.0
_STAGE_LIFETIME_MS = 7 * 24 * 3600 * 1000
_CHANNEL_TOKENS = ("offsetToken", "startOffsetToken", "endOffsetToken", "continuationToken")
_NO_CHANNEL_TOKENS = "offset and continuation tokens are forbidden on elastic calls"


@dataclass(eq=False)
class StreamingFront:
    """Handlers of the streaming REST API.

    :param port: port of the service, which the stage location names.
    """

    account: Account
    catalog: Catalog
    stage: Stage
    faults: Faults
    port: int
    limits: Limits

    def handle(self, request: Request) -> Response:
        """Answer one request.

        :raises Refusal: for everything that is not answered with 2xx.
        """
        injected = fault_answer(self.faults, request)
        if injected is not None:
            return injected
        match request.method, request.segments:
            case "GET", ("v2", "streaming", "hostname"):
                declared = request.headers.get(sessions.TOKEN_TYPE_HEADER)
                self.account.verify_original(request.bearer(), declared)
                return Response.of_text(INGEST_HOST)
            case "POST", ("oauth", "token"):
                return sessions.exchange(self.account, request)
            case "POST", ("oauth", "token-request"):
                return sessions.access_token(self.account, request)
            case "POST", ("telemetry", "send", "sessionless"):
                return Response.of_json({"data": "", "code": None, "message": None, "success": True})
            case _, (
                "v2", "streaming", "data", "databases", d, "schemas", s, "pipes", p, "channels", c, kind
            ):  # fmt: skip
                return self._append(request, _path(d, s, p), c, kind)
            case "POST", ("v2", "streaming", "data", "databases", d, "schemas", s, "tables", t, "rows"):
                return self._append(request, _path(d, s, t, DEFAULT_PIPE_SUFFIX), ELASTIC, "rows")
            case _, ("v2", "streaming", "databases", d, "schemas", s, "pipes", p):
                return self._pipe_call(request, d, s, p)
            case _, ("v2", "streaming", "databases", d, "schemas", s, "pipes", p, "channels", c):
                return self._channel_call(request, d, s, p, c)
        raise Refusal(
            404, "NOT_FOUND", f"{request.method} /{'/'.join(request.segments)} is not a call of this service"
        )

    # -- control plane --------------------------------------------------------------------------------------

    def _pipe_call(self, request: Request, database: str, schema: str, last: str) -> Response:
        text, _, verb = last.rpartition(":")
        calls: dict[str, tuple[Callable[[Request, Database, Pipe], Response], tuple[str, ...]]] = {
            "pipe-info": (self._pipe_info, WRITE),
            "bulk-channel-status": (self._bulk_status, STATUS),
        }
        if request.method != "POST" or verb not in calls or not text:
            raise Refusal(404, "NOT_FOUND", f"{request.method} ..:{verb} is not a call of this service")
        call, privileges = calls[verb]
        return call(request, *self._pipe(self._roles(request), _path(database, schema, text), privileges))

    def _pipe_info(self, _request: Request, _database: Database, pipe: Pipe) -> Response:
        prefix = f"{secrets.token_hex(8)}/"
        location = {
            "location_type": "S3",
            "bucket_name": UPLOAD_BUCKET,
            "path_prefix": prefix,
            "location": f"{UPLOAD_BUCKET}/{prefix}",
            "region": "us-east-1",
            "use_s3_regional_url": False,
            "storage_endpoint": f"{INGEST_HOST}:{self.port}",
            "expiry_time_ms": int(time.time() * 1000) + _STAGE_LIFETIME_MS,
            "creds": {
                "AWS_KEY_ID": self.account.upload_key_id(prefix.rstrip("/")),
                "AWS_SECRET_KEY": self.account.upload_secret(prefix.rstrip("/")),
                "AWS_TOKEN": secrets.token_hex(20),
            },
        }
        return Response.of_json(
            {
                "rowset_stage_location": location,
                "durable_stage_location": location,
                "encryption_info": {
                    "pipe_key": pipe.encryption_key,
                    "pipe_key_id": "1",
                    "diversifier": pipe.key.name,
                },
                "parameter_overrides": {},
            }
        )

    def _bulk_status(self, request: Request, database: Database, pipe: Pipe) -> Response:
        names = request.json().get("channel_names")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise Refusal(400, "INVALID_REQUEST_BODY", "channel_names must be a list of strings")
        most = self.limits.names_per_status
        if len(names) > most:
            raise Refusal(
                400, "TOO_MANY_CHANNELS", f"{len(names)} names; at most {most} are allowed a request"
            )
        found = {name: database.channels.find(pipe, name) for name in names}
        statuses = {name: channel.status() for name, channel in found.items() if channel is not None}
        return Response.of_json({"channel_statuses": statuses})

    def _channel_call(
        self, request: Request, database: str, schema: str, pipe: str, channel: str
    ) -> Response:
        owner, target = self._pipe(self._roles(request), _path(database, schema, pipe), WRITE)
        if request.method not in {"PUT", "DELETE"}:
            raise NotAllowed("a channel", "PUT", "DELETE")
        body = request.json()
        careful, token = body.get("fail_on_uncommitted_rows"), body.get("offset_token")
        if not isinstance(careful, (bool, NoneType)):
            raise Refusal(400, "INVALID_REQUEST_BODY", "fail_on_uncommitted_rows must be true or false")
        if request.method == "DELETE":
            gone = owner.channels.drop(target, channel, fail_on_uncommitted_rows=bool(careful))
            return Response.of_json({"last_committed_offset_token": gone.committed.offset_token})
        if not isinstance(token, (str, NoneType)):
            raise Refusal(400, "INVALID_REQUEST_BODY", "offset_token must be a string")
        opened = owner.channels.open(
            target, channel, offset_token=token, fail_on_uncommitted_rows=bool(careful)
        )
        return Response.of_json(
            {"next_continuation_token": opened.continuation_token, "channel_status": opened.status()}
        )

    def _pipe(
        self, roles: frozenset[str], path: PipePath, privileges: tuple[str, ...]
    ) -> tuple[Database, Pipe]:
        database, schema, pipe = path
        self.faults.check_pipe(database.text, schema.text, pipe.text)
        return authorized_pipe(self.catalog, roles, path, privileges)

    def _roles(self, request: Request) -> frozenset[str]:
        token = request.bearer()
        return self.account.roles(self.account.verify_any(token), token)

    # -- data plane -----------------------------------------------------------------------------------------

    def _append(self, request: Request, path: PipePath, name: str, kind: str) -> Response:
        if request.method != "POST" or kind not in ("rows", "filebuffer"):
            raise Refusal(404, "NOT_FOUND", f"{request.method} ../{kind} is not a call of this service")
        token = request.bearer()
        roles = self.account.roles(self.account.verify_scoped_token(token), token)
        if self.faults.refuse_append():
            raise Refusal(503, "SERVICE_UNAVAILABLE", "fault append-503")
        database, pipe = self._pipe(roles, path, WRITE)
        make = self._from_body if kind == "rows" else self._from_files
        if name.upper() == ELASTIC:
            return self._append_elastic(request, database, pipe, make)
        channel = database.channels.get(pipe, name)
        if self.faults.invalidates():
            channel.invalidate(MUST_REOPEN)
        answer = channel.accept(
            _required(request, "continuationToken"),
            _required(request, "requestId"),
            make(request, channel, pipe),
            database.committer.enqueue,
        )
        return Response.of_json({"next_continuation_token": answer})

    def _append_elastic(
        self,
        request: Request,
        database: Database,
        pipe: Pipe,
        make: Callable[[Request, Channel, Pipe], Callable[[int, int], Append]],
    ) -> Response:
        if any(request.query.get(name) for name in _CHANNEL_TOKENS):
            raise Refusal(400, "INVALID_REQUEST", _NO_CHANNEL_TOKENS)
        channel = database.channels.find(pipe, ELASTIC)
        assert channel is not None  # noqa: S101 - the elastic channel always exists
        append = channel.accept_unordered(
            _required(request, "requestId"), make(request, channel, pipe), database.committer.enqueue
        )
        if append is not None:
            try:
                append.durable.result(timeout=_ELASTIC_WAIT_SECONDS)
            except (TimeoutError, CancelledError) as error:
                raise Refusal(
                    503, "SERVICE_UNAVAILABLE", "the rows are not durable yet; send again"
                ) from error
        # Documented as {"message": "OK"}; SDK 1.9.1 needs the token.
        return Response.of_json({"message": "OK", "next_continuation_token": "0_0"})

    def _from_body(self, request: Request, channel: Channel, _pipe: Pipe) -> Callable[[int, int], Append]:
        lines = split_lines(decode_body(request.body, request.headers.get("content-encoding", "")))
        # Older clients send one offsetToken.
        end = request.query.get("endOffsetToken") or request.query.get("offsetToken") or None
        start = request.query.get("startOffsetToken") or None
        return _appender(request, channel, lines, start, end)

    def _from_files(self, request: Request, channel: Channel, pipe: Pipe) -> Callable[[int, int], Append]:
        fragment = Fragment.from_request(request)
        upload = self.stage.file(fragment.file_path)
        try:
            key = base64.b64decode(pipe.encryption_key)
            lines = split_lines(read_fragment(upload.read(), fragment, key))
        except (SpoolError, binascii.Error) as error:
            return _unless_repeated(
                Refusal(400, "FILE_NOT_FOUND", f"file {fragment.file_path} was not uploaded"), error
            )
        return _appender(
            request, channel, lines, fragment.start_offset_token, fragment.end_offset_token, upload=upload
        )


def _path(database: str, schema: str, name: str, suffix: str = "") -> PipePath:
    """Read the names in a URL; a suffix makes the default pipe of a table."""
    last = UrlName.read(name)
    return UrlName.read(database), UrlName.read(schema), UrlName(last.text + suffix, last.is_quoted)


def _appender(
    request: Request, channel: Channel, lines: Lines, start: str | None, end: str | None, **more: Any
) -> Callable[[int, int], Append]:
    request_id, now = _required(request, "requestId"), time.monotonic()
    return lambda client, row: Append(channel, client, row, request_id, lines, start, end, now, **more)


def _unless_repeated(refusal: Refusal, cause: Exception) -> Callable[[int, int], Append]:
    """Refuse only when the append is new: a repeated request finds its file deleted by the commit."""

    def make(_client: int, _row: int) -> Append:
        raise refusal from cause

    return make


def _required(request: Request, name: str) -> str:
    value = request.query.get(name)
    if not value:
        raise Refusal(400, "INVALID_REQUEST", f"the query parameter {name} is required")
    return value

"""Snowpipe REST API: insertFiles, insertReport, loadHistoryScan, and events of S3 buckets.

Shapes are those of the documentation page "Snowpipe REST API"; snowflake-ingest 1.0.13 works with them
(observed).
"""

from __future__ import annotations

import contextlib
import datetime as dt
import uuid
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote_plus

from snowpipe_local.access.model import Securable
from snowpipe_local.accounts import Account
from snowpipe_local.catalog import Catalog
from snowpipe_local.engine.database import Database
from snowpipe_local.engine.load_history import PIPE_MEMORY_MS, FilePipe, LoadEvent
from snowpipe_local.errors import Refusal, SqlError
from snowpipe_local.faults import Faults
from snowpipe_local.fronts.http import Request, Response, decode_body, json_value
from snowpipe_local.fronts.http import answer as fault_answer
from snowpipe_local.sql.pipe_loads import arrived_in_bucket, split_by_pattern
from snowpipe_local.sql.pipes import iso
from snowpipe_local.tables import read_whole_path

# -- Bodies that name files: lists for insertFiles, and events of S3 -------------------------------------

WRONG = "390400"


def read_files(request: Request) -> list[tuple[str, int | None]]:
    """Return path and size or None of the files that a request names, as JSON or one a line.

    :raises Refusal: 400 for a body of another shape.
    """
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind == "text/plain":
        content = decode_body(request.body, request.headers.get("content-encoding", ""))
        try:
            return [(line.strip(), None) for line in content.decode().splitlines() if line.strip()]
        except UnicodeDecodeError as error:
            raise Refusal(400, WRONG, "the list of files is not UTF-8") from error
    files = request.json().get("files")
    if not isinstance(files, list):
        raise Refusal(400, WRONG, 'the body must be {"files": [{"path": "..", "size": 1}]}')
    found: list[tuple[str, int | None]] = []
    for entry in files:
        path = entry.get("path") if isinstance(entry, dict) else None
        size = entry.get("size") if isinstance(entry, dict) else None
        if not isinstance(path, str) or not (size is None or _is_size(size)):
            raise Refusal(400, WRONG, 'each file needs a "path", and a "size" in bytes or none')
        try:
            path.encode()
        except UnicodeEncodeError as error:
            raise Refusal(400, WRONG, "a path holds half of a surrogate pair") from error
        found.append((path, size))
    return found


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62


def created_objects(request: Request) -> list[tuple[str, str, int | None]]:
    """Return bucket, key and size of the objects that were created according to a body of S3 events.

    The body may also be the notification of SNS around it.

    :raises Refusal: 400 for a body of another shape.
    """
    body = request.json()
    if isinstance(body.get("Message"), str):
        body = json_value(body["Message"].encode())
    records = body.get("Records") if isinstance(body, dict) else None
    if not isinstance(records, list):
        raise Refusal(400, WRONG, 'the body must be an S3 event: {"Records": [..]}')
    found: list[tuple[str, str, int | None]] = []
    for record in records:
        try:
            if "ObjectCreated" not in str(record["eventName"]):
                continue
            bucket, stored = record["s3"]["bucket"]["name"], record["s3"]["object"]
            size = stored.get("size")
            found.append((str(bucket), unquote_plus(stored["key"]), size if _is_size(size) else None))
        except (KeyError, TypeError, AttributeError) as error:
            raise Refusal(400, WRONG, "a record needs eventName, s3.bucket.name and s3.object.key") from error
    return found


MAX_FILES = 5000
MAX_PATH_BYTES = 1024
MAX_EVENTS = 10_000
_REPORT_MS = 10 * 60 * 1000
_MISSING = "390404"


class FilePipesFront:
    """Handlers of the Snowpipe REST API.

    :param account: verifies key-pair tokens; no other credential is accepted.
    """

    def __init__(self, account: Account, catalog: Catalog, faults: Faults) -> None:
        self._account = account
        self._catalog = catalog
        self._faults = faults

    def handle(self, request: Request) -> Response:
        """Answer one request.

        :raises Refusal: 400, 401 or 404.
        """
        token = request.bearer()
        roles = self._account.roles(self._account.verify_key_pair(token), token)
        injected = fault_answer(self._faults, request)
        if injected is not None:
            return injected
        match request.method, request.segments:
            case "POST", ("v1", "data", "pipes", name, "insertFiles"):
                return self._insert_files(request, *self._pipe(name, roles, {"OPERATE"}))
            case "GET", ("v1", "data", "pipes", name, "insertReport"):
                return self._insert_report(request, *self._pipe(name, roles, {"MONITOR", "OPERATE"}))
            case "GET", ("v1", "data", "pipes", name, "loadHistoryScan"):
                return self._history_scan(request, *self._pipe(name, roles, {"MONITOR", "OPERATE"}))
            case "POST", ("v1", "notifications", "s3"):
                return self._bucket_events(request, roles)
        why = f"{request.method} /{'/'.join(request.segments)} is not a call of the Snowpipe REST API"
        raise Refusal(404, _MISSING, why)

    def _pipe(self, name: str, roles: frozenset[str], needed: set[str]) -> tuple[Database, FilePipe]:
        """Return a pipe by its fully qualified name; a missing privilege looks like a missing pipe."""
        # The Kafka connector names a pipe as it was written, without quotes.
        paths = [tuple(name.split("."))]
        with contextlib.suppress(SqlError):
            paths.append(read_whole_path(name))
        for path in (path for path in paths if len(path) == 3):
            database = self._catalog.find(path[0])
            pipe = None if database is None else database.file_pipes.find(path[1], path[2])
            if database is not None and pipe is not None and self._holds(database, pipe, roles, needed):
                return database, pipe
        raise Refusal(
            404, _MISSING, f"Pipe {name[:200]} does not exist or not authorized; use DATABASE.SCHEMA.PIPE"
        )

    def _holds(self, database: Database, pipe: FilePipe, roles: frozenset[str], needed: set[str]) -> bool:
        target = Securable("PIPE", (database.name, pipe.key.schema, pipe.key.name))
        return bool(self._catalog.access.held(roles, target) & {*needed, "OWNERSHIP"})

    # -- insertFiles ----------------------------------------------------------------------------------------

    def _insert_files(self, request: Request, database: Database, pipe: FilePipe) -> Response:
        files = read_files(request)
        if len(files) > MAX_FILES:
            raise Refusal(
                400, WRONG, f"the request names {len(files)} files; at most {MAX_FILES} are accepted"
            )
        for path, _ in files:
            if not path or len(path.encode()) > MAX_PATH_BYTES:
                why = f"the path '{path[:60]}' is empty or longer than {MAX_PATH_BYTES} bytes of UTF-8"
                raise Refusal(400, WRONG, why)
        try:
            accepted, unmatched = split_by_pattern(pipe, files)
        except SqlError as error:
            raise Refusal(400, WRONG, error.message) from error
        self._enqueue(database, pipe, accepted)
        answer: dict[str, Any] = {"requestId": _request_id(request), "status": "success"}
        if unmatched:
            answer["unmatchedPatternFiles"] = unmatched
        return Response.of_json(answer)

    def _enqueue(self, database: Database, pipe: FilePipe, files: Sequence[tuple[str, int | None]]) -> None:
        try:
            database.file_pipes.enqueue(pipe.key, files, database.clock.now_ms())
        except SqlError as error:
            raise Refusal(404, _MISSING, error.message) from error
        self._catalog.files_queued.set()

    def _bucket_events(self, request: Request, roles: frozenset[str]) -> Response:
        """Queue the objects that S3 reports as created, in every pipe with AUTO_INGEST on their bucket."""
        created = created_objects(request)
        pipes = [
            (database, pipe)
            for database in self._catalog.databases
            for pipe in database.file_pipes
            if pipe.auto_ingest and self._holds(database, pipe, roles, {"OPERATE"})
        ]
        if not pipes:
            raise Refusal(
                403, "390403", "the role may operate no pipe with AUTO_INGEST; grant it OPERATE on one"
            )
        queued = 0
        for database, pipe in pipes:
            files = arrived_in_bucket(self._catalog, database, pipe, created)
            if files:
                self._enqueue(database, pipe, files)
                queued += len(files)
        return Response.of_json(
            {"requestId": _request_id(request), "status": "success", "queuedFiles": queued}
        )

    # -- reports --------------------------------------------------------------------------------------------

    def _insert_report(self, request: Request, database: Database, pipe: FilePipe) -> Response:
        now_ms = database.clock.now_ms()
        since_ms = max(now_ms - _REPORT_MS, pipe.created_on_ms)
        mark = _mark(request.query.get("beginMark"))
        events = self._events(database, pipe, after_id=mark or 0, from_ms=since_ms, newest=MAX_EVENTS + 1)
        complete = len(events) <= MAX_EVENTS
        if mark:
            # An event after the mark that is too old to be reported was missed.
            missed = self._events(database, pipe, after_id=mark, until_ms=since_ms, newest=1)
            complete = complete and not missed
        events = events[-MAX_EVENTS:]
        last = events[-1][0] if events else mark or 0
        return Response.of_json(
            {
                "pipe": _full_name(database, pipe),
                "completeResult": complete,
                "nextBeginMark": f"1_{last}",
                "files": [_described(event) for _, event in events],
            }
        )

    def _history_scan(self, request: Request, database: Database, pipe: FilePipe) -> Response:
        now_ms = database.clock.now_ms()
        start_ms = _epoch_ms(request, "startTimeInclusive", None)
        end_ms = _epoch_ms(request, "endTimeExclusive", now_ms + 1)
        from_ms = max(start_ms, now_ms - PIPE_MEMORY_MS, pipe.created_on_ms)
        events = self._events(database, pipe, from_ms=from_ms, until_ms=end_ms, oldest=MAX_EVENTS + 1)
        complete = len(events) <= MAX_EVENTS
        last_ms = events[-1][1].loaded_on_ms if events else start_ms
        if not complete:
            # The next page begins at a timestamp; all loads of that timestamp belong to it.
            last_ms = events[MAX_EVENTS][1].loaded_on_ms
            if events[0][1].loaded_on_ms == last_ms:
                last_ms += 1
            events = self._events(database, pipe, from_ms=from_ms, until_ms=last_ms)
        answer: dict[str, Any] = {
            "pipe": _full_name(database, pipe),
            "completeResult": complete,
            "startTimeInclusive": iso(start_ms),
            "endTimeExclusive": iso(end_ms),
            "files": [_described(event) for _, event in events],
        }
        if events:
            answer["rangeStartTime"] = iso(events[0][1].loaded_on_ms)
            answer["rangeEndTime"] = iso(last_ms)
        return Response.of_json(answer)

    def _events(self, database: Database, pipe: FilePipe, **bounds: int) -> list[tuple[int, LoadEvent]]:
        cursor = self._catalog.cursor()
        try:
            return database.history.events_of_pipe(cursor, pipe.key.schema, pipe.key.name, **bounds)
        finally:
            cursor.close()


def _mark(text: str | None) -> int | None:
    if text is None:
        return None
    number = text.rpartition("_")[2]
    if not number.isascii() or not number.isdigit() or len(number) > 18:
        raise Refusal(400, WRONG, f"beginMark '{text[:40]}' is not a nextBeginMark of an earlier report")
    return int(number)


def _epoch_ms(request: Request, name: str, default: int | None) -> int:
    text = request.query.get(name)
    if text is None and default is not None:
        return default
    try:
        timestamp = dt.datetime.fromisoformat(text or "")
        timestamp = timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=dt.UTC)
        return int(timestamp.timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise Refusal(400, WRONG, f"{name} must be a timestamp in ISO 8601") from error


def _request_id(request: Request) -> str:
    return request.query.get("requestId") or str(uuid.uuid4())


def _full_name(database: Database, pipe: FilePipe) -> str:
    return f"{database.name}.{pipe.key.schema}.{pipe.key.name}"


def _described(event: LoadEvent) -> dict[str, Any]:
    described: dict[str, Any] = {
        "path": event.file_name,
        "stageLocation": event.stage_location,
        "fileSize": event.file_size,
        "timeReceived": iso(event.received_on_ms or event.loaded_on_ms),
        "lastInsertTime": iso(event.loaded_on_ms),
        "rowsInserted": event.rows_loaded,
        "rowsParsed": event.rows_parsed,
        "errorsSeen": event.errors_seen,
        "errorLimit": event.error_limit,
        "complete": True,
        "status": event.status,
    }
    if event.first_error is not None:
        # Without a position the file as a whole could not be read.
        named = "firstError" if event.first_error_line is not None else "systemError"
        described[named] = event.first_error
    if event.first_error_line is not None:
        described["firstErrorLineNum"] = event.first_error_line
        described["firstErrorCharacterPos"] = event.first_error_character
    if event.first_error_column is not None:
        described["firstErrorColumnName"] = event.first_error_column
    return described

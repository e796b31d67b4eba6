"""Connector protocol: what snowflake-connector-python 4.8 and 5.2 and the Airflow hooks on top of them use.

Every failure is HTTP 200 with ``success: false``: the connector retries any 5xx.
"""

from __future__ import annotations

import base64
import contextlib
import hmac
import itertools
import json
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from snowpipe_local.accounts import Account
from snowpipe_local.catalog import Catalog, OpenSession
from snowpipe_local.errors import Refusal, SqlError, unsupported
from snowpipe_local.faults import Faults
from snowpipe_local.fronts.http import Request, Response, answer_to
from snowpipe_local.fronts.sessions import Sessions, open_session
from snowpipe_local.fronts.sql_api import row_type, stats
from snowpipe_local.fronts.stage_files import StageFilesFront
from snowpipe_local.limits import Limits
from snowpipe_local.sql.execution import Batch, Execution, Executions, describe, expired, in_background
from snowpipe_local.sql.front import snowflake_errors
from snowpipe_local.sql.reader import check_count, shares, split_statements
from snowpipe_local.sql.results import SELECT, Result, ResultColumn, encode, encode_streams
from snowpipe_local.sql.session import SESSION_GONE, Session
from snowpipe_local.sql.show import DEFAULT_PARAMETERS
from snowpipe_local.sql.stages import staged_bindings

_VALIDITY_SECONDS = 4 * 3600
_SESSION_GONE = "390111"
# The session parameters by which the clients that read Arrow ask for text instead.
_FORMAT_PARAMETERS = {
    "PYTHON": "PYTHON_CONNECTOR_QUERY_RESULT_FORMAT",
    "JDBC": "JDBC_QUERY_RESULT_FORMAT",
    "OLD_JDBC": "JDBC_QUERY_RESULT_FORMAT",
}
_THRESHOLD = "CLIENT_STAGE_ARRAY_BINDING_THRESHOLD"
# JDBC writes times as text by these; without them by a format of its own (observed with 3.24.2).
_OUTPUT_FORMATS = tuple(name for name in DEFAULT_PARAMETERS if name.endswith("_OUTPUT_FORMAT"))
# By these JDBC fetches the chunks of a large result; it fails without them (observed with 3.24.2 and 4.4.1).
_OF_CHUNKS = ("CLIENT_PREFETCH_THREADS", "CLIENT_RESULT_CHUNK_SIZE", "CLIENT_MEMORY_LIMIT")
# What connectors take over when a statement has set it (observed with 4.8.1).
_CLIENT_PARAMETERS = frozenset({*_OF_CHUNKS, "CLIENT_SESSION_KEEP_ALIVE_HEARTBEAT_FREQUENCY"})
# Connector 4.8.1 fetches the result of an asynchronous statement with this query (observed).
_RESULT_SCAN = re.compile(
    r"\s*SELECT\s+\*\s+FROM\s+TABLE\s*\(\s*RESULT_SCAN\s*\(\s*'([^']*)'\s*\)\s*\)\s*;?\s*\Z", re.IGNORECASE
)
_CANCEL = re.compile(
    r"\s*(?:SELECT|CALL)\s+(SYSTEM\$CANCEL_(QUERY|ALL_QUERIES)\s*\(\s*'?([\w-]+)'?\s*\))\s*;?\s*\Z",
    re.IGNORECASE,
)
# A larger result comes in several parts, as Snowflake's does.
_FIRST_ROWS, _FIRST_BYTES = 20_000, 4 << 20
_CHUNK_ROWS, _CHUNK_BYTES = 80_000, 16 << 20
_MOST_DIGITS = 19
_CHUNK_HEADER = "x-snowpipe-result-key"
# Statement type of a request with several statements (Snowflake JDBC, SFStatementType.MULTI_STMT).
_MULTIPLE = 0xA000
# What drivers accept for statements that move no files.
_ROWS_ONLY = "application/snowflake"
_PUT = re.compile(r"\s*PUT\s", re.IGNORECASE)
# A synchronous statement is answered within this time, or with the form of an asynchronous one.
_ANSWER_SECONDS = 45.0
_IN_PROGRESS = "333334"
_IN_PROGRESS_SYNC = "333333"


class ConnectorFront:
    """Handlers of the connector protocol."""

    def __init__(
        self, account: Account, catalog: Catalog, files: StageFilesFront, faults: Faults, limits: Limits
    ) -> None:
        self._faults = faults
        self._account = account
        self._catalog = catalog
        self._files = files
        self._sessions = Sessions(account, limits.session_idle_seconds)
        self._executions = Executions(catalog.limits.result_bytes)

    def close(self) -> None:
        """Cancel the statements that still run."""
        self._executions.cancel_all()

    def knows(self, request: Request) -> bool:
        """Return True when a request has the token of an open session."""
        return self._session(request) is not None

    def handle(self, request: Request) -> Response:
        """Answer one request of a connector."""
        match request.segments:
            case ("session", "v1", "login-request"):
                return self._login(request)
            case ("telemetry", "send"):
                return _success(None)
            case ("session", "heartbeat"):
                return self._in_session(request, lambda _session: _success(None))
            case ("session", "token-request"):
                return self._renew(request)
            case ("session",) if request.query.get("delete") == "true":
                return self._logout(request)
            case ("queries", query_id, "chunks", number):
                return self._chunk(query_id, number, request)
            case ("queries" | "monitoring", *_):
                return self._in_session(request, lambda session: self._query_call(session, request))
        raise _unknown_call(request)

    def _query_call(self, session: Session, request: Request) -> Response:
        match request.segments:
            case ("queries", "v1", "query-request"):
                return self._query(session, request)
            case ("queries", "v1", "abort-request"):
                return self._abort_request(session, request)
            case ("queries", query_id, "abort-request"):
                return self._abort(session, query_id)
            case ("queries", query_id, "result"):
                return self._stored(session, query_id, request)
            # Connector 5.2.0 sends an empty segment before the id (observed).
            case ("monitoring", "queries", *_, query_id):
                return self._monitor(session, query_id)
        raise _unknown_call(request)

    # -- sessions -------------------------------------------------------------------------------------------

    def _login(self, request: Request) -> Response:
        data = request.json().get("data")
        if not isinstance(data, dict):
            return _failure("390102", "08001", "The login request has no data.")
        try:
            session = open_session(self._account, self._catalog, data, request.query, request.client_ip)
        except SqlError as error:
            return _failure(error.code, error.sqlstate, error.message)
        token, master = self._sessions.add(session)
        return _success(
            {
                "token": token,
                "masterToken": master,
                "validityInSeconds": _VALIDITY_SECONDS,
                "masterValidityInSeconds": _VALIDITY_SECONDS,
                "sessionId": session.session_id,
                "displayUserName": session.user,
                "serverVersion": "10.0.0",
                "firstLogin": False,
                "parameters": _parameters(session),
                "sessionInfo": {
                    "databaseName": session.database,
                    "schemaName": session.schema,
                    "warehouseName": session.warehouse,
                    "roleName": session.role,
                },
            }
        )

    def _renew(self, request: Request) -> Response:
        def issue(session: Session) -> Response:
            token, master = self._sessions.renew(session)
            return _success(
                {
                    "sessionToken": token,
                    "masterToken": master,
                    "validityInSecondsST": _VALIDITY_SECONDS,
                    "validityInSecondsMT": _VALIDITY_SECONDS,
                    "sessionId": session.session_id,
                }
            )

        return self._in_session(request, issue)

    def _logout(self, request: Request) -> Response:
        session = self._session(request)
        if session is not None:
            self._sessions.close(session)
        return _success(None)

    def _in_session(self, request: Request, work: Any) -> Response:
        session = self._session(request)
        if session is None:
            return _failure(_SESSION_GONE, "08001", SESSION_GONE)
        answer: Response = work(session)
        return answer

    def _session(self, request: Request) -> Session | None:
        _, _, token = request.headers.get("authorization", "").partition('Token="')
        return self._sessions.find(token.rstrip('"'))

    # -- statements -----------------------------------------------------------------------------------------

    def _query(self, session: Session, request: Request) -> Response:
        body = request.json()
        text = str(body.get("sqlText", ""))
        scanned = _RESULT_SCAN.match(text)
        if scanned:
            return self._scanned(session, scanned[1], request)
        injected = answer_to(self._faults, "put") if _PUT.match(text) else None
        if injected is not None:
            return injected
        if body.get("describeOnly"):
            return _described(session, text)
        cancelled = _CANCEL.match(text)
        if cancelled:
            return self._cancel(session, *cancelled.groups())
        return self._run(session, request, body, text)

    def _run(self, session: Session, request: Request, body: dict[str, Any], text: str) -> Response:
        """Run a statement, or several until one fails; each result of several has an id of its own."""
        own, requested = body.get("parameters"), _statement_count(session, body)
        try:
            bindings = _bound(session, body)
            given: list[tuple[Any, ...]] = [
                (text, *(v if isinstance(v, dict) else None for v in (bindings, own)))
            ]
            is_batch = _may_be_several(text, requested)
            if is_batch:
                statements = split_statements(text)
                check_count(statements, requested)
                given = list(zip(statements, shares(statements, bindings or {}), strict=True))

            def make() -> Execution | Batch:
                parts = [Execution(session, *each) for each in given]
                return Batch(parts) if is_batch else parts[0]

            request_id = request.query.get("requestId")
            made, is_new = self._executions.get_or_add(
                session.session_id, request_id, [text, requested, bindings], make
            )
        except SqlError as error:
            return _failed(error)
        for part in made.parts if is_new and is_batch else ():
            self._executions.add(part)
        if body.get("asyncExec"):
            if is_new:
                in_background(made.run)
            return _in_progress(made, _IN_PROGRESS)
        if is_new:
            made.run()
        return self._finished(session, made, request)

    def _all_finished(self, session: Session, batch: Batch) -> Response:
        if not batch.wait(_ANSWER_SECONDS):
            return _in_progress(batch, _IN_PROGRESS_SYNC)
        if batch.error is not None:
            return _failed(batch.error, batch.query_id)
        results = [part.result for part in batch.parts if part.result is not None]
        assert batch.result is not None  # noqa: S101 - it has ended without an error
        data = _result_data(session, batch.result, batch.query_id) | {
            "statementTypeId": _MULTIPLE,
            "resultIds": ",".join(part.query_id for part in batch.parts),
            "resultTypes": ",".join(str(result.statement_type) for result in results),
        }
        return _success(data)

    def _scanned(self, session: Session, query_id: str, request: Request) -> Response:
        """Return a result as RESULT_SCAN does: of several statements, only the row that reports it.

        Connector 4.8.1 asks for their results itself when it reads that row (observed).
        """
        execution = self._of_user(session, query_id)
        if isinstance(execution, Batch):
            execution.wait(_ANSWER_SECONDS)
            result = execution.result
            if execution.is_done and execution.error is None and result is not None:
                return _success(_result_data(session, result, execution.query_id))
        return self._stored(session, query_id, request)

    def _stored(self, session: Session, query_id: str, request: Request) -> Response:
        execution = self._of_user(session, query_id)
        if execution is None:
            return _failure("000709", "02000", f"Statement {query_id} not found")
        return self._finished(session, execution, request)

    def _of_user(self, session: Session, query_id: str) -> Execution | Batch | None:
        found = self._executions.find(query_id)
        return found if found is not None and session.may_read_results_of(found.session) else None

    def _finished(self, session: Session, execution: Execution | Batch, request: Request) -> Response:
        if isinstance(execution, Batch):
            return self._all_finished(session, execution)
        if not execution.wait(_ANSWER_SECONDS):
            return _in_progress(execution, _IN_PROGRESS_SYNC)
        result = execution.result
        if result is None:
            assert execution.error is not None  # noqa: S101 - an ended statement has one of both
            return _failed(execution.error, execution.query_id)
        if result.has_expired:
            return _failed(expired(execution.query_id), execution.query_id)
        if result.transfer is not None and _ROWS_ONLY in request.headers.get("accept", ""):
            # The driver took the statement for another one and would not move the files (observed by users
            # of Snowflake's drivers for Go and Node).
            return _failed(unsupported("unsupported_requested_format:snowflake"), execution.query_id)
        data = _result_data(session, result, execution.query_id, own=execution.parameters)
        if "rowset" not in data and "rowsetBase64" not in data:
            data |= _in_chunks(session, execution, result, request.headers.get("host", ""))
        if result.transfer is not None:
            data |= self._files.instruct(
                result.transfer, session.opened_by, request.headers.get("host", ""), session.client
            )
        return _success(data)

    def _chunk(self, query_id: str, number: str, request: Request) -> Response:
        """Return a part of a large result; the key in the statement's answer replaces a token."""
        execution = self._executions.find(query_id)
        key = request.headers.get(_CHUNK_HEADER, "").encode()
        if (
            not isinstance(execution, Execution)
            or not hmac.compare_digest(key, execution.chunk_key.encode())
            or not self._account.still_knows(*execution.session.opened_by)
        ):
            raise Refusal(403, "FORBIDDEN", f"no part of a result of statement {query_id} for this key")
        index = _whole(number)
        if index is None or index >= len(execution.chunks):
            raise Refusal(404, "NOT_FOUND", f"the result of statement {query_id} has no part {number[:20]}")
        return Response(200, execution.chunks[index], "application/octet-stream")

    def _abort_request(self, session: Session, request: Request) -> Response:
        """Cancel the statement of an earlier request, as a cursor's ``timeout`` does."""
        execution = self._executions.find_request(
            session.session_id, str(request.json().get("requestId", ""))
        )
        if execution is not None:
            execution.cancel()
        return _success(None)

    def _abort(self, session: Session, query_id: str) -> Response:
        execution = self._of_user(session, query_id)
        if execution is None or not execution.cancel():
            return _failure("000605", "02000", "Identified SQL statement is not currently executing.")
        return _success(None)

    def _cancel(self, session: Session, call: str, kind: str, name: str) -> Response:
        """SYSTEM$CANCEL_QUERY and SYSTEM$CANCEL_ALL_QUERIES, which wait for no other statement."""
        if kind.upper() == "QUERY":
            made = self._executions.find(name)
            done = made is not None and self._may_cancel(session, made.session) and made.cancel()
            outcome = (
                f"query [{name}] terminated."
                if done
                else "Identified SQL statement is not currently executing."
            )
        else:
            number = _whole(name)
            other = None if number is None else session.catalog.sessions.get(number)
            if other is None or not self._may_cancel(session, other):
                message = f"Session '{name}' does not exist or not authorized."
                return _failed(SqlError("000606", "57014", message))
            self._executions.cancel_all(lambda made: made.session is other)
            outcome = f"all queries of session [{name}] terminated."
        result = Result((ResultColumn(call.upper()),), [(outcome,)])
        return _success(_result_data(session, result, str(uuid.uuid4())))

    @staticmethod
    def _may_cancel(session: Session, other: OpenSession) -> bool:
        return session.user == other.user or session.role == "ACCOUNTADMIN"

    def _monitor(self, session: Session, query_id: str) -> Response:
        execution = self._of_user(session, query_id)
        if execution is None:
            return _success({"queries": []})
        described: dict[str, Any] = {"id": query_id, "sqlText": execution.statement, "status": "RUNNING"}
        if execution.error is not None:
            described |= {
                "status": "FAILED_WITH_ERROR",
                "errorCode": execution.error.code,
                "errorMessage": execution.error.message,
            }
        elif execution.is_done:
            described["status"] = "SUCCESS"
        return _success({"queries": [described]})


def _whole(text: str) -> int | None:
    """Return a number of plain digits; None for any other text, and for more digits than a number has."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS else None


def _statement_count(session: Session, body: dict[str, Any]) -> int:
    """Return MULTI_STATEMENT_COUNT of the statement, or of the session: 0 for any number."""
    given = body.get("parameters")
    own = given.get("MULTI_STATEMENT_COUNT") if isinstance(given, dict) else None
    value = session.parameters.get("MULTI_STATEMENT_COUNT", 1) if own is None else own
    try:
        return max(int(str(value)), 0)
    except ValueError:
        return 1


def _bound(session: Session, body: dict[str, Any]) -> Any:
    """Return the bound values of a request, which may be on a stage."""
    if not body.get("bindStage"):
        return body.get("bindings")
    with session.lock, snowflake_errors(session):
        return staged_bindings(session, str(body["bindStage"]))


def _may_be_several(text: str, requested: int) -> bool:
    """Return False for one statement where one is allowed: its answer is its own, with its bindings."""
    if requested > 1 or (requested == 1 and ";" not in text.rstrip().rstrip(";")):
        return requested > 1
    try:
        return len(split_statements(text)) > 1
    except SqlError:
        return False


def _unknown_call(request: Request) -> Refusal:
    return Refusal(404, "NOT_FOUND", f"/{'/'.join(request.segments)} is not a call of the local service")


def _described(session: Session, text: str) -> Response:
    query_id = str(uuid.uuid4())
    try:
        described, binds = describe(session, text)
    except SqlError as error:
        return _failed(error, query_id)
    return _success(_result_data(session, described, query_id, binds))


def _result_data(
    session: Session,
    result: Result,
    query_id: str,
    binds: int = 0,
    own: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    counts = _row_counts(result)
    return {
        "parameters": _parameters(session),
        "rowtype": [row_type(column.name, column.type, column.nullable) for column in result.columns],
        **({} if len(counts) > 1 else _parts(result, _result_format(session, own), counts)[0]),
        "total": len(result.rows),
        "returned": len(result.rows),
        "queryId": query_id,
        "statementTypeId": result.statement_type,
        "finalDatabaseName": session.database,
        "finalSchemaName": session.schema,
        "finalRoleName": session.role,
        "finalWarehouseName": session.warehouse,
        "numberOfBinds": binds,
        "arrayBindSupported": True,
        "stats": _stats(result),
        "version": 1,
        "sendResultTime": int(time.time() * 1000),
    }


def _stats(result: Result) -> dict[str, int] | None:
    """Return the rows that a statement changed: all of their numbers, or none where it changed none."""
    if not any((result.changed or {}).values()):
        return {} if result.statement_type != SELECT else None
    return stats(result.changed or {}, "numDmlDuplicates")


def _parts(result: Result, form: str, counts: Sequence[int]) -> tuple[dict[str, Any], list[bytes]]:
    """Return the rows of the answer itself, and its further parts: Arrow for queries of clients that read it.

    A part of Arrow is a stream, one of text an array of rows without its brackets (observed with 4.8.1).

    :param counts: how many rows each has.
    """
    if result.statement_type == SELECT and form == "ARROW":
        # An integer of more than 38 digits or a date out of range: text can still carry it.
        with contextlib.suppress(pa.ArrowException):
            # Connector 4.8.1 builds no pandas frame of a stream without a batch, and dies of an empty batch.
            first, *others = encode_streams(result, counts) if result.rows else [b""]
            return {"queryResultFormat": "arrow", "rowsetBase64": base64.b64encode(first).decode()}, others
    kinds = [column.type.kind for column in result.columns]
    rows = [[encode(value, kind) for value, kind in zip(row, kinds, strict=True)] for row in result.rows]
    others = [
        json.dumps(rows[start : start + count], separators=(",", ":"))[1:-1].encode()
        for start, count in zip(itertools.accumulate(counts[:-1]), counts[1:], strict=True)
    ]
    return {"queryResultFormat": "json", "rowset": rows[: counts[0]]}, others


def _row_counts(result: Result) -> list[int]:
    """Return how many rows the answer itself has, and how many each further part."""
    if result.held_bytes <= _FIRST_BYTES and len(result.rows) <= _FIRST_ROWS:
        return [len(result.rows)]
    counts, size, most_rows, most_bytes = [0], 0, _FIRST_ROWS, _FIRST_BYTES
    for row in result.rows:
        own = sum(len(value) for value in row if isinstance(value, (str, bytes)))
        if counts[-1] and (counts[-1] == most_rows or size + own > most_bytes):
            counts.append(0)
            size, most_rows, most_bytes = 0, _CHUNK_ROWS, _CHUNK_BYTES
        counts[-1] += 1
        size += own
    return counts


def _in_chunks(session: Session, execution: Execution, result: Result, host: str) -> dict[str, Any]:
    """Return the first rows of a large result, and where the client finds the others."""
    counts = _row_counts(result)
    data, chunks = _parts(result, _result_format(session, execution.parameters), counts)
    execution.chunks = chunks
    url = f"https://{host}/queries/{execution.query_id}/chunks"
    return data | {
        "chunkHeaders": {_CHUNK_HEADER: execution.chunk_key},
        "chunks": [
            {
                "url": f"{url}/{number}",
                "rowCount": count,
                "uncompressedSize": len(chunk),
                "compressedSize": len(chunk),
            }
            for number, (count, chunk) in enumerate(zip(counts[1:], chunks, strict=True))
        ],
    }


def _result_format(session: Session, own: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Return how the client reads results: by the statement's own parameters or by the session's."""
    parameter = _FORMAT_PARAMETERS.get(session.client)
    if parameter is None:
        return "JSON"
    requested = str(own.get(parameter, session.parameters.get(parameter, "ARROW"))).upper()
    return "JSON" if requested == "JSON" else "ARROW"


def _in_progress(execution: Execution | Batch, code: str) -> Response:
    data = {"queryId": execution.query_id, "getResultUrl": f"/queries/{execution.query_id}/result"}
    return Response.of_json({"data": data, "code": code, "message": None, "success": True})


def _parameters(session: Session) -> list[dict[str, Any]]:
    values: dict[str, Any] = {
        "AUTOCOMMIT": session.autocommit,
        "TIMEZONE": session.parameters.get("TIMEZONE", "UTC"),
        "CLIENT_TELEMETRY_ENABLED": str(session.parameters.get("CLIENT_TELEMETRY_ENABLED")).lower()
        != "false",
        "CLIENT_SESSION_KEEP_ALIVE": False,
        **{name: int(DEFAULT_PARAMETERS[name]) for name in _OF_CHUNKS},
        # How other drivers write staged values has not been tried.
        _THRESHOLD: session.parameters.get(_THRESHOLD, 65_280) if session.client == "PYTHON" else 0,
        **{name: session.parameters.get(name, DEFAULT_PARAMETERS[name]) for name in _OUTPUT_FORMATS},
    }
    for name in _CLIENT_PARAMETERS & session.parameters.keys():
        given = str(session.parameters[name])
        number = _whole(given)
        values[name] = given if number is None else number
    if session.client in _FORMAT_PARAMETERS:
        values[_FORMAT_PARAMETERS[session.client]] = _result_format(session)
    return [{"name": name, "value": value} for name, value in values.items()]


def _failed(error: SqlError, query_id: str | None = None) -> Response:
    """Answer a failed statement; without an id a statement that never was one, or another call."""
    described = {"internalError": False, "queryId": query_id or str(uuid.uuid4())}
    return _failure(error.code, error.sqlstate, error.message, **described)


def _success(data: Any) -> Response:
    return Response.of_json({"data": data, "code": None, "message": None, "success": True})


def _failure(code: str, sqlstate: str, message: str, **more: Any) -> Response:
    data = {"errorCode": code, "sqlState": sqlstate, **more}
    return Response.of_json({"data": data, "code": code, "message": message, "success": False})

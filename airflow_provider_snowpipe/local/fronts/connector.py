"""Connector protocol: enough for snowflake-connector-python 4.8 and the Airflow hooks on top of it.

Every failure is HTTP 200 with ``success: false``: the connector retries any 5xx.
"""

from __future__ import annotations

import secrets
import threading
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from airflow_provider_snowpipe.local.accounts import Account
from airflow_provider_snowpipe.local.catalog import Catalog
from airflow_provider_snowpipe.local.errors import Refusal, SqlError
from airflow_provider_snowpipe.local.fronts.http import Request, Response
from airflow_provider_snowpipe.local.fronts.sql_api import row_type
from airflow_provider_snowpipe.local.sql import front
from airflow_provider_snowpipe.local.sql.results import Result, encode
from airflow_provider_snowpipe.local.sql.session import Session

_VALIDITY_SECONDS = 4 * 3600
_SESSION_GONE = "390111"
_JWT_INVALID = "390144"
_REMEMBERED_RESULTS = 64


class ConnectorFront:
    """Handlers of the connector protocol.

    :param account: verifies credentials.
    :param catalog: databases.
    """

    def __init__(self, account: Account, catalog: Catalog) -> None:
        self._account = account
        self._catalog = catalog
        self._lock = threading.Lock()
        self._sessions: dict[str, Session] = {}
        self._answers: OrderedDict[str, dict[str, Any]] = OrderedDict()

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
            case ("queries", "v1", "query-request"):
                return self._in_session(request, lambda session: self._query(session, request))
            case ("queries", "v1", "abort-request"):
                return self._in_session(request, lambda _session: _success(None))
            case ("queries", query_id, "result"):
                return self._in_session(request, lambda _session: self._stored(query_id))
            case ("monitoring", "queries", *_, query_id):
                return self._in_session(request, lambda _session: self._monitor(query_id))
        raise Refusal(404, "NOT_FOUND", f"/{'/'.join(request.segments)} is no call of the local service")

    # -- sessions -------------------------------------------------------------------------------------------

    def _login(self, request: Request) -> Response:
        data = request.json().get("data", {})
        if str(data.get("AUTHENTICATOR", "")).upper() != "SNOWFLAKE_JWT":
            return _failure(
                "390190",
                "08001",
                "The local service knows key-pair authentication only (authenticator SNOWFLAKE_JWT).",
            )
        try:
            user = self._account.verify_key_pair(str(data.get("TOKEN", "")))
        except Refusal as refusal:
            return _failure(_JWT_INVALID, "08001", refusal.message)
        session = Session(self._catalog, user)
        session.parameters.update(data.get("SESSION_PARAMETERS") or {})
        _apply_names(session, request.query)
        token, master = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        with self._lock:
            self._sessions[token] = self._sessions[master] = session
        return _success(
            {
                "token": token,
                "masterToken": master,
                "validityInSeconds": _VALIDITY_SECONDS,
                "masterValidityInSeconds": _VALIDITY_SECONDS,
                "sessionId": session.session_id,
                "displayUserName": user,
                "serverVersion": "10.0.0",
                "firstLogin": False,
                "parameters": _parameters(),
                "sessionInfo": _session_info(session),
            }
        )

    def _renew(self, request: Request) -> Response:
        def issue(session: Session) -> Response:
            token, master = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
            with self._lock:
                self._sessions[token] = self._sessions[master] = session
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
            with self._lock:
                self._sessions = {
                    token: known for token, known in self._sessions.items() if known is not session
                }
            session.close()
        return _success(None)

    def _in_session(self, request: Request, work: Any) -> Response:
        session = self._session(request)
        if session is None:
            return _failure(
                _SESSION_GONE, "08001", "Session no longer exists. New login required to access the service."
            )
        answer: Response = work(session)
        return answer

    def _session(self, request: Request) -> Session | None:
        _, _, token = request.headers.get("authorization", "").partition('Token="')
        with self._lock:
            return self._sessions.get(token.rstrip('"'))

    # -- statements -----------------------------------------------------------------------------------------

    def _query(self, session: Session, request: Request) -> Response:
        body = request.json()
        query_id = str(uuid.uuid4())
        try:
            result = front.execute(session, str(body.get("sqlText", "")), body.get("bindings"))
        except SqlError as error:
            answer = _error_answer(error, query_id)
        else:
            answer = {
                "data": _result_data(session, result, query_id),
                "code": None,
                "message": None,
                "success": True,
            }
        session.last_query_id = query_id
        with self._lock:
            self._answers[query_id] = answer
            while len(self._answers) > _REMEMBERED_RESULTS:
                self._answers.popitem(last=False)
        if body.get("asyncExec"):
            data = {"queryId": query_id, "getResultUrl": f"/queries/{query_id}/result"}
            return Response.of_json({"data": data, "code": "333334", "message": None, "success": True})
        return Response.of_json(answer)

    def _stored(self, query_id: str) -> Response:
        answer = self._answers.get(query_id)
        if answer is None:
            return _failure("000709", "02000", f"Statement {query_id} not found")
        return Response.of_json(answer)

    def _monitor(self, query_id: str) -> Response:
        answer = self._answers.get(query_id)
        if answer is None:
            return _success({"queries": []})
        state = "SUCCESS" if answer["success"] else "FAILED_WITH_ERROR"
        return _success({"queries": [{"id": query_id, "status": state, "errorMessage": answer["message"]}]})


def _apply_names(session: Session, query: Mapping[str, str]) -> None:
    """Take database, schema, role and warehouse of the login; a wrong name is no error, as in Snowflake."""
    session.role = query.get("roleName", session.role).upper()
    session.warehouse = query.get("warehouse", "").upper() or None
    database = session.catalog.find(query.get("databaseName", "").upper())
    if database is not None:
        session.use(database.name, None)
        schema = query.get("schemaName", "").upper()
        if schema:
            session.schema = schema if schema in database.schemas else None


def _result_data(session: Session, result: Result, query_id: str) -> dict[str, Any]:
    kinds = [column.type.kind for column in result.columns]
    rowset = [[encode(value, kind) for value, kind in zip(row, kinds, strict=True)] for row in result.rows]
    return {
        "parameters": _parameters(),
        "rowtype": [row_type(column.name, column.type, column.nullable) for column in result.columns],
        "rowset": rowset,
        "total": len(rowset),
        "returned": len(rowset),
        "queryId": query_id,
        "queryResultFormat": "json",
        "statementTypeId": result.statement_type,
        "finalDatabaseName": session.database,
        "finalSchemaName": session.schema,
        "finalRoleName": session.role,
        "finalWarehouseName": session.warehouse,
        "numberOfBinds": 0,
        "arrayBindSupported": False,
        "version": 1,
        "sqlState": "00000",
    }


def _session_info(session: Session) -> dict[str, Any]:
    return {
        "databaseName": session.database,
        "schemaName": session.schema,
        "warehouseName": session.warehouse,
        "roleName": session.role,
    }


def _parameters() -> list[dict[str, Any]]:
    values: dict[str, Any] = {
        "AUTOCOMMIT": True,
        "TIMEZONE": "UTC",
        "CLIENT_TELEMETRY_ENABLED": False,
        "CLIENT_SESSION_KEEP_ALIVE": False,
        "CLIENT_STAGE_ARRAY_BINDING_THRESHOLD": 0,
        "PYTHON_CONNECTOR_QUERY_RESULT_FORMAT": "JSON",
    }
    return [{"name": name, "value": value} for name, value in values.items()]


def _error_answer(error: SqlError, query_id: str) -> dict[str, Any]:
    data = {"internalError": False, "errorCode": error.code, "sqlState": error.sqlstate, "queryId": query_id}
    return {"data": data, "code": error.code, "message": error.message, "success": False}


def _success(data: Any) -> Response:
    return Response.of_json({"data": data, "code": None, "message": None, "success": True})


def _failure(code: str, sqlstate: str, message: str) -> Response:
    data = {"errorCode": code, "sqlState": sqlstate}
    return Response.of_json({"data": data, "code": code, "message": message, "success": False})

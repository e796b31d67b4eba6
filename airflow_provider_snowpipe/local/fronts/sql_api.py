"""SQL API v2: ``/api/v2/statements`` with key-pair JWTs, results as jsonv2."""

from __future__ import annotations

import time
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from airflow_provider_snowpipe.local.accounts import Account
from airflow_provider_snowpipe.local.catalog import Catalog
from airflow_provider_snowpipe.local.errors import Refusal, SqlError
from airflow_provider_snowpipe.local.fronts.http import Request, Response
from airflow_provider_snowpipe.local.sql import front
from airflow_provider_snowpipe.local.sql.results import Result, encode
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.types import ColumnType

_REMEMBERED_RESULTS = 64
_WIRE_TYPES = {"NUMBER": "fixed", "FLOAT": "real", "VARCHAR": "text"}


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: dict[str, Any]


class SqlApiFront:
    """Handlers of the SQL API. Statements run to their end before the answer; ``async=true`` only defers it.

    :param account: verifies credentials.
    :param catalog: databases.
    """

    def __init__(self, account: Account, catalog: Catalog) -> None:
        self._account = account
        self._catalog = catalog
        self._answers: OrderedDict[str, _Answer] = OrderedDict()

    def handle(self, request: Request) -> Response:
        """Answer one request below ``/api/v2/statements``."""
        user = self._account.verify_key_pair(request.bearer())
        match request.method, request.segments:
            case "POST", ("api", "v2", "statements"):
                return self._submit(request, user)
            case "GET", ("api", "v2", "statements", handle):
                return self._fetch(handle)
            case "POST", ("api", "v2", "statements", handle, "cancel"):
                self._fetch(handle)
                raise Refusal(422, "000709", "the statement has already completed")
        raise Refusal(404, "NOT_FOUND", "only /api/v2/statements is known of the SQL API")

    def _submit(self, request: Request, user: str) -> Response:
        body = request.json()
        handle = str(uuid.uuid4())
        answer = self._run(body, user, handle)
        self._answers[handle] = answer
        while len(self._answers) > _REMEMBERED_RESULTS:
            self._answers.popitem(last=False)
        if request.query.get("async", "false").lower() == "true":
            return Response.of_json(
                {
                    "code": "333334",
                    "message": "Asynchronous execution in progress.",
                    "statementHandle": handle,
                    "statementStatusUrl": f"/api/v2/statements/{handle}",
                },
                202,
            )
        return Response.of_json(answer.body, answer.status)

    def _fetch(self, handle: str) -> Response:
        answer = self._answers.get(handle)
        if answer is None:
            raise Refusal(404, "390142", f"statement {handle} is not known")
        return Response.of_json(answer.body, answer.status)

    def _run(self, body: dict[str, Any], user: str, handle: str) -> _Answer:
        session = Session(self._catalog, user)
        try:
            _set_context(session, body)
            result = front.execute(session, str(body.get("statement", "")), body.get("bindings"))
            session.commit()
            return _Answer(200, _result_set(result, handle))
        except SqlError as error:
            return _Answer(
                422,
                {
                    "code": error.code,
                    "message": error.message,
                    "sqlState": error.sqlstate,
                    "statementHandle": handle,
                },
            )
        finally:
            session.close()


def _set_context(session: Session, body: dict[str, Any]) -> None:
    database, schema = body.get("database"), body.get("schema")
    if database:
        session.use(str(database).upper(), str(schema).upper() if schema else None)
    if body.get("role"):
        session.role = str(body["role"]).upper()
    if body.get("warehouse"):
        session.warehouse = str(body["warehouse"]).upper()


def _result_set(result: Result, handle: str) -> dict[str, Any]:
    kinds = [column.type.kind for column in result.columns]
    data = [
        [_text(value, kind) for value, kind in zip(row, kinds, strict=True)]
        for row in result.rows
    ]  # fmt: skip
    return {
        "code": "090001",
        "message": "Statement executed successfully.",
        "sqlState": "00000",
        "statementHandle": handle,
        "statementStatusUrl": f"/api/v2/statements/{handle}",
        "createdOn": int(time.time() * 1000),
        "resultSetMetaData": {
            "numRows": len(data),
            "format": "jsonv2",
            "partitionInfo": [{"rowCount": len(data), "uncompressedSize": 0}],
            "rowType": [row_type(column.name, column.type, column.nullable) for column in result.columns],
        },
        "data": data,
    }


def _text(value: Any, kind: str) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return encode(value, kind)


def row_type(name: str, kind: ColumnType, nullable: bool) -> dict[str, Any]:
    """Describe a result column as the connector protocol and the SQL API do."""
    length = kind.length if kind.kind in {"VARCHAR", "BINARY"} else None
    return {
        "name": name,
        "database": "",
        "schema": "",
        "table": "",
        "type": _WIRE_TYPES.get(kind.kind, kind.kind.lower()),
        "nullable": nullable,
        "precision": 0 if kind.kind.startswith("TIME") else kind.precision,
        "scale": kind.precision if kind.kind.startswith("TIME") else kind.scale,
        "length": length,
        "byteLength": length,
        "collation": None,
    }

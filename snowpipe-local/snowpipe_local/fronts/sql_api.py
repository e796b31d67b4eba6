"""SQL API v2: ``/api/v2/statements`` with key-pair JWTs, PATs or OAuth; results as jsonv2, in partitions."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping
from types import NoneType
from typing import Any

from snowpipe_local.accounts import Account
from snowpipe_local.catalog import Catalog
from snowpipe_local.errors import Refusal, SqlError, compilation_error, unsupported
from snowpipe_local.faults import Faults
from snowpipe_local.fronts.http import Request, Response, answer_to
from snowpipe_local.fronts.sessions import TOKEN_TYPE_HEADER
from snowpipe_local.sql.execution import Batch, Execution, Executions, expired, in_background, timed_out
from snowpipe_local.sql.reader import check_count, split_statements
from snowpipe_local.sql.results import Result, encode
from snowpipe_local.sql.session import Session, use_role, use_schema
from snowpipe_local.tables import ColumnType

# Snowflake answers a synchronous request with 202 when the statement takes longer.
_ANSWER_SECONDS = 45.0
_PARTITION_ROWS = 10_000
_CANCELLED, _TIMED_OUT = "000604", "000630"


class Submission(Batch):
    """The statements of one request, in a session of their own that ends with them."""

    def run_within(self, timeout: float) -> None:
        """Run; an open transaction is rolled back at the end, as in Snowflake.

        :param timeout: seconds for all statements together; 0 for no limit.
        """
        timer = threading.Timer(timeout, self.cancel, [timed_out(timeout)])
        timer.daemon = True
        if timeout:
            timer.start()
        try:
            self.run()
        finally:
            timer.cancel()
            self.session.close()


class SqlApiFront:
    """Handlers of the SQL API."""

    def __init__(self, account: Account, catalog: Catalog, faults: Faults) -> None:
        self._account = account
        self._catalog = catalog
        self._faults = faults
        self._submissions = Executions(catalog.limits.result_bytes)
        catalog.access.on_change(lambda: in_background(self._cancel_orphans))

    def close(self) -> None:
        """Cancel the statements that still run."""
        self._submissions.cancel_all()

    def _cancel_orphans(self) -> None:
        """Stop the statements of users that were disabled or dropped, or lost their role or credential."""

        def is_orphan(made: Submission | Execution) -> bool:
            session = made.session
            is_known = self._account.still_knows(*session.opened_by)
            return not (is_known and self._catalog.access.may_use(session.user, session.role))

        self._submissions.cancel_all(is_orphan)

    def handle(self, request: Request) -> Response:
        """Answer one request below ``/api/v2``."""
        if request.segments[2:3] != ("statements",):
            raise _unknown_call()
        token = request.bearer()
        user, _ = self._account.verify_original(token, request.headers.get(TOKEN_TYPE_HEADER))
        match request.method, request.segments:
            case "POST", ("api", "v2", "statements"):
                return self._submit(request, user, token)
            case "GET", ("api", "v2", "statements", handle):
                return self._answer(request, self._find(handle, user, token))
            case "POST", ("api", "v2", "statements", handle, "cancel"):
                return _cancel(self._find(handle, user, token))
        raise _unknown_call()

    def _submit(self, request: Request, user: str, token: str) -> Response:
        injected = answer_to(self._faults, "statement")
        if injected is not None:
            return injected
        body = request.json()
        _check_types(body)
        timeout = _whole_number(body.get("timeout", 0), "timeout")
        known = self._catalog.access.state.users.get(user)
        try:
            submission, is_new = self._submissions.get_or_add(
                (user, known.created_on_ms if known else 0, self._account.role_in(token)),
                request.query.get("requestId"),
                body,
                lambda: self._submission(request, body, user, token),
            )
        except SqlError as error:
            return _failure(error, str(uuid.uuid4()))
        if is_new:
            for part in submission.parts:
                self._submissions.add(part)
            in_background(lambda: submission.run_within(timeout))
        if request.query.get("async", "false").lower() == "true":
            return _in_progress(submission)
        submission.wait(_ANSWER_SECONDS)
        return self._answer(request, submission)

    def _submission(self, request: Request, body: Mapping[str, Any], user: str, token: str) -> Submission:
        named = {name.upper(): value for name, value in (body.get("parameters") or {}).items()}
        statements = split_statements(body.get("statement") or "")
        requested = named.pop("MULTI_STATEMENT_COUNT", 1)
        check_count(statements, _whole_number(requested, "MULTI_STATEMENT_COUNT"))
        bindings = body.get("bindings") or {}
        if not isinstance(bindings, dict) or not all(map(str.isdecimal, bindings)):
            shown = ", ".join(bindings) if isinstance(bindings, dict) else type(bindings).__name__
            raise compilation_error(f"the keys of bindings are the positions 1, 2, .., not {shown[:80]}.")
        missing = next((n for n in range(1, len(bindings) + 1) if str(n) not in bindings), None)
        if missing is not None:
            raise compilation_error(f"Bind variable {missing} not set.", "002049", "42601")
        if bindings and len(statements) > 1:
            raise unsupported("bindings in a request with several statements")
        role = self._account.role_in(token)
        session = Session(self._catalog, user, credential=self._account.mark(token), only_role=role)
        for name, value in named.items():
            session.set_parameter(name, value)
        _set_context(session, body, role)
        now_ms = self._catalog.access.now_ms()
        self._catalog.queries.login(now_ms, user, request.client_ip, "SQL_API", session.session_id)
        return Submission([Execution(session, statement, bindings) for statement in statements])

    def _find(self, handle: str, user: str, token: str) -> Submission | Execution:
        found: Submission | Execution | None = self._submissions.find(handle)
        # Another user of the same name is not the one that ran it.
        if (
            found is None
            or found.session.user != user
            or not self._account.still_knows(user, found.session.user_since_ms, None)
            # What another role saw stays hidden from a token that is restricted to one.
            or self._account.role_in(token) not in {None, found.session.only_role}
        ):
            raise Refusal(404, "390142", f"statement {handle} is not known")
        return found

    @staticmethod
    def _answer(request: Request, found: Submission | Execution) -> Response:
        if not found.wait(0):
            return _in_progress(found)
        if found.error is not None:
            return _failure(found.error, found.query_id)
        result = found.result
        assert result is not None  # noqa: S101 - an ended statement has a result or an error
        if result.has_expired:
            return _failure(expired(found.query_id), found.query_id)
        wants_null = request.query.get("nullable", "true").lower() != "false"
        partition = _whole_number(request.query.get("partition", "0"), "partition")
        answer = _result_set(found, result, partition, None if wants_null else "null")
        return Response.of_json(answer)


def _check_types(body: Mapping[str, Any]) -> None:
    """Refuse a statement, name or parameter that is not text or other single value; none is shown.

    :raises Refusal: 400.
    """
    parameters = body.get("parameters")
    expected: dict[str, tuple[Any, tuple[type, ...], str]] = {
        name: (body.get(name), (str,), "a string")
        for name in ("statement", "database", "schema", "warehouse", "role")
    }
    expected["parameters"] = parameters, (dict,), "an object of names and values"
    if isinstance(parameters, dict):
        for name, value in parameters.items():
            expected[f"parameter {name[:80]}"] = value, (str, int, float), "a string, a number or a boolean"
    for name, (value, kinds, words) in expected.items():
        if not isinstance(value, (*kinds, NoneType)):
            raise Refusal(400, "391902", f"{name} must be {words}, not {type(value).__name__}")


def _unknown_call() -> Refusal:
    return Refusal(404, "NOT_FOUND", "only /api/v2/statements is known of Snowflake's REST API")


def _cancel(found: Submission | Execution) -> Response:
    if not found.cancel():
        error = SqlError("000709", "02000", "the statement has already completed")
        return _failure(error, found.query_id)
    described = {"code": _CANCELLED, "sqlState": "57014", "message": "successfully canceled."}
    return Response.of_json(described | _handles(found))


def _set_context(session: Session, body: Mapping[str, Any], role: str | None) -> None:
    """Take role, database, schema and warehouse of the request; a role that the token names goes first."""
    requested = role or str(body.get("role") or "").upper()
    if requested:
        use_role(session, requested)
    known = session.catalog.access.state.users.get(session.user)
    session.warehouse = known.default_warehouse if known else None
    database, schema = body.get("database"), body.get("schema")
    if database:
        use_schema(session, str(database).upper(), str(schema).upper() if schema else None)
    if body.get("warehouse"):
        session.warehouse = str(body["warehouse"]).upper()


def _result_set(
    found: Submission | Execution, result: Result, partition: int, null: str | None
) -> dict[str, Any]:
    starts = range(0, max(len(result.rows), 1), _PARTITION_ROWS)
    if not 0 <= partition < len(starts):
        raise Refusal(422, "391914", f"partition {partition} does not exist; there are {len(starts)}")
    kinds = [column.type.kind for column in result.columns]
    first = starts[partition]
    data = [
        [null if value is None else _text(value, kind) for value, kind in zip(row, kinds, strict=True)]
        for row in result.rows[first : first + _PARTITION_ROWS]
    ]
    if partition > 0:
        return {"data": data}
    sizes = [min(_PARTITION_ROWS, len(result.rows) - start) for start in starts]
    return {
        "code": "090001",
        "message": "Statement executed successfully.",
        "sqlState": "00000",
        **_handles(found),
        "createdOn": found.created_on_ms,
        "resultSetMetaData": {
            "numRows": len(result.rows),
            "format": "jsonv2",
            "partitionInfo": [{"rowCount": size, "uncompressedSize": 0} for size in sizes],
            "rowType": [row_type(column.name, column.type, column.nullable) for column in result.columns],
        },
        "data": data,
        **({} if result.changed is None else {"stats": stats(result.changed, "numDuplicateRowsUpdated")}),
    }


def _handles(found: Submission | Execution) -> dict[str, Any]:
    handles: dict[str, Any] = {
        "statementHandle": found.query_id,
        "statementStatusUrl": f"/api/v2/statements/{found.query_id}",
    }
    if isinstance(found, Submission) and len(found.parts) > 1:
        handles["statementHandles"] = [part.query_id for part in found.parts]
    return handles


def _in_progress(found: Submission | Execution) -> Response:
    message = "Asynchronous execution in progress. Use the statement handle to ask for its state."
    described = {"code": "333334", "message": message, "createdOn": found.created_on_ms}
    return Response.of_json(described | _handles(found), 202)


def _failure(error: SqlError, handle: str) -> Response:
    described = {
        "code": error.code,
        "message": error.message,
        "sqlState": error.sqlstate,
        "statementHandle": handle,
    }
    return Response.of_json(described, 408 if error.code == _TIMED_OUT else 422)


def _whole_number(value: Any, name: str) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise Refusal(400, "391902", f"{name} must be a whole number, not {value!r}") from error
    # A timer cannot wait longer than this: seven days, the longest time-out of Snowflake.
    if not 0 <= number <= 604_800:
        raise Refusal(400, "391902", f"{name} must be between 0 and 604800, not {number}")
    return number


def _text(value: Any, kind: str) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return encode(value, kind)


def stats(changed: Mapping[str, int], duplicates: str) -> dict[str, int]:
    """Return the rows that a statement changed.

    :param duplicates: name of the number of matches that were too many.
    """
    kinds = ("inserted", "updated", "deleted")
    counted = {f"numRows{kind.capitalize()}": changed.get(kind, 0) for kind in kinds}
    return counted | {duplicates: changed.get("duplicated", 0)}


def row_type(name: str, kind: ColumnType, nullable: bool) -> dict[str, Any]:
    """Describe a result column as the connector protocol and the SQL API do."""
    length = kind.length if kind.kind in {"VARCHAR", "BINARY"} else None
    return {
        "name": name,
        "database": "",
        "schema": "",
        "table": "",
        "type": kind.wire.lower(),
        "nullable": nullable,
        "precision": 0 if kind.kind.startswith("TIME") else kind.precision,
        "scale": kind.precision if kind.kind.startswith("TIME") else kind.scale,
        "length": length,
        "byteLength": length,
        "collation": None,
    }

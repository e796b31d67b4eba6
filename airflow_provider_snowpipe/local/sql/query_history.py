"""QUERY_HISTORY, SESSIONS and LOGIN_HISTORY: what the query history keeps, as relations of a query.

``INFORMATION_SCHEMA.QUERY_HISTORY`` and its variants show a user's own statements, and those in warehouses
that the session's roles may monitor; the views of ``SNOWFLAKE.ACCOUNT_USAGE`` show all of them.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlglot import exp

from airflow_provider_snowpipe.local.access.model import ACCOUNTADMIN, Securable
from airflow_provider_snowpipe.local.errors import SqlError, compilation_error
from airflow_provider_snowpipe.local.query_history import (
    FAILED,
    RUNNING,
    SUCCEEDED,
    Statement,
    text_hash,
    without_secrets,
)
from airflow_provider_snowpipe.local.sql.reader import strip_comments
from airflow_provider_snowpipe.local.sql.relations import lent_result, service_arguments
from airflow_provider_snowpipe.local.sql.results import Result, ResultColumn, timestamp
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.tables import BOOLEAN, NUMBER, TEXT, TIMESTAMP_LTZ, ColumnType

_FLOAT = ColumnType("FLOAT")
_DAY_MS = 24 * 3600 * 1000
_SHOWN_MS, _SHOWN_USAGE_MS = 7 * _DAY_MS, 365 * _DAY_MS
_MOST_ROWS = 10_000
_RANGE = ("END_TIME_RANGE_START", "END_TIME_RANGE_END", "RESULT_LIMIT", "INCLUDE_CLIENT_GENERATED_STATEMENT")
_ARGUMENTS = {
    "QUERY_HISTORY": _RANGE,
    "QUERY_HISTORY_BY_SESSION": ("SESSION_ID", *_RANGE),
    "QUERY_HISTORY_BY_USER": ("USER_NAME", *_RANGE),
    "QUERY_HISTORY_BY_WAREHOUSE": ("WAREHOUSE_NAME", *_RANGE),
}
_NO_END = 0
# First words of a statement, with its QUERY_TYPE; the first that fits.
_TYPES = tuple(
    (re.compile(rf"(?:{pattern})(?![\w$])", re.IGNORECASE | re.DOTALL), kind)
    for pattern, kind in (
        (r"SELECT|WITH|VALUES", "SELECT"),
        (r"INSERT\s+(?:OVERWRITE\s+)?(?:ALL|FIRST)", "MULTI_TABLE_INSERT"),
        (r"COPY\s+INTO\s+(?=['@])", "UNLOAD"),
        (r"CREATE\b[^(]*?\bTABLE\b(?:(?!\bAS\b).)*?\bAS\s+\(*\s*(?:SELECT|WITH)", "CREATE_TABLE_AS_SELECT"),
        (
            r"CREATE\b(?:\s+(?:OR|REPLACE|LOCAL|GLOBAL|TEMP|TEMPORARY|TRANSIENT|ICEBERG))*\s+TABLE",
            "CREATE_TABLE",
        ),
        (r"CREATE\b(?:\s+(?:OR|REPLACE|SECURE))*\s+VIEW", "CREATE_VIEW"),
        (r"ALTER\s+SESSION", "ALTER_SESSION"),
        (r"BEGIN|START", "BEGIN_TRANSACTION"),
        (r"PUT", "PUT_FILES"),
        (r"GET", "GET_FILES"),
        (r"LIST|LS", "LIST_FILES"),
        (r"REMOVE|RM", "REMOVE_FILES"),
        (r"TRUNCATE", "TRUNCATE_TABLE"),
        (r"DESC", "DESCRIBE"),
    )
)
_PLAIN = frozenset(
    {"INSERT", "UPDATE", "DELETE", "MERGE", "COPY", "CREATE", "ALTER", "DROP", "SHOW", "DESCRIBE", "USE",
     "GRANT", "REVOKE", "COMMIT", "ROLLBACK", "SET", "UNSET", "CALL", "COMMENT", "UNDROP", "EXECUTE"}
)  # fmt: skip
# Those that run in a warehouse.
_COMPUTED = frozenset(
    {"SELECT", "INSERT", "UPDATE", "DELETE", "MERGE", "COPY", "UNLOAD", "MULTI_TABLE_INSERT",
     "CREATE_TABLE_AS_SELECT"}
)  # fmt: skip

_Column = tuple[str, ColumnType, Any]


def _kept(kind: ColumnType, *names: str) -> tuple[_Column, ...]:
    """Columns that the history keeps under the same names in lower case."""
    return tuple((name, kind, operator.attrgetter(name.lower())) for name in names)


def _always(kind: ColumnType, value: object, *names: str) -> tuple[_Column, ...]:
    return tuple((name, kind, value) for name in names)


def _elapsed(entry: Any) -> int:
    return int((entry.end_ms or entry.start_ms) - entry.start_ms)


# Column, type and value. Order and names of the pages "QUERY_HISTORY" (information schema), "QUERY_HISTORY
# view" and "QUERY_ATTRIBUTION_HISTORY view". A statement that runs has the epoch as its end.
_SPAN: tuple[_Column, ...] = (
    ("START_TIME", TIMESTAMP_LTZ, lambda s: timestamp(s.start_ms)),
    ("END_TIME", TIMESTAMP_LTZ, lambda s: timestamp(s.end_ms or _NO_END)),
)
_IDENTITY: tuple[_Column, ...] = (
    *_kept(TEXT, "QUERY_ID"),
    ("QUERY_TEXT", TEXT, lambda s: s.text),
    *_kept(TEXT, "DATABASE_NAME", "SCHEMA_NAME", "QUERY_TYPE"),
    *_kept(NUMBER, "SESSION_ID"),
    *_kept(TEXT, "USER_NAME", "ROLE_NAME", "WAREHOUSE_NAME", "WAREHOUSE_SIZE"),
    ("WAREHOUSE_TYPE", TEXT, lambda s: "STANDARD" if s.warehouse_size else None),
    ("CLUSTER_NUMBER", NUMBER, lambda s: 1 if s.warehouse_size else None),
    *_kept(TEXT, "QUERY_TAG"),
)
_ERROR = (
    *_kept(TEXT, "ERROR_CODE", "ERROR_MESSAGE"),
    *_SPAN,
    ("TOTAL_ELAPSED_TIME", NUMBER, _elapsed),
    *_always(NUMBER, 0, "BYTES_SCANNED"),
)
_PRODUCED: _Column = ("ROWS_PRODUCED", NUMBER, lambda s: s.produced)
_QUEUED = ("PROVISIONING_TIME", "REPAIR_TIME", "OVERLOAD_TIME")
_TIMES = (
    *_always(NUMBER, 0, "COMPILATION_TIME"),
    ("EXECUTION_TIME", NUMBER, _elapsed),
    *_always(NUMBER, 0, *(f"QUEUED_{each}" for each in _QUEUED), "TRANSACTION_BLOCKED_TIME"),
    *(
        column
        for way in ("OUTBOUND", "INBOUND")
        for column in (
            *_always(TEXT, None, f"{way}_DATA_TRANSFER_CLOUD", f"{way}_DATA_TRANSFER_REGION"),
            *_always(NUMBER, 0, f"{way}_DATA_TRANSFER_BYTES"),
        )
    ),
)
_END = (
    *_always(_FLOAT, 0.0, "CREDITS_USED_CLOUD_SERVICES"),
    *_always(TEXT, "10.0.0", "RELEASE_VERSION"),
    *_always(
        NUMBER,
        0,
        *(f"EXTERNAL_FUNCTION_TOTAL_{each}"
          for each in ("INVOCATIONS", "SENT_ROWS", "RECEIVED_ROWS", "SENT_BYTES", "RECEIVED_BYTES")),
    ),
    *_always(BOOLEAN, False, "IS_CLIENT_GENERATED_STATEMENT"),
    ("QUERY_HASH", TEXT, lambda s: s.text_hash),
    *_always(NUMBER, 1, "QUERY_HASH_VERSION"),
)  # fmt: skip
_FUNCTION_STATUS = {FAILED: "FAILED_WITH_ERROR"}
_FUNCTION_COLUMNS = (
    *_IDENTITY,
    ("EXECUTION_STATUS", TEXT, lambda s: _FUNCTION_STATUS.get(s.status, s.status)),
    *_ERROR,
    _PRODUCED,
    *_TIMES,
    *_END,
)
_VIEW_COLUMNS = (
    *_IDENTITY[:2], *_always(NUMBER, None, "DATABASE_ID"), _IDENTITY[2], *_always(NUMBER, None, "SCHEMA_ID"),
    *_IDENTITY[3:8], *_always(NUMBER, None, "WAREHOUSE_ID"), *_IDENTITY[8:],
    ("EXECUTION_STATUS", TEXT, lambda s: s.status),
    *_ERROR,
    *_always(_FLOAT, 0.0, "PERCENTAGE_SCANNED_FROM_CACHE"),
    *_always(NUMBER, 0, "BYTES_WRITTEN", "BYTES_WRITTEN_TO_RESULT", "BYTES_READ_FROM_RESULT"),
    _PRODUCED,
    ("ROWS_INSERTED", NUMBER, lambda s: s.inserted),
    ("ROWS_UPDATED", NUMBER, lambda s: s.updated),
    ("ROWS_DELETED", NUMBER, lambda s: s.deleted),
    *_always(NUMBER, 0, "ROWS_UNLOADED", "BYTES_DELETED"),
    *_TIMES,
    *_END,
)  # fmt: skip
_SESSION_COLUMNS = (
    *_kept(NUMBER, "SESSION_ID"),
    ("CREATED_ON", TIMESTAMP_LTZ, lambda e: timestamp(e.at_ms)),
    *_kept(TEXT, "USER_NAME"),
    *_always(TEXT, None, "AUTHENTICATION_METHOD"),
    ("LOGIN_EVENT_ID", NUMBER, lambda e: e.event_id),
    *_always(TEXT, None, "CLIENT_APPLICATION_VERSION"),
    ("CLIENT_APPLICATION_ID", TEXT, lambda e: e.client),
    *_always(TEXT, None, "CLIENT_ENVIRONMENT", "CLIENT_BUILD_ID", "CLIENT_VERSION", "CLOSED_REASON"),
)
_LOGIN_COLUMNS = (
    *_kept(NUMBER, "EVENT_ID"),
    ("EVENT_TIMESTAMP", TIMESTAMP_LTZ, lambda e: timestamp(e.at_ms)),
    *_always(TEXT, "LOGIN", "EVENT_TYPE"),
    *_kept(TEXT, "USER_NAME", "CLIENT_IP"),
    ("REPORTED_CLIENT_TYPE", TEXT, lambda e: e.client),
    *_always(
        TEXT, None, "REPORTED_CLIENT_VERSION", "FIRST_AUTHENTICATION_FACTOR", "SECOND_AUTHENTICATION_FACTOR"
    ),
    ("IS_SUCCESS", TEXT, lambda e: "NO" if e.error_code else "YES"),
    ("ERROR_CODE", NUMBER, lambda e: int(e.error_code) if e.error_code else None),
    *_kept(TEXT, "ERROR_MESSAGE"),
    *_always(NUMBER, 0, "RELATED_EVENT_ID"),
    *_always(TEXT, None, "CONNECTION"),
)
_ATTRIBUTION_COLUMNS = (
    *_kept(TEXT, "QUERY_ID"),
    *_always(TEXT, None, "PARENT_QUERY_ID", "ROOT_QUERY_ID"),
    *_always(NUMBER, None, "WAREHOUSE_ID"),
    *_kept(TEXT, "WAREHOUSE_NAME"),
    ("QUERY_HASH", TEXT, lambda s: s.text_hash),
    *_always(TEXT, None, "QUERY_PARAMETERIZED_HASH"),
    *_kept(TEXT, "QUERY_TAG", "USER_NAME"),
    *_SPAN,
    ("CREDITS_ATTRIBUTED_COMPUTE", _FLOAT, lambda s: _credits(s)),
    *_always(_FLOAT, None, "CREDITS_USED_QUERY_ACCELERATION"),
)
# Each size has twice the credits of the one before (page "Overview of warehouses").
_SIZES = ("X-Small", "Small", "Medium", "Large", "X-Large", *(f"{number}X-Large" for number in range(2, 7)))
USAGE_VIEWS = frozenset({"QUERY_HISTORY", "QUERY_ATTRIBUTION_HISTORY", "SESSIONS", "LOGIN_HISTORY"})
"""Views of ACCOUNT_USAGE that this module has."""


def begin(session: Session, query_id: str, text: str) -> Statement:
    """Put a statement that begins into the query history."""
    words = strip_comments(text)
    kind = query_type(words)
    needed = kind in _COMPUTED and session.warehouse is not None
    warehouse = session.catalog.access.state.warehouses.get(session.warehouse or "") if needed else None
    made = Statement(
        query_id,
        without_secrets(words),
        text_hash(words),
        kind,
        session.session_id,
        session.user,
        session.role,
        session.database,
        session.schema,
        session.warehouse,
        warehouse.size if warehouse is not None else None,
        str(session.parameters.get("QUERY_TAG", "")),
        session.catalog.clock.now_ms(),
    )
    session.catalog.queries.begin(made)
    return made


def end(session: Session, statement: Statement, result: Result | None, error: SqlError | None) -> None:
    """Put the outcome of a statement into the query history."""
    if error is not None:
        statement.status, statement.error_code = FAILED, error.code
        statement.error_message = error.message
    elif result is not None:
        statement.status = SUCCEEDED
        _count(statement, result)
    statement.end_ms = session.catalog.clock.now_ms()
    session.catalog.queries.end(statement)


def query_type(text: str) -> str:
    """Return QUERY_TYPE of a statement by its first words; UNKNOWN for what is no statement."""
    head = text[:1000]
    for pattern, kind in _TYPES:
        if pattern.match(head):
            return kind
    word = head.split(maxsplit=1)[0].upper() if head.strip() else ""
    return word if word in _PLAIN else "UNKNOWN"


def _count(statement: Statement, result: Result) -> None:
    names = {column.name: at for at, column in enumerate(result.columns)}

    def total(*words: str) -> int:
        at = [number for name, number in names.items() if name.startswith(words)]
        return sum(int(row[number] or 0) for row in result.rows for number in at)

    statement.inserted = total("number of rows inserted", "rows_loaded")
    statement.updated, statement.deleted = total("number of rows updated"), total("number of rows deleted")
    changed = statement.inserted + statement.updated + statement.deleted
    statement.produced = changed or len(result.rows)


def _credits(statement: Statement) -> float:
    """Credits of the time that a statement ran, as if a warehouse of its size had."""
    hours = ((statement.end_ms or statement.start_ms) - statement.start_ms) / 3_600_000
    return hours * 2.0 ** _SIZES.index(statement.warehouse_size or _SIZES[0])


def usage_relation(session: Session, name: str) -> exp.Expr:
    """Return a query for a view of ACCOUNT_USAGE, one of :data:`USAGE_VIEWS`.

    The caller has checked that the roles may read it.
    """
    since = session.catalog.clock.now_ms() - _SHOWN_USAGE_MS
    if name.startswith("QUERY"):
        ended = [
            s for s in session.catalog.queries.statements() if s.status != RUNNING and s.start_ms >= since
        ]
        if name == "QUERY_ATTRIBUTION_HISTORY":
            return _lent(session, _ATTRIBUTION_COLUMNS, [s for s in ended if s.warehouse_size])
        return _lent(session, _VIEW_COLUMNS, ended)
    logins = [e for e in session.catalog.queries.logins() if e.at_ms >= since]
    if name == "LOGIN_HISTORY":
        return _lent(session, _LOGIN_COLUMNS, logins)
    return _lent(session, _SESSION_COLUMNS, [e for e in logins if e.session_id is not None])


def history_of(session: Session, call: exp.Anonymous) -> exp.Expr:
    """Return the query that stands for a call of QUERY_HISTORY or a variant.

    :raises SqlError: for wrong arguments.
    """
    function = call.name.upper()
    arguments = service_arguments(call, _ARGUMENTS[function])
    limit = arguments.get("RESULT_LIMIT", exp.Literal.number(100))
    if not limit.is_int or not 1 <= int(limit.name) <= _MOST_ROWS:
        raise compilation_error(f"RESULT_LIMIT of {function} is a number from 1 to {_MOST_ROWS}.")
    since = session.catalog.clock.now_ms() - _SHOWN_MS
    shown = [
        statement
        for statement in _visible(session)
        if (statement.end_ms or statement.start_ms) >= since
        and _is_meant(session, statement, function, arguments)
    ]
    found = exp.select("*").from_(
        exp.Subquery(
            this=_lent(session, _FUNCTION_COLUMNS, shown),
            alias=exp.TableAlias(this=exp.to_identifier("H", quoted=True)),
        )
    )
    # What still runs has no end; it counts as the newest.
    ended = exp.func(
        "IF",
        exp.EQ(this=_column("EXECUTION_STATUS"), expression=exp.Literal.string(RUNNING)),
        _column("START_TIME"),
        _column("END_TIME"),
    )
    for argument, compare in (("END_TIME_RANGE_START", exp.GTE), ("END_TIME_RANGE_END", exp.LTE)):
        if argument in arguments:
            bound = exp.cast(arguments[argument].copy(), "TIMESTAMPTZ")
            found = found.where(compare(this=ended.copy(), expression=bound), copy=False)
    return found.order_by(exp.Ordered(this=ended, desc=True), copy=False).limit(int(limit.name), copy=False)


def _visible(session: Session) -> Iterator[Statement]:
    sees_all = ACCOUNTADMIN in session.roles
    watched: dict[str, bool] = {}
    for statement in session.catalog.queries.statements():
        name = statement.warehouse_name or ""
        if not sees_all and statement.user_name != session.user and name not in watched:
            held = session.catalog.access.held(session.roles, Securable("WAREHOUSE", (name,)))
            watched[name] = bool(held & {"MONITOR", "OPERATE", "OWNERSHIP"})
        if sees_all or statement.user_name == session.user or watched.get(name, False):
            yield statement


def _is_meant(
    session: Session, statement: Statement, function: str, arguments: Mapping[str, exp.Expr]
) -> bool:
    if function == "QUERY_HISTORY_BY_SESSION":
        given = arguments.get("SESSION_ID")
        return str(statement.session_id) == (given.name if given is not None else str(session.session_id))
    if function == "QUERY_HISTORY_BY_USER":
        given = arguments.get("USER_NAME")
        return statement.user_name == (given.name if given is not None else session.user)
    if function == "QUERY_HISTORY_BY_WAREHOUSE":
        given = arguments.get("WAREHOUSE_NAME")
        return statement.warehouse_name == (given.name if given is not None else session.warehouse)
    return True


def _column(name: str) -> exp.Column:
    return exp.column(exp.to_identifier(name, quoted=True))


def _lent(
    session: Session, columns: Sequence[tuple[str, ColumnType, Any]], entries: Sequence[Any]
) -> exp.Expr:
    rows = [tuple(value(entry) if callable(value) else value for _, _, value in columns) for entry in entries]
    return lent_result(
        session, Result(tuple(ResultColumn(name, kind) for name, kind, _ in columns), list(rows))
    )

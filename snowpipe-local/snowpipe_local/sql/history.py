"""What the service remembers as relations of a query: statements, logins, loads, rejected rows.

``INFORMATION_SCHEMA.QUERY_HISTORY`` and its variants show a user's own statements, and those in warehouses
that the session's roles may monitor; the views of ``SNOWFLAKE.ACCOUNT_USAGE`` show all of them.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
import sqlglot
from sqlglot import exp

from snowpipe_local.access import access as changes
from snowpipe_local.access.access import ACCOUNT_OBJECT, insufficient
from snowpipe_local.access.model import (
    ACCOUNTADMIN,
    SHARED,
    SHARED_DATABASE,
    SHARED_ROLES,
    Securable,
    shared_role,
)
from snowpipe_local.engine.database import Database
from snowpipe_local.engine.load_history import DAY_MS
from snowpipe_local.errors import SqlError, compilation_error, missing_account_object, object_missing
from snowpipe_local.query_history import (
    FAILED,
    RUNNING,
    SUCCEEDED,
    LoginEvent,
    Statement,
    text_hash,
    without_secrets,
)
from snowpipe_local.sql.reader import Reader, strip_comments
from snowpipe_local.sql.relations import SERVICE_FUNCTIONS, is_service_function, service_arguments
from snowpipe_local.sql.results import Result, done
from snowpipe_local.sql.session import Session
from snowpipe_local.sql.timestamps import aliased
from snowpipe_local.tables import TEMPORARY, Table, literal, quote, read_whole_path

_SHOWN_MS, _USAGE_MS = 7 * DAY_MS, 365 * DAY_MS
_MOST_ROWS = 10_000
_RANGE = ("END_TIME_RANGE_START", "END_TIME_RANGE_END", "RESULT_LIMIT", "INCLUDE_CLIENT_GENERATED_STATEMENT")
# Of each variant: its argument, as a statement keeps it, and what of the session replaces it.
_ASKED = {
    "QUERY_HISTORY_BY_SESSION": ("SESSION_ID", "session_id"),
    "QUERY_HISTORY_BY_USER": ("USER_NAME", "user"),
    "QUERY_HISTORY_BY_WAREHOUSE": ("WAREHOUSE_NAME", "warehouse"),
}
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

USAGE_VIEWS = frozenset({"QUERY_HISTORY", "QUERY_ATTRIBUTION_HISTORY", "SESSIONS", "LOGIN_HISTORY"})
"""Views of ACCOUNT_USAGE that this module has."""


def begin(
    session: Session, query_id: str, text: str, own: Mapping[str, object] = MappingProxyType({})
) -> Statement:
    """Put a statement that begins into the query history."""
    words = strip_comments(text)
    kind = query_type(words)
    needed = kind in _COMPUTED and session.warehouse is not None
    warehouse = session.catalog.access.state.warehouses.get(session.warehouse or "") if needed else None
    shown = without_secrets(words)
    digest = text_hash(words if words.startswith(shown) else shown)
    made = Statement(
        query_id, shown, digest, kind, session.session_id, session.user,
        session.role, session.database, session.schema, session.warehouse,
        warehouse.size if warehouse is not None else None,
        str(own.get("QUERY_TAG", session.parameters.get("QUERY_TAG", ""))),
        session.catalog.clock.now_ms(),
    )  # fmt: skip
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
    """Return QUERY_TYPE of a statement by its first words; UNKNOWN for what is not a statement."""
    head = text[:1000]
    for pattern, kind in _TYPES:
        if pattern.match(head):
            return kind
    word = head.split(maxsplit=1)[0].upper() if head.strip() else ""
    return word if word in _PLAIN else "UNKNOWN"


def _count(statement: Statement, result: Result) -> None:
    counted = result.changed or {}
    statement.inserted, statement.updated = counted.get("inserted", 0), counted.get("updated", 0)
    statement.deleted, statement.unloaded = counted.get("deleted", 0), counted.get("unloaded", 0)
    statement.produced = statement.inserted + statement.updated + statement.deleted or len(result.rows)


def usage_relation(session: Session, name: str) -> exp.Expr:
    """Return a query for a view of ACCOUNT_USAGE, one of :data:`USAGE_VIEWS`.

    The caller has checked that the roles may read it.
    """
    since = session.catalog.clock.now_ms() - _USAGE_MS
    if name.startswith("QUERY"):
        begun = [s for s in session.catalog.queries.statements() if s.start_ms >= since]
        return _registered(session, name, Statement, begun)
    return _registered(
        session, name, LoginEvent, [e for e in session.catalog.queries.logins() if e.at_ms >= since]
    )


def history_of(session: Session, call: exp.Anonymous) -> exp.Expr:
    """Return the query that stands for a call of QUERY_HISTORY or a variant.

    :raises SqlError: for wrong arguments.
    """
    function = call.name.upper()
    asked, own = _ASKED.get(function, ("", ""))
    arguments = service_arguments(call, (*filter(None, [asked]), *_RANGE))
    limit = arguments.get("RESULT_LIMIT", exp.Literal.number(100))
    if not limit.is_int or not 1 <= int(limit.name) <= _MOST_ROWS:
        raise compilation_error(f"RESULT_LIMIT of {function} is a number from 1 to {_MOST_ROWS}.")
    since = session.catalog.clock.now_ms() - _SHOWN_MS
    shown = [each for each in _visible(session) if (each.end_ms or each.start_ms) >= since]
    if asked:
        meant = arguments[asked].name if asked in arguments else getattr(session, own)
        shown = [each for each in shown if str(getattr(each, asked.lower())) == str(meant)]
    # What still runs has no end; it counts as the newest.
    ended = exp.func(
        "IF",
        exp.EQ(this=_column("EXECUTION_STATUS"), expression=exp.Literal.string(RUNNING)),
        _column("START_TIME"),
        _column("END_TIME"),
    )
    bounds = {"END_TIME_RANGE_START": exp.GTE, "END_TIME_RANGE_END": exp.LTE}
    found = _between(_registered(session, "INFORMATION_SCHEMA", Statement, shown), ended, arguments, bounds)
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


def _column(name: str) -> exp.Column:
    return exp.column(exp.to_identifier(name, quoted=True))


def _timestamp(column: str) -> str:
    return f"(make_timestamp({column} * 1000) AT TIME ZONE 'UTC')"


# What parts of history.sql have in common; they get the others in braces when they run.
_WORDS = {
    "start": _timestamp("start_ms"), "stop": _timestamp("coalesce(end_ms, 0)"), "at": _timestamp("at_ms"),
    "elapsed": "(coalesce(end_ms, start_ms) - start_ms)", "text": "CAST(NULL AS VARCHAR)",
    "number": "CAST(NULL AS DECIMAL(38, 0))", "loaded": _timestamp("loaded_on_ms"),
    "received": _timestamp("received_on_ms"),
    **{word: f"{{{word}}}" for word in ("e", "database", "relation", "since", "condition")},
}  # fmt: skip


@functools.cache
def _parts() -> dict[str, str]:
    """Return the parts of history.sql by name."""
    text = Path(__file__).with_name("history.sql").read_text(encoding="utf-8")
    _, *parts = re.split(r"^-- (\w+)\n", text, flags=re.MULTILINE)
    known = dict(_WORDS)
    for name, part in zip(parts[::2], parts[1::2], strict=True):
        known[name] = part.strip().format_map(known)
    return known


def _registered(
    session: Session, name: str, kind: type[Statement | LoginEvent], entries: Sequence[Statement | LoginEvent]
) -> exp.Expr:
    """Return a query for a part of history.sql over some entries of the query history."""
    types = {
        field.name: pa.int64() if str(field.type).startswith("int") else pa.string()
        for field in dataclasses.fields(kind)
    }
    kept = {each: pa.array([getattr(entry, each) for entry in entries], t) for each, t in types.items()}
    return _computed(session, _parts()[name].format(e=quote(session.register(pa.table(kept)))))


def _computed(session: Session, sql: str) -> exp.Expr:
    """Return a query for what the engine answers to another one, with names in upper case."""
    found = session.cursor.sql(sql).to_arrow_table()
    names = [column.upper() for column in found.column_names]
    relation = session.register(found.rename_columns(names))
    return exp.select(*map(_column, names)).from_(exp.to_identifier(relation, quoted=True))


def _between(
    found: exp.Expr, at: exp.Expr, arguments: Mapping[str, exp.Expr], bounds: Mapping[str, type[exp.Binary]]
) -> exp.Select:
    """Return the rows of a query whose time is between two arguments of a call."""
    chosen = exp.select("*").from_(aliased(found, "H"))
    for argument, compare in bounds.items():
        if argument in arguments:
            bound = exp.cast(arguments[argument].copy(), "TIMESTAMPTZ")
            chosen = chosen.where(compare(this=at.copy(), expression=bound), copy=False)
    return chosen


# -- ERROR_TABLE(t): the rejected rows of a table with ERROR_LOGGING = TRUE ------------------------------


def is_error_table(table: exp.Table) -> bool:
    """Return True for ``ERROR_TABLE(..)`` where a query names a table."""
    return isinstance(table.this, exp.Anonymous) and table.this.name.upper() == "ERROR_TABLE"


def subquery(session: Session, table: exp.Table) -> exp.Expr:
    """Return the DuckDB subquery that stands for ``ERROR_TABLE(name)``.

    :raises SqlError: when the table does not exist or does not log errors.
    """
    arguments = table.this.expressions
    if len(arguments) != 1 or not isinstance(arguments[0], exp.Column):
        raise compilation_error("ERROR_TABLE needs the name of one table.")
    database, named = _logging_table(session, tuple(part.name for part in arguments[0].parts), "SELECT")
    condition = f"schema_name = {literal(named.schema)} AND table_name = {literal(named.name)}"
    relation = database.names.hidden("rejected_rows")
    query = _parts()["ERROR_TABLE"].format(relation=relation, condition=condition)
    return aliased(sqlglot.parse_one(query, dialect="duckdb"), table.alias or "ERROR_TABLE")


def truncate(session: Session, reader: Reader) -> Result:
    """TRUNCATE ERROR_TABLE(name)."""
    reader.expect("ERROR_TABLE")
    reader.expect_sign("(")
    path = reader.path()
    reader.expect_sign(")")
    reader.end()
    session.transaction.commit()
    database, table = _logging_table(session, path, "TRUNCATE")
    database.tables.clear_rejected_rows(table.schema, table.name)
    return done()


def _logging_table(session: Session, path: tuple[str, ...], privilege: str) -> tuple[Database, Table]:
    database, table = session.table(path, privilege)
    if not table.error_logging:
        raise compilation_error(
            f"Table '{table}' has no error table; run ALTER TABLE {table.name} SET ERROR_LOGGING = TRUE.",
            "002003",
            "02000",
        )
    return database, table


# -- COPY_HISTORY and LOAD_HISTORY: the loads of the last 14 days ----------------------------------------

SHOWN_MS = 14 * DAY_MS
_COPY_ARGUMENTS = ("TABLE_NAME", "START_TIME", "END_TIME", "PIPE_NAME")


def replace_histories(session: Session, tree: exp.Expr) -> None:
    """Put a subquery where a query calls ``TABLE(INFORMATION_SCHEMA.COPY_HISTORY(..))`` or QUERY_HISTORY.

    :raises SqlError: for wrong arguments, or a table that does not exist or stays hidden.
    """
    for rows in list(tree.find_all(exp.TableFromRows)):
        if not is_service_function(rows.this, *SERVICE_FUNCTIONS):
            continue
        call, alias = rows.this.expression, rows.args.get("alias")
        name = alias.this.name if alias is not None and alias.this else call.name.upper()
        if call.name.upper() == "COPY_HISTORY":
            rows.replace(aliased(_copy_history(session, call), name))
            continue
        parts = [part.name for part in rows.this.this.find_all(exp.Identifier)]
        session.visible_database(parts[0] if len(parts) == 2 else session.current_database())
        rows.replace(aliased(history_of(session, call), name))


def load_history(session: Session, database: Database, alias: str = "LOAD_HISTORY") -> exp.Expr:
    """Return the subquery that stands for INFORMATION_SCHEMA.LOAD_HISTORY of a database."""
    visible = [
        f"({literal(table.schema)}, {literal(table.name)})"
        for table in database.tables
        if session.can_see("TABLE", database.name, table.schema, table.name)
    ]
    condition = f"(schema_name, table_name) IN ({', '.join(visible)})" if visible else "false"
    return aliased(_computed(session, _loads("LOADS", database, condition)), alias)


def _copy_history(session: Session, call: exp.Anonymous) -> exp.Expr:
    arguments = service_arguments(call, _COPY_ARGUMENTS)
    database, schema, name = session.resolve(read_whole_path(_string(arguments, "TABLE_NAME")))
    if database.tables.find(schema, name) is None or not session.can_see(
        "TABLE", database.name, schema, name
    ):
        raise object_missing("Table", f"{database.name}.{schema}.{name}")
    condition = f"schema_name = {literal(schema)} AND table_name = {literal(name)}"
    if "PIPE_NAME" in arguments:
        _, pipe_schema, pipe = session.resolve(read_whole_path(_string(arguments, "PIPE_NAME")))
        condition += f" AND pipe_schema = {literal(pipe_schema)} AND pipe_name = {literal(pipe)}"
    if "START_TIME" not in arguments:
        raise compilation_error("COPY_HISTORY needs START_TIME.")
    found = _computed(session, _loads("LOADS_BY_COPY", database, condition))
    return _between(found, _column("LAST_LOAD_TIME"), arguments, {"START_TIME": exp.GTE, "END_TIME": exp.LT})


def _loads(
    part: str, database: Database, condition: str, relation: str | None = None, kept_ms: int = SHOWN_MS
) -> str:
    """Return the statement for loads of a database.

    :param relation: where they are, None for the load history.
    :param kept_ms: how far back it shows them.
    """
    return _parts()[part].format(
        database=literal(database.name),
        relation=relation or database.history.relation,
        since=database.clock.now_ms() - kept_ms,
        condition=condition,
    )


def _string(arguments: dict[str, exp.Expr], name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, exp.Literal) or not value.is_string:
        raise compilation_error(f"COPY_HISTORY needs {name} as a string.")
    return str(value.this)


# -- SNOWFLAKE.ACCOUNT_USAGE: loads and statements of the whole account, for roles that were given the right -
#
# Everything in the database SNOWFLAKE is read-only. The views have no latency here, know no numbers of
# objects (``TABLE_ID`` and the like are NULL), and are named in full only.

SCHEMA = "ACCOUNT_USAGE"
_NOT_TEMPORARY = f"NOT contains(table_name, chr({ord(TEMPORARY)}))"


def relation(session: Session, schema: str, name: str) -> exp.Expr:
    """Return a query for one view of the database SNOWFLAKE.

    :raises SqlError: 002003 for roles without the right to it, and for what the local service does not have.
    """
    if not session.catalog.access.sees_usage(session.roles):
        raise object_missing("Database", SHARED_DATABASE)
    if schema != SCHEMA:
        raise object_missing("Schema", f"{SHARED_DATABASE}.{schema}")
    if name in USAGE_VIEWS:
        return usage_relation(session, name)
    if name not in {"COPY_HISTORY", "LOAD_HISTORY"}:
        raise object_missing("Object", f"{SHARED_DATABASE}.{schema}.{name}")
    statements = [
        _loads(name, database, _NOT_TEMPORARY, relation_name, _USAGE_MS)
        for database in session.catalog.databases
        for relation_name in (database.history.relation, database.history.of_former_tables)
        # LOAD_HISTORY forgets the loads of dropped tables, as its page documents.
        if name == "COPY_HISTORY" or relation_name == database.history.relation
    ]
    return _computed(session, " UNION ALL ".join(statements))


def grant_viewer(session: Session, reader: Reader) -> Result:
    """GRANT DATABASE ROLE SNOWFLAKE.name TO ROLE r, and REVOKE .. FROM ROLE r."""
    path = reader.path()
    if len(path) != 2:
        raise compilation_error("expected GRANT DATABASE ROLE SNOWFLAKE.name TO ROLE name.")
    reader.expect("TO ROLE" if reader.verb == "GRANT" else "FROM ROLE")
    role = reader.name()
    reader.end()
    session.transaction.commit()
    if path[0] != SHARED_DATABASE or path[1] not in SHARED_ROLES:
        raise object_missing("Database role", ".".join(path))
    access = session.catalog.access
    if role not in access.state.roles:
        raise missing_account_object()
    if ACCOUNTADMIN not in session.roles and not access.allows(
        session.roles, "MANAGE GRANTS", ACCOUNT_OBJECT
    ):
        raise insufficient(SHARED)
    with access.change() as state:
        if reader.verb == "GRANT":
            changes.grant(
                state, ["USAGE"], shared_role(path[1]), role, session.role, access.now_ms(), option=False
            )
        else:
            changes.revoke(state, ["USAGE"], shared_role(path[1]), role)
    return done()

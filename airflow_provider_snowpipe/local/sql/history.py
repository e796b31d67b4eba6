# ruff: noqa: S608 - names and texts go through tables.literal.
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

from airflow_provider_snowpipe.local.access import access as changes
from airflow_provider_snowpipe.local.access.access import ACCOUNT_OBJECT, insufficient
from airflow_provider_snowpipe.local.access.model import (
    ACCOUNTADMIN,
    SHARED,
    SHARED_DATABASE,
    SHARED_ROLES,
    Securable,
    shared_role,
)
from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.errors import (
    SqlError,
    compilation_error,
    missing_account_object,
    object_missing,
)
from airflow_provider_snowpipe.local.loading.history import DAY_MS
from airflow_provider_snowpipe.local.query_history import (
    FAILED,
    RUNNING,
    SUCCEEDED,
    LoginEvent,
    Statement,
    text_hash,
    without_secrets,
)
from airflow_provider_snowpipe.local.sql.reader import Reader, strip_comments
from airflow_provider_snowpipe.local.sql.relations import (
    SERVICE_FUNCTIONS,
    is_service_function,
    service_arguments,
)
from airflow_provider_snowpipe.local.sql.results import Result, done
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.sql.timestamps import aliased
from airflow_provider_snowpipe.local.tables import TEMPORARY, Table, literal, quote, read_path

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
    """Put a statement that begins into the query history.

    :param own: parameters that the statement came with.
    """
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
    """Return QUERY_TYPE of a statement by its first words; UNKNOWN for what is no statement."""
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
        return _lent(session, name, Statement, begun)
    return _lent(session, name, LoginEvent, [e for e in session.catalog.queries.logins() if e.at_ms >= since])


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
    found = exp.select("*").from_(aliased(_lent(session, "INFORMATION_SCHEMA", Statement, shown), "H"))
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


def _column(name: str) -> exp.Column:
    return exp.column(exp.to_identifier(name, quoted=True))


def _timestamp(column: str) -> str:
    return f"(make_timestamp({column} * 1000) AT TIME ZONE 'UTC')"


# What the views have in common; see usage_views.sql.
_WORDS = {
    "start": _timestamp("start_ms"), "stop": _timestamp("coalesce(end_ms, 0)"), "at": _timestamp("at_ms"),
    "elapsed": "(coalesce(end_ms, start_ms) - start_ms)", "text": "CAST(NULL AS VARCHAR)",
    "number": "CAST(NULL AS DECIMAL(38, 0))",
}  # fmt: skip


@functools.cache
def _views() -> dict[str, str]:
    """Return the views of usage_views.sql by name, over the relation ``{e}``."""
    text = Path(__file__).with_name("usage_views.sql").read_text(encoding="utf-8")
    _, *parts = re.split(r"^-- (\w+)\n", text, flags=re.MULTILINE)
    views: dict[str, str] = {}
    for name, part in zip(parts[::2], parts[1::2], strict=True):
        views[name] = part.strip().format_map({**_WORDS, **views, "e": "{e}"})
    return views


def _lent(
    session: Session, name: str, kind: type[Statement | LoginEvent], entries: Sequence[Statement | LoginEvent]
) -> exp.Expr:
    """Return a query for a view of usage_views.sql over some entries of the history."""
    types = {
        field.name: pa.int64() if str(field.type).startswith("int") else pa.string()
        for field in dataclasses.fields(kind)
    }
    kept = {each: pa.array([getattr(entry, each) for entry in entries], t) for each, t in types.items()}
    relation = session.lend(pa.table(kept))
    found = session.cursor.sql(_views()[name].format(e=quote(relation))).to_arrow_table()
    names = [column.upper() for column in found.column_names]
    listed = ", ".join(map(quote, names))
    relation = session.lend(found.rename_columns(names))
    return sqlglot.parse_one(f"SELECT {listed} FROM {quote(relation)}", dialect="duckdb")


# -- ERROR_TABLE(t): the rejected rows of a table with ERROR_LOGGING = TRUE ------------------------------

# Numbers of the errors that these reasons have in Snowflake's other loads.
_CODES = """CASE WHEN error_message LIKE '%not a JSON object%' THEN 100069
    WHEN error_message LIKE '%not valid UTF-8%' THEN 100069
    WHEN error_message LIKE '%(NOT NULL)%' THEN 100072 WHEN error_message LIKE '%longer than%' THEN 100078
    ELSE 100038 END"""
_QUERY = """SELECT make_timestamp(recorded_on_ms * 1000) AT TIME ZONE 'UTC' AS "TIMESTAMP",
    CAST(NULL AS VARCHAR) AS "QUERY_ID",
    code AS "ERROR_CODE",
    json_object('service', 'snowpipe_streaming', 'error_code', code, 'error_message', error_message,
        'error_source', nullif(regexp_extract(error_message, '^column "((?:[^"]|"")*)"', 1), ''),
        'details', json_object('pipe_name', pipe_name, 'channel_name', channel_name,
            'offset_token_lower_bound', offset_token_lower_bound,
            'offset_token_upper_bound', offset_token_upper_bound,
            'error_data_truncated', false, 'error_data_content_type', kind)) AS "ERROR_METADATA",
    json_object('$1', CASE kind WHEN 'json' THEN CAST(written AS JSON) WHEN 'json-invalid'
        THEN to_json(written) ELSE to_json(to_base64(payload)) END) AS "ERROR_DATA"
    FROM (SELECT *, {codes} AS code, CASE WHEN written IS NULL THEN 'binary-base64' WHEN json_valid(written)
            THEN 'json' ELSE 'json-invalid' END AS kind
        FROM (SELECT *, TRY(decode(payload)) AS written FROM {source}
            WHERE schema_name = {schema} AND table_name = {table})
        ORDER BY recorded_on_ms, offset_token_upper_bound, row_in_append)"""


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
    query = _QUERY.format(
        codes=_CODES,
        source=database.names.hidden("rejected_rows"),
        schema=literal(named.schema),
        table=literal(named.name),
    )
    return aliased(sqlglot.parse_one(query, dialect="duckdb"), table.alias or "ERROR_TABLE")


def truncate(session: Session, reader: Reader) -> Result:
    """TRUNCATE ERROR_TABLE(name)."""
    reader.expect("ERROR_TABLE")
    reader.expect_sign("(")
    path = reader.path()
    reader.expect_sign(")")
    reader.end()
    session.commit()
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
# Columns of the documentation page "COPY_HISTORY" (information schema).
COPY_COLUMNS = """file_name AS "FILE_NAME", stage_location AS "STAGE_LOCATION",
    {loaded} AS "LAST_LOAD_TIME", rows_loaded AS "ROW_COUNT", rows_parsed AS "ROW_PARSED",
    file_size AS "FILE_SIZE", first_error AS "FIRST_ERROR_MESSAGE",
    first_error_line AS "FIRST_ERROR_LINE_NUMBER", first_error_character AS "FIRST_ERROR_CHARACTER_POS",
    first_error_column AS "FIRST_ERROR_COLUMN_NAME", errors_seen AS "ERROR_COUNT",
    error_limit AS "ERROR_LIMIT",
    CASE status WHEN 'LOADED' THEN 'Loaded' WHEN 'PARTIALLY_LOADED' THEN 'Partially loaded'
        ELSE 'Load failed' END AS "STATUS",
    {database} AS "TABLE_CATALOG_NAME", schema_name AS "TABLE_SCHEMA_NAME", table_name AS "TABLE_NAME",
    CASE WHEN pipe_name IS NOT NULL THEN {database} END AS "PIPE_CATALOG_NAME",
    pipe_schema AS "PIPE_SCHEMA_NAME", pipe_name AS "PIPE_NAME", {received} AS "PIPE_RECEIVED_TIME",
    {loaded} AS "FIRST_COMMIT_TIME", CASE WHEN pipe_name IS NOT NULL THEN file_size END AS "BYTES_BILLED"
"""
_COPY_HISTORY = (
    f"SELECT {COPY_COLUMNS} FROM {{relation}} WHERE loaded_on_ms >= {{since}} AND {{condition}} ORDER BY id"
)
# Columns of the documentation page "LOAD_HISTORY view" (information schema); it shows no loads of pipes.
LOAD_COLUMNS = """schema_name AS "SCHEMA_NAME", file_name AS "FILE_NAME", table_name AS "TABLE_NAME",
    {loaded} AS "LAST_LOAD_TIME", status AS "STATUS", rows_loaded AS "ROW_COUNT",
    rows_parsed AS "ROW_PARSED", first_error AS "FIRST_ERROR_MESSAGE",
    first_error_line AS "FIRST_ERROR_LINE_NUMBER",
    first_error_character AS "FIRST_ERROR_CHARACTER_POSITION", first_error_column AS "FIRST_ERROR_COL_NAME",
    errors_seen AS "ERROR_COUNT", error_limit AS "ERROR_LIMIT"
"""
_LOAD_HISTORY = (
    f"SELECT {LOAD_COLUMNS} FROM {{relation}} WHERE loaded_on_ms >= {{since}} AND pipe_name IS NULL "
    "AND {condition} ORDER BY id"
)


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
    """Return the subquery that stands for INFORMATION_SCHEMA.LOAD_HISTORY of a database.

    :param alias: name of the view in the query.
    """
    visible = [
        f"({literal(table.schema)}, {literal(table.name)})"
        for table in database.tables
        if session.can_see("TABLE", database.name, table.schema, table.name)
    ]
    condition = f"(schema_name, table_name) IN ({', '.join(visible)})" if visible else "false"
    return aliased(query(database, _LOAD_HISTORY, condition), alias)


def _copy_history(session: Session, call: exp.Anonymous) -> exp.Expr:
    arguments = service_arguments(call, _COPY_ARGUMENTS)
    database, schema, name = session.resolve(read_path(_string(arguments, "TABLE_NAME"))[0])
    if database.tables.find(schema, name) is None or not session.can_see(
        "TABLE", database.name, schema, name
    ):
        raise object_missing("Table", f"{database.name}.{schema}.{name}")
    condition = f"schema_name = {literal(schema)} AND table_name = {literal(name)}"
    if "PIPE_NAME" in arguments:
        _, pipe_schema, pipe = session.resolve(read_path(_string(arguments, "PIPE_NAME"))[0])
        condition += f" AND pipe_schema = {literal(pipe_schema)} AND pipe_name = {literal(pipe)}"
    if "START_TIME" not in arguments:
        raise compilation_error("COPY_HISTORY needs START_TIME.")
    found = query(database, _COPY_HISTORY, condition)
    where = found.args["where"]
    for argument, compare in (("START_TIME", exp.GTE), ("END_TIME", exp.LT)):
        if argument in arguments:
            timestamp = exp.cast(arguments[argument].copy(), "TIMESTAMPTZ")
            loaded = sqlglot.parse_one(_timestamp("loaded_on_ms"), dialect="duckdb")
            where.set("this", exp.and_(where.this, compare(this=loaded, expression=timestamp)))
    return found


def query(
    database: Database, template: str, condition: str, relation: str | None = None, kept_ms: int = SHOWN_MS
) -> exp.Expr:
    """Return the query for loads of a database.

    :param template: with places for ``relation``, ``since``, ``condition`` and what the columns need.
    :param condition: which loads are selected.
    :param relation: where they are, None for the load history.
    :param kept_ms: how far back it shows them.
    """
    sql = template.format(
        loaded=_timestamp("loaded_on_ms"),
        received=_timestamp("received_on_ms"),
        database=literal(database.name),
        relation=relation or database.history.relation,
        since=database.clock.now_ms() - kept_ms,
        condition=condition,
    )
    found = sqlglot.parse_one(sql, dialect="duckdb")
    for identifier in found.find_all(exp.Identifier):
        # Names of the hidden table are lower case; normalization would change them.
        identifier.set("quoted", True)
    return found


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
_ID = "CAST(NULL AS DECIMAL(38, 0))"
# Columns of the documentation pages "COPY_HISTORY view" and "LOAD_HISTORY view" (account usage).
_VIEWS = {
    "COPY_HISTORY": f"""SELECT {COPY_COLUMNS}, {_ID} AS "TABLE_ID", {_ID} AS "TABLE_SCHEMA_ID",
        {_ID} AS "TABLE_CATALOG_ID" FROM {{relation}} WHERE loaded_on_ms >= {{since}} AND {{condition}}""",
    "LOAD_HISTORY": f"""SELECT {_ID} AS "TABLE_ID", {_ID} AS "SCHEMA_ID", {_ID} AS "CATALOG_ID",
        {{database}} AS "CATALOG_NAME", {LOAD_COLUMNS} FROM {{relation}} WHERE loaded_on_ms >= {{since}}
        AND pipe_name IS NULL AND {{condition}}""",
}
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
    if name not in _VIEWS:
        raise object_missing("Object", f"{SHARED_DATABASE}.{schema}.{name}")
    parts = [
        query(database, _VIEWS[name], _NOT_TEMPORARY, place, _USAGE_MS)
        for database in session.catalog.databases
        for place in _places(database, name)
    ]
    return functools.reduce(lambda one, other: exp.union(one, other, distinct=False, copy=False), parts)


def _places(database: Database, view: str) -> tuple[str, ...]:
    """Where loads are kept; LOAD_HISTORY forgets those of dropped tables, as its page documents."""
    history = database.history
    return (history.relation, history.of_dropped_tables) if view == "COPY_HISTORY" else (history.relation,)


def grant_viewer(session: Session, reader: Reader) -> Result:
    """GRANT DATABASE ROLE SNOWFLAKE.name TO ROLE r, and REVOKE .. FROM ROLE r."""
    path = reader.path()
    if len(path) != 2:
        raise compilation_error("expected GRANT DATABASE ROLE SNOWFLAKE.name TO ROLE name.")
    reader.expect("TO ROLE" if reader.verb == "GRANT" else "FROM ROLE")
    role = reader.name()
    reader.end()
    session.commit()
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

"""COPY_HISTORY and LOAD_HISTORY: the loads of the last 14 days."""

# ruff: noqa: S608 - names and texts go through identifiers.literal.

from __future__ import annotations

import sqlglot
from sqlglot import exp

from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.errors import compilation_error, object_missing
from airflow_provider_snowpipe.local.identifiers import literal, read_path
from airflow_provider_snowpipe.local.loading.history import DAY_MS
from airflow_provider_snowpipe.local.sql.relations import is_service_function
from airflow_provider_snowpipe.local.sql.session import Session

SHOWN_MS = 14 * DAY_MS
_ARGUMENTS = ("TABLE_NAME", "START_TIME", "END_TIME", "PIPE_NAME")
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


def replace_copy_history(session: Session, tree: exp.Expr) -> None:
    """Put a subquery where a query calls ``TABLE(INFORMATION_SCHEMA.COPY_HISTORY(..))``.

    :raises SqlError: for wrong arguments, or a table that does not exist or stays hidden.
    """
    for rows in list(tree.find_all(exp.TableFromRows)):
        if is_service_function(rows.this, "COPY_HISTORY"):
            call = rows.this.expression
            alias = rows.args.get("alias")
            name = alias.this.name if alias is not None and alias.this else "COPY_HISTORY"
            rows.replace(_aliased(_copy_history(session, call), name))


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
    return _aliased(query(database, _LOAD_HISTORY, condition), alias)


def _copy_history(session: Session, call: exp.Anonymous) -> exp.Expr:
    arguments = _arguments(call)
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
    :param condition: which loads are wanted.
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


def _timestamp(column: str) -> str:
    return f"(make_timestamp({column} * 1000) AT TIME ZONE 'UTC')"


def _aliased(query: exp.Expr, name: str) -> exp.Subquery:
    return exp.Subquery(this=query, alias=exp.TableAlias(this=exp.to_identifier(name, quoted=True)))


def _arguments(call: exp.Anonymous) -> dict[str, exp.Expr]:
    found: dict[str, exp.Expr] = {}
    for position, argument in enumerate(call.expressions):
        if isinstance(argument, exp.Kwarg):
            name, value = argument.this.name.upper(), argument.expression
        else:
            name, value = (_ARGUMENTS[position] if position < len(_ARGUMENTS) else ""), argument
        if name not in _ARGUMENTS or name in found:
            raise compilation_error(f"invalid argument '{name}' of COPY_HISTORY.")
        found[name] = value
    return found


def _string(arguments: dict[str, exp.Expr], name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, exp.Literal) or not value.is_string:
        raise compilation_error(f"COPY_HISTORY needs {name} as a string.")
    return str(value.this)

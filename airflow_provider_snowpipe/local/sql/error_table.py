"""ERROR_TABLE(t): the rejected rows of a table with ERROR_LOGGING = TRUE."""

from __future__ import annotations

import sqlglot
from sqlglot import exp

from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.errors import SqlError, compilation_error, object_missing
from airflow_provider_snowpipe.local.identifiers import literal
from airflow_provider_snowpipe.local.sql.reader import Reader
from airflow_provider_snowpipe.local.sql.results import Result, status
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.tables import Table

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
    alias = table.alias or "ERROR_TABLE"
    parsed = sqlglot.parse_one(query, dialect="duckdb")
    return exp.Subquery(this=parsed, alias=exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))


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
    return status("Statement executed successfully.")


def _logging_table(session: Session, path: tuple[str, ...], privilege: str) -> tuple[Database, Table]:
    database, schema, name = session.resolve(path)
    table = database.tables.find(schema, name)
    if table is None:
        raise object_missing("Table", f"{database.name}.{schema}.{name}")
    session.require(privilege, "TABLE", database.name, schema, name)
    if not table.error_logging:
        raise SqlError(
            "002003",
            "02000",
            f"SQL compilation error:\nTable '{table}' has no error table; "
            f"run ALTER TABLE {name} SET ERROR_LOGGING = TRUE.",
        )
    return database, table

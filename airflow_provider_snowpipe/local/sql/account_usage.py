"""SNOWFLAKE.ACCOUNT_USAGE: loads and statements of the whole account, for roles that were given the right.

Everything in the database SNOWFLAKE is read-only. The views have no latency here, know no numbers of objects
(``TABLE_ID`` and the like are NULL), and are named in full only.
"""

# ruff: noqa: S608 - nothing of a statement goes into these texts.

from __future__ import annotations

import functools

from sqlglot import exp

from airflow_provider_snowpipe.local.access import access as changes
from airflow_provider_snowpipe.local.access.access import ACCOUNT_OBJECT, insufficient
from airflow_provider_snowpipe.local.access.model import (
    ACCOUNTADMIN,
    SHARED,
    SHARED_DATABASE,
    SHARED_ROLES,
    shared_role,
)
from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.errors import compilation_error, missing_account_object, object_missing
from airflow_provider_snowpipe.local.loading.history import DAY_MS
from airflow_provider_snowpipe.local.sql import query_history
from airflow_provider_snowpipe.local.sql.copy_history import COPY_COLUMNS, LOAD_COLUMNS, query
from airflow_provider_snowpipe.local.sql.reader import Reader
from airflow_provider_snowpipe.local.sql.results import Result, status
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.tables import TEMPORARY

SCHEMA = "ACCOUNT_USAGE"
SHOWN_MS = 365 * DAY_MS
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
    if name in query_history.USAGE_VIEWS:
        return query_history.usage_relation(session, name)
    if name not in _VIEWS:
        raise object_missing("Object", f"{SHARED_DATABASE}.{schema}.{name}")
    parts = [
        query(database, _VIEWS[name], _NOT_TEMPORARY, place, SHOWN_MS)
        for database in session.catalog.databases
        for place in _places(database, name)
    ]
    return functools.reduce(lambda one, other: exp.union(one, other, distinct=False, copy=False), parts)


def _places(database: Database, view: str) -> tuple[str, ...]:
    """Where loads are kept; LOAD_HISTORY forgets those of dropped tables, as its page says."""
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
    return status("Statement executed successfully.")

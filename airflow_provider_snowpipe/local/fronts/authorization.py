"""Privileges of streaming calls, refused in the shape of what does not exist."""

from __future__ import annotations

from airflow_provider_snowpipe.local.access.check import require
from airflow_provider_snowpipe.local.access.model import Securable
from airflow_provider_snowpipe.local.catalog import Catalog
from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.engine.pipe import DEFAULT_PIPE_SUFFIX, Pipe
from airflow_provider_snowpipe.local.engine.pipes import PIPE_MISSING, TABLE_MISSING
from airflow_provider_snowpipe.local.errors import Refusal, SqlError
from airflow_provider_snowpipe.local.identifiers import find_name

WRITE = ("OPERATE",)
STATUS = ("OPERATE", "MONITOR")


def authorized_pipe(
    catalog: Catalog, roles: frozenset[str], path: tuple[str, str, str], privileges: tuple[str, ...]
) -> tuple[Database, Pipe]:
    """Return a pipe that some roles may use; a default pipe is created on first use.

    USAGE on database and schema is needed, and INSERT on the table of a default pipe, or one of the
    privileges on a custom pipe.

    :param path: database, schema and pipe as the URL names them.
    :param privileges: :data:`WRITE` or :data:`STATUS`.
    :raises Refusal: 404 for what does not exist or is not authorized; the answer does not tell which.
    """
    database = catalog.database_for_url(path[0])
    _, schema, name = path
    exact = find_name(schema, database.schemas)
    if exact is None or not name.upper().endswith(DEFAULT_PIPE_SUFFIX):
        pipe = database.pipes.resolve(schema, name)
        target = Securable("PIPE", (database.name, pipe.key.schema, pipe.key.name))
        _check(catalog, roles, target, privileges, PIPE_MISSING, f"pipe {database.name}.{schema}.{name}")
        return database, pipe
    wanted = name[: -len(DEFAULT_PIPE_SUFFIX)]
    table = database.tables.find(exact, wanted) or database.tables.find(exact, wanted.upper())
    if table is not None:
        # Before the pipe is created: a call that is refused leaves nothing behind.
        target = Securable("TABLE", (database.name, exact, table.name))
        _check(catalog, roles, target, ("INSERT",), TABLE_MISSING, f"table {database.name}.{schema}.{wanted}")
        return database, database.pipes.resolve(schema, name)
    pipe = database.pipes.resolve(schema, name)
    target = Securable("TABLE", (database.name, exact, pipe.table))
    _check(catalog, roles, target, ("INSERT",), TABLE_MISSING, f"table {database.name}.{schema}.{wanted}")
    return database, pipe


def _check(
    catalog: Catalog,
    roles: frozenset[str],
    target: Securable,
    privileges: tuple[str, ...],
    code: str,
    named: str,
) -> None:
    held = next((word for word in privileges if catalog.access.allows(roles, word, target)), privileges[0])
    try:
        require(catalog.access, roles, held, target)
    except SqlError as error:
        raise Refusal(404, code, f"{named} does not exist or not authorized") from error

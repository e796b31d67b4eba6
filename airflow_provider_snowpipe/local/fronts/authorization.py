"""Privileges of streaming calls, refused in the shape of what does not exist."""

from __future__ import annotations

from airflow_provider_snowpipe.local.access.check import require
from airflow_provider_snowpipe.local.access.model import Securable
from airflow_provider_snowpipe.local.catalog import Catalog
from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.engine.pipe import DEFAULT_PIPE_SUFFIX, Pipe
from airflow_provider_snowpipe.local.engine.pipes import PIPE_MISSING, TABLE_MISSING
from airflow_provider_snowpipe.local.errors import Refusal, SqlError
from airflow_provider_snowpipe.local.identifiers import UrlName

WRITE = ("OPERATE",)
STATUS = ("OPERATE", "MONITOR")


PipePath = tuple[UrlName, UrlName, UrlName]
"""Database, schema and pipe as a URL names them."""


def authorized_pipe(
    catalog: Catalog, roles: frozenset[str], path: PipePath, privileges: tuple[str, ...]
) -> tuple[Database, Pipe]:
    """Return a pipe that some roles may use; a default pipe is created on first use.

    USAGE on database and schema is needed, and INSERT on the table of a default pipe, or one of the
    privileges on a custom pipe.

    :param privileges: :data:`WRITE` or :data:`STATUS`.
    :raises Refusal: 404 for what does not exist or is not authorized; the answer does not tell which.
    """
    database = catalog.database_for_url(path[0])
    _, schema, name = path
    exact = schema.find(database.schemas)
    if exact is None:
        raise _missing(PIPE_MISSING, f"schema {database.name}.{schema.text}")
    place = f"{database.name}.{exact}"
    text = name.text if name.is_quoted else name.text.upper()
    found = name.find([pipe.key.name for pipe in database.pipes if pipe.key.schema == exact])
    if not text.endswith(DEFAULT_PIPE_SUFFIX):
        if found is None:
            raise _missing(PIPE_MISSING, f"pipe {place}.{name.text}")
        target = Securable("PIPE", (database.name, exact, found))
        _check(catalog, roles, target, privileges, PIPE_MISSING, f"pipe {place}.{found}")
        return database, database.pipes.resolve(exact, found)
    wanted = UrlName(name.text[: -len(DEFAULT_PIPE_SUFFIX)], name.is_quoted)
    table = wanted.find(database.tables.names(exact))
    if table is not None:
        # Before the pipe is created: a call that is refused leaves nothing behind.
        target = Securable("TABLE", (database.name, exact, table))
        _check(catalog, roles, target, ("INSERT",), TABLE_MISSING, f"table {place}.{table}")
        return database, database.pipes.resolve(exact, table + DEFAULT_PIPE_SUFFIX)
    if found is None:
        raise _missing(TABLE_MISSING, f"table {place}.{wanted.text}")
    pipe = database.pipes.resolve(exact, found)
    target = Securable("TABLE", (database.name, exact, pipe.table))
    _check(catalog, roles, target, ("INSERT",), TABLE_MISSING, f"table {place}.{wanted.text}")
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
        raise _missing(code, named) from error


def _missing(code: str, named: str) -> Refusal:
    return Refusal(404, code, f"{named} does not exist or not authorized")

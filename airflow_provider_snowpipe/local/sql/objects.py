"""Objects by kind: which exist in a schema, and where a statement's name points."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from airflow_provider_snowpipe.local.access.model import PRIVILEGES, SHARED, Securable
from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.engine.pipe import PipeKey
from airflow_provider_snowpipe.local.errors import compilation_error, object_missing, unsupported
from airflow_provider_snowpipe.local.sql.session import Session

_NAMES: dict[str, Callable[[Database, str], Iterable[str]]] = {
    "TABLE": lambda database, schema: [t.name for t in database.tables if t.schema == schema],
    "PIPE": lambda database, schema: [key.name for key in _pipes(database) if key.schema == schema],
    "STAGE": lambda database, schema: [s.name for s in database.stages.stages if s.schema == schema],
    "FILE FORMAT": lambda database, schema: [f.name for f in database.stages.formats if f.schema == schema],
    "VIEW": lambda database, schema: [view.name for view in database.objects.of("VIEW", schema)],
    "SEQUENCE": lambda database, schema: [known.name for known in database.objects.of("SEQUENCE", schema)],
}


def _pipes(database: Database) -> list[PipeKey]:
    return [pipe.key for pipe in database.pipes] + [pipe.key for pipe in database.file_pipes.pipes]


def names(database: Database, schema: str, kind: str) -> list[str]:
    """Return the names of the objects of a kind in a schema."""
    found = _NAMES.get(kind)
    return sorted(found(database, schema)) if found else []


def read_kind(words: str) -> str:
    """Return a kind of object, written in singular or plural.

    :raises SqlError: 000002 for a kind that the local service has no privileges for.
    """
    word = " ".join(words.upper().split())
    singular = word.removesuffix("S")
    if singular in PRIVILEGES:
        return singular
    raise unsupported(f"grants on {word}")


def locate(session: Session, kind: str, path: tuple[str, ...]) -> Securable:
    """Return the object that a GRANT or SHOW GRANTS names.

    :raises SqlError: 002003 when it does not exist, or stays hidden from the session's roles.
    """
    if kind == "WAREHOUSE":
        if path[-1] not in session.catalog.access.state.warehouses:
            raise object_missing("Warehouse", path[-1])
        return Securable(kind, path[-1:])
    if kind == "DATABASE":
        if len(path) > 1:
            raise compilation_error(f"'{'.'.join(path)}' is not a database name.")
        return SHARED if path == SHARED.path else Securable(kind, (session.catalog.database(path[0]).name,))
    if kind == "SCHEMA":
        if len(path) > 2:
            raise compilation_error(f"'{'.'.join(path)}' is not a schema name.")
        database = session.catalog.database(path[0] if len(path) == 2 else session.current_database())
        if path[-1] not in database.schemas:
            raise object_missing("Schema", f"{database.name}.{path[-1]}")
        return Securable(kind, (database.name, path[-1]))
    database, schema, name = session.place(path)
    if name not in names(database, schema, kind):
        raise object_missing(kind.capitalize(), f"{database.name}.{schema}.{name}")
    return Securable(kind, (database.name, schema, name))


def inside(session: Session, kind: str, scope: Securable) -> list[Securable]:
    """Return the objects of a kind in a database or schema."""
    database = session.catalog.database(scope.path[0])
    if kind == "SCHEMA":
        return [Securable(kind, (database.name, schema)) for schema in sorted(database.schemas)]
    schemas = scope.path[1:] if scope.kind == "SCHEMA" else sorted(database.schemas)
    return [
        Securable(kind, (database.name, schema, name))
        for schema in schemas
        for name in names(database, schema, kind)
    ]

"""SHOW of columns, objects and of kinds that the local service never has; DESCRIBE of database and schema."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from airflow_provider_snowpipe.local.access.model import Securable
from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.engine.store import VIEW, column_key
from airflow_provider_snowpipe.local.errors import object_missing, unsupported
from airflow_provider_snowpipe.local.sql import views
from airflow_provider_snowpipe.local.sql.reader import Reader
from airflow_provider_snowpipe.local.sql.results import Result, listing
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.sql.show import Shown, describe_table, schemas_in_scope
from airflow_provider_snowpipe.local.tables import TEMPORARY, Column, ColumnType

_WIRE = {"NUMBER": "FIXED", "FLOAT": "REAL", "VARCHAR": "TEXT"}
_OF_PROCEDURES = (
    "created_on", "name", "schema_name", "is_builtin", "is_aggregate", "is_ansi", "min_num_arguments",
    "max_num_arguments", "arguments", "description", "catalog_name", "is_table_function",
    "valid_for_clustering", "is_secure", "secrets", "external_access_integrations",
)  # fmt: skip
_OF_FUNCTIONS = ("is_external_function", "language", "is_memoizable", "is_data_metric")
_MOST_OCTETS = 16_777_216
_NAME, _PLACE = ("created_on", "name"), ("database_name", "schema_name")


def relations(
    session: Session, database: Database, schema: str
) -> Iterator[tuple[str, str, tuple[Column, ...], int]]:
    """Return the tables and views of a schema that the session's roles may see.

    :returns: kind, name, columns and time of creation in epoch milliseconds of each.
    """
    for table in database.tables:
        hidden = table.is_temporary and table.name not in session.temporary_tables.values()
        if (
            table.schema == schema
            and not hidden
            and session.can_see("TABLE", database.name, schema, table.name)
        ):
            yield "TABLE", table.name.partition(TEMPORARY)[0], table.columns, table.created_on_ms
    for view in database.objects.of(VIEW, schema):
        if session.can_see(VIEW, database.name, schema, view.name):
            yield VIEW, view.name, views.columns_of(view), view.created_on_ms


def show_columns(session: Session, shown: Shown) -> Result:
    """SHOW COLUMNS [LIKE] [IN TABLE | VIEW name | IN SCHEMA | DATABASE | ACCOUNT]."""
    named = shown.scope is not None and shown.scope[0] in {"TABLE", "VIEW"}
    if shown.scope is not None and named:
        database, schema, only = session.resolve(shown.scope[1])
        places = [(database, schema)]
        found = [r for r in relations(session, database, schema) if r[1] == only.partition(TEMPORARY)[0]]
        if not found:
            raise object_missing("Table", f"{database.name}.{schema}.{only}")
    else:
        places = schemas_in_scope(session, shown)
    rows = [
        (
            name,
            schema,
            column.name,
            _data_type(column.type, column.nullable),
            "true" if column.nullable else "NOT_NULL",
            column.default_text or "",
            "COLUMN",
            "",
            database.objects.comment("COLUMN", schema, column_key(name, column.name)),
            database.name,
            "",
            None,
        )
        for database, schema in places
        for _, name, columns, _ in relations(session, database, schema)
        if not named or name == found[0][1]
        for column in columns
        if shown.matches(column.name)
    ]
    return listing(
        ("table_name", "schema_name", "column_name", "data_type", "null?", "default", "kind", "expression",
         "comment", "database_name", "autoincrement", "schema_evolution_record"),
        rows,
    )  # fmt: skip


def show_objects(session: Session, shown: Shown) -> Result:
    """SHOW [TERSE] OBJECTS [LIKE] [IN ACCOUNT | DATABASE d | SCHEMA s]: tables and views."""
    rows = [
        (
            created_on_ms,
            name,
            database.name,
            schema,
            kind,
            database.objects.comment(kind, schema, name),
            session.catalog.access.owner(Securable(kind, (database.name, schema, name))),
        )
        for database, schema in schemas_in_scope(session, shown)
        for kind, name, _, created_on_ms in relations(session, database, schema)
        if shown.matches(name)
    ]
    return listing((*_NAME, *_PLACE, "kind", "comment", "owner"), rows)


def describe_relation(session: Session, reader: Reader) -> Result:
    """DESCRIBE TABLE name, which may be a view."""
    path = reader.path()
    if reader.accept("TYPE"):
        reader.expect_sign("=")
        reader.expect("COLUMNS")
    reader.end()
    database, schema, name = session.resolve(path)
    if database.objects.find(VIEW, schema, name) is None:
        return describe_table(session, path)
    return describe_view(session, path)


def describe_view(session: Session, path: tuple[str, ...]) -> Result:
    """Return what DESCRIBE VIEW answers.

    :raises SqlError: for a view that does not exist, or stays hidden.
    """
    database, schema, name = session.resolve(path)
    known = database.objects.find(VIEW, schema, name)
    if known is None or not session.can_see(VIEW, database.name, schema, name):
        raise object_missing("View", f"{database.name}.{schema}.{name}")
    return described_columns((c.name, str(c.type)) for c in views.columns_of(known))


def described_columns(columns: Iterable[tuple[str, str]]) -> Result:
    """Return what DESCRIBE VIEW answers.

    :param columns: name and type of each.
    """
    rows = [(*column, "COLUMN", "Y", None, "N", "N", None, None, None, None, None) for column in columns]
    return listing(
        ("name", "type", "kind", "null?", "default", "primary key", "unique key", "check", "expression",
         "comment", "policy name", "privacy domain"),
        rows,
    )  # fmt: skip


def describe_schema(session: Session, reader: Reader) -> Result:
    """DESCRIBE SCHEMA name: its tables and views."""
    database, schema = session.resolve_schema(reader.last_path(2))
    if schema not in database.schemas or not session.can_see("SCHEMA", database.name, schema):
        raise object_missing("Schema", f"{database.name}.{schema}")
    rows = [
        (created_on_ms, name, kind) for kind, name, _, created_on_ms in relations(session, database, schema)
    ]
    return listing((*_NAME, "kind"), rows)


def describe_database(session: Session, reader: Reader) -> Result:
    """DESCRIBE DATABASE name: its schemas."""
    name = reader.name()
    reader.end()
    database = session.visible_database(name)
    rows = [
        (None, schema, "SCHEMA")
        for schema in sorted(database.schemas)
        if session.can_see("SCHEMA", database.name, schema)
    ]
    return listing((*_NAME, "kind"), rows)


def show_nothing(_session: Session, shown: Shown) -> Result:
    """SHOW of a kind of which there never is one here: streams, tasks, integrations, keys, procedures."""
    if shown.kind.endswith(("FUNCTIONS", "PROCEDURES")):
        more = () if shown.kind.endswith("PROCEDURES") else _OF_FUNCTIONS
        return listing((*_OF_PROCEDURES, *more), [])
    of_kind = ("table_name", "column_name") if shown.kind.endswith("KEYS") else ("owner", "comment")
    return listing((*_NAME, *_PLACE, *of_kind), [])


def undrop(_session: Session, reader: Reader) -> Result:
    """UNDROP is refused: what is dropped is gone."""
    raise unsupported(f"UNDROP {reader.expect('TABLE', 'SCHEMA', 'DATABASE')}: dropped objects are not kept")


def octets(kind: ColumnType) -> int | None:
    """Return the most bytes of a type: four for each character of text ("String & binary data types")."""
    length = kind.length
    return length if length is None or kind.kind == "BINARY" else max(length, min(4 * length, _MOST_OCTETS))


def _data_type(kind: ColumnType, nullable: bool) -> str:
    described: dict[str, object] = {"type": _WIRE.get(kind.kind, kind.kind)}
    if kind.kind == "NUMBER":
        described |= {"precision": kind.precision, "scale": kind.scale}
    elif kind.length is not None:
        described |= {"length": kind.length, "byteLength": octets(kind)}
    elif kind.precision is not None:
        described |= {"precision": 0, "scale": kind.precision}
    described["nullable"] = nullable
    if kind.length is not None:
        described["fixed"] = kind.kind == "BINARY"
    return json.dumps(described, separators=(",", ":"))

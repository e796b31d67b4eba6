# ruff: noqa: S608 - names go through tables.quote, values are bound.
"""SHOW and DESCRIBE of what databases hold, and SHOW PARAMETERS with the defaults of a session."""

from __future__ import annotations

import csv
import dataclasses
import functools
import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snowpipe_local.engine.database import Database
from snowpipe_local.engine.store import VIEW, SchemaObject, column_key
from snowpipe_local.errors import compilation_error, object_missing, unsupported
from snowpipe_local.sql.reader import Reader
from snowpipe_local.sql.results import Result, listing
from snowpipe_local.sql.session import Session
from snowpipe_local.tables import PRIMARY, TEMPORARY, UNIQUE, Column, ColumnType, Table

_SCOPES = ("DATABASE", "SCHEMA", "TABLE", "VIEW", "PIPE", "USER", "WAREHOUSE", "TASK")
_CLAUSES = ("LIKE", "STARTS", "LIMIT", "IN", "FOR", "HISTORY")


@dataclass(frozen=True, slots=True)
class Shown:
    """What a SHOW statement lists: ``[HISTORY] [LIKE ..] [IN ..] [STARTS WITH ..] [LIMIT n [FROM ..]]``.

    :param scope: kind and name of IN, a name alone is one of a SCHEMA, or of a TABLE with COLUMNS.
    :param after: text of FROM: the rows behind the first name that begins with it.
    """

    kind: str = ""
    like: str | None = None
    scope: tuple[str, tuple[str, ...]] | None = None
    starts: str | None = None
    limit: int | None = None
    after: str | None = None

    @classmethod
    def read(cls, reader: Reader, clauses: Sequence[str] = _CLAUSES) -> Shown:
        """Read the clauses to the end, each once and in any order.

        :raises SqlError: 001003 for anything else.
        """
        found: dict[str, Any] = {}
        while (word := reader.word) in clauses and word not in found:
            reader.accept(word)
            found[word] = _clause(word, reader)
        reader.end()
        limit, after = found.get("LIMIT", (None, None))
        scope = found.get("IN") or found.get("FOR")
        return cls(reader.kind, found.get("LIKE"), scope, found.get("STARTS"), limit, after)

    def matches(self, name: str) -> bool:
        """Return True when a name fits LIKE, or there is none."""
        if self.like is None:
            return True
        return _like(self.like).fullmatch(name) is not None

    def narrowed(self, result: Result) -> Result:
        """Return the rows that STARTS WITH and LIMIT leave.

        :raises SqlError: for a result without names.
        """
        if self.starts is None and self.limit is None and self.after is None:
            return result
        names = [column.name for column in result.columns]
        if "name" not in names:
            raise compilation_error("this SHOW statement has no names; LIMIT and STARTS WITH do not apply.")
        at = names.index("name")
        rows = [row for row in result.rows if str(row[at]).startswith(self.starts or "")]
        if self.after is not None:
            rows = [row for row in rows if str(row[at]) > self.after]
        return dataclasses.replace(result, rows=rows[: self.limit])


@functools.lru_cache(maxsize=64)
def _like(pattern: str) -> re.Pattern[str]:
    """Return a LIKE pattern as an expression whose time grows with pattern and name only.

    What stands between two ``%`` is sought once, at the first position where it fits: a later one cannot
    help what follows.
    """
    pieces = [""]
    for sign in re.findall(r"\\.|.", pattern, re.DOTALL):
        if sign == "%":
            pieces.append("")
        else:
            pieces[-1] += "." if sign == "_" else re.escape(sign[-1])
    first, *others = pieces
    sought = "".join(rf"(?>.*?{piece})" for piece in others[:-1] if piece)
    end = f".*{others[-1]}" if others else ""
    return re.compile(first + sought + end, re.IGNORECASE | re.DOTALL)


def _clause(word: str, reader: Reader) -> object:
    if word == "LIKE":
        return reader.string()
    if word == "STARTS":
        reader.expect("WITH")
        return reader.string()
    if word == "LIMIT":
        limit = None if reader.accept("NULL") else reader.integer()
        if limit is not None and limit < 0:
            raise compilation_error(f"LIMIT takes a number of rows, not {limit}.")
        return limit, reader.string() if reader.accept("FROM") else None
    if word == "HISTORY":
        return True
    kind = reader.accept("ACCOUNT", "SESSION", *_SCOPES)
    if kind in {"ACCOUNT", "SESSION"}:
        return kind, ()
    named = not kind or not (reader.is_at_end or reader.word in _CLAUSES)
    if kind in {"TABLE", "PIPE"} and not named:
        raise compilation_error(f"syntax error: IN {kind} needs a name.")
    return kind or ("TABLE" if reader.kind == "COLUMNS" else "SCHEMA"), reader.path() if named else ()


def describe_table(session: Session, path: tuple[str, ...]) -> Result:
    """Return what DESCRIBE TABLE answers.

    :raises SqlError: for a table that does not exist, or stays hidden.
    """
    database, schema, name = session.resolve(path)
    table = database.tables.find(schema, name)
    if table is None:
        raise object_missing("Table", f"{database.name}.{schema}.{name}")
    if not session.can_see("TABLE", database.name, schema, name):
        session.require("SELECT", "TABLE", database.name, schema, name)
    shown = name.partition(TEMPORARY)[0]
    return described_columns(
        table.columns, lambda c: database.objects.comment("COLUMN", schema, column_key(shown, c.name)) or None
    )


def tables_of(session: Session, database: Database, schema: str) -> Iterator[Table]:
    """Return the tables of a schema that the session's roles may see, its own temporary ones among them."""
    for table in database.tables:
        hidden = table.is_temporary and table.name not in session.temporary_tables.values()
        is_here = table.schema == schema and not hidden
        if is_here and session.can_see("TABLE", database.name, schema, table.name):
            yield table


def show_tables(session: Session, shown: Shown) -> Result:
    """SHOW [TERSE] TABLES [LIKE] [IN ACCOUNT | DATABASE d | SCHEMA s]."""
    rows = (
        _table_row(session, database, table)
        for database, schema in schemas_in_scope(session, shown)
        for table in tables_of(session, database, schema)
        if shown.matches(table.name.partition(TEMPORARY)[0])
    )
    return listing("SHOW TABLES", rows)


def placed(*path: str) -> dict[str, str]:
    """Return the columns that say where an object is: database, schema and name."""
    return dict(zip(("database_name", "schema_name", "name"), path, strict=True))


def _table_row(session: Session, database: Database, table: Table) -> dict[str, Any]:
    key, objects = (table.schema, table.name), database.objects
    kind = "TRANSIENT" if objects.table_option(*key, "transient") else "TABLE"
    return dict(
        placed(database.name, table.schema, table.name.partition(TEMPORARY)[0]),
        created_on=table.created_on_ms, kind="TEMPORARY" if table.is_temporary else kind,
        comment=objects.comment("TABLE", *key),
        cluster_by="" if table.clustering_key is None else table.clustering_key.text,
        rows=count_rows(session, table), owner=session.owner("TABLE", database.name, *key),
        enable_schema_evolution=table.schema_evolution,
        is_iceberg=bool(objects.table_option(*key, "iceberg")), error_logging=table.error_logging,
    )  # fmt: skip


def show_schemas(session: Session, shown: Shown) -> Result:
    """SHOW [TERSE] SCHEMAS [LIKE] [IN ACCOUNT | DATABASE d].

    When databases and schemas were created is not kept, so ``created_on`` is NULL.
    """
    databases = session.catalog.databases
    scope = shown.scope
    if scope is not None and scope[0] != "ACCOUNT":
        databases = [session.listed_database(scope[1][0] if scope[1] else session.current_database())]
    elif scope is None and session.database is not None:
        databases = [session.catalog.database(session.database)]
    rows = (
        dict(
            name=schema, is_current=(database.name, schema) == (session.database, session.schema),
            database_name=database.name, owner=session.owner("SCHEMA", database.name, schema),
            comment=database.objects.comment("SCHEMA", schema, schema),
        )
        for database in databases
        for schema in sorted(database.schemas)
        if shown.matches(schema) and session.can_see("SCHEMA", database.name, schema)
    )  # fmt: skip
    return listing("SHOW SCHEMAS", rows)


def show_databases(session: Session, shown: Shown) -> Result:
    """SHOW [TERSE] DATABASES [LIKE]; ``created_on`` as in SHOW SCHEMAS."""
    rows = (
        dict(
            name=database.name, is_current=database.name == session.database,
            owner=session.owner("DATABASE", database.name),
            comment=database.objects.comment("DATABASE", "", database.name),
        )
        for database in session.catalog.databases
        if shown.matches(database.name) and session.can_see("DATABASE", database.name)
    )  # fmt: skip
    return listing("SHOW DATABASES", rows)


def show_channels(session: Session, shown: Shown) -> Result:
    """SHOW CHANNELS [LIKE] [IN ACCOUNT | DATABASE | SCHEMA | TABLE | PIPE x]."""
    kind, path = shown.scope or ("", ())
    only = None
    if kind in {"TABLE", "PIPE"}:
        database, schema, only = session.resolve(path)
        namespaces = [(database, schema)]
    else:
        namespaces = schemas_in_scope(session, shown)
    rows = (
        dict(
            placed(database.name, schema, channel.name), created_on=channel.committed.created_on_ms,
            table_name=pipe.table, offset_token=channel.committed.offset_token, parent_name=pipe.key.name,
            client_sequencer=channel.committed.client_sequencer,
            row_sequencer=channel.committed.row_sequencer,
        )
        for database, schema in namespaces
        for channel in database.channels
        if (pipe := channel.pipe).key.schema == schema
        and only in {None, pipe.key.name if kind == "PIPE" else pipe.table}
        and shown.matches(channel.name)
        and session.can_see("TABLE", database.name, schema, pipe.table)
    )  # fmt: skip
    return listing("SHOW CHANNELS", rows)


def schemas_in_scope(session: Session, shown: Shown) -> list[tuple[Database, str]]:
    """Return the schemas that a SHOW statement is about."""
    scope = shown.scope
    if scope is None:
        if session.database is None:
            scope = ("ACCOUNT", ())
        else:
            scope = ("SCHEMA", (session.schema,)) if session.schema else ("DATABASE", (session.database,))
    kind, path = scope
    if kind == "ACCOUNT":
        return [(d, s) for d in session.catalog.databases for s in sorted(d.schemas)]
    if kind == "DATABASE":
        database = session.listed_database(path[0] if path else session.current_database())
        return [(database, schema) for schema in sorted(database.schemas)]
    return [session.resolve_schema(path or (session.schema or "",), listed=True)]


def count_rows(session: Session, table: Table) -> int:
    """Return how many rows a table has."""
    [(count,)] = session.cursor.execute(f"SELECT count(*) FROM {table.path}").fetchall()
    return int(count)


# -- SHOW of columns, objects and of kinds that the local service never has; DESCRIBE of database and schema -

_MOST_OCTETS = 16_777_216


def columns_of(view: SchemaObject) -> tuple[Column, ...]:
    """Return the columns of a view as they were when it was created."""
    return tuple(Column(name, ColumnType.from_text(kind)) for name, kind in view.definition["columns"])


def relations(
    session: Session, database: Database, schema: str
) -> Iterator[tuple[str, str, tuple[Column, ...], int]]:
    """Return the tables and views of a schema that the session's roles may see.

    :returns: kind, name, columns and time of creation in epoch milliseconds of each.
    """
    for table in tables_of(session, database, schema):
        yield "TABLE", table.name.partition(TEMPORARY)[0], table.columns, table.created_on_ms
    for view in database.objects.of(VIEW, schema):
        if session.can_see(VIEW, database.name, schema, view.name):
            yield VIEW, view.name, columns_of(view), view.created_on_ms


def show_columns(session: Session, shown: Shown) -> Result:
    """SHOW COLUMNS [LIKE] [IN TABLE | VIEW name | IN SCHEMA | DATABASE | ACCOUNT]."""
    named = shown.scope is not None and shown.scope[0] in {"TABLE", "VIEW"}
    if shown.scope is not None and named:
        database, schema, only = session.resolve(shown.scope[1])
        namespaces = [(database, schema)]
        found = [r for r in relations(session, database, schema) if r[1] == only.partition(TEMPORARY)[0]]
        if not found:
            raise object_missing("Table", f"{database.name}.{schema}.{only}")
    else:
        namespaces = schemas_in_scope(session, shown)
    rows = (
        dict(
            {"null?": "true" if column.nullable else "NOT_NULL", "default": column.default_text or ""},
            table_name=name, schema_name=schema, column_name=column.name,
            data_type=_data_type(column.type, column.nullable),
            comment=database.objects.comment("COLUMN", schema, column_key(name, column.name)),
            database_name=database.name,
        )
        for database, schema in namespaces
        for _, name, columns, _ in relations(session, database, schema)
        if not named or name == found[0][1]
        for column in columns
        if shown.matches(column.name)
    )  # fmt: skip
    return listing("SHOW COLUMNS", rows)


def show_objects(session: Session, shown: Shown) -> Result:
    """SHOW [TERSE] OBJECTS [LIKE] [IN ACCOUNT | DATABASE d | SCHEMA s]: tables and views."""
    rows = (
        dict(
            placed(database.name, schema, name), created_on=created_on_ms, kind=kind,
            comment=database.objects.comment(kind, schema, name),
            owner=session.owner(kind, database.name, schema, name),
            **_size(session, database, kind, schema, name),
        )
        for database, schema in schemas_in_scope(session, shown)
        for kind, name, _, created_on_ms in relations(session, database, schema)
        if shown.matches(name)
    )  # fmt: skip
    return listing("SHOW OBJECTS", rows)


def _size(session: Session, database: Database, kind: str, schema: str, name: str) -> dict[str, Any]:
    hidden = session.temporary_tables.get((database.name, schema, name), name)
    table = database.tables.find(schema, hidden) if kind == "TABLE" else None
    if table is None:
        return {}
    return dict(
        cluster_by="" if table.clustering_key is None else table.clustering_key.text,
        rows=count_rows(session, table),
        is_iceberg=bool(database.objects.table_option(schema, table.name, "iceberg")),
    )


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
    return described_columns(columns_of(session.defined(VIEW, path, listed=True)[1]))


def described_columns(
    columns: Iterable[Column], comment: Callable[[Column], str | None] = lambda _column: None
) -> Result:
    """Return what DESCRIBE TABLE and VIEW answer."""
    rows = (
        {"name": c.name, "type": str(c.type), "null?": c.nullable, "default": c.default_text,
         "primary key": PRIMARY in c.keys, "unique key": UNIQUE in c.keys, "comment": comment(c)}
        for c in columns
    )  # fmt: skip
    return listing("DESCRIBE TABLE", rows)


def describe_schema(session: Session, reader: Reader) -> Result:
    """DESCRIBE SCHEMA name: its tables and views."""
    database, schema = session.resolve_schema(reader.last_path(2))
    if schema not in database.schemas or not session.can_see("SCHEMA", database.name, schema):
        raise object_missing("Schema", f"{database.name}.{schema}")
    known = relations(session, database, schema)
    return listing("DESCRIBE SCHEMA", (dict(kind=kind, name=n, created_on=ms) for kind, n, _, ms in known))


def describe_database(session: Session, reader: Reader) -> Result:
    """DESCRIBE DATABASE name: its schemas."""
    name = reader.name()
    reader.end()
    database = session.visible_database(name)
    known = (name for name in sorted(database.schemas) if session.can_see("SCHEMA", database.name, name))
    return listing("DESCRIBE DATABASE", (dict(name=name) for name in known))


def show_nothing(session: Session, shown: Shown) -> Result:
    """SHOW of kinds that do not exist here: streams, tasks, integrations, procedures."""
    if shown.scope is not None and shown.scope[0] in {"SCHEMA", "DATABASE"}:
        schemas_in_scope(session, shown)
    return listing(f"SHOW {shown.kind.removeprefix('USER ')}", [])


def keys_of(
    session: Session, database: Database, schema: str, word: str
) -> Iterator[tuple[Table, str, list[str]]]:
    """Return the tables of a schema that have a key of a kind, the key's name and its columns."""
    for table in tables_of(session, database, schema):
        columns = [column.name for column in table.columns if word in column.keys]
        if columns:
            known = uuid.uuid5(uuid.NAMESPACE_OID, f"{word}{table.path}{table.created_on_ms}")
            yield table, f"SYS_CONSTRAINT_{known}", columns


def show_keys(session: Session, shown: Shown) -> Result:
    """SHOW PRIMARY | UNIQUE KEYS [IN TABLE name | SCHEMA | DATABASE | ACCOUNT]."""
    word = PRIMARY if shown.kind.startswith("PRIMARY") else UNIQUE
    only = None
    if shown.scope is not None and shown.scope[0] == "TABLE":
        database, schema, only = session.resolve(shown.scope[1])
        if not any(table.name == only for table in tables_of(session, database, schema)):
            raise object_missing("Table", f"{database.name}.{schema}.{only}")
        namespaces = [(database, schema)]
    else:
        namespaces = schemas_in_scope(session, shown)
    rows = (
        dict(
            created_on=table.created_on_ms, database_name=database.name, schema_name=schema,
            table_name=table.name.partition(TEMPORARY)[0], column_name=column, key_sequence=position,
            constraint_name=name,
        )
        for database, schema in namespaces
        for table, name, columns in keys_of(session, database, schema, word)
        if only in {None, table.name}
        for position, column in enumerate(columns, 1)
    )  # fmt: skip
    return listing(f"SHOW {shown.kind}", rows)


def undrop(_session: Session, reader: Reader) -> Result:
    """UNDROP is refused: what is dropped is gone."""
    raise unsupported(f"UNDROP {reader.expect('TABLE', 'SCHEMA', 'DATABASE')}: dropped objects are not kept")


def octets(kind: ColumnType) -> int | None:
    """Return the most bytes of a type: four for each character of text ("String & binary data types")."""
    length = kind.length
    return length if length is None or kind.kind == "BINARY" else max(length, min(4 * length, _MOST_OCTETS))


def _data_type(kind: ColumnType, nullable: bool) -> str:
    described: dict[str, object] = {"type": kind.wire}
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


# -- Session parameters that SHOW PARAMETERS lists, with their defaults (page "Parameters") --------------

# Name: type, default, what it does.
_KNOWN: dict[str, tuple[str, ...]] = {
    name: tuple(described)
    for name, *described in csv.reader(
        Path(__file__).with_name("parameters.csv").read_text(encoding="utf-8").splitlines()
    )
}

# Other parameters that a session may set ("Parameters"), and some that tests of Snowflake's own connector
# show; they have no effect here.
_OTHERS = frozenset(
    {"ACTIVE_PYTHON_PROFILER", "CSV_TIMESTAMP_FORMAT", "DEFAULT_NULL_ORDERING",
     "DISABLE_PUT_AND_GET_ON_EXTERNAL_STAGE", "ENABLE_BIND_STAGE_V2",
     "ENABLE_UNLOAD_PHYSICAL_TYPE_OPTIMIZATION", "GCS_USE_DOWNSCOPED_CREDENTIAL",
     "GEOGRAPHY_OUTPUT_FORMAT", "GEOMETRY_OUTPUT_FORMAT", "HYBRID_TABLE_LOCK_TIMEOUT", "METRIC_LEVEL",
     "NOORDER_SEQUENCE_AS_DEFAULT", "QUERY_RESULT_FORMAT", "S3_STAGE_VPCE_DNS_NAME", "SEARCH_PATH",
     "SIMULATED_DATA_SHARING_CONSUMER", "SUPPRESS_INCIDENT_DUMPS", "TRACE_LEVEL", "UNSUPPORTED_DDL_ACTION"}
)  # fmt: skip
# Clients set more of their own than the documentation lists.
_OF_CLIENTS = ("CLIENT_", "JDBC_", "ODBC_", "PYTHON_", "JS_", "GO_", "DOTNET_", "SNOWPARK_")


def is_parameter(name: str) -> bool:
    """Return True for the name of a parameter that a session may set."""
    return name in _KNOWN or name in _OTHERS or name.startswith(_OF_CLIENTS)


DEFAULT_PARAMETERS = {name: default for name, (_, default, _) in _KNOWN.items()}
"""What SHOW PARAMETERS lists, with the values of a new session, as text."""


def show_parameters(session: Session, shown: Shown) -> Result:
    """SHOW PARAMETERS [LIKE] [IN SESSION | ..]: those of the session, wherever it is asked for."""
    rows = []
    for name in sorted({*_KNOWN, *session.parameters}):
        kind, default, described = _KNOWN.get(name, ("STRING", "", ""))
        is_set = name in session.parameters
        value = str(session.parameters[name]) if is_set else default
        if kind == "BOOLEAN":
            value = value.lower()
        if shown.matches(name):
            level = "SESSION" if is_set else ""
            rows.append(
                dict(key=name, value=value, default=default, level=level, description=described, type=kind)
            )
    return listing("SHOW PARAMETERS", rows)

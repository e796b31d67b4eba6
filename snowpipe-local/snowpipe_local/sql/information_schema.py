"""INFORMATION_SCHEMA and GET_DDL: the service's own catalog, as far as the session's roles may see it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from sqlglot import exp

from snowpipe_local.engine.database import Database
from snowpipe_local.engine.load_history import FilePipe
from snowpipe_local.engine.store import SEQUENCE, VIEW, SchemaObject, column_key
from snowpipe_local.errors import compilation_error, object_missing, unsupported
from snowpipe_local.names import Pipe, PipeKey
from snowpipe_local.sql import grants, iceberg, show
from snowpipe_local.sql.reader import Reader
from snowpipe_local.sql.relations import registered_result
from snowpipe_local.sql.results import DOCUMENTED, Result, listing
from snowpipe_local.sql.session import Session
from snowpipe_local.stages.definition import FileFormatDefinition, OptionValue, read_file_format
from snowpipe_local.tables import IDENTITY, PRIMARY, UNIQUE, Column, Table, read_whole_path, shown

SCHEMA = "INFORMATION_SCHEMA"
_Row = Mapping[str, Any]
_Rows = Callable[[Session, Database], Iterator[_Row]]


def relation(session: Session, database: Database, name: str) -> exp.Expr:
    """Return a query for one view of a database's INFORMATION_SCHEMA.

    :raises SqlError: 002003 for a view that the local service does not have.
    """
    return registered_result(session, listing(name, _view(database, name)(session, database)))


def describe_view(session: Session, reader: Reader) -> Result:
    """DESCRIBE VIEW name, which may be one of INFORMATION_SCHEMA."""
    path = reader.last_path()
    if path[-2:-1] != (SCHEMA,):
        return show.described_columns(show.columns_of(session.defined(VIEW, path, listed=True)[1]))
    owner = session.visible_database(path[0] if len(path) == 3 else session.current_database())
    _view(owner, path[-1])
    return show.described_columns(Column(name, kind) for name, (kind, *_) in DOCUMENTED[path[-1]].items())


def _view(database: Database, name: str) -> _Rows:
    known = _VIEWS.get(name)
    if known is None:
        raise object_missing("Object", f"{database.name}.{SCHEMA}.{name}")
    return known


def _schemas(session: Session, database: Database) -> list[str]:
    return [name for name in sorted(database.schemas) if session.can_see("SCHEMA", database.name, name)]


def _tables(session: Session, database: Database) -> Iterator[_Row]:
    for schema in _schemas(session, database):
        for kind, name, _, _ in show.relations(session, database, schema):
            hidden = session.temporary_tables.get((database.name, schema, name), name)
            table = database.tables.find(schema, hidden) if kind == "TABLE" else None
            view = database.objects.find(VIEW, schema, name) if kind == VIEW else None
            created = table.created_on_ms if table is not None else view.created_on_ms if view else 0
            altered = database.altered_ms.get(table.folder) or created if table is not None else created
            key = table.clustering_key if table is not None else None
            temporary = table is not None and table.is_temporary
            yield dict(
                _path("TABLE", database.name, schema, name),
                TABLE_OWNER=session.owner(kind, database.name, schema, hidden),
                TABLE_TYPE=VIEW if kind == VIEW else "LOCAL TEMPORARY" if temporary else "BASE TABLE",
                IS_TRANSIENT=bool(database.objects.table_option(schema, hidden, "transient")),
                CLUSTERING_KEY=None if key is None else key.text,
                ROW_COUNT=None if table is None else show.count_rows(session, table),
                RETENTION_TIME=None if table is None else 0, CREATED=created,
                LAST_ALTERED=altered, LAST_DDL=created,
                IS_INSERTABLE_INTO=kind == "TABLE", IS_TEMPORARY=temporary,
                IS_ICEBERG=bool(database.objects.table_option(schema, hidden, "iceberg")),
                COMMENT=database.objects.comment(kind, schema, name) or None,
            )  # fmt: skip


def _path(kind: str, *path: str) -> dict[str, str]:
    """Return the columns that say where an object is."""
    return dict(zip((f"{kind}_CATALOG", f"{kind}_SCHEMA", f"{kind}_NAME"), path, strict=True))


def _columns(session: Session, database: Database) -> Iterator[_Row]:
    for schema in _schemas(session, database):
        for _, name, columns, _ in show.relations(session, database, schema):
            for position, column in enumerate(columns, 1):
                comment = database.objects.comment("COLUMN", schema, column_key(name, column.name))
                yield dict(
                    _path("TABLE", database.name, schema, name), COLUMN_NAME=column.name,
                    ORDINAL_POSITION=position, COMMENT=comment or None, **_described(column),
                )  # fmt: skip


def _described(column: Column) -> _Row:
    kind = column.type
    is_number = kind.kind == "NUMBER"
    counted = IDENTITY.match(column.default_text or "")
    identity = (int(counted[1]), int(counted[2]), "BY DEFAULT", "NO", "NO") if counted else (None,) * 5
    start, step, generation, cycles, ordered = identity
    return dict(
        IDENTITY_START=start, IDENTITY_INCREMENT=step, IDENTITY_GENERATION=generation, IDENTITY_CYCLE=cycles,
        IDENTITY_ORDERED=ordered, IS_IDENTITY=counted is not None,
        COLUMN_DEFAULT=None if counted else column.default_text, IS_NULLABLE=column.nullable,
        DATA_TYPE="TEXT" if kind.kind == "VARCHAR" else kind.kind, CHARACTER_MAXIMUM_LENGTH=kind.length,
        CHARACTER_OCTET_LENGTH=show.octets(kind), NUMERIC_PRECISION=kind.precision if is_number else None,
        NUMERIC_PRECISION_RADIX=10 if is_number else None, NUMERIC_SCALE=kind.scale if is_number else None,
        DATETIME_PRECISION=kind.precision if kind.kind.startswith("TIME") else None,
    )  # fmt: skip


def _schemata(session: Session, database: Database) -> Iterator[_Row]:
    for schema in _schemas(session, database):
        owner = session.owner("SCHEMA", database.name, schema)
        comment = database.objects.comment("SCHEMA", schema, schema) or None
        yield dict(CATALOG_NAME=database.name, SCHEMA_NAME=schema, SCHEMA_OWNER=owner, COMMENT=comment)
    yield dict(CATALOG_NAME=database.name, SCHEMA_NAME=SCHEMA, COMMENT="Views of the contents of schemas")


def _databases(session: Session, _database: Database) -> Iterator[_Row]:
    for database in session.catalog.databases:
        if session.can_see("DATABASE", database.name):
            owner = session.owner("DATABASE", database.name)
            comment = database.objects.comment("DATABASE", "", database.name) or None
            yield dict(DATABASE_NAME=database.name, DATABASE_OWNER=owner, COMMENT=comment)


def _each(
    session: Session, database: Database, kind: str, known: Iterable[Any]
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield the objects of a kind that show, with their names, their owner and when they were created."""
    for each in known:
        path = (database.name, each.schema, each.name)
        if session.can_see(kind, *path):
            word = "TABLE" if kind == VIEW else kind.replace(" ", "_")
            owned = {f"{word}_OWNER": session.owner(kind, *path), **_path(word, *path)}
            yield each, dict(owned, CREATED=each.created_on_ms, LAST_ALTERED=each.created_on_ms)


def _views(session: Session, database: Database) -> Iterator[_Row]:
    for view, given in _each(session, database, VIEW, database.objects.all(VIEW)):
        path = (database.name, view.schema, view.name)
        yield dict(
            given, VIEW_DEFINITION=session.view_text(view, *path), IS_SECURE=view.definition["is_secure"],
            LAST_DDL=view.created_on_ms, COMMENT=database.objects.comment(VIEW, *path[1:]) or None,
        )  # fmt: skip


def _pipes(session: Session, database: Database) -> Iterator[_Row]:
    for pipe in (*database.pipes, *database.file_pipes):
        seen = pipe.seen_as(database.name)
        if session.can_see(*seen):
            yield dict(
                _path("PIPE", database.name, *pipe.key), PIPE_OWNER=session.owner(*seen),
                DEFINITION=pipe.text, IS_AUTOINGEST_ENABLED=bool(pipe.notification_channel),
                NOTIFICATION_CHANNEL_NAME=pipe.notification_channel, CREATED=pipe.created_on_ms,
                LAST_ALTERED=pipe.created_on_ms,
                COMMENT=pipe.comment or database.objects.comment("PIPE", *pipe.key) or None,
            )  # fmt: skip


def _stages(session: Session, database: Database) -> Iterator[_Row]:
    for stage, given in _each(session, database, "STAGE", database.stages.stages):
        kind, url = "External Named" if stage.is_external else "Internal Named", stage.url or ""
        yield dict(given, STAGE_URL=url, STAGE_REGION=stage.region, STAGE_TYPE=kind, COMMENT=stage.comment)


def _file_formats(session: Session, database: Database) -> Iterator[_Row]:
    for known, given in _each(session, database, "FILE FORMAT", database.stages.formats):
        described = read_file_format({}, known.settings)
        options = {name: _option(described[name]) for name in _OF_FORMATS if name in described}
        yield dict(given, FILE_FORMAT_TYPE=described.type, COMMENT=known.comment, **options)


_OF_FORMATS = (
    "RECORD_DELIMITER", "FIELD_DELIMITER", "SKIP_HEADER", "DATE_FORMAT", "TIME_FORMAT", "TIMESTAMP_FORMAT",
    "BINARY_FORMAT", "ESCAPE", "ESCAPE_UNENCLOSED_FIELD", "TRIM_SPACE", "FIELD_OPTIONALLY_ENCLOSED_BY",
    "NULL_IF", "COMPRESSION", "ERROR_ON_COLUMN_COUNT_MISMATCH",
)  # fmt: skip


def _option(value: OptionValue) -> object:
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else value


def _sequences(session: Session, database: Database) -> Iterator[_Row]:
    for known, given in _each(session, database, SEQUENCE, database.objects.all(SEQUENCE)):
        kept = known.definition
        yield dict(
            given, START_VALUE=kept["start"], INCREMENT=kept["increment"], ORDERED=kept["ordered"],
            COMMENT=kept["comment"] or None,
        )  # fmt: skip


def _table_privileges(session: Session, database: Database) -> Iterator[_Row]:
    grants = session.catalog.access.state.grants.values()
    for grant in sorted(grants, key=lambda grant: (grant.target.path, grant.role, grant.privilege)):
        is_here = grant.target.kind in {"TABLE", VIEW} and grant.target.path[0] == database.name
        if is_here and session.can_see(grant.target.kind, *grant.target.path):
            yield dict(
                _path("TABLE", *grant.target.path), GRANTOR=grant.grantor, GRANTEE=grant.role,
                PRIVILEGE_TYPE=grant.privilege, IS_GRANTABLE=grant.grant_option, CREATED=grant.created_on_ms,
            )  # fmt: skip


def _enabled_roles(session: Session, _database: Database) -> Iterator[_Row]:
    state = session.catalog.access.state
    for role in sorted(session.roles):
        yield dict(ROLE_NAME=role, ROLE_OWNER=state.roles[role].owner or None)


def _table_constraints(session: Session, database: Database) -> Iterator[_Row]:
    for schema in _schemas(session, database):
        for word, kind in ((PRIMARY, "PRIMARY KEY"), (UNIQUE, "UNIQUE")):
            for table, name, _ in show.keys_of(session, database, schema, word):
                yield dict(
                    _path("CONSTRAINT", database.name, schema, name), CONSTRAINT_TYPE=kind,
                    CREATED=table.created_on_ms, LAST_ALTERED=table.created_on_ms,
                    **_path("TABLE", database.name, schema, table.name),
                )  # fmt: skip


def _no_rows(_session: Session, _database: Database) -> Iterator[_Row]:
    yield from ()


_VIEWS: dict[str, _Rows] = {
    "TABLES": _tables, "COLUMNS": _columns, "SCHEMATA": _schemata, "DATABASES": _databases, "VIEWS": _views,
    "PIPES": _pipes, "STAGES": _stages, "FILE_FORMATS": _file_formats, "SEQUENCES": _sequences,
    "TABLE_PRIVILEGES": _table_privileges, "ENABLED_ROLES": _enabled_roles,
    "TABLE_CONSTRAINTS": _table_constraints,
    **dict.fromkeys(("FUNCTIONS", "PROCEDURES", "EXTERNAL_TABLES", "REFERENTIAL_CONSTRAINTS"), _no_rows),
}  # fmt: skip


# -- GET_DDL('kind', 'name' [, qualified]): the statement that creates an object again ---------------------
#
# Snowflake has none of a stage (page "GET_DDL").

_PLAIN = re.compile(r"[A-Z_][A-Z0-9_$]*\Z")
_IN_SCHEMA = ("SEQUENCE", "TABLE", "VIEW", "FILE_FORMAT", "PIPE")


def get_ddl(session: Session, arguments: list[exp.Expr]) -> str:
    """Return the value of a call of GET_DDL.

    :param arguments: kind and name as texts, and TRUE for qualified names.
    :raises SqlError: for another kind, or an object that does not exist or stays hidden.
    """
    texts = [part.name for part in arguments[:2] if isinstance(part, exp.Literal) and part.is_string]
    qualified = arguments[2] if len(arguments) == 3 else exp.false()
    if len(texts) != 2 or not isinstance(qualified, exp.Boolean) or len(arguments) > 3:
        raise compilation_error("expected GET_DDL('kind', 'name' [, TRUE | FALSE]).")
    kind, path = texts[0].upper().replace(" ", "_"), read_whole_path(texts[1])
    if kind == "DATABASE":
        return _database(session, path, whole=bool(qualified.this))
    if kind == "SCHEMA":
        database, schema = session.resolve_schema(path)
        return "\n\n".join(_schema(session, database, schema, whole=bool(qualified.this)))
    if kind not in _KINDS:
        raise unsupported(f"GET_DDL of {kind}")
    database, schema, name = session.resolve(path)
    return _object(session, database, kind, (schema, name), whole=bool(qualified.this))


def _database(session: Session, path: tuple[str, ...], *, whole: bool) -> str:
    database = session.visible_database(path[0])
    parts = [f"create or replace database {shown(database.name)};"]
    for schema in sorted(database.schemas):
        if session.can_see("SCHEMA", database.name, schema):
            parts += _schema(session, database, schema, whole=whole)
    return "\n\n".join(parts)


def _schema(session: Session, database: Database, schema: str, *, whole: bool) -> Iterator[str]:
    if schema not in database.schemas:
        raise object_missing("Schema", f"{database.name}.{schema}")
    written = f"{shown(database.name)}.{shown(schema)}" if whole else shown(schema)
    yield f"create or replace schema {written};"
    for kind in _IN_SCHEMA:
        securable, find, _ = _KINDS[kind]
        for name in grants.names(database, schema, securable):
            if _shows(session, securable, find(database, schema, name), database.name, schema, name):
                yield _object(session, database, kind, (schema, name), whole=whole)


def _shows(session: Session, securable: str, known: object, *path: str) -> bool:
    if isinstance(known, SchemaObject) and securable == VIEW and session.view_text(known, *path) is None:
        return False
    return known is not None and session.can_see(securable, *path)


def _object(session: Session, database: Database, kind: str, key: tuple[str, str], *, whole: bool) -> str:
    schema, name = key
    securable, find, write = _KINDS[kind]
    bare, known = name.partition("\x01")[0], find(database, schema, name)
    if known is None or (name == bare and not _shows(session, securable, known, database.name, *key)):
        raise object_missing(securable.capitalize(), f"{database.name}.{schema}.{bare}")
    path = (database.name, schema, bare) if whole else (bare,)
    return write(database, known, ".".join(map(shown, path)))


def _table(database: Database, table: Table, written: str) -> str:
    path = (table.schema, table.name)
    lake = iceberg.options(database, *path)
    word = "TRANSIENT " if database.objects.table_option(*path, "transient") else ""
    word = "TEMPORARY " if table.is_temporary else word if lake is None else "ICEBERG "
    key, comment = table.clustering_key, database.objects.comment("TABLE", *path)
    cluster = f" cluster by {key.text.removeprefix('LINEAR')}" if key else ""
    options = " ERROR_LOGGING=TRUE" if table.error_logging else ""
    options += " ENABLE_SCHEMA_EVOLUTION=TRUE" if table.schema_evolution else ""
    options += "".join(f" {option} = {_text(str(value))}" for option, value in (lake or {}).items())
    options += f" COMMENT={_text(comment)}" if comment else ""
    columns = ",\n".join(_column(database, *path, column) for column in table.columns)
    return f"create or replace {word}TABLE {written}{cluster} (\n{columns}\n){options};"


def _column(database: Database, schema: str, table: str, column: Column) -> str:
    text = f"\t{shown(column.name)} {column.type}"
    identity = IDENTITY.match(column.default_text or "")
    if not column.nullable:
        text += " NOT NULL"
    if identity:
        text += f" autoincrement start {identity[1]} increment {identity[2]} noorder"
    elif column.default_text:
        text += f" DEFAULT {column.default_text}"
    comment = database.objects.comment("COLUMN", schema, column_key(table, column.name))
    return f"{text} COMMENT {_text(comment)}" if comment else text


def _view_ddl(_database: Database, view: SchemaObject, written: str) -> str:
    reader = Reader(str(view.definition["text"]))
    reader.verb = "CREATE"
    reader.until("VIEW")
    reader.expect("VIEW")
    reader.target()
    secure = "secure " if view.definition["is_secure"] else ""
    return f"create or replace {secure}view {written} {reader.rest()};"


def _sequence(_database: Database, known: SchemaObject, written: str) -> str:
    order = "order" if known.definition["ordered"] else "noorder"
    step = f"start with {known.definition['start']} increment by {known.definition['increment']} {order}"
    comment = known.definition["comment"]
    return f"create or replace sequence {written} {step}" + (
        f" COMMENT={_text(comment)};" if comment else ";"
    )


def _file_format(_database: Database, known: FileFormatDefinition, written: str) -> str:
    lines = [
        f"\t{option} = {_value(value)}"
        for option, value in known.settings.items()
        if (option, value) != ("TYPE", "CSV")
    ]
    lines += [f"\tCOMMENT = {_text(known.comment)}"] if known.comment else []
    return "\n".join([f"CREATE OR REPLACE FILE FORMAT {written}", *lines, ";"])


def _find_pipe(database: Database, schema: str, name: str) -> FilePipe | Pipe | None:
    key = PipeKey(schema, name)
    pipe = database.file_pipes.find(*key) or database.pipes.find(key)
    return pipe if pipe is not None and pipe.text else None


def _pipe(_database: Database, pipe: FilePipe | Pipe, written: str) -> str:
    options = " auto_ingest=true" if pipe.notification_channel else ""
    options += f" COMMENT={_text(pipe.comment)}" if pipe.comment else ""
    return f"create or replace pipe {written}{options} as {pipe.text};"


def _text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def _value(value: OptionValue) -> str:
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, tuple):
        return f"({', '.join(_text(str(entry)) for entry in value)})"
    if value is None:
        return "NONE"
    return str(value) if isinstance(value, int) or _PLAIN.match(str(value)) else _text(str(value))


# How privileges name each kind, what finds an object, and what writes its statement.
_KINDS: dict[str, tuple[str, Callable[[Database, str, str], Any], Callable[[Database, Any, str], str]]] = {
    "SEQUENCE": (SEQUENCE, lambda database, *path: database.objects.find(SEQUENCE, *path), _sequence),
    **dict.fromkeys(
        ("TABLE", "ICEBERG_TABLE"), ("TABLE", lambda database, *path: database.tables.find(*path), _table)
    ),
    "VIEW": (VIEW, lambda database, *path: database.objects.find(VIEW, *path), _view_ddl),
    "FILE_FORMAT": ("FILE FORMAT", lambda database, *path: database.stages.formats.find(*path), _file_format),
    "PIPE": ("PIPE", _find_pipe, _pipe),
}

"""GET_DDL('kind', 'name' [, qualified]): the statement that creates an object again.

For tables, views, schemas, databases, sequences, file formats and pipes; Snowflake has none of a stage (page
"GET_DDL").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from sqlglot import exp

from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.engine.names import PipeKey
from airflow_provider_snowpipe.local.engine.store import SEQUENCE, VIEW, column_key
from airflow_provider_snowpipe.local.errors import compilation_error, object_missing, unsupported
from airflow_provider_snowpipe.local.identifiers import quote, read_path
from airflow_provider_snowpipe.local.sql import grants, iceberg
from airflow_provider_snowpipe.local.sql.reader import Reader
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.stages.definition import OptionValue
from airflow_provider_snowpipe.local.tables import Column

_PLAIN = re.compile(r"[A-Z_][A-Z0-9_$]*\Z")
_IN_SCHEMA = ("SEQUENCE", "TABLE", "VIEW", "FILE_FORMAT", "PIPE")
_IDENTITY = re.compile(r"IDENTITY START (-?\d+) INCREMENT (-?\d+)")


def get_ddl(session: Session, arguments: list[exp.Expr]) -> str:
    """Return the value of a call of GET_DDL.

    :param arguments: kind and name as texts, and TRUE for qualified names.
    :raises SqlError: for another kind, or an object that does not exist or stays hidden.
    """
    texts = [part.name for part in arguments[:2] if isinstance(part, exp.Literal) and part.is_string]
    qualified = arguments[2] if len(arguments) == 3 else exp.false()
    if len(texts) != 2 or not isinstance(qualified, exp.Boolean) or len(arguments) > 3:
        raise compilation_error("expected GET_DDL('kind', 'name' [, TRUE | FALSE]).")
    kind, (path, rest) = texts[0].upper().replace(" ", "_"), read_path(texts[1])
    if rest:
        raise compilation_error(f"invalid name '{texts[1][:80]}' in GET_DDL.")
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
    parts = [f"create or replace database {_name(database.name)};"]
    for schema in sorted(database.schemas):
        if session.can_see("SCHEMA", database.name, schema):
            parts += _schema(session, database, schema, whole=whole)
    return "\n\n".join(parts)


def _schema(session: Session, database: Database, schema: str, *, whole: bool) -> Iterator[str]:
    if schema not in database.schemas:
        raise object_missing("Schema", f"{database.name}.{schema}")
    place = f"{_name(database.name)}.{_name(schema)}" if whole else _name(schema)
    yield f"create or replace schema {place};"
    for kind in _IN_SCHEMA:
        securable, _ = _KINDS[kind]
        for name in grants.names(database, schema, securable):
            is_custom = securable != "PIPE" or _has_text(database, schema, name)
            if is_custom and session.can_see(securable, database.name, schema, name):
                yield _object(session, database, kind, (schema, name), whole=whole)


def _object(session: Session, database: Database, kind: str, place: tuple[str, str], *, whole: bool) -> str:
    schema, name = place
    securable, write = _KINDS[kind]
    shown = name.partition("\x01")[0]
    if name not in grants.names(database, schema, securable) or (
        name == shown and not session.can_see(securable, database.name, schema, name)
    ):
        raise object_missing(securable.capitalize(), f"{database.name}.{schema}.{shown}")
    path = (database.name, schema, shown) if whole else (shown,)
    return write(database, schema, name, ".".join(_name(part) for part in path))


def _table(database: Database, schema: str, name: str, written: str) -> str:
    table = database.tables.find(schema, name)
    assert table is not None  # noqa: S101 - the caller has looked
    lines = [_column(database, schema, name, column) for column in table.columns]
    lake = iceberg.definition_of(database, schema, name)
    word = "TRANSIENT " if database.objects.table_option(schema, name, "transient") else ""
    word = "TEMPORARY " if table.is_temporary else word if lake is None else "ICEBERG "
    cluster = (
        f" cluster by {table.clustering_key.text.removeprefix('LINEAR')}" if table.clustering_key else ""
    )
    options = "".join(
        f" {option}=TRUE"
        for option, chosen in (
            ("ERROR_LOGGING", table.error_logging),
            ("ENABLE_SCHEMA_EVOLUTION", table.schema_evolution),
        )
        if chosen
    )
    options += "".join(f" {option} = {_text(str(value))}" for option, value in (lake or {}).items())
    comment = database.objects.comment("TABLE", schema, name)
    options += f" COMMENT={_text(comment)}" if comment else ""
    columns = ",\n".join(lines)
    return f"create or replace {word}TABLE {written}{cluster} (\n{columns}\n){options};"


def _column(database: Database, schema: str, table: str, column: Column) -> str:
    text = f"\t{_name(column.name)} {column.type}"
    identity = _IDENTITY.match(column.default_text or "")
    if not column.nullable:
        text += " NOT NULL"
    if identity:
        text += f" autoincrement start {identity[1]} increment {identity[2]} noorder"
    elif column.default_text:
        text += f" DEFAULT {column.default_text}"
    comment = database.objects.comment("COLUMN", schema, column_key(table, column.name))
    return f"{text} COMMENT {_text(comment)}" if comment else text


def _view(database: Database, schema: str, name: str, written: str) -> str:
    view = database.objects.find(VIEW, schema, name)
    assert view is not None  # noqa: S101 - the caller has looked
    reader = Reader(str(view.definition["text"]))
    reader.verb = "CREATE"
    reader.until("VIEW")
    reader.expect("VIEW")
    reader.target()
    secure = "secure " if view.definition["is_secure"] else ""
    return f"create or replace {secure}view {written} {reader.rest()};"


def _sequence(database: Database, schema: str, name: str, written: str) -> str:
    known = database.objects.find(SEQUENCE, schema, name)
    assert known is not None  # noqa: S101 - the caller has looked
    order = "order" if known.definition["ordered"] else "noorder"
    step = f"start with {known.definition['start']} increment by {known.definition['increment']} {order}"
    comment = known.definition["comment"]
    return f"create or replace sequence {written} {step}" + (
        f" COMMENT={_text(comment)};" if comment else ";"
    )


def _file_format(database: Database, schema: str, name: str, written: str) -> str:
    known = database.stages.formats.find(schema, name)
    assert known is not None  # noqa: S101 - the caller has looked
    lines = [
        f"\t{option} = {_value(value)}"
        for option, value in known.settings.items()
        if (option, value) != ("TYPE", "CSV")
    ]
    lines += [f"\tCOMMENT = {_text(known.comment)}"] if known.comment else []
    return "\n".join([f"CREATE OR REPLACE FILE FORMAT {written}", *lines, ";"])


def _pipe(database: Database, schema: str, name: str, written: str) -> str:
    for pipe in database.file_pipes.pipes:
        if (pipe.key.schema, pipe.key.name) == (schema, name):
            ingest = " auto_ingest=true" if pipe.auto_ingest else ""
            comment = f" COMMENT={_text(pipe.comment)}" if pipe.comment else ""
            return f"create or replace pipe {written}{ingest}{comment} as {pipe.text};"
    streaming = database.pipes.find(PipeKey(schema, name))
    if streaming is None or streaming.definition is None:
        raise object_missing("Pipe", f"{database.name}.{schema}.{name}")
    return f"create or replace pipe {written} as {streaming.definition.text};"


def _has_text(database: Database, schema: str, name: str) -> bool:
    pipe = database.pipes.find(PipeKey(schema, name))
    return pipe is None or pipe.definition is not None


def _name(name: str) -> str:
    return name if _PLAIN.match(name) else quote(name)


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


_KINDS: dict[str, tuple[str, Callable[[Database, str, str, str], str]]] = {
    "SEQUENCE": ("SEQUENCE", _sequence),
    "TABLE": ("TABLE", _table),
    "ICEBERG_TABLE": ("TABLE", _table),
    "VIEW": ("VIEW", _view),
    "FILE_FORMAT": ("FILE FORMAT", _file_format),
    "PIPE": ("PIPE", _pipe),
}

"""Iceberg tables with Snowflake as their catalog, unpartitioned: their options, types and SHOW.

Rows are kept as those of any table: there are no Parquet files and no metadata for other engines. The page
"Data types for Apache Iceberg tables" lists what types a column may have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlglot import exp

from snowpipe_local.engine.database import Database
from snowpipe_local.errors import SqlError, compilation_error, object_missing, unsupported
from snowpipe_local.sql.reader import Reader
from snowpipe_local.sql.results import Result, listing
from snowpipe_local.sql.session import Session
from snowpipe_local.sql.show import Shown, placed, schemas_in_scope, tables_of
from snowpipe_local.tables import MAX_VARCHAR, Column, ColumnType, Table

# Digits of seconds: microseconds, as Iceberg has them.
_PRECISION = 6
_TEXTS = ("EXTERNAL_VOLUME", "CATALOG", "BASE_LOCATION", "CATALOG_SYNC", "STORAGE_SERIALIZATION_POLICY",
          "TARGET_FILE_SIZE")  # fmt: skip
OPTIONS = frozenset({*_TEXTS, "ENABLE_DATA_COMPACTION"})
# Iceberg's own words for numbers; a type of Snowflake's that is the same word means Iceberg's here.
_NUMBERS = {exp.DataType.Type.INT: 10, exp.DataType.Type.BIGINT: 19}


def only(handler: Callable[[Session, Reader], Result]) -> Callable[[Session, Reader], Result]:
    """Return a handler of a statement about tables that refuses one which is not an Iceberg table."""

    def handle(session: Session, reader: Reader) -> Result:
        position = reader.position
        database, schema, name = session.resolve(reader.target().path)
        if database.tables.find(schema, name) is not None and options(database, schema, name) is None:
            raise object_missing("Iceberg table", name)
        reader.seek(position)
        return handler(session, reader)

    return handle


def read_options(tree: exp.Create, found: Sequence[exp.Expr]) -> dict[str, str] | None:
    """Return the options of CREATE ICEBERG TABLE, None for another table.

    :raises SqlError: 000002 for another catalog than Snowflake's, and for partitions.
    """
    if not any(isinstance(setting, exp.IcebergProperty) for setting in found):
        return None
    if any(isinstance(setting, (exp.TemporaryProperty, exp.TransientProperty)) for setting in found):
        raise compilation_error("syntax error: an Iceberg table is neither temporary nor transient.")
    if any(isinstance(setting, exp.PartitionedByProperty) for setting in found):
        raise unsupported("PARTITION BY of Iceberg tables")
    copied = next((word for word in ("clone", "like") if tree.args.get(word)), None)
    if copied or any(isinstance(setting, exp.LikeProperty) for setting in found):
        raise unsupported(f"{(copied or 'like').upper()} of Iceberg tables")
    chosen = {
        setting.name.upper(): setting.args["value"].name
        for setting in found
        if isinstance(setting, exp.Property) and setting.name.upper() in _TEXTS
    }
    catalog = chosen.get("CATALOG", "SNOWFLAKE")
    if catalog.upper() != "SNOWFLAKE":
        raise unsupported(f"CATALOG = '{catalog}' of Iceberg tables")
    return chosen | {"CATALOG": "SNOWFLAKE"}


def read_types(tree: exp.Expr) -> None:
    """Give the columns of CREATE ICEBERG TABLE the types that Iceberg's words stand for.

    :raises SqlError: for a type that an Iceberg table does not have.
    """
    for definition in tree.find_all(exp.ColumnDef):
        kind = definition.kind
        if kind is None:
            continue
        if kind.this in _NUMBERS:
            digits = _NUMBERS[kind.this]
            definition.set("kind", exp.DataType.build(f"NUMBER({digits}, 0)", dialect="snowflake"))
            continue
        sizes = [param.this.name for param in kind.expressions if isinstance(param, exp.DataTypeParam)]
        word = ColumnType.from_sqlglot(kind).kind
        if word.startswith("TIME") and sizes != [str(_PRECISION)]:
            raise _refused(definition.name, f"{word}({sizes[0] if sizes else 9})", f"{word}({_PRECISION})")


def columns(found: tuple[Column, ...]) -> tuple[Column, ...]:
    """Return the columns of an Iceberg table, times with microseconds.

    :raises SqlError: for a type that an Iceberg table does not have.
    """
    for column in found:
        kind = column.type
        if kind.is_semi_structured or kind.kind == "TIMESTAMP_TZ":
            raise _refused(column.name, str(kind))
        if kind.kind == "VARCHAR" and kind.length != MAX_VARCHAR:
            raise _refused(column.name, str(kind), f"VARCHAR({MAX_VARCHAR}), or no length")
    return tuple(_with_microseconds(column) for column in found)


def _with_microseconds(column: Column) -> Column:
    if not column.type.kind.startswith("TIME"):
        return column
    kind = ColumnType(column.type.kind, precision=_PRECISION)
    return Column(column.name, kind, column.nullable, column.default, column.default_text)


def _refused(column: str, kind: str, instead: str = "") -> SqlError:
    remedy = f"; use {instead}" if instead else ""
    return compilation_error(f"Unsupported data type '{kind}' of column {column} for Iceberg tables{remedy}.")


def options(database: Database, schema: str, name: str) -> Mapping[str, Any] | None:
    """Return the options of an Iceberg table, None for any other table."""
    known: Mapping[str, Any] | None = database.objects.table_option(schema, name, "iceberg")
    return known


def show_tables(session: Session, shown: Shown) -> Result:
    """SHOW [TERSE] ICEBERG TABLES [LIKE] [IN ACCOUNT | DATABASE d | SCHEMA s]."""
    rows = (
        _row(session, database, table)
        for database, schema in schemas_in_scope(session, shown)
        for table in tables_of(session, database, schema)
        if options(database, schema, table.name) is not None and shown.matches(table.name)
    )
    return listing("SHOW ICEBERG TABLES", rows)


def _row(session: Session, database: Database, table: Table) -> dict[str, Any]:
    chosen = options(database, table.schema, table.name) or {}
    full_name = (database.name, table.schema, table.name)
    return dict(
        placed(*full_name), created_on=table.created_on_ms, owner=session.owner("TABLE", *full_name),
        external_volume_name=chosen.get("EXTERNAL_VOLUME", ""), catalog_name=chosen["CATALOG"],
        base_location=chosen.get("BASE_LOCATION", ""),
        comment=database.objects.comment("TABLE", table.schema, table.name),
    )  # fmt: skip

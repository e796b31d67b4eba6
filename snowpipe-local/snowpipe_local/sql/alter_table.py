"""ALTER TABLE: columns, names, clustering keys and comments; options as in CREATE TABLE."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator

from sqlglot import exp

from snowpipe_local.access.model import Securable
from snowpipe_local.engine.database import Database
from snowpipe_local.engine.store import column_key
from snowpipe_local.errors import compilation_error, invalid_identifier, unsupported
from snowpipe_local.sql import ddl, iceberg, show, translate
from snowpipe_local.sql.reader import Reader
from snowpipe_local.sql.results import Result, done
from snowpipe_local.sql.session import Session
from snowpipe_local.tables import TEMPORARY, Column, ColumnType, Table, quote

_Target = tuple[Session, Database, Table]


def alter_table(session: Session, reader: Reader) -> Result:
    """ALTER TABLE [IF EXISTS] name ADD | DROP | RENAME | ALTER | CLUSTER BY | SWAP WITH | SET | UNSET .."""
    head = reader.target()
    database, table = session.table_if_exists(head, "OWNERSHIP")
    if table is None:
        session.transaction.commit()
        return done()
    is_unknown = any(reader.ahead(words.count(" ") + 1) == words for words in _UNKNOWN)
    action = "" if is_unknown else reader.accept(*_ACTIONS)
    if not action:
        raise unsupported(f"ALTER TABLE .. {reader.rest()[:40].upper()}")
    change = _ACTIONS[action]((session, database, table), reader)
    # An action yields once it has read its clause to the end: what cannot be read commits nothing.
    next(change)
    session.transaction.commit()
    with session.holding(table), database.altering():
        next(change, None)
    return done()


def _set(verb: str, target: _Target, reader: Reader) -> Iterator[None]:
    settings = reader.settings(needed=True) if verb == "SET" else dict.fromkeys(reader.names())
    reader.end()
    yield
    ddl.alter_table(*target, settings)


def _add_key(kind: str, target: _Target, reader: Reader) -> Iterator[None]:
    """Keys are not enforced in Snowflake either."""
    body = _body(f"c INT, {kind} {reader.rest()}")
    translate.normalize_identifiers(body)
    _, database, table = target
    keyed = ddl.with_keys(body, table.columns)
    yield
    # Values that are NULL already stay.
    columns = (
        dataclasses.replace(new, nullable=old.nullable) for new, old in zip(keyed, table.columns, strict=True)
    )
    database.tables.change(dataclasses.replace(table, columns=tuple(columns)))


def _body(written: str) -> exp.Schema:
    """Return what stands between the parentheses of a CREATE TABLE."""
    tree = translate.parse(f"CREATE TABLE t ({written})")
    body = tree.this
    # A closing parenthesis among the columns makes another statement of them.
    if not isinstance(tree, exp.Create) or not isinstance(body, exp.Schema) or tree.expression is not None:
        raise compilation_error("syntax error in ALTER TABLE .. ADD.")
    return body


def _drop_key(kind: str, target: _Target, reader: Reader) -> Iterator[None]:
    if kind == "CONSTRAINT":
        reader.name()
    named = reader.name_list()
    reader.accept("CASCADE", "RESTRICT")
    reader.end()
    yield
    _, database, table = target
    columns = tuple(
        dataclasses.replace(column, keys=column.keys - {kind.removesuffix(" KEY")})
        if named is None or column.name in named
        else column
        for column in table.columns
    )
    database.tables.change(dataclasses.replace(table, columns=columns))


def _ignore(_target: _Target, reader: Reader) -> Iterator[None]:
    """Nothing here clusters rows again."""
    reader.end()
    yield


def _add(target: _Target, reader: Reader) -> Iterator[None]:
    session, database, table = target
    reader.accept("COLUMN")
    is_tolerant = bool(reader.accept("IF NOT EXISTS"))
    body = _body(reader.rest())
    ddl.name_columns(body)
    statements: list[str] = []
    columns = list(table.columns)
    for definition in body.expressions:
        if not isinstance(definition, exp.ColumnDef):
            raise unsupported("ALTER TABLE .. ADD of something that is not a column")
        if any(known.name.upper() == definition.name.upper() for known in columns):
            if is_tolerant:
                continue
            raise compilation_error(f"column '{definition.name}' already exists", "001430", "42601")
        if iceberg.options(database, table.schema, table.name) is not None:
            iceberg.read_types(body)
            (column,) = iceberg.columns((ddl.read_column(session, database, definition, statements),))
        else:
            column = ddl.read_column(session, database, definition, statements)
        if (column.default is None and not column.nullable) or "nextval" in (column.default or ""):
            _refuse_filled(session, table, column)
        columns.append(column)
        free = dataclasses.replace(column, nullable=True)
        statements.append(f"ALTER TABLE {table.path} ADD COLUMN {free.ddl()}")
        if not column.nullable:
            statements.append(f"ALTER TABLE {table.path} ALTER COLUMN {quote(column.name)} SET NOT NULL")
    yield
    database.tables.change(dataclasses.replace(table, columns=tuple(columns)), statements)


def _refuse_filled(session: Session, table: Table, column: Column) -> None:
    """Refuse a new column that the rows of a table have no value for."""
    if show.count_rows(session, table):
        shown = f"non-empty table '{table.name.partition(TEMPORARY)[0]}'"
        why = f"Cannot add column '{column.name}' with non-constant default to {shown}."
        if column.default is None:
            why = (
                f"Non-nullable column '{column.name}' cannot be added to {shown} unless it has a non-null "
                "default value."
            )
        raise compilation_error(why)


def _drop(target: _Target, reader: Reader) -> Iterator[None]:
    _, database, table = target
    reader.accept("COLUMN")
    is_tolerant = bool(reader.accept("IF EXISTS"))
    columns, statements = list(table.columns), []
    names = reader.names()
    reader.end()
    for name in names:
        known = next((column for column in columns if column.name == name), None)
        if known is None:
            if is_tolerant:
                continue
            raise invalid_identifier(name)
        if len(columns) == 1:
            raise compilation_error(f"column '{name}' is the only one of table '{table.name}'.")
        columns.remove(known)
        statements.append(f"ALTER TABLE {table.path} DROP COLUMN {quote(name)}")
    yield
    database.tables.change(dataclasses.replace(table, columns=tuple(columns)), statements)


def _rename_column(target: _Target, reader: Reader) -> Iterator[None]:
    _, database, table = target
    old = reader.name()
    reader.expect("TO")
    new = reader.name()
    reader.end()
    yield
    _find(table, old)
    if any(column.name.upper() == new.upper() != old.upper() for column in table.columns):
        raise compilation_error(f"column '{new}' already exists", "001430", "42601")
    columns = tuple(
        dataclasses.replace(column, name=new) if column.name == old else column for column in table.columns
    )
    statement = f"ALTER TABLE {table.path} RENAME COLUMN {quote(old)} TO {quote(new)}"
    database.tables.change(dataclasses.replace(table, columns=columns), [statement])


def _rename(target: _Target, reader: Reader) -> Iterator[None]:
    session, database, table = target
    path = reader.last_path()
    where, schema, name = session.resolve_new_table(path, temporary=table.is_temporary)
    yield
    if (where, schema) != (database, table.schema):
        raise unsupported("ALTER TABLE .. RENAME TO another schema")
    if not table.is_temporary:
        ddl.refuse_view(database, schema, name)
    _refuse_custom_pipes(database, table)
    _rename_all(session, database, [(table, name)])
    if table.is_temporary:
        session.temporary_tables.pop((database.name, schema, table.name.partition(TEMPORARY)[0]))
        session.temporary_tables[database.name, schema, path[-1]] = name


def _swap(target: _Target, reader: Reader) -> Iterator[None]:
    session, database, table = target
    path = reader.last_path()
    yield
    of_other, other = session.table(path, "OWNERSHIP")
    if (of_other, other.schema) != (database, table.schema):
        raise unsupported("ALTER TABLE .. SWAP WITH a table of another schema")
    if table.is_temporary or other.is_temporary:
        raise unsupported("ALTER TABLE .. SWAP WITH of a temporary table")
    _refuse_custom_pipes(database, table)
    _refuse_custom_pipes(database, other)
    if table.name == other.name:
        return
    _rename_all(session, database, [(table, other.name), (other, table.name)])


def _cluster(keyed: bool, target: _Target, reader: Reader) -> Iterator[None]:
    session, database, table = target
    if keyed:
        reader.accept("LINEAR")
    written = reader.parenthesized() if keyed else ""
    reader.end()
    yield
    key = ddl.key_of(session, table, written) if keyed else None
    database.tables.change(dataclasses.replace(table, clustering_key=key))


def _columns(target: _Target, reader: Reader) -> Iterator[None]:
    _, database, table = target
    is_enclosed = reader.accept_sign("(")
    changes = [_read_change(reader)]
    while reader.accept_sign(","):
        changes.append(_read_change(reader))
    if is_enclosed:
        reader.expect_sign(")")
    reader.end()
    yield
    for name, change, comment, kind in changes:
        known = database.tables.find(table.schema, table.name) or table
        column = _find(known, name)
        if change.endswith("COMMENT"):
            key = column_key(table.name, name)
            database.objects.set_comment("COLUMN", table.schema, key, comment)
            continue
        changed, statement = _changed(column, change, kind)
        columns = tuple(changed if each is column else each for each in known.columns)
        start = f"ALTER TABLE {known.path} ALTER COLUMN {quote(name)}"
        database.tables.change(dataclasses.replace(known, columns=columns), [f"{start} {statement}"])


def _read_change(reader: Reader) -> tuple[str, str, str, ColumnType | None]:
    """Read ``[COLUMN] name change``: the name, the words of the change, its comment and its type."""
    reader.accept("COLUMN")
    name = reader.name()
    change = reader.accept(
        "UNSET COMMENT", "COMMENT", "SET NOT NULL", "NOT NULL", "DROP NOT NULL", "DROP DEFAULT",
        "SET DATA TYPE", "TYPE",
    )  # fmt: skip
    if not change and reader.word in {"", "SET", "UNSET", "DROP", "ADD"}:
        raise unsupported(f"ALTER TABLE .. ALTER COLUMN .. {reader.rest()[:30].upper()}")
    comment = reader.string() if change == "COMMENT" else ""
    return name, change, comment, _read_type(reader) if change.endswith("TYPE") or not change else None


def _read_type(reader: Reader) -> ColumnType:
    written = reader.until(",", ")")
    definition = translate.parse(f"CREATE TABLE t (c {written})").find(exp.ColumnDef)
    if definition is None or definition.kind is None or definition.constraints:
        raise compilation_error(f"'{written[:30]}' is not a data type.")
    return ColumnType.from_sqlglot(definition.kind)


def _changed(column: Column, change: str, kind: ColumnType | None) -> tuple[Column, str]:
    """Return the column after a change, and what the engine does for it."""
    if change in {"SET NOT NULL", "NOT NULL"}:
        return dataclasses.replace(column, nullable=False), "SET NOT NULL"
    if change == "DROP NOT NULL":
        return dataclasses.replace(column, nullable=True), "DROP NOT NULL"
    if kind is None:
        return dataclasses.replace(column, default=None, default_text=None), "DROP DEFAULT"
    if not _is_wider(column.type, kind):
        raise compilation_error(
            f"cannot change column {column.name} from type {column.type} to {kind}", "002108", "22000"
        )
    return dataclasses.replace(column, type=kind), f"SET DATA TYPE {kind.duckdb}"


def _is_wider(old: ColumnType, new: ColumnType) -> bool:
    if old.kind != new.kind:
        return False
    if old.kind == "NUMBER":
        # Fewer digits are enough where all values fit, which the engine checks.
        return old.scale == new.scale
    return (new.length or 0) >= (old.length or 0)


def _find(table: Table, name: str) -> Column:
    for column in table.columns:
        if column.name == name:
            return column
    raise invalid_identifier(name)


def _refuse_custom_pipes(database: Database, table: Table) -> None:
    for pipe in database.pipes:
        if pipe.definition is not None and (pipe.key.schema, pipe.table) == (table.schema, table.name):
            raise unsupported(f"another name for table {table.name}, which pipe {pipe.key.name} fills")


def _rename_all(session: Session, database: Database, renamed: list[tuple[Table, str]]) -> None:
    """Rename tables of a schema with the grants on them, all at once."""
    paths = [(old.database, old.schema, old.name, name) for old, name in renamed]
    grants = {Securable("TABLE", (*at, old)): Securable("TABLE", (*at, new)) for *at, old, new in paths}
    database.tables.rename(renamed, session.catalog.access.tables_renamed(grants))


# What begins like something that is known.
_UNKNOWN = (
    "ADD ROW ACCESS POLICY", "DROP ROW ACCESS POLICY", "ADD SEARCH OPTIMIZATION", "DROP SEARCH OPTIMIZATION",
    "SET TAG", "UNSET TAG",
)  # fmt: skip
_KEYS = ("CONSTRAINT", "PRIMARY KEY", "UNIQUE", "FOREIGN KEY")
# The first that fits.
_ACTIONS: dict[str, Callable[[_Target, Reader], Iterator[None]]] = {
    **{verb: functools.partial(_set, verb) for verb in ("SET", "UNSET")},
    "DROP CLUSTERING KEY": functools.partial(_cluster, False),
    "CLUSTER BY": functools.partial(_cluster, True),
    **{f"ADD {kind}": functools.partial(_add_key, kind) for kind in _KEYS},
    **{f"DROP {kind}": functools.partial(_drop_key, kind) for kind in _KEYS},
    "SUSPEND RECLUSTER": _ignore,
    "RESUME RECLUSTER": _ignore,
    "ADD": _add,
    "DROP": _drop,
    "RENAME COLUMN": _rename_column,
    "RENAME TO": _rename,
    "SWAP WITH": _swap,
    "ALTER": _columns,
    "MODIFY": _columns,
}

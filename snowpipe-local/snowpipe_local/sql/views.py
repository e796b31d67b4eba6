"""Views, sequences, comments, ALTER DATABASE and ALTER SCHEMA; a view is its text, expanded in a query."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Mapping, Sequence

from sqlglot import exp

from snowpipe_local.access.model import Securable
from snowpipe_local.engine.database import Database
from snowpipe_local.engine.store import SEQUENCE, VIEW, SchemaObject, column_key
from snowpipe_local.errors import (
    SqlError,
    another_kind,
    compilation_error,
    exists_as,
    invalid_identifier,
    object_exists,
    object_missing,
    unsupported,
)
from snowpipe_local.names import Rename
from snowpipe_local.sql import translate, types
from snowpipe_local.sql.grants import locate, names
from snowpipe_local.sql.reader import Reader
from snowpipe_local.sql.results import Result, done, listing, status
from snowpipe_local.sql.session import Session
from snowpipe_local.sql.show import Shown, placed, schemas_in_scope
from snowpipe_local.tables import Column, ColumnType, literal

# -- CREATE, ALTER, DROP, SHOW and DESCRIBE of sequences, and ``seq.NEXTVAL`` ----------------------------


def counting(path: str, start: object, step: object) -> str:
    """Return the engine's statement for a sequence: one that counts down begins above its own bounds."""
    bounds = f"MINVALUE {-(2**63)} MAXVALUE {2**63 - 1}"
    return f"CREATE SEQUENCE {path} START {start} INCREMENT {step} {bounds}"


def create_sequence(session: Session, reader: Reader) -> Result:
    """CREATE [OR REPLACE] SEQUENCE [IF NOT EXISTS] name [START n] [INCREMENT n] [ORDER | NOORDER]."""
    head = reader.target()
    options = _options(reader)
    session.transaction.commit()
    database, schema, name = session.resolve(head.path)
    session.require("CREATE SEQUENCE", "SCHEMA", database.name, schema)
    known = database.objects.find(SEQUENCE, schema, name)
    if known is not None:
        if head.is_tolerant:
            return status(f"{name} already exists, statement succeeded.")
        if not reader.is_replacing:
            raise object_exists(name)
        session.require("OWNERSHIP", SEQUENCE, database.name, schema, name)
    definition: dict[str, object] = {"start": 1, "increment": 1, "ordered": False, "comment": ""}
    definition |= options
    if definition["increment"] == 0:
        raise compilation_error("a sequence cannot increment by 0.")
    definition["engine_name"] = f"sequence_{uuid.uuid4().hex}"
    made = SchemaObject(SEQUENCE, schema, name, database.clock.now_ms(), definition)
    with database.write_lock:
        session.cursor.execute(
            counting(_engine_path(database, made), definition["start"], definition["increment"])
        )
        database.objects.put(made)
    session.created(SEQUENCE, database.name, schema, name)
    return status(f"Sequence {name} successfully created.")


def alter_sequence(session: Session, reader: Reader) -> Result:
    """ALTER SEQUENCE [IF EXISTS] name SET COMMENT = '..' | UNSET COMMENT."""
    head = reader.target()
    changed: dict[str, object] = {"comment": ""} if reader.accept("UNSET COMMENT") else {}
    if reader.accept("SET"):
        changed = _options(reader)
    if set(changed) != {"comment"}:
        raise unsupported("ALTER SEQUENCE of anything but COMMENT; replace the sequence instead")
    reader.end()
    session.transaction.commit()
    database, schema, name = session.resolve(head.path)
    known = database.objects.find(SEQUENCE, schema, name)
    if known is None:
        if head.is_tolerant:
            return done()
        raise object_missing("Sequence", f"{database.name}.{schema}.{name}")
    session.require("OWNERSHIP", SEQUENCE, database.name, schema, name)
    definition = {**known.definition, **changed}
    database.objects.put(dataclasses.replace(known, definition=definition))
    return done()


def drop(kind: str) -> Callable[[Session, Reader], Result]:
    """Return DROP SEQUENCE or VIEW [IF EXISTS] name; defaults that use a sequence go on counting."""

    def handler(session: Session, reader: Reader) -> Result:
        head = reader.last_target()
        session.transaction.commit()
        if kind == VIEW:
            owner, schema, name = session.resolve(head.path)
            if owner.objects.find(VIEW, schema, name) is None and owner.tables.find(schema, name) is not None:
                raise another_kind("TABLE", VIEW)
        database, known = session.defined(kind, head.path)
        session.require("OWNERSHIP", kind, database.name, known.schema, known.name)
        database.objects.remove(kind, known.schema, known.name)
        database.objects.remove(f"COMMENT {kind}", known.schema, known.name)
        session.dropped(kind, database.name, known.schema, known.name)
        return status(f"{known.name} successfully dropped.")

    return handler


def show_sequences(session: Session, shown: Shown) -> Result:
    """SHOW SEQUENCES [LIKE] [IN ACCOUNT | DATABASE d | SCHEMA s]."""
    found = [
        (database, known)
        for database, schema in schemas_in_scope(session, shown)
        for known in database.objects.of(SEQUENCE, schema)
        if shown.matches(known.name) and session.can_see(SEQUENCE, database.name, schema, known.name)
    ]
    return _listed(session, "SHOW SEQUENCES", found)


def describe_sequence(session: Session, reader: Reader) -> Result:
    """DESCRIBE SEQUENCE name."""
    found = session.defined(SEQUENCE, reader.last_path(), listed=True)
    return _listed(session, "DESCRIBE SEQUENCE", [found])


def default_of(session: Session, expression: exp.Expr) -> str | None:
    """Return the engine's default of a column whose DEFAULT is ``seq.NEXTVAL``, or None."""
    if not isinstance(expression, exp.Column) or expression.name.upper() != "NEXTVAL":
        return None
    path = tuple(
        part.name if part.args.get("quoted") else part.name.upper() for part in expression.parts[:-1]
    )
    database, known = session.defined(SEQUENCE, path)
    session.require("USAGE", SEQUENCE, database.name, known.schema, known.name)
    return f"nextval({literal(_engine_path(database, known))})"


def _engine_path(database: Database, known: SchemaObject) -> str:
    return database.names.hidden(str(known.definition["engine_name"]))


def _listed(session: Session, statement: str, found: list[tuple[Database, SchemaObject]]) -> Result:
    counted = dict(
        session.cursor.execute("SELECT sequence_name, last_value FROM duckdb_sequences()").fetchall()
    )
    rows = (
        dict(
            placed(database.name, known.schema, known.name), next_value=_following(known, counted),
            interval=known.definition["increment"], created_on=known.created_on_ms,
            owner=session.owner(SEQUENCE, database.name, known.schema, known.name),
            comment=known.definition["comment"], ordered=known.definition["ordered"],
        )
        for database, known in found
    )  # fmt: skip
    return listing(statement, rows)


def _following(known: SchemaObject, counted: Mapping[str, int | None]) -> object:
    """Return the value that a sequence gives next."""
    last = counted.get(known.definition["engine_name"])
    return known.definition["start"] if last is None else last + known.definition["increment"]


def _options(reader: Reader) -> dict[str, object]:
    found: dict[str, object] = {}
    reader.accept("WITH")
    while word := reader.accept("START", "INCREMENT", "ORDER", "NOORDER", "COMMENT"):
        if word in {"ORDER", "NOORDER"}:
            found["ordered"] = word == "ORDER"
        elif word == "COMMENT":
            reader.expect_sign("=")
            found["comment"] = reader.string()
        else:
            reader.accept("WITH" if word == "START" else "BY")
            reader.accept_sign("=")
            found[word.lower()] = reader.integer()
    reader.end()
    return found


# -- COMMENT ON, and ALTER DATABASE and ALTER SCHEMA: comments and new names -----------------------------


def comment_on(session: Session, reader: Reader) -> Result:
    """COMMENT [IF EXISTS] ON kind name IS '..', for databases, schemas, columns and what schemas hold."""
    is_tolerant = bool(reader.accept("IF EXISTS"))
    reader.expect("ON")
    kind = reader.accept("FILE FORMAT") or reader.name()
    path = reader.path(4)
    reader.expect("IS")
    text = reader.string()
    reader.end()
    session.transaction.commit()
    try:
        if kind == "COLUMN":
            _on_column(session, path, text)
        else:
            _on_object(session, kind, path, text)
    except SqlError as error:
        if is_tolerant and error.code == "002003":
            return done()
        raise
    return done()


def alter_container(session: Session, reader: Reader) -> Result:
    """ALTER DATABASE | SCHEMA [IF EXISTS] name RENAME TO new | SET COMMENT = '..' | UNSET COMMENT."""
    kind = reader.kind
    most = 1 if kind == "DATABASE" else 2
    head = reader.target(most)
    verb = reader.accept("RENAME TO", "SET", "UNSET COMMENT")
    if not verb:
        raise unsupported(f"ALTER {kind} .. {reader.ahead(2)}")
    new = reader.path(most) if verb == "RENAME TO" else ()
    properties = reader.properties(needed=True) if verb == "SET" else {"COMMENT": ""}
    if set(properties) != {"COMMENT"}:
        raise unsupported(f"ALTER {kind} .. SET {', '.join(properties)}")
    reader.end()
    session.transaction.commit()
    try:
        if verb == "RENAME TO":
            _rename(session, kind, head.path, new)
        else:
            _on_object(session, kind, head.path, properties["COMMENT"])
    except SqlError as error:
        if not head.is_tolerant or error.code != "002003":
            raise
    return done()


def _rename(session: Session, kind: str, path: tuple[str, ...], new: tuple[str, ...]) -> None:
    old = locate(session, kind, path).path
    session.require("OWNERSHIP", kind, *old)
    if kind == "DATABASE":
        session.require("CREATE DATABASE", "ACCOUNT")
    else:
        # A name alone is one of the current database, as everywhere.
        new = (new[0] if len(new) == 2 else session.current_database(), new[-1])
        if new[0] != old[0]:
            raise unsupported(f"ALTER SCHEMA .. RENAME TO another database, from {old[0]} to {new[0]}")
        session.require("CREATE SCHEMA", "DATABASE", old[0])
    session.catalog.rename(Rename(old, new))


def _on_object(session: Session, kind: str, path: tuple[str, ...], text: str) -> None:
    if kind in {"ROLE", "USER", "WAREHOUSE"}:
        raise unsupported(f"COMMENT ON {kind}; use ALTER {kind} .. SET COMMENT")
    target = locate(session, kind, path)
    session.require("OWNERSHIP", kind, *target.path)
    database = session.catalog.database(target.path[0])
    schema = target.path[1] if len(target.path) > 1 else ""
    database.objects.set_comment(kind, schema, target.path[-1], text)


def _on_column(session: Session, path: tuple[str, ...], text: str) -> None:
    if len(path) < 2:
        raise compilation_error("COMMENT ON COLUMN needs table.column.")
    database, schema, name = session.resolve(path[:-1])
    _check_column(database, schema, name, path[-1])
    session.require("OWNERSHIP", "TABLE", database.name, schema, name)
    key = column_key(name, path[-1])
    database.objects.set_comment("COLUMN", schema, key, text)


def _check_column(database: Database, schema: str, name: str, column: str) -> None:
    table = database.tables.find(schema, name)
    if table is None or name not in names(database, schema, "TABLE"):
        raise object_missing("Table", f"{database.name}.{schema}.{name}")
    if all(known.name != column for known in table.columns):
        raise invalid_identifier(column)


# -- CREATE, DROP, SHOW and DESCRIBE of views; a view is its text, expanded where a query names it -------


def create_view(session: Session, reader: Reader) -> Result:
    """CREATE [OR REPLACE] [SECURE] [TEMPORARY] VIEW [IF NOT EXISTS] name [(columns)] [COMMENT = ..] AS query.

    A temporary one ends with its session; until then other sessions see it too.
    """
    head = reader.target()
    columns, comment, keeps_grants = _views_listed(reader), "", False
    while word := reader.accept("COPY GRANTS", "COMMENT"):
        if word == "COMMENT":
            reader.accept_sign("=")
            comment = reader.string()
        else:
            keeps_grants = True
    reader.expect("AS")
    query = reader.rest()
    session.transaction.commit()
    database, schema, name = session.resolve(head.path)
    session.require("CREATE VIEW", "SCHEMA", database.name, schema)
    known = database.objects.find(VIEW, schema, name)
    if known is not None and head.is_tolerant:
        return status(f"{name} already exists, statement succeeded.")
    if database.tables.find(schema, name) is not None:
        raise exists_as("TABLE", name)
    if known is not None and not reader.is_replacing:
        raise object_exists(name)
    if known is not None:
        session.require("OWNERSHIP", VIEW, database.name, schema, name)
    definition = {
        "query": query,
        "text": reader.text,
        "columns": [[column.name, str(column.type)] for column in _columns(session, query, columns)],
        "is_secure": "SECURE" in reader.modifiers,
    }
    database.objects.put(SchemaObject(VIEW, schema, name, database.clock.now_ms(), definition))
    database.objects.set_comment(VIEW, schema, name, comment)
    grants_of = Securable(VIEW, (database.name, schema, name)) if keeps_grants else None
    session.created(VIEW, database.name, schema, name, grants_of=grants_of)
    if reader.is_temporary:
        session.temporary_views.append((database.name, schema, name))
    return status(f"View {name} successfully created.")


def show_views(session: Session, shown: Shown) -> Result:
    """SHOW [TERSE] VIEWS [LIKE] [IN ACCOUNT | DATABASE d | SCHEMA s]."""
    rows = (
        dict(
            placed(database.name, schema, view.name), created_on=view.created_on_ms,
            owner=session.owner(VIEW, database.name, schema, view.name),
            comment=database.objects.comment(VIEW, schema, view.name),
            text=session.view_text(view, database.name, schema, view.name),
            is_secure=view.definition["is_secure"],
        )
        for database, schema in schemas_in_scope(session, shown)
        for view in database.objects.of(VIEW, schema)
        if shown.matches(view.name) and session.can_see(VIEW, database.name, schema, view.name)
    )  # fmt: skip
    return listing("SHOW VIEWS", rows)


def _views_listed(reader: Reader) -> list[str] | None:
    """Read ``(name [COMMENT '..'], ..)``; None without it."""
    if not reader.accept_sign("("):
        return None
    names = [_named(reader)]
    while reader.accept_sign(","):
        names.append(_named(reader))
    reader.expect_sign(")")
    return names


def _named(reader: Reader) -> str:
    name = reader.name()
    if reader.accept("COMMENT"):
        reader.string()
    return name


def _columns(session: Session, query: str, listed: list[str] | None) -> list[Column]:
    tree = translate.parse(query)
    if not isinstance(tree, exp.Query):
        raise compilation_error("a view is a query.")
    prepared = translate.prepare(session, tree)
    columns = columns_of(session, prepared, translate.to_duckdb(prepared))
    if listed is not None:
        if len(listed) != len(columns):
            raise compilation_error(
                f"Invalid number of columns: the view has {len(listed)}, its query {len(columns)}.",
                "002020",
                "21S01",
            )
        columns = [Column(name, column.type) for name, column in zip(listed, columns, strict=True)]
    refuse_repeated([column.name for column in columns])
    return columns


def refuse_repeated(names: Sequence[str]) -> None:
    """Refuse columns whose names differ by nothing, or by case only, which the engine does not tell apart.

    :raises SqlError: 002025.
    """
    folded = [name.upper() for name in names]
    twice = next((name for name, each in zip(names, folded, strict=True) if folded.count(each) > 1), None)
    if twice is not None:
        raise compilation_error(f"duplicate column name '{twice}'", "002025", "42S21")


def columns_of(session: Session, query: exp.Expr, sql: str) -> list[Column]:
    """Return the columns of a translated query, with the lengths that they have in its tables.

    :param sql: the query as the engine reads it, which describes no lengths.
    """
    described = session.cursor.execute(f"DESCRIBE {sql}").fetchall()
    found = [Column(row[0], ColumnType.from_duckdb(str(row[1]))) for row in described]
    known = query.meta_get(types.SHOWN) or ()
    if len(known) != len(found):
        known = [(column.name, types.Type()) for column in found]
    # The engine has other names for a second column of the same name.
    return [
        Column(name.rstrip(types.MARK), own.described(column.type))
        for (name, own), column in zip(known, found, strict=True)
    ]

"""CREATE, ALTER, DROP, SHOW and DESCRIBE of sequences, and ``seq.NEXTVAL``."""

from __future__ import annotations

import dataclasses
import uuid

from sqlglot import exp

from airflow_provider_snowpipe.local.access.model import Securable
from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.engine.store import SEQUENCE, SchemaObject
from airflow_provider_snowpipe.local.errors import (
    compilation_error,
    object_exists,
    object_missing,
    unsupported,
)
from airflow_provider_snowpipe.local.identifiers import literal
from airflow_provider_snowpipe.local.sql.reader import Reader
from airflow_provider_snowpipe.local.sql.results import Result, listing, status
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.sql.show import Shown, schemas_in_scope

_SHOWN = (
    "name", "database_name", "schema_name", "next_value", "interval", "created_on", "owner", "comment",
    "ordered",
)  # fmt: skip


def create_sequence(session: Session, reader: Reader) -> Result:
    """CREATE [OR REPLACE] SEQUENCE [IF NOT EXISTS] name [START n] [INCREMENT n] [ORDER | NOORDER]."""
    head = reader.target()
    options = _options(reader)
    session.commit()
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
            f"CREATE SEQUENCE {_engine_path(database, made)} START {definition['start']} "
            f"INCREMENT {definition['increment']} MINVALUE -9223372036854775808"
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
    session.commit()
    database, schema, name = session.resolve(head.path)
    known = database.objects.find(SEQUENCE, schema, name)
    if known is None:
        if head.is_tolerant:
            return status("Statement executed successfully.")
        raise object_missing("Sequence", f"{database.name}.{schema}.{name}")
    session.require("OWNERSHIP", SEQUENCE, database.name, schema, name)
    definition = {**known.definition, **changed}
    database.objects.put(dataclasses.replace(known, definition=definition))
    return status("Statement executed successfully.")


def drop_sequence(session: Session, reader: Reader) -> Result:
    """DROP SEQUENCE [IF EXISTS] name; defaults that use it go on counting."""
    head = reader.last_target()
    session.commit()
    database, schema, name = session.resolve(head.path)
    if database.objects.find(SEQUENCE, schema, name) is None:
        raise object_missing("Sequence", f"{database.name}.{schema}.{name}")
    session.require("OWNERSHIP", SEQUENCE, database.name, schema, name)
    database.objects.remove(SEQUENCE, schema, name)
    session.dropped(SEQUENCE, database.name, schema, name)
    return status(f"{name} successfully dropped.")


def show_sequences(session: Session, shown: Shown) -> Result:
    """SHOW SEQUENCES [LIKE] [IN ACCOUNT | DATABASE d | SCHEMA s]."""
    found = [
        (database, known)
        for database, schema in schemas_in_scope(session, shown)
        for known in database.objects.of(SEQUENCE, schema)
        if shown.matches(known.name) and session.can_see(SEQUENCE, database.name, schema, known.name)
    ]
    return _listed(session, found)


def describe_sequence(session: Session, reader: Reader) -> Result:
    """DESCRIBE SEQUENCE name."""
    database, schema, name = session.resolve(reader.last_path())
    known = database.objects.find(SEQUENCE, schema, name)
    if known is None or not session.can_see(SEQUENCE, database.name, schema, name):
        raise object_missing("Sequence", f"{database.name}.{schema}.{name}")
    return _listed(session, [(database, known)])


def next_value(session: Session, node: exp.Expr) -> exp.Expr:
    """Return the engine's call for ``[[database.]schema.]seq.NEXTVAL``, or the node as it is."""
    if not isinstance(node, exp.Column) or node.name != "NEXTVAL" or not node.table:
        return node
    path = tuple(part.name for part in node.parts[:-1])
    database, schema, name = session.resolve(path)
    known = database.objects.find(SEQUENCE, schema, name)
    if known is None:
        return node
    session.require("USAGE", SEQUENCE, database.name, schema, name)
    return exp.Anonymous(this="nextval", expressions=[exp.Literal.string(_engine_path(database, known))])


def default_of(session: Session, expression: exp.Expr) -> str | None:
    """Return the engine's default of a column whose DEFAULT is ``seq.NEXTVAL``, or None."""
    if not isinstance(expression, exp.Column) or expression.name.upper() != "NEXTVAL":
        return None
    path = tuple(
        part.name if part.args.get("quoted") else part.name.upper() for part in expression.parts[:-1]
    )
    database, schema, name = session.resolve(path)
    known = database.objects.find(SEQUENCE, schema, name)
    if known is None:
        raise object_missing("Sequence", f"{database.name}.{schema}.{name}")
    session.require("USAGE", SEQUENCE, database.name, schema, name)
    return f"nextval({literal(_engine_path(database, known))})"


def _engine_path(database: Database, known: SchemaObject) -> str:
    return database.names.hidden(str(known.definition["engine_name"]))


def _listed(session: Session, found: list[tuple[Database, SchemaObject]]) -> Result:
    rows = [
        (
            known.name,
            database.name,
            known.schema,
            known.definition["start"],
            known.definition["increment"],
            known.created_on_ms,
            session.catalog.access.owner(Securable(SEQUENCE, (database.name, known.schema, known.name))),
            known.definition["comment"],
            "Y" if known.definition["ordered"] else "N",
        )
        for database, known in found
    ]
    return listing(_SHOWN, rows, ("next_value", "interval"))


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

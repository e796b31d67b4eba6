"""CREATE, ALTER, DROP, SHOW and DESCRIBE of file formats."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from airflow_provider_snowpipe.local.access.model import Securable
from airflow_provider_snowpipe.local.errors import (
    SqlError,
    compilation_error,
    object_exists,
    object_missing,
    unsupported,
)
from airflow_provider_snowpipe.local.sql.reader import Reader
from airflow_provider_snowpipe.local.sql.results import Result, listing, status
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.sql.show import Shown, schemas_in_scope
from airflow_provider_snowpipe.local.sql.stages import typed
from airflow_provider_snowpipe.local.stages.definition import (
    FileFormatDefinition,
    Setting,
    invalid_value,
    read_file_format,
)
from airflow_provider_snowpipe.local.stages.location import find_format

_DONE = "Statement executed successfully."
_SHOWN = (
    "name", "database_name", "schema_name", "type", "owner", "comment", "format_options", "owner_role_type",
)  # fmt: skip


def create_file_format(session: Session, reader: Reader) -> Result:
    """CREATE [OR REPLACE] [TEMPORARY] FILE FORMAT [IF NOT EXISTS] name [TYPE = ..] [options] ..."""
    head = reader.target()
    settings, comment = _settings(reader)
    session.commit()
    database, schema, name = session.resolve(head.path)
    key = (database.name, schema, name)
    if head.is_tolerant and _find(session, head.path) is not None:
        return status(f"{name} already exists, statement succeeded.")
    new = FileFormatDefinition(
        *key,
        database.clock.now_ms(),
        read_file_format(settings).settings(),
        comment,
        reader.is_temporary,
    )
    if not reader.is_temporary:
        session.require("CREATE FILE FORMAT", "SCHEMA", database.name, schema)
        if reader.is_replacing and database.stages.format(schema, name) is not None:
            session.require("OWNERSHIP", "FILE FORMAT", *key)
        database.stages.put_format(new, replace=reader.is_replacing)
        session.created("FILE FORMAT", *key)
    elif key in session.temporary.formats and not reader.is_replacing:
        raise object_exists(str(new))
    else:
        session.temporary.formats[key] = new
    return status(f"File format {name} successfully created.")


def alter_file_format(session: Session, reader: Reader) -> Result:
    """ALTER FILE FORMAT [IF EXISTS] name SET options | RENAME TO new | UNSET COMMENT."""
    head = reader.target()
    verb = reader.accept("RENAME TO", "SET", "UNSET COMMENT")
    if not verb:
        raise unsupported(f"ALTER FILE FORMAT .. {reader.word}")
    renamed = reader.path() if verb == "RENAME TO" else ()
    settings, comment = _settings(reader) if verb == "SET" else ({}, None)
    reader.end()
    session.commit()
    old = _find(session, head.path) if head.is_tolerant else find_format(session, head.path)
    if old is None:
        return status(_DONE)
    _require_ownership(session, old)
    if verb == "RENAME TO":
        target, schema, name = session.resolve(renamed)
        if target.name != old.database:
            raise unsupported("ALTER FILE FORMAT .. RENAME TO another database")
        new = dataclasses.replace(old, schema=schema, name=name)
    elif verb == "SET":
        new = _changed(old, settings, comment)
    else:
        new = dataclasses.replace(old, comment=None)
    _change(session, old, new)
    return status(_DONE)


def drop_file_format(session: Session, reader: Reader) -> Result:
    """DROP FILE FORMAT [IF EXISTS] name."""
    head = reader.last_target()
    session.commit()
    known = find_format(session, head.path)
    if known.temporary:
        del session.temporary.formats[known.database, known.schema, known.name]
    else:
        _require_ownership(session, known)
        session.catalog.database(known.database).stages.drop_format(known)
        session.dropped("FILE FORMAT", known.database, known.schema, known.name)
    return status(f"{known.name} successfully dropped.")


def show_file_formats(session: Session, shown: Shown) -> Result:
    """SHOW FILE FORMATS [LIKE ..] [IN ACCOUNT | DATABASE d | SCHEMA s]."""
    scope = {(database.name, schema): database for database, schema in schemas_in_scope(session, shown)}
    databases = {database.name: database for database in scope.values()}
    formats = [
        *(known for database in databases.values() for known in database.stages.formats),
        *session.temporary.formats.values(),
    ]
    rows: list[tuple[Any, ...]] = [
        (
            known.created_on_ms,
            known.name,
            known.database,
            known.schema,
            known.settings["TYPE"],
            session.catalog.access.owner(_securable(known)),
            known.comment or "",
            _options(known),
            "ROLE",
        )
        for known in formats
        if (known.database, known.schema) in scope
        and shown.matches(known.name)
        and _is_visible(session, known)
    ]
    return listing(("created_on", *_SHOWN), sorted(rows, key=lambda row: tuple(row[1:4])))


def describe_file_format(session: Session, reader: Reader) -> Result:
    """DESCRIBE FILE FORMAT name."""
    known = find_format(session, reader.last_path())
    if not _is_visible(session, known):
        raise object_missing("File format", str(known))
    described = read_file_format({}, known.settings)
    rows: list[Sequence[Any]] = [
        ("TYPE", "String", described.type, "CSV"),
        *((name, *typed(described[name]), typed(described.default(name))[1]) for name in described),
    ]
    return listing(("property", "property_type", "property_value", "property_default"), rows)


def _securable(known: FileFormatDefinition) -> Securable:
    return Securable("FILE FORMAT", (known.database, known.schema, known.name))


def _is_visible(session: Session, known: FileFormatDefinition) -> bool:
    return known.temporary or session.can_see("FILE FORMAT", known.database, known.schema, known.name)


def _require_ownership(session: Session, known: FileFormatDefinition) -> None:
    if not known.temporary:
        session.require("OWNERSHIP", "FILE FORMAT", known.database, known.schema, known.name)


def _options(known: FileFormatDefinition) -> str:
    described = read_file_format({}, known.settings)
    return json.dumps({"TYPE": described.type, **dict(described)})


def _settings(reader: Reader) -> tuple[dict[str, Setting], str | None]:
    settings = reader.settings()
    reader.end()
    comment = settings.pop("COMMENT", None)
    if comment is not None and not isinstance(comment, str):
        raise invalid_value("COMMENT", comment, "a string")
    return settings, None if comment is None else str(comment)


def _changed(
    old: FileFormatDefinition, settings: dict[str, Setting], comment: str | None
) -> FileFormatDefinition:
    if str(settings.get("TYPE", old.settings["TYPE"])).upper() != old.settings["TYPE"]:
        raise compilation_error("the TYPE of a file format cannot be changed; create another one.")
    merged = read_file_format(settings, old.settings).settings()
    return dataclasses.replace(old, settings=merged, comment=old.comment if comment is None else comment)


def _find(session: Session, path: tuple[str, ...]) -> FileFormatDefinition | None:
    try:
        return find_format(session, path)
    except SqlError as error:
        if error.code == "002003":
            return None
        raise


def _change(session: Session, old: FileFormatDefinition, new: FileFormatDefinition) -> None:
    if not old.temporary:
        session.catalog.database(old.database).stages.change_format(old, new)
        if _securable(old) != _securable(new):
            session.catalog.access.renamed(_securable(old), _securable(new))
        return
    key = (new.database, new.schema, new.name)
    if key != (old.database, old.schema, old.name):
        if key in session.temporary.formats:
            raise object_exists(str(new))
        del session.temporary.formats[old.database, old.schema, old.name]
    session.temporary.formats[key] = new

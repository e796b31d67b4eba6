"""References to staged files: ``@stage/path``, ``@~/path``, ``@%table/path`` and bare URLs, resolved."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

from snowpipe_local.errors import compilation_error, object_missing
from snowpipe_local.sql.reader import Reader
from snowpipe_local.sql.session import Session
from snowpipe_local.stages.definition import (
    FileFormat,
    FileFormatDefinition,
    OptionValue,
    Setting,
    StageDefinition,
    Word,
    invalid_value,
    read_file_format,
    read_literal,
)
from snowpipe_local.stages.location import StageLocation
from snowpipe_local.stages.storage import Staged, loopback_endpoint, user_identity
from snowpipe_local.tables import read_path

# -- Named stages and file formats, found by name: temporary ones of the session first -------------------


def resolve_file_format(
    session: Session, settings: Mapping[str, Setting], stage_format: Mapping[str, OptionValue] | None = None
) -> FileFormat:
    """Resolve FILE_FORMAT: options of the statement, FORMAT_NAME, the stage's format, defaults.

    Each completes what the one before it left open.

    :raises SqlError: for an unknown format, option or value.
    """
    inherited = [stage_format] if stage_format else []
    own = dict(settings)
    named = own.pop("FORMAT_NAME", None)
    if named is not None:
        found = find_defined(session, FileFormatDefinition, format_path(named))
        if not found.temporary:
            session.require("USAGE", "FILE FORMAT", found.database, found.schema, found.name)
        inherited.insert(0, found.settings)
    return read_file_format(own, *inherited)


def format_path(value: Setting) -> tuple[str, ...]:
    """Return the dotted name that FORMAT_NAME holds, as identifier or as string.

    :raises SqlError: for something else.
    """
    if not isinstance(value, str) or not value:
        raise invalid_value("FORMAT_NAME", value, "the name of a file format")
    path, rest = read_path(value)
    if rest:
        raise invalid_value("FORMAT_NAME", value, "the name of a file format")
    return path


def find_defined(session: Session, kind: type[Staged], path: tuple[str, ...]) -> Staged:
    """Return a named stage or file format, temporary ones of the session first.

    :raises SqlError: when it does not exist.
    """
    database, schema, name = session.resolve(path)
    found = session.temporary.of(kind).get((database.name, schema, name))
    found = found or database.stages.of(kind).find(schema, name)
    if found is None:
        raise object_missing(kind.WORD, f"{database.name}.{schema}.{name}")
    return found


def stage_format(session: Session, stage: StageDefinition) -> dict[str, OptionValue]:
    """Return the format options of a stage, with TYPE; empty when it has none."""
    if stage.format_name:
        path = (stage.database, stage.schema, *stage.format_name)[-3:]
        inherited = find_defined(session, FileFormatDefinition, path).settings
        return {**inherited, **stage.file_format}
    return dict(stage.file_format)


# -- References in statements, resolved ------------------------------------------------------------------

_CREDENTIALS = ("AWS_KEY_ID", "AWS_SECRET_KEY", "AWS_TOKEN")
# A path ends at a blank, or at what can follow a reference in a statement.
_PATH = re.compile(r"/[^\s'(),;]*")
# A table's stage has % before the table's name, or as the first character inside of its quotes.
_PART = r'(?:"(?:[^"]|"")+"|[A-Za-z_][\w$]*)'
_STAGE = re.compile(rf"(?P<owner>(?:{_PART}\s*\.\s*(?:\.\s*)?)*)(?P<of_table>%?)(?P<name>{_PART})")


def resolve_location(session: Session, text: str) -> tuple[StageLocation, str]:
    """Read and resolve the reference at the start of a text.

    :param text: SQL text that starts with ``@..``, ``'@..'``, ``'s3://..'`` or ``'file://..'``.
    :returns: the location, and the rest of the text.
    :raises SqlError: for a syntax error, or a stage or table that does not exist.
    """
    stripped = text.lstrip()
    if not stripped.startswith("'"):
        return _reference(session, stripped, is_quoted=False)
    written, rest = read_literal(stripped)
    if written.startswith("@"):
        location, more = _reference(session, written, is_quoted=True)
        if more:
            raise compilation_error(f"invalid stage reference '{written}'.")
        return location, rest
    return _bare_url(session, written, None), rest


def read_location(session: Session, reader: Reader) -> StageLocation:
    """Read and resolve the reference that comes next in a statement.

    :raises SqlError: as :func:`resolve_location`.
    """
    location, rest = resolve_location(session, reader.text[reader.position :])
    reader.seek(len(reader.text.rstrip()) - len(rest))
    return location


def refuse_parsed_header(file_format: FileFormat) -> None:
    """Refuse PARSE_HEADER where the columns of files have no names.

    :raises SqlError: 001003.
    """
    if file_format.type == "CSV" and file_format["PARSE_HEADER"]:
        raise compilation_error(
            "Invalid file format: PARSE_HEADER is only allowed for CSV INFER_SCHEMA and MATCH_BY_COLUMN_NAME."
        )


def with_settings(
    session: Session, location: StageLocation, settings: Mapping[str, Setting]
) -> StageLocation:
    """Apply CREDENTIALS, ENDPOINT and STORAGE_INTEGRATION of a COPY statement to a bare URL."""
    if location.kind != "URL":
        return location
    defined = access_settings(StageDefinition("", "", "", 0, url=location.base + location.prefix), settings)
    return _bare_url(session, location.base + location.prefix, defined)


def access_settings(stage: StageDefinition, settings: Mapping[str, Setting]) -> StageDefinition:
    """Return a stage with the options that define how its bucket is reached.

    :raises SqlError: for an endpoint that is not loopback, or credentials of another kind.
    """
    read = {field: read(settings[name]) for name, (field, read) in _ACCESS.items() if name in settings}
    return dataclasses.replace(stage, **read)


def _reference(session: Session, text: str, *, is_quoted: bool) -> tuple[StageLocation, str]:
    if not text.startswith("@"):
        raise compilation_error(f"syntax error: expected a stage at '{text[:30]}'.")
    body = text[1:]
    if body.startswith("~"):
        identity = user_identity(session.user)
        area = session.catalog.storage.internal(identity)
        return _with_path(StageLocation("@~", "USER", area, ""), body[1:], is_quoted)
    match = _STAGE.match(body)
    if match is None:
        raise compilation_error(f"syntax error: expected the name of a stage at '{text[:30]}'.")
    path, rest = read_path(match["owner"] + match["name"])[0], body[match.end() :]
    if match["of_table"]:
        return _with_path(_table_stage(session, path), rest, is_quoted)
    if match["name"].startswith('"%'):
        return _with_path(_table_stage(session, (*path[:-1], path[-1][1:])), rest, is_quoted)
    return _with_path(location_of(session, find_defined(session, StageDefinition, path)), rest, is_quoted)


def _table_stage(session: Session, table: tuple[str, ...]) -> StageLocation:
    database, schema, name = session.resolve(table)
    known = database.tables.find(schema, name)
    if known is None:
        raise object_missing("Table", f"{database.name}.{schema}.{name}")
    path = (database.name, schema, name)
    area = session.catalog.storage.internal(known.folder)
    stored = database.objects.table_option(schema, name, "stage")
    own = StageDefinition.from_row(database.name, schema, name, 0, stored) if stored else None
    return StageLocation(
        f"@{database.name}.{schema}.%{name}",
        "TABLE",
        area,
        "",
        file_format=stage_format(session, own) if own else {},
        copy_options=own.copy_options if own else {},
        table=path,
    )


def location_of(session: Session, stage: StageDefinition) -> StageLocation:
    """Return the root of a named stage."""
    defaults = stage_format(session, stage)
    if stage.url is None:
        area = session.catalog.storage.internal(stage.identity)
        base, prefix, kind = f"{stage.name.lower()}/", "", "INTERNAL"
        return StageLocation(f"@{stage}", kind, area, base, prefix, stage, defaults, stage.copy_options)
    external = session.catalog.storage.external(stage.url, stage)
    return StageLocation(f"@{stage}", "EXTERNAL", *external, stage, defaults, stage.copy_options)


def _with_path(location: StageLocation, rest: str, is_quoted: bool) -> tuple[StageLocation, str]:
    if is_quoted:
        path, rest = rest, ""
        if path and not path.startswith("/"):
            raise compilation_error(f"invalid stage reference at '{path[:30]}'; a path begins with '/'.")
    else:
        match = _PATH.match(rest)
        path = match[0] if match else ""
        rest = rest[len(path) :].strip()
    inner = path.lstrip("/")
    if any(part in {".", ".."} for part in inner.split("/")) or "\0" in inner or "\\" in inner:
        raise compilation_error(
            f"invalid path '{inner[:120]}': '.', '..', NUL and backslash are not allowed."
        )
    if not path:
        return location, rest
    prefix = location.prefix + (path if location.prefix else inner)
    return dataclasses.replace(location, name=f"{location.name}/{inner}", prefix=prefix), rest


def _bare_url(session: Session, url: str, definition: StageDefinition | None) -> StageLocation:
    return StageLocation(url, "URL", *session.catalog.storage.external(url, definition), definition)


def _credentials(value: Setting) -> dict[str, str]:
    if not isinstance(value, Mapping) or not set(value) <= set(_CREDENTIALS):
        raise invalid_value("CREDENTIALS", "****", f"({', '.join(f'{name} = ..' for name in _CREDENTIALS)})")
    if value and not {"AWS_KEY_ID", "AWS_SECRET_KEY"} <= set(value):
        raise invalid_value("CREDENTIALS", "****", "AWS_KEY_ID together with AWS_SECRET_KEY")
    return {name: str(entry) for name, entry in value.items()}


def _object_name(value: Setting) -> str:
    if not isinstance(value, str):
        raise invalid_value("STORAGE_INTEGRATION", value, "a name")
    return read_path(value)[0][-1] if isinstance(value, Word) else str(value)


# Field of a stage and what reads its value, by the option.
_ACCESS: dict[str, tuple[str, Callable[[Setting], Any]]] = {
    "ENDPOINT": ("endpoint", lambda value: loopback_endpoint(str(value))),
    "REGION": ("region", str),
    "STORAGE_INTEGRATION": ("storage_integration", _object_name),
    "CREDENTIALS": ("credentials", _credentials),
}


# -- Who may read and write staged files ("Access control privileges", stage privileges) -----------------


def require_access(session: Session, location: StageLocation, privilege: str) -> None:
    """Raise unless the session may use the files of a location.

    :param privilege: READ to list, download and load them; WRITE to upload, delete and purge.
    :raises SqlError: without it on an internal stage, USAGE on an external one, OWNERSHIP of a table. What a
        URL or a temporary stage leads to outside of the service needs the right to make a stage for it.
    """
    stage = location.stage
    if location.table is not None:
        session.require("OWNERSHIP", "TABLE", *location.table)
    elif location.kind == "URL" or (stage is not None and stage.temporary and location.is_external):
        own = (session.database or "", session.schema or "")
        schema = stage.path[:2] if stage is not None and stage.temporary else own
        needed = ("CREATE STAGE", "SCHEMA", *schema) if all(schema) else ("CREATE INTEGRATION", "ACCOUNT")
        session.require(*needed)
    elif stage is not None and not stage.temporary:
        session.require("USAGE" if location.is_external else privilege, "STAGE", *stage.path)

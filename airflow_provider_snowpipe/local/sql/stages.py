"""CREATE, ALTER, DROP, SHOW and DESCRIBE of stages."""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from collections.abc import Sequence
from typing import Any

from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.errors import (
    SqlError,
    compilation_error,
    object_exists,
    object_missing,
    unsupported,
)
from airflow_provider_snowpipe.local.identifiers import read_path
from airflow_provider_snowpipe.local.sql.bindings import Bindings
from airflow_provider_snowpipe.local.sql.head import Head, read_head
from airflow_provider_snowpipe.local.sql.results import OTHER, Result, ResultColumn, already_dropped, status
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.sql.show import matches, schemas_in_scope
from airflow_provider_snowpipe.local.sql.stage_settings import with_settings
from airflow_provider_snowpipe.local.stages.definition import StageDefinition
from airflow_provider_snowpipe.local.stages.formats import OptionValue, read_file_format
from airflow_provider_snowpipe.local.stages.named import find_stage
from airflow_provider_snowpipe.local.stages.privileges import securable
from airflow_provider_snowpipe.local.stages.settings import (
    read_settings,
)
from airflow_provider_snowpipe.local.types import TEXT, TIMESTAMP_LTZ

_DONE = "Statement executed successfully."
_TAGS = re.compile(r"(?:WITH\s+)?TAG\s*\([^()]*\)\s*\Z", re.IGNORECASE)
_RENAME = re.compile(r"RENAME\s+TO\s+(?P<name>.*)", re.IGNORECASE | re.DOTALL)
_SET = re.compile(r"SET\s+(?P<settings>.*)", re.IGNORECASE | re.DOTALL)
_UNSET = re.compile(r"UNSET\s+COMMENT\s*\Z", re.IGNORECASE)
_SHOWN = (
    "name", "database_name", "schema_name", "url", "has_credentials", "has_encryption_key", "owner",
    "comment", "region", "type", "cloud", "notification_channel", "storage_integration", "endpoint",
    "owner_role_type", "directory_enabled",
)  # fmt: skip
_DESCRIBED = ("parent_property", "property", "property_type", "property_value", "property_default")


def create_stage(session: Session, text: str, _bindings: Bindings) -> Result:
    """CREATE [OR REPLACE] [TEMPORARY] STAGE [IF NOT EXISTS] name [URL = ..] [FILE_FORMAT = (..)] .."""
    session.commit()
    head = read_head(text)
    database, schema, name = session.resolve(head.path)
    if head.is_tolerant and _exists(session, database, schema, name):
        return status(f"{name} already exists, statement succeeded.")
    settings, rest = read_settings(_TAGS.sub("", head.rest))
    if rest:
        raise compilation_error(f"syntax error in CREATE STAGE at '{rest[:30]}'.")
    empty = StageDefinition(database.name, schema, name, database.clock.now_ms(), temporary=head.is_temporary)
    stage = with_settings(session, empty, settings)
    if head.is_temporary:
        _put_temporary(session, head, stage)
    else:
        session.require("CREATE STAGE", "SCHEMA", database.name, schema)
        if head.is_replacing and database.stages.stage(schema, name) is not None:
            session.require("OWNERSHIP", "STAGE", database.name, schema, name)
        database.stages.put_stage(stage, replace=head.is_replacing)
        session.created("STAGE", database.name, schema, name)
    return status(f"Stage area {name} successfully created.")


def alter_stage(session: Session, text: str, _bindings: Bindings) -> Result:
    """ALTER STAGE [IF EXISTS] name SET .. | RENAME TO new | UNSET COMMENT."""
    session.commit()
    head = read_head(text)
    stage = _find(session, head)
    if stage is None:
        return status(_DONE)
    _require_ownership(session, stage)
    renaming, setting = _RENAME.match(head.rest), _SET.match(head.rest)
    if renaming:
        target, schema, name = session.resolve(read_path(renaming["name"])[0])
        if target.name != stage.database:
            raise unsupported("ALTER STAGE .. RENAME TO another database")
        changed = dataclasses.replace(stage, schema=schema, name=name)
    elif setting:
        settings, rest = read_settings(_TAGS.sub("", setting["settings"]))
        if rest or not settings:
            raise compilation_error(f"syntax error in ALTER STAGE at '{rest[:30]}'.")
        if "URL" in settings and not stage.is_external:
            raise compilation_error(f"the internal stage {stage} cannot get a URL; create another stage.")
        changed = with_settings(session, stage, settings)
    elif _UNSET.match(head.rest):
        changed = dataclasses.replace(stage, comment=None)
    else:
        raise unsupported(f"ALTER STAGE .. {' '.join(head.rest.split()[:2])}")
    _change(session, stage, changed)
    return status(_DONE)


def drop_stage(session: Session, text: str, _bindings: Bindings) -> Result:
    """DROP STAGE [IF EXISTS] name; the files of an internal stage are deleted."""
    session.commit()
    head = read_head(text)
    stage = _find(session, head)
    if stage is None:
        return already_dropped(head.path[-1])
    if stage.temporary:
        del session.temporary.stages[stage.database, stage.schema, stage.name]
        session.catalog.storage.remove([stage.identity])
    else:
        _require_ownership(session, stage)
        session.catalog.database(stage.database).stages.drop_stage(stage)
        session.dropped("STAGE", stage.database, stage.schema, stage.name)
    return status(f"{stage.name} successfully dropped.")


def show_stages(session: Session, text: str, _bindings: Bindings) -> Result:
    """SHOW STAGES [LIKE ..] [IN ACCOUNT | DATABASE d | SCHEMA s]."""
    scope = {(database.name, schema): database for database, schema in schemas_in_scope(session, text)}
    databases = {database.name: database for database in scope.values()}
    stages = [
        *(stage for database in databases.values() for stage in database.stages.stages),
        *session.temporary.stages.values(),
    ]
    columns = (ResultColumn("created_on", TIMESTAMP_LTZ), *(ResultColumn(name, TEXT) for name in _SHOWN))
    rows = [
        _shown(session, stage)
        for stage in stages
        if (stage.database, stage.schema) in scope
        and matches(text, stage.name)
        and _is_visible(session, stage)
    ]
    return Result(columns, [*sorted(rows, key=lambda row: row[1:4])], OTHER)


def describe_stage(session: Session, text: str, _bindings: Bindings) -> Result:
    """DESCRIBE STAGE name; credentials are masked."""
    stage = find_stage(session, read_head(text).path)
    if not _is_visible(session, stage):
        raise object_missing("Stage", str(stage))
    rows: list[Sequence[Any]] = [
        *_format_rows(stage),
        *(("STAGE_COPY_OPTIONS", name, *typed(value), "") for name, value in stage.copy_options.items()),
        ("STAGE_LOCATION", "URL", "String", f'["{stage.url}"]' if stage.url else "", ""),
        ("STAGE_LOCATION", "ENDPOINT", "String", stage.endpoint or "", ""),
        ("STAGE_INTEGRATION", "STORAGE_INTEGRATION", "String", stage.storage_integration or "", ""),
        *(("STAGE_CREDENTIALS", name, "String", "****", "") for name in sorted(stage.credentials)),
        ("DIRECTORY", "ENABLE", "Boolean", str(stage.directory).lower(), "false"),
    ]
    return Result(tuple(ResultColumn(name) for name in _DESCRIBED), rows, OTHER)


def typed(value: OptionValue) -> tuple[str, str]:
    """Return type and text of an option, as DESCRIBE shows them."""
    if isinstance(value, bool):
        return "Boolean", str(value).lower()
    if isinstance(value, int):
        return "Integer", str(value)
    if isinstance(value, tuple):
        return "List", "[" + ", ".join(_escaped(entry) for entry in value) + "]"
    return "String", "NONE" if value is None else _escaped(value)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")


def _format_rows(stage: StageDefinition) -> list[tuple[str, ...]]:
    if stage.format_name:
        return [("STAGE_FILE_FORMAT", "FORMAT_NAME", "String", ".".join(stage.format_name), "")]
    own = dict(stage.file_format)
    described = read_file_format({"TYPE": str(own.pop("TYPE", "CSV"))}, stage.file_format)
    return [
        ("STAGE_FILE_FORMAT", "TYPE", "String", described.type, "CSV"),
        *(
            ("STAGE_FILE_FORMAT", name, *typed(described[name]), typed(described.default(name))[1])
            for name in described
        ),
    ]


def _is_visible(session: Session, stage: StageDefinition) -> bool:
    return stage.temporary or session.can_see("STAGE", stage.database, stage.schema, stage.name)


def _require_ownership(session: Session, stage: StageDefinition) -> None:
    if not stage.temporary:
        session.require("OWNERSHIP", "STAGE", stage.database, stage.schema, stage.name)


def _shown(session: Session, stage: StageDefinition) -> tuple[Any, ...]:
    kind = "EXTERNAL" if stage.is_external else "INTERNAL"
    return (
        dt.datetime.fromtimestamp(stage.created_on_ms / 1000, dt.UTC),
        stage.name,
        stage.database,
        stage.schema,
        stage.url or "",
        "Y" if stage.credentials else "N",
        "N",
        session.catalog.access.owner(securable(stage)),
        stage.comment or "",
        stage.region,
        f"{kind} TEMPORARY" if stage.temporary else kind,
        stage.cloud,
        None,
        stage.storage_integration,
        stage.endpoint,
        "ROLE",
        "Y" if stage.directory else "N",
    )


def _exists(session: Session, database: Database, schema: str, name: str) -> bool:
    key = (database.name, schema, name)
    return key in session.temporary.stages or database.stages.stage(schema, name) is not None


def _find(session: Session, head: Head) -> StageDefinition | None:
    try:
        return find_stage(session, head.path)
    except SqlError as error:
        if head.is_tolerant and error.code == "002003":
            return None
        raise


def _put_temporary(session: Session, head: Head, stage: StageDefinition) -> None:
    key = (stage.database, stage.schema, stage.name)
    old = session.temporary.stages.get(key)
    if old is not None and not head.is_replacing:
        raise object_exists(stage.name)
    session.catalog.storage.create(stage.identity)
    session.temporary.stages[key] = stage
    if old is not None:
        session.catalog.storage.remove([old.identity])


def _change(session: Session, old: StageDefinition, new: StageDefinition) -> None:
    if not old.temporary:
        session.catalog.database(old.database).stages.change_stage(old, new)
        if securable(old) != securable(new):
            session.catalog.access.renamed(securable(old), securable(new))
        return
    key = (new.database, new.schema, new.name)
    if key != (old.database, old.schema, old.name):
        if key in session.temporary.stages:
            raise object_exists(str(new))
        del session.temporary.stages[old.database, old.schema, old.name]
    session.temporary.stages[key] = new

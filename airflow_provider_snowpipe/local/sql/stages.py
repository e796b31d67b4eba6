"""CREATE, ALTER, DROP, SHOW and DESCRIBE of stages."""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.errors import SqlError, compilation_error, object_exists, unsupported
from airflow_provider_snowpipe.local.identifiers import read_path
from airflow_provider_snowpipe.local.sql.bindings import Bindings
from airflow_provider_snowpipe.local.sql.head import Head, read_head
from airflow_provider_snowpipe.local.sql.results import OTHER, Result, ResultColumn, status
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.sql.show import matches, schemas_in_scope
from airflow_provider_snowpipe.local.stages.definition import StageDefinition
from airflow_provider_snowpipe.local.stages.formats import OptionValue, read_file_format
from airflow_provider_snowpipe.local.stages.location import access_settings
from airflow_provider_snowpipe.local.stages.named import find_format, find_stage, format_path
from airflow_provider_snowpipe.local.stages.settings import (
    Setting,
    invalid_parameter,
    invalid_value,
    read_settings,
)
from airflow_provider_snowpipe.local.types import TEXT, TIMESTAMP_LTZ

_DONE = "Statement executed successfully."
_SETTINGS = frozenset(
    {
        "URL", "ENDPOINT", "REGION", "STORAGE_INTEGRATION", "CREDENTIALS", "FILE_FORMAT", "COPY_OPTIONS",
        "COMMENT", "DIRECTORY", "ENCRYPTION", "AWS_ACCESS_POINT_ARN", "USE_PRIVATELINK_ENDPOINT",
    }
)  # fmt: skip
_EXTERNAL_ONLY = ("ENDPOINT", "STORAGE_INTEGRATION", "CREDENTIALS")
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
    stage = _with_settings(session, empty, settings)
    if head.is_temporary:
        _put_temporary(session, head, stage)
    else:
        database.stages.put_stage(stage, replace=head.is_replacing)
    return status(f"Stage area {name} successfully created.")


def alter_stage(session: Session, text: str, _bindings: Bindings) -> Result:
    """ALTER STAGE [IF EXISTS] name SET .. | RENAME TO new | UNSET COMMENT."""
    session.commit()
    head = read_head(text)
    stage = _find(session, head)
    if stage is None:
        return status(_DONE)
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
        changed = _with_settings(session, stage, settings)
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
        return status(f"Drop statement executed successfully ({head.path[-1]} already dropped).")
    if stage.temporary:
        del session.temporary.stages[stage.database, stage.schema, stage.name]
        session.catalog.storage.remove([stage.identity])
    else:
        session.catalog.database(stage.database).stages.drop_stage(stage)
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
        _shown(stage)
        for stage in stages
        if (stage.database, stage.schema) in scope and matches(text, stage.name)
    ]
    return Result(columns, [*sorted(rows, key=lambda row: row[1:4])], OTHER)


def describe_stage(session: Session, text: str, _bindings: Bindings) -> Result:
    """DESCRIBE STAGE name; credentials are masked."""
    stage = find_stage(session, read_head(text).path)
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


def _shown(stage: StageDefinition) -> tuple[Any, ...]:
    kind = "EXTERNAL" if stage.is_external else "INTERNAL"
    return (
        dt.datetime.fromtimestamp(stage.created_on_ms / 1000, dt.UTC),
        stage.name,
        stage.database,
        stage.schema,
        stage.url or "",
        "Y" if stage.credentials else "N",
        "N",
        "ACCOUNTADMIN",
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


def _with_settings(
    session: Session, stage: StageDefinition, settings: Mapping[str, Setting]
) -> StageDefinition:
    for name in settings:
        if name not in _SETTINGS:
            raise invalid_parameter(name)
    if "URL" in settings:
        stage = dataclasses.replace(stage, url=_url(session, settings["URL"]))
    if stage.url is None and any(name in settings for name in _EXTERNAL_ONLY):
        raise compilation_error("ENDPOINT, STORAGE_INTEGRATION and CREDENTIALS need a stage with URL.")
    stage = access_settings(stage, settings)
    if "COMMENT" in settings:
        stage = dataclasses.replace(stage, comment=str(settings["COMMENT"]))
    if "DIRECTORY" in settings:
        stage = dataclasses.replace(stage, directory=_is_enabled(settings["DIRECTORY"]))
    if "COPY_OPTIONS" in settings:
        stage = dataclasses.replace(stage, copy_options=_copy_options(settings["COPY_OPTIONS"]))
    if "FILE_FORMAT" in settings:
        stage = _with_format(session, stage, settings["FILE_FORMAT"])
    return stage


def _url(session: Session, value: Setting) -> str:
    if not isinstance(value, str):
        raise invalid_value("URL", value, "a string")
    if value.startswith("file://"):
        session.catalog.storage.allowed_folder(value)
        return str(value)
    if value.startswith(("s3://", "s3compat://")) and value.partition("://")[2].strip("/"):
        return str(value)
    raise invalid_value("URL", value, "s3://bucket/path/, s3compat://bucket/path/ or file:///folder/")


def _with_format(session: Session, stage: StageDefinition, value: Setting) -> StageDefinition:
    if isinstance(value, str):
        value = {"FORMAT_NAME": value}
    if not isinstance(value, Mapping):
        raise invalid_value("FILE_FORMAT", value, "(TYPE = .. options) or (FORMAT_NAME = name)")
    own = dict(value)
    named = own.pop("FORMAT_NAME", None)
    if named is None:
        return dataclasses.replace(stage, format_name=(), file_format=read_file_format(own).settings())
    if own:
        raise compilation_error("FORMAT_NAME and TYPE or its options are mutually exclusive in FILE_FORMAT.")
    found = find_format(session, format_path(named))
    return dataclasses.replace(stage, format_name=(found.database, found.schema, found.name), file_format={})


def _is_enabled(value: Setting) -> bool:
    if not isinstance(value, Mapping) or not isinstance(value.get("ENABLE"), bool):
        raise invalid_value("DIRECTORY", "..", "(ENABLE = TRUE | FALSE ..)")
    return value["ENABLE"] is True


def _copy_options(value: Setting) -> dict[str, OptionValue]:
    if not isinstance(value, Mapping) or not all(isinstance(v, (str, int)) for v in value.values()):
        raise invalid_value("COPY_OPTIONS", "..", "(option = value ..)")
    return {name: v if isinstance(v, int) else str(v) for name, v in value.items()}


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
        raise object_exists(str(stage))
    session.catalog.storage.create(stage.identity)
    session.temporary.stages[key] = stage
    if old is not None:
        session.catalog.storage.remove([old.identity])


def _change(session: Session, old: StageDefinition, new: StageDefinition) -> None:
    if not old.temporary:
        session.catalog.database(old.database).stages.change_stage(old, new)
        return
    key = (new.database, new.schema, new.name)
    if key != (old.database, old.schema, old.name):
        if key in session.temporary.stages:
            raise object_exists(str(new))
        del session.temporary.stages[old.database, old.schema, old.name]
    session.temporary.stages[key] = new

"""Options of CREATE STAGE and ALTER STAGE SET."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from airflow_provider_snowpipe.local.errors import compilation_error
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.stages.definition import StageDefinition
from airflow_provider_snowpipe.local.stages.formats import OptionValue, read_file_format
from airflow_provider_snowpipe.local.stages.location import access_settings
from airflow_provider_snowpipe.local.stages.named import find_format, format_path
from airflow_provider_snowpipe.local.stages.settings import Setting, invalid_parameter, invalid_value

_SETTINGS = frozenset(
    {
        "URL", "ENDPOINT", "REGION", "STORAGE_INTEGRATION", "CREDENTIALS", "FILE_FORMAT", "COPY_OPTIONS",
        "COMMENT", "DIRECTORY", "ENCRYPTION", "AWS_ACCESS_POINT_ARN", "USE_PRIVATELINK_ENDPOINT",
    }
)  # fmt: skip
_EXTERNAL_ONLY = ("ENDPOINT", "STORAGE_INTEGRATION", "CREDENTIALS")


def with_settings(
    session: Session, stage: StageDefinition, settings: Mapping[str, Setting]
) -> StageDefinition:
    """Return a stage with the options of a statement applied.

    :raises SqlError: for an unknown option or a value that it does not take.
    """
    for name in settings:
        if name.removeprefix("STAGE_") not in _SETTINGS:
            raise invalid_parameter(name)
    # Both spellings are taken, as by the options of table stages.
    settings = {name.removeprefix("STAGE_"): value for name, value in settings.items()}
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

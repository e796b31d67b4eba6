"""Named stages and file formats, found by name: temporary ones of the session first."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_snowpipe.local.errors import object_missing
from airflow_provider_snowpipe.local.identifiers import read_path
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.stages.definition import FileFormatDefinition, StageDefinition
from airflow_provider_snowpipe.local.stages.formats import FileFormat, OptionValue, read_file_format
from airflow_provider_snowpipe.local.stages.settings import Setting, invalid_value


def resolve_file_format(
    session: Session, settings: Mapping[str, Setting], stage_format: Mapping[str, OptionValue] | None = None
) -> FileFormat:
    """Resolve FILE_FORMAT: options of the statement, FORMAT_NAME, the stage's format, defaults.

    Each completes what the one before it left open.

    :param settings: what stands between the parentheses.
    :param stage_format: :attr:`StageLocation.file_format`.
    :raises SqlError: for an unknown format, option or value.
    """
    inherited = [stage_format] if stage_format else []
    own = dict(settings)
    named = own.pop("FORMAT_NAME", None)
    if named is not None:
        found = find_format(session, format_path(named))
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


def find_stage(session: Session, path: tuple[str, ...]) -> StageDefinition:
    """Return a named stage, temporary ones of the session first.

    :raises SqlError: when it does not exist.
    """
    database, schema, name = session.resolve(path)
    found = session.temporary.stages.get((database.name, schema, name)) or database.stages.stage(schema, name)
    if found is None:
        raise object_missing("Stage", f"{database.name}.{schema}.{name}")
    return found


def find_format(session: Session, path: tuple[str, ...]) -> FileFormatDefinition:
    """Return a named file format, temporary ones of the session first.

    :raises SqlError: when it does not exist.
    """
    database, schema, name = session.resolve(path)
    key = (database.name, schema, name)
    found = session.temporary.formats.get(key) or database.stages.format(schema, name)
    if found is None:
        raise object_missing("File format", ".".join(key))
    return found


def stage_format(session: Session, stage: StageDefinition) -> dict[str, OptionValue]:
    """Return the format options of a stage, with TYPE; empty when it has none."""
    if stage.format_name:
        path = (stage.database, stage.schema, *stage.format_name)[-3:]
        inherited = find_format(session, path).settings
        return {**inherited, **stage.file_format}
    return dict(stage.file_format)

"""Options of COPY INTO table: names, types and the combinations that Snowflake refuses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_snowpipe.local.errors import SqlError, compilation_error
from airflow_provider_snowpipe.local.loading.selection import METADATA
from airflow_provider_snowpipe.local.loading.staging import ABORT_STATEMENT, CONTINUE, SKIP_FILE, OnError
from airflow_provider_snowpipe.local.stages import location
from airflow_provider_snowpipe.local.stages.definition import Setting, invalid_parameter, invalid_value

MAX_FILES = 1000
_FLAGS = ("PURGE", "RETURN_FAILED_ONLY", "ENFORCE_LENGTH", "TRUNCATECOLUMNS", "FORCE", "LOAD_UNCERTAIN_FILES")
_MATCHING = ("NONE", "CASE_SENSITIVE", "CASE_INSENSITIVE")
_ACCESS = ("CREDENTIALS", "ENDPOINT", "REGION", "STORAGE_INTEGRATION", "ENCRYPTION")
_IGNORED = ("CLUSTER_AT_INGEST_TIME", "LOAD_MODE")
_SKIP = re.compile(r"SKIP_FILE(?:_(\d+)(%)?)?\Z")
_VALIDATION = re.compile(r"RETURN_(?:(\d+)_ROWS|ERRORS|ALL_ERRORS)\Z")


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """Options of one COPY statement; None or False where nothing was written.

    :param files: FILES.
    :param pattern: PATTERN.
    :param file_format: what FILE_FORMAT holds between its parentheses.
    :param matching: MATCH_BY_COLUMN_NAME.
    :param included: INCLUDE_METADATA, column name as written to METADATA$... name.
    :param on_error: ON_ERROR, or None.
    :param size_limit: SIZE_LIMIT in bytes.
    :param validation: VALIDATION_MODE.
    :param access: options that say how a bare URL is reached.
    :param flags: the options that are TRUE or FALSE.
    """

    files: tuple[str, ...] | None = None
    pattern: str | None = None
    file_format: Mapping[str, Setting] = field(default_factory=dict)
    matching: str = "NONE"
    included: Mapping[str, str] = field(default_factory=dict)
    on_error: OnError | None = None
    size_limit: int | None = None
    validation: str | None = None
    access: Mapping[str, Setting] = field(default_factory=dict)
    flags: Mapping[str, bool] = field(default_factory=dict)

    @property
    def truncate(self) -> bool:
        """TRUNCATECOLUMNS = TRUE, or its opposite ENFORCE_LENGTH = FALSE."""
        return self.flags.get("TRUNCATECOLUMNS", False) or not self.flags.get("ENFORCE_LENGTH", True)


def read_copy_options(settings: Mapping[str, Setting]) -> CopyOptions:
    """Check the options of a COPY statement.

    :raises SqlError: for an unknown option, a wrong value, or options that exclude each other.
    """
    options: dict[str, Any] = {"access": {}, "flags": {}}
    for name, value in settings.items():
        _read(options, name, value)
    made = CopyOptions(**options)
    if made.validation is not None and (made.matching != "NONE" or made.flags.get("PURGE")):
        raise compilation_error("VALIDATION_MODE cannot be combined with MATCH_BY_COLUMN_NAME or PURGE.")
    if made.included and made.matching == "NONE":
        raise compilation_error("INCLUDE_METADATA needs MATCH_BY_COLUMN_NAME.")
    return made


def read_on_error(value: Setting) -> OnError:
    """Read a value of ON_ERROR.

    :raises SqlError: for anything else.
    """
    word = str(value).upper() if isinstance(value, str) else ""
    if word == CONTINUE:
        return OnError(CONTINUE)
    if word == ABORT_STATEMENT:
        return OnError()
    match = _SKIP.match(word)
    if match is None or match[1] == "0":
        raise invalid_value(
            "ON_ERROR", value, "CONTINUE, SKIP_FILE, SKIP_FILE_<n>, 'SKIP_FILE_<n>%' or ABORT_STATEMENT"
        )
    if match[2]:
        return OnError(SKIP_FILE, percent=float(match[1]))
    return OnError(SKIP_FILE, int(match[1] or 1))


def _read(options: dict[str, Any], name: str, value: Setting) -> None:
    if name in _FLAGS:
        if not isinstance(value, bool):
            raise invalid_value(name, value, "TRUE or FALSE")
        options["flags"][name] = value
    elif name in _ACCESS:
        options["access"][name] = value
    elif name in _READERS:
        key, read = _READERS[name]
        options[key] = read(value)
    elif name not in _IGNORED:
        raise invalid_parameter(name)


def _files(value: Setting) -> tuple[str, ...]:
    listed = value if isinstance(value, tuple) else (value,)
    if not listed or not all(isinstance(name, str) for name in listed):
        raise invalid_value("FILES", value, "a list of names")
    if len(listed) > MAX_FILES:
        raise SqlError(
            "001003",
            "42000",
            f"SQL compilation error:\nFILES names {len(listed)} files; the maximum is {MAX_FILES}.",
        )
    return tuple(str(name) for name in listed)


def _pattern(value: Setting) -> str:
    if not isinstance(value, str):
        raise invalid_value("PATTERN", value, "a regular expression in quotes")
    location.check(value)
    return value


def _format(value: Setting) -> Mapping[str, Setting]:
    if isinstance(value, Mapping):
        return value
    if isinstance(value, str):
        return {"FORMAT_NAME": value}
    raise invalid_value("FILE_FORMAT", value, "( TYPE = .. ) or ( FORMAT_NAME = .. )")


def _matching(value: Setting) -> str:
    if isinstance(value, str) and value.upper() in _MATCHING:
        return value.upper()
    raise invalid_value("MATCH_BY_COLUMN_NAME", value, ", ".join(_MATCHING))


def _included(value: Setting) -> Mapping[str, str]:
    if isinstance(value, Mapping) and value:
        pairs = {name: str(entry).upper() for name, entry in value.items()}
        if set(pairs.values()) <= set(METADATA):
            return pairs
    raise invalid_value("INCLUDE_METADATA", value, f"( column = METADATA$.. ) with {', '.join(METADATA)}")


def _size(value: Setting) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise invalid_value("SIZE_LIMIT", value, "a number of bytes above 0")


def _validation(value: Setting) -> str:
    if isinstance(value, str) and _VALIDATION.match(value.upper()):
        return value.upper()
    raise invalid_value("VALIDATION_MODE", value, "RETURN_<n>_ROWS, RETURN_ERRORS or RETURN_ALL_ERRORS")


_READERS: dict[str, tuple[str, Any]] = {
    "FILES": ("files", _files),
    "PATTERN": ("pattern", _pattern),
    "FILE_FORMAT": ("file_format", _format),
    "MATCH_BY_COLUMN_NAME": ("matching", _matching),
    "INCLUDE_METADATA": ("included", _included),
    "ON_ERROR": ("on_error", read_on_error),
    "SIZE_LIMIT": ("size_limit", _size),
    "VALIDATION_MODE": ("validation", _validation),
}

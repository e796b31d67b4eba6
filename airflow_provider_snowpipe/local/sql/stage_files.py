"""PUT, GET, LIST and REMOVE: files of stages."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_snowpipe.local.errors import SqlError, compilation_error, unsupported
from airflow_provider_snowpipe.local.loading.compression import read_blocks
from airflow_provider_snowpipe.local.sql.bindings import Bindings
from airflow_provider_snowpipe.local.sql.results import OTHER, Result, ResultColumn
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.stages.files import FolderArea, StagedFile
from airflow_provider_snowpipe.local.stages.location import StageLocation, resolve_location
from airflow_provider_snowpipe.local.stages.privileges import require_read, require_write
from airflow_provider_snowpipe.local.stages.settings import (
    Setting,
    invalid_parameter,
    invalid_value,
    read_literal,
    read_settings,
)
from airflow_provider_snowpipe.local.stages.transfer import Transfer
from airflow_provider_snowpipe.local.types import NUMBER

_COMPRESSIONS = {
    "AUTO_DETECT": "AUTO_DETECT", "GZIP": "GZIP", "BZ2": "BZIP2", "BROTLI": "BROTLI", "ZSTD": "ZSTD",
    "DEFLATE": "DEFLATE", "RAW_DEFLATE": "RAW_DEFLATE", "NONE": "NONE",
}  # fmt: skip
_FIELD = re.compile(r',("(?:[^"]|"")*"|[^,"]*)')
_LINE = re.compile(r'((?:"(?:[^"]|"")*"|[^"\n])+)\n')
_MOST_PARALLEL = 99
_DEFAULT_PARALLEL = {"PUT": 4, "GET": 10}
_PUT_COLUMNS = (
    ResultColumn("source"),
    ResultColumn("target"),
    ResultColumn("source_size", NUMBER),
    ResultColumn("target_size", NUMBER),
    ResultColumn("source_compression"),
    ResultColumn("target_compression"),
    ResultColumn("status"),
    ResultColumn("message"),
)
_GET_COLUMNS = (
    ResultColumn("file"),
    ResultColumn("size", NUMBER),
    ResultColumn("status"),
    ResultColumn("message"),
)
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def put(session: Session, text: str, _bindings: Bindings) -> Result:
    """PUT file://path internal-stage [PARALLEL] [AUTO_COMPRESS] [SOURCE_COMPRESSION] [OVERWRITE]."""
    _check_client(session)
    local, rest = _local_path(_after_command(text))
    location, rest = resolve_location(session, rest)
    settings = _settings(rest, {"PARALLEL", "AUTO_COMPRESS", "SOURCE_COMPRESSION", "OVERWRITE", "THRESHOLD"})
    require_write(session, location)
    area, prefix = location.upload_folder()
    session.catalog.storage.create(area.root.name)
    compression = settings.get("SOURCE_COMPRESSION", "AUTO_DETECT")
    if not isinstance(compression, str) or compression.upper() not in _COMPRESSIONS:
        raise invalid_value("SOURCE_COMPRESSION", compression, ", ".join(_COMPRESSIONS))
    transfer = Transfer(
        True,
        area.root.name,
        prefix,
        (local,),
        parallel=_parallel(settings, "PUT"),
        auto_compress=_flag(settings, "AUTO_COMPRESS", default=True),
        source_compression=_COMPRESSIONS[compression.upper()],
        overwrite=_flag(settings, "OVERWRITE", default=False),
        threshold=_threshold(settings),
    )
    return _answered_by_the_client(transfer)


def get(session: Session, text: str, _bindings: Bindings) -> Result:
    """GET internal-stage file://folder [PARALLEL] [PATTERN]."""
    _check_client(session)
    location, rest = resolve_location(session, _after_command(text))
    local, rest = _local_path(rest)
    settings = _settings(rest, {"PARALLEL", "PATTERN"})
    require_read(session, location)
    if location.is_external or not isinstance(location.area, FolderArea):
        raise compilation_error(f"cannot GET files from the external stage {location.name}.")
    transfer = Transfer(
        False,
        location.area.root.name,
        location.prefix,
        tuple(file.path for file in _chosen(location, settings)),
        local_folder=local,
        parallel=_parallel(settings, "GET"),
    )
    return _answered_by_the_client(transfer)


def list_files(session: Session, text: str, _bindings: Bindings) -> Result:
    """LIST | LS location [PATTERN = '..']."""
    location, settings = _files_of(session, text)
    require_read(session, location)
    files = _chosen(location, settings)
    columns = (
        ResultColumn("name"),
        ResultColumn("size", NUMBER),
        ResultColumn("md5"),
        ResultColumn("last_modified"),
    )
    rows: list[Sequence[Any]] = [
        (location.listed_name(f), f.size, f.etag, _http_date(f.modified_ms)) for f in files
    ]
    return Result(columns, rows, OTHER)


def remove_files(session: Session, text: str, _bindings: Bindings) -> Result:
    """REMOVE | RM location [PATTERN = '..']."""
    location, settings = _files_of(session, text)
    require_write(session, location)
    files = _chosen(location, settings)
    location.remove(files)
    rows: list[Sequence[Any]] = [(location.listed_name(f), "removed") for f in files]
    return Result((ResultColumn("name"), ResultColumn("result")), rows, OTHER)


def staged_bindings(session: Session, place: str) -> dict[str, dict[str, Any]]:
    """Return the bound values that a client uploaded, because they are many, as it would have sent them.

    :param place: ``@stage/path``; below it are CSV files in which an empty field is NULL and ``""`` is empty
        (observed with connector 4.8.1).
    """
    location, _ = resolve_location(session, place)
    require_read(session, location)
    rows: list[list[str | None]] = []
    for file in sorted(location.list(), key=lambda one: (len(one.path), one.path)):
        with location.local_copy(file) as path:
            text = b"".join(read_blocks(path, file.path, "AUTO")).decode()
        rows += [
            [None if not field else _plain_field(field) for field in _FIELD.findall("," + line)]
            for line in _LINE.findall(text)
        ]
    return {
        str(number): {"type": "TEXT", "value": list(column)}
        for number, column in enumerate(zip(*rows, strict=True), start=1)
    }


def _plain_field(field: str) -> str:
    return field[1:-1].replace('""', '"') if field.startswith('"') else field


def _files_of(session: Session, text: str) -> tuple[StageLocation, dict[str, Setting]]:
    location, rest = resolve_location(session, _after_command(text))
    return location, _settings(rest, {"PATTERN"})


def _chosen(location: StageLocation, settings: Mapping[str, Setting]) -> list[StagedFile]:
    pattern = settings.get("PATTERN")
    if pattern is not None and not isinstance(pattern, str):
        raise invalid_value("PATTERN", pattern, "a regular expression as string")
    return location.list(pattern)


def _check_client(session: Session) -> None:
    if not session.moves_files:
        raise unsupported("PUT and GET through the SQL API; use the Python connector")


def _after_command(text: str) -> str:
    words = text.split(None, 1)
    return words[1] if len(words) > 1 else ""


def _answered_by_the_client(transfer: Transfer) -> Result:
    # Connector 5.2.0 shows the client's own rows under these names, 4.8.1 brings the names as well.
    columns = _PUT_COLUMNS if transfer.is_upload else _GET_COLUMNS
    return Result(columns, [], OTHER, transfer)


def _local_path(text: str) -> tuple[str, str]:
    stripped = text.lstrip()
    if stripped.startswith("'"):
        url, rest = read_literal(stripped)
    else:
        match = re.match(r"\S+", stripped)
        url, rest = (match[0], stripped[match.end() :].strip()) if match else ("", "")
    if not url.startswith("file://") or len(url) == len("file://"):
        raise SqlError(
            "001003", "42000", f"SQL compilation error:\ninvalid local path '{url[:60]}'; write file:///path."
        )
    return url.removeprefix("file://"), rest


def _settings(text: str, known: set[str]) -> dict[str, Setting]:
    settings, rest = read_settings(text)
    if rest:
        raise compilation_error(f"syntax error at '{rest[:30]}'.")
    for name in settings:
        if name not in known:
            raise invalid_parameter(name)
    return settings


def _threshold(settings: Mapping[str, Setting]) -> int | None:
    value = str(settings.get("THRESHOLD", ""))
    if value and not value.isdigit():
        raise invalid_value("THRESHOLD", value, "a number of bytes")
    return int(value) if value else None


def _parallel(settings: Mapping[str, Setting], command: str) -> int:
    value = settings.get("PARALLEL", _DEFAULT_PARALLEL[command])
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST_PARALLEL:
        raise invalid_value("PARALLEL", value, f"a number from 1 to {_MOST_PARALLEL}")
    return value


def _flag(settings: Mapping[str, Setting], name: str, *, default: bool) -> bool:
    value = settings.get(name, default)
    if not isinstance(value, bool):
        raise invalid_value(name, value, "TRUE or FALSE")
    return value


def _http_date(epoch_ms: int) -> str:
    # Not strftime: the names must not follow the locale, and Snowflake writes days without a zero.
    at = time.gmtime(epoch_ms // 1000)
    clock = f"{at.tm_hour:02d}:{at.tm_min:02d}:{at.tm_sec:02d}"
    return f"{_DAYS[at.tm_wday]}, {at.tm_mday} {_MONTHS[at.tm_mon - 1]} {at.tm_year} {clock} GMT"

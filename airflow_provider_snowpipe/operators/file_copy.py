"""Loading a source's files by COPY or a pipe, so that the table gets the rows that the stream would make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_snowpipe.bulk.copy_statement import CopyOptions
from airflow_provider_snowpipe.bulk.row_options import RowOptions
from airflow_provider_snowpipe.operators.load_outcome import copied_value
from airflow_provider_snowpipe.spark.files.formats import reader_of
from airflow_provider_snowpipe.spark.files.line_format import line_without_a_document
from airflow_provider_snowpipe.spark.files.stored_bytes import compression_of
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.limits import BatchLimits

if TYPE_CHECKING:
    from airflow_provider_snowpipe.operators.copy_share import CopyShare
    from airflow_provider_snowpipe.operators.file_boundary import FileBoundary
    from airflow_provider_snowpipe.operators.file_loader import FileLoader
    from airflow_provider_snowpipe.spark.files.groups import SourceFile
    from airflow_provider_snowpipe.spark.files.spec import FileSourceSpec

_NOTHING: dict[str, Any] = {
    "rows_loaded": 0,
    "rejected": 0,
    "files": {},
    "loaded_before": {},
    "bytes": 0,
    "channels": {},
}
_BY_NAME = {"match_by_column_name": "CASE_INSENSITIVE"}
_REFUSED = {
    "force": "would load files that are in the table",
    "purge": "would remove files by which an interrupted load is known again",
    "size_limit": "would leave files out that the channel's token then passes over",
    "return_failed_only": "would hide what was loaded",
    "pattern": "would leave files out that the channel's token then passes over",
}


def why_not_copy(spec: FileSourceSpec) -> str | None:
    """Why COPY cannot make the rows that the stream makes of these files, None where it can.

    :param spec: the source
    """
    if spec.partition_columns:
        return "partition_columns adds values of the paths to the rows, which COPY does not"
    if spec.columns is not None:
        return "columns leaves columns of the files out, and COPY takes all of them"
    if spec.compression == "xz":
        return "COPY does not read xz"
    if spec.escape and any(spec.null_values):
        return "escape and null_values are both given, and COPY looks for NULLs before it takes escapes away"
    return None


def why_not_copy_file(spec: FileSourceSpec, file: SourceFile) -> str | None:
    """Why COPY would make other rows of one file than the stream, None where it makes the same.

    A file of NDJSON is read for that: COPY takes documents wherever they begin and end, the stream lines.

    :param spec: the source
    :param file: the file
    """
    if spec.format in ("text", "ndjson", "csv") and compression_of(file, spec.compression) == "xz":
        return f"file {file.path!r} is compressed with xz, which COPY does not read"
    if spec.format != "ndjson":
        return None
    blocks = reader_of(spec).blocks(file, after_line=0, offset=0, keep_tail=True, limits=BatchLimits())
    line = next((line for block in blocks if (line := line_without_a_document(block)) is not None), None)
    if line is None:
        return None
    return (
        f"file {file.path!r}, line {line} is not one JSON document: COPY takes documents wherever they begin "
        "and end, the stream takes lines"
    )


def copy_arguments(spec: FileSourceSpec, options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of :class:`SnowpipeCopyOperator` for the files of a source.

    :param spec: the source
    :param options: the author's options of COPY, which go before these
    :raises ConfigurationError: if an option would break the order of files, or COPY cannot read them
    """
    why = why_not_copy(spec)
    if why is not None:
        raise ConfigurationError(f"path is 'copy', and {why}: drop that, or take path='stream'")
    for name, reason in _REFUSED.items():
        if options.get(name):
            raise ConfigurationError(f"options has {name}={options[name]!r}, which {reason}: leave it out")
    arguments: dict[str, Any] = {}
    found: dict[str, Any] = {}
    if spec.format == "text":
        arguments["columns"] = [spec.text_column]
        found["file_format"] = {
            "type": "CSV",
            "field_delimiter": None,
            "escape_unenclosed_field": None,
            "skip_blank_lines": True,
            "null_if": [],
        }
    elif spec.format == "csv":
        found["file_format"] = _csv(spec)
        if spec.column_names is None:
            found |= _BY_NAME
        else:
            arguments["columns"] = list(spec.column_names)
    else:
        kind = "JSON" if spec.format == "ndjson" else spec.format.upper()
        found |= {"file_format": {"type": kind}, **_BY_NAME}
    if spec.compression != "auto":
        found["file_format"]["compression"] = spec.compression.upper()
    CopyOptions.of({**found, **options})
    return {**arguments, "options": {**found, **options}}


def row_options(spec: FileSourceSpec, options: Mapping[str, Any]) -> RowOptions:
    """What decides the rows that COPY makes of the files of a source.

    :param spec: the source
    :param options: the author's options of COPY; without any, COPY makes the rows of the stream
    """
    arguments = copy_arguments(spec, options)
    return RowOptions.of(arguments["options"], arguments.get("columns"))


def _csv(spec: FileSourceSpec) -> dict[str, Any]:
    form: dict[str, Any] = {"type": "CSV", "field_delimiter": spec.delimiter}
    if spec.quote:
        form["field_optionally_enclosed_by"] = spec.quote
    if spec.escape:
        form["escape"] = spec.escape
    form["escape_unenclosed_field"] = spec.escape or None
    # NULL_IF would take an empty value in quotes as well.
    form["empty_field_as_null"] = "" in spec.null_values
    form["null_if"] = [text for text in spec.null_values if text]
    form["skip_blank_lines"] = True
    if spec.column_names is None:
        form["parse_header"] = True
    elif spec.header:
        form["skip_header"] = 1
    return form


def load_files(
    boundary: FileBoundary,
    loader_of: Callable[[str | None], FileLoader],
    on_rejected: str,
    *,
    pipe: str | None = None,
    promised_only: bool = False,
) -> dict[str, Any]:
    """Load what is left of a source's files, and move the channels' tokens behind them.

    What an interrupted load was to take comes first and by itself, and by the same loader: so that a try of
    the same run finds the statement of the one before, which may still run, and because a pipe may still have
    the files in its queue.

    :param boundary: the files and their channels
    :param loader_of: makes the loader of a pipe's name, None for COPY
    :param on_rejected: ``fail`` refuses files that an interrupted load has loaded in part
    :param pipe: the pipe that is to take the files, None for COPY
    :param promised_only: True for what an interrupted load was to take, and no more
    :return: as of a COPY task, and ``bytes`` of the files and ``channels``
    """
    boundary.open_channels()
    begun = boundary.shares(promised_only=True)
    value: dict[str, Any] = _NOTHING
    for name in dict.fromkeys(share.intent.pipe for share in begun):
        own = [share for share in begun if share.intent.pipe == name]
        value = _joined(value, _loaded(boundary, loader_of(name), own, on_rejected))
    if promised_only:
        return value
    return _joined(value, _loaded(boundary, loader_of(pipe), boundary.shares(pipe), on_rejected))


def _loaded(
    boundary: FileBoundary, loader: FileLoader, shares: Sequence[CopyShare], on_rejected: str
) -> dict[str, Any]:
    from airflow_provider_snowpipe.bulk.copy_outcome import CopyOutcome

    if not shares:
        return _NOTHING
    before = loader.loaded(shares)
    missing = loader.put(shares, before)
    boundary.promise(shares)
    outcome = CopyOutcome(tuple(before.values()))
    outcome.require(on_rejected, boundary.table)
    value = outcome.result()
    if missing:
        value = copied_value(value, loader.load(missing))
    ends = boundary.settle(shares)
    channels = {
        share.position.channel: {
            "partition": share.position.partition,
            "from": share.intent.after,
            "to": ends[share.position.channel],
            "files": len(share.files),
            "rows": loader.rows_of(share, value),
        }
        for share in shares
    }
    size = sum(file.size for share in shares for file in share.files)
    return {**value, "bytes": size, "channels": channels}


def _joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    channels = dict(first["channels"])
    for name, one in second["channels"].items():
        before = channels.get(name, {"from": one["from"], "files": 0, "rows": 0})
        sums = {key: before[key] + one[key] for key in ("files", "rows")}
        channels[name] = {**one, "from": before["from"], **sums}
    return {
        **copied_value(first, second),
        "bytes": first["bytes"] + second["bytes"],
        "channels": channels,
    }

"""How COPY has to read the files of a source, so that the table gets the rows that the stream would make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_snowpipe.bulk.copy import CopyOptions
from airflow_provider_snowpipe.bulk.row_options import RowOptions
from airflow_provider_snowpipe.spark.sources.files.formats import (
    BYTE_ORDER_MARK,
    compression_of,
    pieces,
    reader_of,
)
from airflow_provider_snowpipe.spark.sources.files.line_format import line_without_a_document
from airflow_provider_snowpipe.spark.sources.files.spec import (
    ByKey,
    ColumnFormat,
    Csv,
    LineFormat,
    Ndjson,
    SourceFile,
    Text,
)
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.limits import BatchLimits

if TYPE_CHECKING:
    from airflow_provider_snowpipe.spark.sources.files.spec import FileSource

_BY_NAME = {"match_by_column_name": "CASE_INSENSITIVE"}
_REFUSED = {
    "force": "would load files that are in the table",
    "purge": "would remove files by which an interrupted load is known again",
    "size_limit": "would leave files out that the channel's token then skips",
    "pattern": "would leave files out that the channel's token then skips",
}


def why_rows_are_staged(spec: FileSource) -> str | None:
    """Why COPY cannot make the rows that the stream makes of these files, None where it can.

    COPY and pipes are given the stream's rows then, as NDJSON, in place of the files.
    """
    form = spec.form
    if isinstance(spec.grouping, ByKey) and spec.grouping.as_columns:
        return "as_columns adds values of the paths to the rows"
    if spec.metadata:
        return "metadata adds columns to the rows"
    if isinstance(form, Csv | ColumnFormat) and form.columns is not None:
        return "columns leaves columns of the files out"
    if isinstance(form, ColumnFormat) and form.non_finite == "null":
        return "non_finite writes NULL for NaN, infinities and years that COPY loads as they are"
    if form.compression == "xz":
        return "COPY does not read xz"
    if isinstance(form, Csv) and form.escape and any(form.null_values):
        return "escape and null_values are both given, and COPY looks for NULLs before it takes escapes away"
    return None


def why_not_copy_file(spec: FileSource, file: SourceFile) -> str | None:
    """Why COPY would make other rows of one file than the stream, None where it makes the same.

    A file of NDJSON is read for that: COPY takes documents wherever they begin and end, the stream lines.
    """
    form, takes_rows = spec.form, why_rows_are_staged(spec) is not None
    if not takes_rows and isinstance(form, LineFormat) and compression_of(file, form.compression) == "xz":
        return f"file {file.path!r} is compressed with xz, which COPY does not read"
    if not takes_rows and isinstance(form, Csv) and form.header and not _begins_with_header(form, file):
        return (
            f"file {file.path!r} has its header behind a blank line, or over several lines, and COPY takes "
            "the first line for the header"
        )
    if not isinstance(form, Ndjson):
        return None
    blocks = reader_of(form).blocks(file, after_line=0, offset=0, keep_tail=True, limits=BatchLimits())
    line = next((line for block in blocks if (line := line_without_a_document(block)) is not None), None)
    if line is None:
        return None
    return (
        f"file {file.path!r}, line {line} is not one JSON document: COPY takes documents wherever they begin "
        "and end, the stream takes lines"
    )


def _begins_with_header(form: Csv, file: SourceFile) -> bool:
    """True where the first line of a CSV file is its header, and all of it."""
    text = bytes(next(pieces(file, 0, compression=compression_of(file, form.compression)), b""))
    line = text.removeprefix(BYTE_ORDER_MARK).partition(b"\n")[0]
    quotes = line.count(form.quote.encode()) if form.quote else 0
    return not text or (bool(line.strip(b"\r")) and quotes % 2 == 0)


def copy_arguments(spec: FileSource, options: Mapping[str, Any]) -> dict[str, Any]:
    """The columns and options of a COPY of the files of a source; the author's options go first."""
    why = why_rows_are_staged(spec)
    if why is not None and options.get("file_format"):
        raise ConfigurationError(
            f"options has file_format={options['file_format']!r}, and {why}, so that rows are staged as "
            "NDJSON: leave file_format out"
        )
    for name, reason in _REFUSED.items():
        if options.get(name):
            raise ConfigurationError(f"options has {name}={options[name]!r}, which {reason}: leave it out")
    arguments: dict[str, Any] = {}
    found: dict[str, Any] = {}
    form = spec.form
    if why is not None:
        found |= {"file_format": {"type": "JSON", "compression": "GZIP"}, **_BY_NAME}
    elif isinstance(form, Text):
        arguments["columns"] = [form.column]
        found["file_format"] = {
            "type": "CSV",
            "field_delimiter": None,
            "escape_unenclosed_field": None,
            "skip_blank_lines": True,
            "null_if": [],
        }
    elif isinstance(form, Csv):
        found["file_format"] = _csv(form)
        if form.column_names is None:
            found |= _BY_NAME
        else:
            arguments["columns"] = list(form.column_names)
    else:
        kind = "JSON" if isinstance(form, Ndjson) else type(form).__name__.upper()
        found |= {"file_format": {"type": kind}, **_BY_NAME}
    if why is None and form.compression != "auto":
        found["file_format"]["compression"] = form.compression.upper()
    CopyOptions.of({**found, **options})
    return {**arguments, "options": {**found, **options}}


def row_options(spec: FileSource, options: Mapping[str, Any]) -> RowOptions:
    """What decides the rows that COPY makes of the files of a source, by the author's options."""
    arguments = copy_arguments(spec, options)
    return RowOptions.of(arguments["options"], arguments.get("columns"))


def _csv(form: Csv) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "CSV", "field_delimiter": form.delimiter}
    if form.quote:
        found["field_optionally_enclosed_by"] = form.quote
    if form.escape:
        found["escape"] = form.escape
    found["escape_unenclosed_field"] = form.escape or None
    # NULL_IF would take an empty value in quotes as well.
    found["empty_field_as_null"] = "" in form.null_values
    found["null_if"] = [text for text in form.null_values if text]
    found["skip_blank_lines"] = True
    if form.column_names is None:
        found["parse_header"] = True
    elif form.header:
        found["skip_header"] = 1
    return found

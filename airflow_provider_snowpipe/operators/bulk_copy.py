"""How COPY has to read files that Spark has written, and what it says of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_snowpipe.bulk.copy_statement import CopyOptions
from airflow_provider_snowpipe.bulk.file_load import LOADED
from airflow_provider_snowpipe.bulk.run_manifest import RunManifest
from airflow_provider_snowpipe.streaming.arguments import known_arguments
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, FilesRejectedError
from airflow_provider_snowpipe.streaming.names import quote_identifier

if TYPE_CHECKING:
    from airflow_provider_snowpipe.operators.run_stage import RunStage
    from airflow_provider_snowpipe.streaming.table_columns import TableColumn

_FORMAT: Mapping[str, Any] = {"type": "PARQUET", "use_logical_type": True, "binary_as_text": False}
"""Neither is the default (page "CREATE FILE FORMAT"): without, a binary value is read as text."""
_REFUSED = {
    "file_format": "the files are Parquet files of this operator's own",
    "match_by_column_name": "columns are filled by their names",
    "pattern": "the manifest names the files",
    "force": "it would load files that are in the table",
    "purge": "the files are removed when the stage says that they are loaded: see keep_files",
    "size_limit": "it would leave files out",
    "return_failed_only": "it would hide what was loaded",
}
_MOST_NAMED = 3


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse what is no option of COPY, and options that this operator's own would contradict.

    :param options: the author's
    :raises ConfigurationError: naming the option and the reason
    """
    known_arguments(CopyOptions, options, "options")
    for name, reason in _REFUSED.items():
        if options.get(name) is not None:
            raise ConfigurationError(
                f"options has {name}={options[name]!r}, and {reason}: leave the option out"
            )


def copy_arguments(
    manifest: RunManifest, table_columns: Callable[[], Sequence[TableColumn]], options: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of :class:`SnowpipeCopyOperator` for the files of a manifest.

    Columns are matched by their names. Where one holds JSON as text, which only an expression parses, all are
    named: a COPY cannot do both.

    :param manifest: the manifest
    :param table_columns: describes the table
    :param options: the author's options of COPY
    :raises ConfigurationError: if an option contradicts these
    """
    check_options(options)
    found: dict[str, Any] = {**options, "file_format": dict(_FORMAT)}
    if not manifest.json_columns:
        return {"options": {**found, "match_by_column_name": "CASE_SENSITIVE"}}
    types = {column.name: column.type for column in table_columns()}
    missing = [name for name in manifest.columns if name not in types]
    if missing:
        raise ConfigurationError(
            f"the table has lost column {missing[0]!r} since its rows were written: bring it back, or load "
            "again under another run_key"
        )
    expressions = [
        _expression(name, types[name], parsed=name in manifest.json_columns) for name in manifest.columns
    ]
    return {"columns": list(manifest.columns), "expressions": expressions, "options": found}


def _expression(name: str, kind: str, *, parsed: bool) -> str:
    value = f"$1:{quote_identifier(name)}"
    return f"PARSE_JSON({value})" if parsed else f"{value}::{kind}"


def copied_value(
    manifest: RunManifest,
    stage: RunStage,
    files: Mapping[str, Mapping[str, Any]],
    on_rejected: str,
    table: str,
) -> dict[str, Any]:
    """The task's value, held against the manifest.

    :param manifest: what was to be loaded
    :param stage: its folder
    :param files: what COPY says of each file, by its path below the stage
    :param on_rejected: ``fail`` refuses another number of rows than a file has
    :param table: the table, for the error's text
    :raises FilesRejectedError: if there is such a file
    """
    rows = {f"{stage.reference.path}/{file.name}": file.rows for file in manifest.files}
    wrong = [
        path
        for path, one in files.items()
        if one["status"] == LOADED and int(one["rows_loaded"]) != rows.get(path)
    ]
    if wrong and on_rejected == "fail":
        named = "; ".join(
            f"{path!r} has {rows.get(path, 0):,} rows and COPY says {int(files[path]['rows_loaded']):,}"
            for path in wrong[:_MOST_NAMED]
        )
        raise FilesRejectedError(
            f"COPY into {table}: {len(wrong):,} of {len(files):,} files were not loaded as Spark wrote them: "
            f"{named}. Compare the table with the source",
            files=tuple(wrong),
            rejected=0,
        )
    return {
        "folder": stage.location,
        "rows": manifest.rows,
        "bytes": manifest.bytes,
        "rows_loaded": sum(int(one["rows_loaded"]) for one in files.values()),
        "rejected": sum(int(one["errors_seen"]) for one in files.values()),
        "files": {path: dict(one) for path, one in files.items()},
    }

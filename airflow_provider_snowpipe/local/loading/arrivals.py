"""Which files that have arrived belong to which pipe: patterns, buckets and folders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import duckdb

from airflow_provider_snowpipe.local.catalog import Catalog
from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.errors import SqlError
from airflow_provider_snowpipe.local.loading.file_pipes import FilePipe
from airflow_provider_snowpipe.local.loading.history import COPY_MEMORY_MS, PIPE_MEMORY_MS
from airflow_provider_snowpipe.local.loading.pipe_loads import compile_pipe
from airflow_provider_snowpipe.local.loading.plan import CopyPlan
from airflow_provider_snowpipe.local.stages.files import StagedFile
from airflow_provider_snowpipe.local.stages.patterns import match_whole

Files = list[tuple[str, int | None]]


def split_by_pattern(pipe: FilePipe, files: Sequence[tuple[str, int | None]]) -> tuple[Files, list[str]]:
    """Return the files that fit the PATTERN of a pipe, and the paths of those that do not.

    :param files: path relative to the location of the pipe, and size or None.
    :raises SqlError: for a pattern that RE2 does not take, of a pipe that an older version created.
    """
    if pipe.pattern is None:
        return list(files), []
    fits = match_whole(pipe.pattern, [path for path, _ in files])
    fitting = [file for file, fit in zip(files, fits, strict=True) if fit]
    return fitting, [path for (path, _), fit in zip(files, fits, strict=True) if not fit]


def arrived_in_bucket(
    catalog: Catalog, database: Database, pipe: FilePipe, created: Iterable[tuple[str, str, int | None]]
) -> Files:
    """Return the files of a pipe among objects of S3.

    :param created: bucket, key and size or None of each object.
    """
    try:
        location = compile_pipe(catalog, database, pipe).location
    except SqlError:
        # The pipe says so itself, in SYSTEM$PIPE_STATUS.
        return []
    if not location.is_external or not location.base.startswith("s3"):
        return []
    prefix = location.path_of("")
    found: Files = []
    for bucket, key, size in created:
        for scheme in ("s3", "s3compat"):
            url = f"{scheme}://{bucket}/{key}"
            if url.startswith(location.base + prefix):
                found.append((url.removeprefix(location.base + prefix), size))
    return split_by_pattern(pipe, found)[0]


def unloaded(
    plan: CopyPlan, pipe: FilePipe, cursor: duckdb.DuckDBPyConnection, *, or_failed: bool = True
) -> list[StagedFile]:
    """Return the files of a pipe's location that neither it nor COPY INTO has loaded.

    :param or_failed: also those that the pipe failed to load.
    """
    database = plan.database
    now_ms = database.clock.now_ms()
    by_pipe = database.history.loaded_by_pipe(
        cursor,
        pipe.key.schema,
        pipe.key.name,
        max(pipe.created_on_ms, now_ms - PIPE_MEMORY_MS),
        or_failed=not or_failed,
    )
    by_copy = database.history.loaded_by_copy(
        cursor, plan.table.schema, plan.table.name, now_ms - COPY_MEMORY_MS
    )
    return [
        file
        for file in plan.location.list(plan.pattern)
        if plan.file_key(file) not in by_pipe and by_copy.get(plan.file_key(file)) != (file.etag, file.size)
    ]


def relative(plan: CopyPlan, file: StagedFile) -> str:
    """Return a file's path relative to the location of a pipe, as its queue holds it."""
    return file.path.removeprefix(plan.location.path_of(""))

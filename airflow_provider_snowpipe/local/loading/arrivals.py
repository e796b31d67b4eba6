"""Which files that have arrived belong to which pipe: patterns, buckets and folders."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from airflow_provider_snowpipe.local.catalog import Catalog
from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.errors import SqlError
from airflow_provider_snowpipe.local.loading.file_pipes import FilePipe
from airflow_provider_snowpipe.local.loading.pipe_loads import compile_pipe

Files = list[tuple[str, int | None]]


def split_by_pattern(pipe: FilePipe, files: Sequence[tuple[str, int | None]]) -> tuple[Files, list[str]]:
    """Return the files that fit the PATTERN of a pipe, and the paths of those that do not.

    :param files: path relative to the location of the pipe, and size or None.
    """
    if pipe.pattern is None:
        return list(files), []
    pattern = re.compile(pipe.pattern)
    fitting = [(path, size) for path, size in files if pattern.fullmatch(path)]
    return fitting, [path for path, _ in files if not pattern.fullmatch(path)]


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

"""What a task leaves of its COPYs for the Snowpipe page: entries of the load ledger, and rejected rows."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_provider_snowpipe.links.snowpipe import (
    CHANNEL_PAGE_KEY,
    COPIES_KEY,
    shown_error,
    table_page,
    unloaded_value,
)
from airflow_provider_snowpipe.streaming.arguments import MOST_UNLOADED, UnloadedRow
from airflow_provider_snowpipe.streaming.errors import SnowpipeError
from airflow_provider_snowpipe.streaming.names import full_name

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_snowpipe.bulk.copy_run import CopyRun
    from airflow_provider_snowpipe.bulk.ledger import Entry
    from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook

log = logging.getLogger(__name__)
_MOST_ENTRIES = 50


@contextmanager
def leaving_copies(context: Context, hook: SnowpipeBulkHook, loads: Sequence[Any]) -> Iterator[None]:
    """Leave what the load ledger has of a task's COPYs, also where the task fails or is deferred.

    No page reads the ledger: each look would start a warehouse.

    :param loads: have their :class:`CopyRun` as ``copy_run``
    """
    try:
        yield
    finally:
        runs: list[CopyRun] = [one.copy_run for one in loads if one.copy_run is not None]
        if found := [(run, one) for run in runs for one in run.done.values()]:
            _leave(context["ti"], hook, found)


def _leave(ti: Any, hook: SnowpipeBulkHook, found: Sequence[tuple[CopyRun, Entry]]) -> None:
    first, rows = found[0][0], list[UnloadedRow]()
    for run, one in found:
        if one.rows_rejected and len(rows) < MOST_UNLOADED:
            rows += _rejected(hook, run, one)
    entries = [
        {
            "state": one.state,
            "files": len(one.files),
            "rows": one.rows_loaded,
            "rejected": one.rows_rejected,
            "at": None if one.loaded_at is None else one.loaded_at.isoformat(),
            "query_id": one.query_id,
            "error": shown_error(one.error and one.error[:500]),
        }
        for _, one in found[-_MOST_ENTRIES:]
    ]
    unloaded = unloaded_value(rows[:MOST_UNLOADED], str(first.stage)) if rows else None
    ti.xcom_push(key=COPIES_KEY, value={"entries": entries, "unloaded": unloaded})
    ti.xcom_push(key=CHANNEL_PAGE_KEY, value=table_page(hook.snowflake_conn_id, *first.ledger.target))


def _rejected(hook: SnowpipeBulkHook, run: CopyRun, entry: Entry) -> list[UnloadedRow]:
    """The first rejected rows of a COPY; where VALIDATE does not know them, that of each file."""
    if entry.query_id is not None and run.copy.expressions is None:
        table = full_name(*run.ledger.target).replace("%", "%%")  # the connector formats what binds values
        statement = f"SELECT * FROM TABLE(VALIDATE({table}, JOB_ID => %s)) LIMIT {MOST_UNLOADED}"  # noqa: S608
        try:
            return [
                UnloadedRow.of(
                    run.stage.relative(str(row["file"]), run.url),
                    row["row_number"] if row["line"] is None else row["line"],
                    f"{shown_error(str(row['error']))} (column {row['column_name']})",
                    row["rejected_record"],
                )
                for row in hook.run_sql(statement, (entry.query_id,))
            ]
        except SnowpipeError as error:
            log.warning("VALIDATE does not show the rejected rows of COPY %s: %s", entry.query_id, error)
    loads = entry.loads(run.stage, run.url).items()
    return [
        UnloadedRow.of(path, one.first_error.line, str(shown_error(str(one.first_error))), None)
        for path, one in loads
        if one.first_error is not None
    ]

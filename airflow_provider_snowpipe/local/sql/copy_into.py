"""COPY INTO table: one transaction, one row of result for each file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import duckdb

from airflow_provider_snowpipe.local.errors import SqlError, compilation_error, unsupported
from airflow_provider_snowpipe.local.loading import history, loader
from airflow_provider_snowpipe.local.loading.loader import FileOutcome
from airflow_provider_snowpipe.local.loading.plan import CopyPlan
from airflow_provider_snowpipe.local.loading.transaction import commit_load
from airflow_provider_snowpipe.local.sql.bindings import Bindings
from airflow_provider_snowpipe.local.sql.copy_plan import compile_copy, is_unload
from airflow_provider_snowpipe.local.sql.copy_validation import validate
from airflow_provider_snowpipe.local.sql.results import OTHER, Result, ResultColumn, status
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.types import NUMBER, TEXT

_COPY = re.compile(r"COPY\s+INTO\b\s*", re.IGNORECASE)
_COLUMNS = (
    ResultColumn("file", TEXT),
    ResultColumn("status", TEXT),
    *(ResultColumn(name, NUMBER) for name in ("rows_parsed", "rows_loaded", "error_limit", "errors_seen")),
    ResultColumn("first_error", TEXT),
    ResultColumn("first_error_line", NUMBER),
    ResultColumn("first_error_character", NUMBER),
    ResultColumn("first_error_column_name", TEXT),
)


def copy_into(session: Session, text: str, _bindings: Bindings) -> Result:
    """COPY INTO table."""
    match = _COPY.match(text)
    if match is None:
        raise compilation_error("syntax error in COPY INTO.")
    body = text[match.end() :]
    if is_unload(body):
        raise unsupported("COPY INTO a location (unloading)")
    compiled = compile_copy(session, body)
    if compiled.options.validation is not None:
        return validate(session, compiled.plan, compiled.options.validation)
    if not session.autocommit:
        session.begin()
    plan = compiled.plan
    session.remember_copy(plan)
    if session.in_transaction:
        outcomes = session.change(lambda: _in_transaction(session, plan))
    else:
        outcomes = commit_load(plan.database, session.cursor, lambda: loader.run(plan, session.cursor))
    read = [o.file for o in outcomes if o.file is not None and o.status != history.LOAD_SKIPPED]
    session.remember_copy(plan, tuple(read))
    if plan.purge:
        session.transaction.after_commit(lambda: loader.purge(plan, outcomes))
    return _result(plan, outcomes)


def _in_transaction(session: Session, plan: CopyPlan) -> list[FileOutcome]:
    try:
        return loader.run(plan, session.cursor)
    except duckdb.TransactionException as error:
        raise SqlError(
            "000625",
            "57014",
            f"Statement was aborted because table '{plan.table}' is loaded or changed by another "
            "transaction; run the transaction again.",
        ) from error


def _result(plan: CopyPlan, outcomes: list[FileOutcome]) -> Result:
    # A file that FILES names has a row even when it was loaded before ("COPY INTO <table>", "Output").
    if not outcomes or (plan.files is None and all(o.status == history.LOAD_SKIPPED for o in outcomes)):
        return status("Copy executed with 0 files processed.")
    rows: list[Sequence[Any]] = []
    for outcome in outcomes:
        if plan.failed_only and outcome.status == history.LOADED:
            continue
        first = outcome.first_error
        rows.append(
            (
                outcome.name,
                outcome.status,
                outcome.rows_parsed,
                outcome.rows_loaded,
                outcome.error_limit,
                outcome.errors_seen,
                first.message if first else outcome.message,
                first.line if first else None,
                first.character if first else None,
                first.column if first else None,
            )
        )
    loaded = sum(outcome.rows_loaded for outcome in outcomes)
    return Result(_COLUMNS, rows, OTHER, changed={"inserted": loaded})

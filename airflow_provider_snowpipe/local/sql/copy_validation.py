"""VALIDATION_MODE of COPY INTO, and VALIDATE(): the errors of files, without loading them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from airflow_provider_snowpipe.local.errors import SqlError, compilation_error
from airflow_provider_snowpipe.local.loading import loader
from airflow_provider_snowpipe.local.loading.loader import read_file
from airflow_provider_snowpipe.local.loading.selection import ByName, ByPosition
from airflow_provider_snowpipe.local.loading.staging import CopyPlan, RowError, StagedRecords
from airflow_provider_snowpipe.local.sql.results import Result, ResultColumn
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.stages.files import StagedFile
from airflow_provider_snowpipe.local.tables import NUMBER, TEXT

MOST_ERRORS = 10_000
_NUMBERS = {"LINE", "CHARACTER", "BYTE_OFFSET", "CODE", "ROW_NUMBER", "ROW_START_LINE"}
_COLUMNS = tuple(
    ResultColumn(name, NUMBER if name in _NUMBERS else TEXT)
    for name in (
        "ERROR", "FILE", "LINE", "CHARACTER", "BYTE_OFFSET", "CATEGORY", "CODE", "SQL_STATE", "COLUMN_NAME",
        "ROW_NUMBER", "ROW_START_LINE", "REJECTED_RECORD",
    )
)  # fmt: skip


def validate(session: Session, plan: CopyPlan, mode: str) -> Result:
    """Return the errors of the files, or their first rows.

    :param mode: RETURN_ERRORS, RETURN_ALL_ERRORS or RETURN_<n>_ROWS.
    :raises SqlError: with RETURN_<n>_ROWS, for an error among these rows.
    """
    if mode.endswith("_ROWS"):
        return _first_rows(session, plan, int(mode.split("_")[1]))
    if mode == "RETURN_ALL_ERRORS":
        # Files that were loaded in part are looked at again.
        plan = dataclasses.replace(plan, force=True)
    return _errors(session, plan, loader.choose(plan, session.cursor)[0])


def past_errors(session: Session, table: tuple[str, ...], job_id: str) -> Result:
    """Return the errors of a past COPY INTO, whose files are read again (page "VALIDATE").

    :param table: dotted name of the table.
    :param job_id: query id of the COPY, of the same user; ``_last`` for the last one of the session.
    :raises SqlError: when no such COPY is known, or it transformed its rows.
    """
    database, schema, name = session.resolve(table)
    query_id = session.last_copy_id if job_id.lower() == "_last" else job_id
    known = session.catalog.copies.get((session.user, query_id))
    if known is None:
        raise _unknown_copy(name, job_id)
    plan, files = known
    if (plan.database, plan.table.schema, plan.table.name) != (database, schema, name):
        raise _unknown_copy(name, job_id)
    if not isinstance(plan.selection, (ByName, ByPosition)):
        raise compilation_error("VALIDATE does not support COPY statements that transform data.")
    return _errors(session, plan, loader.choose(plan, session.cursor)[0] if files is None else list(files))


def _errors(session: Session, plan: CopyPlan, files: Sequence[StagedFile]) -> Result:
    rows: list[Sequence[Any]] = []
    for file in files:
        staged = StagedRecords(session.cursor, plan, MOST_ERRORS - len(rows), with_records=True)
        name = plan.location.listed_name(file)
        try:
            read_file(plan, staged, file)
        except SqlError as error:
            if error.sqlstate.startswith(("0A", "42")):
                raise
            staged.errors.append(RowError(error.code, error.sqlstate, error.message, 1, 1, 1, None))
        rows += [_row(name, error) for error in staged.errors]
        if len(rows) >= MOST_ERRORS:
            break
    return Result(_COLUMNS, rows)


def _first_rows(session: Session, plan: CopyPlan, most: int) -> Result:
    columns = tuple(ResultColumn(column.name, column.type) for column in plan.selection.columns)
    rows: list[Sequence[Any]] = []
    for file in loader.choose(plan, session.cursor)[0]:
        if len(rows) >= most:
            break
        staged = StagedRecords(session.cursor, plan)
        read_file(plan, staged, file)
        for error in staged.errors:
            if error.row <= most - len(rows):
                raise error.abort(plan.location.listed_name(file))
        rows += staged.first_rows(most - len(rows))
    return Result(columns, rows)


def _row(file: str, error: RowError) -> tuple[Any, ...]:
    category = "parsing" if error.column is None else "conversion"
    return (
        error.message, file, error.line, error.character, None, category, int(error.code), error.sqlstate,
        error.column, error.row, error.line, error.record,
    )  # fmt: skip


def _unknown_copy(table: str, job_id: str) -> SqlError:
    return compilation_error(
        f"Invalid argument [{job_id[:80]}] for VALIDATE: no COPY INTO {table} with this query id is known."
    )

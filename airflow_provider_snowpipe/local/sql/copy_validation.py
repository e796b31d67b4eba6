"""VALIDATION_MODE of COPY INTO: what the files would give, without loading them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from airflow_provider_snowpipe.local.errors import SqlError
from airflow_provider_snowpipe.local.loading import loader
from airflow_provider_snowpipe.local.loading.loader import read_file
from airflow_provider_snowpipe.local.loading.plan import CopyPlan
from airflow_provider_snowpipe.local.loading.row_errors import RowError
from airflow_provider_snowpipe.local.loading.staging import StagedRecords
from airflow_provider_snowpipe.local.sql.results import Result, ResultColumn
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.types import NUMBER, TEXT

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
    rows: list[Sequence[Any]] = []
    for file in loader.choose(plan, session.cursor).load:
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
    for file in loader.choose(plan, session.cursor).load:
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

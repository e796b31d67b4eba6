"""Load history by SQL: the table function COPY_HISTORY, which knows loads by COPY and pipes for 14 days."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from airflow_provider_snowpipe.bulk.expected_files import possible_paths
from airflow_provider_snowpipe.bulk.file_load import FileLoad
from airflow_provider_snowpipe.bulk.load_history import (
    REMEMBERED,
    HistoryQuestion,
    oldest_needed,
)
from airflow_provider_snowpipe.streaming.names import full_name, quote_identifier

RunSql = Callable[[str, Sequence[str]], Sequence[Mapping[str, Any]]]
"""Runs a statement with the values that it binds; the rows' keys are the columns' names in small letters."""

COLUMNS = (
    "FILE_NAME, STAGE_LOCATION, LAST_LOAD_TIME, ROW_COUNT, ROW_PARSED, FILE_SIZE, ERROR_COUNT, STATUS, "
    "FIRST_ERROR_MESSAGE, FIRST_ERROR_LINE_NUMBER, FIRST_ERROR_CHARACTER_POS, FIRST_ERROR_COLUMN_NAME, "
    "PIPE_CATALOG_NAME, PIPE_SCHEMA_NAME, PIPE_NAME"
)
MOST_NAMES = 5_000
"""Names that a statement lists; for more, it asks for every file since then."""


class CopyHistory:
    """The loads into one table.

    :param run: runs SQL in the table's account
    :param table: database, schema and name of the table
    :param pipe: only loads by this pipe: its database, schema and name; None for all loads
    """

    def __init__(
        self, run: RunSql, table: tuple[str, str, str], pipe: tuple[str, str, str] | None = None
    ) -> None:
        self._run = run
        self._table = table
        self._pipe = pipe
        self._asked: dict[HistoryQuestion, dt.datetime] = {}

    def loads(self, questions: Sequence[HistoryQuestion], now: dt.datetime) -> list[FileLoad]:
        """The loads that the questions are about, from the oldest; what was told before may be left out.

        :param questions: what is asked, by all who still wait
        :param now: the time
        :raises SqlError: if the statement fails
        """
        since = min(oldest_needed(question, self._asked.get(question)) for question in questions)
        statement, values = copy_history(
            self._table, max(since, now - REMEMBERED), self._pipe, _paths_of(questions)
        )
        found = [FileLoad.from_copy_history(row) for row in self._run(statement, values)]
        self._asked = dict.fromkeys(questions, now)
        return found

    def close(self) -> None:
        """Nothing stays open between two polls."""


def copy_history(
    table: tuple[str, str, str],
    since: dt.datetime,
    pipe: tuple[str, str, str] | None = None,
    paths: Collection[str] | None = None,
    folder: str | None = None,
) -> tuple[str, list[str]]:
    """The statement that asks for loads, and the values that it binds (page "COPY_HISTORY").

    The function is that of the information schema, without the 10,000 rows at which ``LOAD_HISTORY`` ends.

    :param table: database, schema and name of the table
    :param since: the first timestamp, at most 14 days ago
    :param pipe: database, schema and name of a pipe, None for all loads
    :param paths: only files with these paths, None for all
    :param folder: only files with this folder in their paths, None for all; not together with paths
    """
    arguments = "TABLE_NAME => %s, START_TIME => %s::TIMESTAMP_LTZ"
    values = [full_name(*table), since.isoformat(timespec="milliseconds")]
    if pipe is not None:
        arguments += ", PIPE_NAME => %s"
        values.append(full_name(*pipe))
    condition = ""
    if paths is not None:
        condition = f" WHERE FILE_NAME IN ({', '.join(['%s'] * len(paths))})"
        values += sorted(paths)
    elif folder is not None:
        condition = " WHERE CONTAINS(FILE_NAME, %s)"
        values.append(f"{folder}/")
    return (
        f"SELECT {COLUMNS} FROM TABLE({quote_identifier(table[0])}.INFORMATION_SCHEMA.COPY_HISTORY("  # noqa: S608
        f"{arguments})){condition} ORDER BY LAST_LOAD_TIME",
        values,
    )


def _paths_of(questions: Sequence[HistoryQuestion]) -> set[str] | None:
    if any(question.names is None for question in questions):
        return None
    paths = possible_paths([name for question in questions for name in question.names or ()])
    return paths if len(paths) <= MOST_NAMES else None

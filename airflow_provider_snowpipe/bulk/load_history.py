"""What became of files: load history, COPY_HISTORY and the usage history of the account, and what it cost."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from airflow_provider_snowpipe.bulk.ledger import table_state
from airflow_provider_snowpipe.bulk.staged_files import (
    COPY_HISTORY,
    HISTORY_COLUMNS,
    MOST_NAMES,
    FileLoad,
    copy_history,
    possible_paths,
)
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SnowpipeError, SqlError
from airflow_provider_snowpipe.streaming.names import full_name, quote_identifier

log = logging.getLogger(__name__)

REMEMBERED = dt.timedelta(days=14) - dt.timedelta(minutes=5)
"""How far back load history goes; a little less than 14 days, beyond which Snowflake refuses the query."""
COPY_MEMORY = dt.timedelta(days=64)
"""How long COPY remembers the files of a table that it has loaded."""
OVERLAP = dt.timedelta(minutes=10)
"""A poll begins so much before the last one: an entry may become visible late, and clocks may differ."""


@dataclass(frozen=True, slots=True, eq=False)
class HistoryQuestion:
    """What one wait asks for.

    It is the same as another one only if it is the same wait's: what an earlier wait has got, a later one
    that asks for the same has not got.

    :param names: paths below the stage; None for whatever was loaded
    :param since: loads before this time do not count
    """

    names: frozenset[str] | None
    since: dt.datetime


class LoadHistory(Protocol):
    """Something that knows what became of files."""

    def loads(self, questions: Sequence[HistoryQuestion], now: dt.datetime) -> list[FileLoad]:
        """The loads that the questions are about, from the oldest; what was reported may be left out."""

    def close(self) -> None:
        """Give the connections back."""


@dataclass(frozen=True, slots=True)
class PolledLoads:
    """What one poll brought."""

    loads: Sequence[FileLoad] = ()
    error: Exception | None = None


class ReportThenSql:
    """The pipe's own report, and ``COPY_HISTORY`` where that is refused or overloaded.

    ``loadHistoryScan`` has a low limit of calls, and both calls take key pairs only; SQL has neither limit,
    but needs a warehouse.

    :param report: asked first
    :param history: asked where that fails
    """

    def __init__(self, report: LoadHistory, history: LoadHistory) -> None:
        self._report = report
        self._history = history

    def loads(self, questions: Sequence[HistoryQuestion], now: dt.datetime) -> list[FileLoad]:
        """The loads that the questions are about, from whichever source answers.

        :raises SnowpipeError: if both fail; the error of the second, which came of the first
        """
        try:
            return self._report.loads(questions, now)
        except ConfigurationError:
            raise
        except SnowpipeError as error:
            log.warning("the pipe's report does not answer (%s); asking COPY_HISTORY", error)
            return self._history.loads(questions, now)

    def close(self) -> None:
        """Give the connections back."""
        self._report.close()
        self._history.close()


def poll_loads(history: LoadHistory, questions: Sequence[HistoryQuestion]) -> PolledLoads:
    """Ask once. What this package raises on purpose is part of the poll, for the wait to judge."""
    try:
        return PolledLoads(loads=history.loads(questions, dt.datetime.now(dt.UTC)))
    except SnowpipeError as error:
        return PolledLoads(error=error)


def timestamp(value: object) -> dt.datetime | None:
    """Read a timestamp as a template renders it; one without a zone is in UTC.

    :param value: a timestamp, its text in ISO 8601, or nothing
    :raises ConfigurationError: if it is something else
    """
    if value is None or value in ("", "None"):
        return None
    try:
        found = value if isinstance(value, dt.datetime) else dt.datetime.fromisoformat(str(value))
    except ValueError:
        raise ConfigurationError(
            f"since is {str(value)[:60]!r}: give a timestamp in ISO 8601, for example "
            "'{{ dag_run.start_date }}'"
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)


# -- Load history by SQL: the table function COPY_HISTORY, which knows loads by COPY and pipes for 14 days --

RunSql = Callable[[str, Sequence[str]], Sequence[Mapping[str, Any]]]
"""Runs a statement with the values that it binds; the rows' keys are the columns' names in lower case."""


# pragma: no mutate start (SQL is tested against the service)


class CopyHistory:
    """The loads into one table.

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
        """The loads that the questions are about, from the oldest; what was reported before may be left out.

        :raises SqlError: if the statement fails
        """
        asked = self._asked
        since = min(max(one.since, asked[one] - OVERLAP) if one in asked else one.since for one in questions)
        names = [question.names for question in questions]
        paths = None if None in names else [name for some in names for name in some or ()]
        statement, values = copy_history(self._table, max(since, now - REMEMBERED), self._pipe, paths)
        found = [FileLoad.read(row, COPY_HISTORY) for row in self._run(statement, values)]
        self._asked = dict.fromkeys(questions, now)
        return found

    def close(self) -> None:
        """Nothing stays open between two polls."""


# -- Loads of more than 14 days ago: COPY still knows its own for 64 days, the information schema no more -
#
# The account's own view, ``SNOWFLAKE.ACCOUNT_USAGE.COPY_HISTORY``, keeps them for a year. It is hours late,
# for a table that is seldom loaded up to two days (page "COPY_HISTORY view"); that does not matter for
# loads of two weeks ago. Loads by pipes, which a pipe itself forgets after 14 days, count where one task
# loads a stage by both.

_OVERLAP = dt.timedelta(hours=1)
"""The view is asked for so much of what the information schema knows as well: two clocks may differ."""
_KEPT = dt.timedelta(days=365)
"""How far back the view goes."""
_NO_RIGHT = frozenset({2003, 3001})
"""Does not exist or not authorized; insufficient privileges."""


def account_copies(
    table: tuple[str, str, str],
    since: dt.datetime,
    until: dt.datetime,
    paths: Collection[str] | None = None,
    *,
    by_pipes: bool = False,
) -> tuple[str, list[str]]:
    """The statement that asks the account's view for loads by COPY, and the values that it binds.

    :param until: the timestamp after the last one
    :param paths: only files with these paths, None for all
    :param by_pipes: True for loads by pipes as well
    """
    values = [*table, *(end.isoformat(timespec="milliseconds") for end in (since, until))]
    condition = ""
    if paths is not None:
        condition = f" AND FILE_NAME IN ({', '.join(['%s'] * len(paths))})"
        values += sorted(paths)
    if not by_pipes:
        condition = f" AND PIPE_NAME IS NULL{condition}"
    return (
        f"SELECT {HISTORY_COLUMNS} FROM SNOWFLAKE.ACCOUNT_USAGE.COPY_HISTORY "  # noqa: S608
        "WHERE TABLE_CATALOG_NAME = %s AND TABLE_SCHEMA_NAME = %s AND TABLE_NAME = %s "
        "AND LAST_LOAD_TIME >= %s::TIMESTAMP_LTZ AND LAST_LOAD_TIME < %s::TIMESTAMP_LTZ"
        f"{condition} ORDER BY LAST_LOAD_TIME",
        values,
    )


def older_copies(
    run: RunSql, table: tuple[str, str, str], paths: Sequence[str], *, by_pipes: bool = False
) -> list[FileLoad]:
    """COPY's loads of some files that the information schema has forgotten, from the oldest.

    The view knows tables by their names, dropped ones as well. So loads from before the table was made do not
    count: they went into another table, or came with a clone, for which COPY remembers none. A table of less
    than 14 days needs no query.

    A role that may not read the view is reported in a warning, with what is not known and what gives it.

    :param run: runs SQL in the table's account; the times are the account's own
    :param paths: the files' paths below the stage
    :param by_pipes: True for loads by pipes as well, as far back as the view goes
    :raises SqlError: if a statement fails, but for the right to the view
    """
    age = table_state(run, table)
    now = age.at.astimezone(dt.UTC)
    since, until = now - (_KEPT if by_pipes else COPY_MEMORY), now - REMEMBERED + _OVERLAP
    if age.created is not None:
        since = max(since, age.created.astimezone(dt.UTC))
    if since >= until or not paths:
        return []
    known = possible_paths(paths)
    try:
        rows = run(
            *account_copies(
                table, since, until, known if len(known) <= MOST_NAMES else None, by_pipes=by_pipes
            )
        )
    except SqlError as error:
        if error.errno not in _NO_RIGHT:
            raise
        log.warning(
            "whether %s loaded these %d files into %s between %s and %s is not known, because the role "
            "may not read SNOWFLAKE.ACCOUNT_USAGE.COPY_HISTORY: GRANT DATABASE ROLE SNOWFLAKE.USAGE_VIEWER "
            "TO ROLE …, or GRANT IMPORTED PRIVILEGES ON DATABASE SNOWFLAKE TO ROLE …, opens it",
            "COPY or a pipe has" if by_pipes else "COPY has",
            len(paths),
            full_name(*table),
            *(f"{end:%Y-%m-%d %H:%M %Z}" for end in (since, until)),
        )
        return []
    return [FileLoad.read(row, COPY_HISTORY) for row in rows]


# pragma: no mutate end


# -- What COPY statements have cost: seconds of a warehouse, and the credits that the account reports ----
#
# ``QUERY_HISTORY`` of the information schema knows a statement as soon as it runs. The account's own
# view ``QUERY_ATTRIBUTION_HISTORY`` knows the credits, up to eight hours later. Neither has idle time of
# the warehouse, nor the minimum that is billed for a resume.

ATTRIBUTED_AFTER = dt.timedelta(hours=8)
"""How late the account's view may be (page "QUERY_ATTRIBUTION_HISTORY view")."""
_EARLIEST = dt.timedelta(days=7)
"""As far back as the information schema knows statements."""


def warehouse_seconds(
    run: RunSql, database: str, query_tag: str, since: dt.datetime, now: dt.datetime
) -> dict[str, float] | None:
    """Seconds that the COPY statements with a query tag ran, by size of the warehouse; None for not known.

    :param database: any database that the role may use
    """
    earliest = max(since, now - _EARLIEST).isoformat(timespec="milliseconds")
    statement = (
        "SELECT WAREHOUSE_SIZE, EXECUTION_TIME FROM TABLE("  # noqa: S608
        f"{quote_identifier(database)}.INFORMATION_SCHEMA.QUERY_HISTORY("
        "END_TIME_RANGE_START => %s::TIMESTAMP_LTZ, RESULT_LIMIT => 10000)) "
        "WHERE QUERY_TAG = %s AND QUERY_TYPE = 'COPY' AND WAREHOUSE_SIZE IS NOT NULL"
    )
    rows = _known(run, statement, [earliest, query_tag], "how long COPY ran")
    if not rows:
        return None
    found: dict[str, float] = {}
    for row in rows:
        size = str(row["warehouse_size"]).upper()
        found[size] = found.get(size, 0.0) + float(str(row["execution_time"])) / 1000
    return found


def attributed_credits(run: RunSql, query_tags: Collection[str], since: dt.datetime) -> dict[str, float]:
    """The credits that the account attributes to statements with some query tags, as far as it knows."""
    tags = sorted(query_tags)
    statement = (
        "SELECT QUERY_TAG, SUM(CREDITS_ATTRIBUTED_COMPUTE) AS CREDITS "  # noqa: S608
        "FROM SNOWFLAKE.ACCOUNT_USAGE.QUERY_ATTRIBUTION_HISTORY WHERE START_TIME >= %s::TIMESTAMP_LTZ "
        f"AND QUERY_TAG IN ({', '.join(['%s'] * len(tags))}) GROUP BY QUERY_TAG"
    )
    values = [since.isoformat(timespec="milliseconds"), *tags]
    rows = _known(run, statement, values, "which credits are attributed to earlier loads") if tags else []
    return {str(row["query_tag"]): float(str(row["credits"])) for row in rows if row["credits"] is not None}


def _known(run: RunSql, statement: str, values: Sequence[str], what: str) -> Sequence[Mapping[str, object]]:
    """Ask for what only describes a load that has ended well: it must not fail for want of the answer."""
    try:
        return run(statement, values)
    except SqlError as error:
        log.info("%s is not known: %s", what, error)
        return []

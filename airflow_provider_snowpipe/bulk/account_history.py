"""COPY's loads of 14 to 64 days ago: COPY still knows their files, the information schema no more.

The account's own view, ``SNOWFLAKE.ACCOUNT_USAGE.COPY_HISTORY``, keeps them for a year. It is hours late, for
a table that is seldom loaded up to two days (page "COPY_HISTORY view"); that does not matter for loads of two
weeks ago. Loads by pipes are not asked for: a pipe forgets after 14 days.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Collection, Sequence

from airflow_provider_snowpipe.bulk.copy_history import COLUMNS, MOST_NAMES, RunSql
from airflow_provider_snowpipe.bulk.expected_files import possible_paths
from airflow_provider_snowpipe.bulk.file_load import FileLoad
from airflow_provider_snowpipe.bulk.load_history import REMEMBERED
from airflow_provider_snowpipe.bulk.two_loaders import COPY_MEMORY
from airflow_provider_snowpipe.streaming.errors import SqlError
from airflow_provider_snowpipe.streaming.names import full_name, quote_identifier

log = logging.getLogger(__name__)

_OVERLAP = dt.timedelta(hours=1)
"""The view is asked for so much of what the information schema knows as well: two clocks may differ."""
_NO_RIGHT = frozenset({2003, 3001})
"""Does not exist or not authorized; insufficient privileges."""


def age_of_table(table: tuple[str, str, str]) -> tuple[str, list[str]]:
    """The statement that asks when a table was made and what time it is, and the values that it binds.

    Its one row has ``created``, NULL for a table that the role does not see, and ``account_now``.

    :param table: database, schema and name of the table
    """
    return (
        "SELECT MAX(CREATED) AS CREATED, CURRENT_TIMESTAMP() AS ACCOUNT_NOW "  # noqa: S608
        f"FROM {quote_identifier(table[0])}.INFORMATION_SCHEMA.TABLES "
        "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
        [table[1], table[2]],
    )


def account_copies(
    table: tuple[str, str, str], since: dt.datetime, until: dt.datetime, paths: Collection[str] | None = None
) -> tuple[str, list[str]]:
    """The statement that asks the account's view for loads by COPY, and the values that it binds.

    :param table: database, schema and name of the table
    :param since: the first timestamp
    :param until: the timestamp after the last one
    :param paths: only files with these paths, None for all
    """
    values = [*table, *(end.isoformat(timespec="milliseconds") for end in (since, until))]
    condition = ""
    if paths is not None:
        condition = f" AND FILE_NAME IN ({', '.join(['%s'] * len(paths))})"
        values += sorted(paths)
    return (
        f"SELECT {COLUMNS} FROM SNOWFLAKE.ACCOUNT_USAGE.COPY_HISTORY "  # noqa: S608
        "WHERE TABLE_CATALOG_NAME = %s AND TABLE_SCHEMA_NAME = %s AND TABLE_NAME = %s AND PIPE_NAME IS NULL "
        "AND LAST_LOAD_TIME >= %s::TIMESTAMP_LTZ AND LAST_LOAD_TIME < %s::TIMESTAMP_LTZ"
        f"{condition} ORDER BY LAST_LOAD_TIME",
        values,
    )


def older_copies(run: RunSql, table: tuple[str, str, str], paths: Sequence[str]) -> list[FileLoad]:
    """COPY's loads of some files that the information schema has forgotten, from the oldest.

    The view knows tables by their names, dropped ones as well. So loads from before the table was made do not
    count: they went into another table, or came with a clone, for which COPY remembers none. A table of less
    than 14 days needs no look.

    A role that may not read the view is told of in a warning, with what is not known and what gives it.

    :param run: runs SQL in the table's account; the times are the account's own
    :param table: database, schema and name of the table
    :param paths: the files' paths below the stage
    :raises SqlError: if a statement fails, but for the right to the view
    """
    (age,) = run(*age_of_table(table))
    now: dt.datetime = age["account_now"].astimezone(dt.UTC)
    since, until = now - COPY_MEMORY, now - REMEMBERED + _OVERLAP
    if age["created"] is not None:
        since = max(since, age["created"].astimezone(dt.UTC))
    if since >= until or not paths:
        return []
    known = possible_paths(paths)
    try:
        rows = run(*account_copies(table, since, until, known if len(known) <= MOST_NAMES else None))
    except SqlError as error:
        if error.errno not in _NO_RIGHT:
            raise
        log.warning(
            "whether COPY has loaded these %d files into %s between %s and %s is not known, because the role "
            "may not read SNOWFLAKE.ACCOUNT_USAGE.COPY_HISTORY: GRANT DATABASE ROLE SNOWFLAKE.USAGE_VIEWER "
            "TO ROLE …, or GRANT IMPORTED PRIVILEGES ON DATABASE SNOWFLAKE TO ROLE …, opens it",
            len(paths),
            full_name(*table),
            *(f"{end:%Y-%m-%d %H:%M %Z}" for end in (since, until)),
        )
        return []
    return [FileLoad.from_copy_history(row) for row in rows]

"""The hook of bulk loading: SQL, stages with sizes, and past loads of a table."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

from airflow_provider_snowpipe.bulk.copy_history import copy_history
from airflow_provider_snowpipe.bulk.load_history import REMEMBERED
from airflow_provider_snowpipe.bulk.stage import StageReference
from airflow_provider_snowpipe.hooks.account_sql import AccountSql
from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook


class SnowpipeBulkHook(SnowpipeHook):
    """Run the SQL of bulk loading over a connection of type ``snowflake`` or ``snowpipe``.

    Database and schema are the connection's unless given. The constructor does no I/O.
    """

    def place(self) -> tuple[str, str]:
        """Database and schema, from the connection where they are not given.

        :raises ConfigurationError: if one of them is missing
        """
        found = self._connection().pipe_name(
            table=None, pipe="ANY", database=self.database, schema=self.schema
        )
        return found.database, found.schema

    def run_sql(self, statement: str, values: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Run one statement; its rows, with the columns' names in small letters.

        :param statement: the statement, with ``%s`` for each value that it binds
        :param values: the values
        :raises SqlError: if the statement fails, or signing in for it
        """
        return AccountSql(self._connection()).rows(statement, values)

    def list_files(self, stage: str, prefix: str = "") -> list[dict[str, Any]]:
        """List the files of a stage by ``LIST``: ``name``, ``size``, ``md5``, ``last_modified``.

        :param stage: the stage, with or without a path
        :param prefix: only files whose path below that begins so
        :raises SqlError: if the statement fails, or signing in for it
        """
        database, schema = self.place()
        location = StageReference.parse(stage).location(prefix, database=database, schema=schema)
        return self.run_sql("LIST %s", (location,))

    def past_loads(self, table: str, since: dt.datetime | None = None) -> list[dict[str, Any]]:
        """The files that were loaded into a table, as ``COPY_HISTORY`` tells them, from the oldest.

        :param table: the table
        :param since: the first moment, None for the 14 days that are remembered
        :raises SqlError: if the statement fails, or signing in for it
        """
        earliest = dt.datetime.now(dt.UTC) - REMEMBERED
        statement, values = copy_history((*self.place(), table), max(since or earliest, earliest))
        return self.run_sql(statement, values)

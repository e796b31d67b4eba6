"""The hook of bulk loading: SQL, stages with sizes, and past loads of a table."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_provider_snowpipe.bulk.copy_history import CopyHistory, copy_history
from airflow_provider_snowpipe.bulk.copy_statement import quoted_location
from airflow_provider_snowpipe.bulk.file_load import FileLoad
from airflow_provider_snowpipe.bulk.load_history import REMEMBERED, HistoryQuestion
from airflow_provider_snowpipe.bulk.stage import StageReference
from airflow_provider_snowpipe.hooks.account_sql import AccountSql
from airflow_provider_snowpipe.hooks.connection import SnowpipeConnection
from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook

if TYPE_CHECKING:
    from airflow_provider_snowpipe.bulk.statement_client import StatementClient
    from airflow_provider_snowpipe.streaming.retry import RetryPolicy


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

    def get_statement_client(self, *, retry: RetryPolicy | None = None) -> StatementClient:
        """Make a client of the account's SQL API; the caller closes it.

        :param retry: pauses and budget of each request
        :raises ConfigurationError: if the connection lacks something
        """
        return _client(self._connection(), retry)

    async def async_get_statement_client(self, *, retry: RetryPolicy | None = None) -> StatementClient:
        """Make a client of the account's SQL API without blocking the event loop.

        :param retry: pauses and budget of each request
        """
        return await asyncio.to_thread(_client, await self._async_connection(), retry)

    def put_files(self, files: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
        """Upload files of this machine by ``PUT``, as they are; one that is there by its name is left.

        :param files: each file's path, in letters that need no quotes, and the location that takes it
        :raises SqlError: if an upload fails, or signing in for it
        """
        statements = [
            (f"PUT 'file://{path}' {quoted_location(place)} AUTO_COMPRESS = FALSE OVERWRITE = FALSE", None)
            for path, place in files
        ]
        return [row for rows in AccountSql(self._connection()).each(statements) for row in rows]

    def set_offset_tokens(self, tokens: Mapping[str, str]) -> None:
        """Set committed offset tokens of channels of the default pipe of ``table``, whoever writes to them.

        :param tokens: the token of each channel
        :raises SqlError: if a statement fails; the channels before it are changed
        """
        pipe = self.pipe_name()
        AccountSql(self._connection()).set_offset_tokens(pipe, pipe.default_table or "", tokens)

    def list_files(self, stage: str, prefix: str = "", pattern: str | None = None) -> list[dict[str, Any]]:
        """List the files of a stage by ``LIST``: ``name``, ``size``, ``md5``, ``last_modified``.

        :param stage: the stage, with or without a path
        :param prefix: only files whose path below that begins so
        :param pattern: only files whose whole path matches this regular expression
        :raises SqlError: if the statement fails, or signing in for it
        """
        database, schema = self.place()
        location = StageReference.parse(stage).location(prefix, database=database, schema=schema)
        if pattern is None:
            return self.run_sql("LIST %s", (location,))
        return self.run_sql("LIST %s PATTERN = %s", (location, pattern))

    def stage_url(self, stage: str) -> str | None:
        """The URL that an external stage stands for, None for an internal one.

        :param stage: the stage, with or without a path
        :raises SqlError: if the statement fails, or signing in for it
        """
        reference = replace(StageReference.parse(stage), path="")
        if reference.name[0] in "%~":
            return None
        database, schema = self.place()
        name = reference.location("", database=database, schema=schema).removeprefix("@")
        for row in self.run_sql(f"DESCRIBE STAGE {name}"):
            if str(row["property"]).upper() == "URL":
                return json.loads(row["property_value"])[0] if row["property_value"] else None
        return None

    def past_loads(self, table: str, since: dt.datetime | None = None) -> list[dict[str, Any]]:
        """The files that were loaded into a table, as ``COPY_HISTORY`` tells them, from the oldest.

        :param table: the table
        :param since: the first moment, None for the 14 days that are remembered
        :raises SqlError: if the statement fails, or signing in for it
        """
        earliest = dt.datetime.now(dt.UTC) - REMEMBERED
        statement, values = copy_history((*self.place(), table), max(since or earliest, earliest))
        return self.run_sql(statement, values)

    def loads_of(self, table: str, paths: Sequence[str]) -> list[FileLoad]:
        """What ``COPY_HISTORY`` says of some files, from the oldest load.

        :param table: the table
        :param paths: their paths below the stage
        :raises SqlError: if the statement fails, or signing in for it
        """
        question = HistoryQuestion(frozenset(paths), dt.datetime.now(dt.UTC) - REMEMBERED)
        return CopyHistory(self.run_sql, (*self.place(), table)).loads([question], dt.datetime.now(dt.UTC))


def _client(settings: SnowpipeConnection, retry: RetryPolicy | None) -> StatementClient:
    from airflow_provider_snowpipe.bulk.statement_client import StatementClient

    return StatementClient(
        settings.account_url(),
        settings.credentials(),
        warehouse=settings.extra.get("warehouse") or None,
        role=settings.extra.get("role") or None,
        ca_bundle=settings.ca_bundle(),
        retry=retry,
    )

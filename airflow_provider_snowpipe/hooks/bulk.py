"""The hook of bulk loading: SQL, stages with sizes, and past loads of a table."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow.exceptions import AirflowProviderDeprecationWarning

from airflow_provider_snowpipe.bulk.copy_statement import quoted_location, string_literal
from airflow_provider_snowpipe.bulk.file_load import FileLoad
from airflow_provider_snowpipe.bulk.load_history import REMEMBERED, copy_history
from airflow_provider_snowpipe.bulk.stage import StageReference
from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.streaming.names import PipeName

if TYPE_CHECKING:
    from airflow_provider_snowpipe.bulk.file_pipe import FilePipeClient
    from airflow_provider_snowpipe.bulk.pipe_state import PipeTarget
    from airflow_provider_snowpipe.bulk.stage import Staging
    from airflow_provider_snowpipe.bulk.statement_client import StatementClient
    from airflow_provider_snowpipe.hooks.account_sql import RunSql
    from airflow_provider_snowpipe.hooks.stage_upload import Source, StageUpload
    from airflow_provider_snowpipe.streaming.limits import RetryPolicy


class SnowpipeBulkHook(SnowpipeHook):
    """Run the SQL of bulk loading over a connection of type ``snowflake`` or ``snowpipe``.

    Database and schema are the connection's unless given. The constructor does no I/O.
    """

    def database_and_schema(self) -> tuple[str, str]:
        """Database and schema, from the connection where they are not given.

        :raises ConfigurationError: if one of them is missing
        """
        return self._connection().database_and_schema(self.database, self.schema)

    def place(self) -> tuple[str, str]:
        """Deprecated: :meth:`database_and_schema`."""
        warnings.warn(
            "SnowpipeBulkHook.place() is deprecated: call database_and_schema()",
            AirflowProviderDeprecationWarning,
            stacklevel=2,
        )
        return self.database_and_schema()

    @contextmanager
    def sql_session(self, purpose: str) -> Iterator[RunSql]:
        """Sign in once for several statements; what it gives runs one, as :meth:`run_sql` does.

        :param purpose: what the session is for, for the text of a refused sign-in
        :raises SqlError: if the sign-in fails, or a statement
        """
        with self._account().session(purpose) as run:
            yield run

    def get_statement_client(self, *, retry: RetryPolicy | None = None) -> StatementClient:
        """Make a client of the account's SQL API; the caller closes it.

        :param retry: pauses and budget of each request
        :raises ConfigurationError: if the connection lacks something
        """
        from airflow_provider_snowpipe.bulk.statement_client import StatementClient

        settings = self._connection()
        return StatementClient(
            settings.account_url(),
            settings.credentials(),
            warehouse=settings.extra.get("warehouse") or None,
            role=settings.extra.get("role") or None,
            ca_bundle=settings.ca_bundle(),
            retry=retry,
        )

    async def async_get_statement_client(self, *, retry: RetryPolicy | None = None) -> StatementClient:
        """Make a client of the account's SQL API without blocking the event loop.

        :param retry: pauses and budget of each request
        """
        await self._async_connection()
        return await asyncio.to_thread(self.get_statement_client, retry=retry)

    def put_file(self, path: str, location: str) -> None:
        """Upload a small file of this machine by ``PUT``, as it is; one that is there by its name is left.

        :param path: the file
        :param location: where it goes, as ``@stage/path``
        :raises SqlError: if the upload fails, or signing in for it
        """
        target = quoted_location(location)
        source = string_literal(f"file://{path}")
        self.run_sql(f"PUT {source} {target} AUTO_COMPRESS = FALSE OVERWRITE = FALSE")

    def get_file(self, location: str, folder: str) -> None:
        """Bring one file of an internal stage to this machine by ``GET``.

        :param location: the file, as ``@stage/path``
        :param folder: where it goes, under its own name
        :raises SqlError: if it cannot be brought
        """
        database, schema = self.database_and_schema()
        whole = StageReference.parse(location).location("", database=database, schema=schema)
        self.run_sql(f"GET {quoted_location(whole.rstrip('/'))} {string_literal(f'file://{folder}/')}")

    def list_files(self, stage: str, prefix: str = "", pattern: str | None = None) -> list[dict[str, Any]]:
        """List the files of a stage by ``LIST``: ``name``, ``size``, ``md5``, ``last_modified``.

        :param stage: the stage, with or without a path
        :param prefix: only files whose path below that begins so
        :param pattern: only files whose whole path matches this regular expression
        :raises SqlError: if the statement fails, or signing in for it
        """
        database, schema = self.database_and_schema()
        location = StageReference.parse(stage).location(prefix, database=database, schema=schema)
        if pattern is None:
            return self.run_sql("LIST %s", (location,))
        return self.run_sql("LIST %s PATTERN = %s", (location, pattern))

    def get_stage_upload(self, staging: Staging, source: Source, prefix: str, parallel: int) -> StageUpload:
        """Look at an internal stage, to upload files that it lacks.

        :param staging: the stage, and how
        :param source: where the files are
        :param prefix: what the paths of all of them begin with, below the stage's
        :param parallel: files at a time
        :raises ConfigurationError: if the stage is an external one
        :raises SqlError: if it cannot be listed
        """
        from airflow_provider_snowpipe.hooks.stage_upload import StageUpload

        database, schema = self.database_and_schema()
        location = staging.stage.location(prefix, database=database, schema=schema)
        listed = staging.listed(self.run_sql("LIST %s", (location,)))
        root = staging.stage.location("", database=database, schema=schema)
        return StageUpload(self._account(), staging, root, source, listed, parallel)

    def stage_url(self, stage: str) -> str | None:
        """The URL that an external stage stands for, None for an internal one.

        :param stage: the stage, with or without a path
        :raises SqlError: if the statement fails, or signing in for it
        """
        reference = replace(StageReference.parse(stage), path="")
        if reference.name[0] in "%~":
            return None
        database, schema = self.database_and_schema()
        name = reference.location("", database=database, schema=schema).removeprefix("@")
        for row in self.run_sql(f"DESCRIBE STAGE {name}"):
            if str(row["property"]).upper() == "URL":
                return json.loads(row["property_value"])[0] if row["property_value"] else None
        return None

    def past_loads(self, table: str, since: dt.datetime | None = None) -> list[dict[str, Any]]:
        """The files that were loaded into a table, as ``COPY_HISTORY`` tells them, from the oldest.

        :param table: the table
        :param since: the first timestamp, None for the 14 days that are remembered
        :raises SqlError: if the statement fails, or signing in for it
        """
        earliest = dt.datetime.now(dt.UTC) - REMEMBERED
        statement, values = copy_history(
            (*self.database_and_schema(), table), max(since or earliest, earliest)
        )
        return self.run_sql(statement, values)

    def loads_of(self, table: str, paths: Sequence[str], pipe: str | None = None) -> list[FileLoad]:
        """What ``COPY_HISTORY`` says of some files, from the oldest load.

        :param table: the table
        :param paths: their paths below the stage
        :param pipe: only loads by this pipe, None for all
        :raises SqlError: if the statement fails, or signing in for it
        """
        schema, since = self.database_and_schema(), dt.datetime.now(dt.UTC) - REMEMBERED
        statement, values = copy_history(
            (*schema, table), since, (*schema, pipe) if pipe else None, paths=paths
        )
        return [FileLoad.from_copy_history(row) for row in self.run_sql(statement, values)]

    def older_copies(self, table: str, paths: Sequence[str]) -> list[FileLoad]:
        """COPY's loads of some files 14 to 64 days ago, as the account's usage history tells them.

        A role without the right to that view gets none, and a warning in the log.

        :param table: the table
        :param paths: their paths below the stage
        :raises SqlError: if a statement fails, or signing in for it
        """
        from airflow_provider_snowpipe.bulk.load_history import older_copies

        with self.sql_session("look for older loads by COPY") as run:
            return older_copies(run, (*self.database_and_schema(), table), paths)

    def loads_in_folder(self, table: str, folder: str) -> list[FileLoad]:
        """What ``COPY_HISTORY`` says of the files of one folder, from the oldest load.

        :param table: the table
        :param folder: the folder's name, as no other one is called
        :raises SqlError: if the statement fails, or signing in for it
        """
        since = dt.datetime.now(dt.UTC) - REMEMBERED
        statement, values = copy_history((*self.database_and_schema(), table), since, folder=folder)
        return [FileLoad.from_copy_history(row) for row in self.run_sql(statement, values)]

    def pipe_target(self, pipe: str) -> PipeTarget | None:
        """From where a file pipe loads into which table; None for no such pipe, or none that the role sees.

        :param pipe: the pipe
        :raises ConfigurationError: if its definition does not say so
        :raises SqlError: if the statement fails, or signing in for it
        """
        from airflow_provider_snowpipe.bulk.file_pipe_admin import FilePipeAdmin
        from airflow_provider_snowpipe.bulk.pipe_state import PipeTarget

        name = PipeName(*self.database_and_schema(), pipe)
        known = FilePipeAdmin(self.run_sql, name).known()
        return None if known is None else PipeTarget.of(name, known.definition, auto_ingest=known.auto_ingest)

    def get_file_pipe_client(self, *, retry: RetryPolicy | None = None) -> FilePipeClient:
        """Make a client of the file pipe's REST API, here of ``pipe``; the caller closes it.

        :param retry: pauses and budget of each request
        :raises ConfigurationError: if the connection holds no key pair, or lacks something
        """
        from airflow_provider_snowpipe.hooks.load_history import file_pipe_client

        return file_pipe_client(self._connection(), self._names(), retry)

"""The hook: from an Airflow connection to a client of one pipe."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseHook

from airflow_provider_snowpipe.get_provider_info import get_provider_info
from airflow_provider_snowpipe.hooks.connection import SnowpipeConnection
from airflow_provider_snowpipe.streaming.errors import SnowpipeError
from airflow_provider_snowpipe.streaming.names import PipeName

if TYPE_CHECKING:
    from airflow_provider_snowpipe.bulk.load_history import LoadHistory
    from airflow_provider_snowpipe.hooks.account_sql import AccountSql
    from airflow_provider_snowpipe.streaming.auth import Credentials
    from airflow_provider_snowpipe.streaming.client import SnowpipeClient
    from airflow_provider_snowpipe.streaming.limits import RetryPolicy
    from airflow_provider_snowpipe.streaming.progress import ChannelStatus, ListedChannel
    from airflow_provider_snowpipe.streaming.table_schema import TableColumn


_TEST_BUDGET_SECONDS = 10.0
_REMEDIES = {
    "settings": "Fix the field that is named.",
    "account URL and credentials": "Check account URL, user, key or token, and the CA bundle.",
    "token for the ingest host": "Check that the user may use Snowpipe Streaming with this kind of "
    "credential.",
    "pipe": "Check the names, letter by letter, and that the role has USAGE on both and INSERT on the table.",
    "channel listing": (
        "Streaming works; listing, backing up and resetting channels will not. Check that the user may also "
        "sign in for SQL with this role, and that the role may see the pipe."
    ),
}
_UNNAMED_PIPE = PipeName("NONE", "NONE", "NONE")
"""Stands in where a connection names no pipe and only the account is asked; it is never sent."""


class SnowpipeHook(BaseHook):
    """Make clients of Snowpipe Streaming from a connection of type ``snowflake`` or ``snowpipe``.

    The constructor does no I/O. Names of database, schema, table and pipe are sent exactly as given.

    :param snowflake_conn_id: the connection's id
    :param table: load through this table's default pipe, ``<table>-STREAMING``
    :param pipe: load through this pipe; not together with ``table``
    :param database: the pipe's database, None for the connection's
    :param schema: the pipe's schema, None for the connection's
    """

    conn_name_attr = "snowflake_conn_id"
    default_conn_name = "snowflake_default"
    conn_type = "snowpipe"
    hook_name = "Snowpipe Streaming"

    def __init__(
        self,
        snowflake_conn_id: str = default_conn_name,
        *,
        table: str | None = None,
        pipe: str | None = None,
        database: str | None = None,
        schema: str | None = None,
    ) -> None:
        super().__init__()
        self.snowflake_conn_id = snowflake_conn_id
        self.table = table
        self.pipe = pipe
        self.database = database
        self.schema = schema
        self._settings: SnowpipeConnection | None = None

    @classmethod
    def get_connection_form_widgets(cls) -> dict[str, Any]:
        """The form's own fields; Airflow asks for them before 3.2."""
        return form_widgets()

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """What the form makes of the fields that all connections have; Airflow asks for it before 3.2."""
        return form_behaviour()

    def account_url(self) -> str:
        """The account's address, ``https://<host>[:<port>]``."""
        return self._connection().account_url()

    def account(self) -> str:
        """The account's identifier."""
        return self._connection().account()

    def credentials(self) -> Credentials:
        """The connection's credentials."""
        return self._connection().credentials()

    def ca_bundle(self) -> str | None:
        """The PEM file of trusted roots, None for the environment's or the public ones."""
        return self._connection().ca_bundle()

    def pipe_name(self) -> PipeName:
        """The pipe that this hook is for."""
        return self._pipe_of(self._connection())

    async def async_pipe_name(self) -> PipeName:
        """The pipe that this hook is for, on an event loop, which does not wait for the connection."""
        return self._pipe_of(await self._async_connection())

    def get_client(self, *, retry: RetryPolicy | None = None) -> SnowpipeClient:
        """Make a client of the pipe; the caller closes it.

        :param retry: pauses and budget of its requests
        :raises ConfigurationError: if the connection lacks something
        """
        settings = self._connection()
        return _client(settings, self._pipe_of(settings), retry)

    async def async_get_client(self, *, retry: RetryPolicy | None = None) -> SnowpipeClient:
        """Make a client on an event loop, which waits for neither the connection nor the key's file.

        :param retry: pauses and budget of its requests
        """
        settings = await self._async_connection()
        return await asyncio.to_thread(_client, settings, self._pipe_of(settings), retry)

    def get_conn(self) -> SnowpipeClient:
        """Make a client of the pipe, under the name that every Airflow hook has for it."""
        return self.get_client()

    def channel_statuses(
        self, channels: Sequence[str], *, retry: RetryPolicy | None = None
    ) -> dict[str, ChannelStatus]:
        """Ask once after channels of the pipe, 100 a request.

        :param channels: the channels' names
        :param retry: pauses and budget of each request
        """
        with self.get_client(retry=retry) as client:
            return client.channel_statuses(channels)

    async def async_channel_statuses(
        self, channels: Sequence[str], *, retry: RetryPolicy | None = None
    ) -> dict[str, ChannelStatus]:
        """Ask once after channels of the pipe without blocking the event loop.

        :param channels: the channels' names
        :param retry: pauses and budget of each request
        """
        client = await self.async_get_client(retry=retry)
        try:
            return await asyncio.to_thread(client.channel_statuses, channels)
        finally:
            client.close()

    def list_channels(self) -> list[ListedChannel]:
        """List the channels of the pipe by ``SHOW CHANNELS``, as far as the role may see them.

        :raises SqlError: if the statement fails, or signing in for it
        """
        return self._account().channels(self.pipe_name())

    async def async_list_channels(self) -> list[ListedChannel]:
        """List the channels of the pipe without blocking the event loop."""
        await self._async_connection()
        return await asyncio.to_thread(self.list_channels)

    def get_load_history(self, *, retry: RetryPolicy | None = None) -> LoadHistory:
        """Make a source of what became of files; here ``table`` is the table that they are loaded into.

        With ``pipe`` it is the file pipe's own report, and ``COPY_HISTORY`` of ``table`` where that is
        refused; without, ``COPY_HISTORY``. The caller closes it.

        :param retry: pauses and budget of each request to the pipe
        :raises ConfigurationError: if the connection lacks something
        """
        from airflow_provider_snowpipe.hooks.load_history import load_history

        return load_history(self._connection(), self._names(), retry)

    async def async_get_load_history(self, *, retry: RetryPolicy | None = None) -> LoadHistory:
        """Make a source of what became of files, without blocking the event loop.

        :param retry: pauses and budget of each request to the pipe
        """
        from airflow_provider_snowpipe.hooks.load_history import load_history

        return await asyncio.to_thread(load_history, await self._async_connection(), self._names(), retry)

    def list_stage(self, stage: str, prefix: str = "") -> list[str]:
        """List the files of a stage by ``LIST``: their paths below it, below an external one their URLs.

        :param stage: the stage, with or without a path
        :param prefix: only files whose path below that begins so
        :raises SqlError: if the statement fails, or signing in for it
        """
        from airflow_provider_snowpipe.hooks.load_history import staged_files

        return staged_files(self._connection(), self._names(), stage, prefix)

    def table_columns(self) -> tuple[TableColumn, ...]:
        """Describe the columns of the table whose default pipe this hook is for.

        :raises SqlError: if there is no such table, or signing in fails
        :raises ConfigurationError: if the pipe is not a table's default pipe
        """
        return self._account().table_columns(self.pipe_name())

    def columns_for_keys(self) -> tuple[TableColumn, ...]:
        """Describe the columns that keys of rows have to match, or their values are lost.

        :return: none where the table widens itself (``ENABLE_SCHEMA_EVOLUTION``), or the pipe is not a
            table's default pipe, so that the keys are what its own query makes of them
        :raises SqlError: if there is no such table
        :raises SnowpipeError: if the account does not answer, or refuses the credentials
        """
        return self._account().columns_for_keys(self.pipe_name())

    def run_sql(self, statement: str, values: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Run one statement in the account; its rows, with the columns' names in lower case.

        :param statement: the statement, with ``%s`` for each value that it binds
        :param values: the values
        :raises SqlError: if it fails, or signing in for it
        """
        return self._account().rows(statement, values)

    @contextmanager
    def offset_tokens(self) -> Iterator[Callable[[str, str], None]]:
        """Sign in to set committed offset tokens; what it gives sets one channel's, whoever writes to it.

        ``compare_and_set`` of ``streaming.admin`` makes sure first that nobody does.

        :raises SqlError: if a statement fails, or signing in
        :raises ConfigurationError: if the pipe's table cannot be found
        """
        with self._account().offset_tokens(self.pipe_name()) as set_token:
            yield set_token

    def set_offset_token(self, channel: str, token: str) -> None:
        """Set a channel's committed offset token by the system function, whoever writes to it.

        :param channel: the channel's name
        :param token: the token
        :raises SqlError: if the statement fails
        :raises ConfigurationError: if the pipe's table cannot be found
        """
        with self.offset_tokens() as set_token:
            set_token(channel, token)

    def test_connection(self) -> tuple[bool, str]:
        """Check the connection as a load would use it, then the channel listing that backups need.

        :return: whether all is well, and what is, or which step failed and what to do
        """
        from airflow_provider_snowpipe.streaming.limits import RetryPolicy

        retry = RetryPolicy(budget_seconds=_TEST_BUDGET_SECONDS)
        step = "settings"
        try:
            settings = self._connection()
            pipe = self._pipe_to_test(settings)
            with _client(settings, pipe or _UNNAMED_PIPE, retry) as client:
                step = "account URL and credentials"
                host = client.ingest_host()
                step = "token for the ingest host"
                client.scoped_token()
                if pipe is None:
                    return (
                        True,
                        f"Credentials accepted, ingest host {host}. No default pipe or table to check.",
                    )
                step = "pipe"
                client.pipe_info()
            step = "channel listing"
            channels = len(self.list_channels())
        except SnowpipeError as error:
            return False, f"Failed at: {step}. {str(error).rstrip('.')}. {_REMEDIES[step]}"
        return (
            True,
            f"Credentials accepted, ingest host {host}, pipe {pipe} is there, {channels} channel(s) listed.",
        )

    def _connection(self) -> SnowpipeConnection:
        if self._settings is None:
            connection = self.get_connection(self.snowflake_conn_id)
            self._settings = SnowpipeConnection.of(connection, connection.extra_dejson)
        return self._settings

    async def _async_connection(self) -> SnowpipeConnection:
        from airflow.providers.common.compat.connection import get_async_connection, get_async_extra_dejson

        if self._settings is None:
            connection: Any = await get_async_connection(self.snowflake_conn_id)
            self._settings = SnowpipeConnection.of(connection, await get_async_extra_dejson(connection))
        return self._settings

    def _account(self) -> AccountSql:
        from airflow_provider_snowpipe.hooks.account_sql import AccountSql

        return AccountSql(self._connection())

    def _names(self) -> dict[str, str | None]:
        return {"table": self.table, "pipe": self.pipe, "database": self.database, "schema": self.schema}

    def _pipe_of(self, settings: SnowpipeConnection) -> PipeName:
        return settings.pipe_name(
            table=self.table, pipe=self.pipe, database=self.database, schema=self.schema
        )

    def _pipe_to_test(self, settings: SnowpipeConnection) -> PipeName | None:
        named = self.table or self.pipe or settings.extra.get("table") or settings.extra.get("pipe")
        return self._pipe_of(settings) if named else None


def _client(settings: SnowpipeConnection, pipe: PipeName, retry: RetryPolicy | None) -> SnowpipeClient:
    from airflow_provider_snowpipe.streaming.client import SnowpipeClient

    return SnowpipeClient(
        settings.account_url(), settings.credentials(), pipe, ca_bundle=settings.ca_bundle(), retry=retry
    )


# -- The connection's form before Airflow 3.2, made of the metadata that a later Airflow reads by itself --


def form_widgets() -> dict[str, Any]:
    """The fields of the extra, as WTForms has them (observed with Airflow 2.11.2 and 3.1.8).

    Airflow 3.1 has no WTForms and puts its own classes in their places while it calls this.
    """
    from flask_appbuilder.fieldwidgets import BS3PasswordFieldWidget, BS3TextFieldWidget
    from wtforms import PasswordField, StringField
    from wtforms.validators import Optional, any_of

    def field(label: str, description: str, schema: dict[str, Any]) -> Any:
        if schema.get("format") == "password":
            return PasswordField(
                label, widget=BS3PasswordFieldWidget(), description=description, validators=[Optional()]
            )
        choices = schema.get("enum")
        return StringField(
            label,
            widget=BS3TextFieldWidget(),
            description=f"{description}: {', '.join(choices)}" if choices else description,
            validators=[any_of(choices)] if choices else [Optional()],
            default=schema.get("default"),
        )

    return {name: field(**described) for name, described in _connection_type()["conn-fields"].items()}


def form_behaviour() -> dict[str, Any]:
    """What is hidden, renamed and explained of the fields that every connection has."""
    return {name.replace("-", "_"): value for name, value in _connection_type()["ui-field-behaviour"].items()}


def _connection_type() -> dict[str, Any]:
    found: dict[str, Any] = get_provider_info()["connection-types"][0]
    return found

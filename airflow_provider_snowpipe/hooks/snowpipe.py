"""The hook of Snowpipe Streaming: from an Airflow connection to the channels of one pipe."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_snowpipe.get_provider_info import get_provider_info
from airflow_provider_snowpipe.hooks.account import AccountHook
from airflow_provider_snowpipe.hooks.connection import SnowpipeConnection
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SnowpipeError, SqlError
from airflow_provider_snowpipe.streaming.names import (
    COMPARED_SUFFIX,
    PipeName,
    counted,
    full_name,
    quote_identifier,
)
from airflow_provider_snowpipe.streaming.progress import UPDATE_OFFSET_TOKEN, ListedChannel, show_channels

if TYPE_CHECKING:
    from airflow_provider_snowpipe.streaming.client import SnowpipeClient
    from airflow_provider_snowpipe.streaming.limits import RetryPolicy
    from airflow_provider_snowpipe.streaming.progress import ChannelStatus
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
_MISSING_OBJECT = frozenset({2003, 2043})
_MOST_ROLES = 50
_UNNAMED_PIPE = PipeName("NONE", "NONE", "NONE")
"""Stands in where a connection names no pipe and only the account is asked; it is never sent."""


class SnowpipeHook(AccountHook):
    """Make clients of Snowpipe Streaming from a connection of type ``snowflake`` or ``snowpipe``.

    The constructor does no I/O. Names of database, schema, table and pipe are sent exactly as given.

    :param snowflake_conn_id: the connection's id
    :param table: load through this table's default pipe, ``<table>-STREAMING``
    :param pipe: load through this pipe; not together with ``table``
    :param database: the pipe's database, None for the connection's
    :param schema: the pipe's schema, None for the connection's
    """

    conn_type = "snowpipe"
    hook_name = "Snowpipe Streaming"

    @classmethod
    def of(cls, task: Any) -> Self:
        """Make the hook of an operator, sensor, notifier or trigger that has these parameters.

        :param task: has them as attributes of their names, rendered
        """
        return cls(task.snowflake_conn_id, **names_of(task))

    @classmethod
    def get_connection_form_widgets(cls) -> dict[str, Any]:
        """The form's own fields; Airflow asks for them before 3.2.

        They are the fields of the extra, as WTForms has them (observed with Airflow 2.11.2 and 3.1.8).
        Airflow 3.1 has no WTForms and replaces them by its own classes while it calls this.
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

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """What the form makes of the fields that all connections have; Airflow asks for it before 3.2."""
        behaviour = _connection_type()["ui-field-behaviour"]
        return {name.replace("-", "_"): value for name, value in behaviour.items()}

    def pipe_name(self) -> PipeName:
        """The pipe that this hook is for."""
        return self._pipe_of(self._connection())

    def get_client(self, *, retry: RetryPolicy | None = None) -> SnowpipeClient:
        """Make a client of the pipe; the caller closes it.

        :raises ConfigurationError: if the connection lacks something
        """
        settings = self._connection()
        return _client(settings, self._pipe_of(settings), retry)

    def get_conn(self) -> SnowpipeClient:
        """Make a client of the pipe, under the name that every Airflow hook has for it."""
        return self.get_client()

    def channel_statuses(
        self, channels: Sequence[str], *, retry: RetryPolicy | None = None
    ) -> dict[str, ChannelStatus]:
        """Ask once after channels of the pipe, 100 a request."""
        with self.get_client(retry=retry) as client:
            return client.channel_statuses(channels)

    def report_rejected(self, statuses: Mapping[str, ChannelStatus]) -> None:
        """Record in the channels' tokens that their rejected rows are reported; call it when they are.

        :param statuses: the statuses by which they are reported
        """
        from airflow_provider_snowpipe.streaming.admin import mark_reported

        try:
            with self.get_client() as client:
                mark_reported(client, statuses)
        except SnowpipeError as error:
            self.log.warning("the next load reports the rejected rows once more: %s", error)

    def list_channels(self) -> list[ListedChannel]:
        """List the channels of the pipe by ``SHOW CHANNELS``, as far as the role may see them.

        Channels by which tasks of a write agree are left out: their tokens are not positions.

        :raises SqlError: if a statement fails, or signing in for it, or there is no such pipe
        """
        from airflow_provider_snowpipe.streaming.table_schema import table_of

        pipe = self.pipe_name()
        rows = self.run_sql(show_channels(pipe))
        if not rows:
            is_default = pipe.default_table is not None
            self.run_sql(f"DESCRIBE TABLE {table_of(pipe)}" if is_default else f"DESCRIBE PIPE {pipe.quoted}")
        found = map(ListedChannel.from_row, rows)
        return [one for one in found if not one.name.endswith(COMPARED_SUFFIX)]

    def table_columns(self) -> tuple[TableColumn, ...]:
        """Describe the columns of the table behind this hook's default pipe.

        :raises SqlError: if there is no such table, or signing in fails
        :raises ConfigurationError: if the pipe is not a table's default pipe
        """
        from airflow_provider_snowpipe.streaming.table_schema import columns_of_describe, table_of

        return columns_of_describe(self.run_sql(f"DESCRIBE TABLE {table_of(self.pipe_name())}"))

    def columns_for_keys(self) -> tuple[TableColumn, ...]:
        """Describe the columns that keys of rows have to match, or their values are lost.

        Each load asks, so this is the SQL API: importing the connector alone takes half a second.

        :return: none where the table widens itself, or it is not a default pipe, whose query makes the keys
        :raises SqlError: if there is no such table
        :raises SnowpipeError: if the account does not answer, or refuses the credentials
        """
        from airflow_provider_snowpipe.bulk.statement_client import StatementClient
        from airflow_provider_snowpipe.streaming.table_schema import (
            columns_of_describe,
            show_table,
            table_of,
            widens_itself,
        )

        pipe, settings = self.pipe_name(), self._connection()
        if pipe.default_table is None:
            return ()
        client = StatementClient(
            settings.account_url(),
            settings.credentials(),
            role=settings.text("role"),
            ca_bundle=settings.ca_bundle(),
        )
        with closing(client):
            columns = columns_of_describe(client.rows(f"DESCRIBE TABLE {table_of(pipe)}"))
            return () if widens_itself(client.rows(show_table(pipe)), pipe.default_table) else columns

    @contextmanager
    def offset_tokens(self) -> Iterator[Callable[[str, str], None]]:
        """Sign in to set committed offset tokens; what it gives sets one channel's, whoever writes to it.

        The sign-in comes first, so that little time passes between reading a token and setting it.

        :raises SqlError: if a statement fails, or signing in
        :raises ConfigurationError: if the pipe's table cannot be found
        """
        pipe = self.pipe_name()
        with self.sql_session("set offset tokens") as run:

            def table_of(channel: str) -> str:
                if pipe.default_table:
                    return pipe.default_table
                for row in run(show_channels(pipe)):
                    if (listed := ListedChannel.from_row(row)).name == channel:
                        return listed.table
                raise ConfigurationError(
                    f"SHOW CHANNELS does not list channel {channel!r} of pipe {pipe}, so its table is "
                    "unknown: check the channel's name and that the role may see the pipe"
                )

            def set_token(channel: str, token: str) -> None:
                name = full_name(pipe.database, pipe.schema, table_of(channel))
                run(UPDATE_OFFSET_TOKEN, (name, channel, token))

            yield set_token

    def set_offset_token(self, channel: str, token: str) -> None:
        """Set a channel's committed offset token by the system function, whoever writes to it.

        :raises SqlError: if the statement fails
        :raises ConfigurationError: if the pipe's table cannot be found
        """
        with self.offset_tokens() as set_token:
            set_token(channel, token)

    def named_pipe(self) -> PipeName | None:
        """The pipe, None where neither the hook nor its connection names one or a table."""
        settings = self._connection()
        named = self.table or self.pipe or settings.text("table") or settings.text("pipe")
        return self._pipe_of(settings) if named else None

    def account_client(self, *, retry: RetryPolicy | None = None) -> SnowpipeClient:
        """Make a client that needs no pipe for what is asked of the account alone."""
        return _client(self._connection(), self.named_pipe() or _UNNAMED_PIPE, retry)

    def missing_grants(self, role: str) -> list[str]:
        """SQL statements that grant a role what streaming through the pipe takes and the role lacks.

        :param role: its name; what it inherits from other roles counts
        :return: nothing where the role has all of it ("Access control" of Snowpipe Streaming)
        :raises SqlError: if grants cannot be shown, or signing in fails
        """
        pipe = self.pipe_name()
        with self.sql_session("show grants") as run:
            roles = _roles_of(run, role)
            return [
                f"GRANT {privilege} ON {kind} {name} TO ROLE {quote_identifier(role)}"
                for privilege, kind, name in _privileges(run, pipe)
                if not _has(run, roles, privilege, kind, name)
            ]

    def test_connection(self) -> tuple[bool, str]:
        """Check the connection as a load would use it, then the channel listing that backups need.

        :return: whether all is well, and what is, or which step failed and what to do
        """
        from airflow_provider_snowpipe.streaming.limits import RetryPolicy

        retry = RetryPolicy(budget_seconds=_TEST_BUDGET_SECONDS)
        step = "settings"
        try:
            pipe = self.named_pipe()
            with self.account_client(retry=retry) as client:
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
            f"Credentials accepted, ingest host {host}, pipe {pipe} is there, "
            f"{counted(channels, 'channel')} listed.",
        )

    def _pipe_of(self, settings: SnowpipeConnection) -> PipeName:
        return settings.pipe_name(**names_of(self))


def names_of(task: Any) -> dict[str, Any]:
    """Return table, pipe, database and schema of an operator, sensor, notifier or trigger."""
    return {name: getattr(task, name) for name in ("table", "pipe", "database", "schema")}


def refuse_two_pipes(table: str | None, pipe: str | None) -> None:
    """Refuse a table, which stands for its default pipe, beside a pipe."""
    if table is not None and pipe is not None:
        raise ConfigurationError(f"table {table!r} and pipe {pipe!r} are both given: drop one of them")


def _client(settings: SnowpipeConnection, pipe: PipeName, retry: RetryPolicy | None) -> SnowpipeClient:
    from airflow_provider_snowpipe.streaming.client import SnowpipeClient

    return SnowpipeClient(
        settings.account_url(), settings.credentials(), pipe, ca_bundle=settings.ca_bundle(), retry=retry
    )


def _connection_type() -> dict[str, Any]:
    found: dict[str, Any] = get_provider_info()["connection-types"][0]
    return found


def _roles_of(run: Callable[..., list[dict[str, Any]]], role: str) -> set[str]:
    """The role, those that it inherits from, and PUBLIC, which everybody has."""
    found, waiting = {"PUBLIC"}, [role]
    while waiting and len(found) < _MOST_ROLES:
        one = waiting.pop()
        found.add(one)
        rows = run(f"SHOW GRANTS TO ROLE {quote_identifier(one)}")
        inherited = {_bare(row["name"]) for row in rows if row["granted_on"] == "ROLE"}
        waiting += sorted(inherited - found)
    return found


def _privileges(run: Callable[..., list[dict[str, Any]]], pipe: PipeName) -> Iterator[tuple[str, str, str]]:
    """Privilege, kind and name of what Snowpipe Streaming asks for ("Access control")."""
    from airflow_provider_snowpipe.streaming.table_schema import show_table, widens_itself

    yield "USAGE", "DATABASE", quote_identifier(pipe.database)
    yield "USAGE", "SCHEMA", full_name(pipe.database, pipe.schema)
    table = pipe.default_table
    if table is None:
        yield "OPERATE", "PIPE", pipe.quoted
        return
    yield "INSERT", "TABLE", full_name(pipe.database, pipe.schema, table)
    try:
        widens = widens_itself(run(show_table(pipe)), table)
    except SqlError:  # of a schema that the role may not use, which is reported above
        return
    if widens:
        yield "EVOLVE SCHEMA", "TABLE", full_name(pipe.database, pipe.schema, table)


def _has(
    run: Callable[..., list[dict[str, Any]]], roles: set[str], privilege: str, kind: str, name: str
) -> bool:
    try:
        rows = run(f"SHOW GRANTS ON {kind} {name}")
    except SqlError as error:
        if error.errno in _MISSING_OBJECT:
            return False
        raise
    return any(
        row["privilege"] in (privilege, "OWNERSHIP") and _bare(row["grantee_name"]) in roles for row in rows
    )


def _bare(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name

"""The few SQL statements about channels, through Snowflake's own connector and the same connection."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_provider_snowpipe.hooks.connection import SNOWFLAKE, SnowpipeConnection
from airflow_provider_snowpipe.streaming.errors import (
    IF_NO_ANSWER,
    ConfigurationError,
    SnowpipeError,
    SqlError,
)
from airflow_provider_snowpipe.streaming.names import COMPARED_SUFFIX, TOPIC_ID_SUFFIX, PipeName, full_name
from airflow_provider_snowpipe.streaming.progress import UPDATE_OFFSET_TOKEN, ListedChannel, show_channels

if TYPE_CHECKING:
    from airflow_provider_snowpipe.streaming.table_schema import TableColumn

RunSql = Callable[..., list[dict[str, Any]]]
"""Runs a statement with the values that it binds, and whatever else the connector's cursor is to be told; the
rows' keys are the columns' names in lower case."""

_LOGIN_SECONDS = 30
_LONGEST_HEAD = 60
_MISSING = frozenset({2003, 2043})
"""Numbers of Snowflake's errors for an object that is not there, or that the role may not see."""
_NOT_CONNECTED = 250001
"""The connector's number for an account that does not answer and for a refused sign-in (``errorcode.py``)."""
_CA_VARIABLE = "REQUESTS_CA_BUNDLE"
_IN_SMALL_LETTERS = frozenset({"oauth", "programmatic_access_token", "snowflake", "snowflake_jwt"})
"""Authenticators that Airflow's hook compares as they are written."""
_ca_lock = RLock()


@dataclass(frozen=True, slots=True)
class AccountSql:
    """SQL in the account of a connection; each call signs in, runs one statement and leaves.

    Several statements share a sign-in by :meth:`session`.

    A connection of type ``snowflake`` goes through Airflow's own hook, so that its proxy, its warehouse and
    its other fields mean what they mean there. One of type ``snowpipe`` signs in with what it streams with.

    :param settings: the connection
    """

    settings: SnowpipeConnection

    def channels(self, pipe: PipeName) -> list[ListedChannel]:
        """List the channels of a pipe, as far as the role may see them.

        Channels beside others, as for a topic's id, are left out: they hold no rows, and their tokens are no
        positions.

        :param pipe: the pipe
        :raises SqlError: if the statement fails
        """
        found = (ListedChannel.from_row(row) for row in self.rows(show_channels(pipe)))
        return [one for one in found if not one.name.endswith((TOPIC_ID_SUFFIX, COMPARED_SUFFIX))]

    def table_columns(self, pipe: PipeName) -> tuple[TableColumn, ...]:
        """Describe the table of a default pipe.

        :param pipe: the pipe
        :raises SqlError: if the statement fails, as it does where there is no such table
        """
        from airflow_provider_snowpipe.streaming.table_schema import columns_of_describe, table_of

        return columns_of_describe(self.rows(f"DESCRIBE TABLE {table_of(pipe)}"))

    def columns_for_keys(self, pipe: PipeName) -> tuple[TableColumn, ...]:
        """Describe the table of a default pipe, unless it widens itself; nothing of a pipe of its own.

        Each load asks, so this is the SQL API with what the load streams with: importing the connector alone
        takes half a second.

        :param pipe: the pipe
        :raises SqlError: if a statement fails, as it does where there is no such table
        :raises SnowpipeError: if the account does not answer, or refuses the credentials
        """
        from airflow_provider_snowpipe.bulk.statement_client import StatementClient
        from airflow_provider_snowpipe.streaming.table_schema import (
            columns_of_describe,
            show_table,
            table_of,
            widens_itself,
        )

        if pipe.default_table is None:
            return ()
        settings = self.settings
        client = StatementClient(
            settings.account_url(),
            settings.credentials(),
            role=settings.extra.get("role") or None,
            ca_bundle=settings.ca_bundle(),
        )
        with closing(client):
            columns = columns_of_describe(client.rows(f"DESCRIBE TABLE {table_of(pipe)}"))
            return () if widens_itself(client.rows(show_table(pipe)), pipe.default_table) else columns

    @contextmanager
    def offset_tokens(self, pipe: PipeName) -> Iterator[Callable[[str, str], None]]:
        """Sign in to set committed offset tokens by the system function; what it gives sets one.

        The sign-in comes first, so that little time passes between reading a token and setting it.

        :param pipe: the pipe; where it is not a table's default pipe, ``SHOW CHANNELS`` tells the tables
        :raises SqlError: if the sign-in fails, or a statement
        :raises ConfigurationError: if a channel's table cannot be found
        """
        with self.session("set offset tokens") as run:

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

    def list_stage(self, location: str) -> list[str]:
        """List the files of a stage, under the names that ``LIST`` gives them.

        :param location: the stage with ``@``, and the start of a path
        :raises SqlError: if the statement fails
        """
        return [str(row["name"]) for row in self.rows("LIST %s", (location,))]

    def rows(self, statement: str, values: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Run one statement; its rows, with the columns' names in lower case.

        :param statement: the statement, with ``%s`` for each value that it binds
        :param values: the values
        :raises SqlError: if the statement fails, or the sign-in for it
        """
        with self.session(_head(statement, values)) as run:
            return run(statement, values)

    @contextmanager
    def session(self, purpose: str) -> Iterator[RunSql]:
        """Sign in once for several statements; what it gives runs one, as :meth:`rows` does.

        :param purpose: what the session is for, for the text of a refused sign-in
        :raises SqlError: if the sign-in fails, or a statement
        """
        with _trusting(self.settings.ca_bundle()):
            with self._explained(purpose):
                connection = self._connect()
            with connection:
                yield partial(self._run, connection)

    def _run(
        self, connection: Any, statement: str, values: Sequence[str] | None = None, **options: Any
    ) -> list[dict[str, Any]]:
        with self._explained(_head(statement, values)):
            cursor = connection.cursor()
            cursor.execute(statement, values, **options)
            names = [column[0].lower() for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    @contextmanager
    def _explained(self, shown: str) -> Iterator[None]:
        """Raise what goes wrong as this package's errors.

        :param shown: what was tried
        """
        from requests import RequestException
        from snowflake.connector import errors

        try:
            yield
        except errors.Error as error:
            failed = SqlError(
                f"connection {self.settings.conn_id!r}: {shown!r} failed: {_first_line(error)}"
                f"{_remedy(shown, error.errno)}",
                errno=error.errno,
            )
            if failed.retryable and error.errno == _NOT_CONNECTED:
                failed = SqlError(f"{failed}. {IF_NO_ANSWER}", errno=error.errno)
            raise failed from None
        except SnowpipeError:
            raise
        except RequestException as error:
            raise SqlError(
                f"connection {self.settings.conn_id!r}: no sign-in for SQL: "
                f"{urlsplit(self.settings.account_url()).netloc} does not answer ({type(error).__name__}). "
                f"{IF_NO_ANSWER}"
            ) from None
        except ValueError as error:
            raise ConfigurationError(f"connection {self.settings.conn_id!r}: {error}") from None

    def _connect(self) -> Any:
        if self.settings.conn_type == SNOWFLAKE:
            return _snowflake_hook(self.settings).get_conn()
        from snowflake.connector import connect

        return connect(**connector_arguments(self.settings))


def _snowflake_hook(settings: SnowpipeConnection) -> Any:
    """Airflow's own hook on a connection that is at hand: a triggerer's thread must not look it up again."""
    from airflow.providers.common.compat.sdk import Connection
    from airflow.providers.snowflake.hooks.snowflake import SnowflakeHook

    extra = dict(settings.extra)
    if isinstance(method := extra.get("authenticator"), str) and method.lower() in _IN_SMALL_LETTERS:
        extra["authenticator"] = method.lower()
    connection = Connection(
        conn_id=settings.conn_id,
        conn_type=SNOWFLAKE,
        host=settings.host,
        port=settings.port,
        login=settings.login,
        password=settings.password,
        schema=settings.schema,
        extra=json.dumps(extra),
    )

    class HookOfConnection(SnowflakeHook):
        @classmethod
        def get_connection(cls, conn_id: str) -> Any:
            return connection if conn_id == settings.conn_id else super().get_connection(conn_id)

        def get_private_key(self) -> Any:
            return settings.signing_key() or super().get_private_key()

        def _get_conn_params(self) -> dict[str, Any]:
            # Private in the Snowflake provider 6.20.0; no public method changes the connector's arguments.
            # The hook hands the key on as bytes, and the connector would read it once more at each sign-in.
            given: dict[str, Any] = super()._get_conn_params()
            if given.get("private_key") and (key := settings.signing_key()):
                given["private_key"] = key
            return given

    return HookOfConnection(snowflake_conn_id=settings.conn_id)


def connector_arguments(settings: SnowpipeConnection) -> dict[str, Any]:
    """What Snowflake's connector needs to sign in as a ``snowpipe`` connection does.

    :param settings: the connection
    :raises ConfigurationError: if something is missing
    """
    from airflow_provider_snowpipe.streaming.auth import KeyPair, ProgrammaticAccessToken

    address = urlsplit(settings.account_url())
    credentials = settings.credentials()
    given: dict[str, Any] = {
        "account": settings.account(),
        "host": address.hostname,
        "port": address.port or 443,
        "user": settings.login,
        "role": settings.extra.get("role") or None,
        "warehouse": settings.extra.get("warehouse") or None,
        "application": "AIRFLOW",
        "login_timeout": _LOGIN_SECONDS,
    }
    if isinstance(credentials, KeyPair):
        given |= {"authenticator": "SNOWFLAKE_JWT", "private_key": credentials.signing_key}
    elif isinstance(credentials, ProgrammaticAccessToken):
        given |= {"authenticator": "PROGRAMMATIC_ACCESS_TOKEN", "token": credentials.bearer()}
    else:
        given |= {"authenticator": "oauth", "token": credentials.bearer()}
        given.pop("user")
    return {name: value for name, value in given.items() if value is not None}


@contextmanager
def _trusting(ca_bundle: str | None) -> Iterator[None]:
    """Let the connector trust a bundle, which it takes from the environment only (observed with 4.8)."""
    if ca_bundle is None or os.environ.get(_CA_VARIABLE) == ca_bundle:
        yield
        return
    with _ca_lock:
        before = os.environ.get(_CA_VARIABLE)
        os.environ[_CA_VARIABLE] = ca_bundle
        try:
            yield
        finally:
            if before is None:
                del os.environ[_CA_VARIABLE]
            else:
                os.environ[_CA_VARIABLE] = before


def _head(statement: str, values: Sequence[str] | None = None) -> str:
    """The words of a statement that tell which one it is, up to the first parenthesis."""
    words = statement.partition("(")[0]
    words = words if len(words) <= _LONGEST_HEAD else f"{words[:_LONGEST_HEAD]}…"
    for value in values or ():
        words = words.replace("%s", value, 1)
    return words


def _remedy(shown: str, errno: int | None) -> str:
    """What to do about an object that is not there, with a space before; empty for other errors."""
    if errno not in _MISSING:
        return ""
    make = "make the stage with CREATE STAGE" if shown.startswith("LIST ") else "create it"
    return f" Check the name, and that the connection's role may use it, or {make}"


def _first_line(error: Exception) -> str:
    text = str(getattr(error, "msg", None) or error) or type(error).__name__
    return " ".join(text.split())[:300]

"""The account of an Airflow connection: its SQL, the files of its stages, and what became of them."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cache, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from airflow.providers.common.compat.sdk import BaseHook, conf

from airflow_provider_snowpipe.bulk.ledger import Ledger, LedgerName
from airflow_provider_snowpipe.bulk.load_history import (
    REMEMBERED,
    CopyHistory,
    LoadHistory,
    ReportThenSql,
    older_copies,
)
from airflow_provider_snowpipe.bulk.staged_files import COPY_HISTORY, FileLoad, StageReference, copy_history
from airflow_provider_snowpipe.hooks.connection import (
    OAUTH_FIELDS,
    SAME_FIELDS,
    SNOWFLAKE,
    SnowpipeConnection,
)
from airflow_provider_snowpipe.streaming.errors import (
    IF_NO_ANSWER,
    ConfigurationError,
    SnowpipeError,
    SqlError,
)
from airflow_provider_snowpipe.streaming.http import seconds_left
from airflow_provider_snowpipe.streaming.names import PipeName, full_name, grant_remedy, string_literal

if TYPE_CHECKING:
    from airflow_provider_snowpipe.bulk.file_pipe import FilePipeClient
    from airflow_provider_snowpipe.bulk.statement_client import StatementClient
    from airflow_provider_snowpipe.streaming.auth import Credentials
    from airflow_provider_snowpipe.streaming.limits import RetryPolicy

Answer = TypeVar("Answer")
RunSql = Callable[..., list[dict[str, Any]]]
"""Runs a statement with values and other arguments of the cursor; keys of rows are in lower case."""

_LOGIN_SECONDS = 30
_LONGEST_HEAD = 60
_MISSING = frozenset({2003, 2043})
"""Numbers of Snowflake's errors for an object that is not there, or that the role may not see."""
_NOT_CONNECTED = 250001
"""The connector's number for an account that does not answer and for a refused sign-in (``errorcode.py``)."""
_IN_SMALL_LETTERS = frozenset({"oauth", "programmatic_access_token", "snowflake", "snowflake_jwt"})
"""Authenticators that Airflow's hook compares as they are written."""


class AccountHook(BaseHook):
    """Run SQL in the account of a connection of type ``snowflake`` or ``snowpipe``, and ask for its files.

    A connection of type ``snowflake`` signs in through Airflow's own hook, by which its fields have their
    meaning. One of type ``snowpipe`` signs in with what it streams with. The constructor does no I/O.

    :param snowflake_conn_id: the connection's id
    :param database: where they are, None for the connection's
    :param schema: the same
    """

    conn_name_attr = "snowflake_conn_id"
    default_conn_name = "snowflake_default"

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
        self._session: RunSql | None = None

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

    def database_and_schema(self) -> tuple[str, str]:
        """Database and schema, from the connection where they are not given.

        :raises ConfigurationError: if one of them is missing
        """
        return self._connection().database_and_schema(self.database, self.schema)

    # SQL.

    def run_sql(
        self, statement: str, values: Sequence[str] | None = None, *, session: Any = None, **options: Any
    ) -> list[dict[str, Any]]:
        """Run one statement in the account; its rows, with the columns' names in lower case.

        :param statement: the statement, with ``%s`` for each value that it binds
        :param session: a connection of the connector; None for the one that is open, or a new one
        :param options: other arguments of the connector's cursor
        :raises SqlError: if it fails, or signing in for it
        """
        if session is None:
            if self._session is not None:
                return self._session(statement, values, **options)
            with self.sql_session(statement, values) as run:
                return run(statement, values, **options)
        with _translated_errors(self._connection(), statement, values):
            cursor = session.cursor()
            cursor.execute(statement, values, **options)
            names = [column[0].lower() for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    @contextmanager
    def sql_session(self, purpose: str, values: Sequence[str] | None = None) -> Iterator[RunSql]:
        """Sign in once for several statements; what it gives runs one, as :meth:`run_sql` does.

        :param purpose: what the session is for, or its only statement, for the text of a refused sign-in
        :param values: what that statement binds
        :raises SqlError: if the sign-in fails, or a statement
        """
        with _translated_errors(self._connection(), purpose, values):
            connection = self._connect()
        with connection:
            yield partial(self.run_sql, session=connection)

    def get_statement_client(self, *, retry: RetryPolicy | None = None) -> StatementClient:
        """Make a client of the account's SQL API; the caller closes it.

        :raises ConfigurationError: if the connection lacks something
        """
        from airflow_provider_snowpipe.bulk.statement_client import StatementClient

        settings = self._connection()
        return StatementClient(
            settings.account_url(),
            settings.credentials(),
            warehouse=settings.text("warehouse"),
            role=settings.text("role"),
            ca_bundle=settings.ca_bundle(),
            retry=retry,
        )

    def table_created(self, table: str) -> str | None:
        """When a table was created, as the account writes it, without a warehouse; None for one not seen.

        :raises SqlError: if the statement fails
        """
        place = full_name(*self.database_and_schema())
        with closing(self.get_statement_client()) as client:
            found = client.rows(f"SHOW TABLES LIKE {string_literal(table)} IN SCHEMA {place}")
        # The name is a pattern there.
        return next((str(row["created_on"]) for row in found if row["name"] == table), None)

    # The ledger of loads, and COPY by it.

    @contextmanager
    def load_ledger(self, table: str, name: LedgerName = None) -> Iterator[Ledger]:
        """Sign in to the ledger of loads into a table; other statements run in that session meanwhile.

        :param name: the ledger, alone or with schema and database; None for ``[snowpipe] ledger_table`` of
            the configuration, or ``SNOWPIPE_LOADS`` in the table's schema
        :raises ConfigurationError: if it is not a name of a table
        :raises SqlError: if the sign-in fails
        """
        target = (*self.database_and_schema(), table)
        given = name or conf.get("snowpipe", "ledger_table", fallback=None)
        with self.sql_session("read the load ledger") as run:
            run("ALTER SESSION SET AUTOCOMMIT = TRUE")  # the user's default may be another
            self._session = run
            try:
                yield Ledger.of(run, given, target)
            finally:
                self._session = None

    # The files of a stage.

    def list_files(self, stage: str, prefix: str = "", pattern: str | None = None) -> list[dict[str, Any]]:
        """List the files of a stage by ``LIST``: ``name``, ``size``, ``md5``, ``last_modified``.

        What consoles of object stores make for a folder is not a file: COPY and pipes
        can fail on it (page "Copy data from a Google Cloud Storage stage", directory blobs).

        :param stage: the stage, with or without a path
        :param prefix: only files whose path below that begins so
        :param pattern: only files whose whole path matches this regular expression
        :raises SqlError: if the statement fails, or signing in for it
        """
        location = StageReference.parse(stage, *self.database_and_schema()).location(prefix)
        chosen = () if pattern is None else (pattern,)
        rows = self.run_sql(f"LIST %s{' PATTERN = %s' if chosen else ''}", (location, *chosen))
        return [row for row in rows if not str(row["name"]).endswith("/")]

    def list_stage(self, stage: str, prefix: str = "") -> list[str]:
        """List the files of a stage by ``LIST``: their paths below it, below an external one their URLs.

        :param prefix: only files whose path below that begins so
        :raises SqlError: if the statement fails, or signing in for it
        """
        reference = StageReference.parse(stage)
        return [reference.relative(str(row["name"])) for row in self.list_files(stage, prefix)]

    def stage_url(self, stage: str) -> str | None:
        """The URL that an external stage stands for, None for an internal one.

        :raises SqlError: if the statement fails, or signing in for it
        """
        reference = StageReference.parse(stage, *self.database_and_schema())
        if reference.name[0] in "%~":
            return None
        for row in self.run_sql(f"DESCRIBE STAGE {reference.owner}{reference.name}"):
            if str(row["property"]).upper() == "URL":
                return json.loads(row["property_value"])[0] if row["property_value"] else None
        return None

    # What became of files.

    def past_loads(self, table: str, since: dt.datetime | None = None) -> list[dict[str, Any]]:
        """The files that were loaded into a table, as ``COPY_HISTORY`` reports them, from the oldest.

        :param since: the first timestamp, None for the 14 days that are remembered
        :raises SqlError: if the statement fails, or signing in for it
        """
        earliest = dt.datetime.now(dt.UTC) - REMEMBERED
        statement, values = copy_history(
            (*self.database_and_schema(), table), max(since or earliest, earliest)
        )
        return self.run_sql(statement, values)

    def loads_of(self, table: str, paths: Sequence[str], pipe: str | None = None) -> list[FileLoad]:
        """What ``COPY_HISTORY`` reports of some files, from the oldest load.

        :param paths: their paths below the stage
        :param pipe: only loads by this pipe, None for all
        :raises SqlError: if the statement fails, or signing in for it
        """
        schema, since = self.database_and_schema(), dt.datetime.now(dt.UTC) - REMEMBERED
        statement, values = copy_history(
            (*schema, table), since, (*schema, pipe) if pipe else None, paths=paths
        )
        return [FileLoad.read(row, COPY_HISTORY) for row in self.run_sql(statement, values)]

    def older_copies(self, table: str, paths: Sequence[str], *, by_pipes: bool = False) -> list[FileLoad]:
        """COPY's loads of some files 14 to 64 days ago, as the account's usage history reports them.

        A role without the right to that view gets none, and a warning in the log.

        :param paths: their paths below the stage
        :param by_pipes: True for loads by pipes as well, up to 365 days ago
        :raises SqlError: if a statement fails, or signing in for it
        """
        return older_copies(self.run_sql, (*self.database_and_schema(), table), paths, by_pipes=by_pipes)

    def get_load_history(self, *, retry: RetryPolicy | None = None) -> LoadHistory:
        """Make a source of what became of files; here ``table`` is the table that they are loaded into.

        With ``pipe`` its own report, ``COPY_HISTORY`` of ``table`` otherwise. The caller closes it.

        :raises ConfigurationError: if neither is named, or the connection lacks something
        """
        if not self.table and not self.pipe:
            raise ConfigurationError(
                "no table and no pipe: give table=…, the table that the files are loaded into, or pipe=…, "
                "the file pipe that loads them"
            )
        from airflow_provider_snowpipe.bulk.file_pipe import PipeHistory

        report = None
        if self.pipe:
            try:
                report = PipeHistory(self.get_file_pipe_client(retry=retry))
            except ConfigurationError:
                if not self.table:
                    raise
        if report is None:
            return self._copy_history()
        return ReportThenSql(report, self._copy_history()) if self.table else report

    def get_file_pipe_client(self, *, retry: RetryPolicy | None = None) -> FilePipeClient:
        """Make a client of the file pipe's REST API, here of ``pipe``; the caller closes it.

        :raises ConfigurationError: if the connection holds no key pair, or lacks something
        """
        from airflow_provider_snowpipe.bulk.file_pipe import FilePipeClient
        from airflow_provider_snowpipe.streaming.auth import KeyPair

        settings, credentials = self._connection(), self.credentials()
        if not isinstance(credentials, KeyPair):
            raise ConfigurationError(
                f"connection {self.snowflake_conn_id!r}: the REST API of file pipes takes key pairs only, "
                f"and this connection holds {credentials.token_type}: use one with a key pair; or load by "
                "COPY INTO, and wait for files with table=…"
            )
        name = PipeName(*self.database_and_schema(), self.pipe or "")
        return FilePipeClient(
            settings.account_url(), credentials, name, ca_bundle=settings.ca_bundle(), retry=retry
        )

    def _copy_history(self) -> CopyHistory:
        schema = self.database_and_schema()
        pipe = (*schema, self.pipe) if self.pipe else None
        return CopyHistory(self.run_sql, (*schema, self.table or ""), pipe)

    # The connection.

    def _connection(self) -> SnowpipeConnection:
        if self._settings is None:
            connection = self.get_connection(self.snowflake_conn_id)
            self._settings = SnowpipeConnection.of(connection, connection.extra_dejson)
        return self._settings

    async def in_thread(self, ask: Callable[..., Answer], *given: Any, **named: Any) -> Answer:
        """Call a method without blocking the event loop by the connection, the key file or the answer.

        :param ask: a method of this hook; ``given`` and ``named`` are its arguments
        """
        from airflow.providers.common.compat.connection import get_async_connection, get_async_extra_dejson

        if self._settings is None:
            connection: Any = await get_async_connection(self.snowflake_conn_id)
            self._settings = SnowpipeConnection.of(connection, await get_async_extra_dejson(connection))
        return await asyncio.to_thread(ask, *given, **named)

    def _connect(self) -> Any:
        settings = self._connection()
        if settings.conn_type == SNOWFLAKE:
            return _snowflake_hook(settings).get_conn()
        return _sign_in(settings.ca_bundle(), connector_arguments(settings))


@contextmanager
def _translated_errors(
    settings: SnowpipeConnection, purpose: str, values: Sequence[str] | None
) -> Iterator[None]:
    """Raise what goes wrong as this package's errors."""
    from requests import RequestException
    from snowflake.connector import errors

    try:
        yield
    except errors.Error as error:
        shown, text = _head(purpose, values), str(error.msg or error) or type(error).__name__
        text = " ".join(text.split())[:300]
        failed = SqlError(
            f"connection {settings.conn_id!r}: {shown!r} failed: {text}"
            f"{_remedy(shown, error.errno, grant_remedy(text))}",
            errno=error.errno,
        )
        if failed.retryable and error.errno == _NOT_CONNECTED:
            failed = SqlError(f"{failed}. {IF_NO_ANSWER}", errno=error.errno)
        raise failed from None
    except SnowpipeError:
        raise
    except RequestException as error:
        raise SqlError(
            f"connection {settings.conn_id!r}: {urlsplit(settings.account_url()).netloc} does not answer "
            f"the sign-in for SQL ({type(error).__name__}). {IF_NO_ANSWER}"
        ) from None
    except ValueError as error:
        raise ConfigurationError(f"connection {settings.conn_id!r}: {error}") from None


def _snowflake_hook(settings: SnowpipeConnection) -> Any:
    """Airflow's own hook on a connection that is at hand: a triggerer's thread must not look it up again."""
    from airflow.providers.common.compat.sdk import Connection
    from airflow.providers.snowflake.hooks.snowflake import SnowflakeHook

    connection = Connection(
        conn_type=SNOWFLAKE,
        extra=json.dumps(_hook_extra(settings)),
        **{name: getattr(settings, name) for name in SAME_FIELDS},
    )

    class HookOfConnection(SnowflakeHook):
        @classmethod
        def get_connection(cls, conn_id: str) -> Any:
            return connection if conn_id == settings.conn_id else super().get_connection(conn_id)

        def get_conn(self) -> Any:
            return _sign_in(settings.ca_bundle(), self._get_conn_params())

        def get_private_key(self) -> Any:
            return settings.signing_key() or super().get_private_key()

        def _get_conn_params(self) -> dict[str, Any]:
            # Private in the Snowflake provider 6.20.0; no public method changes the connector's arguments.
            # The hook hands the key on as bytes, and the connector would read it once more at each sign-in.
            given: dict[str, Any] = super()._get_conn_params()
            if given.get("private_key") and (key := settings.signing_key()):
                given["private_key"] = key
            if settings.fetches_tokens:
                given |= {"authenticator": "oauth", "token": settings.credentials().bearer()}
                for name in ("login", "user", "password"):
                    given.pop(name, None)
            return given

    return HookOfConnection(snowflake_conn_id=settings.conn_id)


def _hook_extra(settings: SnowpipeConnection) -> dict[str, Any]:
    """The extra of a connection as Airflow's hook takes it, which fetches no tokens."""
    extra = dict(settings.extra)
    if settings.fetches_tokens:
        extra = {name: value for name, value in extra.items() if name not in OAUTH_FIELDS}
    if isinstance(method := extra.get("authenticator"), str) and method.lower() in _IN_SMALL_LETTERS:
        extra["authenticator"] = method.lower()
    if "//" in (settings.text("host") or ""):  # a URL, as streaming takes it, and the connector does not
        address = urlsplit(settings.account_url())
        extra |= {"host": address.hostname, "port": address.port or extra.get("port") or 443}
    return extra


def connector_arguments(settings: SnowpipeConnection) -> dict[str, Any]:
    """What Snowflake's connector needs to sign in as a ``snowpipe`` connection does."""
    from airflow_provider_snowpipe.streaming.auth import KeyPair, ProgrammaticAccessToken

    address = urlsplit(settings.account_url())
    credentials = settings.credentials()
    given: dict[str, Any] = {
        "account": settings.account(),
        "host": address.hostname,
        "port": 443 if address.port is None else address.port,
        "user": settings.login,
        "role": settings.text("role"),
        "warehouse": settings.text("warehouse"),
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


def _sign_in(ca_bundle: str | None, given: Mapping[str, Any]) -> Any:
    """Connect by Snowflake's connector; the bundle is trusted by this connection and nothing else."""
    from snowflake.connector import connect

    if (left := seconds_left()) < math.inf:
        bounds = dict.fromkeys(("login_timeout", "network_timeout", "socket_timeout"), max(1, int(left)))
        given = {**given, **bounds}
    if ca_bundle is None:
        return connect(**given)
    if find_spec("snowflake.connector.session_manager") is None:  # version 5 takes it as a parameter
        return connect(**given, custom_root_store_path=ca_bundle)
    return _trusting(ca_bundle)(**given)


@cache
def _trusting(ca_bundle: str) -> Any:
    """The connector's connection with other roots, for which version 4 reads the environment only.

    It is private there (4.8.1). Should another version not use it, the server's certificate is refused.
    """
    from snowflake.connector.connection import SnowflakeConnection
    from snowflake.connector.session_manager import ProxySupportAdapter

    class Adapter(ProxySupportAdapter):
        def send(self, request: Any, *given: Any, **options: Any) -> Any:
            sending: Any = super().send
            return sending(request, *given, **{**options, "verify": ca_bundle})

    class Connection(SnowflakeConnection):
        @property
        def _http_config(self) -> Any:
            return self._config_with_roots

        @_http_config.setter
        def _http_config(self, config: Any) -> None:
            self._config_with_roots = config and config.copy_with(adapter_factory=Adapter)

    return Connection


def _head(statement: str, values: Sequence[str | None] | None = None) -> str:
    """The words of a statement that identify it, up to the first parenthesis."""
    words = statement.partition("(")[0]
    words = words if len(words) <= _LONGEST_HEAD else f"{words[:_LONGEST_HEAD]}…"
    for value in values or ():
        words = words.replace("%s", "NULL" if value is None else value, 1)
    return words


def _remedy(shown: str, errno: int | None, grant: str) -> str:
    """What to do about an object that is not there or not open, behind the text; empty for other errors."""
    if errno not in _MISSING:
        return grant
    make = "make the stage with CREATE STAGE" if shown.startswith("LIST ") else "create it"
    may_use = " Check the name, and that the connection's role may use it"
    return f"{grant or may_use}, or {make}"

"""From a connection to what became of files, and to the files of a stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow_provider_snowpipe.bulk.load_history import CopyHistory, LoadHistory, ReportThenSql
from airflow_provider_snowpipe.bulk.stage import StageReference
from airflow_provider_snowpipe.hooks.account_sql import AccountSql
from airflow_provider_snowpipe.hooks.connection import SnowpipeConnection
from airflow_provider_snowpipe.streaming.auth import KeyPair
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.limits import RetryPolicy
from airflow_provider_snowpipe.streaming.names import PipeName

if TYPE_CHECKING:
    from airflow_provider_snowpipe.bulk.file_pipe import FilePipeClient

Names = Mapping[str, str | None]
"""``table``, ``pipe``, ``database`` and ``schema`` as somebody gave them."""


def load_history(settings: SnowpipeConnection, names: Names, retry: RetryPolicy | None) -> LoadHistory:
    """Make a source of what became of files, the best that table, pipe and credentials allow.

    :param settings: the connection
    :param names: the table that is loaded into, the pipe that loads, or both
    :param retry: pauses and budget of each request to the pipe
    :raises ConfigurationError: if neither is named, or something is missing
    """
    table, pipe = names["table"], names["pipe"]
    if not table and not pipe:
        raise ConfigurationError(
            "no table and no pipe: give table=…, the table that the files are loaded into, or pipe=…, the "
            "file pipe that loads them"
        )
    if not pipe:
        return _copy_history(settings, names)
    credentials = _key_pair(settings, table)
    if credentials is None:
        return _copy_history(settings, names)
    from airflow_provider_snowpipe.bulk.file_pipe import PipeHistory

    report = PipeHistory(_file_pipe_client(settings, names, credentials, retry))
    return ReportThenSql(report, _copy_history(settings, names)) if table else report


def file_pipe_client(settings: SnowpipeConnection, names: Names, retry: RetryPolicy | None) -> FilePipeClient:
    """Make a client of a file pipe's REST API.

    :param settings: the connection
    :param names: the pipe, and where it is
    :param retry: pauses and budget of each request
    :raises ConfigurationError: if the connection holds no key pair, or something is missing
    """
    credentials = settings.credentials()
    if not isinstance(credentials, KeyPair):
        raise ConfigurationError(
            f"connection {settings.conn_id!r}: insertFiles takes key pairs only, and this connection holds "
            f"{credentials.token_type}: use a connection with a key pair, or load by COPY INTO"
        )
    return _file_pipe_client(settings, names, credentials, retry)


def staged_files(settings: SnowpipeConnection, names: Names, stage: str, prefix: str) -> list[str]:
    """List the files of a stage: their paths below it, below an external one their URLs.

    :param settings: the connection
    :param names: where the stage is, unless it says so itself
    :param stage: the stage, with or without a path
    :param prefix: only files whose path below that begins so
    :raises ConfigurationError: if something is missing
    :raises SqlError: if the statement fails
    """
    reference = StageReference.parse(stage)
    database, schema = settings.database_and_schema(names["database"], names["schema"])
    listed = AccountSql(settings).list_stage(reference.location(prefix, database=database, schema=schema))
    return [reference.relative(name) for name in listed]


def _key_pair(settings: SnowpipeConnection, table: str | None) -> KeyPair | None:
    """The key pair, which the REST API of pipes needs; None where there is a table to ask SQL about."""
    try:
        credentials = settings.credentials()
    except ConfigurationError:
        if table:
            return None
        raise
    if isinstance(credentials, KeyPair):
        return credentials
    if table:
        return None
    raise ConfigurationError(
        f"connection {settings.conn_id!r}: the REST API of file pipes takes key pairs only, and this "
        f"connection holds {credentials.token_type}: use a key pair, or give table=… as well, so that "
        "COPY_HISTORY is asked"
    )


def _file_pipe_client(
    settings: SnowpipeConnection, names: Names, credentials: KeyPair, retry: RetryPolicy | None
) -> FilePipeClient:
    from airflow_provider_snowpipe.bulk.file_pipe import FilePipeClient

    return FilePipeClient(
        settings.account_url(),
        credentials,
        PipeName(*settings.database_and_schema(names["database"], names["schema"]), names["pipe"] or ""),
        ca_bundle=settings.ca_bundle(),
        retry=retry,
    )


def _copy_history(settings: SnowpipeConnection, names: Names) -> CopyHistory:
    schema, pipe = settings.database_and_schema(names["database"], names["schema"]), names["pipe"]
    return CopyHistory(
        AccountSql(settings).rows, (*schema, names["table"] or ""), (*schema, pipe) if pipe else None
    )

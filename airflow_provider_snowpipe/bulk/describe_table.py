"""The columns of a table, asked for over the SQL API by who has no connector.

A DataFrame's writer runs where neither Airflow nor the connector need be installed, with the same
credentials that it streams with. ``DESCRIBE TABLE`` takes no warehouse, and any right on the table will do.
"""

from __future__ import annotations

import time
import uuid
from contextlib import closing
from typing import Any

from airflow_provider_snowpipe.bulk.statement_client import StatementClient
from airflow_provider_snowpipe.streaming.auth import Credentials, KeyPair
from airflow_provider_snowpipe.streaming.errors import SqlError
from airflow_provider_snowpipe.streaming.limits import RetryPolicy
from airflow_provider_snowpipe.streaming.table_schema import TableColumn, columns_of_describe

_WAIT_SECONDS = 60.0
_POLL_SECONDS = 0.2


def describe_table(
    account_url: str,
    credentials: Credentials,
    table: str,
    *,
    ca_bundle: str | None = None,
    retry: RetryPolicy | None = None,
) -> tuple[TableColumn, ...]:
    """Ask for a table's columns by ``DESCRIBE TABLE``.

    :param account_url: the account's address, ``https://<host>[:<port>]``
    :param credentials: prove who asks
    :param table: the table's quoted full name
    :param ca_bundle: a PEM file of trusted roots, None for the environment's or the public ones
    :param retry: pauses and budget of every request
    :raises SqlError: if the statement fails, as it does where there is no such table, or takes too long
    :raises AuthenticationError: if the service refuses the credentials
    """
    rows = statement_rows(
        account_url, credentials, f"DESCRIBE TABLE {table}", ca_bundle=ca_bundle, retry=retry
    )
    return columns_of_describe(rows)


def statement_rows(
    account_url: str,
    credentials: Credentials,
    statement: str,
    *,
    ca_bundle: str | None = None,
    retry: RetryPolicy | None = None,
) -> list[dict[str, Any]]:
    """The rows of a statement that needs no warehouse, with the names of its columns in small letters.

    :param account_url: the account's address, ``https://<host>[:<port>]``
    :param credentials: prove who asks
    :param statement: a DESCRIBE or SHOW statement
    :param ca_bundle: a PEM file of trusted roots, None for the environment's or the public ones
    :param retry: pauses and budget of every request
    :raises SqlError: if the statement fails or takes too long
    :raises AuthenticationError: if the service refuses the credentials
    """
    role = credentials.role if isinstance(credentials, KeyPair) else None
    client = StatementClient(account_url, credentials, role=role, ca_bundle=ca_bundle, retry=retry)
    deadline = time.monotonic() + _WAIT_SECONDS
    with closing(client):
        state = client.submit(statement, str(uuid.uuid4()))
        while state.rows is None:
            if time.monotonic() > deadline:
                raise SqlError(
                    f"{statement!r} has no result after {_WAIT_SECONDS:g} s: look at the account's query "
                    "history, then run again"
                )
            time.sleep(_POLL_SECONDS)
            state = client.state(state.handle, statement)
    return state.rows

"""The columns of a table, asked for over the SQL API by who has no connector.

The page "Snowflake SQL REST API" describes it. A DataFrame's writer runs where neither Airflow nor the
connector need be installed, with the same
credentials that it streams with. ``DESCRIBE TABLE`` takes no warehouse, and
any right on the table will do.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from airflow_provider_snowpipe.streaming.answer import Answer
from airflow_provider_snowpipe.streaming.auth import Credentials, KeyPair
from airflow_provider_snowpipe.streaming.errors import ApiError, SqlError
from airflow_provider_snowpipe.streaming.exchange import base_url
from airflow_provider_snowpipe.streaming.names import quote_url_segment
from airflow_provider_snowpipe.streaming.retry import RetryPolicy, repeat
from airflow_provider_snowpipe.streaming.table_columns import TableColumn, columns_of_describe
from airflow_provider_snowpipe.streaming.transport import ControlTransport, Timeouts

_RUNNING = 202
_FAILED = (408, 422)
_WAIT_SECONDS = 60.0
_POLL_SECONDS = 0.5


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
    :raises SqlError: if the statement fails, as it does where there is no such table
    :raises AuthenticationError: if the service refuses the credentials
    """
    with closing(ControlTransport(ca_bundle, Timeouts())) as control:
        asking = _Description(base_url(account_url), credentials, table, control, retry or RetryPolicy())
        return columns_of_describe(asking.rows())


class _Description:
    def __init__(
        self,
        account: str,
        credentials: Credentials,
        table: str,
        control: ControlTransport,
        retry: RetryPolicy,
    ) -> None:
        self._url = f"{account}/api/v2/statements"
        self._credentials = credentials
        self._statement = f"DESCRIBE TABLE {table}"
        self._control = control
        self._retry = retry

    def rows(self) -> list[dict[str, Any]]:
        """The statement's result, the columns' names in small letters."""
        body: dict[str, Any] = {"statement": self._statement, "timeout": int(_WAIT_SECONDS)}
        if isinstance(self._credentials, KeyPair) and self._credentials.role:
            body["role"] = self._credentials.role
        query = {"requestId": str(uuid.uuid4()), "retry": "true"}
        answer = self._send("POST", self._url, query, body)
        deadline = time.monotonic() + _WAIT_SECONDS
        while answer.status == _RUNNING:
            if time.monotonic() > deadline:
                raise SqlError(
                    f"{self._statement!r} has no result after {_WAIT_SECONDS:g} s: look at the account's "
                    "query history, then run again"
                )
            time.sleep(_POLL_SECONDS)
            answer = self._send("GET", self._address(answer))
        return self._table(answer)

    def _address(self, answer: Answer) -> str:
        handle = answer.json.get("statementHandle") if isinstance(answer.json, Mapping) else None
        if not isinstance(handle, str):
            raise self._strange(answer)
        return f"{self._url}/{quote_url_segment(handle)}"

    def _table(self, answer: Answer) -> list[dict[str, Any]]:
        found = answer.json
        if not isinstance(found, Mapping) or "resultSetMetaData" not in found:
            raise self._strange(answer)
        described = found["resultSetMetaData"]
        names = [str(column["name"]).lower() for column in described["rowType"]]
        data = list(found["data"])
        for number in range(1, len(described.get("partitionInfo") or [])):
            data += self._send("GET", self._address(answer), {"partition": str(number)}).json["data"]
        return [dict(zip(names, row, strict=True)) for row in data]

    def _strange(self, answer: Answer) -> ApiError:
        return ApiError(
            f"{self._statement!r}: the answer (HTTP {answer.status}) is none of the SQL API; check that the "
            "account URL leads to Snowflake",
            http_status=answer.status,
        )

    def _send(
        self, method: str, url: str, query: Mapping[str, str] | None = None, body: Any = None
    ) -> Answer:
        def attempt(_count: int) -> Answer:
            answer = self._control.send(
                method,
                url,
                query=query or {},
                headers={
                    "Authorization": f"Bearer {self._credentials.bearer()}",
                    "X-Snowflake-Authorization-Token-Type": self._credentials.token_type,
                },
                json_body=body,
            )
            if answer.status in _FAILED and isinstance(answer.json, Mapping) and answer.code.isdigit():
                said = " ".join(str(answer.json.get("message") or "no reason given").split())[:600]
                raise SqlError(f"{self._statement!r} failed: {said}", errno=int(answer.code))
            return answer

        return repeat(self._retry, self._statement, attempt, refresh=lambda: False)

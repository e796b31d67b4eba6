"""The SQL API, whose statements outlive the process that submitted them.

A request id makes a submission repeatable: Snowflake runs the statement of one id once, and answers a
repetition with the state of that run (page "Snowflake SQL REST API").
"""

from __future__ import annotations

import datetime as dt
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NoReturn

from airflow_provider_snowpipe.streaming.auth import Credentials, KeyPair, Signed, base_url
from airflow_provider_snowpipe.streaming.errors import ApiError, SqlError
from airflow_provider_snowpipe.streaming.http import Answer, HttpSession, Transports
from airflow_provider_snowpipe.streaming.limits import RetryPolicy
from airflow_provider_snowpipe.streaming.names import grant_remedy, quote_url_segment

_RUNNING = 202
_FAILED = (408, 422)
_ENDED_ALREADY = "000709"
_SHOWN = 60
_WAIT_SECONDS = 60
_POLL_SECONDS = 0.2
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_LONGEST_STAY = 1.0
"""A longer pause is spent in the triggerer."""


# pragma: no mutate start (tested over the wire)


@dataclass(frozen=True, slots=True)
class StatementState:
    """What the service reports of one statement.

    :param rows: its result once it has one, the columns' names in lower case; None while it runs
    :param created: when it was submitted, None where the service does not report that
    """

    handle: str
    rows: list[dict[str, Any]] | None = field(default=None, repr=False)
    created: dt.datetime | None = None

    @property
    def is_running(self) -> bool:
        """True while there is no result."""
        return self.rows is None


class StatementClient:
    """A client of an account's SQL API; takes key pairs, access tokens and OAuth.

    The constructor does no I/O.

    :param account_url: the account's address, ``https://<host>[:<port>]``
    :param warehouse: the warehouse, None for the user's default
    :param role: the role, None for the user's default
    :param ca_bundle: a PEM file of trusted roots, None for the environment's or the public ones
    :raises ConfigurationError: if the URL or the bundle is not usable
    """

    def __init__(
        self,
        account_url: str,
        credentials: Credentials,
        *,
        warehouse: str | None = None,
        role: str | None = None,
        ca_bundle: str | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        self._url = f"{base_url(account_url)}/api/v2/statements"
        self._context = {"warehouse": warehouse, "role": role}
        self._transports = Transports(ca_bundle)
        self._session = HttpSession(self._transports, retry, Signed(credentials), refused=_failure)

    def __repr__(self) -> str:
        return f"StatementClient({self._url!r})"

    def close(self) -> None:
        """Give the connections back."""
        self._transports.close()

    def rows(self, statement: str) -> list[dict[str, Any]]:
        """Run a short statement that changes nothing; its rows, the columns' names in lower case.

        :param statement: a DESCRIBE or SHOW statement
        :raises SqlError: if the statement fails or takes too long
        """
        deadline = time.monotonic() + _WAIT_SECONDS
        state = self.submit([statement], str(uuid.uuid4()), waits=True)
        while state.rows is None:
            if time.monotonic() > deadline:
                raise SqlError(
                    f"{statement!r} has no result after {_WAIT_SECONDS:g} s: look at the account's query "
                    "history, then run again"
                )
            time.sleep(_POLL_SECONDS)
            state = self.state(state.handle, statement)
        return state.rows

    def submit(
        self,
        statements: Sequence[str],
        request_id: str,
        *,
        query_tag: str | None = None,
        waits: bool = False,
        shown: str = "",
    ) -> StatementState:
        """Submit statements of one session, or find those that were submitted under this id before.

        The first one that fails ends the request; a transaction that is open then is rolled back.

        :param statements: one, or several, which run one after the other
        :param request_id: a UUID; the same for the same piece of work, whoever repeats it
        :param waits: whether the answer may take until the statement has ended, 45 s at most ("Submitting a
            request to execute SQL statements")
        :param shown: the one of several that messages show
        :raises SqlError: if the statement has failed already
        """
        statement, count = shown or statements[0], len(statements)
        body: dict[str, Any] = {"statement": ";\n".join(statements), "timeout": _WAIT_SECONDS if waits else 0}
        body |= {name: value for name, value in self._context.items() if value}
        parameters = {
            **({"QUERY_TAG": query_tag} if query_tag else {}),
            **({"MULTI_STATEMENT_COUNT": str(count)} if count > 1 else {}),
        }
        if parameters:
            body["parameters"] = parameters
        query = {"requestId": request_id, "retry": "true", "async": "false" if waits else "true"}
        answer = self._session.request(_head(statement), "POST", self._url, query=query, json_body=body)
        return self._state(answer, statement)

    def state(self, handle: str, statement: str) -> StatementState:
        """Ask whether a statement runs, and for its rows once it has ended.

        :raises SqlError: if it has failed, or was cancelled
        """
        address = f"{self._url}/{quote_url_segment(handle)}"
        return self._state(self._session.request(_head(statement), "GET", address), statement)

    def wait(
        self, state: StatementState, statement: str, leave: Callable[[str, str], NoReturn] | None
    ) -> None:
        """Wait for a statement's end.

        :param leave: leaves the worker after a moment, given handle and statement; None to wait here
        :raises SqlError: if it has failed, or was cancelled
        """
        pause = _FIRST_PAUSE
        while state.rows is None:
            if leave is not None and pause > _LONGEST_STAY:
                leave(state.handle, statement)
            time.sleep(pause)
            pause = min(_LONGEST_PAUSE, pause * 2)
            state = self.state(state.handle, statement)

    def cancel(self, handle: str, statement: str) -> bool:
        """Cancel a statement; False where it had ended already."""
        address = f"{self._url}/{quote_url_segment(handle)}/cancel"
        try:
            self._session.request(_head(statement), "POST", address, json_body={})
        except SqlError as error:
            if error.errno == int(_ENDED_ALREADY):
                return False
            raise
        return True

    def _state(self, answer: Answer, statement: str) -> StatementState:
        body = answer.json
        handle = body.get("statementHandle") if isinstance(body, Mapping) else None
        if not isinstance(handle, str):
            raise ApiError(
                f"{_head(statement)!r}: the answer (HTTP {answer.status}) names no statement; check that the "
                "account URL leads to Snowflake",
                http_status=answer.status,
            )
        since = body.get("createdOn")  # milliseconds since 1970
        created = dt.datetime.fromtimestamp(since / 1_000, dt.UTC) if isinstance(since, int) else None
        if answer.status == _RUNNING:
            return StatementState(handle, created=created)
        if "resultSetMetaData" not in body:  # the submission of one that ended before gets its handle only
            return self.state(handle, statement)
        described = body["resultSetMetaData"]
        names = [str(column["name"]).lower() for column in described["rowType"]]
        data = list(body["data"])
        for number in range(1, len(described.get("partitionInfo") or [])):
            address = f"{self._url}/{quote_url_segment(handle)}"
            query = {"partition": str(number)}
            data += self._session.request(_head(statement), "GET", address, query=query).json["data"]
        rows = [dict(zip(names, row, strict=True)) for row in data]
        return StatementState(handle, rows, created)


def _failure(what: str, answer: Answer) -> SqlError | None:
    if answer.status not in _FAILED or not isinstance(answer.json, Mapping) or not answer.code.isdigit():
        return None
    message = " ".join(str(answer.json.get("message") or "no reason given").split())[:600]
    return SqlError(f"{what!r} failed: {message}{grant_remedy(message)}", errno=int(answer.code))


def _head(statement: str) -> str:
    """The words of a statement that identify it."""
    words = statement.partition(" FILES = ")[0]
    return words if len(words) <= _SHOWN else f"{words[:_SHOWN]}…"


# -- Statements of who has no connector -------------------------------------------------------------------
#
# A DataFrame's writer runs where neither Airflow nor the connector need be installed, with the same
# credentials that it streams with. DESCRIBE and SHOW take no warehouse, and any right on a table will do.


def statement_rows(
    account_url: str, credentials: Credentials, statement: str, *, ca_bundle: str | None = None
) -> list[dict[str, Any]]:
    """The rows of a statement that needs no warehouse, with the names of its columns in lower case.

    :param statement: a DESCRIBE or SHOW statement
    :raises SqlError: if the statement fails or takes too long
    :raises AuthenticationError: if the service refuses the credentials
    """
    role = credentials.role if isinstance(credentials, KeyPair) else None
    client = StatementClient(account_url, credentials, role=role, ca_bundle=ca_bundle)
    with closing(client):
        return client.rows(statement)


# pragma: no mutate end

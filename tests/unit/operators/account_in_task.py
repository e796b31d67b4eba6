"""The fake account behind every connection of a task, and the channels of its table."""

import datetime as dt
from collections import Counter
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, Self

import pytest
from snowflake.connector.errors import ProgrammingError

from airflow_provider_snowpipe.hooks.account import AccountHook
from airflow_provider_snowpipe.hooks.connection import SnowpipeConnection
from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.streaming.auth import KeyPair, ProgrammaticAccessToken
from airflow_provider_snowpipe.streaming.client import OpenedChannel
from airflow_provider_snowpipe.streaming.errors import UncommittedRowsError
from airflow_provider_snowpipe.streaming.http import Transports
from airflow_provider_snowpipe.streaming.progress import CHANNEL_MISSING, SUCCESS, ChannelStatus
from tests.fake_account import DATABASE, SCHEMA, TABLE, URL, FakeAccount, StatementError
from tests.stream_worker import TaskInstance


class Channels:
    """The client of the table's channels: openings and tokens, and rows that a stream commits."""

    pipe = f"{DATABASE}.{SCHEMA}.{TABLE}-STREAMING"

    def __init__(self, account: FakeAccount) -> None:
        self._account = account
        self._sessions: Counter[str] = Counter()
        self.inserted: Counter[str] = Counter()
        self.uncommitted: Counter[str] = Counter()
        """Times that a channel is still refused because rows of it wait for their commit."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def open_channel(
        self, channel: str, *, fail_on_uncommitted_rows: bool = False, offset_token: str | None = None
    ) -> OpenedChannel:
        return self._account.call(
            "open", partial(self._open, channel, fail_on_uncommitted_rows, offset_token)
        )

    def drop_channel(self, channel: str) -> None:
        self._account.call("drop", partial(self._account.tokens.pop, channel))

    def channel_statuses(self, channels: Sequence[str]) -> dict[str, ChannelStatus]:
        return self._account.call("status", lambda: {name: self._status(name) for name in channels})

    def stream(self, channel: str, token: str, *rows: str, session: int | None = None) -> bool:
        """Commit rows with a token; False where another session was opened since."""
        if session is not None and session != self._sessions[channel]:
            return False
        self._account.rows += rows
        self.inserted[channel] += len(rows)
        self._account.tokens[channel] = token
        return True

    def _open(self, channel: str, fails: bool, token: str | None) -> OpenedChannel:
        if fails and self.uncommitted[channel] > 0:
            self.uncommitted[channel] -= 1
            raise UncommittedRowsError("rows wait", channel=channel, http_status=409, code="")
        self._sessions[channel] += 1
        self._account.tokens[channel] = token or self._account.tokens.get(channel)
        return OpenedChannel(f"{self._sessions[channel]}_0", self._status(channel))

    def _status(self, channel: str) -> ChannelStatus:
        tokens = self._account.tokens
        found = SUCCESS if channel in tokens else CHANNEL_MISSING
        return ChannelStatus(channel, found, tokens.get(channel), rows_inserted=self.inserted[channel])


class _Session:
    """A connection of Snowflake's connector, and its one cursor."""

    def __init__(self, account: FakeAccount) -> None:
        self._account = account
        self._rows: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def cursor(self) -> Self:
        return self

    def execute(self, statement: str, values: Sequence[str] | None = None, **_: Any) -> None:
        try:
            self._rows = self._account.run(statement, values)
        except StatementError as failure:
            raise ProgrammingError(str(failure), errno=failure.errno) from None

    @property
    def description(self) -> list[tuple[str]]:
        return [(name,) for name in self._rows[0]] if self._rows else []

    def fetchall(self) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in self._rows]


def install(account: FakeAccount, patch: pytest.MonkeyPatch, key_pair: KeyPair | None = None) -> Channels:
    """Let every hook find this account; its table's channels.

    :param key_pair: where file pipes are called, which take no other credentials
    """
    extra = {"account": "acc", "database": DATABASE, "schema": SCHEMA}
    settings = SnowpipeConnection("account", "snowpipe", host=URL, login="u", extra=extra)
    credentials = key_pair or ProgrammaticAccessToken("t")
    patch.setattr(SnowpipeConnection, "credentials", lambda _: credentials)
    channels = Channels(account)
    patch.setattr(SnowpipeHook, "_connection", lambda _: settings)
    patch.setattr(SnowpipeHook, "get_client", lambda _, **__: channels)
    patch.setattr(AccountHook, "_connect", lambda _: _Session(account))
    patch.setattr(Transports, "send", lambda _, *given, **named: account.send(*given, **named))
    return channels


def task_context(
    run: str = "r1",
    try_number: int = 1,
    began: dt.datetime | None = None,
    map_index: int = -1,
    clears: int = 0,
) -> Any:
    """As much of a task's context as operators of files ask for."""
    began = began or dt.datetime.now(dt.UTC)
    ti = TaskInstance(run_id=run, map_index=map_index, try_number=try_number, start_date=began)
    run_of_dag = SimpleNamespace(start_date=began, run_type="manual", clear_number=clears)
    return {"ti": ti, "dag_run": run_of_dag}

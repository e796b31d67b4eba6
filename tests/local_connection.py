"""An Airflow connection to a running local service, and a task context as small as operators need."""

import datetime as dt
import json
from types import SimpleNamespace
from typing import Any

from tests.airflow_connections import SetConnection
from tests.local_service import LocalService
from tests.stream_worker import TaskInstance

RUN_AFTER = dt.datetime(2026, 1, 31, tzinfo=dt.UTC)


def connect(service: LocalService, set_connection: SetConnection, **changes: Any) -> str:
    """Define the connection ``local`` of type ``snowflake``, with some fields changed; its id."""
    fields = json.loads(service.env["AIRFLOW_CONN_SNOWFLAKE_DEFAULT"])
    extra = {**fields["extra"], "ca_bundle": str(service.ca_file), **changes.pop("extra", {})}
    return set_connection("local", **{**fields, "extra": extra, **changes})


def connect_by_form(service: LocalService, set_connection: SetConnection, **changes: Any) -> str:
    """Define the connection ``form`` of type ``snowpipe``; its id."""
    extra = {
        "account": service.account,
        "auth": "key_pair",
        "private_key_content": service.key_file.read_text(),
        "database": "LOCAL",
        "ca_bundle": str(service.ca_file),
        **changes.pop("extra", {}),
    }
    fields = {"host": service.url, "login": service.user, "schema": "PUBLIC", **changes}
    return set_connection("form", conn_type="snowpipe", extra=extra, **fields)


def context(map_index: int = -1, run_after: dt.datetime = RUN_AFTER) -> Any:
    ti = TaskInstance(task_id="t", map_index=map_index)
    return {"ti": ti, "dag_run": SimpleNamespace(run_after=run_after, logical_date=None)}


def append(
    service: LocalService, table: str, channel: str, tokens: list[str], *, rows: list[str] | None = None
) -> None:
    """Send one row for each token, without waiting for the commit."""
    with service.client(table) as client:
        continuation = client.open_channel(channel).continuation_token
        for number, token in enumerate(tokens):
            body = (rows[number] if rows else json.dumps({"ID": number, "NAME": "x"})).encode() + b"\n"
            continuation = client.append_rows(
                channel,
                body,
                continuation_token=continuation,
                start_token=token,
                end_token=token,
                content_encoding=None,
                raw_length=len(body),
            )


def commit(service: LocalService, table: str, channel: str, tokens: list[str], **more: Any) -> None:
    """Send one row for each token as :func:`append` does, and wait until the last one is committed."""
    from airflow_provider_snowpipe.streaming.admin import open_when_committed

    append(service, table, channel, tokens, **more)
    with service.client(table) as client:
        open_when_committed(client, channel, 120)


def make_table(service: LocalService, name: str) -> str:
    service.sql(f"CREATE TABLE LOCAL.PUBLIC.{name} (ID INTEGER, NAME VARCHAR)")
    return name


def ids(service: LocalService, table: str) -> list[int]:
    """The rows' numbers in order; a row that appears twice is there twice."""
    return [int(row["ID"]) for row in service.sql(f"SELECT ID FROM LOCAL.PUBLIC.{table} ORDER BY ID")]


def committed(service: LocalService, table: str, channel: str) -> str | None:
    with service.client(table) as client:
        return client.channel_statuses([channel])[channel].committed

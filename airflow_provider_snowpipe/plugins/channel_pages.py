"""The pages that ask Snowflake: a channel, and the channels of a pipe."""

from __future__ import annotations

import datetime as dt
from typing import Annotated

from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_connection
from fastapi import APIRouter, Depends, Query
from fastapi.responses import HTMLResponse

from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.links.channel_page import channel_query, channels_query, pipe_query
from airflow_provider_snowpipe.plugins.history import HistoryLimits, PipeState, Rights, Where, read_history
from airflow_provider_snowpipe.plugins.rendering import View, answer, render, utc
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.lag import ChannelLag
from airflow_provider_snowpipe.streaming.limits import RetryPolicy
from airflow_provider_snowpipe.streaming.names import PipeName
from airflow_provider_snowpipe.streaming.offsets import known_formats
from airflow_provider_snowpipe.streaming.progress import STATUS_NAMES_PER_REQUEST, CommitTargets

router = APIRouter(
    prefix="/connections/{connection_id:path}",
    # Who may read the connection may see what it reaches. The path has the connection's id because that is
    # where Airflow's check looks for it.
    dependencies=[Depends(requires_access_connection(method="GET"))],
)
Name = Annotated[str, Query(min_length=1)]


@router.get("/channel", response_class=HTMLResponse)
def channel(
    connection_id: str,
    database: Name,
    schema: Name,
    pipe: Name,
    channel: Name,
    session: SessionDep,
    user: GetUserDep,
    target: str | None = None,
    offset_format: str | None = None,
) -> HTMLResponse:
    """Show a channel.

    :param connection_id: the Airflow connection to ask through
    :param database: the pipe's database
    :param schema: the pipe's schema
    :param pipe: the pipe
    :param channel: the channel's name
    :param session: of Airflow's database
    :param user: who asks
    :param target: the offset token that it should have committed
    :param offset_format: the target's format
    """

    def look() -> View:
        hook = SnowpipeHook(connection_id, pipe=pipe, database=database, schema=schema)
        name = PipeName(database, schema, pipe)
        where = Where(connection=connection_id, pipe=name)
        history = read_history(session, Rights.of(user, session), HistoryLimits.configured(), where)
        past = PipeState.of(connection_id, name, history.tasks, channel)
        return view_of_channel(hook, channel, target, offset_format, past)

    return answer(look)


@router.get("/channels", response_class=HTMLResponse)
def channels(
    connection_id: str,
    database: Name,
    schema: Name,
    pipe: Name,
    prefix: str = "",
    page: Annotated[int, Query(ge=1)] = 1,
) -> HTMLResponse:
    """List the channels of a pipe, 100 a page.

    :param connection_id: the Airflow connection to ask through
    :param database: the pipe's database
    :param schema: the pipe's schema
    :param pipe: the pipe
    :param prefix: only channels whose name begins so
    :param page: which hundred of them, from 1
    """

    def look() -> View:
        hook = SnowpipeHook(connection_id, pipe=pipe, database=database, schema=schema)
        return view_of_pipe(hook, prefix, page)

    return answer(look)


# -- What the pages of channels show, as HTML ------------------------------------------------------------

CHANNEL_REFRESH_SECONDS = 10
LIST_REFRESH_SECONDS = 60
"""The list signs in for SQL each time, which a status request does not."""
CHANNELS_PER_PAGE = STATUS_NAMES_PER_REQUEST
_RUNS_SHOWN = 50
_BUDGET = RetryPolicy(budget_seconds=10.0)
"""A person waits for the page, and so does a thread of the API server."""


def view_of_channel(
    hook: SnowpipeHook, channel: str, target: str | None, offset_format: str | None, past: PipeState
) -> View:
    """Ask after a channel and show what the service says of it.

    :param hook: names connection and pipe
    :param channel: the channel's name
    :param target: the offset token that it should have committed, None where nobody expects one
    :param offset_format: the target's format
    :param past: what tasks did on the channel
    :raises SnowpipeError: if the service does not say it, or the target is not one
    """
    expected = None if target is None else _expected(channel, target, offset_format)
    pipe = hook.pipe_name()
    status = hook.channel_statuses([channel], retry=_BUDGET)[channel]
    html = render(
        "channel.html",
        title=channel,
        conn_id=hook.snowflake_conn_id,
        pipe=pipe,
        of_pipe=pipe_query(pipe),
        past=past,
        runs=list(reversed(past.tasks))[:_RUNS_SHOWN],
        channel=ChannelLag.of(status, expected),
        created=_time(status.created_on_ms),
        refresh_seconds=CHANNEL_REFRESH_SECONDS,
    )
    return View(html, is_found=status.exists)


def view_of_pipe(hook: SnowpipeHook, prefix: str, page: int) -> View:
    """List the channels of a pipe and show what the service says of a hundred of them.

    :param hook: names connection and pipe
    :param prefix: only channels whose name begins so
    :param page: which hundred, from 1
    :raises SnowpipeError: if the service does not say it
    """
    pipe = hook.pipe_name()
    names = sorted(one.name for one in hook.list_channels() if one.name.startswith(prefix))
    shown = names[(page - 1) * CHANNELS_PER_PAGE : page * CHANNELS_PER_PAGE]
    statuses = hook.channel_statuses(shown, retry=_BUDGET) if shown else {}
    pages = max(1, -(-len(names) // CHANNELS_PER_PAGE))
    html = render(
        "channels.html",
        title=str(pipe),
        conn_id=hook.snowflake_conn_id,
        pipe=pipe,
        of_pipe=pipe_query(pipe),
        prefix=prefix,
        total=len(names),
        channels=[(statuses[name], channel_query(pipe, name)) for name in shown],
        page=page,
        pages=pages,
        before=_other_page(pipe, prefix, page - 1, pages),
        after=_other_page(pipe, prefix, page + 1, pages),
        refresh_seconds=LIST_REFRESH_SECONDS,
    )
    return View(html)


def _expected(channel: str, target: str, offset_format: str | None) -> CommitTargets:
    """Read the target of an address; the class of its format is not looked for by import."""
    if offset_format not in known_formats():
        raise ConfigurationError(
            f"offset_format is {offset_format!r}: with target=… it must be one of "
            f"{', '.join(sorted(known_formats()))}"
        )
    return CommitTargets.parse({channel: target}, offset_format)


def _other_page(pipe: PipeName, prefix: str, page: int, pages: int) -> str | None:
    return channels_query(pipe, prefix, page) if 1 <= page <= pages else None


def _time(milliseconds: int | None) -> str | None:
    return None if milliseconds is None else utc(dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC))

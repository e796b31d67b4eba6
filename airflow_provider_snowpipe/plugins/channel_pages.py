"""The pages of a pipe's channels: who may see them, and what the answer is when something is wrong."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Annotated, Any

from airflow.api_fastapi.core_api.security import requires_access_connection
from airflow.providers.common.compat.sdk import AirflowNotFoundException
from fastapi import APIRouter, Depends, FastAPI, Query
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.links.channel_page import channel_query, channels_query
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    PipeNotFoundError,
    SnowpipeError,
)
from airflow_provider_snowpipe.streaming.lag import ChannelLag
from airflow_provider_snowpipe.streaming.limits import RetryPolicy
from airflow_provider_snowpipe.streaming.offsets import known_formats
from airflow_provider_snowpipe.streaming.status import STATUS_NAMES_PER_REQUEST
from airflow_provider_snowpipe.streaming.targets import CommitTargets

if TYPE_CHECKING:
    from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
    from airflow_provider_snowpipe.streaming.names import PipeName


log = logging.getLogger(__name__)

MOST_LOOKS = 4
"""Pages that are being made at a time. A look at Snowflake takes a thread of those that all of Airflow's API
shares (40 in each server process, Airflow 3.3.2), so that a slow service must not get all of them."""
_BUSY_SECONDS = 5
_looks = BoundedSemaphore(MOST_LOOKS)

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
    target: str | None = None,
    offset_format: str | None = None,
) -> HTMLResponse:
    """Show a channel.

    :param connection_id: the Airflow connection to ask through
    :param database: the pipe's database
    :param schema: the pipe's schema
    :param pipe: the pipe
    :param channel: the channel's name
    :param target: the offset token that it should have committed
    :param offset_format: the target's format
    """

    def look() -> View:
        hook = SnowpipeHook(connection_id, pipe=pipe, database=database, schema=schema)
        return view_of_channel(hook, channel, target, offset_format)

    return _answer(look)


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

    return _answer(look)


app = FastAPI(title="Snowpipe", docs_url=None, redoc_url=None, openapi_url=None)
app.include_router(router)


def _answer(look: Callable[[], View]) -> HTMLResponse:
    """Look, and show what is seen or why nothing is."""
    if not _looks.acquire(blocking=False):
        text = (
            f"{MOST_LOOKS} other pages are being made, which is as many as one server process makes at a "
            "time. This page tries again by itself"
        )
        return _response(
            problem("Busy", text, refresh_seconds=_BUSY_SECONDS),
            HTTPStatus.SERVICE_UNAVAILABLE,
            {"Retry-After": str(_BUSY_SECONDS)},
        )
    try:
        return _response(look(), HTTPStatus.OK)
    except AirflowNotFoundException as error:
        return _response(
            problem("No such connection", f"{error}: define it, or correct the address"),
            HTTPStatus.NOT_FOUND,
        )
    except SnowpipeError as error:
        log.warning("no page of channels: %s: %s", type(error).__name__, error)
        return _response(problem(type(error).__name__, str(error)), _status(error))
    finally:
        _looks.release()


def _status(error: SnowpipeError) -> HTTPStatus:
    if isinstance(error, PipeNotFoundError):
        return HTTPStatus.NOT_FOUND
    return HTTPStatus.BAD_REQUEST if isinstance(error, ConfigurationError) else HTTPStatus.BAD_GATEWAY


def _response(view: View, status: HTTPStatus, headers: Mapping[str, str] | None = None) -> HTMLResponse:
    if status is HTTPStatus.OK and not view.is_found:
        status = HTTPStatus.NOT_FOUND
    given = {**page_headers(), **(headers or {})}
    return HTMLResponse(view.html, status_code=status, headers=given)


# -- What the pages of channels show, as HTML ------------------------------------------------------------

CHANNEL_REFRESH_SECONDS = 10
LIST_REFRESH_SECONDS = 60
"""The list signs in for SQL each time, which a status request does not."""
CHANNELS_PER_PAGE = STATUS_NAMES_PER_REQUEST
_BUDGET = RetryPolicy(budget_seconds=10.0)
"""A person waits for the page, and so does a thread of the API server."""


@dataclass(frozen=True, slots=True)
class View:
    """A page.

    :param html: all of it
    :param is_found: False when it says that there is no such thing
    """

    html: str
    is_found: bool = True


def view_of_channel(hook: SnowpipeHook, channel: str, target: str | None, offset_format: str | None) -> View:
    """Ask after a channel and show what the service says of it.

    :param hook: names connection and pipe
    :param channel: the channel's name
    :param target: the offset token that it should have committed, None where nobody expects one
    :param offset_format: the target's format
    :raises SnowpipeError: if the service does not say it, or the target is not one
    """
    wanted = None if target is None else _wanted(channel, target, offset_format)
    pipe = hook.pipe_name()
    status = hook.channel_statuses([channel], retry=_BUDGET)[channel]
    html = _render(
        "channel.html",
        title=channel,
        conn_id=hook.snowflake_conn_id,
        pipe=pipe,
        all_channels=channels_query(pipe),
        channel=ChannelLag.of(status, wanted),
        created=_moment(status.created_on_ms),
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
    html = _render(
        "channels.html",
        title=str(pipe),
        conn_id=hook.snowflake_conn_id,
        pipe=pipe,
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


def problem(title: str, text: str, *, refresh_seconds: int | None = None) -> View:
    """Show why there is nothing to show.

    :param title: what is wrong, in a few words
    :param text: all of it, with the remedy
    :param refresh_seconds: when the page tries again by itself, None for never
    """
    return View(_render("problem.html", title=title, text=text.rstrip("."), refresh_seconds=refresh_seconds))


@cache
def page_headers() -> Mapping[str, str]:
    """The headers of every page: it runs no script, loads nothing, and nobody keeps it."""
    style = base64.b64encode(
        hashlib.sha256(_templates().get_template("pages.css").render().encode()).digest()
    )
    policy = (
        f"default-src 'none'; style-src 'sha256-{style.decode()}'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'self'"
    )
    return {
        "Content-Security-Policy": policy,
        "Cache-Control": "no-store",
        "Referrer-Policy": "same-origin",
        "X-Content-Type-Options": "nosniff",
    }


def _wanted(channel: str, target: str, offset_format: str | None) -> CommitTargets:
    """Read the target of an address; the class of its format is not looked for by import."""
    if offset_format not in known_formats():
        raise ConfigurationError(
            f"offset_format is {offset_format!r}: with target=… it must be one of "
            f"{', '.join(sorted(known_formats()))}"
        )
    return CommitTargets.parse({channel: target}, offset_format)


def _other_page(pipe: PipeName, prefix: str, page: int, pages: int) -> str | None:
    return channels_query(pipe, prefix, page) if 1 <= page <= pages else None


def _moment(milliseconds: int | None) -> str | None:
    return None if milliseconds is None else _utc(dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC))


def _utc(moment: dt.datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _render(name: str, **values: Any) -> str:
    return _templates().get_template(name).render(looked_at=_utc(dt.datetime.now(dt.UTC)), **values)


@cache
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("airflow_provider_snowpipe.plugins"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )

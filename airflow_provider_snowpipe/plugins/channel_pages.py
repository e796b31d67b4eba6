"""The pages of a pipe's channels: who may see them, and what the answer is when something is wrong."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from threading import BoundedSemaphore
from typing import Annotated

from airflow.api_fastapi.core_api.security import requires_access_connection
from airflow.providers.common.compat.sdk import AirflowNotFoundException
from fastapi import APIRouter, Depends, FastAPI, Query
from fastapi.responses import HTMLResponse

from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.plugins import channel_views
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    PipeNotFoundError,
    SnowpipeError,
)

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

    def look() -> channel_views.View:
        hook = SnowpipeHook(connection_id, pipe=pipe, database=database, schema=schema)
        return channel_views.view_of_channel(hook, channel, target, offset_format)

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

    def look() -> channel_views.View:
        hook = SnowpipeHook(connection_id, pipe=pipe, database=database, schema=schema)
        return channel_views.view_of_pipe(hook, prefix, page)

    return _answer(look)


app = FastAPI(title="Snowpipe", docs_url=None, redoc_url=None, openapi_url=None)
app.include_router(router)


def _answer(look: Callable[[], channel_views.View]) -> HTMLResponse:
    """Look, and show what is seen or why nothing is."""
    if not _looks.acquire(blocking=False):
        text = (
            f"{MOST_LOOKS} other pages are being made, which is as many as one server process makes at a "
            "time. This page tries again by itself"
        )
        return _response(
            channel_views.problem("Busy", text, refresh_seconds=_BUSY_SECONDS),
            HTTPStatus.SERVICE_UNAVAILABLE,
            {"Retry-After": str(_BUSY_SECONDS)},
        )
    try:
        return _response(look(), HTTPStatus.OK)
    except AirflowNotFoundException as error:
        return _response(
            channel_views.problem("No such connection", f"{error}: define it, or correct the address"),
            HTTPStatus.NOT_FOUND,
        )
    except SnowpipeError as error:
        log.warning("no page of channels: %s: %s", type(error).__name__, error)
        return _response(channel_views.problem(type(error).__name__, str(error)), _status(error))
    finally:
        _looks.release()


def _status(error: SnowpipeError) -> HTTPStatus:
    if isinstance(error, PipeNotFoundError):
        return HTTPStatus.NOT_FOUND
    return HTTPStatus.BAD_REQUEST if isinstance(error, ConfigurationError) else HTTPStatus.BAD_GATEWAY


def _response(
    view: channel_views.View, status: HTTPStatus, headers: Mapping[str, str] | None = None
) -> HTMLResponse:
    if status is HTTPStatus.OK and not view.is_found:
        status = HTTPStatus.NOT_FOUND
    given = {**channel_views.headers(), **(headers or {})}
    return HTMLResponse(view.html, status_code=status, headers=given)

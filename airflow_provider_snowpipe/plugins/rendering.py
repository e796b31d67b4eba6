"""How every page is made: its frame, its headers, and what it says when something is wrong."""

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
from typing import Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException
from fastapi import HTTPException, Request
from fastapi.exception_handlers import http_exception_handler
from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from airflow_provider_snowpipe.links.snowpipe import PAGES_PREFIX, pages_base
from airflow_provider_snowpipe.plugins.charts import dot_chart, number, step_chart
from airflow_provider_snowpipe.routing.load_plan import credit_count, duration, size
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    PipeNotFoundError,
    SnowpipeError,
)

log = logging.getLogger(__name__)

MOST_PAGES = 4
"""Pages that are being made at a time. A page takes a thread of those that all of Airflow's API shares (40 in
each server process, Airflow 3.3.2), so that a slow service must not get all of them."""
_BUSY_SECONDS = 5
_slots = BoundedSemaphore(MOST_PAGES)


@dataclass(frozen=True, slots=True)
class View:
    """A page.

    :param html: all of it
    :param is_found: False when it says that there is no such thing
    """

    html: str
    is_found: bool = True


def answer(look: Callable[[], View]) -> HTMLResponse:
    """Look, and show what is seen or why nothing is.

    :param look: makes the page; may take as long as a service does
    """
    if not _slots.acquire(blocking=False):
        text = (
            f"{MOST_PAGES} other pages are being made, which is as many as one server process makes at a "
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
        _slots.release()


async def refused(request: Request, error: Exception) -> Response:
    """Show a browser why it gets no page; others get Airflow's own JSON.

    :param request: what was asked for
    :param error: the refusal
    """
    if not isinstance(error, HTTPException):
        raise error
    if "text/html" not in request.headers.get("accept", ""):
        return await http_exception_handler(request, error)
    if error.status_code == HTTPStatus.UNAUTHORIZED:
        view = problem("Not signed in", "sign in to Airflow, then load the page again")
    elif error.status_code == HTTPStatus.FORBIDDEN:
        text = "it takes the right to read connections, and the DAG where it is of one; ask an administrator"
        view = problem("You may not see this page", text)
    else:
        view = problem(HTTPStatus(error.status_code).phrase, str(error.detail))
    return _response(view, HTTPStatus(error.status_code), error.headers)


def problem(title: str, text: str, *, refresh_seconds: int | None = None) -> View:
    """Show why there is nothing to show.

    :param title: what is wrong, in a few words
    :param text: all of it, with the remedy
    :param refresh_seconds: when the page tries again by itself, None for never
    """
    return View(render("problem.html", title=title, text=text.rstrip("."), refresh_seconds=refresh_seconds))


def render(name: str, **values: Any) -> str:
    """Fill a template.

    :param name: its file
    :param values: what it shows; all of it is escaped
    """
    base = pages_base()
    given = {"refresh_seconds": None, "active": None, **values}
    return (
        _templates()
        .get_template(name)
        .render(
            looked_at=utc(dt.datetime.now(dt.UTC)),
            base=base,
            airflow=base.removesuffix(PAGES_PREFIX),
            style=Markup(_file("pages.css")),  # noqa: S704  a file of this package
            script=Markup(_file("pages.js")),  # noqa: S704  the same
            **given,
        )
    )


@cache
def page_headers() -> Mapping[str, str]:
    """The headers of every page: it runs our own script only, loads nothing, and nobody keeps it."""
    policy = (
        f"default-src 'none'; style-src '{_hash('pages.css')}'; script-src '{_hash('pages.js')}'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
    )
    return {
        "Content-Security-Policy": policy,
        "Cache-Control": "no-store",
        "Referrer-Policy": "same-origin",
        "X-Content-Type-Options": "nosniff",
    }


def utc(time: dt.datetime | None) -> str:
    """Write a time.

    :param time: the time, None for one that is not known
    """
    return "" if time is None else f"{time.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S} UTC"


def _status(error: SnowpipeError) -> HTTPStatus:
    if isinstance(error, PipeNotFoundError):
        return HTTPStatus.NOT_FOUND
    return HTTPStatus.BAD_REQUEST if isinstance(error, ConfigurationError) else HTTPStatus.BAD_GATEWAY


def _response(view: View, status: HTTPStatus, headers: Mapping[str, str] | None = None) -> HTMLResponse:
    if status is HTTPStatus.OK and not view.is_found:
        status = HTTPStatus.NOT_FOUND
    given = {**page_headers(), **(headers or {})}
    return HTMLResponse(view.html, status_code=status, headers=given)


def _file(name: str) -> str:
    return _templates().get_template(name).render()


def _hash(name: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(_file(name).encode()).digest()).decode()}"


def _ago(time: dt.datetime | None) -> str:
    """How long ago, or until when, in one unit."""
    if time is None:
        return "not known"
    seconds = (dt.datetime.now(dt.UTC) - time).total_seconds()
    return f"{_span(seconds)} ago" if seconds >= 0 else f"in {_span(-seconds)}"


def _span(seconds: float | None) -> str:
    """A duration in whole units, the last one not yet full."""
    seconds = seconds or 0.0
    for unit, least, one in (("days", 172_800, 86_400), ("h", 7_200, 3_600), ("min", 120, 60)):
        if seconds >= least:
            return f"{int(seconds // one)} {unit}"
    return f"{int(seconds)} s"


def _bad(word: str) -> str:
    """The class of a state's word."""
    kinds = {"COMMITTED": "good", "SUCCESS": "good", "success": "good", "UNKNOWN": "", "LOADING": "busy"}
    return kinds.get(word, "busy" if word in ("running", "deferred", "queued") else "bad")


@cache
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("airflow_provider_snowpipe.plugins"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "ago": _ago,
        "utc": utc,
        "size": size,
        "duration": duration,
        "span": _span,
        "credits": credit_count,
        "short": number,
        "state_class": _bad,
    }
    made.globals |= {"step_chart": step_chart, "dot_chart": dot_chart}
    return made

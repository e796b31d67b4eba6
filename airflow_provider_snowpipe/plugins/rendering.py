"""How every page is made: its frame, headers and charts, and what it shows when something is wrong."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from itertools import count
from threading import BoundedSemaphore
from typing import Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException, conf
from fastapi import HTTPException, Request
from fastapi.exception_handlers import http_exception_handler
from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from airflow_provider_snowpipe.links.snowpipe import PAGES_PREFIX, pages_base
from airflow_provider_snowpipe.routing.load_plan import credit_count, duration, size
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, PipeNotFoundError, SnowpipeError
from airflow_provider_snowpipe.streaming.http import time_budget
from airflow_provider_snowpipe.streaming.names import counted

log = logging.getLogger(__name__)

MOST_PAGES = 4
"""Pages that are being made at a time. A page takes a thread of those that all of Airflow's API shares (40 in
each server process, Airflow 3.3.2), so that a slow service must not get all of them."""
PAGE_SECONDS = 15.0
"""How long a page may take to ask, whatever a service or a server of tokens does."""
_BUSY_SECONDS = 5
_slots = BoundedSemaphore(MOST_PAGES)


def answer(make_page: Callable[[], HTMLResponse]) -> HTMLResponse:
    """Answer with a page, or with the reason why there is none.

    :param make_page: makes the page; may take as long as a service does
    """
    if not _slots.acquire(blocking=False):
        text = (
            f"{MOST_PAGES} other pages are being made, which is as many as one server process makes at a "
            "time. This page tries again by itself"
        )
        again = {"Retry-After": str(_BUSY_SECONDS)}
        return _problem("Busy", text, HTTPStatus.SERVICE_UNAVAILABLE, again, refresh_seconds=_BUSY_SECONDS)
    try:
        with time_budget(PAGE_SECONDS):
            return make_page()
    except AirflowNotFoundException as error:
        text = f"{error}: define it, or correct the address"
        return _problem("No such connection", text, HTTPStatus.NOT_FOUND)
    except SnowpipeError as error:
        log.warning("no page of channels: %s: %s", type(error).__name__, error)
        return _problem(type(error).__name__, str(error), _status(error))
    finally:
        _slots.release()


async def refused(request: Request, error: Exception) -> Response:
    """Show a browser why it gets no page; others get Airflow's own JSON."""
    if not isinstance(error, HTTPException):
        raise error
    if "text/html" not in request.headers.get("accept", ""):
        return await http_exception_handler(request, error)
    status = HTTPStatus(error.status_code)
    title, text = _REFUSED.get(status, (status.phrase, str(error.detail)))
    return _problem(title, text, status, error.headers)


def render(
    name: str, status: HTTPStatus = HTTPStatus.OK, headers: Mapping[str, str] | None = None, **values: Any
) -> HTMLResponse:
    """Fill a template.

    :param headers: beside those of every page
    :param values: what it shows; all of it is escaped
    """
    base = pages_base()
    html = (
        _templates()
        .get_template(name)
        .render(
            made_at=utc(dt.datetime.now(dt.UTC)),
            base=base,
            airflow=base.removesuffix(PAGES_PREFIX),
            style=Markup(_file("pages.css")),  # noqa: S704  a file of this package
            script=Markup(_file("pages.js")),  # noqa: S704  the same
            **{"refresh_seconds": None, "active": None, **values},
        )
    )
    return HTMLResponse(html, status, {**page_headers(), **(headers or {})})


_REFUSED = {
    HTTPStatus.UNAUTHORIZED: ("Not signed in", "sign in to Airflow, then load the page again"),
    HTTPStatus.FORBIDDEN: (
        "You may not see this page",
        "it takes the right to read connections, and the DAG where it is of one; ask an administrator",
    ),
}


def _problem(
    title: str,
    text: str,
    status: HTTPStatus,
    headers: Mapping[str, str] | None = None,
    *,
    refresh_seconds: int | None = None,
) -> HTMLResponse:
    """Show why there is nothing to show.

    :param refresh_seconds: when the page tries again by itself, None for never
    """
    values = {"title": title, "text": text.rstrip("."), "refresh_seconds": refresh_seconds}
    return render("problem.html", status, headers, **values)


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
    good = ("COMMITTED", "AGREES", "SUCCESS", "success", "loaded")
    kinds = {"UNKNOWN": "", "LOADING": "busy", **dict.fromkeys(good, "good")}
    return kinds.get(word, "busy" if word in ("running", "deferred", "queued", "planned") else "bad")


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
        "counted": counted,
        "credits": cost,
        "short": number,
        "state_class": _bad,
    }
    made.globals["draw_chart"] = draw_chart
    return made


# -- Charts as SVG, drawn on the server: no script, no build step, and nothing to fetch ------------------

WIDTH, HEIGHT = 720, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 12, 12, 30
MOST_POINTS = 300
"""Points of a line that are drawn: there are not many more pixels."""
_TICKS = 4
_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Series:
    """One line, or one row of bars, of a chart.

    :param name: its name in the legend
    :param points: time and value, by time; a value of None is left out
    """

    name: str
    points: Sequence[tuple[dt.datetime, float | None]]

    def known(self) -> list[tuple[float, float]]:
        """Seconds since 1970 and value of those points that have a finite one."""
        return [
            (time.timestamp(), float(value))
            for time, value in self.points
            if value is not None and math.isfinite(value)
        ]


def draw_chart(title: str, series: Sequence[Series], unit: str = "", *, is_steps: bool = False) -> Markup:
    """Draw a stroke and a dot for each value, which stands for itself.

    :param is_steps: True draws lines that keep a value until the next one is known
    :returns: the SVG, empty where no value is known
    """
    known = [(one.name, thinned(one.known())) for one in series]
    times = [time for _, points in known for time, _ in points]
    if not times:
        return Markup()
    first, last = min(times), max(times)
    span = last - first
    top = _round_up(max(value for _, points in known for _, value in points)) or _TICKS
    form = "%m-%d %H:%M:%S" if span < 86_400 else "%Y-%m-%d %H:%M"

    def x(time: float) -> float:
        share = (time - first) / span if span else 0.5
        return round(_LEFT + share * (WIDTH - _LEFT - _RIGHT), 1)

    def y(value: float) -> float:
        return round(HEIGHT - _BOTTOM - value / top * (HEIGHT - _TOP - _BOTTOM), 1)

    html = (
        _templates()
        .get_template("chart.html")
        .render(
            title=title,
            name=f"chart{next(_numbers)}",
            unit=unit,
            is_steps=is_steps,
            ends=", ".join(f"{label} {number(points[-1][1])}{unit}" for label, points in known if points),
            lines=[(label, [(x(time), y(value)) for time, value in points]) for label, points in known],
            ticks=[(y(top * tick / _TICKS), top * tick / _TICKS) for tick in range(_TICKS + 1)],
            times=[dt.datetime.fromtimestamp(one, dt.UTC).strftime(form) for one in (first, last)],
            width=WIDTH,
            height=HEIGHT,
            left=_LEFT,
            right=WIDTH - _RIGHT,
        )
    )
    return Markup(html)  # noqa: S704  the template escapes what it shows


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Leave points out of a long line: of each stretch its greatest stays, and the first and the last."""
    if len(points) <= MOST_POINTS:
        return list(points)
    inner = points[1:-1]
    width = len(inner) / (MOST_POINTS - 2)
    stretches = (
        inner[int(at * width) : max(int(at * width) + 1, int((at + 1) * width))]
        for at in range(MOST_POINTS - 2)
    )
    return [
        points[0],
        *(max(stretch, key=lambda one: one[1]) for stretch in stretches if stretch),
        points[-1],
    ]


def number(value: float) -> str:
    """Write a number in few characters, such as ``12.5k``."""
    for times, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= times * 0.9995:
            return f"{value / times:.3g}{unit}"
    return f"{value:.3g}"


def _round_up(value: float) -> float:
    """The next round number, so that the ticks are round, too."""
    if value <= 0:
        return 0.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 5, 8, 10) if step * power >= value * (1 - 1e-9))


# -- Figures of loads in words ----------------------------------------------------------------------------


def cost(credits: float) -> str:
    """Write credits, and what they cost where the configuration has their price."""
    price = conf.getfloat("snowpipe", "credit_price", fallback=0.0)
    currency = conf.get("snowpipe", "currency", fallback="USD")
    money = f" ({credits * price:,.2f} {currency})" if price else ""
    return credit_count(credits) + money


FIGURES: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("rows", "Rows", "{:,.0f}".format),
    ("bytes", "Bytes", size),
    ("seconds", "All rows after", duration),
    ("latency", "First rows after", duration),
    ("credits", "Credits", cost),
)


def shape_words(shape: Mapping[str, Any]) -> list[str]:
    """Write the shape of data as facts of a few words."""
    files = shape.get("files")
    files = files if isinstance(files, Mapping) else {}
    found = [
        ("with an end" if shape["bounded"] else "without an end") if "bounded" in shape else "",
        fact(shape.get("rows"), "{:,.0f} rows".format),
        fact(shape.get("bytes"), size),
        fact(files.get("count"), lambda value: counted(round(value), "file")),
        fact(files.get("bytes"), lambda value: f"{size(value)} stored"),
        str(files.get("format") or ""),
        "staged" if files.get("staged") else "",
        fact(shape.get("arrival_rate"), lambda value: f"{size(value)}/s"),
        fact(shape.get("freshness"), lambda value: f"fresh within {duration(value)}"),
        "backfill" if shape.get("backfill") else "",
        fact(shape.get("partitions"), lambda value: counted(round(value), "partition")),
    ]
    return [one for one in found if one]


def fact(value: Any, write: Callable[[float], str]) -> str:
    """Write a number of an XCom, nothing for what is none."""
    return "" if number_in(value) is None else write(value)


def number_in(value: Any) -> float | None:
    """The number that an XCom holds, None for anything else."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None

"""What the pages of channels show, as HTML."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from airflow_provider_snowpipe.links.channel_page import channel_query, channels_query
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.lag import ChannelLag
from airflow_provider_snowpipe.streaming.offsets import known_formats
from airflow_provider_snowpipe.streaming.retry import RetryPolicy
from airflow_provider_snowpipe.streaming.status import STATUS_NAMES_PER_REQUEST
from airflow_provider_snowpipe.streaming.targets import CommitTargets

if TYPE_CHECKING:
    from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
    from airflow_provider_snowpipe.streaming.names import PipeName

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
def headers() -> Mapping[str, str]:
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

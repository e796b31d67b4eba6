"""Pages of what tasks have done: the overview, pipes, plans, the tabs of a run and of a task, channels."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import (
    GetUserDep,
    requires_access_connection,
    requires_access_dag,
)
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query
from fastapi.responses import HTMLResponse

from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.links.snowpipe import channel_query, channels_query, pipe_query
from airflow_provider_snowpipe.plugins.history import (
    History,
    HistoryLimits,
    Rights,
    Where,
    read_history,
    read_plans,
)
from airflow_provider_snowpipe.plugins.pipe_state import ChannelState, PipeState
from airflow_provider_snowpipe.plugins.rendering import View, answer, refused, render, utc
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.lag import ChannelLag
from airflow_provider_snowpipe.streaming.limits import RetryPolicy
from airflow_provider_snowpipe.streaming.names import PipeName, quote_url_segment
from airflow_provider_snowpipe.streaming.offsets import known_formats
from airflow_provider_snowpipe.streaming.progress import STATUS_NAMES_PER_REQUEST, CommitTargets

CHANNELS_PER_PAGE = STATUS_NAMES_PER_REQUEST
RUNS_SHOWN = 50
PLANS_PER_PAGE = 10

Name = Annotated[str, Query(min_length=1)]
Page = Annotated[int, Query(ge=1, le=1_000_000)]

# Who may read connections may see what they reach, by Airflow's own check. What is shown of single
# connections and of DAGs is then held to the rights of this user.
router = APIRouter(dependencies=[Depends(requires_access_connection(method="GET"))])
tabs = APIRouter(
    prefix="/dags/{dag_id}",
    dependencies=[Depends(requires_access_dag(method="GET", access_entity=DagAccessEntity.XCOM))],
)


@router.get("/overview", response_class=HTMLResponse)
def overview(session: SessionDep, user: GetUserDep) -> HTMLResponse:
    """List every pipe that tasks have worked on, the worst first."""

    def make_view() -> View:
        limits = HistoryLimits.configured()
        history = read_history(session, Rights.of(user, session), limits, Where())
        pipes = sorted(_pipes(history), key=lambda one: (_WORST.get(one.state.word, 9), str(one.state.pipe)))
        html = render(
            "overview.html",
            title="Overview",
            active="overview",
            pipes=pipes,
            history=history,
            days=limits.days,
        )
        return View(html)

    return answer(make_view)


@router.get("/connections/{connection_id:path}/pipe", response_class=HTMLResponse)
def pipe(
    connection_id: str,
    database: Name,
    schema: Name,
    pipe: Name,
    session: SessionDep,
    user: GetUserDep,
    sort: str = "lag",
    descending: bool = True,
    page: Page = 1,
) -> HTMLResponse:
    """Show what tasks did on a pipe.

    :param sort: the column that orders the channels
    :param descending: the greatest first
    :param page: which hundred channels, from 1
    """

    def make_view() -> View:
        name = PipeName(database, schema, pipe)
        limits = HistoryLimits.configured()
        where = Where(connection=connection_id, pipe=name)
        history = read_history(session, Rights.of(user, session), limits, where)
        state = PipeState.of(connection_id, name, history.tasks)
        key = sort if sort in _COLUMNS else "lag"
        shown = ordered(state.channels, key, descending=descending)
        pages = max(1, -(-len(shown) // CHANNELS_PER_PAGE))
        base = f"connections/{quote_url_segment(connection_id)}"

        def address(**changed: Any) -> str:
            given = {"sort": key, "descending": descending, "page": 1, **changed}
            return f"{base}/{pipe_query(name, **given)}"

        rows = shown[(page - 1) * CHANNELS_PER_PAGE : page * CHANNELS_PER_PAGE]
        html = render(
            "pipe.html",
            title=str(name),
            pipe=state,
            live=f"{base}/{channels_query(name)}",
            columns=_columns(key, descending, address),
            channels=[(one, f"{base}/{channel_query(name, one.channel)}") for one in rows],
            total=len(shown),
            page=page,
            pages=pages,
            before=address(page=page - 1) if 1 < page <= pages else None,
            after=address(page=page + 1) if page < pages else None,
            runs=list(reversed(state.tasks))[:RUNS_SHOWN],
            history=history,
            days=limits.days,
        )
        return View(html)

    return answer(make_view)


@router.get("/plans", response_class=HTMLResponse)
def plans(session: SessionDep, user: GetUserDep, page: Page = 1) -> HTMLResponse:
    """List the plans of routed loads, the latest first.

    :param page: which ten of them, from 1
    """

    def make_view() -> View:
        limits = HistoryLimits.configured()
        rights = Rights.of(user, session)
        found, more = read_plans(session, rights, limits, Where(), PLANS_PER_PAGE, page)
        html = render(
            "plans.html",
            title="Plans",
            active="plans",
            plans=found,
            page=page,
            more=more,
            days=limits.days,
        )
        return View(html)

    return answer(make_view)


@tabs.get("/runs/{run_id}", response_class=HTMLResponse)
def run_tab(dag_id: str, run_id: str, session: SessionDep, user: GetUserDep) -> HTMLResponse:
    """Show what a run did on pipes, and its plans."""
    return _tab("Snowpipe in this run", Where(dag_id=dag_id, run_id=run_id), session, user)


@tabs.get("/tasks/{task_id}", response_class=HTMLResponse)
def task_tab(dag_id: str, task_id: str, session: SessionDep, user: GetUserDep) -> HTMLResponse:
    """Show what a task did on pipes in all of its runs, and its plans."""
    return _tab("Snowpipe in this task", Where(dag_id=dag_id, task_id=task_id), session, user)


@tabs.get("/runs/{run_id}/tasks/{task_id}/{map_index}", response_class=HTMLResponse)
def task_instance_tab(
    dag_id: str, run_id: str, task_id: str, map_index: str, session: SessionDep, user: GetUserDep
) -> HTMLResponse:
    """Show what a task instance did on pipes, and its plan.

    :param map_index: which one of a mapped task; Airflow leaves its placeholder for one that is not mapped
    """
    index = int(map_index) if map_index.isascii() and map_index.isdigit() and len(map_index) < 10 else -1
    where = Where(dag_id=dag_id, run_id=run_id, task_id=task_id, map_index=index)
    return _tab("Snowpipe in this task", where, session, user)


def _tab(title: str, where: Where, session: SessionDep, user: GetUserDep) -> HTMLResponse:
    def make_view() -> View:
        limits = HistoryLimits.configured()
        rights = Rights.of(user, session)
        history = read_history(session, rights, limits, where)
        found, _ = read_plans(session, rights, limits, where, PLANS_PER_PAGE)
        html = render(
            "tab.html",
            title=title,
            pipes=_pipes(history),
            plans=found,
            history=history,
            days=limits.days,
        )
        return View(html)

    return answer(make_view)


# -- What the templates show -----------------------------------------------------------------------------

_WORST = {
    word: at
    for at, word in enumerate(
        ("FAILED", "REJECTED ROWS", "BEHIND", "EXPIRED", "EXPIRES SOON", "UNKNOWN", "LOADING", "COMMITTED")
    )
}
_NEVER = dt.datetime.fromtimestamp(0, dt.UTC)
_COLUMNS: Mapping[str, tuple[str, bool, Callable[[ChannelState], Any]]] = {
    "channel": ("Channel", False, lambda one: one.channel),
    "state": ("State", False, lambda one: -_WORST.get(one.word, 9)),
    "committed": ("Committed", False, lambda one: one.committed or ""),
    "target": ("Target", False, lambda one: one.target or ""),
    "lag": ("Lag, rows", True, lambda one: one.lag_rows),
    "rows": ("Rows", True, lambda one: one.rows),
    "rejected": ("Rejected", True, lambda one: one.rejected),
    "latency": ("Append to commit", True, lambda one: one.latency_ms or -1),
    "commit": ("Last commit", False, lambda one: one.committed_at or _NEVER),
}


def ordered(channels: Sequence[ChannelState], column: str, *, descending: bool) -> list[ChannelState]:
    """Sort channels by a column, those that are alike by name.

    :param column: a key of the columns
    :param descending: the greatest first
    """
    by_name = sorted(channels, key=lambda one: one.channel)
    return sorted(by_name, key=_COLUMNS[column][2], reverse=descending)


def _columns(column: str, descending: bool, address: Callable[..., str]) -> list[dict[str, Any]]:
    return [
        {
            "label": label,
            "is_number": is_number,
            "href": address(sort=name, descending=not descending if name == column else is_number),
            "sorted": ("descending" if descending else "ascending") if name == column else None,
        }
        for name, (label, is_number, _) in _COLUMNS.items()
    ]


@dataclass(frozen=True, slots=True)
class _PipeLine:
    """A pipe and the address of its page."""

    state: PipeState
    href: str


def _pipes(history: History) -> list[_PipeLine]:
    return [
        _PipeLine(
            PipeState.of(connection, name, tasks),
            f"connections/{quote_url_segment(connection)}/{pipe_query(name)}",
        )
        for (connection, name), tasks in history.pipes().items()
    ]


# -- The pages that ask Snowflake: a channel, and the channels of a pipe ---------------------------------

channel_router = APIRouter(
    prefix="/connections/{connection_id:path}",
    # Who may read the connection may see what it reaches. The path has the connection's id because that is
    # where Airflow's check expects it.
    dependencies=[Depends(requires_access_connection(method="GET"))],
)


@channel_router.get("/channel", response_class=HTMLResponse)
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

    :param target: the offset token that it should have committed
    """

    def make_view() -> View:
        hook = SnowpipeHook(connection_id, pipe=pipe, database=database, schema=schema)
        name = PipeName(database, schema, pipe)
        where = Where(connection=connection_id, pipe=name)
        history = read_history(session, Rights.of(user, session), HistoryLimits.configured(), where)
        past = PipeState.of(connection_id, name, history.tasks, channel)
        return view_of_channel(hook, channel, target, offset_format, past)

    return answer(make_view)


@channel_router.get("/channels", response_class=HTMLResponse)
def channels(
    connection_id: str,
    database: Name,
    schema: Name,
    pipe: Name,
    prefix: str = "",
    page: Annotated[int, Query(ge=1)] = 1,
) -> HTMLResponse:
    """List the channels of a pipe, 100 a page.

    :param prefix: only channels whose name begins so
    :param page: which hundred of them, from 1
    """

    def make_view() -> View:
        hook = SnowpipeHook(connection_id, pipe=pipe, database=database, schema=schema)
        return view_of_pipe(hook, prefix, page)

    return answer(make_view)


# -- What the pages of channels show, as HTML ------------------------------------------------------------

CHANNEL_REFRESH_SECONDS = 10
LIST_REFRESH_SECONDS = 60
"""The list signs in for SQL each time, which a status request does not."""
_BUDGET = RetryPolicy(budget_seconds=10.0)
"""A person waits for the page, and so does a thread of the API server."""


def view_of_channel(
    hook: SnowpipeHook, channel: str, target: str | None, offset_format: str | None, past: PipeState
) -> View:
    """Ask after a channel and show what the service reports of it.

    :param target: the offset token that it should have committed, None where nobody expects one
    :param past: what tasks did on the channel
    :raises SnowpipeError: if the service does not report it, or the target is not one
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
        runs=list(reversed(past.tasks))[:RUNS_SHOWN],
        channel=ChannelLag.of(status, expected),
        created=_time(status.created_on_ms),
        refresh_seconds=CHANNEL_REFRESH_SECONDS,
    )
    return View(html, is_found=status.exists)


def view_of_pipe(hook: SnowpipeHook, prefix: str, page: int) -> View:
    """List the channels of a pipe and show what the service reports of a hundred of them.

    :param prefix: only channels whose name begins so
    :param page: which hundred, from 1
    :raises SnowpipeError: if the service does not report it
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
    """Read the target of an address; the class of its format is not imported."""
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


app = FastAPI(title="Snowpipe", docs_url=None, redoc_url=None, openapi_url=None)
app.include_router(router)
app.include_router(tabs)
app.include_router(channel_router)
app.add_exception_handler(HTTPException, refused)

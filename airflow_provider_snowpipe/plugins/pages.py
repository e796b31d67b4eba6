"""Pages of what tasks have done: the overview, pipes, plans, the tabs of a run and of a task, channels."""

from __future__ import annotations

import datetime as dt
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from http import HTTPStatus
from typing import Annotated, Any, ParamSpec, Self, TypeVar

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_connection, requires_access_dag
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query
from fastapi.responses import HTMLResponse

from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.links.snowpipe import channel_query, channels_query, pipe_query
from airflow_provider_snowpipe.plugins.history import (
    ChannelWork,
    CopyEntry,
    History,
    LastAudit,
    TaskWork,
    read_audits,
    read_history,
    read_plans,
)
from airflow_provider_snowpipe.plugins.rendering import Series, answer, refused, render, utc
from airflow_provider_snowpipe.plugins.rights import HistoryLimits, Rights, Where
from airflow_provider_snowpipe.streaming.checkpoint import position_of
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, OffsetTokenError
from airflow_provider_snowpipe.streaming.lag import ChannelLag
from airflow_provider_snowpipe.streaming.limits import RetryPolicy
from airflow_provider_snowpipe.streaming.names import PipeName, quote_url_segment
from airflow_provider_snowpipe.streaming.offsets import known_formats, offset_class
from airflow_provider_snowpipe.streaming.progress import (
    REJECTED_ROWS,
    STATUS_NAMES_PER_REQUEST,
    CommitTargets,
)

CHANNELS_PER_PAGE = STATUS_NAMES_PER_REQUEST
RUNS_SHOWN = 50
PLANS_PER_PAGE = 10

Name = Annotated[str, Query(min_length=1)]
Page = Annotated[int, Query(ge=1, le=1_000_000)]
Given = ParamSpec("Given")
One = TypeVar("One")

# Who may read connections may see what they reach, by Airflow's own check. What is shown of single
# connections and of DAGs is then held to the rights of this user. The path of a page about one connection has
# its id because that is where Airflow's check expects it.
router = APIRouter(dependencies=[Depends(requires_access_connection(method="GET"))])
tabs = APIRouter(
    prefix="/dags/{dag_id}",
    dependencies=[Depends(requires_access_dag(method="GET", access_entity=DagAccessEntity.XCOM))],
)


def shown(make: Callable[Given, HTMLResponse]) -> Callable[Given, HTMLResponse]:
    """Have a route answer with the page that it makes, or with the reason why there is none."""

    # Here, since FastAPI reads the annotations of a route by the names of the file that defines it.
    @wraps(make)
    def route(*args: Given.args, **kwargs: Given.kwargs) -> HTMLResponse:
        return answer(partial(make, *args, **kwargs))

    return route


@router.get("/overview", response_class=HTMLResponse)
@shown
def overview(session: SessionDep, user: GetUserDep) -> HTMLResponse:
    """List every pipe that tasks have worked on, the worst first."""
    history = _history(session, user, Where())
    pipes = sorted(_pipes(history), key=lambda one: (_WORST.get(one[0].word, 9), str(one[0].pipe)))
    return render("overview.html", title="Overview", active="overview", pipes=pipes, history=history)


@router.get("/connections/{connection_id:path}/pipe", response_class=HTMLResponse)
@shown
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

    :param page: which hundred channels, from 1
    """
    name = PipeName(database, schema, pipe)
    history = _history(session, user, Where(connection=connection_id, pipe=name))
    state = PipeState.of(connection_id, name, history.tasks)
    key = sort if sort in _COLUMNS else "lag"
    base = f"connections/{quote_url_segment(connection_id)}"

    def address(**changed: Any) -> str:
        given = {"sort": key, "descending": descending, "page": 1, **changed}
        return f"{base}/{pipe_query(name, **given)}"

    rows, others = _hundred(
        ordered(state.channels, key, descending=descending), page, lambda number: address(page=number)
    )
    return render(
        "pipe.html",
        title=str(name),
        pipe=state,
        live=f"{base}/{channels_query(name)}",
        columns=_columns(key, descending, address),
        channels=[(one, f"{base}/{channel_query(name, one.channel)}") for one in rows],
        runs=list(reversed(state.tasks))[:RUNS_SHOWN],
        history=history,
        audits=_audits(session, user, Where(connection=connection_id, pipe=name)),
        **others,
    )


@router.get("/plans", response_class=HTMLResponse)
@shown
def plans(session: SessionDep, user: GetUserDep, page: Page = 1) -> HTMLResponse:
    """List the plans of routed loads, the latest first."""
    limits = HistoryLimits.configured()
    found, more = read_plans(session, Rights.of(user, session), limits, Where(), PLANS_PER_PAGE, page)
    return render(
        "plans.html", title="Plans", active="plans", plans=found, page=page, more=more, days=limits.days
    )


@tabs.get("/runs/{run_id}", response_class=HTMLResponse)
@shown
def run_tab(dag_id: str, run_id: str, session: SessionDep, user: GetUserDep) -> HTMLResponse:
    """Show what a run did on pipes, and its plans."""
    return _tab("Snowpipe in this run", Where(dag_id=dag_id, run_id=run_id), session, user)


@tabs.get("/tasks/{task_id}", response_class=HTMLResponse)
@shown
def task_tab(dag_id: str, task_id: str, session: SessionDep, user: GetUserDep) -> HTMLResponse:
    """Show what a task did on pipes in all of its runs, and its plans."""
    return _tab("Snowpipe in this task", Where(dag_id=dag_id, task_id=task_id), session, user)


@tabs.get("/runs/{run_id}/tasks/{task_id}/{map_index}", response_class=HTMLResponse)
@shown
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
    limits = HistoryLimits.configured()
    found, _ = read_plans(session, Rights.of(user, session), limits, where, PLANS_PER_PAGE)
    history = _history(session, user, where)
    audits = _audits(session, user, where)
    return render("tab.html", title=title, pipes=_pipes(history), plans=found, audits=audits, history=history)


# -- How far a pipe and its channels are, as far as tasks have seen it -------------------------------------


@dataclass(slots=True)
class ChannelState:
    """How far a channel is, as far as tasks have seen it.

    :param committed: the last committed offset token that a task saw
    :param target: the last offset token that a task owed
    :param rows: rows that tasks sent
    :param rejected: rows of them that were rejected
    :param latency_ms: the last known average time from append to commit
    :param committed_at: when a task last saw a commit
    :param owed: rows of loads whose commit no task has seen, and when each ended
    :param counted: rejected rows that are counted, by the target up to which
    """

    channel: str
    committed: str | None = None
    target: str | None = None
    rows: int = 0
    rejected: int = 0
    latency_ms: int | None = None
    committed_at: dt.datetime | None = None
    owed: list[tuple[ChannelWork, dt.datetime]] = field(default_factory=list)
    counted: dict[str | None, int] = field(default_factory=dict)

    @property
    def lag_rows(self) -> int:
        """Rows that were sent and not seen committed."""
        return sum(work.rows or 0 for work, _ in self.owed)

    @property
    def behind_since(self) -> dt.datetime | None:
        """Since when."""
        return self.owed[0][1] if self.owed else None

    @property
    def word(self) -> str:
        """Its state."""
        return _word(self.rejected, bool(self.owed), self.committed_at)

    def take(self, work: ChannelWork, time: dt.datetime) -> int:
        """Go on with what a task did.

        :returns: rows that are known to be committed now and were not before
        """
        self.rows += work.rows or 0
        # A load and those that wait for it see the same rejected rows.
        known = self.counted.get(work.target, 0) if work.rows is None else 0
        self.rejected += max(0, work.rejected - known)
        if work.target is not None:
            self.counted[work.target] = max(known, work.rejected)
        self.latency_ms = work.latency_ms if work.latency_ms is not None else self.latency_ms
        self.target = work.target or self.target
        if work.rows:
            self.owed.append((work, time))
        done = [one for one in self.owed if _is_covered(one[0], work)]
        self.owed = [one for one in self.owed if one not in done]
        if work.committed is not None:
            self.committed, self.committed_at = work.committed, time
        elif work.found is not None:
            self.committed = work.found
        return sum(one.rows or 0 for one, _ in done)


def _is_covered(owed: ChannelWork, seen: ChannelWork) -> bool:
    """True when a task saw that what another, or itself, owed is committed."""
    if owed == seen or owed.target is None:
        return seen.committed is not None
    token = seen.committed or seen.found
    if token is None:
        return False
    if token == owed.target or (seen.committed is not None and seen.rows is not None):
        return True  # a channel commits in order
    try:
        # The class of an author is not imported here.
        spelled = offset_class(owed.offset_format) if owed.offset_format in known_formats() else None
        return not position_of(token, spelled) < position_of(owed.target, spelled)
    except (OffsetTokenError, ConfigurationError):
        return False


def _word(rejected: int, is_behind: bool, committed_at: dt.datetime | None) -> str:
    if rejected:
        return REJECTED_ROWS
    if is_behind:
        return "BEHIND"
    return "COMMITTED" if committed_at else "UNKNOWN"


@dataclass(frozen=True, slots=True)
class Point:
    """How many rows were sent and committed at a time, since the history begins.

    :param sent: rows up to the targets of the tasks
    :param committed: rows of them that a task had seen committed
    """

    time: dt.datetime
    sent: int
    committed: int


@dataclass(frozen=True, slots=True)
class PipeState:
    """How far a pipe is, as far as tasks have seen it.

    :param tasks: what worked on it, from the oldest
    """

    connection: str
    pipe: PipeName
    tasks: Sequence[TaskWork]
    channels: Sequence[ChannelState]
    points: Sequence[Point]

    @classmethod
    def of(
        cls, connection: str, pipe: PipeName, tasks: Sequence[TaskWork], channel: str | None = None
    ) -> Self:
        """Go through what tasks did.

        :param tasks: from the oldest
        """
        states: dict[str, ChannelState] = {}
        points: list[Point] = []
        own: list[TaskWork] = []
        sent = committed = 0
        for task in tasks:
            works = [one for one in task.channels if channel in (None, one.channel)]
            if works or channel is None:
                rows = tuple(one for one in task.unloaded if channel in (None, one.where))
                copies = task.copies if channel is None else ()
                own.append(replace(task, channels=tuple(works), unloaded=rows, copies=copies))
            for work in works:
                state = states.setdefault(work.channel, ChannelState(work.channel))
                sent += work.rows or 0
                committed += state.take(work, task.time)
            copied = sum(one.rows for one in task.copies) if channel is None else 0
            sent, committed = sent + copied, committed + copied
            if (works or copied) and not (task.is_running and not task.has_sent):
                points.append(Point(task.time, sent, committed))
        return cls(connection, pipe, own, list(states.values()), points)

    @property
    def rows_over_time(self) -> list[Series]:
        """For a chart: rows that tasks owed, and those of them that are committed."""
        return [
            Series("target", [(one.time, one.sent) for one in self.points]),
            Series("committed", [(one.time, one.committed) for one in self.points]),
        ]

    def over_time(self, name: str, attribute: str) -> list[Series]:
        """For a chart: what each load has of something, such as ``rows_per_second``."""
        loads = [task for task in self.tasks if task.has_sent]
        return [Series(name, [(task.time, getattr(task, attribute)) for task in loads])]

    @property
    def rows(self) -> int:
        """Rows that tasks sent."""
        return sum(task.rows for task in self.tasks)

    @property
    def rejected(self) -> int:
        """Rows of them that were rejected."""
        return sum(one.rejected for one in self.channels) + sum(one.rejected for one in self.copies)

    @property
    def copies(self) -> list[CopyEntry]:
        """Entries of the load ledger."""
        return [one for task in self.tasks for one in task.copies]

    @property
    def rows_per_second(self) -> float | None:
        """Rows a second of the last task that sent some."""
        return next(_known(task.rows_per_second for task in reversed(self.tasks)), None)

    @property
    def latency_ms(self) -> int | None:
        """The longest average time from append to commit, of the last task that knew one."""
        return next(_known(task.latency_ms for task in reversed(self.tasks)), None)

    @property
    def lag_rows(self) -> int:
        """Rows that were sent and not seen committed."""
        return sum(one.lag_rows for one in self.channels)

    @property
    def lag_seconds(self) -> float | None:
        """Seconds since the first of them was sent, None where nothing is behind."""
        since = min(_known(one.behind_since for one in self.channels), default=None)
        return None if since is None else (dt.datetime.now(dt.UTC) - since).total_seconds()

    @property
    def backlog(self) -> tuple[int, int, int] | None:
        """Files that were not committed when the last load of each task began: number, bytes, oldest age."""
        last = {
            (one.key.dag_id, one.key.task_id, one.key.map_index): one.backlog
            for one in self.tasks
            if one.backlog is not None
        }
        found = [one for one in last.values() if one is not None]
        if not found:
            return None
        files, sizes, ages = zip(*found, strict=True)
        return sum(files), sum(sizes), max(ages)

    @property
    def source_logs(self) -> list[str]:
        """The commands that list the source logs of the files that tasks streamed."""
        paths = dict.fromkeys(one.source for one in self.tasks if one.source and one.backlog is not None)
        given = ("--conn-id", self.connection, "--database", self.pipe.database)
        names = (*given, "--schema", self.pipe.schema, "--pipe", self.pipe.pipe)
        return [shlex.join(("airflow", "snowpipe", "files", "list", path, *names)) for path in paths]

    @property
    def oldest_commit(self) -> dt.datetime | None:
        """The last commit of the channel that has committed nothing for longest; without any, of a COPY."""
        last_copy = max(_known(one.at for one in self.copies), default=None)
        return min(_known(one.committed_at for one in self.channels), default=last_copy)

    @property
    def word(self) -> str:
        """Its state: what is worst, in one word."""
        last = {(task.key.dag_id, task.key.task_id, task.key.map_index): task for task in self.tasks}
        if any(task.is_failed for task in last.values()):
            return "FAILED"
        oldest = self.oldest_commit
        found = _word(self.rejected, any(one.owed for one in self.channels), oldest)
        is_loading = any(task.is_running for task in last.values())
        return "LOADING" if is_loading and found != REJECTED_ROWS else found


def _known(values: Iterable[One | None]) -> Iterator[One]:
    return (value for value in values if value is not None)


# -- What the templates show -----------------------------------------------------------------------------

_WORST = {
    word: at
    for at, word in enumerate(("FAILED", "REJECTED ROWS", "BEHIND", "UNKNOWN", "LOADING", "COMMITTED"))
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
    """Sort channels by a column, those that are alike by name."""
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


def _history(session: SessionDep, user: GetUserDep, where: Where) -> History:
    return read_history(session, Rights.of(user, session), HistoryLimits.configured(), where)


def _audits(session: SessionDep, user: GetUserDep, where: Where) -> list[LastAudit]:
    return read_audits(session, Rights.of(user, session), HistoryLimits.configured(), where)


def _pipes(history: History) -> list[tuple[PipeState, str]]:
    """Each pipe and the address of its page."""
    return [
        (
            PipeState.of(connection, name, tasks),
            f"connections/{quote_url_segment(connection)}/{pipe_query(name)}",
        )
        for (connection, name), tasks in history.pipes().items()
    ]


def _hundred(
    found: Sequence[One], page: int, address: Callable[[int], str]
) -> tuple[Sequence[One], dict[str, Any]]:
    """The channels of one page of a list, and what that shows of the others."""
    pages = max(1, -(-len(found) // CHANNELS_PER_PAGE))
    before, after = (address(one) if 1 <= one <= pages else None for one in (page - 1, page + 1))
    others = {"total": len(found), "page": page, "pages": pages, "before": before, "after": after}
    return found[(page - 1) * CHANNELS_PER_PAGE : page * CHANNELS_PER_PAGE], others


# -- The pages that ask Snowflake: a channel, and the channels of a pipe ---------------------------------

CHANNEL_REFRESH_SECONDS = 10
LIST_REFRESH_SECONDS = 60
"""The list signs in for SQL each time, which a status request does not."""
_BUDGET = RetryPolicy(budget_seconds=10.0)
"""A person waits for the page, and so does a thread of the API server."""


@router.get("/connections/{connection_id:path}/channel", response_class=HTMLResponse)
@shown
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
    """Ask after a channel, and show what the service reports of it and what tasks did on it.

    :param target: the offset token that it should have committed, None where nobody expects one
    """
    hook = SnowpipeHook(connection_id, pipe=pipe, database=database, schema=schema)
    name = PipeName(database, schema, pipe)
    history = _history(session, user, Where(connection=connection_id, pipe=name))
    past = PipeState.of(connection_id, name, history.tasks, channel)
    expected = None if target is None else _expected(channel, target, offset_format)
    status = hook.channel_statuses([channel], retry=_BUDGET)[channel]
    created = status.created_on_ms
    return render(
        "channel.html",
        HTTPStatus.OK if status.exists else HTTPStatus.NOT_FOUND,
        title=channel,
        conn_id=connection_id,
        pipe=name,
        of_pipe=pipe_query(name),
        past=past,
        runs=list(reversed(past.tasks))[:RUNS_SHOWN],
        channel=ChannelLag.of(status, expected),
        created=None if created is None else utc(dt.datetime.fromtimestamp(created / 1000, dt.UTC)),
        refresh_seconds=CHANNEL_REFRESH_SECONDS,
    )


@router.get("/connections/{connection_id:path}/channels", response_class=HTMLResponse)
@shown
def channels(
    connection_id: str,
    database: Name,
    schema: Name,
    pipe: Name,
    prefix: str = "",
    page: Annotated[int, Query(ge=1)] = 1,
) -> HTMLResponse:
    """List the channels of a pipe, 100 a page, and show what the service reports of them."""
    hook = SnowpipeHook(connection_id, pipe=pipe, database=database, schema=schema)
    name = PipeName(database, schema, pipe)
    found = sorted(one.name for one in hook.list_channels() if one.name.startswith(prefix))
    names, others = _hundred(found, page, lambda number: channels_query(name, prefix, number))
    statuses = hook.channel_statuses(names, retry=_BUDGET) if names else {}
    return render(
        "channels.html",
        title=str(name),
        conn_id=connection_id,
        pipe=name,
        of_pipe=pipe_query(name),
        prefix=prefix,
        channels=[(statuses[one], channel_query(name, one)) for one in names],
        refresh_seconds=LIST_REFRESH_SECONDS,
        **others,
    )


def _expected(channel: str, target: str, offset_format: str | None) -> CommitTargets:
    """Read the target of an address; the class of its format is not imported."""
    if offset_format is not None and offset_format not in known_formats():
        raise ConfigurationError(
            f"offset_format is {offset_format!r}: with target=… it must be one of "
            f"{', '.join(sorted(known_formats()))}"
        )
    return CommitTargets.parse({channel: target}, offset_format)


app = FastAPI(title="Snowpipe", docs_url=None, redoc_url=None, openapi_url=None)
app.include_router(router)
app.include_router(tabs)
app.add_exception_handler(HTTPException, refused)

"""What tasks have left behind of pipes and plans, read from Airflow's own database.

A task that works on a pipe leaves the XCom ``channel_page`` when it begins, which names its connection and
pipe; what it did is its value and the XComs ``targets``, ``plan``, ``outcome``, ``copies`` and, where it
failed, ``observed``. XComs are there on every release, for failed and running tasks as well, are found by an
index on their key, keep the rights of their DAG, and go when Airflow removes the run. The task store has no
index over tasks and is not there before Airflow 3.3; asset events are there only for tasks with outlets, and
name neither connection nor target.

An XCom is whatever a DAG wrote. It is read as bounded JSON text (:func:`raw_json`), never deserialised.
"""

from __future__ import annotations

import datetime as dt
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from sqlalchemy import Text, and_, case, cast, func, select

from airflow_provider_snowpipe.links.snowpipe import (
    AUDIT_KEY,
    CHANNEL_PAGE_KEY,
    COPIES_KEY,
    OBSERVED_KEY,
    PageAddress,
    raw_json,
)
from airflow_provider_snowpipe.plugins.rendering import FIGURES, fact, number_in, shape_words
from airflow_provider_snowpipe.plugins.rights import HistoryLimits, Rights, Where
from airflow_provider_snowpipe.routing.cost_model import GB, CostModel
from airflow_provider_snowpipe.routing.load_plan import LoadPlan
from airflow_provider_snowpipe.streaming.arguments import MOST_UNLOADED, UnloadedRow
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.names import PipeName

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

PLAN_KEY = "plan"
_LEFT = ("return_value", "targets", OBSERVED_KEY, COPIES_KEY)
_RUNNING = ("running", "deferred", "up_for_reschedule", "restarting", "awaiting_input")
_FAILED = ("failed", "up_for_retry")
_TASKS_AT_A_TIME = 100
_LONGEST_ADDRESS = 16_384
_LONGEST_VALUE = 2_000_000
"""Characters of one XCom that is read: the value of a load over 2,000 channels is about half of it."""
_LONGEST_TEXT = 4_096
"""Characters of a channel's name or token; Python reads no longer number either."""
_MOST_CHANNELS, _MOST_COPIES = 10_000, 50
_AUDITS_AT_A_TIME, _MOST_PIPES = 10, 1_000
_MOST_SENTENCES, _LONGEST_SENTENCE = 20, 500
"""What is shown of an audit's differences."""
_CHANNEL_BYTES = 100
"""What a channel counts against the limit of size, beside its text."""


@dataclass(frozen=True, slots=True)
class TaskKey:
    """A task instance.

    :param map_index: which one of a mapped task, -1 where it is not mapped
    """

    dag_id: str
    run_id: str
    task_id: str
    map_index: int


@dataclass(frozen=True, slots=True)
class ChannelWork:
    """What one task did on one channel, or saw of it.

    :param target: the offset token that the task owed, None where it owed nothing
    :param found: the committed offset token that the task found
    :param committed: the committed offset token that it left or saw, None where it saw none
    :param rows: rows that it sent, with those that the service rejected; None for a task that only read
    :param bytes: their size as NDJSON; None where it is not known
    :param rejected: rows that the service rejected and that no task had reported before, as far as it waited
    :param dead_lettered: rows that were put aside
    :param latency_ms: the service's average time from append to commit
    :param last_error: the last rejected row, in the service's words; empty where none is known
    """

    channel: str
    target: str | None = None
    offset_format: str | None = None
    found: str | None = None
    committed: str | None = None
    rows: int | None = None
    bytes: int | None = None
    rejected: int = 0
    dead_lettered: int = 0
    latency_ms: int | None = None
    last_error: str = ""


@dataclass(frozen=True, slots=True)
class CopyEntry:
    """An entry of the load ledger, as the task of its COPY left it.

    :param at: when it was loaded, None where it is not
    :param error: why the last statement failed
    """

    state: str
    query_id: str
    error: str
    at: dt.datetime | None
    files: int
    rows: int
    rejected: int


@dataclass(frozen=True, slots=True)
class TaskWork:
    """What one task did on one pipe.

    :param began: when it began, None where it has not
    :param ended: when it ended, None while it runs
    :param seconds: how long its load took
    :param channels: channel by channel; empty where it left nothing of them
    :param reason: why it failed, in a word; empty where it left none
    :param backlog: files that were not committed when it began, their bytes, and the age of the oldest one in
        seconds; None where it left none
    :param source: the address of what it streamed, empty where it left none
    :param copies: its entries in the load ledger
    :param unloaded: the first rows that it put aside or skipped, or that COPY rejected
    :param path: the folder of dead letters, or the stage of files; empty where none is known
    :param run: its name in the dead letters; empty where it has none
    """

    key: TaskKey
    connection: str
    pipe: PipeName
    operator: str
    state: str
    began: dt.datetime | None
    ended: dt.datetime | None
    seconds: float | None
    channels: tuple[ChannelWork, ...] = ()
    reason: str = ""
    backlog: tuple[int, int, int] | None = None
    source: str = ""
    copies: tuple[CopyEntry, ...] = ()
    unloaded: tuple[UnloadedRow, ...] = ()
    path: str = ""
    run: str = ""

    @property
    def time(self) -> dt.datetime:
        """When it ended or, while it runs, began."""
        return self.ended or self.began or dt.datetime.fromtimestamp(0, dt.UTC)

    @property
    def is_running(self) -> bool:
        """True while the task has more to do."""
        return self.state in _RUNNING

    @property
    def is_failed(self) -> bool:
        """True when its last try failed."""
        return self.state in _FAILED

    @property
    def has_sent(self) -> bool:
        """True for a task that sent rows, also none, and not only read."""
        return bool(self.copies) or any(one.rows is not None for one in self.channels)

    @property
    def rows(self) -> int:
        """Rows over all channels and COPYs."""
        return sum(one.rows or 0 for one in self.channels) + sum(one.rows for one in self.copies)

    @property
    def rejected(self) -> int:
        """Rejected rows over all channels and COPYs."""
        return sum(one.rejected for one in self.channels) + sum(one.rejected for one in self.copies)

    @property
    def not_loaded(self) -> list[UnloadedRow]:
        """The first rows that did not load; of those that the service rejected, a channel's last one."""
        last = (UnloadedRow(one.channel, None, one.last_error) for one in self.channels if one.last_error)
        return [*islice(last, MOST_UNLOADED), *self.unloaded]

    @property
    def command(self) -> str:
        """What prints its dead letters; empty where they are not in files."""
        if not self.path or not self.run or self.path.startswith("kafka:"):
            return ""
        path, run = map(shlex.quote, (self.path, self.run))
        return f"airflow snowpipe letters {path} --run {run} > rows.ndjson"

    @property
    def credits(self) -> float | None:
        """An estimate of what its streamed rows cost, None where it streamed none."""
        sizes = [one.bytes for one in self.channels if one.bytes is not None]
        return sum(sizes) / GB * CostModel().stream_credits_per_gb if sizes else None

    @property
    def rows_per_second(self) -> float | None:
        """Rows a second, None where no row was sent or no time is known."""
        return self.rows / self.seconds if self.rows and self.seconds else None

    @property
    def latency_ms(self) -> int | None:
        """The longest average time from append to commit of a channel."""
        return max((one.latency_ms for one in self.channels if one.latency_ms is not None), default=None)


@dataclass(frozen=True, slots=True)
class History:
    """What was read.

    :param tasks: from the oldest to the latest
    :param days: how far it goes back
    :param hidden: tasks that are left out because their connection may not be read
    :param is_cut: True when there was more than the limits let in
    """

    tasks: tuple[TaskWork, ...]
    days: int
    hidden: int = 0
    is_cut: bool = False

    def pipes(self) -> dict[tuple[str, PipeName], list[TaskWork]]:
        """The tasks of each pipe, by connection and pipe."""
        found: dict[tuple[str, PipeName], list[TaskWork]] = {}
        for task in self.tasks:
            found.setdefault((task.connection, task.pipe), []).append(task)
        return found


def read_history(session: Session, rights: Rights, limits: HistoryLimits, where: Where) -> History:
    """Read what tasks left of pipes."""
    marks = _marks(session, CHANNEL_PAGE_KEY, rights, limits, where)
    is_cut, hidden = len(marks) > limits.tasks, 0
    meant: list[tuple[Any, PageAddress]] = []
    for mark in marks[: limits.tasks]:
        page = PageAddress.read(raw_json(mark.value))
        if page is None or where.pipe not in (None, page.pipe):
            continue
        if where.connection not in (None, page.connection):
            continue
        if not rights.may_read(page.connection):
            hidden += 1
            continue
        meant.append((mark, page))
    tasks: list[TaskWork] = []
    room = limits.size
    for at in range(0, len(meant), _TASKS_AT_A_TIME):
        part = meant[at : at + _TASKS_AT_A_TIME]
        values, used = _values(session, [mark for mark, _ in part], _LEFT, room)
        for mark, page in part:
            left = values.get(_key(mark), {}) if room > 0 else {}
            tasks.append(_task_work(mark, page, left))
            room -= _CHANNEL_BYTES * len(tasks[-1].channels)
        room -= used
        if room <= 0:
            is_cut = is_cut or at + _TASKS_AT_A_TIME < len(meant)
            break
    return History(tuple(sorted(tasks, key=lambda one: one.time)), limits.days, hidden, is_cut)


@dataclass(frozen=True, slots=True)
class PlannedLoad:
    """A load that was routed.

    :param shape: the data's shape, empty where the task left none
    :param outcome: ``path``, ``estimated`` and ``actual``, empty until the load has ended well
    """

    key: TaskKey
    state: str
    began: dt.datetime | None
    plan: LoadPlan
    shape: Mapping[str, Any]
    outcome: Mapping[str, Any]

    @property
    def facts(self) -> list[str]:
        """The shape as facts of a few words."""
        return shape_words(self.shape)

    @property
    def comparison(self) -> list[dict[str, str]]:
        """Estimate and outcome of each figure; empty until the load has ended well."""
        estimated, actual = (_mapping(self.outcome.get(name)) for name in ("estimated", "actual"))
        return [
            {
                "name": label,
                "estimate": fact(estimated.get(name), write),
                "outcome": fact(actual.get(name), write),
            }
            for name, label, write in (FIGURES if actual else ())
        ]


def read_plans(
    session: Session, rights: Rights, limits: HistoryLimits, where: Where, most: int, page: int = 1
) -> tuple[list[PlannedLoad], bool]:
    """Read the plans of routed loads, the latest first.

    :param page: which page, from 1
    :returns: the plans, and whether there may be more
    """
    marks = _marks(session, PLAN_KEY, rights, limits, where)[: limits.tasks]
    shown = marks[(page - 1) * most : page * most]
    values, _ = _values(session, shown, (PLAN_KEY, "outcome"), limits.size)
    found = []
    for mark in shown:
        left = values.get(_key(mark), {})
        value = _mapping(raw_json(left.get(PLAN_KEY)))
        plan = LoadPlan.from_json(value)
        if plan is not None:
            outcome = _mapping(raw_json(left.get("outcome")))
            began = _utc(mark.start_date)
            shape = _mapping(value.get("shape"))
            found.append(PlannedLoad(_key(mark), mark.state or "none", began, plan, shape, outcome))
    return found, len(marks) > page * most


@dataclass(frozen=True, slots=True)
class LastAudit:
    """The last audit of a pipe.

    :param at: when it ended, None where that cannot be read
    :param depth: what it compared
    :param channels: how many
    :param differences: what differs, in words; the first ones
    :param count: how many differences there are
    :param notes: what could not be compared
    """

    key: TaskKey
    connection: str
    pipe: PipeName
    at: dt.datetime | None
    depth: str
    channels: int
    differences: tuple[str, ...]
    count: int
    notes: tuple[str, ...]

    @property
    def word(self) -> str:
        """Its outcome."""
        return "DIFFERS" if self.count else "AGREES"


def read_audits(session: Session, rights: Rights, limits: HistoryLimits, where: Where) -> list[LastAudit]:
    """Read the last audit of each pipe among the latest ones."""
    marks = _marks(session, AUDIT_KEY, rights, limits, where)[: limits.tasks]
    found: dict[tuple[str, PipeName], LastAudit] = {}
    room = limits.size
    for at in range(0, len(marks), _AUDITS_AT_A_TIME):
        part = marks[at : at + _AUDITS_AT_A_TIME]
        values, used = _values(session, part, (AUDIT_KEY,), room)
        for mark in part:
            for one in _audits(_key(mark), raw_json(values.get(_key(mark), {}).get(AUDIT_KEY))):
                is_asked = where.pipe in (None, one.pipe) and where.connection in (None, one.connection)
                if is_asked and rights.may_read(one.connection):
                    found.setdefault((one.connection, one.pipe), one)
        room -= used
        if found or room <= 0:
            break
    return list(found.values())


def _audits(key: TaskKey, value: Any) -> Iterator[LastAudit]:
    value = _mapping(value)
    for one in islice(_items(value.get("pipes")), _MOST_PIPES):
        entry = _mapping(one)
        names = _mapping(entry.get("names"))
        connection, depth = _text(entry.get("connection")), _text(value.get("depth"))
        try:
            pipe = PipeName(*(_text(names.get(name)) or "" for name in ("database", "schema", "pipe")))
        except ConfigurationError:
            continue
        if connection and depth:
            differences = _items(entry.get("differences"))
            yield LastAudit(
                key=key,
                connection=connection,
                pipe=pipe,
                at=_time(value.get("at")),
                depth=depth,
                channels=_count(entry.get("channels")) or 0,
                differences=_sentences(differences),
                count=len(differences),
                notes=_sentences(_items(entry.get("notes"))),
            )


def _sentences(values: Sequence[Any]) -> tuple[str, ...]:
    texts = (one for one in values if isinstance(one, str))
    return tuple(
        one if len(one) <= _LONGEST_SENTENCE else f"{one[:_LONGEST_SENTENCE]}…"
        for one in islice(texts, _MOST_SENTENCES)
    )


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _time(value: Any) -> dt.datetime | None:
    try:
        found = dt.datetime.fromisoformat(_text(value) or "")
        return (found if found.tzinfo else found.replace(tzinfo=dt.UTC)).astimezone(dt.UTC)
    except (ValueError, OverflowError):
        return None


_KEY = ("dag_id", "run_id", "task_id", "map_index")


def _text_of_value(longest: int) -> Any:
    """The text of an XCom, NULL for a longer one, which does not leave the database."""
    text = cast(XComModel.value, Text)
    return case((func.length(text) <= longest, text)).label("value")


def _marks(session: Session, key: str, rights: Rights, limits: HistoryLimits, where: Where) -> Sequence[Any]:
    """The latest task instances with an XCom of that key; one more than the limit where there are more."""
    since = dt.datetime.now(dt.UTC) - dt.timedelta(days=limits.days)
    same_task = and_(*(getattr(TaskInstance, name) == getattr(XComModel, name) for name in _KEY))
    columns = [getattr(XComModel, name) for name in (*_KEY, "dag_run_id")]
    if key == CHANNEL_PAGE_KEY:
        columns.append(_text_of_value(_LONGEST_ADDRESS))
    return session.execute(
        select(
            *columns,
            *(getattr(TaskInstance, name) for name in ("state", "operator", "start_date", "end_date")),
        )
        .join(TaskInstance, same_task)
        .where(XComModel.key == key, XComModel.timestamp >= since)
        .where(XComModel.dag_id.in_(sorted(rights.dag_ids)), *where.conditions())
        .order_by(XComModel.timestamp.desc())
        .limit(limits.tasks + 1)
    ).all()


def _key(row: Any) -> TaskKey:
    return TaskKey(row.dag_id, row.run_id, row.task_id, row.map_index)


def _values(
    session: Session, tasks: Sequence[Any], keys: Sequence[str], room: int
) -> tuple[dict[TaskKey, dict[str, str]], int]:
    """Texts of XComs of some tasks by their key, and their size; those that find no room are left out."""
    length = func.length(cast(XComModel.value, Text))
    among = (
        XComModel.dag_run_id.in_({task.dag_run_id for task in tasks}),
        XComModel.task_id.in_({task.task_id for task in tasks}),
        XComModel.key.in_(keys),
    )
    columns = [getattr(XComModel, name) for name in (*_KEY, "dag_run_id", "key")]
    expected = {_key(task) for task in tasks}
    taken: set[tuple[TaskKey, str]] = set()
    used = 0
    rows = session.execute(select(*columns, length.label("length")).where(*among)).all()
    # The value of a COPY has each of its files; a page shows their number.
    passed = {(_key(row), "return_value") for row in rows if row.key == COPIES_KEY}
    for row in rows:
        size_of = row.length or 0
        is_read = _key(row) in expected and (_key(row), row.key) not in passed
        if is_read and size_of <= _LONGEST_VALUE and used + size_of <= room:
            taken.add((_key(row), row.key))
            used += size_of
    found: dict[TaskKey, dict[str, str]] = {}
    if taken:
        for row in session.execute(select(*columns, _text_of_value(min(room, _LONGEST_VALUE))).where(*among)):
            if (_key(row), row.key) in taken:
                found.setdefault(_key(row), {})[row.key] = row.value
    return found, used


# -- From the XComs of a task to what it did -------------------------------------------------------------


def _task_work(mark: Any, page: PageAddress, values: Mapping[str, str]) -> TaskWork:
    value = _mapping(raw_json(values.get("return_value")))
    observed = {} if value else _mapping(raw_json(values.get(OBSERVED_KEY)))
    copied = _mapping(raw_json(values.get(COPIES_KEY)))
    unloaded = _mapping((copied or value or observed).get("unloaded"))
    seconds = number_in(value.get("seconds"))
    if seconds is None and mark.start_date and mark.end_date:
        seconds = (mark.end_date - mark.start_date).total_seconds()
    works = _channel_works(value or observed, _mapping(raw_json(values.get("targets"))))
    if not works and page.channel is not None:
        works = [ChannelWork(page.channel, page.target)]
    return TaskWork(
        key=_key(mark),
        connection=page.connection,
        pipe=page.pipe,
        operator=mark.operator or "",
        state=mark.state or "none",
        reason=_text(observed.get("reason")) or "",
        began=_utc(mark.start_date),
        ended=_utc(mark.end_date),
        seconds=seconds,
        channels=tuple(works),
        backlog=_backlog(_mapping(value.get("backlog"))),
        source=_text(value.get("source")) or "",
        copies=tuple(_copy_entry(_mapping(one)) for one in _items(copied.get("entries"))[-_MOST_COPIES:]),
        unloaded=tuple(_row(_mapping(one)) for one in _items(unloaded.get("rows"))[:MOST_UNLOADED]),
        path=_text(unloaded.get("path")) or "",
        run=_text(unloaded.get("run")) or "",
    )


def _copy_entry(value: Mapping[str, Any]) -> CopyEntry:
    state, query_id, error = (
        (_text(value.get(name)) or "")[:_LONGEST_SENTENCE] for name in ("state", "query_id", "error")
    )
    files, rows, rejected = (_count(value.get(name)) or 0 for name in ("files", "rows", "rejected"))
    return CopyEntry(state, query_id, error, _time(value.get("at")), files, rows, rejected)


def _row(value: Mapping[str, Any]) -> UnloadedRow:
    """A row that did not load, cut again: an XCom is whatever a DAG wrote."""
    where, position, reason, row = (_text(value.get(one)) for one in ("where", "position", "reason", "text"))
    return UnloadedRow.of(where or "", position, reason or "", row)


def _backlog(value: Mapping[str, Any]) -> tuple[int, int, int] | None:
    found = [_count(value.get(name)) for name in ("files_behind", "bytes_behind", "oldest_file_seconds")]
    return None if None in found else (found[0] or 0, found[1] or 0, found[2] or 0)


def _channel_works(value: Mapping[str, Any], targets: Mapping[str, Any]) -> list[ChannelWork]:
    """What a task's value has of channels: that of a load, an append, a change of a channel, or a sensor."""
    channels = value.get("channels")
    if isinstance(channels, Mapping):
        found = [(name, one, targets.get(name)) for name, one in islice(channels.items(), _MOST_CHANNELS)]
    elif isinstance(name := value.get("channel"), str) and "pipe" in value:
        found = [(name, value, targets.get(name))]
    elif value and all(one is None or isinstance(one, str) for one in value.values()) and "pipe" not in value:
        found = [(name, token, None) for name, token in islice(value.items(), _MOST_CHANNELS)]
    else:
        found = [(name, {}, target) for name, target in islice(targets.items(), _MOST_CHANNELS)]
    return [_work(*one) for one in found if len(one[0]) <= _LONGEST_TEXT]


def _work(name: str, value: Any, target: Any) -> ChannelWork:
    value, target = value if isinstance(value, Mapping) else {"committed": value}, _mapping(target)
    to, seen = _text(value.get("to")), value.get("committed", True)
    return ChannelWork(
        channel=name,
        target=_text(target.get("token", value.get("target"))),
        offset_format=_text(target.get("offset_format")),
        found=_text(value.get("from")),
        committed=(to if seen is True else None) if "to" in value else _text(value.get("new", seen)),
        rows=_count(value.get("rows", target.get("rows"))),
        bytes=_count(value.get("bytes")),
        rejected=_count(value.get("rejected")) or 0,
        dead_lettered=_count(value.get("dead_lettered")) or 0,
        latency_ms=_count(value.get("latency_ms")),
        last_error=(_text(value.get("last_error")) or "")[:_LONGEST_SENTENCE],
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _count(value: Any) -> int | None:
    return None if number_in(value) is None else int(value)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and len(value) <= _LONGEST_TEXT else None


def _utc(time: dt.datetime | None) -> dt.datetime | None:
    return time if time is None or time.tzinfo else time.replace(tzinfo=dt.UTC)

"""Histories of appends, against a plain model: no run succeeds while the table's rows differ.

Two tasks append to one pipe with the real operator, writer and client; the service is the fake one. Runs die
at any call, lose answers, are repeated with the same rows and with others; DAGs are renamed and share a
channel; channels are dropped, created again, reset and restored.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_histories

from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.operators import source_record
from airflow_provider_snowpipe.operators.append import SnowpipeAppendRowsOperator
from airflow_provider_snowpipe.streaming.checkpoint import excess_of, position_of, same_position
from airflow_provider_snowpipe.streaming.errors import SnowpipeError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from tests.channel_histories import HELD, JOBS, NO_FAULT, REBINDS, ChannelHistories, Fault, faults
from tests.fake_snowpipe import PIPE, URL, KilledError
from tests.stream_worker import TaskInstance

LIMITS = BatchLimits(rows=2, age_seconds=30, requests_per_second=10_000)
FAULTS = faults("append", "status", "open", "variable")
LOSSES = FAULTS.map(lambda one: {**one, "kind": "gone"})
"""The channel is dropped while the run sends."""
ANY_FAULT = st.just(NO_FAULT) | st.just(HELD) | FAULTS | LOSSES
ALL = 1_000
"""Stands for the batch where a column numbers the rows."""
ROWS = st.lists(st.integers(0, 3).map(lambda n: n == 3), min_size=1, max_size=4)
CHANGES = {"dag": ("d", "e"), "channel": ("c", None), "column": (None, "N"), "is_given": (False, True)}
EDITS = st.one_of(
    *(st.fixed_dictionaries({name: st.sampled_from(values)}) for name, values in CHANGES.items())
)


@dataclass(frozen=True)
class Job:
    """What an author has written.

    :param column: the column that numbers all rows of the source, None to number those of each batch
    :param is_given: the author numbers the batches
    """

    dag: str
    channel: str | None = "c"
    column: str | None = None
    is_given: bool = False

    @property
    def name(self) -> str:
        return self.channel or f"{self.dag}_t"

    @property
    def source(self) -> tuple[str, str]:
        """An append's identity: its task, and the name of its channel."""
        return self.dag, self.name


@dataclass(frozen=True)
class Work:
    """A run of a job: its batch, its id, and the rows that it appends, or those up to a channel's token."""

    job: Job
    batch: float
    run_id: str
    rows: tuple[str, ...]

    @property
    def key(self) -> str:
        """Begins all rows of its batch."""
        return "/".join(map(str, (*self.job.source, self.job.column, self.batch, "")))

    def continues(self, sent: Work) -> bool:
        """Return whether it can be told what of it has been sent, where another one was the last."""
        if (sent.job.source, sent.job.column) != (self.job.source, self.job.column):
            return False
        if self.job.column or sent.batch != self.batch:
            return sent.batch <= self.batch
        return self.rows[: len(sent.rows)] == sent.rows and (self.job.is_given or sent.run_id == self.run_id)


class Histories(ChannelHistories):
    """The channels of one pipe.

    A source is *sure* as long as no author and no operator has said what only they can know. None of its rows
    is in the table twice, and when a run succeeds, the table has the rows of its batch and no others of it.
    """

    def __init__(self) -> None:
        super().__init__()
        for name, value in {
            "columns_for_keys": lambda _: (), "pipe_name": lambda _: PIPE, "account_url": lambda _: URL,
            "get_client": lambda *_: self.snowpipe.client(),
        }.items():  # fmt: skip
            self.patch.setattr(SnowpipeHook, name, value)
        for name, value in {"append._PART_BYTES": 1, "channel.BatchLimits": lambda: LIMITS}.items():
            self.patch.setattr(f"airflow_provider_snowpipe.streaming.{name}", value)
        self.variables: dict[str, str] = {}
        kept = SimpleNamespace(
            get=lambda key, default=None: self.call(lambda: self.variables.get(key, default)),
            set=lambda key, value, description=None: self.call(lambda: self.variables.update({key: value})),
            keys=lambda prefix: [key for key in self.variables if key.startswith(prefix)],
        )
        self.patch.setattr(source_record, "Variable", kept)
        self.fault = NO_FAULT
        self.jobs = [Job("d"), Job("e", None)]
        self.rows: dict[str, tuple[str, ...]] = {}
        self.batches = self.made = 0
        self.sent: dict[str, Work] = {}
        """What the token of each channel stands for."""
        self.received: dict[str, Work] = {}
        """Rows that are not committed."""
        self.tried: dict[tuple[str, str], int] = {}
        """The last batch of each source that a run has tried to append."""
        self.lost: dict[tuple[str, str], int] = {}
        """The last one that may be in a channel that is gone."""
        self.unrecorded: set[tuple[str, str]] = set()
        self.unsure: set[tuple[str, str]] = set()
        self.gone: dict[str, str | None] = {}
        self.backed: dict[str, Work] = {}

    def call(self, do: Callable[[], Any]) -> Any:
        """A call of Airflow, during which the task may die."""
        when = None
        if self.fault.get("operation") == "variable":
            when = self.fault["when"] if self.fault["skip"] == 0 else None
            self.fault = {**self.fault, "skip": self.fault["skip"] - 1}
        answer = None if when == "before" else do()
        if when:
            raise KilledError
        return answer

    # What happens to jobs and channels.

    @rule(number=JOBS, change=EDITS, elsewhere=st.integers(0, 3).map(lambda n: n == 3))
    def edit(self, number: int, change: dict[str, Any], elsewhere: bool) -> None:
        """An author changes a job; maybe it moves to another Airflow, which has no record of checkpoints."""
        self.jobs[number] = replace(self.jobs[number], **change)
        if elsewhere:
            self.variables.clear()
            self.unrecorded |= set(self.tried)
            self.unsure |= set(self.lost)

    @precondition(lambda self: self.received)
    @rule()
    def commit_late(self) -> None:
        """What was received is committed after its run has given up."""
        before = {name: self.committed(name) for name in self.received}
        self.snowpipe.commit()
        for name, work in self.received.items():
            self.take(name, work, before[name])
        self.received.clear()

    @precondition(lambda self: self.snowpipe.channels)
    @rule(data=st.data(), again=st.booleans())
    def lose(self, data: st.DataObject, again: bool) -> None:
        """A channel expires or is dropped; somebody may make it again."""
        name = data.draw(st.sampled_from(sorted(self.snowpipe.channels)))
        self.drop(name)
        if again:
            self.client.open_channel(name)

    def drop(self, name: str) -> None:
        self.gone[name] = self.committed(name)
        self.client.drop_channel(name)
        self.sent.pop(name, None)
        self.received.pop(name, None)
        self.lost |= {source: last for source, last in self.tried.items() if source[1] == name}
        self.unsure |= {source for source in self.unrecorded if source[1] == name}

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), again=st.booleans())
    def reset(self, data: st.DataObject, again: bool) -> None:
        """An operator sets a token to where it stands, or behind the batch or the row before."""
        name = data.draw(st.sampled_from(sorted(self.sent)))
        now, work = position_of(str(self.committed(name))), self.sent[name]
        if again and (work.job.column is None or now.value):
            names = {"value": now.value - 1} if work.job.column else {"batch": now.batch - 1, "row": 9}
            now = replace(now, **names)
            rows, batch = (work.rows[:-1], 0) if work.job.column else ((), work.batch - 0.5)
            work = replace(work, batch=batch, rows=rows)
        if not self.was_reset(name, now):
            assert name in self.received
            return
        if work != self.sent[name]:
            self.unsure.add(work.job.source)
        self.sent[name] = work

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def back_up(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.sent)))
        self.take_backup([name])
        self.backed = {name: self.sent[name]}

    @precondition(lambda self: self.backup is not None)
    @rule()
    def restore(self) -> None:
        (kept,) = self.backup.channels.values()
        for name, token in self.restored(self.received, type(position_of(kept.offset_token))).items():
            work = self.backed[name]
            if name in self.sent or not same_position(self.gone.get(name), token):
                self.unsure |= {work.job.source, self.sent.get(name, work).job.source}
            self.sent[name] = work

    # Runs.

    @rule(number=JOBS, bad=ROWS, fault=ANY_FAULT, waits=st.booleans())
    def run_next(self, number: int, bad: list[bool], fault: Fault, waits: bool) -> None:
        self.batches += 1
        self.append(self.work(number, self.batches, bad), None, fault, waits)

    @precondition(lambda self: self.batches)
    @rule(number=JOBS, past=st.integers(0, 2), fault=ANY_FAULT, waits=st.booleans())
    def run_again(self, number: int, past: int, fault: Fault, waits: bool) -> None:
        """A run is repeated, or one that was late is done."""
        self.append(self.work(number, max(self.last(number) - past, 1), [False]), None, fault, waits)

    @rule(number=JOBS, bad=ROWS, faults=st.tuples(ANY_FAULT, ANY_FAULT), rebind=st.none() | REBINDS)
    def lose_and_run_again(
        self, number: int, bad: list[bool], faults: tuple[Fault, Fault], rebind: str | None
    ) -> None:
        """A run may die, its channel expires, and it is repeated."""
        self.run_next(number, bad, faults[0], waits=False)
        if self.jobs[number].name in self.snowpipe.channels:
            self.drop(self.jobs[number].name)
        self.append(self.work(number, self.batches, []), rebind, faults[1], True)

    @precondition(lambda self: self.batches)
    @rule(number=JOBS, bad=ROWS, kept=st.integers(0, 3), run_id=st.sampled_from(["r", "s"]))
    def run_with_other_rows(self, number: int, bad: list[bool], kept: int, run_id: str) -> None:
        """A run is deleted and triggered again, and has other rows."""
        work = self.work(number, self.last(number), bad)
        if not work.job.column:
            others = (*work.rows[:kept], *self.made_rows(work, bad))
            self.rows[work.key] = others
            work = replace(work, rows=others, run_id=run_id)
        self.append(work, None, NO_FAULT, True)

    @rule(number=JOBS, change=EDITS, bad=ROWS, fault=ANY_FAULT, rebind=REBINDS)
    def edit_and_rebind(
        self, number: int, change: dict[str, Any], bad: list[bool], fault: Fault, rebind: str
    ) -> None:
        self.edit(number, change, elsewhere=False)
        self.batches += 1
        self.append(self.work(number, self.batches, bad), rebind, fault, True)

    def last(self, number: int) -> int:
        return min(self.tried.get(self.jobs[number].source, 1), self.batches)

    def work(self, number: int, batch: int, bad: list[bool]) -> Work:
        """A run of a batch, whose rows are made where it has none; of a column it has all rows of before."""
        work = Work(self.jobs[number], 0 if self.jobs[number].column else batch, "r", ())
        rows = self.rows.get(work.key, ())
        if work.job.column or not rows:
            rows = (*rows, *self.made_rows(work, bad))
        self.rows[work.key] = rows
        return replace(work, rows=rows)

    def made_rows(self, work: Work, bad: list[bool]) -> tuple[str, ...]:
        self.made += 1
        return tuple(f"{work.key}{self.made}-{n}{'-bad' * one}" for n, one in enumerate(bad))

    def append(self, work: Work, rebind: str | None, fault: Fault, waits: bool) -> None:
        """Run a job, and compare how it ended and what it left with the model."""
        job, before = work.job, self.committed(work.job.name)
        sent = self.sent.get(job.name)
        has_to_load = fault is NO_FAULT and self.has_to_load(work, rebind)
        if rebind and (job.source in self.lost if sent is None else not work.continues(sent)):
            self.unsure |= {job.source, job.source if sent is None else sent.job.source}
        self.tried[job.source] = max(self.tried.get(job.source, 0), ALL if job.column else work.batch)

        def gone() -> None:
            self.take(job.name, work, before)
            if job.name in self.snowpipe.channels:
                self.drop(job.name)

        self.fault = fault
        self.disturb(fault, gone=gone)

        value = self.do_append(work, rebind, waits)

        assert value is not None or not has_to_load
        self.snowpipe.heal()
        self.fault = NO_FAULT
        self.take(job.name, work, before)
        channel = self.snowpipe.channels.get(job.name)
        if job.name in self.received:
            assert channel.received, "rows of another run are not discarded"
        elif channel is not None and channel.received:
            self.received[job.name] = work
        if value is not None and value["committed"]:
            self.unrecorded.discard(job.source)
            if job.source not in self.unsure:
                found = Counter(row for row in self.visible().elements() if row.startswith(work.key))
                assert found == Counter(row for row in work.rows if "bad" not in row)

    def has_to_load(self, work: Work, rebind: str | None) -> bool:
        """Return whether nothing speaks against a run."""
        name, source = work.job.name, work.job.source
        if name in self.received:
            return False
        if name in self.sent:  # one that was dropped while its token was set counts other rows
            status = self.client.channel_statuses([name])[name]
            return work.continues(self.sent[name]) and not excess_of(status)
        return rebind == "restart" or self.lost.get(source, -1) < work.batch

    def do_append(self, work: Work, rebind: str | None, waits: bool) -> dict[str, Any] | None:
        """Do what the task does; what it returns, None where it fails."""
        job, due = work.job, dt.datetime.fromtimestamp(work.batch, dt.UTC)
        rows = [{"ID": one, "N": number} for number, one in enumerate(work.rows)]
        batch = work.batch * 1_000_000 if job.is_given and not job.column else None
        given: dict[str, Any] = {"channel": job.channel, "token_column": job.column, "batch": batch}
        given |= {"wait_for_commit": waits, "rebind": rebind, "commit_timeout": 2.0, "on_imbalance": "fail"}
        operator = SnowpipeAppendRowsOperator(task_id="t", table="T", rows=rows, on_error="continue", **given)
        ti = TaskInstance(dag_id=job.dag, task_id="t", run_id=work.run_id)
        context: Any = {"ti": ti, "dag_run": SimpleNamespace(run_after=due, logical_date=None)}
        try:
            return operator.execute(context)
        except (AirflowException, SnowpipeError, KilledError):
            return None

    def take(self, name: str, work: Work, before: str | None) -> None:
        """Take what a run has committed."""
        token = self.committed(name)
        if token is not None and not same_position(token, before):
            position = position_of(token)
            rows = position.value + 1 if work.job.column else position.row
            self.sent[name] = replace(work, rows=work.rows[:rows])

    @invariant()
    def no_row_is_in_the_table_twice(self) -> None:
        twice = [row for row, count in self.visible().items() if count > 1]
        assert [row for row in twice if tuple(row.split("/")[:2]) not in self.unsure] == []


@pytest.mark.parametrize("histories", [80, pytest.param(800, marks=pytest.mark.nightly)])
def test_no_history_ends_with_success_and_rows_that_differ(histories):
    run_histories(
        Histories, settings=settings(max_examples=histories, stateful_step_count=20 if histories > 80 else 14)
    )

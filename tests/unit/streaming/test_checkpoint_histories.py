"""Histories of channels, against a plain model: no run succeeds while the table's rows differ.

Two jobs load two sources in memory into one pipe, with the real driver, sink, writer and client; the service
is the fake one. Between their runs anything happens: sources grow, runs die at any call and lose answers,
rows are received and not committed, jobs are renamed or come to read another source or in another way,
channels are dropped, restored, reset, and written to by others.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_histories

from airflow_provider_snowpipe.spark.driver.outcome import error_type_of
from airflow_provider_snowpipe.spark.driver.plan import JobPlan
from airflow_provider_snowpipe.spark.driver.run import Run
from airflow_provider_snowpipe.streaming import errors
from airflow_provider_snowpipe.streaming.checkpoint import Binding, Checkpoint, same_position, source_of_token
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset
from tests.channel_histories import HELD, JOBS, NO_FAULT, REBINDS, ChannelHistories, Fault, faults
from tests.fake_snowpipe import PIPE, URL, KilledError
from tests.memory_source import InProcessSpark, MemoryPartition, MemorySource, MemorySpec

SOURCES = ("eu", "us")
READINGS = ("all records", "without the first record")
PREFIXES = ("a", "b", "c")
PLAN = JobPlan(
    "app", URL, PIPE, "a", "src", MemorySpec(), credentials_variable="X", commit_timeout=2.0,
    on_imbalance="fail", is_recorded=True,
    limits=BatchLimits(rows=2, age_seconds=30, requests_per_second=10_000),
)  # fmt: skip
ENDS = {"ImbalanceError": "unbalanced", "SourcePositionError": "refused", "SourceChangedError": "refused"}
BAD = st.lists(st.integers(0, 2).map(lambda n: n == 2), max_size=4)
FAULTS = faults("append", "status", "open", "drop")
LATE_COMMIT = {"when": "before", "operation": "drop", "skip": 0, "kind": "late"}
"""What a channel has received is committed just before the driver drops it."""
LOSSES = FAULTS.map(lambda one: {**one, "operation": "append", "kind": "gone"})
"""The channel is dropped while the run sends."""
DEATH = {"when": "after", "operation": "append", "skip": 0, "kind": "killed"}
ANY_FAULT = st.one_of(st.just(NO_FAULT), st.just(LATE_COMMIT), FAULTS)
BEFORE = st.sampled_from(
    ["nothing", "a run died", "rows wait for their commit", "a row was written elsewhere"]
)
CHANGES = {"prefix": PREFIXES, "source": SOURCES, "reading": READINGS}
EDITS = st.one_of(
    st.fixed_dictionaries({}),
    *(st.fixed_dictionaries({name: st.sampled_from(values)}) for name, values in CHANGES.items()),
)


@dataclass(frozen=True)
class Read(MemoryPartition):
    """A source as a job reads it; the partitions have one name, so that their channels' names collide."""

    source: str = ""
    reading: str = ""

    @property
    def binding(self) -> Binding:
        return Binding(self.source, self.reading)


@dataclass(frozen=True)
class Job:
    """What an author has written."""

    source: str
    prefix: str
    reading: str = READINGS[0]

    @property
    def channel(self) -> str:
        return f"{self.prefix}_src_p"


@dataclass(frozen=True)
class Standing:
    """What the model knows of a channel with a token.

    :param next: number of the row that comes next
    :param unreported: rejected rows that no run has reported
    :param excess: rows that other programs wrote, or that went missing
    """

    source: str
    reading: str
    next: int
    unreported: int = 0
    excess: int = 0

    @classmethod
    def of_token(cls, token: str) -> Standing:
        found = Checkpoint.parse(token, IntegerOffset)
        named = {Binding(one, reading).digest: (one, reading) for one in SOURCES for reading in READINGS}
        return cls(*named[found.binding], found.position.value + 1)

    def is_of(self, job: Job) -> bool:
        return (self.source, self.reading) == (job.source, job.reading)


@dataclass(frozen=True)
class Expected:
    """What the model expects of a run.

    :param end: ``refused``, ``unbalanced``, ``reported`` (rejected rows of channels that are to be taken
        over, and nothing is loaded), or ``loaded``
    :param start: number of the first row that it sends
    :param unreported: rejected rows that it has to report beside its own
    :param taken: channels that it takes over and drops
    :param is_sure: False where the author says what positions mean, or that rows are to be loaded again
    :param sets: the run sets the start before it sends a row
    """

    end: str
    start: int = 0
    unreported: int = 0
    taken: tuple[str, ...] = ()
    is_sure: bool = True
    sets: bool = False


@dataclass(frozen=True)
class Session:
    """Rows that are received and not committed, and may be committed or discarded.

    :param excess: that of the channel when the session began; its token counts these rows
    """

    job: Job
    expected: Expected
    excess: int = 0


def good(rows: list[str]) -> Counter[str]:
    return Counter(row for row in rows if "bad" not in row)


class Histories(ChannelHistories):
    """The channels of one pipe, and a model of where each one stands and of what the table holds.

    A source is *sure* as long as no author and no operator has said what only they can know. Each of its rows
    is in the table once when a run of it succeeds. What the table holds otherwise is as the model expects it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.records: dict[str, list[str]] = {source: [] for source in SOURCES}
        self.jobs = [Job("eu", "a"), Job("us", "b")]
        self.channels: dict[str, Standing] = {}
        self.lost: dict[str, Standing] = {}
        self.sessions: dict[str, Session] = {}
        self.table: Counter[str] = Counter()
        self.unsure: set[str] = set()
        self.known: dict[str, tuple[str, str]] = {}
        self.begun: dict[str, tuple[str, int]] = {}
        """The channel that has been recorded for a source before its first row, and when it was created."""
        self.stale: set[str] = set()
        """Sources of which a lost channel had committed more than a run has written down."""
        self.runs = 0

    def rows(self, job: Job | Standing) -> list[str]:
        return self.records[job.source][READINGS.index(job.reading) :]

    def others(self, source: str, channel: str) -> tuple[str, ...]:
        """Other channels that have loaded a source, as they are listed."""
        names = [name for name in self.snowpipe.channels if name in self.channels and name != channel]
        return tuple(name for name in names if self.channels[name].source == source)

    # What happens to sources and jobs.

    @initialize()
    def begin(self) -> None:
        for source in SOURCES:
            self.grow(source, [False] * 3)

    def grow(self, source: str, bad: list[bool]) -> None:
        before = len(self.records[source])
        self.records[source] += [f"{source}-{before + n}{'-bad' * one}" for n, one in enumerate(bad)]

    @rule(number=JOBS, change=EDITS, elsewhere=st.integers(0, 2).map(lambda n: n == 2))
    def edit(self, number: int, change: dict[str, str], elsewhere: bool) -> None:
        """An author changes a job; maybe it moves to another Airflow, which has no record of checkpoints."""
        self.jobs[number] = replace(self.jobs[number], **change)
        if elsewhere:
            self.forget()

    # What happens to channels.

    @precondition(lambda self: self.sessions)
    @rule()
    def commit_late(self) -> None:
        """What was received is committed after its run has given up."""
        for name, session in self.sessions.items():
            if self.others(session.job.source, name):
                self.unsure.add(session.job.source)
        before = {name: self.committed(name) for name in self.sessions}
        self.snowpipe.commit()
        for name, session in self.sessions.items():
            self.take(name, session, before[name])
        self.sessions.clear()

    @precondition(lambda self: self.snowpipe.channels)
    @rule(data=st.data(), again=st.booleans())
    def lose(self, data: st.DataObject, again: bool) -> None:
        """A channel expires or is dropped; somebody may make it again."""
        self.drop(data.draw(st.sampled_from(sorted(self.snowpipe.channels))), again)

    def drawn(self, data: st.DataObject) -> str:
        """One of the channels with a token."""
        return data.draw(st.sampled_from(sorted(self.channels)))

    def drop(self, name: str, again: bool) -> None:
        if name in self.channels:
            self.leave(name, self.committed(name))
            self.lost[name] = self.channels.pop(name)
        self.client.drop_channel(name)
        self.sessions.pop(name, None)
        if again:
            self.client.open_channel(name)

    def leave(self, name: str, token: str | None) -> None:
        """A channel shows no more what it has loaded; a record does if a run has written down its token."""
        source = self.channels[name].source
        _, known = self.known.get(Binding(source).source_digest, ("", None))
        self.sure_if(known is not None, source)
        if source not in self.begun and not same_position(known, token):
            self.stale.add(source)

    def forget(self) -> None:
        """Another Airflow runs the jobs, or this one has lost its record of the last checkpoints."""
        self.known.clear()
        self.begun.clear()
        self.unsure |= set(SOURCES) - {one.source for one in self.channels.values()}

    @precondition(lambda self: self.channels)
    @rule(data=st.data(), excess=st.sampled_from([1, 1, -1]))
    def write_elsewhere(self, data: st.DataObject, excess: int) -> None:
        """Another program writes a row under the token that is there; or a row of it goes missing."""
        self.write(self.drawn(data), excess)

    def write(self, name: str, excess: int) -> None:
        excess = max(excess, -self.snowpipe.channels[name].rows_inserted)
        self.snowpipe.channels[name].rows_inserted += excess
        self.channels[name] = replace(self.channels[name], excess=self.channels[name].excess + excess)

    @precondition(lambda self: self.channels)
    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        name = self.drawn(data)
        standing = self.channels[name]
        position = data.draw(st.integers(0, standing.next - 1) | st.just(standing.next - 1))
        if not self.was_reset(name, position):
            assert name in self.sessions
            return
        self.sure_if(position + 1 == standing.next, standing.source)
        self.channels[name] = replace(standing, next=position + 1, excess=0)

    @rule()
    def back_up(self) -> None:
        self.take_backup(list(self.snowpipe.channels))

    @precondition(lambda self: self.backup is not None)
    @rule()
    def restore(self) -> None:
        for channel, token in self.restored(self.sessions, IntegerOffset).items():
            now, before = Standing.of_token(token), self.channels.pop(channel, None)
            was = self.lost.get(channel)
            same = was is not None and now == replace(was, unreported=0, excess=0)
            self.sure_if(before is None and same and not self.others(now.source, channel), now.source)
            if before is not None:
                self.unsure.add(before.source)
            # The token of the backup may be older than the last report of rejected rows.
            self.channels[channel] = replace(now, unreported=self.owed(channel))

    def sure_if(self, sure: bool, source: str) -> None:
        if not sure:
            self.unsure.add(source)

    # Runs.

    @rule(number=JOBS, bad=BAD, fault=st.sampled_from([NO_FAULT, HELD]))
    def load(self, number: int, bad: list[bool], fault: Fault) -> None:
        self.run(number, bad, None, fault)

    @rule(number=JOBS, bad=BAD, fault=FAULTS | LOSSES)
    def load_with_a_fault(self, number: int, bad: list[bool], fault: Fault) -> None:
        self.run(number, bad, None, fault)

    @rule(number=JOBS, bad=BAD)
    def load_again(self, number: int, bad: list[bool]) -> None:
        for more in (bad, []):
            self.run(number, more, None, NO_FAULT)

    @rule(number=JOBS, change=EDITS, bad=BAD, rebind=REBINDS, fault=st.just(HELD) | ANY_FAULT, before=BEFORE)
    def edit_and_rebind(
        self, number: int, change: dict[str, str], bad: list[bool], rebind: str, fault: Any, before: str
    ) -> None:
        """An author changes a job and says what the positions mean, at once or when a run has died."""
        if before == "a run died":
            self.run(number, bad, None, DEATH)
        if before == "rows wait for their commit":
            self.run(number, bad, None, HELD)
            fault = LATE_COMMIT
        if before == "a row was written elsewhere" and self.jobs[number].channel in self.channels:
            self.write(self.jobs[number].channel, 1)
        self.edit(number, change, elsewhere=False)
        self.run(number, bad, rebind, fault)

    @rule(number=JOBS, again=st.booleans(), bad=BAD, rebind=st.none() | REBINDS, fault=ANY_FAULT)
    def lose_and_load(
        self, number: int, again: bool, bad: list[bool], rebind: str | None, fault: Fault
    ) -> None:
        """A job finds that its channel has expired, or that somebody has made it again."""
        if self.jobs[number].channel in self.channels:
            self.drop(self.jobs[number].channel, again)
        self.run(number, bad, rebind, fault)

    @rule(number=JOBS, prefix=st.sampled_from(PREFIXES), bad=BAD, fault=ANY_FAULT)
    def rename_after_rows_were_rejected(
        self, number: int, prefix: str, bad: list[bool], fault: Fault
    ) -> None:
        """A run dies before it reports its rejected rows, and the job takes over from a new name."""
        self.run(number, [True], None, DEATH)
        self.edit(number, {"prefix": prefix}, elsewhere=False)
        for more in (bad, []):
            self.run(number, more, "continue", fault)

    def run(self, number: int, bad: list[bool], rebind: str | None, fault: Fault) -> None:
        """Let a source grow, run its job, and compare how it ended and what it left with the model."""
        self.grow(self.jobs[number].source, bad)
        job = self.jobs[number]
        expected = self.expected(job, rebind)
        before = {name: self.committed(name) for name in self.channels.keys() | {job.channel}}
        openings = {name: one.session for name, one in self.snowpipe.channels.items()}
        taken = [self.snowpipe.channels[name] for name in expected.taken]

        def late() -> None:
            for one in taken:
                one.commit(self.snowpipe.rejects)

        def gone() -> None:
            self.take(job.channel, Session(job, expected), before[job.channel])
            self.drop(job.channel, again=False)

        self.disturb(fault, late=late, gone=gone)

        end, rejected, run = self.do_run(job, rebind)

        if rebind == "restart" and expected.end == "loaded":  # also of a run that dies before its first row
            self.sure_if(expected.is_sure, job.source)
        sends = expected.end == "loaded" and len(self.rows(job)) > expected.start
        may_die = sends if fault is HELD else bool(fault)
        may_die |= expected.sets and job.channel in self.sessions
        assert end == expected.end or (end == "died" and may_die)
        if end == "loaded":
            self.accept(job, expected, before[job.channel], rejected, run)
        elif end == "reported":
            assert rejected == expected.unreported
        else:
            self.after_failure(job, expected, before, openings)
        for name in expected.taken if expected.end == "reported" else ():
            assert fault not in (NO_FAULT, HELD) or not self.owed(name)
            self.channels[name] = replace(self.channels[name], unreported=self.owed(name))
        for name in list(self.sessions):
            if name not in self.snowpipe.channels or not self.snowpipe.channels[name].received:
                del self.sessions[name]

    def owed(self, name: str) -> int:
        """Rejected rows that the next run has to report: once more where the last one could not mark them."""
        token = Checkpoint.parse(str(self.committed(name)), IntegerOffset)
        return self.snowpipe.channels[name].rows_error_count - token.errors

    def expected(self, job: Job, rebind: str | None) -> Expected:
        here, others = self.channels.get(job.channel), self.others(job.source, job.channel)
        digits = Binding(job.source).source_digest
        taken = others if rebind == "continue" else ()
        if here is not None and here.is_of(job):
            if here.excess:
                return Expected("unbalanced")
            return self.checked(job, Expected("loaded", here.next, here.unreported, taken))
        if rebind is None and (here is not None or others):
            return Expected("refused")
        if here is not None:
            if taken and here.source != job.source:
                return Expected("refused")
            goes_on = rebind == "continue"
            start = here.next if goes_on else 0
            return self.checked(job, Expected("loaded", start, here.unreported, taken, False, sets=goes_on))
        if rebind == "continue" and others:
            first = self.channels[others[0]]
            if first.excess:
                return Expected("unbalanced")
            sure = first.reading == job.reading and len(others) == 1
            return self.checked(job, Expected("loaded", first.next, 0, taken, sure, sets=True))
        is_begun = job.source in self.begun
        if rebind != "restart" and (
            not self.is_there(job) if is_begun else digits in self.known and not rebind
        ):
            return Expected("refused")
        if rebind == "continue" and digits in self.known and not is_begun:
            known = Standing.of_token(self.known[digits][1])
            sure = known.reading == job.reading and job.source not in self.stale
            return self.checked(job, Expected("loaded", known.next, 0, (), sure, sets=True))
        # The rows of a channel without a token are seen by nobody before they are committed.
        is_first = self.is_there(job) if is_begun else digits not in self.known
        return Expected("loaded", is_sure=is_first and not others and not self.received(job))

    def is_there(self, job: Job) -> bool:
        """Return whether the job's channel is the one that was recorded before its first row."""
        channel = self.snowpipe.channels.get(job.channel)
        return channel is not None and self.begun[job.source] == (job.channel, channel.created_on_ms)

    def received(self, job: Job) -> bool:
        others = [one for name, one in self.sessions.items() if name != job.channel]
        return any(one.job.source == job.source for one in others)

    def checked(self, job: Job, expected: Expected) -> Expected:
        """A position behind the source's end is refused; what dropped channels owe is reported first."""
        if expected.start > len(self.rows(job)):
            return replace(expected, end="refused")
        owed = sum(self.channels[name].unreported for name in expected.taken)
        return Expected("reported", unreported=owed, taken=expected.taken) if owed else expected

    def do_run(self, job: Job, rebind: str | None) -> tuple[str, int, Run]:
        """Do what the job does; how it ended, and how many rejected rows it reported."""
        self.runs += 1
        rows = [{"ID": one} for one in self.rows(job)]
        source = MemorySource([Read("p", rows, source=job.source, reading=job.reading)])
        self.patch.setattr("airflow_provider_snowpipe.spark.driver.run.open_source", lambda *_: source)
        end, rejected, sent = "loaded", 0, False
        try:
            while not sent:
                named = {"run": f"r{self.runs}", "last_checkpoints": dict(self.known)}
                plan = replace(PLAN, channel_prefix=job.prefix, rebind=rebind, **named)
                run = Run(plan, self.client, object, list_channels=self.snowpipe.listed)
                run.prepare()
                sent = run.load(InProcessSpark())
                for name, token in run.report(0).begun.items():
                    self.known[source_of_token(token)] = (name, token)
                    self.begun[job.source] = (name, self.snowpipe.channels[name].created_on_ms)
            run.verify()
            run.finish()
        except KilledError:
            self.snowpipe.heal()
            return "died", 0, run
        except errors.RowsRejectedError as refused:
            end, rejected = "loaded" if run.channels else "reported", refused.rejected
        except errors.SnowpipeError as failed:
            end = ENDS.get(error_type_of(failed), "died")
        self.snowpipe.heal()
        run.mark_reported()
        return end, rejected, run

    def accept(self, job: Job, expected: Expected, before: str | None, rejected: int, run: Run) -> None:
        """Take a run that has loaded everything; only rejected rows may have made it fail."""
        rows = self.rows(job)
        bad = sum("bad" in row for row in rows[expected.start :])
        assert rejected == expected.unreported + bad
        self.table += good(rows[expected.start :])
        if rows[expected.start :] or expected.sets:
            self.rebind(job.channel, job.source, before)
            self.channels[job.channel] = Standing(job.source, job.reading, len(rows))
        elif job.channel in self.channels and job.channel not in self.sessions:
            # With rows that wait they are reported again.
            self.channels[job.channel] = replace(self.channels[job.channel], unreported=0)
        for name in expected.taken:
            del self.channels[name]
        for report in run.channels:
            self.known[source_of_token(report.to_token or "")] = (report.channel, str(report.to_token))
        if Binding(job.source).source_digest in {source_of_token(one.to_token or "") for one in run.channels}:
            self.begun.pop(job.source, None)
            self.stale.discard(job.source)
        self.known.pop("", None)
        self.sure_if(expected.is_sure, job.source)
        if job.source not in self.unsure:
            found = [row for row in self.visible().elements() if row.startswith(job.source)]
            assert Counter(found) == good(rows)

    def rebind(self, name: str, source: str, before: str | None) -> None:
        """A channel may go over to another source, by its author's word."""
        if name in self.channels and self.channels[name].source != source:
            self.leave(name, before)

    def after_failure(
        self, job: Job, expected: Expected, before: dict[str, str | None], openings: dict[str, int]
    ) -> None:
        """Take what a run has left that did not come to its end."""
        name, here = job.channel, self.channels.get(job.channel)
        session = Session(job, expected, here.excess if here else 0)
        self.take(name, session, before[name])
        for other in expected.taken:
            if other not in self.snowpipe.channels:
                del self.channels[other]
        channel = self.snowpipe.channels.get(name)
        if channel is not None and channel.session != openings.get(name):
            self.sessions[name] = session

    def take(self, name: str, session: Session, before: str | None) -> None:
        """Take the rows that a session has committed: those up to the channel's token, and no other ones."""
        token = self.committed(name)
        if token is None or same_position(token, before):
            return
        now = Standing.of_token(token)
        assert now.is_of(session.job)
        rows = self.rows(now)[session.expected.start : now.next]
        bad = sum("bad" in row for row in rows)
        self.table += good(rows)
        self.rebind(name, now.source, before)
        here = self.channels.get(name)
        excess = here.excess - session.excess if here else 0
        self.channels[name] = replace(now, unreported=session.expected.unreported + bad, excess=excess)
        self.sure_if(session.expected.is_sure, now.source)

    @invariant()
    def the_table_holds_what_the_model_expects(self) -> None:
        assert self.visible() == self.table

    @invariant()
    def every_channel_stands_where_the_model_expects_it(self) -> None:
        tokens = {name: one.committed for name, one in self.snowpipe.channels.items()}
        found = {name: Standing.of_token(token) for name, token in tokens.items() if token}
        assert found == {name: replace(one, unreported=0, excess=0) for name, one in self.channels.items()}


@pytest.mark.parametrize("histories", [120, pytest.param(1_200, marks=pytest.mark.nightly)])
def test_no_history_ends_with_success_and_rows_that_differ(histories):
    run_histories(
        Histories,
        settings=settings(max_examples=histories, stateful_step_count=20 if histories > 120 else 14),
    )

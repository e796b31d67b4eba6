"""Histories of COPY tasks against a plain model: a green task has each row of its files in the table, once.

Runs of one task copy what a stage has, with and without FORCE, two files a statement, against the fake
account. Between and during their tries anything happens: workers die at any call, or stall and are overtaken
by the next try, answers and statements are lost, tasks are deferred and cleared, runs are deleted and made
again, files are changed and removed, options are edited, and the table is emptied, replaced, or cloned.
"""

import datetime as dt
import json
from collections import Counter
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, TaskDeferred
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from airflow_provider_snowpipe.operators.copy import SnowpipeCopyOperator
from airflow_provider_snowpipe.streaming.errors import SnowpipeError
from tests.fake_account import AFTER, BEFORE, CrashError, FakeAccount
from tests.unit.operators.account_in_task import install, task_context

CALLS = ["submit", "state", "LEDGER", "PLAN", "LIST", "REMOVE", "HISTORY", "AGE", "COUNT"]
RUNS = st.sampled_from(["r1", "r2", "forced1", "forced2"])
FAULT = st.none() | st.tuples(st.sampled_from(CALLS), st.sampled_from([BEFORE, AFTER]), st.integers(1, 4))
PATHS = st.sampled_from(["a", "b", "c", "d", "e"])


class Histories(RuleBasedStateMachine):
    """One task, its runs, and a model: by which loads each row is in the table."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.account = FakeAccount()
        install(self.account, self.patch)
        self.patch.setattr("airflow_provider_snowpipe.bulk.copy.MOST_FILES", 2)
        self.patch.setattr("time.sleep", lambda _: self.account.finish())
        self.versions, self.tries, self.clears = Counter[str](), Counter[str](), Counter[str]()
        self.whose: dict[str, set[str]] = {}
        self.began: dict[str, dt.datetime] = {}
        self.inserted = 0
        self.deferred: dict[str, dict[str, Any]] = {}
        self.staged: dict[str, dict[str, bytes]] = {}
        self.options: dict[str, Any] = {}
        self.now = dt.datetime.now(dt.UTC)

    @initialize()
    def begin(self) -> None:
        for path in "abc":
            self.put(path)

    def teardown(self) -> None:
        self.patch.undo()

    def put(self, path: str) -> None:
        self.versions[path] += 1
        self.account.put(path, *(f"{path}{self.versions[path]}-{row}" for row in range(2)))

    # What happens to stage and table.

    @rule(path=PATHS)
    def stage(self, path: str) -> None:
        self.put(path)

    @rule(path=PATHS)
    def unstage(self, path: str) -> None:
        self.account.stages["S"].pop(path, None)

    @rule(purge=st.booleans(), policy=st.sampled_from(["ABORT_STATEMENT", "CONTINUE"]))
    def edit(self, purge: bool, policy: str) -> None:
        self.options = {"purge": purge, "on_error": policy}

    @rule(replaced=st.booleans())
    def empty(self, replaced: bool) -> None:
        """TRUNCATE, or CREATE OR REPLACE: load history and COPY's memory go with the rows."""
        self.delete()
        self.restore()
        if replaced:
            self.account.created = self.later()

    @rule()
    def delete(self) -> None:
        """DELETE of all rows: COPY and load history remember what was loaded."""
        self.account.rows.clear()
        self.whose.clear()

    @rule()
    def insert(self) -> None:
        self.inserted += 1
        self.account.rows.append(f"inserted{self.inserted}")
        self.whose[f"inserted{self.inserted}"] = {"another program"}

    @rule()
    def restore(self) -> None:
        """TRUNCATE, and an INSERT that brings the rows back: nothing remembers their loads."""
        self.account.history.clear()
        self.account._copied.clear()

    @precondition(lambda self: self.account.rows)
    @rule()
    def clone(self) -> None:
        """A clone takes the table's place: it has the rows, and no memory of their loads."""
        self.restore()
        self.account.created = self.later()

    @rule()
    def forget(self) -> None:
        """The SQL API forgets its statements; what runs is never finished."""
        self.account.statements.clear()

    @rule()
    def finish(self) -> None:
        self.account.finish()
        self.sync()

    # Tries of tasks.

    @rule(run=RUNS, fault=FAULT)
    def attempt(self, run: str, fault: tuple[str, str, int] | None) -> None:
        self.deferred.pop(run, None)
        self.tries[run] += 1
        self.do(run, fault)

    @rule(run=RUNS, nth=st.integers(1, 20))
    def overtake(self, run: str, nth: int) -> None:
        """A worker stalls before a call: the next try does all of its work meanwhile."""
        self.account.meanwhile(None, BEFORE, lambda: self.attempt(run, None), nth)
        self.attempt(run, None)

    @rule(run=RUNS)
    def leave(self, run: str) -> None:
        self.deferred.pop(run, None)
        self.tries[run] += 1
        self.do(run, holds=True)

    @precondition(lambda self: self.deferred)
    @rule(data=st.data(), ended=st.booleans())
    def come_back(self, data: st.DataObject, ended: bool) -> None:
        """The triggerer sends a task back, when its statement has ended or when nobody knows."""
        run = data.draw(st.sampled_from(sorted(self.deferred)))
        if ended:
            self.account.finish()
        self.do(run, kwargs=self.deferred.pop(run))

    @rule(run=RUNS)
    def clear(self, run: str) -> None:
        """A person clears the task; its run begins later, and its tries are numbered on."""
        self.deferred.pop(run, None)
        if run in self.began:
            self.clears[run] += 1
            self.began[run] = self.later()
            self.tries[run] += 1
            self.do(run)

    @rule(run=RUNS)
    def make_again(self, run: str) -> None:
        """A run is deleted, and triggered again under its id: it is other work."""
        self.account.finish()
        self.sync()
        self.deferred.pop(run, None)
        self.tries[run] = self.clears[run] = 0
        self.began.pop(run, None)
        for loads in self.whose.values():
            if run in loads:
                loads.remove(run)
                loads.add(f"{run} until {self.later()}")

    def do(self, run: str, fault: Any = None, *, holds: bool = False, kwargs: Any = None) -> None:
        began = self.began.setdefault(run, self.later())
        task = SnowpipeCopyOperator(
            task_id="copy", snowflake_conn_id="account", table="T", stage="@S", on_nothing="report",
            options={**self.options, "force": run.startswith("forced")}, deferrable=holds,
        )  # fmt: skip
        context = task_context(run, self.tries[run], began, clears=self.clears[run])
        if fault is not None:
            self.account.fault(fault[0], fault[1], CrashError(), fault[2])
        self.account.holds = holds
        staged = dict(self.account.stages["S"]) if kwargs is None else self.staged[run]
        self.staged[run] = staged
        value = None
        if holds:
            self.patch.setattr("time.sleep", lambda _: None)
        try:
            value = task.execute(context) if kwargs is None else task.execute_complete(context, **kwargs)
        except TaskDeferred as left:
            self.deferred[run] = json.loads(json.dumps({"event": {"status": "ended"}, **(left.kwargs or {})}))
        except (CrashError, AirflowException, SnowpipeError):
            pass  # the invariants see to what it has left
        self.patch.setattr("time.sleep", lambda _: self.account.finish())
        self.account.faults.clear()
        self.account.holds = False
        self.sync()
        if value is not None:
            self.check(run, value, staged)

    def check(self, run: str, value: dict[str, Any], staged: dict[str, bytes]) -> None:
        """A green task: its files' rows are in the table, and every file that was staged is among them."""
        table = Counter(self.account.rows)
        reported = {**value["loaded_before"], **value["files"]}
        assert sum(one["rows_loaded"] for one in value["files"].values()) <= len(self.account.rows)
        for path, content in staged.items():
            if not run.startswith("forced"):
                assert path in reported
                if self.account.stages["S"].get(path, content) == content:
                    assert all(table[row] for row in content.decode().splitlines()), path
            elif path in value["files"]:
                assert value["files"][path]["status"] == "LOADED"

    def sync(self) -> None:
        """Take the rows that have come: each by a load that has not put it into the table before.

        Without FORCE, COPY remembers what any load has put there; with it, each run loads once.
        """
        expected = Counter(row for row, loads in self.whose.items() for _ in loads)
        assert not expected - Counter(self.account.rows)
        for row, count in (Counter(self.account.rows) - expected).items():
            loads = self.whose.setdefault(row, set())
            possible = [one for one in ("plain", *sorted(self.began)) if one not in loads and one[0] != "r"]
            assert count <= len(possible), (row, count, loads)
            loads.update(possible[:count])

    def later(self) -> dt.datetime:
        self.now += dt.timedelta(seconds=1)
        return self.now

    @invariant()
    def no_row_is_there_more_often_than_loads_have_brought_it(self) -> None:
        assert Counter(self.account.rows) == Counter(row for row, loads in self.whose.items() for _ in loads)


@pytest.mark.parametrize("histories", [200, pytest.param(2_000, marks=pytest.mark.nightly)])
def test_no_history_ends_green_with_rows_that_differ(histories):
    run_state_machine_as_test(Histories, settings=settings(max_examples=histories, stateful_step_count=20))


def test_a_try_does_not_leave_out_what_another_one_has_loaded_and_removed_meanwhile():
    history = Histories()
    history.begin()
    history.attempt("r2", None)
    history.overtake("r1", 1)
    history.clone()
    history.delete()
    history.stage("d")
    history.edit(purge=True, policy="ABORT_STATEMENT")
    history.overtake("r1", 3)
    history.teardown()


@pytest.mark.parametrize("nth", [1, 3, 5])
def test_a_try_does_not_report_what_another_one_has_found_gone_meanwhile(nth):
    history = Histories()
    history.begin()
    history.edit(purge=True, policy="ABORT_STATEMENT")
    history.attempt("r1", None)
    history.delete()
    history.overtake("r1", nth)
    history.teardown()


def test_rows_that_a_replaced_table_had_do_not_stand_for_deleted_ones():
    history = Histories()
    history.begin()
    history.attempt("r1", None)
    history.clone()
    history.make_again("r1")
    history.attempt("forced1", None)
    history.delete()
    history.put("a")
    history.attempt("r1", None)
    history.attempt("r1", None)
    history.teardown()

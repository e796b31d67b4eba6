"""COPY and a pipe that are given the same files at once: at every pair of points where they may meet."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException

from airflow_provider_snowpipe.operators.copy import SnowpipeCopyOperator
from airflow_provider_snowpipe.operators.ingest_files import SnowpipeIngestFilesOperator
from airflow_provider_snowpipe.streaming.auth import KeyPair
from airflow_provider_snowpipe.streaming.errors import (
    FilesGivenTwiceError,
    RetriesExhaustedError,
    SnowpipeError,
)
from airflow_provider_snowpipe.streaming.http import Answer
from tests.airflow_version import AIRFLOW
from tests.fake_account import AFTER, BEFORE, CrashError, FakeAccount, Pipe, StatementError
from tests.unit.operators.account_in_task import install, task_context

PIPE, OTHER = "LOCAL.PUBLIC.P", "LOCAL.PUBLIC.Q"
ROWS = ["a1", "b1"]
MOST_CALLS = 14
"""Each has given the files to its loader after so many calls."""
Work = Callable[[], Any]
Patch = pytest.MonkeyPatch


def new_account(patch: Patch, pem: str) -> FakeAccount:
    made = FakeAccount()
    install(made, patch, KeyPair("ACC", "U", pem.encode()))
    made.pipes = {name: Pipe("COPY INTO t FROM '@S'") for name in (PIPE, OTHER)}
    made.staged_at = f"{dt.datetime.now(dt.UTC):%a, %d %b %Y %H:%M:%S} GMT"
    for row in ROWS:
        made.put(row[0], row)
    return made


@pytest.fixture
def account(monkeypatch: Patch, pem: str) -> FakeAccount:
    return new_account(monkeypatch, pem)


def context(task: str, run: str = "r1", number: int = 1) -> Any:
    found = task_context(run, number)
    found["ti"].task_id = task
    return found


def copy(run: str = "r1", number: int = 1, **given: Any) -> Any:
    arguments = {"table": "T", "stage": "@S", "deferrable": False, **given}
    task = SnowpipeCopyOperator(task_id="copy", snowflake_conn_id="account", **arguments)
    return task.execute(context("copy", run, number))


def ingest(pipe: str = "P", run: str = "r1", number: int = 1, **given: Any) -> Any:
    arguments = {"files": ["a", "b"], "table": "T", "load_timeout": 5.0, "poll_interval": 0.01, **given}
    task = SnowpipeIngestFilesOperator(
        task_id=f"ingest-{pipe}", snowflake_conn_id="account", pipe=pipe, deferrable=False, **arguments
    )
    return task.execute(context(f"ingest-{pipe}", run, number))


def refused(work: Work) -> Exception | None:
    try:
        work()
    except (AirflowException, SnowpipeError) as error:
        return error
    return None


def at_once(account: FakeAccount, one: Work, two: Work, first: int, second: int) -> list[Exception | None]:
    """Let one do so many calls, then two so many, then one all that is left, then two.

    :returns: what each of them has raised
    """
    turns = [[0, first], [1, second], [0, -1], [1, -1]]
    changed = threading.Condition()
    unwatched = account.call
    ended: dict[int, Exception | None] = {}

    def call(name: str, work: Work) -> Any:
        me = int(threading.current_thread().name)
        with changed:
            assert changed.wait_for(lambda: turns[0][0] == me, 30)
            found = unwatched(name, work)
            turns[0][1] -= 1
            if turns[0][1] == 0:
                turns.pop(0)
            changed.notify_all()
        return found

    def run(me: int, work: Work) -> None:
        failure = refused(work)
        with changed:
            ended[me] = failure
            turns[:] = [turn for turn in turns if turn[0] != me]
            changed.notify_all()

    account.call = call  # type: ignore[method-assign]
    threads = [
        threading.Thread(target=run, args=(n, work), name=str(n), daemon=True)
        for n, work in enumerate((one, two))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    account.call = unwatched  # type: ignore[method-assign]
    return [ended[0], ended[1]]


@contextmanager
def meeting(account: FakeAccount, call: str, when: str, deed: Work, nth: int = 1) -> Iterator[None]:
    """Let somebody else do something once, beside a call of this name."""
    unwatched, left = account.call, nth

    def watched(name: str, work: Work) -> Any:
        nonlocal left
        left -= name == call
        if name != call or left != 0:
            return unwatched(name, work)
        left = -1
        if when == BEFORE:
            deed()
        found = unwatched(name, work)
        if when == AFTER:
            deed()
        return found

    account.call = watched  # type: ignore[method-assign]
    yield
    account.call = unwatched  # type: ignore[method-assign]


@pytest.mark.skipif(AIRFLOW < (3, 0), reason="Airflow 2 executes operators in the main thread alone")
@pytest.mark.parametrize("pair", ["copy-ingest", "ingest-copy", "ingest-ingest"])
@pytest.mark.parametrize("is_slow", [False, True], ids=["loads-at-once", "loads-later"])
@pytest.mark.parametrize(
    "points",
    [range(6, 12), pytest.param(range(1, MOST_CALLS + 1), marks=pytest.mark.nightly)],
    ids=["near", "all"],
)
def test_two_loaders_of_ours_never_double_a_row(
    monkeypatch: Patch, pem: str, pair: str, is_slow: bool, points: range
) -> None:
    names = {"copy-ingest": ("COPY", PIPE), "ingest-copy": (PIPE, "COPY"), "ingest-ingest": (PIPE, OTHER)}
    met = 0
    for first in points:
        for second in points:
            account = new_account(monkeypatch, pem)
            load = account._load_waiting
            if is_slow:
                account._load_waiting = lambda *_: None  # type: ignore[method-assign]

            def given(pipe: str = "P", waits: bool = not is_slow) -> Any:
                return ingest(pipe, wait_for_load=waits)

            works: dict[str, tuple[Work, Work]] = {
                "copy-ingest": (copy, given),
                "ingest-copy": (given, copy),
                "ingest-ingest": (given, lambda: given("Q")),
            }
            ends = at_once(account, *works[pair], first, second)
            account._load_waiting = load  # type: ignore[method-assign]
            account.finish()

            assert len(account.rows) == len(set(account.rows)), (first, second, ends)
            assert any(ends), (first, second)
            for me, end in enumerate(ends):
                is_given_twice = "FilesGivenTwiceError" in str(end) or isinstance(end, FilesGivenTwiceError)
                assert end is None or (is_given_twice and names[pair][1 - me] in str(end)), (first, second)
            met += all(ends)
    assert met > 0


def test_the_refusal_names_the_task_its_loader_the_file_and_what_to_do(account: FakeAccount) -> None:
    with meeting(account, "submit", BEFORE, lambda: errors.append(refused(ingest))):
        errors: list[Exception | None] = []
        copy()

    assert isinstance(errors[0], FilesGivenTwiceError)
    assert errors[0].retryable
    assert errors[0].files == ("a", "b")
    for word in ("d/r1/copy/-1", "by COPY", "'a', 'b'", "SNOWPIPE_LOADS", "force=True"):
        assert word in str(errors[0])
    assert sorted(account.rows) == ROWS


def test_a_task_that_died_keeps_others_out_until_it_is_tried_again(account: FakeAccount) -> None:
    account.fault("submit", BEFORE, CrashError())
    with pytest.raises(CrashError):
        copy()

    assert "d/r1/copy/-1" in str(refused(ingest))
    copy(number=2)
    assert "'a' by COPY" in str(refused(ingest))
    assert sorted(account.rows) == ROWS


@pytest.mark.parametrize("when", [BEFORE, AFTER], ids=["not-taken", "taken"])
def test_files_that_a_pipe_may_have_keep_copy_out_until_the_next_try(account: FakeAccount, when: str) -> None:
    """A submission whose answer is lost may have reached the pipe, whose queue the role may not see."""
    account.holds = True
    account.fault("insertFiles", when, Answer(429, b"{}", retry_after=30))
    assert isinstance(refused(lambda: ingest(retry_seconds=1.0, wait_for_load=False)), RetriesExhaustedError)
    account.holds = False
    account.fault("PIPE STATUS", BEFORE, StatementError(3001, "insufficient privileges"))
    account.fault("PIPE STATUS", BEFORE, StatementError(3001, "insufficient privileges"), 2)

    assert "d/r1/ingest-P/-1" in str(refused(copy))
    ingest(number=2, wait_for_load=False)
    account.finish()
    assert "'a' by pipe" in str(refused(copy))
    assert sorted(account.rows) == ROWS


def given_to_a_foreign_pipe(account: FakeAccount, *paths: str) -> None:
    """Somebody who is not of this package gives files to the pipe, which loads them at once."""
    account.pipes[PIPE].queue += paths
    account._load_waiting(PIPE, account.pipes[PIPE])


class TestForeign:
    """What somebody else loads during our load cannot be kept out: it is found, and named."""

    def test_files_that_a_foreign_pipe_loads_beside_copy_fail_each_try(self, account: FakeAccount) -> None:
        with meeting(account, "submit", BEFORE, lambda: given_to_a_foreign_pipe(account, "a")):
            first = refused(copy)
        again = refused(lambda: copy(number=2))

        assert account.rows.count("a1") == 2
        for found in (first, again):
            for word in ("loaded twice", "'a' by COPY", f"'a' by pipe {PIPE}", "Delete", "force=True"):
                assert word in str(found)
            assert "'b'" not in str(found)
        copy(number=3, force=True)

    def test_files_that_wait_in_a_foreign_pipe_are_found_by_the_next_try(self, account: FakeAccount) -> None:
        with meeting(account, "submit", AFTER, lambda: account.pipes[PIPE].queue.append("a")):
            waiting = refused(copy)
        assert isinstance(waiting, FilesGivenTwiceError)
        assert waiting.retryable
        for word in (PIPE, "queue", "has put", "force=True"):
            assert word in str(waiting)

        account.finish()
        assert "loaded twice" in str(refused(lambda: copy(number=2)))

    @pytest.mark.parametrize("call", ["insertFiles", "HISTORY"])
    def test_files_copied_beside_a_pipe_fail_the_task(self, account: FakeAccount, call: str) -> None:
        with meeting(account, call, AFTER, lambda: account.copy("a")):
            found = refused(ingest)

        for word in ("loaded twice", "'a' by COPY", f"'a' by pipe {PIPE}", "Delete"):
            assert word in str(found)
        assert account.rows.count("a1") == 2

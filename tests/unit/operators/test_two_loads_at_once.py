"""Files that COPY and pipes are given, at once or in turn: each row is loaded once."""

import datetime as dt
import json
import threading
from collections.abc import Callable
from email.utils import format_datetime
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, TaskDeferred

from airflow_provider_snowpipe.operators.copy import SnowpipeCopyOperator
from airflow_provider_snowpipe.operators.ingest_files import SnowpipeIngestFilesOperator
from airflow_provider_snowpipe.operators.load import SnowpipeLoadOperator
from airflow_provider_snowpipe.streaming.auth import KeyPair
from airflow_provider_snowpipe.streaming.errors import (
    FilesGivenTwiceError,
    RetriesExhaustedError,
    SnowpipeError,
)
from airflow_provider_snowpipe.streaming.http import Answer
from tests.airflow_version import AIRFLOW
from tests.fake_account import AFTER, BEFORE, MISSING, CrashError, FakeAccount, Pipe, StatementError
from tests.unit.operators.account_in_task import install, task_context

REFUSED = 3001
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


@pytest.mark.skipif(AIRFLOW < (3, 0), reason="Airflow 2 executes operators in the main thread alone")
@pytest.mark.parametrize("pair", [("COPY", PIPE), (PIPE, "COPY"), (PIPE, OTHER)], ids="-".join)
@pytest.mark.parametrize("is_slow", [False, True], ids=["loads-at-once", "loads-later"])
@pytest.mark.parametrize(
    "points",
    [range(6, 12), pytest.param(range(1, MOST_CALLS + 1), marks=pytest.mark.nightly)],
    ids=["near", "all"],
)
def test_two_loaders_of_ours_never_double_a_row(
    monkeypatch: Patch, pem: str, pair: tuple[str, str], is_slow: bool, points: range
) -> None:
    def work(loader: str) -> Work:
        return copy if loader == "COPY" else lambda: ingest(loader[-1], wait_for_load=not is_slow)

    met = 0
    for first in points:
        for second in points:
            account = new_account(monkeypatch, pem)
            load = account._load_waiting
            if is_slow:
                account._load_waiting = lambda *_: None  # type: ignore[method-assign]
            ends = at_once(account, work(pair[0]), work(pair[1]), first, second)
            account._load_waiting = load  # type: ignore[method-assign]
            account.finish()

            assert len(account.rows) == len(set(account.rows)), (first, second, ends)
            assert any(ends), (first, second)
            for me, end in enumerate(ends):
                is_given_twice = "FilesGivenTwiceError" in str(end) or isinstance(end, FilesGivenTwiceError)
                assert end is None or (is_given_twice and pair[1 - me] in str(end)), (first, second)
            met += all(ends)
    assert met > 0


def test_a_task_that_died_keeps_others_out_until_it_is_tried_again(account: FakeAccount) -> None:
    account.fault("submit", BEFORE, CrashError())
    with pytest.raises(CrashError):
        copy()
    kept_out = refused(ingest)
    assert isinstance(kept_out, FilesGivenTwiceError)
    assert kept_out.retryable
    assert "d/r1/copy/-1" in str(kept_out)
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
    account.fault("PIPE STATUS", BEFORE, StatementError(REFUSED, "insufficient privileges"))
    account.fault("PIPE STATUS", BEFORE, StatementError(REFUSED, "insufficient privileges"), 2)

    assert "d/r1/ingest-P/-1" in str(refused(copy))
    ingest(number=2, wait_for_load=False)
    account.finish()
    assert "'a' by pipe" in str(refused(copy))
    assert sorted(account.rows) == ROWS


def submit() -> Any:
    return ingest(table=None, wait_for_load=False)


@pytest.mark.parametrize(
    ("work", "call", "errno"),
    [(copy, "SHOW", REFUSED), (copy, "PIPE STATUS", REFUSED), (submit, "DESCRIBE", MISSING),
     (submit, "HISTORY", REFUSED)],
)  # fmt: skip
def test_what_a_role_may_not_see_is_logged_and_another_failure_is_no_reason_to_load(
    account: FakeAccount, caplog: pytest.LogCaptureFixture, work: Work, call: str, errno: int
) -> None:
    if errno == REFUSED:
        account.fault(call, BEFORE, StatementError(604, "canceled"))
        assert "canceled" in str(refused(work))
        assert account.rows == []
    account.fault(call, BEFORE, StatementError(errno, "insufficient privileges"))
    work()
    assert sorted(account.rows) == ROWS
    assert "not known" in caplog.text


def given_to_a_foreign_pipe(account: FakeAccount, *paths: str) -> None:
    """Somebody who is not of this package gives files to the pipe, which loads them at once."""
    account.pipes[PIPE].queue += paths
    account._load_waiting(PIPE, account.pipes[PIPE])


class TestForeign:
    """What somebody else loads during our load cannot be kept out: it is found, and named."""

    def test_files_that_a_foreign_pipe_loads_beside_copy_fail_each_try(self, account: FakeAccount) -> None:
        account.meanwhile("submit", BEFORE, lambda: given_to_a_foreign_pipe(account, "a"))
        first, again = refused(copy), refused(lambda: copy(number=2))
        assert account.rows.count("a1") == 2
        for found in (first, again):
            for word in ("loaded twice", "'a' by COPY", f"'a' by pipe {PIPE}", "Delete", "force=True"):
                assert word in str(found)
            assert "'b'" not in str(found)
        copy(number=3, force=True)

    def test_files_that_wait_in_a_foreign_pipe_are_found_by_the_next_try(self, account: FakeAccount) -> None:
        account.meanwhile("submit", AFTER, lambda: account.pipes[PIPE].queue.append("a"))
        waiting = refused(copy)
        assert isinstance(waiting, FilesGivenTwiceError)
        assert waiting.retryable
        for word in (PIPE, "queue", "has put", "force=True"):
            assert word in str(waiting)
        account.finish()
        assert "loaded twice" in str(refused(lambda: copy(number=2)))

    @pytest.mark.parametrize("call", ["insertFiles", "HISTORY"])
    def test_files_copied_beside_a_pipe_fail_the_task(self, account: FakeAccount, call: str) -> None:
        account.meanwhile(call, AFTER, lambda: account.copy("a"))
        found = refused(ingest)
        for word in ("loaded twice", "'a' by COPY", f"'a' by pipe {PIPE}", "Delete"):
            assert word in str(found)
        assert account.rows.count("a1") == 2


WAYS = ("copy", "pipe")


class Loading:
    """A stage, a table, and a task of which each run takes the way that it is given."""

    def __init__(self, patch: Patch, pem: str) -> None:
        self.account, self.runs = new_account(patch, pem), 0
        self.account.stages["S"].clear()
        del self.account.pipes[OTHER]
        self.stage_at(dt.datetime.now(dt.UTC) - dt.timedelta(hours=1))

    def stage_at(self, time: dt.datetime) -> None:
        self.account.staged_at = format_datetime(time.astimezone(dt.UTC), usegmt=True)

    def operator(self, way: str, **given: Any) -> SnowpipeLoadOperator:
        arguments = {"load_timeout": 5.0, "poll_interval": 0.01, "deferrable": False, **given}
        names = {"snowflake_conn_id": "account", "source": "@S", "table": "T", "file_pipe": "P"}
        return SnowpipeLoadOperator(task_id="load", path=way, **names, **arguments)

    def run(self, way: str, *, number: int = 1, **given: Any) -> Any:
        self.runs += number == 1
        return self.operator(way, **given).execute(task_context(f"r{self.runs}", number))

    def refused(self, way: str) -> str:
        before = list(self.account.rows)
        with pytest.raises((AirflowException, FilesGivenTwiceError)) as refused:
            self.run(way)
        assert self.account.rows == before
        return str(refused.value)


@pytest.fixture
def loading(monkeypatch: Patch, pem: str) -> Loading:
    return Loading(monkeypatch, pem)


@pytest.mark.parametrize("ways", [("copy", "pipe", "copy"), ("pipe", "copy", "pipe")], ids="-".join)
def test_each_run_loads_what_is_new_after_runs_of_either_way(loading: Loading, ways: tuple[str, ...]) -> None:
    for number, way in enumerate(ways):
        loading.account.put(f"{number}", f"{number}-1", f"{number}-2")
        done = loading.run(way)
        assert (done["path"], done["rows_loaded"], list(done["files"])) == (way, 2, [f"{number}"])
        assert sorted(done["loaded_before"]) == [str(one) for one in range(number)]
        assert all(one["rows_loaded"] == 2 for one in done["loaded_before"].values())
    assert sorted(loading.account.rows) == sorted(f"{n}-{row}" for n in range(3) for row in (1, 2))
    for way in WAYS:
        done = loading.run(way)
        assert (done["rows_loaded"], done["files"]) == (0, {})


@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_died_is_finished_by_its_next_try(monkeypatch: Patch, pem: str, way: str) -> None:
    crashes = 0
    for nth in range(1, 16, 2):
        when = (BEFORE, AFTER)[nth // 2 % 2]
        loading = Loading(monkeypatch, pem)
        loading.account.put("a", "a1")
        loading.run("pipe" if way == "copy" else "copy")
        loading.account.put("b", "b1")
        loading.account.fault(None, when, CrashError(), nth)
        try:
            loading.run(way)
        except CrashError:
            crashes += 1
        loading.account.faults.clear()
        loading.account.put("c", "c1")
        loading.run(way, number=2)

        assert sorted(loading.account.rows) == ["a1", "b1", "c1"], nth
    assert crashes > 2


@pytest.mark.parametrize("way", WAYS)
def test_a_file_that_another_way_loaded_in_part_fails_the_task(loading: Loading, way: str) -> None:
    other = None if way == "pipe" else PIPE
    loading.account.put("a", "a1", "bad")
    loading.account._copy("COPY INTO T FROM @S ON_ERROR = CONTINUE", other)
    assert "FilesRejectedError" in loading.refused(way)
    assert loading.run(way, on_error="continue")["loaded_before"]["a"]["rows_loaded"] == 1
    assert loading.account.rows == ["a1"]


@pytest.mark.parametrize("way", WAYS)
def test_a_file_staged_again_after_another_way_has_loaded_it_is_refused(loading: Loading, way: str) -> None:
    """Load history has no contents, so that nobody knows which of its rows are in the table."""
    loading.account.put("a", "a1")
    loading.run("pipe" if way == "copy" else "copy")
    loading.stage_at(dt.datetime.now(dt.UTC) + dt.timedelta(hours=1))
    loading.account.put("a", "a1", "a2")
    text = loading.refused(way)
    assert "under other names" in text
    assert "SnowpipeCopyOperator or SnowpipeIngestFilesOperator with force=True" in text


@pytest.mark.parametrize(
    ("by", "way", "pipes"),
    [
        ("copy", "pipe", {PIPE: Pipe("COPY INTO t FROM '@S'")}),
        ("pipe", "copy", {PIPE: Pipe("COPY INTO t FROM '@S'")}),  # which forgets after 14 days
        ("pipe", "copy", {}),
        ("pipe", "copy", {PIPE: Pipe("COPY INTO u FROM '@S'")}),
    ],
    ids=["by-copy", "by-pipe", "by-a-dropped-pipe", "by-a-pipe-of-another-table-now"],
)
def test_a_file_older_than_load_history_is_not_loaded_again(
    loading: Loading, by: str, way: str, pipes: dict[str, Pipe]
) -> None:
    account, now = loading.account, dt.datetime.now(dt.UTC)
    account.created = now - dt.timedelta(days=100)
    loading.stage_at(now - dt.timedelta(days=31))
    account.put("a", "a1")
    loading.run(by)
    account.history[0]["last_load_time"] = now - dt.timedelta(days=30)
    account.pipes = dict(pipes)
    done = loading.run(way)
    assert account.rows == ["a1"]
    assert (done["files"], list(done["loaded_before"])) == ({}, ["a"])


def test_the_plan_is_of_what_is_not_in_the_table_yet(loading: Loading) -> None:
    context = task_context()

    def plan(way: str = "auto", **given: Any) -> dict[str, Any]:
        loading.operator(way, **given).execute(context)
        return context["ti"].xcom_pull(key="plan")

    loading.account.put("a", "a1")
    assert plan()["shape"]["files"]["count"] == 1
    loading.account.put("b", "b1")
    loading.account.put("c", "c1")
    assert plan()["shape"]["files"]["count"] == 2
    assert plan()["nothing_to_load"]
    assert plan("copy", options={"force": True})["shape"]["files"]["count"] == 3
    assert sorted(loading.account.rows) == ["a1", "a1", "b1", "b1", "c1", "c1"]


def test_a_try_by_the_pipe_keeps_the_copy_of_an_earlier_one_from_being_committed(loading: Loading) -> None:
    account = loading.account
    account.put("a", "a1")
    account.holds = True
    account.fault("submit", AFTER, CrashError())
    with pytest.raises(CrashError):
        loading.run("copy")
    account.holds = False
    done = loading.run("pipe", number=2)
    account.finish()
    assert account.rows == ["a1"]
    assert (done["rows_loaded"], list(done["loaded_before"])) == (1, [])


FORMAT = "FILE_FORMAT = (TYPE = CSV SKIP_HEADER = 1)"
BY_NAME = "MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE"


@pytest.mark.parametrize(
    ("options", "form", "path"),
    [
        ({"force": True}, "", "copy"),
        ({"file_format": {"type": "CSV", "skip_header": 1}}, "FILE_FORMAT = (TYPE = CSV)", "copy"),
        ({"file_format": {"skip_header": 1}}, f"{FORMAT} {BY_NAME}", "pipe"),
    ],
    ids=str,
)
def test_auto_takes_copy_where_a_pipe_would_not_do_what_the_options_ask_for(
    loading: Loading, capsys: pytest.CaptureFixture[str], options: dict[str, Any], form: str, path: str
) -> None:
    loading.account.pipes[PIPE] = Pipe(f"COPY INTO t FROM '@S' {form}")
    loading.account.put("a.csv", "a1")
    keep_coming = {"bounded": False, "arrival_rate": 1000.0, "freshness": 120}
    assert loading.run("auto", shape=keep_coming, options=options)["path"] == path
    assert ("options has " in capsys.readouterr().out) == (path == "copy")


def test_a_file_that_somebody_copies_while_the_pipe_loads_it_fails_the_task(loading: Loading) -> None:
    account, context = loading.account, task_context("r9")
    account.put("a", "a1")
    account.holds = True
    with pytest.raises(TaskDeferred) as deferred:
        loading.operator("pipe", deferrable=True).execute(context)
    account._copy("COPY INTO T FROM @S ON_ERROR = CONTINUE")
    account.finish()
    load = {"status": "LOADED", "rows_loaded": 1, "rows_parsed": 1, "errors_seen": 0, "first_error": None}
    event = {"status": "success", "files": {"a": load}}
    kwargs = json.loads(json.dumps({"event": event, **(deferred.value.kwargs or {})}))
    with pytest.raises(AirflowException, match="twice"):
        loading.operator("pipe").execute_complete(context, **kwargs)


@pytest.mark.parametrize("way", WAYS)
def test_a_file_staged_again_within_the_second_in_which_another_way_loaded_it_is_refused(
    loading: Loading, way: str
) -> None:
    """LIST has whole seconds, so that its time does not show which content was loaded; the ledger does."""
    staged = dt.datetime.now(dt.UTC).replace(microsecond=0)
    loading.stage_at(staged)
    loading.account.put("a", "a1")
    loading.run("pipe" if way == "copy" else "copy")
    loading.account.history[0]["last_load_time"] = staged + dt.timedelta(seconds=0.5)
    assert loading.run(way)["loaded_before"]["a"]["rows_loaded"] == 1
    loading.account.put("a", "a2")
    assert "under other names" in loading.refused(way)

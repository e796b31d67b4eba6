"""``SnowpipeLoadOperator`` over a stage whose runs go by COPY and by a pipe in turn: each row once."""

from __future__ import annotations

import datetime as dt
import json
from email.utils import format_datetime
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, TaskDeferred

from airflow_provider_snowpipe.operators.load import SnowpipeLoadOperator
from airflow_provider_snowpipe.streaming.auth import KeyPair
from airflow_provider_snowpipe.streaming.errors import FilesGivenTwiceError
from tests.fake_account import AFTER, BEFORE, CrashError, FakeAccount, Pipe
from tests.unit.operators.account_in_task import install, task_context

PIPE = "LOCAL.PUBLIC.P"
WAYS = ("copy", "pipe")
Patch = pytest.MonkeyPatch


class Loading:
    """A stage, a table, and a task of which each run takes the way that it is given."""

    def __init__(self, patch: Patch, pem: str) -> None:
        self.account = FakeAccount()
        install(self.account, patch, KeyPair("ACC", "U", pem.encode()))
        self.account.pipes[PIPE] = Pipe("COPY INTO t FROM '@S'")
        self.runs = 0
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
def test_a_run_that_died_at_any_call_is_finished_by_its_next_try(
    monkeypatch: Patch, pem: str, way: str
) -> None:
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
def test_a_file_that_was_loaded_longer_ago_than_load_history_goes_is_not_loaded_again(
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
        found: dict[str, Any] = context["ti"].xcom_pull(key="plan")
        return found

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
        ({"pattern": r".*\.csv"}, "", "copy"),
        ({"file_format": {"type": "CSV", "skip_header": 1}}, "FILE_FORMAT = (TYPE = CSV)", "copy"),
        ({"force": False, "pattern": None}, f"{FORMAT} {BY_NAME}", "pipe"),
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
    with pytest.raises(AirflowException, match="were loaded twice"):
        loading.operator("pipe").execute_complete(context, **kwargs)

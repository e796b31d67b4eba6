"""A bulk load and its ledger: a worker that dies anywhere, and the try that goes on."""

import datetime as dt
import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred

from airflow_provider_snowpipe.bulk.copy import RunIdentity
from airflow_provider_snowpipe.bulk.run_files import RunManifest, WrittenFile, run_folder
from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.operators.bulk_driver import RunStage
from airflow_provider_snowpipe.operators.bulk_load import BulkRun, SnowpipeBulkLoadOperator, copy_arguments
from airflow_provider_snowpipe.operators.copy import copy_into
from airflow_provider_snowpipe.spark.driver.plan import WriteReport
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, FilesRejectedError, SqlError
from tests.fake_account import AFTER, BEFORE, CrashError, FakeAccount
from tests.unit.operators.account_in_task import install, task_context

ROWS = [["r1", "r2"], ["r3"]]
WORK = ("d", "r1", "load", "-1")
Patch = pytest.MonkeyPatch


class Load:
    """A table, a stage, and two files of rows that every try writes again under names of its own."""

    def __init__(self, folder: Path, patch: Patch) -> None:
        self.folder = folder
        self.account = FakeAccount()
        install(self.account, patch)
        self.began = dt.datetime.now(dt.UTC)
        self.attempts = itertools.count(1)
        self.writes = 0

    def bulk_run(self, try_number: int = 1, source: str = "rows", clears: int = 0) -> BulkRun:
        hook = SnowpipeBulkHook("account", table="T")
        stage = RunStage(hook, "@S/in", run_folder(WORK, *hook.database_and_schema(), "T"))
        identity = RunIdentity(WORK, self.began, try_number, began_once=clears == 0)

        def copy_of(manifest: RunManifest) -> Any:
            return copy_into(hook, "T", stage.location, **copy_arguments(manifest, lambda: (), {}))

        return BulkRun(hook, stage, "T", identity, source, copy_of)

    @contextmanager
    def write(self) -> Iterator[WriteReport]:
        self.writes += 1
        attempt = f"a{next(self.attempts)}"
        files = []
        for number, rows in enumerate(ROWS):
            file = self.folder / attempt / f"part-{attempt}-{number}.parquet"
            file.parent.mkdir(exist_ok=True, parents=True)
            file.write_text("".join(f"{row}\n" for row in rows))
            files.append(WrittenFile(file.name, file.stat().st_size, len(rows)))
        yield WriteReport("app", (self.folder / attempt).as_uri(), attempt, tuple(files))

    def load(self, try_number: int = 1, source: str = "rows", clears: int = 0) -> dict[str, Any]:
        run = self.bulk_run(try_number, source, clears)
        done = run.load(self.write)
        run.stage.sweep()
        return done

    def crash(self, call: str | None, when: str, nth: int = 1, try_number: int = 1) -> None:
        self.account.fault(call, when, CrashError(), nth)
        with pytest.raises(CrashError):
            self.load(try_number)

    def assert_every_row_is_there_once(self) -> None:
        assert sorted(self.account.rows) == ["r1", "r2", "r3"]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: Patch) -> Load:
    return Load(tmp_path, monkeypatch)


@pytest.mark.parametrize("number", [1, 2], ids=["own", "of-an-earlier-try"])
def test_a_deferred_task_goes_on_by_the_ledger(load: Load, monkeypatch: Patch, number: int) -> None:
    monkeypatch.setattr(SnowpipeBulkLoadOperator, "_written", lambda *_: load.write())
    monkeypatch.setattr("time.sleep", lambda _: None)
    load.account.holds = True

    def task() -> SnowpipeBulkLoadOperator:
        names = {"snowflake_conn_id": "account", "table": "T", "stage": "@S/in"}
        source = {"path": "/rows", "format": "json"}
        return SnowpipeBulkLoadOperator(task_id="load", source=source, deferrable=True, **names)

    if number == 2:
        load.account.fault("submit", AFTER, CrashError())
        with pytest.raises(CrashError):
            task().execute(task_context("r1", 1, load.began))
    with pytest.raises(TaskDeferred) as deferred:
        task().execute(task_context("r1", number, load.began))
    load.account.finish()
    kwargs = json.loads(json.dumps({"event": {"status": "ended"}, **(deferred.value.kwargs or {})}))
    done = getattr(task(), deferred.value.method_name)(task_context("r1", number, load.began), **kwargs)

    load.assert_every_row_is_there_once()
    assert (done["rows_loaded"], load.writes, len(load.account.statements)) == (3, 1, 1)


@pytest.mark.parametrize("died", [False, True], ids=["loaded", "staged"])
def test_a_run_that_was_made_again_takes_no_result_of_the_deleted_one(load: Load, died: bool) -> None:
    if died:
        load.crash("submit", BEFORE)
    else:
        load.load()
    rows = list(load.account.rows)
    load.began += dt.timedelta(hours=1)
    for number in (1, 2):
        with pytest.raises(ConfigurationError, match="run_key"):
            load.load(number)
    assert load.account.rows == rows


def test_no_row_is_no_file_and_no_copy(load: Load, monkeypatch: Patch) -> None:
    monkeypatch.setattr(f"{__name__}.ROWS", [])
    done = load.load()
    assert (done["rows"], done["rows_loaded"], done["files"]) == (0, 0, {})
    assert "submit" not in load.account.calls
    assert load.load(try_number=2) == done


@pytest.mark.parametrize("remembers", [True, False], ids=["statements", "ledger-alone"])
def test_the_next_try_leaves_every_row_once(tmp_path: Path, monkeypatch: Patch, remembers: bool) -> None:
    undisturbed = Load(tmp_path / "undisturbed", monkeypatch)
    undisturbed.load()
    for when in (BEFORE, AFTER):
        for nth in range(1, len(undisturbed.account.calls) + 1):
            load = Load(tmp_path / when / str(nth), monkeypatch)
            load.crash(None, when, nth)
            if not remembers:
                load.account.statements.clear()
            done = load.load(try_number=2)
            load.assert_every_row_is_there_once()
            assert done["rows_loaded"] == 3


def test_what_is_done_is_not_done_again(load: Load) -> None:
    first = load.load()
    del load.account.calls[:]
    assert load.load(try_number=2) == first
    load.began += dt.timedelta(hours=1)
    assert load.load(try_number=2, clears=1) == first
    assert not {"PUT", "submit"} & set(load.account.calls)
    assert load.writes == 1
    with pytest.raises(ConfigurationError, match="'rows'"):
        load.load(try_number=3, source="others", clears=1)


class TestTable:
    """A green task has its rows in the table, whatever an earlier try reported."""

    def test_a_file_that_copy_leaves_out_fails_the_task_and_the_next_try_loads_it(self, load: Load) -> None:
        """As SIZE_LIMIT does that the stage itself sets."""
        copy = load.account._copy

        def limited(statement: str, *given: Any) -> Any:
            return copy(f"{statement} SIZE_LIMIT = 1", *given)

        load.account._copy = limited  # type: ignore[method-assign]
        with pytest.raises(FilesRejectedError, match="left out"):
            load.load()
        assert load.account.rows == ["r1", "r2"]
        load.load(try_number=2)
        load.assert_every_row_is_there_once()

    def test_a_planned_file_that_is_gone_fails_the_task(self, load: Load, monkeypatch: Patch) -> None:
        monkeypatch.setattr("airflow_provider_snowpipe.bulk.copy.MOST_FILES", 1)
        load.crash("submit", BEFORE, nth=2)
        staged = load.account.stages["S"]
        path, content = max(staged), staged.pop(max(staged))
        with pytest.raises(SqlError, match="not found"):
            load.load(try_number=2)
        staged[path] = content
        load.load(try_number=3)
        load.assert_every_row_is_there_once()


@pytest.mark.parametrize("then", ["loads", "dies-before-copy", "dies-while-copy-runs"])
def test_a_stalled_try_that_plans_late_changes_nothing(load: Load, monkeypatch: Patch, then: str) -> None:
    """The next try has staged files of its own meanwhile, and has loaded them, or was killed."""
    account = load.account

    def next_try() -> None:
        account.holds = then == "dies-while-copy-runs"
        if then == "loads":
            load.load(try_number=2)
        else:
            load.crash("submit", BEFORE if then == "dies-before-copy" else AFTER, try_number=2)

    account.meanwhile("PLAN", BEFORE, next_try)
    with pytest.raises((SqlError, ConfigurationError, FilesRejectedError)):
        load.load()
    account.holds = False
    monkeypatch.setattr("time.sleep", lambda _: account.finish())
    load.load(try_number=3)
    account.finish()

    load.assert_every_row_is_there_once()


@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_a_later_try_over_another_source_is_refused(load: Load, when: str) -> None:
    """As where a list that a task is mapped over has changed, and its instances are cleared."""
    load.crash("submit", when)
    before = list(load.account.rows)
    with pytest.raises(ConfigurationError, match="'others'"):
        load.load(try_number=2, source="others")
    assert load.account.rows == before

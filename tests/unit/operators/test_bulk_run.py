"""A bulk load and its manifest: a worker that dies anywhere, and the try that goes on."""

from __future__ import annotations

import datetime as dt
import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred

from airflow_provider_snowpipe.bulk.copy import RunIdentity
from airflow_provider_snowpipe.bulk.run_files import (
    ATTEMPT_NAME,
    OUTCOME_NAME,
    RunManifest,
    WrittenFile,
    run_folder,
)
from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.operators import bulk_driver
from airflow_provider_snowpipe.operators.bulk_driver import RunStage
from airflow_provider_snowpipe.operators.bulk_load import BulkRun, SnowpipeBulkLoadOperator
from airflow_provider_snowpipe.operators.copy import SnowpipeCopyOperator
from airflow_provider_snowpipe.spark.driver.plan import WriteReport
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, FilesGivenTwiceError
from tests.fake_account import AFTER, BEFORE, CrashError, FakeAccount
from tests.unit.operators.account_in_task import install, task_context

ROWS = [["r1", "r2"], ["r3"]]
CALLS = 17
"""Calls of one load that nothing disturbs."""
WORK = ("d", "r1", "load", "-1")


class Load:
    """A table, a stage, and two files of rows that every try writes again under names of its own."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.account = FakeAccount()
        install(self.account, patch)
        self.began = dt.datetime.now(dt.UTC)
        self.attempts = itertools.count(1)
        self.writes = 0

    def bulk_run(self, source: str = "rows", identity: RunIdentity | None = None) -> BulkRun:
        hook = SnowpipeBulkHook("account", table="T")
        stage = RunStage(hook, "@S/in", run_folder(WORK, *hook.database_and_schema(), "T"))
        return BulkRun(hook, stage, "/".join(WORK), "T", "fail", 1, lambda *_: None, source, identity)

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

    def copy(self, run: BulkRun, try_number: int, manifest: RunManifest) -> Mapping[str, Mapping[str, Any]]:
        task = SnowpipeCopyOperator(
            task_id="load",
            table="T",
            stage=run.stage.location,
            files=manifest.names,
            deferrable=False,
            options={"file_format": {"type": "PARQUET"}},
        )
        copied = task.execute(task_context("r1", try_number, self.began))
        return {**copied["loaded_before"], **copied["files"]}

    def load(self, try_number: int = 1, source: str = "rows", clears: int = 0) -> dict[str, Any]:
        run = self.bulk_run(source, RunIdentity(WORK, self.began, try_number, began_once=clears == 0))
        return run.load(self.write, lambda manifest: self.copy(run, try_number, manifest))

    def staged(self, name: str) -> list[str]:
        return [path for path in self.account.stages.get("S", {}) if path.endswith(name)]

    def assert_every_row_is_there_once(self) -> None:
        assert sorted(self.account.rows) == ["r1", "r2", "r3"]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    monkeypatch.setattr(bulk_driver, "SETTLED_AFTER", 0.0)
    return Load(tmp_path, monkeypatch)


def test_files_manifest_copy_and_outcome_follow_each_other(load: Load) -> None:
    done = load.load()

    load.assert_every_row_is_there_once()
    assert (done["rows_loaded"], done["rows"], len(done["files"])) == (3, 3, 2)
    steps = [call for call in load.account.calls if call in ("PUT", "submit")]
    assert steps == ["PUT", "PUT", "PUT", "submit", "PUT"]
    assert len(load.account.calls) == CALLS


@pytest.mark.parametrize("number", [1, 2], ids=["own", "of-an-earlier-try"])
def test_a_task_that_was_deferred_for_copy_goes_on_with_what_the_deferral_keeps(
    load: Load, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(SnowpipeBulkLoadOperator, "_written", lambda *_: load.write())
    monkeypatch.setattr("airflow_provider_snowpipe.bulk.statement_client.time.sleep", lambda _: None)
    load.account.holds = True

    def task() -> SnowpipeBulkLoadOperator:
        arguments = {"source": {"path": "/rows", "format": "json"}, "table": "T", "stage": "@S/in"}
        return SnowpipeBulkLoadOperator(
            task_id="load", snowflake_conn_id="account", deferrable=True, **arguments
        )

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


@pytest.mark.parametrize("died", [None, "submit"], ids=["loaded", "staged"])
def test_a_run_that_was_made_anew_does_not_take_the_result_of_the_deleted_one(
    load: Load, died: str | None
) -> None:
    """Neither its first try, nor one after it was cleared."""
    if died is not None:
        load.account.fault(died, BEFORE, CrashError())
    with suppress(CrashError):
        load.load()
    rows = list(load.account.rows)
    load.began += dt.timedelta(hours=1)

    for number, clears in ((1, 0), (2, 0), (3, 1)):
        with pytest.raises(ConfigurationError, match="run_key"):
            load.load(number, clears=clears)
        load.began += dt.timedelta(hours=clears)
    assert load.account.rows == rows
    load.account.stages["S"].clear()
    if died is not None:
        assert load.load(4, clears=1)["rows_loaded"] == 3


def test_no_row_is_no_file_and_no_copy(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.ROWS", [])
    done = load.load()

    assert (done["rows"], done["rows_loaded"], done["files"]) == (0, 0, {})
    assert "submit" not in load.account.calls
    assert load.load(try_number=2) == done


@pytest.mark.parametrize("remembers", [True, False], ids=["statements", "history-alone"])
def test_the_next_try_leaves_every_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remembers: bool
) -> None:
    monkeypatch.setattr(bulk_driver, "SETTLED_AFTER", 0.0)
    for nth in range(1, CALLS + 1):
        load = Load(tmp_path / str(nth), monkeypatch)
        load.account.fault(None, AFTER, CrashError(), nth)
        with pytest.raises(CrashError):
            load.load()
        if not remembers:
            load.account.statements.clear()
        done = load.load(try_number=2)

        load.assert_every_row_is_there_once()
        assert done["rows_loaded"] == 3 or not remembers
        assert len(load.staged(OUTCOME_NAME)) == 1


def test_what_is_done_is_not_done_again(load: Load) -> None:
    first = load.load()
    del load.account.calls[:]
    load.bulk_run().stage.sweep()

    assert load.load(try_number=2) == first
    load.began += dt.timedelta(hours=1)
    assert load.load(try_number=2, clears=1) == first
    assert not {"PUT", "submit"} & set(load.account.calls)
    assert load.writes == 1
    with pytest.raises(ConfigurationError, match="'rows'"):
        load.load(try_number=3, source="others", clears=1)


def test_a_folder_whose_manifest_is_gone_after_copy_is_refused(load: Load) -> None:
    load.load()
    load.account.stages["S"].clear()
    with pytest.raises(FilesGivenTwiceError):
        load.load(try_number=2)

    load.assert_every_row_is_there_once()
    assert load.writes == 1


@pytest.mark.parametrize("then", ["loads", "loads-and-sweeps", "dies-before-copy", "dies-while-copy-runs"])
def test_a_stalled_try_whose_manifest_comes_late_changes_nothing(
    load: Load, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """Its PUT uploads when the next try has staged files of its own and has loaded them, or was killed."""
    account, slow, put, stalled = load.account, load.bulk_run(), SnowpipeBulkHook.put_file, list[str]()

    def stalls(hook: SnowpipeBulkHook, path: str, location: str) -> None:
        if not stalled and path.endswith(ATTEMPT_NAME):
            stalled.append(path)
            second_try()
            account.staged_at = "Sun, 01 Nov 2026 13:00:00 GMT"
        put(hook, path, location)

    def second_try() -> None:
        if then.startswith("loads"):
            load.load(try_number=2)
            if then.endswith("sweeps"):
                load.bulk_run().stage.sweep()
            return
        account.holds = True
        account.fault("submit", BEFORE if then == "dies-before-copy" else AFTER, CrashError())
        with pytest.raises(CrashError):
            load.load(try_number=2)

    monkeypatch.setattr(SnowpipeBulkHook, "put_file", stalls)
    known = account._known
    monkeypatch.setattr(account, "_known", lambda *given: (account.finish(), known(*given))[1])
    with suppress(FilesGivenTwiceError):
        slow.load(load.write, lambda manifest: load.copy(slow, 1, manifest))
    account.holds = False
    load.load(try_number=3)
    account.finish()

    load.assert_every_row_is_there_once()


def test_a_later_try_over_another_source_takes_no_rows_of_the_first_for_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a list that a task is mapped over has changed, and its instances are cleared."""
    monkeypatch.setattr(bulk_driver, "SETTLED_AFTER", 0.0)
    for nth in range(1, CALLS + 1, 3):
        load = Load(tmp_path / str(nth), monkeypatch)
        load.account.fault(None, AFTER, CrashError(), nth)
        with pytest.raises(CrashError):
            load.load()
        had_manifest = bool(load.staged(ATTEMPT_NAME))
        before = list(load.account.rows)
        if had_manifest:
            with pytest.raises(ConfigurationError, match="'others'"):
                load.load(try_number=2, source="others")
            run = load.bulk_run("others")
            with pytest.raises(ConfigurationError, match="'rows'"):
                run.resume(lambda manifest, run=run, load=load: load.copy(run, 2, manifest))
            assert load.account.rows == before
        else:
            load.load(try_number=2, source="others")
        assert load.writes == 1 + (not had_manifest and nth > 3)

"""The copy operator in a task: a run's files are those of its first try, and no other loader has them."""

import datetime as dt
import json
import time
from contextlib import nullcontext
from email.utils import format_datetime
from itertools import count
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, TaskDeferred

from airflow_provider_snowpipe.hooks.account import AccountHook
from airflow_provider_snowpipe.operators.copy import SnowpipeCopyOperator
from airflow_provider_snowpipe.operators.load import SnowpipeLoadOperator
from airflow_provider_snowpipe.streaming.errors import (
    FilesGivenTwiceError,
    NothingStagedError,
    SqlError,
)
from tests.fake_account import AFTER, BEFORE, CrashError, FakeAccount, Pipe
from tests.unit.operators.account_in_task import install, task_context

Options = dict[str, Any]
FORCED: Options = {"force": True}
LIMITED: Options = {"force": True, "size_limit": 9}
FILES = ("a", "b", "c", "d")
Patch = pytest.MonkeyPatch


def copy_task(**given: Any) -> SnowpipeCopyOperator:
    arguments = {"snowflake_conn_id": "account", "table": "T", "stage": "@S", **given}
    return SnowpipeCopyOperator(task_id="copy", **arguments)


class Copying:
    """A stage with four files of two rows, six bytes each, and the tries of one run over them."""

    def __init__(self, patch: Patch) -> None:
        self.account = FakeAccount()
        install(self.account, patch)
        self.began = dt.datetime.now(dt.UTC)
        for path in FILES:
            self.account.put(path, f"{path}1", f"{path}2")

    def run(self, options: Options = FORCED, *, clears: int = 0, index: int = -1, **given: Any) -> Any:
        run, number = given.pop("run", "r1"), given.pop("number", 1)
        context = task_context(run, number, self.began, index, clears)
        return copy_task(options=options, **given).execute(context)

    def killed(
        self, call: str | None, when: str, options: Options = FORCED, nth: int = 1, **given: Any
    ) -> None:
        self.account.fault(call, when, CrashError(), nth)
        with pytest.raises(CrashError):
            self.run(options, **given)

    def forget(self) -> None:
        """The SQL API forgets its statements, so that only history shows them."""
        self.account.statements.clear()

    def forget_loads(self) -> None:
        """Load history and COPY's memory go with the rows of a table."""
        self.account.history.clear()
        self.account._copied.clear()


def rows_of(*paths: str) -> list[str]:
    return sorted(f"{path}{number}" for path in paths for number in (1, 2))


@pytest.fixture
def copying(monkeypatch: Patch) -> Copying:
    return Copying(monkeypatch)


def test_a_folder_that_a_storage_console_made_is_no_file_to_load(copying: Copying) -> None:
    copying.account.stages["S"]["in/"] = b"folder"
    assert sorted(copying.run({})["files"]) == [*FILES]


def test_a_copy_signs_in_once_for_all_its_statements(copying: Copying, monkeypatch: Patch) -> None:
    connect, sign_ins = AccountHook._connect, list[str]()
    monkeypatch.setattr(
        AccountHook, "_connect", lambda hook: sign_ins.append(hook.snowflake_conn_id) or connect(hook)
    )
    copying.run({"purge": True})
    assert {"LIST", "LEDGER", "SHOW", "HISTORY", "REMOVE"} <= set(copying.account.calls)
    assert copying.account.calls.count("PLAN") == 1
    assert sign_ins == ["account"]


def test_a_file_that_changes_while_it_is_copied_is_not_removed(copying: Copying) -> None:
    copying.account.meanwhile("submit", AFTER, lambda: copying.account.put("a", "other1"))
    copying.run({"purge": True})
    assert list(copying.account.stages["S"]) == ["a"]


def test_a_try_whose_files_another_one_has_loaded_and_removed_is_not_green(copying: Copying) -> None:
    copying.account.meanwhile("LIST", BEFORE, lambda: copying.run({"purge": True}, number=2))
    with pytest.raises(SqlError, match="again"):
        copying.run({"purge": True}, on_nothing="report")
    assert sorted(copying.account.rows) == rows_of(*FILES)


@pytest.mark.parametrize("call", ["SHOW", "submit"])
def test_a_task_whose_files_another_process_gives_up_is_not_green(copying: Copying, call: str) -> None:
    def given_up() -> None:
        for row in copying.account.ledger.rows:
            row |= {"state": "given up", "version": row["version"] + 1}

    copying.account.meanwhile(call, BEFORE, given_up)
    with pytest.raises(SqlError, match="given"):
        copying.run({})
    assert copying.account.rows == []


class TestForce:
    """With FORCE, COPY itself skips nothing, so that a later try must mean the files of the first."""

    @pytest.mark.parametrize(
        ("options", "by"), [(FORCED, None), (LIMITED, "LOCAL.PUBLIC.P")], ids=["other-stage", "pipe"]
    )
    def test_loads_of_the_same_paths_by_others_do_not_count(
        self, copying: Copying, options: Options, by: str | None
    ) -> None:
        """Of another stage into the same table, or by a pipe: neither is a load of this run."""
        account = copying.account
        copying.killed("submit", BEFORE, options)
        account.stages["OTHER"] = {path: b"other\n" for path in FILES}
        account._copy(f"COPY INTO T FROM @{'S' if by else 'OTHER'} ON_ERROR = CONTINUE", by, FILES)
        account.rows.clear()
        done = copying.run(options, number=2)
        assert sorted(account.rows) == rows_of(*FILES[: 2 if options is LIMITED else 4])
        assert done["rows_loaded"] == len(account.rows)

    def test_a_run_that_was_deleted_and_made_again_loads_once_more(self, copying: Copying) -> None:
        copying.run()
        copying.account.put("e", "e1", "e2")
        copying.began += dt.timedelta(milliseconds=1)
        done = copying.run()
        copying.run(number=2)
        assert sorted(done["files"]) == [*FILES, "e"]
        assert sorted(copying.account.rows) == sorted([*rows_of(*FILES), *rows_of(*FILES, "e")])

    def test_a_later_try_whose_run_may_have_been_made_again_fails(self, copying: Copying) -> None:
        """Its first try has died before it could list its files."""
        copying.run()
        copying.began += dt.timedelta(hours=1)
        with pytest.raises(AirflowException, match="deleted run"):
            copying.run(number=2)
        assert sorted(copying.account.rows) == rows_of(*FILES)


class TestMappedInstances:
    """Two instances of a mapped task copy from one stage into one table; one is tried again."""

    def test_with_force_a_retry_loads_what_another_instance_has_loaded(self, copying: Copying) -> None:
        copying.killed("submit", BEFORE, index=0, files=["a"], columns=["ONE"])
        copying.run(index=1, files=["a"], columns=["TWO"])
        copying.forget()
        done = copying.run(number=2, index=0, files=["a"], columns=["ONE"])
        assert copying.account.rows == [*rows_of("a"), *rows_of("a")]
        assert done["rows_loaded"] == 2
        copying.forget()
        copying.run(number=3, index=0, files=["a"], columns=["ONE"])
        assert len(copying.account.rows) == 4

    def test_a_retry_does_not_report_files_that_another_one_purged(self, copying: Copying) -> None:
        copying.killed("submit", BEFORE, {"purge": True}, index=0)
        copying.run({"purge": True}, index=1)
        with pytest.raises(NothingStagedError):
            copying.run({"purge": True}, number=2, index=0)

    def test_with_force_a_later_try_that_is_given_other_files_fails(self, copying: Copying) -> None:
        """As an instance is whose list has another order when the task before it has run again."""
        copying.run(index=0, files=["a"])
        for later in ({"files": ["c"]}, {"prefix": "c"}, {}):
            with pytest.raises(AirflowException, match="ledger"):
                copying.run(number=2, index=0, **later)
        assert copying.account.rows == rows_of("a")


class TestEarlierTry:
    """A statement of an earlier try that still runs has another request id as soon as a file has come."""

    OPTIONS = pytest.mark.parametrize(
        "options", [{}, {"purge": True}, FORCED], ids=["plain", "purge", "force"]
    )

    @staticmethod
    def killed_while_it_runs(copying: Copying, options: Options) -> None:
        copying.account.holds = True
        copying.killed("submit", AFTER, options)
        copying.account.put("e", "e1", "e2")

    @staticmethod
    def retried(patch: Patch, copying: Copying, options: Options, before: int) -> int:
        """Run the next try, and commit the earlier COPY before a call of it; the number of its calls."""
        account = copying.account
        earlier = len(account.calls)
        account.meanwhile(None, BEFORE, account.finish, before)
        patch.setattr("time.sleep", lambda _: account.finish())
        copying.run(options, number=2)
        return len(account.calls) - earlier

    @OPTIONS
    @pytest.mark.parametrize("edit", [{}, {"on_error": "CONTINUE"}], ids=["same", "edited"])
    def test_it_may_end_before_any_call_of_the_next_try(
        self, monkeypatch: Patch, options: Options, edit: Options
    ) -> None:
        for before in count(1):
            copying = Copying(monkeypatch)
            self.killed_while_it_runs(copying, options)
            calls = self.retried(monkeypatch, copying, {**options, **edit}, before)
            assert sorted(copying.account.rows) == rows_of(*FILES, *([] if options is FORCED else ["e"]))
            if calls < before:
                break

    def test_a_killed_task_cancels_it(self, copying: Copying, monkeypatch: Patch) -> None:
        self.killed_while_it_runs(copying, {})
        task = copy_task()
        monkeypatch.setattr("time.sleep", lambda _: task.on_kill())
        with pytest.raises(Exception, match="stopped"):
            task.execute(task_context("r1", 2, copying.began))
        assert [one.failure is not None for one in copying.account.statements.values()] == [True]
        assert copying.account.rows == []


class TestDeferral:
    """While the triggerer waits, files come and go; a statement's files are those listed before it."""

    @pytest.mark.parametrize(
        ("kind", "more", "options"),
        [
            (SnowpipeCopyOperator, {"stage": "@S"}, {**FORCED, "purge": True}),
            (SnowpipeLoadOperator, {"source": "@S", "path": "copy"}, {}),
        ],
    )
    def test_a_task_that_comes_back_reports_its_own_files(
        self, copying: Copying, kind: Any, more: Options, options: Options
    ) -> None:
        account = copying.account
        account.holds = True

        def task() -> Any:
            given = {"snowflake_conn_id": "account", "table": "T", "options": options, "deferrable": True}
            return kind(task_id="copy", execution_timeout=dt.timedelta(seconds=90), **given, **more)

        with pytest.raises(TaskDeferred) as deferred:
            task().execute(task_context(began=copying.began))
        assert 0 < deferred.value.trigger.deadline - time.time() <= 90
        account.finish()
        account.put("e", "e1")
        account._copy("COPY INTO T FROM @S ON_ERROR = CONTINUE", "LOCAL.PUBLIC.P", ["e"])
        kwargs = json.loads(json.dumps({"event": {"status": "ended"}, **(deferred.value.kwargs or {})}))
        done = getattr(task(), deferred.value.method_name)(task_context(began=copying.began), **kwargs)

        assert sorted(account.rows) == [*rows_of(*FILES), "e1"]
        assert (done["rows_loaded"], sorted(done["files"]), done["loaded_before"]) == (8, list(FILES), {})

    def test_a_task_that_comes_back_tries_a_file_that_failed_no_second_time(self, copying: Copying) -> None:
        copying.account.put("e", "bad")
        copying.account.holds = True
        given: Options = {"options": {"on_error": "SKIP_FILE"}, "on_rejected": "report", "deferrable": True}
        with pytest.raises(TaskDeferred) as deferred:
            copy_task(**given).execute(task_context(began=copying.began))
        copying.account.finish()
        task, event = copy_task(**given), {"status": "ended"}
        done = task.execute_complete(task_context(began=copying.began), event, **deferred.value.kwargs or {})
        assert (done["rows_loaded"], done["files"]["e"]["status"]) == (8, "LOAD_FAILED")
        assert [row["part"] for row in copying.account.ledger.rows] == [1]


class TestPipes:
    """A pipe over the table that has the files in its queue, or will have them, loads them once more."""

    PIPE = "LOCAL.PUBLIC.P"
    STAGED = dt.datetime(2026, 11, 1, 12, tzinfo=dt.UTC)

    @pytest.fixture(autouse=True)
    def pipe(self, copying: Copying) -> Pipe:
        found = copying.account.pipes[self.PIPE] = Pipe("COPY INTO t FROM '@S'")
        found.created = self.STAGED - dt.timedelta(days=1)
        return found

    def refused(self, copying: Copying, *words: str) -> None:
        with pytest.raises((AirflowException, FilesGivenTwiceError)) as refused:
            copying.run({})
        assert copying.account.rows == []
        assert not [word for word in words if word not in str(refused.value)]

    def test_files_that_wait_in_a_paused_pipe_are_not_copied(self, copying: Copying, pipe: Pipe) -> None:
        pipe.queue, pipe.is_paused = ["a"], True
        self.refused(copying, self.PIPE, "PAUSED", "force=True")
        copying.account.finish()
        assert copying.account.rows == ["a1", "a2"]

    @pytest.mark.parametrize(
        ("name", "statement", "urls", "is_asked"),
        [
            ("FAR.AWAY.P", "COPY INTO LOCAL.PUBLIC.T FROM @LOCAL.PUBLIC.S", {}, True),
            (PIPE, "COPY INTO t FROM @OTHER/in", {"S": "s3://b/in/", "OTHER": "s3://b"}, True),
            ("FAR.P.P", "COPY INTO LOCAL.PUBLIC.T FROM @OTHER", {"S": "s3://b/i", "OTHER": "s3://b/"}, True),
            (PIPE, "COPY INTO t FROM @OTHER", {"S": "s3://b/in/", "OTHER": "s3://b/i/"}, False),
            (PIPE, "COPY INTO other FROM @S", {}, False),
            (PIPE, "COPY INTO t FROM @S/in/", {}, False),
            (PIPE, "COPY INTO far.t FROM @PUBLIC.S", {}, False),
        ],
    )
    def test_pipes_over_the_same_table_and_location_alone_are_asked(
        self, copying: Copying, name: str, statement: str, urls: dict[str, str], is_asked: bool
    ) -> None:
        account = copying.account
        pipe = account.pipes[name] = Pipe(statement)
        pipe.queue, account.stage_urls = ["a"], urls
        if is_asked:
            self.refused(copying, name)
        else:
            assert copying.run({})["rows_loaded"] == 8


def test_what_a_pipe_has_loaded_of_this_stage_is_refused_without_force(copying: Copying) -> None:
    name = "LOCAL.PUBLIC.P"
    copying.account.pipes[name] = Pipe("COPY INTO T FROM @S")
    copying.account._copy("COPY INTO T FROM @S ON_ERROR = CONTINUE", name, ["a"])
    with pytest.raises(AirflowException, match=r"FilesGivenTwiceError.*'a' by pipe"):
        copying.run({})
    copying.account.stages["OTHER"] = {"a": b"x\n"}
    assert copying.run({}, run="r3", stage="@OTHER")["rows_loaded"] == 1
    assert copying.run(FORCED)["rows_loaded"] == 8


class TestRunAgain:
    """A run that is cleared: what an earlier try's statement reports is not in the table for ever."""

    @pytest.mark.parametrize("options", [{}, FORCED], ids=str)
    @pytest.mark.parametrize("replaced", [False, True])
    def test_files_of_an_emptied_or_replaced_table_are_loaded(
        self, copying: Copying, monkeypatch: Patch, options: Options, replaced: bool
    ) -> None:
        """A task before this one empties the table in each run, and was cleared as well."""
        monkeypatch.setattr("airflow_provider_snowpipe.bulk.copy.MOST_FILES", 2)
        copying.run(options)
        copying.account.rows.clear()  # TRUNCATE TABLE, or CREATE OR REPLACE
        copying.forget_loads()
        copying.account.created += dt.timedelta(seconds=replaced)
        done = copying.run(options, number=2)
        assert sorted(copying.account.rows) == rows_of(*FILES)
        again = copying.run(options, number=3)
        assert sorted(copying.account.rows) == rows_of(*FILES)
        assert (done["rows_loaded"], again["rows_loaded"], done["loaded_before"]) == (8, 8, {})

    @pytest.mark.parametrize(
        ("options", "run", "words"),
        [({}, "r1", "TRUNCATE"), ({}, "r2", "TRUNCATE"), (FORCED, "r1", "TRUNCATE"), ({}, "r1", " of 20")],
    )
    def test_files_of_a_table_with_other_rows_are_not_taken_for_loaded(
        self, copying: Copying, options: Options, run: str, words: str
    ) -> None:
        """TRUNCATE or a new table, and an INSERT of these or other rows: nobody knows, nothing doubles."""
        copying.run(options)
        copying.account.created += dt.timedelta(seconds=words != "TRUNCATE")
        left = list(copying.account.rows)
        copying.forget_loads()
        copying.account.put("e", "e1", "e2")
        with pytest.raises(AirflowException, match=f"FilesRejectedError.*{words}"):
            copying.run(options, run=run, number=2 if run == "r1" else 1)
        assert [row for row in copying.account.rows if row[0] != "e"] == left

    def test_force_that_is_set_between_two_tries_loads_nothing_again(self, copying: Copying) -> None:
        copying.run({})
        copying.account.put("e", "e1", "e2")
        with pytest.raises(AirflowException, match="FilesGivenTwiceError"):
            copying.run(number=2)
        assert sorted(copying.account.rows) == rows_of(*FILES)
        assert copying.run({}, number=3)["rows_loaded"] == 10

    def test_with_force_a_retry_that_finds_no_ledger_loads_nothing_again(self, copying: Copying) -> None:
        """Somebody has dropped it, or the task names another one; what other runs load does not count."""
        copying.run(run="r0")
        copying.began = dt.datetime.now(dt.UTC)
        copying.run()
        copying.account.ledger.rows = [row for row in copying.account.ledger.rows if row["run_id"] == "r0"]
        with pytest.raises(AirflowException, match=r"FilesGivenTwiceError.*ledger"):
            copying.run(number=2)
        assert copying.account.rows == 2 * rows_of(*FILES)
        assert copying.run(run="r3")["rows_loaded"] == 8

    @pytest.mark.parametrize("names_skipped", [True, False])
    def test_files_that_history_lags_behind_with_stay_this_runs(
        self, copying: Copying, names_skipped: bool
    ) -> None:
        copying.account.names_skipped = names_skipped
        copying.run({})
        copying.account.history.clear()
        done = copying.run({}, number=3)
        assert copying.account.rows == rows_of(*FILES)
        assert (done["rows_loaded"], done["loaded_before"]) == (8, {})

    @pytest.mark.parametrize("days", [1, 30])
    def test_a_file_that_copy_leaves_out_has_to_be_an_old_one(self, copying: Copying, days: int) -> None:
        account = copying.account
        account.staged_at = format_datetime(copying.began - dt.timedelta(days), usegmt=True)
        account.names_skipped = False
        account.copy(*FILES)
        account.history.clear()
        with pytest.raises(AirflowException, match="left out 4") if days == 1 else nullcontext():
            assert sorted(copying.run({})["loaded_before"]) == [*FILES]

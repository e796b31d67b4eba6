"""The ingest operator in a task: files that COPY has loaded are refused, whether a table is named or not."""

import datetime as dt

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, TaskDeferred

from airflow_provider_snowpipe.bulk.load_history import PolledLoads
from airflow_provider_snowpipe.operators.ingest_files import SnowpipeIngestFilesOperator
from airflow_provider_snowpipe.streaming.commits import WaitState
from airflow_provider_snowpipe.streaming.errors import (
    FilesNotLoadedError,
    NothingStagedError,
    RetriesExhaustedError,
)
from airflow_provider_snowpipe.streaming.http import Answer
from tests.fake_account import BEFORE, Pipe
from tests.unit.operators.account_in_task import task_context

PIPE = "LOCAL.PUBLIC.P"


@pytest.fixture
def account(account):
    account.pipes[PIPE] = Pipe("COPY INTO t FROM '@S'")
    for path in ("a", "b"):
        account.put(path, f"{path}1")
    return account


def task(**given):
    arguments = {"files": ["a", "b"], "load_timeout": 5.0, "poll_interval": 0.01, **given}
    return SnowpipeIngestFilesOperator(task_id="ingest", snowflake_conn_id="account", pipe="P", **arguments)


def ingest(**given):
    return task(**given).execute(task_context(began=dt.datetime.now(dt.UTC)))


@pytest.mark.parametrize(("given", "waits"), [({}, True), ({"stage": "@S"}, False), ({"table": "T"}, True)])
def test_files_that_copy_has_loaded_are_refused(account, given, waits):
    account.copy("a")
    with pytest.raises(AirflowException) as refused:
        ingest(wait_for_load=waits, **given)
    assert "'a' by COPY" in str(refused.value)
    assert account.rows == ["a1"]
    ingest(force=True, wait_for_load=False)
    assert sorted(account.rows) == ["a1", "a1", "b1"]


class TestLocation:
    """A pipe takes paths below its own location, where other files may have those that another one has."""

    @pytest.mark.parametrize(
        ("given", "word"),
        [
            ({"stage": "@S/ny"}, "'@S/ny'"),
            ({"stage": "@OTHER", "table": "T"}, "'@OTHER'"),
            ({"stage": "@LOCAL.OTHER.S", "force": True}, "'@LOCAL.OTHER.S'"),
            ({"stage": "@S", "table": "U"}, "'U'"),
        ],
    )
    def test_another_one_than_the_pipes_is_refused(self, account, given, word):
        account.put("ny/a", "ny1")
        account.stages["OTHER"] = {"a": b"o1\n"}
        with pytest.raises(AirflowFailException, match=word):
            ingest(files=None, **given)
        assert account.rows == []


def test_a_pipe_that_does_not_load_in_time_names_its_files_and_the_next_try_goes_on(account):
    account.holds = True
    with pytest.raises(FilesNotLoadedError, match="PIPE_STATUS"):
        ingest(load_timeout=0.05, table="T")
    waiting = task(deferrable=True)
    with pytest.raises(TaskDeferred) as deferred:
        waiting.execute(task_context())
    for reason, error in (("load_failed", AirflowFailException), ("timeout", FilesNotLoadedError)):
        event = {"status": "failure", "reason": reason, "message": "in words"}
        with pytest.raises(error, match="in words"):
            waiting.execute_complete(task_context(), event, **(deferred.value.kwargs or {}))
    account.finish()

    assert ingest(table="T")["files"] == ["a", "b"]
    assert sorted(account.rows) == ["a1", "b1"]


def test_loads_whose_rows_are_not_in_the_table_do_not_end_the_wait_well(account):
    """As those of a pipe that reports what it has loaded into the table that was replaced."""
    waiting = task(deferrable=True, table="T")
    account.holds = True
    with pytest.raises(TaskDeferred) as deferred:
        waiting.execute(task_context())
    account.finish()
    account.rows.clear()
    loads = {path: {"status": "LOADED", "rows_loaded": 1} for path in ("a", "b")}
    event = {"status": "success", "files": loads}
    with pytest.raises(AirflowFailException, match=r"FilesRejectedError.*2 rows"):
        waiting.execute_complete(task_context(), event, **(deferred.value.kwargs or {}))


def test_a_file_loaded_in_part_stays_an_objection(account):
    account.put("a", "a1", "bad")
    for word in ("partially_loaded", "before"):
        with pytest.raises(AirflowFailException, match=word):
            ingest(files=["a"], table="T")
    done = ingest(files=["a"], on_partial="report", table="T")
    assert done["loaded_before"]["a"]["status"] == "PARTIALLY_LOADED"


def test_nothing_staged_is_an_error_or_a_report(account):
    with pytest.raises(NothingStagedError, match="'z'"):
        ingest(stage="@S", files=["z"])
    account.stages.clear()
    with pytest.raises(NothingStagedError, match="prefix 'in/'"):
        ingest(stage="@S", files=None, prefix="in/")
    assert ingest(stage="@S", files=None, on_nothing="report")["rows_loaded"] == 0


def test_a_pipe_that_stays_overloaded_leaves_the_task_its_retries(account):
    for nth in range(1, 20):
        account.fault("insertFiles", BEFORE, Answer(429, b"{}", retry_after=30), nth)
    with pytest.raises(RetriesExhaustedError, match=r"insertFiles.*429") as raised:
        ingest(wait_for_load=False, retry_seconds=5.0)
    assert raised.value.retry_after == 30


class TestLoadsOfTheSameName:
    """A load counts for the very file that the pipe is given, not for one with this end of its path."""

    @pytest.mark.parametrize("given", [{}, {"stage": "@OTHER"}, {"stage": "@OTHER", "force": True}], ids=str)
    def test_a_path_in_another_stage_is_another_file(self, account, given):
        ingest(table="T")
        account.pipes[PIPE] = Pipe("COPY INTO t FROM '@OTHER'")
        account.stages["OTHER"] = {"a": b"o1\n"}
        done = ingest(files=["a"], table="T", **given)
        assert (done["submitted"], done["rows_loaded"]) == (["a"], 1)
        assert sorted(account.rows) == ["a1", "b1", "o1"]

    def test_the_wait_does_not_end_by_the_load_of_another_one(self, account):
        account.pipes[PIPE] = Pipe("COPY INTO t FROM '@S/in'")
        account.put("in/a", "upper")
        account.put("in/in/a", "lower")
        ingest(files=["a"], table="T")
        account.holds = True

        with pytest.raises(FilesNotLoadedError, match="'in/a'"):
            ingest(files=["in/a"], load_timeout=0.05, table="T")
        waiting = task(files=["in/a"], deferrable=True, table="T", stage="@S/in")
        with pytest.raises(TaskDeferred) as deferred:
            waiting.execute(task_context())
        watch = deferred.value.trigger._watch()
        hook = waiting.bulk_hook("T")
        assert watch.see(PolledLoads(hook.loads_of("T", ["in/in/a"])), 0.0).state is WaitState.WAITING
        account.finish()
        assert watch.see(PolledLoads(hook.loads_of("T", ["in/in/a"])), 0.0).value.keys() == {"in/a"}


@pytest.mark.parametrize("given", [{}, {"stage": "@S", "files": None}], ids=["pipe", "stage"])
def test_a_pipe_that_was_made_anew_is_not_given_what_the_one_before_has_loaded(account, given):
    """A pipe's memory goes with it; the history of its table stays."""
    ingest(wait_for_load=False)
    account.pipes[PIPE] = Pipe("COPY INTO t FROM '@S'")
    account.put("c", "c1")
    done = ingest(wait_for_load=False, **{"files": ["a", "b", "c"], **given})
    assert sorted(account.rows) == ["a1", "b1", "c1"]
    assert (done["submitted"], sorted(done["loaded_before"])) == (["c"], ["a", "b"])
    assert done["files"] == ["a", "b", "c"]

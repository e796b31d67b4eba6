"""A COPY run loads its files once, whatever becomes of workers, of answers and of the service's memory."""

import dataclasses
import datetime as dt
import json
from contextlib import suppress
from functools import partial
from itertools import product

import pytest

from airflow_provider_snowpipe.bulk import copy as copying
from airflow_provider_snowpipe.bulk.copy import CopyInto, CopyOptions, RunIdentity
from airflow_provider_snowpipe.bulk.load_history import REMEMBERED, CopyHistory, HistoryQuestion, may_have_run
from airflow_provider_snowpipe.bulk.staged_files import FileLoad, StagedFile, StageReference
from airflow_provider_snowpipe.bulk.statement_client import CopyRun, StatementClient
from airflow_provider_snowpipe.streaming.auth import ProgrammaticAccessToken
from airflow_provider_snowpipe.streaming.errors import ApiError, RetriesExhaustedError, SqlError
from airflow_provider_snowpipe.streaming.http import Answer, Transports, UnreachableError
from airflow_provider_snowpipe.streaming.limits import RetryPolicy
from tests.fake_account import (
    AFTER,
    BEFORE,
    CANCELLED,
    DATABASE,
    SCHEMA,
    TABLE,
    UNFIT,
    URL,
    CrashError,
    FakeAccount,
)

HOUR = 3600.0
STAGE = StageReference.parse("@S")
PATHS = ("a", "b", "c", "d", "e")
PLAIN = {}
FORCED = {"force": True}
QUICK = RetryPolicy(budget_seconds=1.0, initial_seconds=0.001)


class Loading:
    """Five files, and the runs of one piece of work over them, two files a statement."""

    def __init__(self, account):
        self.account = account
        self.began = dt.datetime.now(dt.UTC)
        self.paths = list(PATHS)
        for path in PATHS:
            account.put(path, f"{path}1", f"{path}2")

    def run(self, options=PLAIN, try_number=1):
        copy = CopyInto((DATABASE, SCHEMA, TABLE), f'@"{DATABASE}"."{SCHEMA}".S', CopyOptions(**options))
        client = StatementClient(URL, ProgrammaticAccessToken("t"), retry=QUICK)
        identity = RunIdentity(("d", "r", "t", "-1"), self.began, try_number)
        return CopyRun(copy, STAGE, client, self.history, self.may_have_run(identity), identity)

    def load(self, options=PLAIN, try_number=1):
        return self.run(options, try_number).load(self.files)

    def history(self, paths):
        now = dt.datetime.now(dt.UTC)
        known = CopyHistory(self.account.run, (DATABASE, SCHEMA, TABLE))
        return known.loads([HistoryQuestion(frozenset(paths), now - REMEMBERED)], now)

    def may_have_run(self, identity):
        return partial(may_have_run, self.account.run, DATABASE, identity.query_tag)

    @property
    def files(self):
        listed = {row["name"].partition("/")[2]: row["md5"] for row in self.account._list("", ["@S"])}
        return [StagedFile(path, listed[path]) for path in self.paths]

    def empty(self):
        """Empty the table, which load history and COPY's memory forget with it."""
        for memory in (self.account.rows, self.account.history, self.account._copied):
            memory.clear()

    @property
    def expected(self):
        return [f"{path}{number}" for path in self.paths for number in (1, 2)]

    def assert_every_row_is_there_once(self, *before):
        assert sorted(self.account.rows) == sorted([*before, *self.expected])


def installed(patch):
    account = FakeAccount()
    patch.setattr(Transports, "send", lambda _, *given, **named: account.send(*given, **named))
    patch.setattr(copying, "MOST_FILES", 2)
    return account


@pytest.fixture
def loading(monkeypatch):
    return Loading(installed(monkeypatch))


@pytest.fixture
def pauses(monkeypatch):
    """What would have been slept."""
    slept = []
    monkeypatch.setattr("airflow_provider_snowpipe.bulk.statement_client.time.sleep", slept.append)
    return slept


class TestLoad:
    def test_every_file_is_loaded_once_and_reported_by_its_path(self, loading):
        outcome = loading.load()

        loading.assert_every_row_is_there_once()
        assert [(one.path, one.status, one.rows_loaded) for one in outcome.loads] == [
            (path, "LOADED", 2) for path in PATHS
        ]
        assert (outcome.result()["rows_loaded"], outcome.before) == (10, ())
        assert loading.account.calls == ["submit"] * 3
        assert len(loading.account.statements) == 3
        tag = json.dumps({"snowpipe": ["d", "r", "t", "-1"]})
        assert {one.tag for one in loading.account.statements.values()} == {tag}

    def test_files_of_unknown_content_are_loaded_by_statements_of_their_own(self, loading):
        loading.run().load([StagedFile(path) for path in PATHS])

        loading.assert_every_row_is_there_once()

    def test_a_statement_that_runs_is_asked_for_at_growing_pauses(self, loading, pauses):
        loading.paths = ["a"]
        loading.account.holds = True

        def wait(seconds):
            pauses.append(seconds)
            if len(pauses) == 12:
                loading.account.finish()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("airflow_provider_snowpipe.bulk.statement_client.time.sleep", wait)
            loading.load()

        loading.assert_every_row_is_there_once()
        assert pauses[:2] == [0.2, pytest.approx(0.3)]
        assert pauses == sorted(pauses)
        assert pauses[-1] == 5.0

    def test_whoever_waits_elsewhere_is_given_the_handle_and_the_statement(self, loading):
        loading.account.holds = True
        waited = []

        def wait(handle, statement):
            waited.append((handle, statement))
            loading.account.finish()
            return [{"file": "s/a", "status": "LOADED", "rows_loaded": 2}]

        loading.paths = ["a"]
        outcome = loading.run().load(loading.files, wait)

        ((handle, statement),) = waited
        (known,) = loading.account.statements.values()
        assert (known.handle, known.text) == (handle, statement)
        assert outcome.result()["rows_loaded"] == 2

    def test_a_poll_ends_with_the_rows_or_without_them(self, loading, pauses):
        loading.account.holds = True
        run = loading.run()
        state = run.client.submit(f"COPY INTO T FROM @{STAGE.name}", "id", query_tag="t")

        assert run.poll(state.handle, "COPY") is None
        assert pauses == [0.2, 0.4, 0.8]
        loading.account.finish()
        assert len(run.poll(state.handle, "COPY") or ()) == 5


class TestFilesLoadedBefore:
    @pytest.fixture(autouse=True, params=[True, False], ids=["named", "left-out"])
    def named(self, loading, request):
        """COPY names files that it skips, or leaves them out of its result."""
        loading.account.names_skipped = request.param

    def test_a_first_try_reports_them_as_loaded_before_however_lately(self, loading):
        loading.account.copy("a")
        outcome = loading.load()

        loading.assert_every_row_is_there_once()
        assert [(one.path, one.status, one.rows_loaded) for one in outcome.before] == [("a", "LOADED", 2)]
        assert [one.path for one in outcome.loads] == ["b", "c", "d", "e"]

    def test_a_later_try_reports_as_its_own_what_was_loaded_since_the_run_began(self, loading):
        loading.account.copy("a", ago=HOUR)
        loading.load()
        loading.account.statements.clear()
        outcome = loading.load(try_number=2)

        loading.assert_every_row_is_there_once()
        assert [one.path for one in outcome.before] == ["a"]
        assert outcome.result()["rows_loaded"] == 8

    def test_history_reports_that_a_file_was_loaded_in_part(self, loading):
        loading.account.put("a", "a1", "bad")
        loading.load({"on_error": "CONTINUE"})
        loading.account.statements.clear()
        outcome = loading.load({"on_error": "CONTINUE"}, try_number=2)

        (partly,) = [one for one in outcome.loads if one.status == "PARTIALLY_LOADED"]
        assert (partly.path, partly.rows_loaded, partly.rows_parsed, partly.errors_seen) == ("a", 1, 2, 1)
        assert loading.account.rows.count("a1") == 1


def test_where_only_failures_are_reported_history_is_not_asked_for_the_rest(loading):
    loading.account.put("a", "a1", "bad")
    outcome = loading.load({"return_failed_only": True, "on_error": "SKIP_FILE"})

    assert [(one.path, one.status) for one in outcome.loads] == [("a", "LOAD_FAILED")]
    assert "HISTORY" not in loading.account.calls


class TestRunAgain:
    """What an earlier try's statement reports counts while load history and COPY's memory bear it out."""

    def test_it_is_taken_and_nothing_is_submitted_where_history_knows_its_files(self, loading):
        loading.load()
        outcome = loading.load(try_number=2)

        assert (outcome.result()["rows_loaded"], outcome.before) == (10, ())
        assert len(loading.account.statements) == 3

    @pytest.mark.parametrize("named", [True, False], ids=["named", "left-out"])
    @pytest.mark.parametrize("try_number", [2, 3])
    def test_what_copy_skips_stays_this_runs_where_history_lags_behind(self, loading, try_number, named):
        loading.account.copy("b")
        loading.account.names_skipped = named
        loading.load()
        loading.account.history.clear()
        outcome = loading.load(try_number=try_number)

        loading.assert_every_row_is_there_once()
        assert [(one.path, one.status, one.rows_loaded) for one in outcome.loads] == [
            (path, "LOADED", 2) for path in "acde"
        ]
        assert [(one.path, one.status) for one in outcome.before] == [("b", "LOAD_SKIPPED")]

    def test_with_a_size_limit_a_file_that_is_left_out_may_not_have_been_begun(self, loading):
        """The table was emptied meanwhile, and now the limit is reached with the first file."""
        loading.paths = ["a", "b"]
        options = {"size_limit": 5}
        loading.account.put("a", "a1")
        loading.account.put("b", "b1")
        sizes = loading.files
        loading.run(options).load(sizes)
        loading.empty()
        loading.account.put("a", "a1", "a2")
        outcome = loading.run(options, try_number=2).load(sizes)

        assert loading.account.rows == ["a1", "a2"]
        assert [one.path for one in outcome.loads] == ["a"]

    @pytest.mark.parametrize("later", [dt.timedelta(hours=1), dt.timedelta(seconds=1)], ids=str)
    @pytest.mark.parametrize("tries", [1, 2])
    def test_a_deleted_run_of_the_same_id_has_not_loaded_a_table_that_was_emptied_since(
        self, loading, tries, later
    ):
        """The request ids are those of the run before, whose statements answer for them."""
        for number in range(1, tries + 1):
            loading.empty()
            loading.load(try_number=number)
        loading.empty()
        loading.began = dt.datetime.now(dt.UTC) + later
        outcome = loading.load()

        loading.assert_every_row_is_there_once()
        assert (outcome.result()["rows_loaded"], outcome.before) == (10, ())
        statements = len(loading.account.statements)
        assert loading.load(try_number=2).result()["rows_loaded"] == 10
        assert len(loading.account.statements) == statements
        loading.assert_every_row_is_there_once()

    def test_files_of_an_external_stage_are_found_in_history_by_their_paths(self, loading):
        loading.account.holds = True
        load = FileLoad("x/a", "s3://b/in/", "LOADED", 2, loaded_at=dt.datetime.now(dt.UTC))
        run = loading.run(try_number=2)
        run = dataclasses.replace(run, url="s3://b/in/", history=lambda _: [load])
        run.load([StagedFile("x/a")], lambda *_: [{"file": "s3://b/in/x/a", "status": "LOADED"}])

        assert loading.account.calls.count("submit") == 1


class TestCrashes:
    """A worker that dies at any call, before or after it is done; the next try of the same run."""

    @pytest.mark.parametrize("options", [PLAIN, FORCED], ids=["plain", "forced"])
    @pytest.mark.parametrize("remembers", [True, False], ids=["remembers", "forgets"])
    def test_the_next_try_leaves_every_row_once(self, monkeypatch, options, remembers):
        for when, runs in product([BEFORE, AFTER], [False, True]):
            crashes = 0
            while self.crash_at(monkeypatch, crashes + 1, when, runs, options, remembers):
                crashes += 1
            assert crashes >= 3

    def crash_at(self, monkeypatch, number, when, runs, options, remembers):
        """Whether the run made so many calls that it died at this one."""
        account = installed(monkeypatch)
        loading = Loading(account)
        account.copy("b", ago=HOUR)
        before = list(account.rows) if options else []
        account.holds = runs
        account.fault(None, when, CrashError(), nth=number)
        with suppress(CrashError):
            loading.run(options).load(loading.files, finished(loading))
            return False
        account.faults.clear()
        account.finish()
        if not remembers:
            account.statements.clear()
        loading.load(options, try_number=2)
        loading.assert_every_row_is_there_once(*before)
        return True

    def test_a_statement_of_an_earlier_try_that_still_runs_is_joined(self, loading):
        loading.paths = ["a"]
        loading.account.holds = True
        loading.account.fault("submit", AFTER, CrashError())
        with pytest.raises(CrashError):
            loading.load(FORCED)
        loading.run(FORCED, try_number=3).load(loading.files, finished(loading))

        loading.assert_every_row_is_there_once()
        assert len(loading.account.statements) == 1

    def test_a_statement_of_an_earlier_try_that_failed_is_followed_by_another(self, loading):
        good = loading.account.stages["S"]["a"]
        loading.account.put("a", "a1", "bad")
        with pytest.raises(SqlError) as failed:
            loading.load()
        assert failed.value.errno == UNFIT
        assert loading.account.rows == []
        marks = loading.files
        loading.account.stages["S"]["a"] = good

        loading.run(try_number=2).load(marks)
        loading.assert_every_row_is_there_once()

    @pytest.mark.parametrize("try_number", [4])
    def test_the_first_statement_that_ended_well_is_joined_however_many_failed_before(
        self, loading, try_number
    ):
        loading.paths, good = ["a"], loading.account.stages["S"]["a"]
        loading.account.put("a", "bad")
        marks = loading.files
        with pytest.raises(SqlError):
            loading.load(FORCED)
        loading.account.stages["S"]["a"] = good
        loading.run(FORCED, try_number=2).load(marks)
        loading.account.history.clear()

        loading.run(FORCED, try_number=try_number).load(marks)

        loading.assert_every_row_is_there_once()

    @pytest.mark.parametrize(
        ("name", "options", "is_named"),
        [("x.parquet", PLAIN, True), ("x.csv", PLAIN, False), ("x.avro", {"file_format": "F"}, False)],
    )
    def test_file_of_another_format_than_csv_is_named_with_the_key_to_give(
        self, loading, name, options, is_named
    ):
        loading.account.put(name, "bad")
        loading.paths = [name]

        with pytest.raises(SqlError) as failed:
            loading.load(options)

        assert ("file_format" in str(failed.value)) is is_named
        assert failed.value.errno == UNFIT


class TestAnswers:
    @pytest.mark.parametrize("when", [BEFORE, AFTER])
    @pytest.mark.parametrize("options", [PLAIN, FORCED], ids=["plain", "forced"])
    def test_a_lost_answer_is_asked_for_again_under_the_same_request_id(self, loading, when, options):
        loading.account.fault("submit", when, UnreachableError("cut"))
        loading.load(options)

        loading.assert_every_row_is_there_once()
        assert len(loading.account.statements) == 3

    def test_a_service_that_stays_away_leaves_the_outcome_open_and_the_next_try_settles_it(self, loading):
        loading.account.fault("submit", AFTER, UnreachableError("cut"))
        for nth in range(2, 60):
            loading.account.fault("submit", BEFORE, UnreachableError("cut"), nth)
        run = loading.run(FORCED)
        run.client = StatementClient(
            URL, ProgrammaticAccessToken("t"), retry=RetryPolicy(0.01, initial_seconds=0.002)
        )
        with pytest.raises(RetriesExhaustedError):
            run.load(loading.files)
        loading.account.faults.clear()
        loading.load(FORCED, try_number=2)

        loading.assert_every_row_is_there_once()

    @pytest.mark.parametrize("options", [PLAIN, FORCED], ids=["plain", "forced"])
    @pytest.mark.parametrize("done", [True, False], ids=["done", "not-done"])
    def test_where_the_service_has_lost_the_statement_history_reports_whether_it_ran(
        self, loading, options, done
    ):
        account, forgotten = loading.account, False

        def forget(handle, statement):
            nonlocal forgotten
            if not forgotten:
                forgotten = True
                if done:
                    account.finish()
                account.statements.clear()
                account.holds = False
            return run.client.state(handle, statement).rows or []

        account.holds = True
        run = loading.run(options)
        outcome = run.load(loading.files, forget)

        loading.assert_every_row_is_there_once()
        assert outcome.result()["rows_loaded"] == 10

    def test_a_service_that_loses_every_statement_ends_the_run(self, loading):
        loading.account.holds = True

        def lost(handle, statement):
            loading.account.statements.clear()
            return run.client.state(handle, statement).rows or []

        run = loading.run()
        with pytest.raises(ApiError) as error:
            run.load(loading.files, lost)
        assert error.value.http_status == 404
        assert loading.account.calls.count("submit") == 4

    def test_another_refusal_is_raised_at_once(self, loading):
        loading.account.fault("submit", BEFORE, Answer(400, b'{"code": "1"}'))
        with pytest.raises(ApiError) as error:
            loading.load()
        assert error.value.http_status == 400
        assert loading.account.calls == ["submit"]


class TestForce:
    """FORCE loads again what others have loaded, and never what this run has loaded."""

    @pytest.fixture(autouse=True)
    def two_files(self, loading):
        loading.paths = ["a", "b"]

    def test_files_of_others_are_loaded_again(self, loading):
        loading.account.copy("a", "b", ago=HOUR)
        loading.load(FORCED)
        loading.assert_every_row_is_there_once("a1", "a2", "b1", "b2")
        assert loading.account.calls == ["submit"], "a first try does not ask history"

    def test_a_later_try_loads_nothing_again_by_history_alone(self, loading):
        loading.load(FORCED)
        loading.account.statements.clear()
        outcome = loading.load(FORCED, try_number=2)

        loading.assert_every_row_is_there_once()
        assert (outcome.result()["rows_loaded"], outcome.before) == (4, ())
        assert len(loading.account.executed) == 1

    def test_files_that_were_loaded_in_part_are_not_loaded_again(self, loading):
        options = {**FORCED, "on_error": "CONTINUE"}
        loading.account.put("a", "a1", "bad")
        loading.account.put("b", "b1", "bad")
        loading.load(options)
        loading.account.statements.clear()
        loading.load(options, try_number=2)

        assert sorted(loading.account.rows) == ["a1", "b1"]

    def test_files_that_failed_are_tried_again(self, loading):
        options = {**FORCED, "on_error": "SKIP_FILE"}
        for path in loading.paths:
            loading.account.put(path, "bad")
        loading.load(options)
        loading.account.statements.clear()
        loading.load(options, try_number=2)

        assert len(loading.account.executed) == 2

    def test_a_file_that_somebody_else_loaded_meanwhile_does_not_stand_for_the_others(self, loading):
        loading.account.fault("submit", BEFORE, CrashError())
        with pytest.raises(CrashError):
            loading.load(FORCED)
        loading.account.copy("a")
        loading.load(FORCED, try_number=2)

        loading.assert_every_row_is_there_once("a1", "a2")

    def test_with_a_size_limit_some_files_stand_for_the_statement(self, loading):
        options = {**FORCED, "size_limit": 1}
        loading.load(options)
        loading.account.statements.clear()
        outcome = loading.load(options, try_number=2)

        assert loading.account.rows == ["a1", "a2"]
        assert outcome.result()["rows_loaded"] == 2

    def test_without_force_copy_itself_skips_and_history_is_asked_for_what_it_skipped(self, loading):
        loading.load()
        loading.account.statements.clear()
        loading.load(try_number=2)

        loading.assert_every_row_is_there_once()
        assert loading.account.calls == ["submit", "RAN", "submit", "HISTORY"]


class TestStop:
    def test_the_statement_that_runs_is_cancelled_and_no_other_one_begins(self, loading):
        loading.account.holds = True
        run = loading.run()

        def killed(handle, statement):
            run.stop()
            return run.client.state(handle, statement).rows or []

        with pytest.raises(SqlError) as stopped:
            run.load(loading.files, killed)
        loading.account.finish()

        assert stopped.value.errno == CANCELLED
        assert loading.account.calls == ["submit", "cancel", "state"]
        assert loading.account.rows == []

    @pytest.mark.parametrize("try_number", [1, 2])
    def test_a_run_that_is_stopped_when_a_statement_has_ended_begins_no_other(self, loading, try_number):
        loading.account.holds = True
        run = loading.run(try_number=try_number)

        def too_late(handle, statement):
            loading.account.finish()
            loading.account.holds = True
            run.stop()
            return run.client.state(handle, statement).rows or []

        with pytest.raises(SqlError) as stopped:
            run.load(loading.files, too_late)
        loading.account.finish()

        assert stopped.value.errno == CANCELLED
        assert sorted(loading.account.rows) == ["a1", "a2", "b1", "b2"]

    def test_a_cancelled_statement_of_an_earlier_try_is_not_followed_by_another(self, loading):
        loading.account.holds = True
        loading.account.fault("submit", AFTER, CrashError())
        with pytest.raises(CrashError):
            loading.load()
        run = loading.run(try_number=2)

        def killed(handle, statement):
            run.stop()
            return run.client.state(handle, statement).rows or []

        with pytest.raises(SqlError):
            run.load(loading.files, killed)
        loading.account.finish()
        assert loading.account.rows == []
        assert len(loading.account.statements) == 1


def test_with_force_the_loads_of_somebody_else_do_not_stand_for_a_statement_that_has_not_run(
    loading,
):
    """Another statement of the same run has."""
    loading.paths = ["a"]
    loading.load(FORCED)
    loading.account.statements.clear()
    loading.account.rows.clear()
    loading.paths = ["b"]
    loading.account.copy("b")

    loading.load(FORCED, try_number=2)
    assert loading.account.rows == ["b1", "b2", "b1", "b2"]
    loading.account.statements.clear()
    loading.load(FORCED, try_number=3)
    assert loading.account.rows == ["b1", "b2", "b1", "b2"]


class TestFinish:
    """A statement of an earlier try ends before the files are listed."""

    def begun(self, loading):
        loading.account.holds = True
        run = loading.run()
        return run, run.client.submit(f"COPY INTO T FROM @{STAGE.name}", "id", query_tag="t").handle

    def test_it_is_asked_for_until_it_has_ended(self, loading, monkeypatch):
        run, handle = self.begun(loading)
        monkeypatch.setattr(
            "airflow_provider_snowpipe.bulk.statement_client.time.sleep", lambda _: loading.account.finish()
        )
        run.finish(handle)

        loading.assert_every_row_is_there_once()
        run.stop()
        assert "cancel" not in loading.account.calls

    def test_whoever_waits_elsewhere_is_given_the_handle_and_the_table(self, loading):
        run, handle = self.begun(loading)
        waited = []

        def wait(*given):
            waited.append(given)
            return []

        run.finish(handle, wait)

        assert waited == [(handle, 'COPY INTO "LOCAL"."PUBLIC"."T"')]

    def test_a_stopped_run_cancels_it_and_goes_no_further(self, loading):
        run, handle = self.begun(loading)

        def wait(*_):
            run.stop()
            return []

        with pytest.raises(SqlError, match="stopped") as stopped:
            run.finish(handle, wait)
        assert stopped.value.errno == CANCELLED
        assert "cancel" in loading.account.calls


@pytest.mark.parametrize(
    ("location", "pipe", "url", "is_own"),
    [
        ("LOCAL.PUBLIC.S/", None, None, True),
        ("LOCAL.PUBLIC.S/", "P", None, False),
        ("LOCAL.PUBLIC.OTHER/", None, None, False),
        ("s3://b/in/", None, "s3://b/in/", True),
        ("s3://b/other/", None, "s3://b/in/", False),
    ],
)
def test_with_force_only_loads_by_copy_from_the_stage_itself_stand_for_an_earlier_try(
    loading, location, pipe, url, is_own
):
    loading.paths = ["a"]
    loading.account.holds = bool(url)
    load = FileLoad("a", location, "LOADED", 2, loaded_at=dt.datetime.now(dt.UTC), pipe=pipe)
    run = dataclasses.replace(
        loading.run(FORCED, try_number=2), url=url, history=lambda _: [load], may_have_run=lambda *_: True
    )
    run.load(loading.files, finished(loading))

    assert loading.account.statements == {} if is_own else len(loading.account.statements) == 1


class TestIdentity:
    WORK = RunIdentity(("d", "r", "t", "-1"), dt.datetime(2026, 1, 1, tzinfo=dt.UTC), 3)

    def test_every_try_derives_the_ids_of_those_before_it_and_other_work_has_others(self):
        first = dataclasses.replace(self.WORK, try_number=1).request_ids("COPY", ["m"])
        third = self.WORK.request_ids("COPY", ["m"])

        assert third[:1] == first
        assert len(set(third)) == 3
        other = dataclasses.replace(self.WORK, names=("d", "r2", "t", "-1"))
        for ids in (
            self.WORK.request_ids("COPY 2", ["m"]),
            self.WORK.request_ids("COPY", ["n"]),
            other.request_ids("COPY", ["m"]),
        ):
            assert set(ids).isdisjoint(third)

    def test_a_file_that_was_staged_anew_is_other_work(self, loading):
        loading.paths = ["a"]
        loading.load()
        loading.account.put("a", "a3")
        loading.load()
        assert loading.account.rows == ["a1", "a2", "a3"]


def finished(loading):
    """Waits for a statement, which ends thereby."""

    def wait(handle, statement):
        loading.account.finish()
        return loading.run().client.state(handle, statement).rows or []

    return wait


def test_refusal_names_the_object_and_the_grant_that_opens_it(monkeypatch):
    body = {"code": "003001", "message": "Insufficient privileges to operate on table 'T'"}
    monkeypatch.setattr(Transports, "send", lambda *_, **__: Answer(422, json.dumps(body).encode(), None))
    client = StatementClient("https://account.invalid", ProgrammaticAccessToken("t"))

    with pytest.raises(SqlError, match="GRANT INSERT, SELECT ON TABLE T") as failed:
        client.submit("COPY INTO T FROM @S", "id")
    assert (failed.value.errno, failed.value.retryable) == (3001, False)

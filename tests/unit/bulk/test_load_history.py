"""Asking load history and the histories of the account: what is asked, how far back, what answers mean."""

import datetime as dt
import json
import logging
from dataclasses import replace

import pytest

from airflow_provider_snowpipe.bulk import load_history
from airflow_provider_snowpipe.bulk.copy import LogEntry, RunIdentity
from airflow_provider_snowpipe.bulk.file_pipe import FilePipeClient, PipeHistory, PipeReport
from airflow_provider_snowpipe.bulk.ledger import Ledger, table_state
from airflow_provider_snowpipe.bulk.ledger_entry import Entry
from airflow_provider_snowpipe.bulk.staged_files import FileLoad, StagedFile
from airflow_provider_snowpipe.streaming import errors
from airflow_provider_snowpipe.streaming.auth import KeyPair
from airflow_provider_snowpipe.streaming.limits import RetryPolicy
from airflow_provider_snowpipe.streaming.names import PipeName
from tests.fake_account import FakeLedger
from tests.scripted_service import Reply, error

NOW = dt.datetime(2026, 3, 15, 12, tzinfo=dt.UTC)
TABLE = ("DB", "S", 'T"x')


def ago(**parts):
    return NOW - dt.timedelta(**parts)


def question(*names, since=None):
    return load_history.HistoryQuestion(frozenset(names) if names else None, since or ago(days=1))


class Sql:
    def __init__(self, *rows, error=None):
        self.rows, self.error, self.asked = list(rows), error, []

    def __call__(self, statement, values):
        self.asked.append((statement, list(values)))
        if self.error is not None:
            raise self.error
        return self.rows


class TestCopyHistory:
    def test_names_are_quoted_and_values_bound(self):
        statement, values = load_history.copy_history(TABLE, ago(hours=1), ("DB", "S", "P"), ["it's.csv"])
        assert 'TABLE("DB".INFORMATION_SCHEMA.COPY_HISTORY(' in statement
        assert statement.count("%s") == len(values) == 4
        assert values == ['"DB"."S"."T""x"', "2026-03-15T11:00:00.000+00:00", '"DB"."S"."P"', "it's.csv"]

    def test_a_later_poll_asks_for_what_came_since_and_a_later_wait_for_everything(self):
        sql = Sql()
        history = load_history.CopyHistory(sql, TABLE)
        first, second, again = question("a"), question("b", since=ago(days=40)), question("a")

        history.loads([first], NOW)
        history.loads([first], NOW + dt.timedelta(hours=1))
        history.loads([first, again], NOW + dt.timedelta(hours=2))
        history.loads([first, second], NOW + dt.timedelta(hours=2))

        starts = [dt.datetime.fromisoformat(values[1]) for _, values in sql.asked]
        assert starts[:3] == [ago(days=1), ago(minutes=10), ago(days=1)]
        assert dt.timedelta(days=13) < NOW + dt.timedelta(hours=2) - starts[3] < dt.timedelta(days=14)
        assert sql.asked[3][1][2:] == ["a", "b"]

    def test_files_are_searched_under_every_end_of_their_path_unless_they_are_too_many_or_unknown(self):
        for names, searched in {
            ("x/y/a.csv",): ["a.csv", "x/y/a.csv", "y/a.csv"], (): None, tuple(map(str, range(5001))): None
        }.items():  # fmt: skip
            sql = Sql()
            load_history.CopyHistory(sql, TABLE).loads([question(*names)], NOW)
            ((statement, values),) = sql.asked
            assert (" WHERE " in statement, values[2:]) == (searched is not None, searched or [])


class Pipe:
    def __init__(self, *reports):
        self.reports, self.marks, self.scans = list(reports), [], []

    def insert_report(self, begin_mark=None):
        self.marks.append(begin_mark)
        return self.reports.pop(0) if self.reports else PipeReport([], True, "m")

    def history(self, since, until):
        self.scans.append(since)
        return [FileLoad("old", "S", "LOADED")]


class TestPipeHistory:
    def test_history_is_scanned_once_and_then_the_report_goes_on(self):
        pipe = Pipe(PipeReport([FileLoad("new", "S", "LOADED")], True, "m1"), PipeReport([], True, "m2"))
        history = PipeHistory(pipe)
        asked = question("a")

        first = history.loads([asked], NOW)
        for seconds in (15, 30):
            assert history.loads([asked], NOW + dt.timedelta(seconds=seconds)) == []

        assert [load.path for load in first] == ["old", "new"]
        PipeHistory(pipe).loads([question("a", since=ago(days=60))], NOW)
        assert dt.timedelta(days=13) < NOW - pipe.scans.pop() < dt.timedelta(days=14)
        assert pipe.marks.pop() is None
        assert (pipe.marks, len(pipe.scans)) == ([None, "m1", "m2"], 1)
        assert pipe.scans[0] <= ago(days=1)

    def test_a_new_question_gets_the_whole_report_again(self):
        for second, scans in ((question("b", since=ago(minutes=2)), 1), (question("a"), 2)):
            pipe, first = Pipe(), question("a")
            history = PipeHistory(pipe)
            history.loads([first], NOW)
            history.loads([first, second], NOW + dt.timedelta(seconds=15))
            assert (pipe.marks, len(pipe.scans)) == ([None, None], scans)

    def test_what_was_missed_between_two_polls_is_scanned(self):
        asked = question("a", since=ago(minutes=1))
        for complete, minutes in ((False, 1), (True, 9)):  # the report was full, or has forgotten
            pipe = Pipe(PipeReport([], True, "m1"), PipeReport([], complete, "m2"))
            history = PipeHistory(pipe)
            history.loads([asked], NOW)
            history.loads([asked], NOW + dt.timedelta(minutes=minutes))
            assert pipe.scans == [ago(minutes=10)]


class Source:
    def __init__(self, outcome):
        self.outcome, self.closed, self.asked = outcome, False, []

    def loads(self, questions, now):
        self.asked.append((questions, now))
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def close(self):
        self.closed = True


class TestReportThenSql:
    def test_sql_answers_where_the_report_does_not(self):
        answer, asked = [FileLoad("a", "S", "LOADED")], [question("a")]
        missing = errors.PipeNotFoundError("x", http_status=404)
        for refusal in (errors.RetriesExhaustedError("429"), errors.AuthenticationError("no key"), missing):
            report, sql = Source(refusal), Source(answer)
            both = load_history.ReportThenSql(report, sql)
            assert both.loads(asked, NOW) == answer
            assert report.asked == sql.asked == [(asked, NOW)]
            both.close()
            assert (report.closed, sql.closed) == (True, True)

    def test_an_error_of_both_is_that_of_sql(self):
        asked = [question("a")]
        refusal, missing = errors.ApiError("x", http_status=400), errors.SqlError("no table")
        both = load_history.ReportThenSql(Source(refusal), Source(missing))
        polled = load_history.poll_loads(both, asked)
        assert isinstance(polled.error, errors.SqlError)
        assert isinstance(polled.error.__context__, errors.ApiError)
        wrong = load_history.ReportThenSql(Source(errors.ConfigurationError("no bundle")), Source([]))
        assert isinstance(load_history.poll_loads(wrong, asked).error, errors.ConfigurationError)


class TestClient:
    @pytest.fixture
    def client(self, service, pem):
        def client(pipe="P"):
            name, retry = PipeName("DB", "S", pipe), RetryPolicy(budget_seconds=2, initial_seconds=0.01)
            key = KeyPair("acc", "user", pem)
            return FilePipeClient(service.url, key, name, ca_bundle=service.ca_bundle, retry=retry)

        return client

    def test_a_report_is_read(self, service, client):
        entry = {"path": "a.csv", "stageLocation": "s3://b/", "rowsInserted": 1, "status": "LOADED"}
        unfinished = {"path": "b.csv", "status": "LOADED", "complete": False}
        body = {"files": [entry, unfinished], "completeResult": False, "nextBeginMark": "1_2"}
        # An overload is waited out.
        service.on("insertReport", error(429, "TOO_MANY"), Reply(body=json.dumps(body)))

        report = client("my pipe").insert_report("1_1")

        loads = [FileLoad("a.csv", "s3://b/", "LOADED", 1), FileLoad("b.csv", "", "LOAD_IN_PROGRESS")]
        assert report == PipeReport(loads, False, "1_2")
        _, request = service.requests("insertReport")
        assert request.path == "/v1/data/pipes/%22DB%22.%22S%22.%22my%20pipe%22/insertReport"
        assert request.query["beginMark"] == "1_1"
        assert request.headers["X-Snowflake-Authorization-Token-Type"] == "KEYPAIR_JWT"

    def test_history_is_read_page_by_page_until_one_does_not_move_on(self, service, client):
        def page(name, complete, end):
            body = {"files": [{"path": name, "status": "LOADED"}], "completeResult": complete}
            return Reply(body=json.dumps({**body, "rangeEndTime": end}))

        for last in (page("c", True, "T3"), page("c", False, "T2")):
            service.on("loadHistoryScan", page("a", False, "T1"), page("b", False, "T2"), last)
            found = client().history(ago(days=1), NOW)
            assert [load.path for load in found] == ["a", "b", "c"]
            asked = service.requests("loadHistoryScan")[-3:]
            starts = [request.query["startTimeInclusive"] for request in asked]
            assert starts == ["2026-03-14T12:00:00.000+00:00", "T1", "T2"]

    def test_refusals_name_the_remedy(self, service, client):
        for reply, kind, text in [
            (error(404, "390404"), errors.PipeNotFoundError, "pipe DB.S.P.*MONITOR or OPERATE"),
            (error(401, "390144"), errors.AuthenticationError, "credentials"),
            (Reply(body="<html>"), errors.ApiError, "list"),
        ]:
            service.on("insertReport", reply)
            with pytest.raises(kind, match=text):
                client().insert_report()


class TestOlderCopies:
    @pytest.fixture
    def older(self):
        """Ask for older loads into a table of some age; the statement about the view and its values."""

        def older(paths, days=100, error=None, **options):
            asked = []

            def run(statement, values):
                if "INFORMATION_SCHEMA" in statement:
                    return [{"created": days and ago(days=days), "found": 1, "account_now": NOW}]
                asked.append((statement, list(values)))
                if error is not None:
                    raise error
                load = {"file_name": "a.csv", "last_load_time": ago(days=30), "status": "Loaded"}
                return [{**load, "row_count": 7, "pipe_name": None}]

            return load_history.older_copies(run, TABLE, paths, **options), asked

        return older

    def test_names_are_quoted_and_values_bound(self):
        asked = []
        row = {"created": None, "found": None, "account_now": NOW}
        table_state(lambda *given: asked.extend(given) or [row], ("my db", "S", 'T"x'))
        statement, values = asked
        assert 'FROM "my db".INFORMATION_SCHEMA.TABLES WHERE TABLE_SCHEMA = %s' in statement
        assert values == ["S", 'T"x']
        statement, values = load_history.account_copies(TABLE, ago(days=64), NOW, {"b.csv", "a'.csv"})
        assert "AND PIPE_NAME IS NULL" in statement
        assert "FILE_NAME IN (%s, %s)" in statement
        assert statement.count("%s") == len(values)
        assert [*values[:3], *values[5:]] == [*TABLE, "a'.csv", "b.csv"]

    def test_the_query_covers_copys_memory_up_to_the_information_schema(self, older):
        (load,), ((_, values),) = older(["in/a.csv"])
        end = "2026-03-01T13:05:00.000+00:00"
        assert values[3:] == ["2026-01-10T12:00:00.000+00:00", end, "a.csv", "in/a.csv"]
        assert (load.path, load.pipe, load.rows_loaded) == ("a.csv", None, 7)
        for days, options, start in [
            (None, {}, "2026-01-10T12:00:00.000+00:00"),
            (20, {}, "2026-02-23T12:00:00.000+00:00"),  # an earlier table of the same name had others
            (None, {"by_pipes": True}, "2025-03-15T12:00:00.000+00:00"),
        ]:
            _, ((statement, values),) = older(["a.csv"], days, **options)
            assert (values[3], "PIPE_NAME IS NULL" in statement) == (start, not options)

    def test_nothing_is_asked_where_nothing_can_be_found_and_no_names_where_they_are_too_many(self, older):
        assert older(["a.csv"], 13.9) == older([]) == ([], [])
        _, ((statement, values),) = older([f"{number}.csv" for number in range(5_001)])
        assert ("FILE_NAME IN" in statement, len(values)) == (False, 5)

    def test_a_missing_privilege_is_reported_with_what_is_unknown_and_the_grant(self, older, caplog):
        for errno in (2003, 3001):
            caplog.clear()
            with caplog.at_level(logging.WARNING):
                refusal = errors.SqlError("not authorized", errno=errno)
                assert older(["a.csv", "b.csv"], error=refusal)[0] == []
            (message,) = caplog.messages
            assert "these 2 files" in message
            assert "between 2026-01-10 12:00 UTC and 2026-03-01 13:05 UTC is not known" in message
            assert "GRANT DATABASE ROLE SNOWFLAKE.USAGE_VIEWER" in message
        with pytest.raises(errors.SqlError, match="warehouse"):
            older(["a.csv"], error=errors.SqlError("no active warehouse", errno=606))


class TestUsage:
    def test_seconds_are_summed_by_size_of_the_warehouse_as_far_back_as_history_knows(self):
        times = [("X-Small", 1500), ("X-Small", 500), ("2X-Large", 30_000)]
        sql = Sql(*({"warehouse_size": size, "execution_time": time} for size, time in times))
        found = load_history.warehouse_seconds(sql, 'A"B', "tag", ago(hours=1), NOW)
        load_history.warehouse_seconds(sql, "D", "tag", ago(days=30), NOW)
        assert found == {"X-SMALL": 2.0, "2X-LARGE": 30.0}
        (statement, values), (_, further) = sql.asked
        assert 'TABLE("A""B".INFORMATION_SCHEMA.QUERY_HISTORY(' in statement
        assert values == ["2026-03-15T11:00:00.000+00:00", "tag"]
        assert further[0] == "2026-03-08T12:00:00.000+00:00"

    def test_attributed_credits_come_by_query_tag(self):
        sql = Sql({"query_tag": "a", "credits": 0.25}, {"query_tag": "b", "credits": None})
        assert load_history.attributed_credits(sql, set(), NOW) == {}
        assert sql.asked == []
        assert load_history.attributed_credits(sql, {"b", "a"}, NOW) == {"a": 0.25}
        ((statement, values),) = sql.asked
        assert "AND QUERY_TAG IN (%s, %s) GROUP BY QUERY_TAG" in statement
        assert values == ["2026-03-15T12:00:00.000+00:00", "a", "b"]

    def test_what_no_history_shows_is_not_known(self, caplog):
        caplog.set_level("INFO")
        closed = Sql(error=errors.SqlError("not authorized", errno=2003))
        assert load_history.warehouse_seconds(Sql(), "D", "tag", NOW, NOW) is None
        assert load_history.warehouse_seconds(closed, "D", "tag", NOW, NOW) is None
        assert load_history.attributed_credits(closed, {"a"}, NOW) == {}
        assert "how long COPY" in caplog.text
        assert "credits" in caplog.text


def test_the_ledger_keeps_the_whole_entry_that_is_planned():
    account, names = FakeLedger(), ("dag", "run", "task", "1")
    given = {"choice": "c", "statement": "COPY", "loader": "PIPE", "details": "d", "target_rows": 5}
    files = (StagedFile("a", "m", 4, ago(days=1)),)
    planned = Entry("w", 2, 3, files=files, created=ago(days=2), **given)
    ledger = Ledger.of(account.plan, "D.S.L", TABLE)
    assert ledger.plan(planned, RunIdentity(names, ago(hours=1), entry=LogEntry("s3://b", "log", 6)), "@S")
    (row,) = account.rows
    kept = [row[one] for one in ("target", "source", "source_log", "source_entry", "stage")]
    assert kept == ['"DB"."S"."T""x"', "s3://b", "log", 6, "@S"]
    later = {"rows_loaded": 7, "rows_rejected": 8, "loaded_at": NOW, "query_id": "q", "error": "e"}
    expected = replace(planned, run_started=ago(hours=1), names=names, planned_at=row["planned_at"], **later)
    assert Entry.read(row | later | {"reports": "[[]]"}) == replace(expected, reports=([],))

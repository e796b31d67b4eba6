"""Asking load history: what is asked, how far back, and what the answers mean."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_snowpipe.bulk.file_pipe import FilePipeClient, PipeHistory, PipeReport
from airflow_provider_snowpipe.bulk.load_history import (
    CopyHistory,
    HistoryQuestion,
    ReportThenSql,
    copy_history,
    poll_loads,
)
from airflow_provider_snowpipe.bulk.staged_files import FileLoad, FirstError
from airflow_provider_snowpipe.streaming.auth import KeyPair
from airflow_provider_snowpipe.streaming.errors import (
    ApiError,
    AuthenticationError,
    ConfigurationError,
    PipeNotFoundError,
    RetriesExhaustedError,
    SqlError,
)
from airflow_provider_snowpipe.streaming.limits import RetryPolicy
from airflow_provider_snowpipe.streaming.names import PipeName
from tests.airflow_connections import pem, private_key
from tests.scripted_service import Reply, ScriptedService, error

__all__ = ["pem", "private_key"]

NOW = dt.datetime(2026, 3, 15, 12, tzinfo=dt.UTC)
TABLE = ("DB", "S", 'T"x')


def ago(**parts: float) -> dt.datetime:
    return NOW - dt.timedelta(**parts)


def question(*names: str, since: dt.datetime | None = None) -> HistoryQuestion:
    return HistoryQuestion(frozenset(names) if names else None, since or ago(days=1))


class Sql:
    """Remembers what was asked; answers with one row."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[str]]] = []

    def __call__(self, statement: str, values: Sequence[str]) -> list[dict[str, Any]]:
        self.asked.append((statement, list(values)))
        return [
            {
                "file_name": "a.csv",
                "stage_location": "DB.S.STAGE/in",
                "last_load_time": dt.datetime(2026, 3, 15, 11),
                "row_count": 1,
                "row_parsed": 2,
                "error_count": 1,
                "status": "Partially loaded",
                "first_error_message": "bad",
                "first_error_line_number": 2,
                "first_error_character_pos": 3,
                "first_error_column_name": "C",
            }
        ]


class TestCopyHistory:
    def test_a_row_is_read(self) -> None:
        (load,) = CopyHistory(Sql(), TABLE).loads([question("a.csv")], NOW)

        assert load == FileLoad(
            "a.csv", "DB.S.STAGE/in", "PARTIALLY_LOADED", 1, 2, 1, FirstError("bad", 2, 3, "C"), ago(hours=1)
        )

    def test_names_are_quoted_and_values_bound(self) -> None:
        statement, values = copy_history(TABLE, ago(hours=1), ("DB", "S", "P"), ["it's.csv"])

        assert 'TABLE("DB".INFORMATION_SCHEMA.COPY_HISTORY(' in statement
        assert statement.count("%s") == len(values) == 4
        assert values == ['"DB"."S"."T""x"', "2026-03-15T11:00:00.000+00:00", '"DB"."S"."P"', "it's.csv"]

    def test_a_later_poll_asks_for_what_came_since(self) -> None:
        sql = Sql()
        history = CopyHistory(sql, TABLE)
        first, second = question("a"), question("b", since=ago(days=40))

        history.loads([first], NOW)
        history.loads([first], NOW + dt.timedelta(hours=1))
        history.loads([first, second], NOW + dt.timedelta(hours=2))

        starts = [dt.datetime.fromisoformat(values[1]) for _, values in sql.asked]
        assert starts[:2] == [ago(days=1), ago(minutes=10)]
        assert dt.timedelta(days=13) < NOW + dt.timedelta(hours=2) - starts[2] < dt.timedelta(days=14)
        assert sql.asked[2][1][2:] == ["a", "b"]

    def test_a_later_wait_for_the_same_files_gets_everything(self) -> None:
        sql = Sql()
        history = CopyHistory(sql, TABLE)
        first, second = question("a"), question("a")

        history.loads([first], NOW)
        history.loads([first, second], NOW + dt.timedelta(hours=1))

        assert dt.datetime.fromisoformat(sql.asked[1][1][1]) == ago(days=1)

    def test_files_are_searched_under_every_end_of_their_path(self) -> None:
        sql = Sql()

        CopyHistory(sql, TABLE).loads([question("x/y/a.csv")], NOW)

        assert sql.asked[0][1][2:] == ["a.csv", "x/y/a.csv", "y/a.csv"]

    @pytest.mark.parametrize("names", [(), tuple(f"{n}" for n in range(5001))], ids=["prefix", "too-many"])
    def test_without_names_every_file_is_asked_for(self, names: tuple[str, ...]) -> None:
        sql = Sql()

        CopyHistory(sql, TABLE).loads([question(*names)], NOW)

        assert " WHERE " not in sql.asked[0][0]


class Pipe:
    """A pipe that reports as prescribed, and remembers what it was asked."""

    def __init__(self, *reports: PipeReport) -> None:
        self.reports = list(reports)
        self.marks: list[str | None] = []
        self.scans: list[dt.datetime] = []

    def insert_report(self, begin_mark: str | None = None) -> PipeReport:
        self.marks.append(begin_mark)
        return self.reports.pop(0) if self.reports else PipeReport([], True, "m")

    def history(self, since: dt.datetime, until: dt.datetime) -> list[FileLoad]:
        self.scans.append(since)
        return [FileLoad("old", "S", "LOADED")]

    def close(self) -> None:
        pass


class TestPipeHistory:
    def test_history_is_scanned_once_and_then_the_report_goes_on(self) -> None:
        pipe = Pipe(PipeReport([FileLoad("new", "S", "LOADED")], True, "m1"), PipeReport([], True, "m2"))
        history = PipeHistory(pipe)
        asked = question("a")

        first = history.loads([asked], NOW)
        for seconds in (15, 30):
            assert history.loads([asked], NOW + dt.timedelta(seconds=seconds)) == []

        assert [load.path for load in first] == ["old", "new"]
        assert pipe.marks == [None, "m1", "m2"]
        assert len(pipe.scans) == 1
        assert pipe.scans[0] <= ago(days=1)

    def test_recent_loads_need_no_scan(self) -> None:
        pipe = Pipe()

        PipeHistory(pipe).loads([question("a", since=ago(minutes=5))], NOW)

        assert pipe.scans == []

    def test_a_new_question_gets_the_whole_report_again(self) -> None:
        pipe = Pipe()
        history = PipeHistory(pipe)

        first, second = question("a"), question("b", since=ago(minutes=2))
        history.loads([first], NOW)
        history.loads([first, second], NOW + dt.timedelta(seconds=15))

        assert pipe.marks == [None, None]
        assert len(pipe.scans) == 1

    def test_a_later_wait_for_the_same_files_gets_everything(self) -> None:
        pipe = Pipe()
        history = PipeHistory(pipe)
        first, second = question("a"), question("a")

        history.loads([first], NOW)
        history.loads([first, second], NOW + dt.timedelta(seconds=15))

        assert pipe.marks == [None, None]
        assert len(pipe.scans) == 2

    @pytest.mark.parametrize(
        ("complete", "minutes"), [(False, 1), (True, 9)], ids=["report-was-full", "report-forgot"]
    )
    def test_what_was_missed_between_two_polls_is_scanned(self, complete: bool, minutes: int) -> None:
        pipe = Pipe(PipeReport([], True, "m1"), PipeReport([], complete, "m2"))
        history = PipeHistory(pipe)

        asked = question("a", since=ago(minutes=1))

        history.loads([asked], NOW)
        history.loads([asked], NOW + dt.timedelta(minutes=minutes))

        assert pipe.scans == [ago(minutes=10)]

    def test_no_scan_goes_back_further_than_history_does(self) -> None:
        pipe = Pipe()

        PipeHistory(pipe).loads([question("a", since=ago(days=60))], NOW)

        assert dt.timedelta(days=13) < NOW - pipe.scans[0] < dt.timedelta(days=14)


class Source:
    def __init__(self, outcome: list[FileLoad] | Exception) -> None:
        self.outcome, self.closed = outcome, False
        self.asked: list[tuple[Sequence[HistoryQuestion], dt.datetime]] = []

    def loads(self, questions: Sequence[HistoryQuestion], now: dt.datetime) -> list[FileLoad]:
        self.asked.append((questions, now))
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def close(self) -> None:
        self.closed = True


class TestFallBack:
    @pytest.mark.parametrize(
        "refusal",
        [
            RetriesExhaustedError("429"),
            AuthenticationError("no key"),
            PipeNotFoundError("x", http_status=404),
        ],
        ids=["overloaded", "credentials", "privilege"],
    )
    def test_sql_answers_where_the_report_does_not(self, refusal: Exception) -> None:
        answer = [FileLoad("a", "S", "LOADED")]

        report, sql, asked = Source(refusal), Source(answer), [question("a")]
        assert ReportThenSql(report, sql).loads(asked, NOW) == answer
        assert report.asked == sql.asked == [(asked, NOW)]

    def test_one_poll_asks_for_now(self) -> None:
        source, asked = Source([]), [question("a")]

        assert poll_loads(source, asked).loads == []
        ((passed, now),) = source.asked
        assert (passed, now.tzinfo) == (asked, dt.UTC)

    def test_an_error_of_both_is_that_of_sql(self) -> None:
        both = ReportThenSql(Source(ApiError("x", http_status=400)), Source(SqlError("no table")))

        polled = poll_loads(both, [question("a")])

        assert isinstance(polled.error, SqlError)
        assert isinstance(polled.error.__context__, ApiError)

    def test_a_wrong_setting_is_no_reason_to_ask_elsewhere(self) -> None:
        both = ReportThenSql(Source(ConfigurationError("no bundle")), Source([]))

        assert isinstance(poll_loads(both, [question("a")]).error, ConfigurationError)

    def test_closing_closes_both(self) -> None:
        sources = Source([]), Source([])

        ReportThenSql(*sources).close()

        assert [source.closed for source in sources] == [True, True]


class TestClient:
    @pytest.fixture
    def service(self, tmp_path: Path) -> Iterator[ScriptedService]:
        with ScriptedService(tmp_path) as running:
            yield running

    def client(self, service: ScriptedService, pem: str, pipe: str = "P") -> FilePipeClient:
        return FilePipeClient(
            service.url,
            KeyPair("acc", "user", pem),
            PipeName("DB", "S", pipe),
            ca_bundle=service.ca_bundle,
            retry=RetryPolicy(budget_seconds=2, initial_seconds=0.01),
        )

    def test_a_report_is_read(self, service: ScriptedService, pem: str) -> None:
        entry = {
            "path": "a.csv",
            "stageLocation": "s3://b/",
            "rowsInserted": 1,
            "rowsParsed": 2,
            "errorsSeen": 1,
            "firstError": "bad",
            "firstErrorLineNum": 2,
            "lastInsertTime": "2026-03-15T11:00:00Z",
            "complete": True,
            "status": "PARTIALLY_LOADED",
        }
        unfinished = {"path": "b.csv", "status": "LOADED", "complete": False}
        body = {"files": [entry, unfinished], "completeResult": False, "nextBeginMark": "1_2"}
        service.on("insertReport", Reply(body=json.dumps(body)))

        report = self.client(service, pem).insert_report("1_1")

        assert report == PipeReport(
            [
                FileLoad("a.csv", "s3://b/", "PARTIALLY_LOADED", 1, 2, 1, FirstError("bad", 2), ago(hours=1)),
                FileLoad("b.csv", "", "LOAD_IN_PROGRESS"),
            ],
            False,
            "1_2",
        )
        (request,) = service.requests("insertReport")
        assert request.path == "/v1/data/pipes/DB.S.P/insertReport"
        assert request.query["beginMark"] == "1_1"
        assert request.headers["X-Snowflake-Authorization-Token-Type"] == "KEYPAIR_JWT"

    def test_history_is_read_page_by_page(self, service: ScriptedService, pem: str) -> None:
        def page(name: str, complete: bool, end: str) -> Reply:
            body = {"files": [{"path": name, "status": "LOADED"}], "completeResult": complete}
            return Reply(body=json.dumps({**body, "rangeEndTime": end}))

        service.on("loadHistoryScan", page("a", False, "T1"), page("b", False, "T2"), page("c", True, "T3"))

        found = self.client(service, pem).history(ago(days=1), NOW)

        assert [load.path for load in found] == ["a", "b", "c"]
        starts = [request.query["startTimeInclusive"] for request in service.requests("loadHistoryScan")]
        assert starts == ["2026-03-14T12:00:00.000+00:00", "T1", "T2"]

    def test_a_page_that_does_not_move_on_ends_the_scan(self, service: ScriptedService, pem: str) -> None:
        body = {"files": [], "completeResult": False, "rangeEndTime": "T1"}
        service.on("loadHistoryScan", Reply(body=json.dumps(body)))

        assert self.client(service, pem).history(ago(days=1), NOW) == []
        assert len(service.requests("loadHistoryScan")) == 2

    def test_names_in_other_letters_are_quoted(self, service: ScriptedService, pem: str) -> None:
        service.on("insertReport", Reply(body='{"files": []}'))

        self.client(service, pem, "my pipe").insert_report()

        assert service.received[0].path == "/v1/data/pipes/%22DB%22.%22S%22.%22my%20pipe%22/insertReport"

    def test_an_overload_is_waited_out(self, service: ScriptedService, pem: str) -> None:
        service.on("insertReport", error(429, "TOO_MANY"), Reply(body='{"files": []}'))

        assert self.client(service, pem).insert_report().loads == []

    @pytest.mark.parametrize(
        ("reply", "kind", "text"),
        [
            (error(404, "390404"), PipeNotFoundError, "pipe DB.S.P.*MONITOR or OPERATE"),
            (error(401, "390144"), AuthenticationError, "refuses the credentials"),
            (error(400, "390400"), ApiError, "HTTP 400"),
            (Reply(body="<html>"), ApiError, "no list of files"),
        ],
        ids=["404", "401", "400", "html"],
    )
    def test_refusals_name_the_remedy(
        self, service: ScriptedService, pem: str, reply: Reply, kind: type[Exception], text: str
    ) -> None:
        service.on("insertReport", reply)

        with pytest.raises(kind, match=text):
            self.client(service, pem).insert_report()

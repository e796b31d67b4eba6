"""What COPY has cost, and whether it runs or has run, as the account's histories report."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from airflow_provider_snowpipe.bulk.load_history import (
    attributed_credits,
    may_have_run,
    running_statements,
    warehouse_seconds,
)
from airflow_provider_snowpipe.streaming.errors import SqlError

NOW = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)


class Account:
    """Answers every statement with some rows, or refuses it."""

    def __init__(self, *rows: Mapping[str, Any], error: SqlError | None = None) -> None:
        self.rows, self.error = rows, error
        self.asked: list[tuple[str, Sequence[str]]] = []

    def run(self, statement: str, values: Sequence[str]) -> Sequence[Mapping[str, Any]]:
        self.asked.append((statement, values))
        if self.error is not None:
            raise self.error
        return self.rows


def test_seconds_are_summed_by_size_of_the_warehouse() -> None:
    account = Account(
        {"warehouse_size": "X-Small", "execution_time": 1500},
        {"warehouse_size": "X-Small", "execution_time": 500},
        {"warehouse_size": "2X-Large", "execution_time": 30_000},
    )

    assert warehouse_seconds(account.run, 'A"B', "tag", NOW - dt.timedelta(hours=1), NOW) == {
        "X-SMALL": 2.0,
        "2X-LARGE": 30.0,
    }
    ((statement, values),) = account.asked
    assert statement == (
        'SELECT WAREHOUSE_SIZE, EXECUTION_TIME FROM TABLE("A""B".INFORMATION_SCHEMA.QUERY_HISTORY('
        "END_TIME_RANGE_START => %s::TIMESTAMP_LTZ, RESULT_LIMIT => 10000)) "
        "WHERE QUERY_TAG = %s AND QUERY_TYPE = 'COPY' AND WAREHOUSE_SIZE IS NOT NULL"
    )
    assert values == ["2026-01-31T11:00:00.000+00:00", "tag"]


def test_history_is_not_asked_for_more_than_it_knows() -> None:
    account = Account()
    warehouse_seconds(account.run, "D", "tag", NOW - dt.timedelta(days=30), NOW)

    assert account.asked[0][1][0] == "2026-01-24T12:00:00.000+00:00"


def test_a_statement_that_history_does_not_know_costs_an_unknown_time(caplog) -> None:
    caplog.set_level("INFO")
    refused = Account(error=SqlError("Unknown table function", errno=2140))

    assert warehouse_seconds(Account().run, "D", "tag", NOW, NOW) is None
    assert warehouse_seconds(refused.run, "D", "tag", NOW, NOW) is None
    assert "how long COPY ran is not known: " in caplog.text


def test_attributed_credits_come_by_query_tag() -> None:
    account = Account({"query_tag": "a", "credits": 0.25}, {"query_tag": "b", "credits": None})

    assert attributed_credits(account.run, {"b", "a"}, NOW) == {"a": 0.25}
    ((statement, values),) = account.asked
    assert statement == (
        "SELECT QUERY_TAG, SUM(CREDITS_ATTRIBUTED_COMPUTE) AS CREDITS "
        "FROM SNOWFLAKE.ACCOUNT_USAGE.QUERY_ATTRIBUTION_HISTORY WHERE START_TIME >= %s::TIMESTAMP_LTZ "
        "AND QUERY_TAG IN (%s, %s) GROUP BY QUERY_TAG"
    )
    assert values == ["2026-01-31T12:00:00.000+00:00", "a", "b"]


def test_no_load_asks_nothing_and_an_unreadable_view_reports_nothing(caplog) -> None:
    caplog.set_level("INFO")
    account, closed = Account(), Account(error=SqlError("not authorized", errno=2003))

    assert attributed_credits(account.run, set(), NOW) == {}
    assert account.asked == []
    assert attributed_credits(closed.run, {"a"}, NOW) == {}
    assert "which credits are attributed to earlier loads is not known: " in caplog.text


def test_statements_that_run_are_found_by_their_tag() -> None:
    account = Account({"query_id": "01b"}, {"query_id": "01c"})

    assert running_statements(account.run, 'A"B', "tag") == ["01b", "01c"]
    ((statement, values),) = account.asked
    assert statement == (
        'SELECT QUERY_ID FROM TABLE("A""B".INFORMATION_SCHEMA.QUERY_HISTORY_BY_USER(RESULT_LIMIT => 10000)) '
        "WHERE QUERY_TAG = %s AND EXECUTION_STATUS IN ('RUNNING', 'QUEUED', 'BLOCKED', 'RESUMING_WAREHOUSE')"
    )
    assert values == ["tag"]


@pytest.mark.parametrize("text", [None, "COPY"])
@pytest.mark.parametrize(
    ("shown", "own", "may"), [(5, 0, False), (5, 1, True), (9_999, 0, False), (10_000, 0, True)]
)
def test_a_statement_has_run_where_history_shows_it_or_does_not_show_all(
    shown: int, own: int, may: bool, text: str | None
) -> None:
    account, now = Account({"shown": shown, "own": own}), dt.datetime.now(dt.UTC)

    assert may_have_run(account.run, "D", "tag", now, text) is may
    ((statement, values),) = account.asked
    same = "" if text is None else " AND LEFT(QUERY_TEXT, 90000) = %s"
    assert f"QUERY_TAG = %s AND EXECUTION_STATUS = 'SUCCESS'{same})" in statement
    begin = (now - dt.timedelta(minutes=10)).isoformat(timespec="milliseconds")
    assert values == ["tag", *([] if text is None else [text]), begin]


def test_a_statement_of_before_the_history_of_statements_may_have_run() -> None:
    account = Account()

    assert may_have_run(account.run, "D", "tag", dt.datetime.now(dt.UTC) - dt.timedelta(days=7))
    assert account.asked == []

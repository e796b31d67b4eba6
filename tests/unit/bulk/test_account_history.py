"""COPY's loads that only the account's view has: the statements, and when they are asked."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from airflow_provider_snowpipe.bulk.load_history import account_copies, age_of_table, older_copies
from airflow_provider_snowpipe.streaming.errors import SqlError

NOW = dt.datetime(2026, 3, 31, 12, tzinfo=dt.UTC)
TABLE = ("DB", "my schema", "T")
ROW = {
    "file_name": "a.csv",
    "last_load_time": NOW - dt.timedelta(days=30),
    "status": "Loaded",
    "row_count": 7,
}


class Account:
    """Answers the two statements, and keeps what it was asked.

    :param days: age of the table, None where it does not show
    :param error: what the view's statement ends in
    """

    def __init__(self, days: float | None = 100, error: SqlError | None = None) -> None:
        self.created = None if days is None else NOW - dt.timedelta(days=days)
        self.error = error
        self.asked: list[tuple[str, list[str]]] = []

    def run(self, statement: str, values: Sequence[str]) -> Sequence[Mapping[str, Any]]:
        if "INFORMATION_SCHEMA" in statement:
            return [{"created": self.created, "account_now": NOW}]
        self.asked.append((statement, list(values)))
        if self.error is not None:
            raise self.error
        return [{**ROW, "pipe_name": None}]


def timestamps(account: Account) -> list[str]:
    ((_, values),) = account.asked
    return values[3:5]


def test_the_age_of_a_table_is_asked_by_its_name_letter_by_letter() -> None:
    statement, values = age_of_table(("my db", "S", 'T"x'))
    assert 'FROM "my db".INFORMATION_SCHEMA.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s' in statement
    assert values == ["S", 'T"x']


def test_the_view_is_asked_for_the_expected_files_of_one_table_by_bound_values() -> None:
    statement, values = account_copies(TABLE, NOW - dt.timedelta(days=64), NOW, {"b.csv", "a'.csv"})

    assert "FROM SNOWFLAKE.ACCOUNT_USAGE.COPY_HISTORY" in statement
    assert "AND PIPE_NAME IS NULL" in statement
    assert "FILE_NAME IN (%s, %s)" in statement
    assert statement.count("%s") == len(values)
    assert values == [
        *TABLE,
        "2026-01-26T12:00:00.000+00:00",
        "2026-03-31T12:00:00.000+00:00",
        "a'.csv",
        "b.csv",
    ]


def test_the_query_covers_copys_memory_up_to_the_information_schema() -> None:
    account = Account()
    (load,) = older_copies(account.run, TABLE, ["in/a.csv"])

    assert timestamps(account) == ["2026-01-26T12:00:00.000+00:00", "2026-03-17T13:05:00.000+00:00"]
    assert account.asked[0][1][5:] == ["a.csv", "in/a.csv"]
    assert (load.path, load.pipe, load.rows_loaded) == ("a.csv", None, 7)


def test_loads_by_pipes_are_asked_for_as_far_back_as_the_view_goes() -> None:
    account = Account(days=None)
    older_copies(account.run, TABLE, ["a.csv"], by_pipes=True)

    assert timestamps(account)[0] == "2025-03-31T12:00:00.000+00:00"
    assert "PIPE_NAME IS NULL" not in account.asked[0][0]


def test_loads_into_an_earlier_table_of_the_same_name_are_not_asked_for() -> None:
    account = Account(days=20)
    older_copies(account.run, TABLE, ["a.csv"])
    assert timestamps(account)[0] == "2026-03-11T12:00:00.000+00:00"


def test_a_table_that_show_does_not_list_is_searched_by_name() -> None:
    account = Account(days=None)
    older_copies(account.run, TABLE, ["a.csv"])
    assert timestamps(account)[0] == "2026-01-26T12:00:00.000+00:00"


@pytest.mark.parametrize(("days", "paths"), [(13.9, ["a.csv"]), (100, [])], ids=["young-table", "no-files"])
def test_nothing_is_asked_where_nothing_can_be_found(days: float, paths: list[str]) -> None:
    account = Account(days, SqlError("not asked", errno=1))
    assert older_copies(account.run, TABLE, paths) == []
    assert account.asked == []


def test_more_names_than_a_statement_lists_are_all_asked_for() -> None:
    account = Account()
    older_copies(account.run, TABLE, [f"{number}.csv" for number in range(5_001)])
    assert "FILE_NAME IN" not in account.asked[0][0]
    assert len(account.asked[0][1]) == 5


@pytest.mark.parametrize("errno", [2003, 3001])
def test_a_missing_privilege_is_reported_with_what_is_unknown_and_the_grant(
    errno: int, caplog: pytest.LogCaptureFixture
) -> None:
    account = Account(error=SqlError("does not exist or not authorized", errno=errno))
    with caplog.at_level(logging.WARNING):
        assert older_copies(account.run, TABLE, ["a.csv", "b.csv"]) == []

    (message,) = caplog.messages
    assert "these 2 files" in message
    assert "between 2026-01-26 12:00 UTC and 2026-03-17 13:05 UTC is not known" in message
    assert "GRANT DATABASE ROLE SNOWFLAKE.USAGE_VIEWER" in message
    assert "GRANT IMPORTED PRIVILEGES ON DATABASE SNOWFLAKE" in message


def test_another_error_is_an_error() -> None:
    account = Account(error=SqlError("no active warehouse", errno=606))
    with pytest.raises(SqlError, match="no active warehouse"):
        older_copies(account.run, TABLE, ["a.csv"])

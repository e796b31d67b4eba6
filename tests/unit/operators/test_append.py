"""Appending rows without Spark, against a real local service."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_snowpipe.assets.uri import snowpipe_asset
from airflow_provider_snowpipe.operators.append import SnowpipeAppendRowsOperator
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, UncommittedRowsError
from tests.local_connection import committed, context, ids
from tests.local_service import LocalService
from tests.outlet_events import OutletEvents

Append = Callable[..., Any]
ROWS = [{"ID": number, "NAME": "x"} for number in range(5)]


@pytest.fixture
def append(conn_id: str, table: str) -> Append:
    """Run the operator; its value."""

    def run(**options: Any) -> Any:
        ctx = options.pop("ctx", None) or context()
        return make(conn_id, table, **options).execute(ctx)

    return run


def make(conn_id: str, table: str, **options: Any) -> SnowpipeAppendRowsOperator:
    given: dict[str, Any] = {"task_id": "t", "channel": "c", "table": table, "snowflake_conn_id": conn_id}
    return SnowpipeAppendRowsOperator(**{**given, **options})


class TestRows:
    def test_are_committed_and_reported(
        self, local_service: LocalService, append: Append, table: str
    ) -> None:
        ctx = context()

        value = append(rows=ROWS, batch=7, ctx=ctx)

        assert value == {
            "channel": "c",
            "pipe": f"LOCAL.PUBLIC.{table}-STREAMING",
            "offset_format": "batch:row",
            "batch": 7,
            "from": None,
            "to": "7:5",
            "rows": 5,
            "skipped": 0,
            "bytes": sum(len(json.dumps(row, separators=(",", ":"))) + 1 for row in ROWS),
            "rejected": 0,
            "committed": True,
        }
        assert ids(local_service, table) == [0, 1, 2, 3, 4]
        assert ctx["ti"].xcoms["targets"]["c"]["token"] == "7:5"

    def test_a_retry_appends_nothing_again(
        self, local_service: LocalService, append: Append, table: str
    ) -> None:
        append(rows=ROWS)
        again = append(rows=ROWS)

        assert (again["rows"], again["skipped"], again["to"]) == (0, 5, again["from"])
        assert ids(local_service, table) == [0, 1, 2, 3, 4]

    def test_a_retry_sends_only_what_an_earlier_try_did_not(
        self, local_service: LocalService, append: Append, table: str
    ) -> None:
        append(rows=ROWS[:2], batch=7)
        value = append(rows=ROWS, batch=7)

        assert (value["rows"], value["skipped"]) == (3, 2)
        assert ids(local_service, table) == [0, 1, 2, 3, 4]

    def test_the_next_run_is_a_batch_of_its_own(
        self, local_service: LocalService, append: Append, table: str
    ) -> None:
        append(rows=ROWS[:2])
        append(rows=ROWS[2:], ctx=context(run_after=dt.datetime(2026, 2, 1, tzinfo=dt.UTC)))

        assert ids(local_service, table) == [0, 1, 2, 3, 4]
        assert committed(local_service, table, "c") == "1769904000000000:3"

    def test_an_older_batch_is_refused_or_known_to_be_loaded(
        self, local_service: LocalService, append: Append, table: str
    ) -> None:
        append(rows=ROWS[:1], batch=8)

        with pytest.raises(AirflowFailException, match=r"SourcePositionError: channel 'c' has committed 8:1"):
            append(rows=ROWS, batch=7)
        assert append(rows=ROWS, batch=7, on_older_batch="skip")["rows"] == 0
        assert ids(local_service, table) == [0]

    def test_rows_that_vanished_between_two_tries_are_noticed(self, append: Append) -> None:
        append(rows=ROWS, batch=7)

        with pytest.raises(AirflowFailException, match="the rows changed between two tries"):
            append(rows=ROWS[:3], batch=7)

    def test_may_come_as_the_text_that_a_template_renders(
        self, local_service: LocalService, append: Append, table: str
    ) -> None:
        append(rows=json.dumps(ROWS))

        assert ids(local_service, table) == [0, 1, 2, 3, 4]

    def test_a_column_may_number_them(self, local_service: LocalService, append: Append, table: str) -> None:
        append(rows=ROWS[1:3], token_column="ID")
        value = append(rows=ROWS[2:], token_column="ID")

        assert (value["offset_format"], value["to"], value["skipped"]) == ("integer", "4", 1)
        assert ids(local_service, table) == [1, 2, 3, 4]

    def test_none_at_all_is_success(self, append: Append) -> None:
        value = append(rows=[])

        assert (value["rows"], value["to"], value["committed"]) == (0, None, True)

    def test_skipped_rows_fail_the_task_for_good_unless_they_are_wanted_reported(
        self, local_service: LocalService, append: Append, table: str
    ) -> None:
        bad = [{"ID": 1}, {"ID": "no number"}, {"ID": 3}]

        with pytest.raises(AirflowFailException, match=r"RowsRejectedError: .*rejected 1 of 3"):
            append(rows=bad, batch=1)
        assert append(rows=bad, batch=2, on_error="continue")["rejected"] == 1
        assert ids(local_service, table) == [1, 1, 3, 3]

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"rows": [1]}, "row 1 is int"),
            ({"rows": [{"ID": float("nan")}]}, "row 1 has no JSON form"),
            ({"rows": [{"ID": dt.date(2026, 1, 1)}]}, "row 1 has no JSON form"),
            ({"rows": "not json"}, "no JSON list"),
            ({"rows": 5}, "rows is int"),
            ({}, "come from nowhere"),
            ({"rows": ROWS, "file": "f"}, "rows and file"),
            ({"rows": ROWS, "batch": "x"}, "batch is 'x'"),
            ({"rows": ROWS, "max_rows": 4}, "SnowpipeStreamOperator"),
            ({"rows": ROWS, "max_bytes": 40}, "SnowpipeStreamOperator"),
            ({"rows": ROWS, "token_column": "NONE"}, "row 1: column 'NONE'"),
            ({"rows": [*ROWS, ROWS[0]], "token_column": "ID"}, "row 6: its position 0 does not come after 4"),
        ],
    )
    def test_wrong_ones_fail_for_good_and_send_nothing(
        self, local_service: LocalService, append: Append, table: str, options: dict[str, Any], text: str
    ) -> None:
        with pytest.raises(AirflowFailException, match=text):
            append(**options)
        assert ids(local_service, table) == []

    def test_received_rows_are_enough_when_the_commit_is_awaited_elsewhere(
        self, local_service: LocalService, append: Append, table: str
    ) -> None:
        with local_service.held_commits():
            value = append(rows=ROWS, batch=1, wait_for_commit=False)

            assert (value["rows"], value["to"], value["committed"]) == (5, "1:5", False)
            assert ids(local_service, table) == []

    def test_an_earlier_run_s_rows_are_waited_for_and_never_discarded(
        self, local_service: LocalService, append: Append, table: str
    ) -> None:
        with local_service.held_commits():
            append(rows=ROWS[:2], batch=1, wait_for_commit=False)
            with pytest.raises(UncommittedRowsError):
                append(rows=ROWS[2:], batch=2, commit_timeout=0.2)

        append(rows=ROWS[2:], batch=2)

        assert ids(local_service, table) == [0, 1, 2, 3, 4]


class TestFile:
    def test_lines_are_appended(
        self, local_service: LocalService, append: Append, table: str, tmp_path: Path
    ) -> None:
        file = tmp_path / "rows.ndjson"
        file.write_text('{"ID": 1}\n\n{"ID": 2}\r\n{"ID": 3}')

        value = append(file=str(file), batch=1)

        assert (value["rows"], value["to"]) == (3, "1:3")
        assert ids(local_service, table) == [1, 2, 3]

    def test_an_address_works_as_well(
        self, local_service: LocalService, append: Append, table: str, tmp_path: Path
    ) -> None:
        (tmp_path / "rows.ndjson").write_text('{"ID": 1}\n')

        append(file=f"file://{tmp_path}/rows.ndjson")

        assert ids(local_service, table) == [1]

    def test_one_that_is_not_there_or_too_large_is_refused(self, append: Append, tmp_path: Path) -> None:
        with pytest.raises(AirflowFailException, match="there is no file"):
            append(file=str(tmp_path / "none"))
        (tmp_path / "large").write_text('{"ID": 1}\n' * 100)
        with pytest.raises(AirflowFailException, match=r"large: more than .*SnowpipeStreamOperator"):
            append(file=str(tmp_path / "large"), max_bytes=500)


class TestQuery:
    @pytest.fixture(autouse=True)
    def trusted(self, local_service: LocalService, monkeypatch: pytest.MonkeyPatch) -> None:
        """Airflow's own Snowflake hook takes its roots from the environment."""
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(local_service.ca_file))

    def test_the_result_is_appended_in_its_order(
        self, local_service: LocalService, append: Append, table: str, conn_id: str
    ) -> None:
        columns = "(ID INTEGER, NAME VARCHAR, P NUMBER(10,2), AT DATE)"
        local_service.sql(f"CREATE OR REPLACE TABLE {table} {columns}")
        local_service.sql(f"CREATE TABLE S_{table} {columns}")
        local_service.sql(f"INSERT INTO S_{table} VALUES (2,'b',1.50,'2026-01-02'),(1,NULL,2,'2026-01-01')")

        value = append(
            sql=f"SELECT ID, NAME, P, AT FROM S_{table} WHERE ID < %s ORDER BY ID",
            parameters=(3,),
            sql_conn_id=conn_id,
        )

        assert value["rows"] == 2
        rows = local_service.sql(f"SELECT ID, NAME, P, AT FROM {table} ORDER BY ID")
        assert [(int(r["ID"]), r["NAME"], Decimal(str(r["P"])), str(r["AT"])) for r in rows] == [
            (1, None, Decimal("2.00"), "2026-01-01"),
            (2, "b", Decimal("1.50"), "2026-01-02"),
        ]

    def test_one_without_an_order_is_refused(self, append: Append, conn_id: str) -> None:
        with pytest.raises(AirflowFailException, match="does not say ORDER BY"):
            append(sql="SELECT 1 AS ID", sql_conn_id=conn_id)

    def test_one_that_gives_too_much_is_refused(self, append: Append, conn_id: str, table: str) -> None:
        append(rows=ROWS)

        with pytest.raises(AirflowFailException, match="the query: more than 4 rows"):
            append(sql=f"SELECT ID FROM {table} ORDER BY ID", sql_conn_id=conn_id, max_rows=4)

    def test_its_connection_must_be_named(self, append: Append) -> None:
        with pytest.raises(AirflowFailException, match="without sql_conn_id"):
            append(sql="SELECT 1 ORDER BY 1")


class TestDryRun:
    def test_says_how_many_rows_would_be_sent(
        self, local_service: LocalService, append: Append, table: str, conn_id: str
    ) -> None:
        append(rows=ROWS[:2], batch=7)

        (line,) = make(conn_id, table, rows=ROWS, batch=7).preview()

        assert line.startswith("would append 3 of 5 rows to channel 'c'")
        assert line.endswith("after the committed token 7:2")
        assert ids(local_service, table) == [0, 1]

    def test_needs_the_names_that_a_run_would_give(self, conn_id: str, table: str) -> None:
        (line,) = make(conn_id, table, rows=ROWS, channel=None).preview()

        assert "come from the DAG run" in line


class TestChannelName:
    def test_comes_from_dag_task_and_map_index(
        self, local_service: LocalService, append: Append, table: str
    ) -> None:
        assert append(rows=ROWS[:1], channel=None)["channel"] == "d_t"
        assert append(rows=ROWS[:1], channel=None, ctx=context(map_index=3))["channel"] == "d_t_3"


class TestArguments:
    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"on_error": "x"}, "on_error is 'x'"),
            ({"on_older_batch": "x"}, "on_older_batch is 'x'"),
            ({"offset_format": "integer"}, "token_column"),
            ({"token_column": "ID", "batch": 1}, "drop one"),
            ({"max_rows": 0}, "1 or more"),
        ],
    )
    def test_wrong_ones_are_refused_when_the_dag_is_read(self, options: dict[str, Any], text: str) -> None:
        with pytest.raises(ConfigurationError, match=text):
            make("none_such", "T", rows=[], **options)

    def test_rows_query_and_batch_are_templates(self) -> None:
        operator = make("c", "T", sql="SELECT {{ x }}", batch="{{ x }}", parameters=["{{ x }}"])
        operator.render_template_fields({"x": 5})

        assert (operator.sql, operator.batch, operator.parameters) == ("SELECT 5", "5", ["5"])


class TestAssetEvents:
    def test_tell_the_committed_token(self, conn_id: str, table: str, local_service: LocalService) -> None:
        asset = snowpipe_asset(account=local_service.account, database="LOCAL", schema="PUBLIC", table=table)
        events = OutletEvents(lambda: SimpleNamespace(extra={}))

        make(conn_id, table, outlets=[asset], rows=ROWS, batch=3).execute(
            {**context(), "outlet_events": events}
        )

        assert events[asset].extra == {
            "pipe": f"LOCAL.PUBLIC.{table}-STREAMING",
            "committed": True,
            "tokens": {"c": "3:5"},
            "rows": 5,
        }

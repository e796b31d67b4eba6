"""Appending rows without Spark: where rows and names come from."""

import datetime as dt
import json
from contextlib import nullcontext
from decimal import Decimal
from types import SimpleNamespace
from unittest.mock import Mock

import duckdb
import pandas as pd
import pyarrow.parquet as pq
import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, BaseHook

from airflow_provider_snowpipe.assets.uri import snowpipe_asset
from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.operators import source_record
from airflow_provider_snowpipe.operators.append import SnowpipeAppendRowsOperator
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, RecordUnavailableError, SqlError
from airflow_provider_snowpipe.streaming.table_schema import TableColumn
from tests.checkpoints import shown
from tests.fake_snowpipe import KilledError
from tests.loaded_folder import variables
from tests.local_connection import context
from tests.metrics_receiver import receiver
from tests.outlet_events import OutletEvents

__all__ = ["receiver", "variables"]

ROWS = [{"ID": number, "NAME": "x"} for number in range(5)]


@pytest.fixture
def task(make):
    return lambda **options: make(SnowpipeAppendRowsOperator, **{"channel": "c", **options})


@pytest.fixture
def append(task):
    return lambda ctx=None, **options: task(**options).execute(ctx or context())


class TestRows:
    @pytest.mark.parametrize(
        "rows", [ROWS, json.dumps(ROWS, separators=(",", ":"))], ids=["rows", "rendered"]
    )
    def test_are_committed_and_reported(self, snowpipe, append, rows):
        ctx = context()
        value = append(rows=rows, batch=7, ctx=ctx)
        expected = {"channel": "c", "pipe": "DB.S.T-STREAMING", "batch": 7, "from": None, "committed": True}
        assert value | expected == value
        assert (shown(value["to"]), value["rows"], value["bytes"]) == ("7:5", 5, 100)
        assert snowpipe.channels["c"].rows == ROWS
        target = {"token": value["to"], "offset_format": "batch:row/digest", "rows": 5, "errors": 0}
        assert ctx["ti"].xcoms["targets"]["c"] == target

    def test_a_try_sends_the_rest_and_the_next_run_a_batch_of_its_own(self, snowpipe, append):
        append(rows=ROWS[:2])
        value = append(rows=ROWS)
        append(rows=ROWS, ctx=context(run_after=dt.datetime(2026, 2, 1, tzinfo=dt.UTC)))
        assert (value["rows"], value["skipped"]) == (3, 2)
        assert snowpipe.channels["c"].rows == [*ROWS, *ROWS]
        assert snowpipe.channels["c"].position == "1769904000000000:5"

    @pytest.mark.parametrize(("rebind", "sent"), [("continue", ROWS[3:]), ("restart", ROWS)])
    def test_of_a_column_are_not_sent_again_after_a_lost_token(
        self, snowpipe, append, variables, rebind, sent
    ):
        def later(**options):
            return append(rows=ROWS, token_column="ID", **options)["rows"]

        append(rows=ROWS[:3], token_column="ID")
        del snowpipe.channels["c"]

        with pytest.raises(AirflowFailException, match=r"SourcePositionError.*'2~i1"):
            later()
        assert "c" not in snowpipe.channels
        assert later(rebind=rebind) == len(sent)
        assert snowpipe.channels["c"].rows == sent
        assert later() == 0

    def test_of_a_batch_are_not_sent_again_after_a_lost_token(self, snowpipe, append, variables):
        """Also where the channel is dropped while the next run begins; a later batch is new."""
        append(rows=ROWS, batch=7)
        kept = snowpipe.channels["c"]
        for rebind in (None, "continue"):
            snowpipe.channels["c"] = kept
            snowpipe.fault(before="open", do=snowpipe.channels.clear)
            with pytest.raises(AirflowFailException, match=r"SourcePositionError.*'7:5/"):
                append(rows=[*ROWS, *ROWS], batch=7, rebind=rebind)
        snowpipe.fault(after="append", error=KilledError())
        with pytest.raises(KilledError):
            append(rows=ROWS[:1], batch=8)
        del snowpipe.channels["c"]
        with pytest.raises(AirflowFailException, match=r"SourcePositionError.*'8:1/"):
            append(rows=ROWS[:1], batch=8, rebind="continue")
        assert append(rows=ROWS, batch=9)["rows"] == 5

    def test_are_not_sent_before_they_are_recorded(self, snowpipe, append, variables, monkeypatch):
        monkeypatch.setattr(source_record.Variable, "set", Mock(side_effect=ConnectionError("no route")))
        with pytest.raises(RecordUnavailableError, match="no route"):
            append(rows=ROWS)
        assert snowpipe.appends() == []

    @pytest.mark.parametrize("other", [{"task_id": "other"}, {"map_index": 1}])
    def test_of_another_task_are_refused_in_the_same_channel(self, snowpipe, append, other, variables):
        """They have the same batch in the same run, and would pass for rows that are loaded."""
        append(rows=ROWS[:2])
        append(rows=ROWS[:2], token_column="ID", channel="by_column")
        ctx = context()
        vars(ctx["ti"]).update(other)
        with pytest.raises(AirflowFailException, match="SourceChangedError"):
            append(ctx, rows=ROWS)
        assert snowpipe.channels["c"].rows == ROWS[:2]
        if "task_id" in other:
            with pytest.raises(AirflowFailException, match="'t'"):
                append(ctx, rows=ROWS, token_column="ID", channel="by_column")

    def test_skipped_rows_fail_the_task_for_good_unless_on_error_is_continue(self, snowpipe, task, append):
        snowpipe.rejects = lambda row: row["ID"] == 2
        failed = context()
        with pytest.raises(AirflowFailException, match="RowsRejectedError"):
            append(failed, rows=ROWS, batch=1)
        seen = failed["ti"].xcoms["observed"]["channels"]["c"]
        assert (seen["rows"], seen["rejected"], seen["committed"]) == (5, 1, True)
        asset = snowpipe_asset(account="a", database="DB", schema="S", table="T")
        events = OutletEvents(lambda: SimpleNamespace(extra={}))
        continued = task(outlets=[asset], rows=ROWS, batch=2, on_error="continue")
        assert continued.execute({**context(), "outlet_events": events})["rejected"] == 1
        assert len(snowpipe.channels["c"].rows) == 8
        extra = events[asset].extra
        assert (extra["committed"], shown(extra["tokens"]["c"]), extra["rows"]) == (True, "2:5", 4)

    def test_wrong_ones_fail_for_good_and_send_nothing(self, snowpipe, append):
        for options, word in (
            ({"rows": [{"ID": float("nan")}]}, "row 1"),
            ({"rows": [{1: "a"}, {1: "a", "1": "b"}]}, "row 2"),
            ({"rows": pd.DataFrame(ROWS)}, "to_dict"),
            ({"rows": "not json"}, "JSON"),
            ({}, "nowhere"),
            ({"rows": ROWS, "channel": 202601}, "channel"),
            ({"rows": ROWS, "max_rows": 4}, "SnowpipeStreamOperator"),
            ({"rows": ROWS, "token_column": "NONE"}, "'NONE'"),
            ({"rows": [*ROWS, ROWS[0]], "token_column": "ID"}, "position 0"),
            ({"file": "/none"}, "file"),
        ):
            with pytest.raises(AirflowFailException, match=word):
                append(**options)
        assert not snowpipe.appends()

    def test_a_query_has_an_order_of_its_own(self, append):
        for sql, word in (
            ("SELECT ROW_NUMBER() OVER (ORDER BY (A)) FROM T", "ORDER BY"),
            ("SELECT * FROM (SELECT A FROM T ORDER BY A) S", "ORDER BY"),
            ("SELECT 'order by' FROM T -- order by A", "ORDER BY"),
            ("SELECT MAX(A) FROM (SELECT * FROM T) WHERE B = '(' GROUP BY B ORDER\n BY (B)", "sql_conn_id"),
            ("WITH w AS (SELECT 1) SELECT \"it's\" FROM w order by 1 -- it's ordered", "sql_conn_id"),
            ("SELECT A FROM T WHERE B LIKE 'it''s \\' ORDER BY A", "sql_conn_id"),
        ):
            with pytest.raises(AirflowFailException, match=word):
                append(sql=sql, sql_conn_id="x" if word == "ORDER BY" else None)


@pytest.fixture
def table(monkeypatch):
    """A table that SQL makes and widens; what its columns are."""
    columns = [TableColumn("ID", "NUMBER(38,0)"), TableColumn("NAME", "VARCHAR")]

    def run_sql(_, statement):
        columns.append(TableColumn("NEW" if statement.startswith("ALTER") else "MADE", "VARCHAR"))

    for name in ("table_columns", "columns_for_keys"):
        monkeypatch.setattr(SnowpipeHook, name, lambda _: tuple(columns))
    monkeypatch.setattr(SnowpipeHook, "run_sql", run_sql)
    return columns


class TestRowsThatDoNotFit:
    BAD, STRANGE = {"ID": "no number"}, {"IDD": 9}

    @pytest.mark.parametrize("good", [[{"ID": 1}, {"ID": 3}], []], ids=["some", "all"])
    def test_are_put_aside_and_the_token_passes_them(self, snowpipe, table, append, tmp_path, receiver, good):
        rows = [*good, self.BAD, self.STRANGE]
        options = {"rows": rows, "batch": 5, "on_error": "dead_letter", "dead_letter_path": str(tmp_path)}

        value = append(**options)

        assert (value["rows"], value["dead_lettered"], value["rejected"]) == (len(good), 2, 0)
        aside = [(one["position"].partition("/")[0], one["text"]) for one in value["unloaded"]["rows"]]
        assert aside == [(f"5:{len(good) + 1}", '{"ID":"no number"}'), (f"5:{len(rows)}", '{"IDD":9}')]
        assert value["unloaded"]["path"] == str(tmp_path)
        assert shown(value["to"]) == snowpipe.channels["c"].position == f"5:{len(rows)}"
        assert snowpipe.channels["c"].rows == good
        (file,) = tmp_path.rglob("*.parquet")
        assert len(pq.read_table(file)) == receiver.sent["snowpipe.dead_lettered"][0] == 2
        assert append(**options)["skipped"] == len(rows), "nothing is read again"

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({"rows": [{"ID": 1}, BAD], "check_rows": True}, "UnfitRowsError"),
            ({"rows": [{"ID": 1}, STRANGE]}, "UnknownColumnsError"),
            ({"rows": [{"ID": 1, "IDD": 2}], "unknown_columns": "fail"}, "UnknownColumnsError"),
            ({"rows": [{"ID": 1, "IDD": 2}], "evolve_columns": False}, "ConfigurationError"),
        ],
    )
    def test_are_refused_before_one_is_sent(self, snowpipe, table, append, options, error):
        with pytest.raises(AirflowFailException, match=error):
            append(**options)
        assert snowpipe.appends() == []

    def test_keys_without_a_column_are_reported_or_ignored_or_made_columns(self, table, append):
        rows = [{"ID": number, "NEW": "x"} for number in range(3)]
        assert append(rows=rows, batch=1, unknown_columns="warn")["unknown_columns"] == {"NEW": 3}
        assert append(rows=rows, batch=2, unknown_columns="ignore")["unknown_columns"] == {}
        assert append(rows=rows, batch=3, evolve_columns=True)["unknown_columns"] == {}
        assert append(rows=[{"MADE": 1}], batch=4, create_table="if_missing")["unknown_columns"] == {}
        assert [one.name for one in table[2:]] == ["NEW", "MADE"]

    @pytest.mark.parametrize(("lost", "is_missed"), [("ID", True), ("Q", False)])
    def test_a_column_that_is_gone_at_the_end_fails_the_task(
        self, snowpipe, append, monkeypatch, lost, is_missed
    ):
        """It was renamed or dropped while rows were sent; one that no key has matched is not missed."""
        columns = [TableColumn(name, "NUMBER(38,0)") for name in ("ID", "Q")]

        def described(_):
            return tuple(one for one in columns if one.name != lost or not snowpipe.appends())

        monkeypatch.setattr(SnowpipeHook, "columns_for_keys", described)
        with pytest.raises(AirflowFailException, match="'ID'") if is_missed else nullcontext():
            append(rows=[{"id": 1}, {"id": 2}], unknown_columns="warn")
        assert snowpipe.channels["c"].rows == [{"id": 1}, {"id": 2}]

    def test_columns_that_another_task_adds_meanwhile_are_no_error(self, table, append, monkeypatch):
        """Mapped tasks widen one table at once; Snowflake adds no column where it has one of them."""
        statements = []

        def run_sql(_, statement):
            statements.append(statement)
            table.append(TableColumn("NEW" if len(statements) == 1 else "NEWER", "VARCHAR"))
            if len(statements) == 1:
                raise SqlError("column 'NEW' already exists", errno=1430)

        monkeypatch.setattr(SnowpipeHook, "run_sql", run_sql)
        rows = [{"ID": 1, "NEW": "x", "NEWER": "y"}]

        assert append(rows=rows, evolve_columns=True)["unknown_columns"] == {}
        assert ["NEWER" in one and '"NEW"' not in one for one in statements[1:]] == [True]


def test_lines_of_a_file_are_appended_within_the_limit(snowpipe, append, tmp_path):
    file = tmp_path / "rows.ndjson"
    file.write_text('{"ID": 1}\n\n{"ID": 2}\r\n{"ID": 3}')
    assert shown(append(file=f"file://{file}", batch=1)["to"]) == "1:3"
    assert snowpipe.channels["c"].rows == [{"ID": 1}, {"ID": 2}, {"ID": 3}]
    with pytest.raises(AirflowFailException, match="SnowpipeStreamOperator"):
        append(file=str(file), max_bytes=20)


def test_result_of_a_query_is_appended_in_its_order_within_the_limit(snowpipe, append, monkeypatch):
    """By the hook of any database whose driver is one of DB-API."""
    database = duckdb.connect()
    database.execute('CREATE TABLE queried (ID INTEGER, NAME VARCHAR, P DECIMAL(10,2), "AT" DATE)')
    database.execute("INSERT INTO queried VALUES (2,'b',1.50,'2026-01-02'), (1,NULL,2,'2026-01-01')")
    hooks = {"any": SimpleNamespace(get_conn=database.cursor)}
    monkeypatch.setattr(BaseHook, "get_hook", hooks.__getitem__)
    query = {"sql": "SELECT * FROM queried WHERE ID < ? ORDER BY ID", "sql_conn_id": "any"}

    assert append(**query, parameters=(3,))["rows"] == 2
    rows = snowpipe.channels["c"].rows
    assert [(r["ID"], r["NAME"], Decimal(str(r["P"])), r["AT"]) for r in rows] == [
        (1, None, Decimal(2), "2026-01-01"),
        (2, "b", Decimal("1.5"), "2026-01-02"),
    ]
    with pytest.raises(AirflowFailException, match="1 rows"):
        append(**query, parameters=(3,), max_rows=1)


def test_dry_run_reports_how_many_rows_would_be_sent(snowpipe, task, append):
    append(rows=ROWS[:2], batch=7)
    (line,) = task(rows=ROWS, batch=7).preview()
    assert line.startswith("would append 3 of 5 rows to channel 'c'")
    assert len(snowpipe.channels["c"].rows) == 2
    assert append(rows=ROWS[:1], channel=None, ctx=context(map_index=3))["channel"] == "d_t_3"


def test_wrong_arguments_are_refused_when_the_dag_is_read(task):
    for options, word in (
        ({"on_error": "x"}, "on_error"),
        ({"offset_format": "integer"}, "token_column"),
        ({"token_column": "ID", "batch": 1}, "batch"),
        ({"max_rows": "1000"}, "'1000'"),
        ({"on_error": "dead_letter"}, "dead_letter_path"),
        ({"on_error": "dead_letter", "dead_letter_path": "kafka:t"}, "Kafka"),
    ):
        with pytest.raises(ConfigurationError, match=word):
            task(rows=[], **options)
    operator = task(sql="SELECT {{ x }}", batch="{{ x }}", parameters=["{{ x }}"])
    operator.render_template_fields({"x": 5})
    assert (operator.sql, operator.batch, operator.parameters) == ("SELECT 5", "5", ["5"])

"""``SnowpipeBulkLoadOperator`` on real Spark against a real local service: exact rows, once."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred

from airflow_provider_snowpipe.assets.uri import snowpipe_asset
from airflow_provider_snowpipe.bulk.ledger import Ledger
from airflow_provider_snowpipe.bulk.statement_client import StatementClient
from airflow_provider_snowpipe.operators.bulk_load import SnowpipeBulkLoadOperator
from airflow_provider_snowpipe.streaming.errors import FilesRejectedError
from tests.airflow_connections import SetConnection, set_connection
from tests.file_pipes import task_context
from tests.local_connection import connect, ids
from tests.local_service import LocalService
from tests.outlet_events import OutletEvents
from tests.spark_in_task import Submissions, submit_in_process
from tests.staged_files import running_copy

__all__ = ["set_connection"]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

_numbers = itertools.count(1)
ROWS = "SELECT id AS ID, concat('row ', id) AS NAME FROM range({})"


class DiedError(BaseException):
    """Stands for a worker that dies at this very step."""


def die(*_: Any, **__: Any) -> None:
    raise DiedError


class Bulk:
    """A table and a stage of their own for a test."""

    def __init__(self, service: LocalService, conn_id: str, submitted: Submissions) -> None:
        self.service, self.conn_id, self.submitted = service, conn_id, submitted
        self.table = f"BULK{next(_numbers)}"
        self.stage = f"{self.table}_STAGE"
        self.began = dt.datetime.now(dt.UTC)
        service.sql(f"CREATE TABLE {self.table} (ID NUMBER, NAME VARCHAR)")
        service.sql(f"CREATE STAGE {self.stage}")

    def operator(self, rows: int = 1_000, **arguments: Any) -> SnowpipeBulkLoadOperator:
        given = {"source": {"query": ROWS.format(rows)}, "stage": f"@{self.stage}/in", **arguments}
        return SnowpipeBulkLoadOperator(
            task_id="bulk", table=self.table, snowflake_conn_id=self.conn_id, deferrable=False, **given
        )

    def load(self, run: str = "r1", try_number: int = 1, rows: int = 1_000, **more: Any) -> dict[str, Any]:
        return self.operator(rows, **more).execute(self.context(run, try_number))

    def context(self, run: str = "r1", try_number: int = 1) -> Any:
        context = task_context(run, try_number)
        context["dag_run"] = SimpleNamespace(start_date=self.began)
        return context

    def ids(self) -> list[int]:
        return ids(self.service, self.table)

    def staged(self) -> list[str]:
        """The names in the stage, without the folder of the run."""
        rows = self.service.sql(f"LIST @{self.stage}")
        return sorted(str(row["name"]).split("/", 3)[-1] for row in rows)


@pytest.fixture
def bulk(
    local_service: LocalService, set_connection: SetConnection, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> Bulk:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(local_service.ca_file))
    set_connection("spark_default", conn_type="spark", host="local[2]")
    conn_id = connect(local_service, set_connection)
    return Bulk(local_service, conn_id, submit_in_process(monkeypatch, spark))


# name, Snowflake type, Spark expression, how it is read back, expected text
_TYPES = [
    ("TRUTH", "BOOLEAN", "true", "{}::VARCHAR", "true"),
    ("BIG", "NUMBER(38, 0)", "9223372036854775807L", "{}::VARCHAR", "9223372036854775807"),
    (
        *("DEC", "NUMBER(38, 18)", "cast('12345678901234567890.000000000000000001' as decimal(38, 18))"),
        *("{}::VARCHAR", "12345678901234567890.000000000000000001"),
    ),
    ("F64", "FLOAT", "1.7976931348623157e308D", "({} = 1.7976931348623157e308)::VARCHAR", "true"),
    ("NAN", "FLOAT", "double('NaN')", "{}::VARCHAR", "NaN"),
    ("TXT", "VARCHAR", r"'a\"b\\c\tä日\n'", "{}", 'a"b\\c\tä日\n'),
    ("BYTES", "BINARY", "X'00FF41'", "HEX_ENCODE({})", "00FF41"),
    ("DAY", "DATE", "date'0001-01-01'", "{}::VARCHAR", "0001-01-01"),
    (
        *("NTZ", "TIMESTAMP_NTZ(9)", "timestamp_ntz'1969-12-31 23:59:59.999999'"),
        *("TO_VARCHAR({}, 'YYYY-MM-DD HH24:MI:SS.FF6')", "1969-12-31 23:59:59.999999"),
    ),
    (
        *("TZ", "TIMESTAMP_TZ(9)", "timestamp'2024-02-29 23:59:59.123456+05:30'"),
        "TO_VARCHAR(CONVERT_TIMEZONE('UTC', {}), 'YYYY-MM-DD HH24:MI:SS.FF6')",
        "2024-02-29 18:29:59.123456",
    ),
    ("NOTHING", "VARCHAR", "null", "{}", None),
]
_NESTED = [
    ("VAR", "VARIANT", """parse_json('{"a": [1, null], "b": 12345678901234567890}')"""),
    ("STRU", "VARIANT", "named_struct('x', 1, 'y', cast(null as string), 'b', X'00FF')"),
    ("DICT", "OBJECT", "map('k', cast(1.50 as decimal(38, 2)), 'z', null)"),
    ("LIST", "ARRAY", "array(timestamp_ntz'2024-01-01 00:00:00.000001', null)"),
    ("ASTEXT", "VARCHAR", "array(1, 2)"),
]
_NESTED_VALUES = {
    "VAR": {"a": [1, None], "b": 12345678901234567890},
    "STRU": {"x": 1, "y": None, "b": "AP8="},
    "DICT": {"k": 1.5, "z": None},
    "LIST": ["2024-01-01T00:00:00.000001", None],
    "ASTEXT": [1, 2],
}


class TestValues:
    @pytest.mark.parametrize(
        "nested",
        # Every other test loads by name.
        [
            pytest.param(False, marks=pytest.mark.nightly, id="by-name"),
            pytest.param(True, id="by-expression"),
        ],
    )
    def test_every_type_arrives_with_its_value_and_null_stays_null(self, bulk: Bulk, nested: bool) -> None:
        typed = [(name, kind, value) for name, kind, value, *_ in _TYPES] + (_NESTED if nested else [])
        columns = ", ".join(f"{name} {kind}" for name, kind, _ in typed)
        bulk.service.sql(f"CREATE OR REPLACE TABLE {bulk.table} (OTHER NUMBER, {columns}, ID NUMBER)")
        values = ", ".join(f"if(id = 0, {value}, null) AS {name.lower()}" for name, _, value in typed)

        done = bulk.load(source={"query": f"SELECT id, {values} FROM range(2)"})

        assert done["rows_loaded"] == done["rows"] == 2
        assert bulk.service.sql(f"SELECT SUM(ID) AS N, COUNT(OTHER) AS O FROM {bulk.table}") == [
            {"N": 1, "O": 0}
        ]
        read = ", ".join(f"{form.format(name)} AS {name}" for name, _, _, form, _ in _TYPES)
        full, empty = bulk.service.sql(f"SELECT {read} FROM {bulk.table} ORDER BY ID")
        for name, *_, expected in _TYPES:
            if expected is not None:
                assert str(full[name])[: len(expected)].lower() == expected.lower(), name
        assert set(empty.values()) == {None}
        if not nested:
            return
        names = ", ".join(name for name, *_ in _NESTED)
        full, empty = bulk.service.sql(f"SELECT {names} FROM {bulk.table} ORDER BY ID")
        found = {name: json.loads(value) if isinstance(value, str) else value for name, value in full.items()}
        assert found == _NESTED_VALUES
        assert set(empty.values()) == {None}

    def test_a_column_that_the_table_lacks_is_refused_before_anything_is_written(self, bulk: Bulk) -> None:
        with pytest.raises(AirflowFailException, match="OTHER"):
            bulk.load(source={"query": "SELECT 1 AS ID, 2 AS OTHER"})
        assert bulk.staged() == []

    def test_what_spark_refuses_fails_the_task_with_its_reason(self, bulk: Bulk) -> None:
        with pytest.raises(AirflowFailException, match="NOPE"):
            bulk.load(source={"query": "SELECT NOPE FROM range(5)"})
        assert bulk.ids() == []


class TestSizes:
    def test_one_large_part_becomes_files_of_the_target(self, bulk: Bulk) -> None:
        target = 400_000
        query = "SELECT /*+ COALESCE(1) */ id AS ID, sha2(string(id), 512) AS NAME FROM range(40000)"
        done = bulk.load(source={"query": query}, target_file_bytes=target, keep_files=True)

        sizes = [
            int(row["size"])
            for row in bulk.service.sql(f"LIST @{bulk.stage}")
            if str(row["name"]).endswith(".parquet")
        ]
        assert len(sizes) == len(done["files"]) >= 5
        assert max(sizes) <= target * 1.56
        assert sum(sizes) / len(sizes) >= target * 0.625
        (counted,) = bulk.service.sql(
            f"SELECT COUNT(*) AS N, COUNT(DISTINCT ID) AS D, MAX(ID) AS M FROM {bulk.table}"
        )
        assert [int(counted[name]) for name in "NDM"] == [40000, 40000, 39999]


class TestOnce:
    def test_a_try_after_a_death_loads_every_row_once_and_later_ones_do_nothing_more(
        self, bulk: Bulk
    ) -> None:
        asset = snowpipe_asset(
            account=bulk.service.account, database="LOCAL", schema="PUBLIC", table=bulk.table
        )
        events = OutletEvents(lambda: SimpleNamespace(extra={}))
        submit = StatementClient.submit

        def submit_and_die(*arguments: Any, **named: Any) -> None:
            submit(*arguments, **named)
            raise DiedError

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(StatementClient, "submit", submit_and_die)
            with pytest.raises(DiedError):
                bulk.load(target_file_bytes=2_000)
        task = bulk.operator(outlets=[asset], target_file_bytes=2_000)
        done = task.execute({**bulk.context(try_number=2), "outlet_events": events})

        assert bulk.ids() == list(range(1_000))
        assert (done["rows_loaded"], len(done["files"]) > 1) == (1_000, True)
        assert bulk.staged() == []
        assert events.made[asset.uri].extra == {"committed": True, "rows": 1_000, "loader": "COPY"}
        assert task.task_lineage is not None
        assert (task.task_lineage.rows, len(task.task_lineage.sources)) == (1_000, 1)
        assert bulk.load(try_number=3, target_file_bytes=2_000) == done
        assert bulk.ids() == list(range(1_000))
        assert len(bulk.submitted) == 1

    def test_rows_that_do_not_fit_fail_the_task_and_are_not_loaded_twice(self, bulk: Bulk) -> None:
        bulk.service.sql(f"CREATE OR REPLACE TABLE {bulk.table} (ID NUMBER(2), NAME VARCHAR)")
        arguments = {"rows": 150, "options": {"on_error": "CONTINUE"}}
        with pytest.raises((AirflowFailException, FilesRejectedError), match="PARTIALLY_LOADED"):
            bulk.load(**arguments)

        done = bulk.load(try_number=2, on_rejected="report", **arguments)
        assert (done["rows_loaded"], done["rejected"]) == (100, 50)
        assert bulk.ids() == list(range(100))


class TestLocations:
    def test_an_external_stage_is_written_into_by_spark(self, bulk: Bulk) -> None:
        lake = bulk.service.new_folder()
        bulk.service.sql(f"CREATE STAGE {bulk.table}_LAKE URL = 'file://{lake}/'")
        arguments = {"stage": f"@{bulk.table}_LAKE/in", "keep_files": True}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Ledger, "plan", die)
            with pytest.raises(DiedError):
                bulk.load(**arguments)
        bulk.load(try_number=2, **arguments)

        assert bulk.ids() == list(range(1_000))
        assert len(list((lake / "in").rglob("*.parquet"))) == 2

        bulk.load(try_number=3, stage=f"@{bulk.table}_LAKE/in")
        assert list(lake.rglob("*.parquet")) == []
        assert bulk.ids() == list(range(1_000))

    def test_small_files_become_one_in_the_tables_own_stage_and_a_shared_folder_is_empty_again(
        self, bulk: Bulk, tmp_path: Path
    ) -> None:
        for folder in ("in", "shared"):
            (tmp_path / folder).mkdir()
        for number in range(5):
            (tmp_path / "in" / f"{number}.csv").write_text(f"ID,NAME\n{number},x\n")
        options = {"header": "true", "inferSchema": "true"}
        source = json.dumps({"path": str(tmp_path / "in"), "format": "csv", "options": options})
        arguments = {"source": source, "stage": None, "run_key": "day 1"}
        done = bulk.load(work_path=str(tmp_path / "shared"), **arguments)

        assert len(done["files"]) == 1
        assert bulk.load("r2", **arguments) == done
        assert bulk.ids() == list(range(5))
        assert done["folder"].startswith(f'@%"{bulk.table}"/')
        assert list((tmp_path / "shared").rglob("*")) == []

    def test_the_triggerer_waits_for_copy(self, bulk: Bulk) -> None:
        operator = bulk.operator()
        operator.deferrable = True
        with running_copy(), pytest.raises(TaskDeferred) as deferred:
            operator.execute(bulk.context())
        trigger = deferred.value.trigger

        async def event() -> Any:
            async for one in trigger.run():
                return one.payload

        kept = deferred.value.kwargs or {}
        done = bulk.operator().execute_complete(bulk.context(), asyncio.run(event()), **kept)
        assert done["rows_loaded"] == 1_000
        assert bulk.ids() == list(range(1_000))
        assert len(bulk.submitted) == 1

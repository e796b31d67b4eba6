"""The operator and its table: made from the source, widened, described; rows that do not fit put aside."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.operators.row_policy import SchemaPolicy
from airflow_provider_snowpipe.spark.sources.files.spec import FileSource
from airflow_provider_snowpipe.streaming.checked_values import RowPolicy
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SourceMissingError, SqlError
from airflow_provider_snowpipe.streaming.row_check import RowCheck
from airflow_provider_snowpipe.streaming.table_schema import TableColumn
from tests.airflow_connections import SetConnection
from tests.local_connection import connect, connect_by_form
from tests.local_service import LocalService
from tests.source_log import unit_token

_numbers = itertools.count(1)


@pytest.fixture
def table() -> str:
    return f"ROOM_{next(_numbers)}"


@pytest.fixture
def hook(local_service: LocalService, set_connection: SetConnection, table: str) -> SnowpipeHook:
    return SnowpipeHook(connect(local_service, set_connection), table=table)


def _source(path: Path, *rows: Any) -> FileSource:
    (path / "p").mkdir(parents=True)
    (path / "p" / "1.ndjson").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return FileSource(path=str(path))


def _room(**changes: Any) -> SchemaPolicy:
    return SchemaPolicy(RowPolicy(**changes))


@pytest.mark.parametrize("define", [connect, connect_by_form])
def test_columns_are_described_with_what_a_check_needs(
    local_service: LocalService, set_connection: SetConnection, table: str, define: Any
) -> None:
    local_service.sql(
        f"CREATE TABLE LOCAL.PUBLIC.{table} (ID INT AUTOINCREMENT NOT NULL, NAME VARCHAR(5) NOT NULL "
        "DEFAULT 'x', AT TIMESTAMP_TZ, PRICE NUMBER(8,3), RAW BINARY(4), V VARIANT)"
    )

    hook = SnowpipeHook(define(local_service, set_connection), table=table)
    columns = hook.table_columns()

    assert [(one.name, one.type, one.nullable, one.fills_itself) for one in columns] == [
        ("ID", "NUMBER(38,0)", False, True),
        ("NAME", "VARCHAR(5)", False, True),
        ("AT", "TIMESTAMP_TZ(9)", True, False),
        ("PRICE", "NUMBER(8,3)", True, False),
        ("RAW", "BINARY(4)", True, False),
        ("V", "VARIANT", True, False),
    ]
    assert hook.columns_for_keys() == columns
    local_service.sql(f"ALTER TABLE LOCAL.PUBLIC.{table} SET ENABLE_SCHEMA_EVOLUTION = TRUE")
    assert hook.columns_for_keys() == (), "its keys become columns"


def test_account_is_asked_only_where_something_concerns_columns(
    hook: SnowpipeHook, table: str, tmp_path: Path
) -> None:
    nowhere, empty = FileSource(path=str(tmp_path / "nowhere")), FileSource(path=str(tmp_path))
    wishes = _room(unknown_columns="ignore").prepare(hook, nowhere, print)
    assert (wishes["columns"], wishes["unknown_columns"]) == ((), "ignore")
    _room(evolve_columns=True, unknown_columns="warn").prepare(hook, empty, print)
    with pytest.raises(SqlError, match=table):
        _room(check_rows=True).prepare(hook, nowhere, print)
    for source, named in (empty, "no row"), (nowhere, "nowhere"):
        with pytest.raises(SourceMissingError, match=named):
            _room(create_table="if_missing").prepare(hook, source, print)


def test_table_is_made_once_and_then_widened_as_requested(
    hook: SnowpipeHook, table: str, tmp_path: Path
) -> None:
    first = _source(tmp_path / "first", {"id": 1, "at": "2026-01-02T03:04:05Z"}, {"id": 2, "v": {"a": 1}})
    made = _room(create_table="if_missing").prepare(hook, first, print)["columns"]
    described = hook.table_columns()
    assert made == described
    assert [(one.name, one.type) for one in described] == [
        ("ID", "NUMBER(38,0)"),
        ("AT", "TIMESTAMP_TZ(9)"),
        ("V", "VARIANT"),
    ]

    wider = _source(tmp_path / "wider", {"ID": 1, "note": "x", "day": "2026-01-02"})
    _room(create_table="if_missing").prepare(hook, wider, print)
    assert hook.table_columns() == described, "unknown keys are left to the service"
    with pytest.raises(ConfigurationError) as refused:
        _room(evolve_columns=False).prepare(hook, wider, print)
    assert '"NOTE" VARCHAR(16777216), "DAY" DATE' in str(refused.value)
    logged: list[str] = []
    _room(evolve_columns=True).prepare(hook, wider, lambda text, *values: logged.append(text % values))

    assert hook.table_columns() == (
        *described,
        TableColumn("NOTE", "VARCHAR(16777216)"),
        TableColumn("DAY", "DATE"),
    )
    (line,) = logged
    assert f'table "LOCAL"."PUBLIC"."{table}": added "NOTE" VARCHAR(16777216), "DAY" DATE' in line
    assert "inferred from 1 rows" in line


def test_columns_that_come_in_later_files_are_added_or_refused_by_the_rows_that_the_run_loads(
    hook: SnowpipeHook, local_service: LocalService, table: str, tmp_path: Path
) -> None:
    source = _source(tmp_path, *({"ID": number} for number in range(1000)))

    def prepare(**policy: Any) -> None:
        _room(**policy).prepare(hook, source, print, channel_of=lambda partition: f"c_{partition}")

    prepare(create_table="if_missing", evolve_columns=True)
    with local_service.client(table) as client:
        target = hook.pipe_name().address(hook.account_url())
        client.open_channel("c_p", offset_token=unit_token(source, target, "p", "1.ndjson:1000", 0))
    prepare(create_table="if_missing", evolve_columns=False)
    (tmp_path / "p" / "2.ndjson").write_text('{"ID": 1000, "NOTE": "x"}\n')
    with pytest.raises(ConfigurationError, match="NOTE"):
        prepare(evolve_columns=False)
    prepare(evolve_columns=True)

    assert [one.name for one in hook.table_columns()] == ["ID", "NOTE"]


@pytest.mark.parametrize("policy", [{"create_table": "if_missing"}, {"evolve_columns": True}])
def test_whole_numbers_of_the_first_rows_do_not_round_what_follows(
    hook: SnowpipeHook, local_service: LocalService, table: str, tmp_path: Path, policy: dict[str, Any]
) -> None:
    if "evolve_columns" in policy:
        local_service.sql(f"CREATE TABLE LOCAL.PUBLIC.{table} (ID INT)")
    source = _source(tmp_path, *({"ID": number, "PRICE": number} for number in range(1000)))
    made = _room(**policy).prepare(hook, source, print)
    found = RowCheck(made["columns"]).check(b'{"ID":1000,"PRICE":7}\n{"ID":1001,"PRICE":4.75}\n')
    assert [(one.row, one.fault.column) for one in found.faults] == [(1, "PRICE")]

import json

import pyarrow as pa
import pytest

from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.names import PipeName
from airflow_provider_snowpipe.streaming.row_values import columns_of_rows
from airflow_provider_snowpipe.streaming.table_schema import (
    TableColumn,
    add_columns,
    column_type,
    common_types,
    create_table_if_missing,
    missing_columns,
    table_of,
)


def _inferred(*values):
    (column,) = columns_of_rows(json.dumps({"c": value}).encode() for value in values)
    return column.type


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2], "NUMBER(38,0)"),
        ([1, 2.5], "FLOAT"),
        ([True, None], "BOOLEAN"),
        (["2026-01-02"], "DATE"),
        (["2026-01-02", "2026-01-02T03:04:05"], "TIMESTAMP_NTZ(9)"),
        (["2026-01-02T03:04:05.123456789Z", "2026-01-02 03:04+02:00"], "TIMESTAMP_TZ(9)"),
        (["2026-02-30"], "VARCHAR(16777216)"),
        (["x", 1], "VARCHAR(16777216)"),
        ([{"a": 1}, [1], "x"], "VARIANT"),
        ([None], "VARCHAR(16777216)"),
    ],
)
def test_type_is_inferred_from_all_values_of_a_column(values, kind):
    assert _inferred(*values) == kind


def test_columns_come_in_the_order_of_the_rows_and_in_capital_letters():
    found = columns_of_rows([b'{"b":1}', b"torn", b"[1]", b'{"a":"x","B":2}'])

    assert [(one.name, one.type, one.nullable) for one in found] == [
        ("B", "NUMBER(38,0)", True),
        ("A", "VARCHAR(16777216)", True),
    ]


def test_rows_without_a_key_make_no_table():
    with pytest.raises(ConfigurationError, match="no column can be inferred: make the table first"):
        columns_of_rows([b"{}", b"x"])


def test_statements_take_every_name_letter_by_letter():
    table = table_of(PipeName('D"B', "s", "T-STREAMING"))
    columns = [TableColumn('A"; DROP', "NUMBER(38,0)"), TableColumn("b", "DATE")]

    assert create_table_if_missing(table, columns) == (
        'CREATE TABLE IF NOT EXISTS "D""B"."s"."T" ("A""; DROP" NUMBER(38,0), "b" DATE)'
    )
    assert add_columns(table, columns[1:]) == 'ALTER TABLE "D""B"."s"."T" ADD COLUMN "b" DATE'


def test_missing_columns_are_found_without_regard_to_case():
    have = [TableColumn("Id", "NUMBER(38,0)")]

    assert missing_columns([TableColumn("ID", "FLOAT"), TableColumn("N", "DATE")], have) == (
        TableColumn("N", "DATE"),
    )


def test_pipe_of_its_own_has_no_columns_to_ask_for():
    with pytest.raises(ConfigurationError, match="is not a table's default pipe"):
        table_of(PipeName("D", "S", "MINE"))


@pytest.mark.parametrize(
    ("arrow", "kind"),
    [
        (pa.decimal128(9, 2), "NUMBER(9,2)"),
        (pa.decimal256(50, 2), None),
        (pa.large_binary(), "BINARY(8388608)"),
        (pa.binary(16), "BINARY(8388608)"),
        (pa.timestamp("us"), "TIMESTAMP_NTZ(9)"),
        (pa.time64("us"), "TIME(9)"),
        (pa.map_(pa.string(), pa.int32()), "VARIANT"),
        (pa.null(), None),
    ],
    ids=str,
)
def test_type_of_a_schema_is_the_columns(arrow, kind):
    assert column_type(arrow) == kind


def test_two_schemas_agree_on_a_type_that_takes_both():
    one = {"A": "NUMBER(9,2)", "B": "NUMBER(9,2)", "C": "DATE", "D": "DATE"}
    other = {"A": "NUMBER(12,4)", "B": "FLOAT", "C": "VARIANT", "D": "BOOLEAN", "E": "DATE"}
    assert list(common_types(one, other).values()) == [
        "NUMBER(12,4)", "FLOAT", "VARIANT", "VARCHAR(16777216)", "DATE",
    ]  # fmt: skip

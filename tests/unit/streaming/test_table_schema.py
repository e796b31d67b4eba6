"""Columns of a table: read as DESCRIBE TABLE writes them, inferred from rows, and written as DDL."""

import pyarrow as pa

from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.names import PipeName
from airflow_provider_snowpipe.streaming.row_values import columns_of_rows
from airflow_provider_snowpipe.streaming.table_schema import (
    ColumnType,
    TableColumn,
    add_columns,
    column_type,
    columns_of_describe,
    common_types,
    create_table_if_missing,
    missing_columns,
    table_of,
)
from tests.refusals import refused

TEXT = "VARCHAR(16777216)"


def test_type_is_read_as_describe_table_writes_it():
    for text, found in {
        "NUMBER(12,2)": ColumnType("NUMBER", precision=12, scale=2),
        "number( 12 , 2 )": ColumnType("NUMBER", precision=12, scale=2),
        "NUMBER": ColumnType("NUMBER", precision=38, scale=0),
        "bigint": ColumnType("NUMBER", precision=38, scale=0),
        "DECIMAL(5)": ColumnType("NUMBER", precision=5, scale=0),
        "DOUBLE  PRECISION": ColumnType("FLOAT"),
        "VARCHAR(40)": ColumnType("VARCHAR", length=40),
        "STRING": ColumnType("VARCHAR", length=16_777_216),
        "CHAR": ColumnType("VARCHAR", length=1),
        "VARCHAR(10) COLLATE 'en'": ColumnType("VARCHAR", length=10),
        "VARBINARY": ColumnType("BINARY", length=8_388_608),
        "TIMESTAMP_NTZ(3)": ColumnType("TIMESTAMP_NTZ", precision=3),
        "TIME": ColumnType("TIME", precision=9),
        "ARRAY(NUMBER(38,0))": ColumnType("ARRAY"),
        "VARIANT": ColumnType("VARIANT"),
        "GEOGRAPHY": ColumnType("GEOGRAPHY"),
    }.items():
        assert (text, ColumnType.parse(text)) == (text, found)
        assert ColumnType.parse(str(found)) == found
    unknown = ["", "NUMBR", "VARCHAR(x)", "NUMBER(1,2,3)", "VARCHAR(4) NOT NULL"]
    refused(ConfigurationError, ColumnType.parse, unknown, "unknown", "DESCRIBE")


def test_described_columns_keep_defaults_and_identities_apart():
    rows = [
        {"name": "ID", "type": "NUMBER(38,0)", "kind": "COLUMN", "null?": "N",
         "default": "IDENTITY START 1 INCREMENT 1 NOORDER"},
        {"name": "at", "type": "DATE", "kind": "COLUMN", "null?": "Y", "default": "CURRENT_DATE()"},
        {"name": "V", "type": "VARCHAR(3)", "kind": "VIRTUAL", "null?": "Y", "default": None},
        {"name": 'say "hi"', "type": "VARCHAR(3)", "kind": "COLUMN", "null?": "N", "default": None},
    ]  # fmt: skip

    number, date, text = columns_of_describe(rows)

    assert number == TableColumn("ID", "NUMBER(38,0)", nullable=False, identity=True)
    assert date == TableColumn("at", "DATE", default="CURRENT_DATE()")
    assert (number.fills_itself, date.fills_itself, text.fills_itself) == (True, True, False)
    assert text.ddl == '"say ""hi""" VARCHAR(3) NOT NULL'


def test_type_is_inferred_from_all_values_of_a_column():
    for values, kind in [
        ("1 2", "NUMBER(38,0)"),
        ("1 2.5", "FLOAT"),
        ("true null", "BOOLEAN"),
        ('"2026-01-02"', "DATE"),
        ('"2026-01-02" "2026-01-02T03:04:05"', "TIMESTAMP_NTZ(9)"),
        ('"2026-01-02T03:04:05.123456789Z" "2026-01-02T03:04+02:00"', "TIMESTAMP_TZ(9)"),
        ('"2026-02-30"', TEXT),
        ('"x" 1', TEXT),
        ('{"a":1} [1] "x"', "VARIANT"),
        ("null", TEXT),
        # Numbers that a float would cut make a number of their digits.
        ("1 0.1", "FLOAT"),
        ("1e300 0.5", "FLOAT"),
        ("123456789012345678.91", "NUMBER(38,2)"),
        ("9007199254740993 0.125", "NUMBER(38,3)"),
        ("0.12345678901234567890123456789012345678 1000.5", "FLOAT"),
    ]:
        (column,) = columns_of_rows(f'{{"c":{value}}}'.encode() for value in values.split())
        assert (values, column.type) == (values, kind)


def test_columns_come_in_the_order_of_the_rows_and_in_capital_letters():
    found = columns_of_rows([b'{"b":1}', b"torn", b"[1]", b'{"a":"x","B":2}'])
    assert found == (TableColumn("B", "NUMBER(38,0)"), TableColumn("A", TEXT))
    refused(ConfigurationError, columns_of_rows, [[b"{}", b"x"]], "inferred")


def test_statements_take_every_name_letter_by_letter():
    table = table_of(PipeName('D"B', "s", "T-STREAMING"))
    columns = [TableColumn('A"; DROP', "NUMBER(38,0)"), TableColumn("b", "DATE")]
    assert create_table_if_missing(table, columns) == (
        'CREATE TABLE IF NOT EXISTS "D""B"."s"."T" ("A""; DROP" NUMBER(38,0), "b" DATE)'
    )
    assert add_columns(table, columns[1:]) == 'ALTER TABLE "D""B"."s"."T" ADD COLUMN "b" DATE'
    refused(ConfigurationError, table_of, [PipeName("D", "S", "MINE")], "default pipe")
    have, new = [TableColumn("Id", "NUMBER(38,0)")], TableColumn("N", "DATE")
    assert missing_columns([TableColumn("ID", "FLOAT"), new], have) == (new,), "whatever their case"


def test_type_of_a_schema_is_the_columns_and_two_agree_on_one_that_takes_both():
    for arrow, kind in {
        pa.decimal128(9, 2): "NUMBER(9,2)",
        pa.decimal256(50, 2): None,
        pa.large_binary(): "BINARY(8388608)",
        pa.binary(16): "BINARY(8388608)",
        pa.timestamp("us"): "TIMESTAMP_NTZ(9)",
        pa.time64("us"): "TIME(9)",
        pa.map_(pa.string(), pa.int32()): "VARIANT",
        pa.null(): None,
    }.items():
        assert (arrow, column_type(arrow)) == (arrow, kind)
    one = {"A": "NUMBER(9,2)", "B": "NUMBER(9,2)", "C": "DATE", "D": "DATE"}
    other = {"A": "NUMBER(12,4)", "B": "FLOAT", "C": "VARIANT", "D": "BOOLEAN", "E": "DATE"}
    assert list(common_types(one, other).values()) == ["NUMBER(12,4)", "FLOAT", "VARIANT", TEXT, "DATE"]

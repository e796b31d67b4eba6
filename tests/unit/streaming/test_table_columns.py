import pytest

from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.table_schema import ColumnType, TableColumn, columns_of_describe


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("NUMBER(12,2)", ColumnType("NUMBER", precision=12, scale=2)),
        ("number( 12 , 2 )", ColumnType("NUMBER", precision=12, scale=2)),
        ("NUMBER", ColumnType("NUMBER", precision=38, scale=0)),
        ("bigint", ColumnType("NUMBER", precision=38, scale=0)),
        ("DECIMAL(5)", ColumnType("NUMBER", precision=5, scale=0)),
        ("DOUBLE  PRECISION", ColumnType("FLOAT")),
        ("VARCHAR(40)", ColumnType("VARCHAR", length=40)),
        ("STRING", ColumnType("VARCHAR", length=16_777_216)),
        ("CHAR", ColumnType("VARCHAR", length=1)),
        ("VARCHAR(10) COLLATE 'en'", ColumnType("VARCHAR", length=10)),
        ("VARBINARY", ColumnType("BINARY", length=8_388_608)),
        ("TIMESTAMP_NTZ(3)", ColumnType("TIMESTAMP_NTZ", precision=3)),
        ("TIME", ColumnType("TIME", precision=9)),
        ("ARRAY(NUMBER(38,0))", ColumnType("ARRAY")),
        ("VARIANT", ColumnType("VARIANT")),
        ("GEOGRAPHY", ColumnType("GEOGRAPHY")),
    ],
)
def test_type_is_read_as_describe_table_writes_it(text, found):
    assert ColumnType.parse(text) == found
    assert ColumnType.parse(str(found)) == found


@pytest.mark.parametrize("text", ["", "NUMBR", "VARCHAR(x)", "NUMBER(1,2,3)", "VARCHAR(4) NOT NULL"])
def test_unknown_type_is_refused_by_its_text(text):
    with pytest.raises(ConfigurationError, match="is unknown: write it as DESCRIBE TABLE does"):
        ColumnType.parse(text)


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

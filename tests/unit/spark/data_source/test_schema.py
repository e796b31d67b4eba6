import pytest
from pyspark.sql import types

from airflow_provider_snowpipe.spark.data_source.options import check_schema, is_integer, unknown_columns
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, EncodingError, UnknownColumnsError
from airflow_provider_snowpipe.streaming.table_schema import TableColumn
from tests.unit.spark.data_source.write_options import write_options

TEXT = types.StringType()


def _struct(**columns):
    return types.StructType([types.StructField(name, kind) for name, kind in columns.items()])


def _check(columns, **more):
    by_column = {"partitions": None} if "channelColumn" in more else {}
    check_schema(_struct(**columns).jsonValue(), write_options(**by_column, **more))


def test_every_type_that_ndjson_carries_is_taken():
    names = ("Long", "Double", "String", "Binary", "Date", "Timestamp", "Null", "TimestampNTZ", "Variant")
    kinds = [getattr(types, f"{name}Type")() for name in names]
    nested = _struct(x=types.ArrayType(types.DecimalType(38, 9)))
    maps = [types.MapType(TEXT, nested), types.MapType(types.IntegerType(), TEXT)]
    _check({f"c{number}": kind for number, kind in enumerate([*kinds, *maps])})


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (types.CalendarIntervalType(), "'c' has type interval.*STRING"),
        (types.DayTimeIntervalType(), "'c' has type interval day to second.*STRING"),
        (types.ArrayType(types.VariantType()), r"'c\.\[\]' has type variant.*a column of its own"),
        (types.MapType(TEXT, types.VariantType()), r"'c\.\{\}' has type variant"),
        (_struct(v=types.VariantType()), r"'c\.v' has type variant"),
        (types.MapType(types.DoubleType(), TEXT), "keys of type double: cast them"),
        (_struct(), "struct without fields"),
    ],
    ids=str,
)
def test_type_without_a_json_form_is_refused_with_column_type_and_remedy(kind, text):
    with pytest.raises(EncodingError, match=text):
        _check({"c": kind})


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"offsetColumn": "id"}, "'id', which the DataFrame has not: it has ID, AT"),
        ({"offsetColumn": "AT"}, "'AT' of type timestamp.*cast it to BIGINT or STRING"),
        ({"channelColumn": "AT"}, "channelColumn names the column 'AT' of type timestamp"),
        ({"omitColumns": "X"}, "omitColumns names the column 'X'"),
        ({"omitColumns": "ID,AT"}, "no column to send"),
    ],
    ids=str,
)
def test_key_columns_are_checked(more, text):
    with pytest.raises(ConfigurationError, match=text):
        _check({"ID": types.LongType(), "AT": types.TimestampType()}, **more)


def test_names_that_differ_by_case_only_are_refused():
    with pytest.raises(EncodingError, match="columns 'id' and 'ID'"):
        _check({"id": types.LongType(), "ID": types.LongType()})


def test_integer_columns_are_distinguished_from_text():
    schema = _struct(a=types.LongType(), b=TEXT).jsonValue()
    assert [is_integer(schema, name) for name in ("a", "b", None)] == [True, False, False]


@pytest.mark.parametrize(
    ("names", "options", "found"),
    [
        (["id", "KIND"], {}, []),
        (["ID", "KIMD", "OTHER"], {"omitColumns": "OTHER"}, ["KIMD"]),
        (["KIMD"], {"unknownColumns": "ignore"}, []),
        (["KIMD"], {}, None),
        (["ID", "KIMD"], {"unknownColumns": "fail"}, None),
    ],
)
def test_columns_for_which_the_table_has_none_are_named_or_refused(names, options, found):
    schema = _struct(**dict.fromkeys(names, TEXT)).jsonValue()
    table = [TableColumn("ID", "NUMBER(38,0)"), TableColumn("Kind", "VARCHAR")]

    if found is None:
        with pytest.raises(UnknownColumnsError, match="KIMD"):
            unknown_columns(schema, write_options(**options), table)
    else:
        assert unknown_columns(schema, write_options(**options), table) == found
    assert unknown_columns(schema, write_options(**options), ()) == []

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    CalendarIntervalType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from airflow_provider_snowpipe.spark.data_source.options import (
    WriteOptions,
    check_schema,
    is_integer,
    unknown_columns,
)
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, EncodingError, UnknownColumnsError
from airflow_provider_snowpipe.streaming.table_schema import TableColumn


def _options(**more):
    least = {
        "accountUrl": "https://a.b.c",
        "database": "D",
        "schema": "S",
        "table": "T",
        "channelPrefix": "p",
        "partitions": None if "channelColumn" in more else "1",
    }
    return WriteOptions.parse({k: v for k, v in {**least, **more}.items() if v is not None})


def _check(columns, **more):
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])
    check_schema(schema.jsonValue(), _options(**more))


def test_every_type_that_ndjson_carries_is_taken():
    nested = StructType([StructField("x", ArrayType(DecimalType(38, 9)))])
    plain = (LongType(), DoubleType(), StringType(), BinaryType(), DateType(), TimestampType(), NullType())
    _check(
        {
            **{f"c{number}": kind for number, kind in enumerate(plain)},
            "n": TimestampNTZType(),
            "m": MapType(StringType(), nested),
            "by_number": MapType(IntegerType(), StringType()),
            "v": VariantType(),
        }
    )


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        pytest.param(CalendarIntervalType(), "'c' has type interval.*STRING", id="interval"),
        pytest.param(DayTimeIntervalType(), "'c' has type interval day to second.*STRING", id="day-time"),
        pytest.param(
            ArrayType(VariantType()), r"'c\.\[\]' has type variant.*a column of its own", id="in-array"
        ),
        pytest.param(MapType(StringType(), VariantType()), r"'c\.\{\}' has type variant", id="in-map"),
        pytest.param(
            StructType([StructField("v", VariantType())]), r"'c\.v' has type variant", id="in-struct"
        ),
        pytest.param(MapType(DoubleType(), StringType()), "keys of type double: cast them", id="keys"),
        pytest.param(StructType([]), "struct without fields", id="empty-struct"),
    ],
)
def test_type_without_a_json_form_is_refused_with_column_type_and_remedy(kind, text):
    with pytest.raises(EncodingError, match=text):
        _check({"c": kind})


@pytest.mark.parametrize(
    ("more", "error", "text"),
    [
        ({"offsetColumn": "id"}, ConfigurationError, "'id', which the DataFrame has not: it has ID, AT"),
        ({"offsetColumn": "AT"}, ConfigurationError, "'AT' of type timestamp.*cast it to BIGINT or STRING"),
        (
            {"channelColumn": "AT"},
            ConfigurationError,
            "channelColumn names the column 'AT' of type timestamp",
        ),
        ({"omitColumns": "X"}, ConfigurationError, "omitColumns names the column 'X'"),
        ({"omitColumns": "ID,AT"}, ConfigurationError, "no column to send"),
    ],
    ids=["unknown", "offset-type", "channel-type", "omitted-unknown", "all-omitted"],
)
def test_key_columns_are_checked(more, error, text):
    with pytest.raises(error, match=text):
        _check({"ID": LongType(), "AT": TimestampType()}, **more)


def test_names_that_differ_by_case_only_are_refused():
    with pytest.raises(EncodingError, match="columns 'id' and 'ID'"):
        _check({"id": LongType(), "ID": LongType()})


def test_integer_columns_are_distinguished_from_text():
    schema = StructType([StructField("a", LongType()), StructField("b", StringType())]).jsonValue()

    assert [is_integer(schema, name) for name in ("a", "b", None)] == [True, False, False]


@pytest.mark.parametrize(
    ("names", "options", "found"),
    [
        (["id", "KIND"], {}, []),
        (["ID", "KIMD", "OTHER"], {"omitColumns": "OTHER"}, ["KIMD"]),
        (["KIMD"], {"unknownColumns": "ignore"}, []),
        (["KIMD"], {}, UnknownColumnsError),
        (["ID", "KIMD"], {"unknownColumns": "fail"}, UnknownColumnsError),
    ],
)
def test_columns_for_which_the_table_has_none_are_named_or_refused(names, options, found):
    schema = StructType([StructField(name, StringType()) for name in names]).jsonValue()
    table = [TableColumn("ID", "NUMBER(38,0)"), TableColumn("Kind", "VARCHAR")]

    if found is UnknownColumnsError:
        with pytest.raises(UnknownColumnsError, match="KIMD"):
            unknown_columns(schema, _options(**options), table)
    else:
        assert unknown_columns(schema, _options(**options), table) == found
    assert unknown_columns(schema, _options(**options), ()) == []

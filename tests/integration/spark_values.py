"""A value of each type of Spark, and what the table has to show of it."""

import json

from tests.local_service import LocalService

Column = tuple[str, str, str, str, str | None]
# name, Snowflake type, Spark expression, how it is read back, expected text
TYPES: list[Column] = [
    ("TRUTH", "BOOLEAN", "true", "{}::VARCHAR", "true"),
    ("BIG", "NUMBER(38, 0)", "9223372036854775807L", "{}::VARCHAR", "9223372036854775807"),
    (
        *("DEC", "NUMBER(38, 18)", "cast('12345678901234567890.000000000000000001' as decimal(38, 18))"),
        *("{}::VARCHAR", "12345678901234567890.000000000000000001"),
    ),
    ("F64", "FLOAT", "1.7976931348623157e308D", "({} = 1.7976931348623157e308)::VARCHAR", "true"),
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
    ("VAR", "VARIANT", """parse_json('{"a": [1, null], "b": 12345678901234567890}')""", "{}", None),
    ("STRU", "VARIANT", "named_struct('x', 1, 'y', cast(null as string), 'b', X'00FF')", "{}", None),
    ("DICT", "OBJECT", "map('k', cast(1.50 as decimal(38, 2)), 'z', null)", "{}", None),
    ("LIST", "ARRAY", "array(timestamp_ntz'2024-01-01 00:00:00.000001', null)", "{}", None),
    ("ASTEXT", "VARCHAR", "array(1, 2)", "{}", None),
]
_NESTED = {
    "VAR": {"a": [1, None], "b": 12345678901234567890},
    "STRU": {"x": 1, "y": None, "b": "AP8="},
    "DICT": {"k": 1.5, "z": None},
    "LIST": ["2024-01-01T00:00:00.000001", None],
    "ASTEXT": [1, 2],
}


def values_query(service: LocalService, table: str, types: list[Column]) -> str:
    """Make the table again, with a column more; the query of a row of all values and one of NULL."""
    columns = ", ".join(f"{name} {kind}" for name, kind, *_ in types)
    service.sql(f"CREATE OR REPLACE TABLE LOCAL.PUBLIC.{table} (OTHER NUMBER, {columns}, ID NUMBER)")
    values = ", ".join(f"if(id = 0, {value}, null) AS {name.lower()}" for name, _, value, *_ in types)
    return f"SELECT id AS ID, {values} FROM range(2)"


def assert_arrived(service: LocalService, table: str, types: list[Column]) -> None:
    """One row has each value, and the other is NULL in each column, which JSON's null is not."""
    read = ", ".join(f"{form.format(name)} AS {name}" for name, _, _, form, _ in types)
    full, _ = service.sql(f"SELECT {read} FROM LOCAL.PUBLIC.{table} ORDER BY ID")
    for name, *_, expected in types:
        if expected is None:
            found = json.loads(full[name]) if isinstance(full[name], str) else full[name]
            assert found == _NESTED[name], name
        else:
            assert str(full[name])[: len(expected)].lower() == expected.lower(), name
    nulls = " AND ".join(f"{name} IS NULL" for name in ("OTHER", *(one for one, *_ in types)))
    assert service.sql(f"SELECT ID FROM LOCAL.PUBLIC.{table} WHERE {nulls}") == [{"ID": 1}]

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import duckdb
import pytest
from snowpipe_local.engine import conversions
from snowpipe_local.engine.lines import arrow_lines, split_lines
from snowpipe_local.tables import Column, ColumnType, Table

REJECTED = "rejected"
_SECOND = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)

# column type, JSON text of the value, stored value
VALUES: dict[str, list[tuple[str, Any]]] = {
    "NUMBER(38,0)": [
        ("12", Decimal(12)), ('"12"', Decimal(12)), ("1.6", Decimal(2)), ("-2.5", Decimal(-3)),
        ("1e3", Decimal(1000)), ("99999999999999999999999999999999999999", Decimal("9" * 38)),
        ("999999999999999999999999999999999999999", REJECTED), ('"abc"', REJECTED), ('"0x10"', REJECTED),
        ('{"a":1}', REJECTED), ("null", None),
    ],
    "NUMBER(12,2)": [("1.255", Decimal("1.26")), ("12345678901", REJECTED)],
    "NUMBER(38,8)": [("12345678901234567890.60000001", Decimal("12345678901234567890.60000001"))],
    "NUMBER(38,1)": [("9007199254740993.5", Decimal("9007199254740993.5"))],
    "FLOAT": [("1.5", 1.5), ('"1e300"', 1e300), ("true", REJECTED)],
    "BOOLEAN": [("true", True), ("0", False), ("2", True), ('"YES"', True), ('"maybe"', REJECTED)],
    "VARCHAR(5)": [('"grün!"', "grün!"), ('"123456"', REJECTED), ("12", "12")],
    "VARCHAR(16777216)": [
        ('{"a":[1,"x"]}', '{"a":[1,"x"]}'), ('"null"', "null"), ('"a\\u0000b\\n\\"c\\""', 'a\x00b\n"c"'),
    ],
    "BINARY(8388608)": [('"aGk="', b"hi"), ('"###"', REJECTED)],
    "BINARY(1)": [('"aGk="', REJECTED)],
    "DATE": [
        ('"2026-01-02"', dt.date(2026, 1, 2)), ('"2026-01-02T23:00:00"', dt.date(2026, 1, 2)),
        ("1767312000", dt.date(2026, 1, 2)), ('"2026-13-01"', REJECTED),
    ],
    "TIME": [
        ('"10:11:12.5"', dt.time(10, 11, 12, 500000)), ("3661", dt.time(1, 1, 1)), ('"25:00"', REJECTED),
    ],
    "TIMESTAMP_NTZ(9)": [
        ('"2026-01-02T03:04:05.123456"', dt.datetime(2026, 1, 2, 3, 4, 5, 123456)),
        ('"2026-01-02T03:04:05+02:00"', dt.datetime(2026, 1, 2, 3, 4, 5)),
        ("1767312000", dt.datetime(2026, 1, 2)),
        ('"1767312000123"', dt.datetime(2026, 1, 2, 0, 0, 0, 123000)),
        ("1767312000123456789", dt.datetime(2026, 1, 2, 0, 0, 0, 123456)), ('"yesterday"', REJECTED),
    ],
    "TIMESTAMP_LTZ(9)": [('"2026-01-02T02:00:00+02:00"', dt.datetime(2026, 1, 2, tzinfo=dt.UTC))],
    "TIMESTAMP_TZ(9)": [
        ('"2026-01-02T02:00:00 +02:00"', {"t": _SECOND, "o": 120}), ("1767312000", {"t": _SECOND, "o": 0}),
    ],
    "VARIANT": [
        ('{"a":[1,null]}', '{"a":[1,null]}'), ('"text"', '"text"'),
        ("12345678901234567890123", "12345678901234567890123"), ("null", None),
    ],
    "OBJECT": [('{"a":1}', '{"a":1}'), ("[1]", REJECTED)],
    "ARRAY": [("[1,2]", "[1,2]"), ('"x"', '["x"]')],
}  # fmt: skip


@pytest.fixture
def cursor():
    connection = duckdb.connect(":memory:")
    conversions.define(connection)
    connection.execute(
        'SET TimeZone = \'UTC\'; ATTACH \':memory:\' AS "LOCAL"; CREATE SCHEMA "LOCAL"."PUBLIC"'
    )
    return connection


def _table(cursor: duckdb.DuckDBPyConnection, *columns: Column) -> Table:
    table = Table("LOCAL", "PUBLIC", "T", columns, 0)
    cursor.execute(f"CREATE OR REPLACE TABLE {table.path} ({', '.join(column.ddl() for column in columns)})")
    return table


def _load(cursor: duckdb.DuckDBPyConnection, *rows: str) -> None:
    cursor.register("lines", arrow_lines([split_lines("\n".join(rows).encode())]))


def _strict(cursor: duckdb.DuckDBPyConnection, table: Table, *keys: str) -> list[tuple[Any, ...]] | str:
    try:
        cursor.execute(conversions.strict_insert(table, conversions.KeyMap.of(table, keys), "lines"))
    except (duckdb.DataError, duckdb.InvalidInputException, duckdb.IntegrityError):
        return REJECTED
    rows = cursor.execute(f"SELECT * FROM {table.path}").fetchall()
    cursor.execute(f"DELETE FROM {table.path}")
    return rows


def _isolated(
    cursor: duckdb.DuckDBPyConnection, table: Table
) -> tuple[list[tuple[Any, ...]], list[tuple[int, str]]]:
    keys = conversions.KeyMap.of(
        table, [k for (k,) in cursor.execute(conversions.lenient_keys_query("lines")).fetchall()]
    )
    cursor.execute(conversions.isolating_stage(table, keys, "lines", "staged"))
    cursor.execute(conversions.isolated_insert(table, keys, "staged"))
    bad = cursor.execute("SELECT i, reason FROM staged WHERE reason IS NOT NULL ORDER BY i").fetchall()
    return cursor.execute(f"SELECT * FROM {table.path}").fetchall(), bad


@pytest.mark.parametrize("kind", VALUES)
def test_value_is_stored_as_snowflake_would_or_rejected(cursor, kind):
    for text, expected in VALUES[kind]:
        table = _table(cursor, Column("C", ColumnType.from_text(kind)))
        _load(cursor, f'{{"C":{text}}}')
        strict = _strict(cursor, table, "C")
        rows, bad = _isolated(cursor, table)
        if expected is REJECTED:
            assert (strict, rows, [row for row, _ in bad]) == (REJECTED, [], [0])
            assert '"C"' in bad[0][1]
        else:
            assert (rows, bad) == ([(expected,)], [])
            # The fast path may refuse what the slow one takes, but never store something else.
            assert strict in (REJECTED, rows)


def test_bad_rows_are_skipped_and_an_absent_key_takes_the_default(cursor):
    table = _table(cursor, Column("ID", ColumnType.from_text("NUMBER(38,0)"), nullable=False))
    _load(
        cursor, '{"id":1}', "not json", '{"ID":2}', "[3]", '{"id":"x"}', '{"other":1}', '{"id":null}',
        '{"Id":4}',
    )  # fmt: skip
    rows, bad = _isolated(cursor, table)
    assert rows == [(1,), (2,), (4,)]
    assert [row for row, _ in bad] == [1, 3, 4, 5, 6]
    number = ColumnType.from_text("NUMBER(38,0)")
    table = _table(cursor, Column("A", number), Column("B", number, default="7"))
    _load(cursor, '{"A":1}', '{"A":2,"B":null}', '{"A":3,"B":5}', '{"x":1}', "{}")
    assert _isolated(cursor, table) == ([(1, 7), (2, None), (3, 5), (None, 7), (None, 7)], [])
    _load(cursor, '{"A":"1"}', "{}")
    assert _strict(cursor, table, "A") is REJECTED
    name = 'it\'s "odd"'
    table = _table(cursor, Column(name, ColumnType.from_text("VARCHAR(10)")))
    _load(cursor, json.dumps({name: "v"}))
    assert _strict(cursor, table, name) == [("v",)]
    assert _isolated(cursor, table) == ([("v",)], [])

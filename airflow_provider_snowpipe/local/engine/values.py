"""What values mean, as macros of the engine: one definition for SQL, COPY and streamed rows.

Names begin with an underscore, which no statement of a client may call. Macros are kept by the instance in
memory, so that they change with the program and not with a database file.
"""

from __future__ import annotations

import duckdb

from airflow_provider_snowpipe.local.types import ZONED

_FORMATTED = (
    "replace(replace(replace(strftime({wall}, f), '\x01', {offset}), "
    "'\x02', left({offset}, 3) || ':' || right({offset}, 2)), '\x03', left({offset}, 3))"
)
_NUMBERS = "('BIGINT', 'UBIGINT', 'HUGEINT', 'DOUBLE')"
_MACROS: dict[str, str] = {
    "_ten(e)": "CAST(power(10, e) AS BIGINT)",
    # The engine reads no blank before an offset; a VARIANT shows its text in quotes.
    "_written(s)": """
        replace(replace(replace(trim(nullif(s, 'null'), ' "'), ' +', '+'), ' -', '-'), ' Z', 'Z')""",
    # A number in a text counts seconds, milliseconds, microseconds or nanoseconds by its size
    # ("TO_TIMESTAMP", usage notes); NULL for another text.
    "_epoch(s)": """
        CASE WHEN contains(s, ':') OR contains(substr(s, 2), '-') THEN NULL
        WHEN abs(TRY_CAST(s AS DOUBLE)) < 31536000000
            THEN make_timestamp(CAST(round(TRY_CAST(s AS DECIMAL(38, 9)) * 1000000) AS BIGINT))
        WHEN contains(s, '.') THEN NULL
        WHEN abs(TRY_CAST(s AS DOUBLE)) < 31536000000000 THEN make_timestamp(TRY_CAST(s AS BIGINT) * 1000)
        WHEN abs(TRY_CAST(s AS DOUBLE)) < 31536000000000000 THEN make_timestamp(TRY_CAST(s AS BIGINT))
        ELSE make_timestamp(TRY_CAST(s AS BIGINT) // 1000) END""",
    # A number that counts parts of a second: n of them are 10 to the power of s.
    "_scaled(n, s)": """
        make_timestamp(CAST(CASE WHEN s > 6
            THEN (CAST(n AS HUGEINT) - (CAST(n AS HUGEINT) % _ten(s - 6) + _ten(s - 6)) % _ten(s - 6))
                // _ten(s - 6)
            ELSE CAST(n AS DECIMAL(28, 6)) * _ten(6 - s) END AS BIGINT))""",
    # A text of a number other than 0 is true: rows of JSON do not tell it from the number.
    "_read_boolean(s)": """
        CASE WHEN s = 'true' THEN true WHEN s = 'false' THEN false
            WHEN regexp_full_match(s, ' *(?i:true|t|yes|y|on|1) *') THEN true
            WHEN regexp_full_match(s, ' *(?i:false|f|no|n|off|0) *') THEN false
            ELSE coalesce(TRY_CAST(s AS DOUBLE) <> 0, CAST(s AS BOOLEAN)) END""",
    # No format stands for these words, which the engine's strptime takes all the same.
    "_finite(s)": "CASE WHEN contains(lower(s), 'inf') OR contains(lower(s), 'epoch') THEN 'x' ELSE s END",
    # The other formats of AUTO ("Date and time input and output formats").
    "_other_clock(s)": """
        CAST(try_strptime(regexp_replace(_finite(s), ' ?[+-][0-9]{2}:?[0-9]{2}$', ''),
            ['%d-%b-%Y', '%m/%d/%Y', '%m/%d/%Y %H:%M:%S', '%a, %d %b %Y %H:%M:%S']) AS TIMESTAMP)""",
    "_other_instant(s)": """
        coalesce(CAST(try_strptime(_finite(s), '%a, %d %b %Y %H:%M:%S%z') AS TIMESTAMP WITH TIME ZONE),
            CAST(_other_clock(s) AS TIMESTAMP WITH TIME ZONE))""",
    "_read_ntz(s)": """
        coalesce(_epoch(_written(s)), TRY_CAST(_written(s) AS TIMESTAMP), _other_clock(_written(s)),
            CAST(nullif(s, 'null') AS TIMESTAMP))""",
    "_read_ltz(s)": """
        coalesce(_epoch(_written(s)) AT TIME ZONE 'UTC',
            TRY_CAST(_written(s) AS TIMESTAMP WITH TIME ZONE),
            _other_instant(_written(s)), CAST(nullif(s, 'null') AS TIMESTAMP WITH TIME ZONE))""",
    "_read_date(s)": """
        coalesce(CAST(_epoch(_written(s)) AS DATE), CAST(TRY_CAST(_written(s) AS TIMESTAMP) AS DATE),
            CAST(_other_clock(_written(s)) AS DATE), CAST(nullif(s, 'null') AS DATE))""",
    "_read_time(s)": """
        coalesce(CAST(_epoch(_written(s)) AS TIME), TRY_CAST(_written(s) AS TIME),
            CAST(try_strptime(_finite(s), '%I:%M:%S %p') AS TIME), CAST(s AS TIME))""",
    # The clock at a place, and its minutes east of UTC.
    "_zoned(wall, o)": """
        CASE WHEN wall IS NOT NULL THEN struct_pack(
            t := (wall - to_minutes(CAST(o AS BIGINT))) AT TIME ZONE 'UTC', o := CAST(o AS SMALLINT)) END""",
    "_at_offset(x, m)": "CASE WHEN x IS NOT NULL THEN struct_pack(t := x, o := CAST(m AS SMALLINT)) END",
    # Instant and clock of what is known to be a TIMESTAMP_TZ: HAVING takes no macro that goes by type.
    "_instant(x)": "(x).t",
    "_clock(x)": "((x).t AT TIME ZONE 'UTC') + to_minutes(CAST((x).o AS BIGINT))",
    "_zoned_local(x)": """
        CASE WHEN x IS NOT NULL THEN struct_pack(
            t := x, o := CAST(date_part('timezone', x) / 60 AS SMALLINT)) END""",
    # One cast leaves an offset aside, the other one counts it.
    "_read_tz(s)": """
        CASE WHEN s IS NOT NULL THEN struct_pack(t := _read_ltz(s), o := CASE
            WHEN _epoch(_written(s)) IS NOT NULL THEN CAST(0 AS SMALLINT)
            ELSE coalesce(CAST(date_diff('minute', _read_ltz(s) AT TIME ZONE 'UTC', _read_ntz(s))
                AS SMALLINT), 0) END) END""",
    # A time that was computed at the offset of another one.
    "_added(wall, x)": "_zoned(CAST(wall AS TIMESTAMP), (x).o)",
    "_in_zone(t, z)": """
        _zoned(t AT TIME ZONE z, date_diff('minute', t AT TIME ZONE 'UTC', t AT TIME ZONE z))""",
    # A FLOAT without a fraction has no point.
    "_float_text(x)": """
        CASE WHEN x = trunc(x) AND abs(x) < 1e15 THEN CAST(CAST(x AS BIGINT) AS VARCHAR)
            ELSE CAST(x AS VARCHAR) END""",
    "_offset_text(o)": """
        CASE WHEN o < 0 THEN '-' ELSE '+' END || lpad(CAST(abs(CAST(o AS INTEGER)) // 60 AS VARCHAR), 2, '0')
            || lpad(CAST(abs(CAST(o AS INTEGER)) % 60 AS VARCHAR), 2, '0')""",
    # The engine chooses no macro by the type of an aggregate: these are called where the type is known.
    "_format_date(x, f)": "strftime(x, f)",
    "_format_time(x, f)": "strftime(DATE '1970-01-01' + x, f)",
    "_format_timestamp_ntz(x, f)": _FORMATTED.format(wall="x", offset="'+0000'"),
    "_format_timestamp_ltz(x, f)": _FORMATTED.format(
        wall="x", offset="_offset_text(date_part('timezone', x) // 60)"
    ),
    "_format_timestamp_tz(x, f)": _FORMATTED.format(wall="_clock(x)", offset="_offset_text((x).o)"),
    # Objects with their keys in order, so that equal ones have the same text. The engine's own VARIANT sorts
    # them, but rounds numbers of more than 16 digits.
    "_sorted_keys(j)": """
        CASE WHEN j IS NULL OR NOT contains(CAST(j AS VARCHAR), '{')
            OR regexp_matches(CAST(j AS VARCHAR), '[0-9][0-9.]{16}') THEN j
        ELSE CAST(CAST(j AS VARIANT) AS JSON) END""",
    # ARRAY makes an array of any other value, OBJECT takes nothing else ("TO_ARRAY", "TO_OBJECT").
    "_array(j)": """
        CASE WHEN j IS NULL OR json_type(j) = 'NULL' THEN NULL WHEN json_type(j) = 'ARRAY' THEN j
            ELSE json_array(j) END""",
    "_object(j)": """
        CASE WHEN j IS NULL OR json_type(j) = 'NULL' THEN NULL WHEN json_type(j) = 'OBJECT' THEN j
            ELSE error('Failed to cast variant value ' || j || ' to OBJECT') END""",
    # A number with an exponent stays a DOUBLE: json() would write it without.
    "_parse_json(t)": """
        _sorted_keys(CASE WHEN regexp_full_match(t, '\\s*-?[0-9.]+[eE][+-]?[0-9]+\\s*')
            THEN CAST(trim(t) AS JSON) ELSE json(t) END)""",
    "_variant_type(v)": """
        CASE WHEN v IS NULL THEN NULL
            WHEN json_type(to_json(v)) IN ('BIGINT', 'UBIGINT', 'HUGEINT') THEN 'INTEGER'
            WHEN json_type(to_json(v)) = 'NULL' THEN 'NULL_VALUE'
            WHEN json_type(to_json(v)) <> 'DOUBLE' THEN json_type(to_json(v))
            WHEN contains(lower(CAST(v AS VARCHAR)), 'e') THEN 'DOUBLE' ELSE 'DECIMAL' END""",
    # What VARIANT values are compared and ordered by: their type first, then the number or the text.
    "_variant_key(j)": f"""
        CASE WHEN j IS NOT NULL THEN struct_pack(
            rank := CASE json_type(j) WHEN 'NULL' THEN 0 WHEN 'BOOLEAN' THEN 1 WHEN 'VARCHAR' THEN 3
                WHEN 'ARRAY' THEN 4 WHEN 'OBJECT' THEN 5 ELSE 2 END,
            number := CASE WHEN json_type(j) IN {_NUMBERS} THEN CAST(j AS DOUBLE) END,
            digits := CASE WHEN json_type(j) IN {_NUMBERS}
                THEN TRY_CAST(CAST(j AS VARCHAR) AS DECIMAL(38, 12)) END,
            written := CASE WHEN json_type(j) NOT IN {_NUMBERS}
                THEN CAST(_sorted_keys(j) AS VARCHAR) END) END""",
}

# Values of every type as a timestamp; a number counts seconds. The engine chooses by the argument's type.
_BY_TYPE: dict[str, dict[str, str]] = {
    "_ntz": {
        "VARCHAR": "_read_ntz(x)",
        "TIMESTAMP": "x",
        "TIMESTAMP WITH TIME ZONE": "CAST(x AS TIMESTAMP)",
        ZONED: "_clock(x)",
        "DATE": "CAST(x AS TIMESTAMP)",
        "BIGINT": "make_timestamp(x * 1000000)",
        "DECIMAL(38, 9)": "make_timestamp(CAST(x * 1000000 AS BIGINT))",
        "DOUBLE": "make_timestamp(CAST(x * 1000000 AS BIGINT))",
    },
    "_ltz": {
        "VARCHAR": "_read_ltz(x)",
        "TIMESTAMP": "CAST(x AS TIMESTAMP WITH TIME ZONE)",
        "TIMESTAMP WITH TIME ZONE": "x",
        ZONED: "x.t",
        "DATE": "CAST(CAST(x AS TIMESTAMP) AS TIMESTAMP WITH TIME ZONE)",
        "BIGINT": "make_timestamp(x * 1000000) AT TIME ZONE 'UTC'",
        "DECIMAL(38, 9)": "make_timestamp(CAST(x * 1000000 AS BIGINT)) AT TIME ZONE 'UTC'",
        "DOUBLE": "make_timestamp(CAST(x * 1000000 AS BIGINT)) AT TIME ZONE 'UTC'",
    },
    "_tz": {
        "VARCHAR": "_read_tz(x)",
        "TIMESTAMP": "_zoned_local(CAST(x AS TIMESTAMP WITH TIME ZONE))",
        "TIMESTAMP WITH TIME ZONE": "_zoned_local(x)",
        ZONED: "x",
        "DATE": "_zoned_local(CAST(CAST(x AS TIMESTAMP) AS TIMESTAMP WITH TIME ZONE))",
        "BIGINT": "_zoned(make_timestamp(x * 1000000), 0)",
        "DECIMAL(38, 9)": "_zoned(make_timestamp(CAST(x * 1000000 AS BIGINT)), 0)",
        "DOUBLE": "_zoned(make_timestamp(CAST(x * 1000000 AS BIGINT)), 0)",
    },
    # Text for BINARY is hexadecimal, as BINARY_INPUT_FORMAT is.
    "_binary": {"BLOB": "x", "VARCHAR": "unhex(x)"},
    "_boolean": {
        "VARCHAR": "_read_boolean(x)",
        "BOOLEAN": "x",
        "BIGINT": "x <> 0",
        "DECIMAL(38, 9)": "x <> 0",
        "DOUBLE": "x <> 0",
    },
    "_date": {
        "VARCHAR": "_read_date(x)",
        "DATE": "x",
        "TIMESTAMP": "CAST(x AS DATE)",
        "TIMESTAMP WITH TIME ZONE": "CAST(x AS DATE)",
        ZONED: "CAST(_ntz(x) AS DATE)",
    },
    "_time": {
        "VARCHAR": "_read_time(x)",
        "TIME": "x",
        "TIMESTAMP": "CAST(x AS TIME)",
        "TIMESTAMP WITH TIME ZONE": "CAST(CAST(x AS TIMESTAMP) AS TIME)",
        ZONED: "CAST(_ntz(x) AS TIME)",
    },
    # Digits of a fraction that a type does not keep are cut off; f is the microseconds of its last digit.
    "_cut": {
        "TIME": "CAST(DATE '1970-01-01' + x - to_microseconds(epoch_us(DATE '1970-01-01' + x) % f) AS TIME)",
        "TIMESTAMP": "x - to_microseconds((epoch_us(x) % f + f) % f)",
        "TIMESTAMP WITH TIME ZONE": "x - to_microseconds((epoch_us(x) % f + f) % f)",
        ZONED: "_at_offset(x.t - to_microseconds((epoch_us(x.t) % f + f) % f), x.o)",
    },
    # Text in a format, in which \x01, \x02 and \x03 stand for an offset.
    "_formatted": {
        "DATE": "_format_date(x, f)",
        "TIME": "_format_time(x, f)",
        "TIMESTAMP": "_format_timestamp_ntz(x, f)",
        "TIMESTAMP WITH TIME ZONE": "_format_timestamp_ltz(x, f)",
        ZONED: "_format_timestamp_tz(x, f)",
    },
}


def define(connection: duckdb.DuckDBPyConnection) -> None:
    """Define the macros in an instance, before a database is attached to it."""
    for signature, body in _MACROS.items():
        connection.execute(f"CREATE OR REPLACE MACRO {signature} AS {body}")
    for name, bodies in _BY_TYPE.items():
        more = ", f" if name in {"_formatted", "_cut"} else ""
        forms = ", ".join(f"(x {kind}{more}) AS {body}" for kind, body in bodies.items())
        connection.execute(f"CREATE OR REPLACE MACRO {name} {forms}")

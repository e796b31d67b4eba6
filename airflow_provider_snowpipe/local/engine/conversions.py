# ruff: noqa: S608 - names go through tables.quote, values are bound.
"""What a value means, in DuckDB's words: macros, conversions of one JSON value, typed rows from NDJSON."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from duckdb.sqltypes import BOOLEAN, VARCHAR

from airflow_provider_snowpipe.local.engine.append import MOST_LEVELS, is_deep
from airflow_provider_snowpipe.local.tables import ZONED, Column, Table, literal, quote

# -- What values mean, as macros of the engine: one definition for SQL, COPY and streamed rows -----------
#
# Names begin with an underscore, which no statement of a client may call. Macros are kept by the instance
# in memory, so that they change with the program and not with a database file.

_FORMATTED = (
    "replace(replace(replace(strftime({wall}, f), '\x01', {offset}), "
    "'\x02', left({offset}, 3) || ':' || right({offset}, 2)), '\x03', left({offset}, 3))"
)
_NUMBERS = "('BIGINT', 'UBIGINT', 'HUGEINT', 'DOUBLE')"
_HOURS = (
    r"(?:[01]?[0-9]|2[0-4])(?::[0-9]{1,2}(?::[0-9]{1,2}(?:\.[0-9]*)?)?)?"
    r"(?:[Zz]|[+-][0-9]{1,2}(?::?[0-9]{2})?)?"
)
_LONG = "'[0-9][0-9.]{16}'"
# What the engine may have rounded: 15 digits around a point, or an exponent.
_ROUNDED = r"""[0-9.]{16}|(?:^|[^0-9A-Za-z"-])-?[0-9.]+e"""
_SUSPECT = "'[0-9.]{16}|[0-9.]e'"
_OTHER_JSON = r'("(?:[^"\\]|\\.)*"|-?[0-9.]+[eE][+-]?[0-9]+)'
_MACROS: dict[str, str] = {
    "_ten(e)": "CAST(power(10, e) AS BIGINT)",
    # A VARIANT shows its text in quotes. Enough for what has no offset: _epoch makes eight copies of its
    # argument, and with _written in each a cast takes half as long again to prepare.
    "_bare(s)": "trim(s, ' \"')",
    # The engine reads no blank before an offset.
    "_written(s)": """
        replace(replace(replace(_bare(s), ' +', '+'), ' -', '-'), ' Z', 'Z')""",
    # The engine's casts read "infinity", "epoch", names of zones, and leave aside what follows a time. No
    # cast reads what begins with chr(1), which errors do not show.
    "_iso(s)": rf"""
        CASE WHEN NOT regexp_full_match(s, '[0-9]{{4,6}}[-/][0-9]{{1,2}}[-/][0-9]{{1,2}}(?:[Tt ]{_HOURS})?')
            THEN chr(1) || s ELSE s END""",
    "_iso_time(s)": f"CASE WHEN NOT regexp_full_match(s, '{_HOURS}') THEN chr(1) || s ELSE s END",
    # Cheaper: what ends with another letter than Z is left to the slow path.
    "_ended(s)": """
        CASE WHEN s[-1] BETWEEN '0' AND '9' OR s[-1] = 'Z' OR s IS NULL THEN s ELSE chr(1) || s END""",
    # The engine reads the time of a date with a year of five digits as a time.
    "_ended_time(s)": "CASE WHEN s[3] = ':' OR s IS NULL THEN _ended(s) ELSE chr(1) || s END",
    # The engine takes an odd number of digits, and its error for other characters is no Unicode.
    "_hex(s)": """
        unhex(CASE WHEN regexp_full_match(s, '(?:[0-9A-Fa-f]{2})*') OR s IS NULL THEN s ELSE 'x' END)""",
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
    # A text of a number other than 0 is true: rows of JSON do not distinguish it from the number.
    "_read_boolean(s)": """
        CASE WHEN s = 'true' THEN true WHEN s = 'false' THEN false
            WHEN regexp_full_match(s, ' *(?i:true|t|yes|y|on|1) *') THEN true
            WHEN regexp_full_match(s, ' *(?i:false|f|no|n|off|0) *') THEN false
            ELSE coalesce(TRY_CAST(s AS DOUBLE) <> 0, CAST(s AS BOOLEAN)) END""",
    # No format stands for these words, which the engine's strptime takes all the same.
    "_finite(s)": "CASE WHEN contains(lower(s), 'inf') OR contains(lower(s), 'epoch') THEN 'x' ELSE s END",
    # The other formats of AUTO ("Date and time input and output formats").
    "_other_clock(s)": """
        CAST(try_strptime(regexp_replace(_finite(s), '(:.*?) ?[+-][0-9]{2}:?[0-9]{2}$', '\\1'),
            ['%d-%b-%Y', '%m/%d/%Y', '%m/%d/%Y %H:%M:%S', '%a, %d %b %Y %H:%M:%S',
                '%a, %d %b %Y %I:%M:%S %p', '%Y-%m-%d %H:%M', '%Y-%m-%d %H', '%Y-%m-%dT%H']) AS TIMESTAMP)""",
    "_other_instant(s)": """
        coalesce(CAST(try_strptime(_finite(s), '%a, %d %b %Y %H:%M:%S%z') AS TIMESTAMP WITH TIME ZONE),
            CAST(try_strptime(_finite(s), ['%Y-%m-%dT%H:%M%z', '%Y-%m-%d %H:%M%z'])
                AS TIMESTAMP WITH TIME ZONE),
            CAST(_other_clock(s) AS TIMESTAMP WITH TIME ZONE))""",
    "_read_ntz(s)": """
        coalesce(_epoch(_bare(s)), TRY_CAST(_iso(_written(s)) AS TIMESTAMP), _other_clock(_written(s)),
            CAST(_iso(s) AS TIMESTAMP))""",
    "_read_ltz(s)": """
        coalesce(_epoch(_bare(s)) AT TIME ZONE 'UTC',
            TRY_CAST(_iso(_written(s)) AS TIMESTAMP WITH TIME ZONE),
            _other_instant(_written(s)), CAST(_iso(s) AS TIMESTAMP WITH TIME ZONE))""",
    "_read_date(s)": """
        coalesce(CAST(_epoch(_bare(s)) AS DATE), CAST(TRY_CAST(_iso(_written(s)) AS TIMESTAMP) AS DATE),
            CAST(_other_clock(_written(s)) AS DATE), CAST(_iso(s) AS DATE))""",
    "_read_time(s)": """
        coalesce(CAST(_epoch(_bare(s)) AS TIME), TRY_CAST(_iso_time(_written(s)) AS TIME),
            CAST(try_strptime(_finite(_bare(s)), ['%I:%M:%S %p', '%I:%M %p']) AS TIME),
            CAST(_iso_time(s) AS TIME))""",
    # The local time, and its minutes east of UTC.
    "_zoned(wall, o)": """
        CASE WHEN wall IS NOT NULL THEN struct_pack(
            t := (wall - to_minutes(CAST(o AS BIGINT))) AT TIME ZONE 'UTC', o := CAST(o AS SMALLINT)) END""",
    # Of a text that ends with an offset.
    "_minutes_east(s)": """
        CASE WHEN regexp_matches(s, '-[0-9]{2}:?([0-9]{2})?\\s*$') THEN -1 ELSE 1 END
            * (60 * coalesce(TRY_CAST(regexp_extract(s, '[+-]([0-9]{2}):?([0-9]{2})?\\s*$', 1) AS INTEGER), 0)
                + coalesce(TRY_CAST(regexp_extract(s, '[+-][0-9]{2}:?([0-9]{2})\\s*$', 1) AS INTEGER), 0))""",
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
            WHEN _epoch(_bare(s)) IS NOT NULL THEN CAST(0 AS SMALLINT)
            ELSE coalesce(CAST(date_diff('minute', _read_ltz(s) AT TIME ZONE 'UTC', _read_ntz(s))
                AS SMALLINT), 0) END) END""",
    # A time that was computed at the offset of another one.
    "_added(wall, x)": "_zoned(CAST(wall AS TIMESTAMP), (x).o)",
    "_in_zone(t, z)": """
        _zoned(t AT TIME ZONE z, date_diff('minute', t AT TIME ZONE 'UTC', t AT TIME ZONE z))""",
    "_float_text(x)": "CASE WHEN isnan(x) THEN 'NaN' ELSE format('{:.15g}', x) END",
    # The digits of a number without zeros at the end; those of a DOUBLE may have an exponent.
    "_digits(t)": r"""
        CASE WHEN NOT contains(t, '.') AND NOT contains(t, 'e') THEN t
            WHEN NOT contains(t, 'e') THEN regexp_replace(t, '\.?0+$', '')
            WHEN abs(CAST(t AS DOUBLE)) < 1
                THEN regexp_replace(CAST(CAST(t AS DECIMAL(38, 37)) AS VARCHAR), '\.?0+$', '')
            ELSE coalesce(CAST(TRY_CAST(CAST(t AS DOUBLE) AS DECIMAL(38, 0)) AS VARCHAR), t) END""",
    "_zone_part(x, unit)": "CAST(CASE unit WHEN 'h' THEN trunc((x).o / 60) ELSE (x).o % 60 END AS BIGINT)",
    # The time of the day counts, but on the same day of the month and on the last days of both.
    "_months_between(a, b)": """
        (year(a) - year(b)) * 12 + month(a) - month(b) + CASE
            WHEN day(a) = day(b) OR (CAST(a AS DATE) = last_day(a) AND CAST(b AS DATE) = last_day(b)) THEN 0
            ELSE (day(a) - day(b) + (epoch_us(a) % 86400000000 - epoch_us(b) % 86400000000) / 86400000000.0)
                / 31 END""",
    "_hash_key(x)": """
        CASE WHEN regexp_full_match(typeof(x), 'U?[A-Z]*INT|INTEGER|DECIMAL.*|DOUBLE|FLOAT')
            THEN hash(chr(1) || _digits(CAST(x AS VARCHAR))) ELSE hash(x) END""",
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
    # The engine reads a number inside JSON of more than 16 digits through a DOUBLE: it gets it as a text that
    # begins with a mark, which no JSON of its own has.
    "_mark(t)": rf"""
        replace(replace(replace(regexp_replace(CAST(t AS VARCHAR), '{_OTHER_JSON}|(-?[0-9][0-9.]{{16,}})',
            '\1' || chr(2) || '\2' || chr(3), 'g'), chr(2) || chr(3), ''), chr(2), '"\u0001'), chr(3), '"')
        """,
    "_marked(t)": f"CASE WHEN regexp_matches(t, {_LONG}) THEN CAST(_mark(t) AS JSON) ELSE t END",
    "_unmark(t)": r"""regexp_replace(t, '"\\u0001(-?[0-9.]+)"', '\1', 'g')""",
    "_unmarked(j)": "CASE WHEN contains(j, '\\u0001') THEN CAST(_unmark(j) AS JSON) ELSE j END",
    # _shallow stands inside the cast: the engine computes all branches of constants.
    # Objects with their keys in order, so that equal ones have the same text.
    "_sorted_keys(j)": f"""
        CASE WHEN j IS NULL OR NOT contains(CAST(j AS VARCHAR), '{{')
            OR regexp_matches(CAST(j AS VARCHAR), {_LONG}) THEN j
        ELSE CAST(CAST(_shallow(j) AS VARIANT) AS JSON) END""",
    # Arrays and objects are put together as text, which leaves the digits of numbers as they are.
    "_element(j)": "coalesce(CAST(j AS VARCHAR), 'null')",
    "_pair(k, j)": "to_json(k) || ':' || j",
    "_enclosed(a, z, t)": "CAST(a || t || z AS JSON)",
    "_elements(j)": "CAST(_marked(j) AS JSON[])",
    "_array_of(l)": """
        CAST(_unmark('[' || array_to_string(list_transform(l, lambda e: coalesce(CAST(e AS VARCHAR), 'null')),
            ',') || ']') AS JSON)""",
    "_object_of(m)": """
        CAST(_unmark('{' || array_to_string(list_transform(list_sort(map_entries(m)),
            lambda e: to_json(e['key']) || ':' || e['value']), ',') || '}') AS JSON)""",
    # The text of a VARIANT that becomes a number.
    "_number_text(j)": """
        CASE CAST(j AS VARCHAR) WHEN 'true' THEN '1' WHEN 'false' THEN '0'
            ELSE json_extract_string(j, '$') END""",
    # ARRAY makes an array of any other value, OBJECT takes nothing else ("TO_ARRAY", "TO_OBJECT").
    "_array(j)": """
        CASE WHEN j IS NULL OR json_type(j) = 'NULL' THEN NULL WHEN json_type(j) = 'ARRAY' THEN j
            ELSE CAST('[' || j || ']' AS JSON) END""",
    "_object(j)": """
        CASE WHEN j IS NULL OR json_type(j) = 'NULL' THEN NULL WHEN json_type(j) = 'OBJECT' THEN j
            ELSE error('Failed to cast variant value ' || j || ' to OBJECT') END""",
    # Of n elements; a negative position counts from the end ("ARRAY_SLICE").
    "_index(i, n)": "CASE WHEN i < 0 THEN greatest(n + CAST(i AS BIGINT), 0) ELSE CAST(i AS BIGINT) END",
    "_member(j, k)": "json_extract(j, '/' || replace(replace(k, '~', '~0'), '/', '~1'))",
    "_picked(j, keys)": """
        _object_of(map_from_entries(list_transform(list_filter(json_keys(j),
            lambda k: list_contains(keys, k)), lambda k: row(k, _member(j, k)))))""",
    "_inserted(j, k, v, replaces)": """
        CASE WHEN NOT replaces AND list_contains(json_keys(j), k)
            THEN error('the object has the key ' || k)
        ELSE _object_of(map_from_entries(list_concat(
            list_transform(list_filter(json_keys(j), lambda n: n <> k), lambda n: row(n, _member(j, n))),
            CASE WHEN v IS NULL THEN [] ELSE [row(k, v)] END))) END""",
    # What a path finds, r, with the digits that the document d has at p. All of this is prepared for every
    # path of a statement, so that the condition is a short one, and the function has the exact one.
    "_exact(r, d, p)": f"""
        CASE WHEN regexp_matches(r, {_SUSPECT}) THEN CAST(_as_written(r, d, p) AS JSON) ELSE r END""",
    "_exact_text(r, d, p)": f"CASE WHEN regexp_matches(r, {_SUSPECT}) THEN _as_written(r, d, p) ELSE r END",
    # Columns of FLATTEN, from the engine's path and key of an element.
    "_flat_key(f, k)": "CASE WHEN NOT f LIKE '%]' THEN k END",
    "_flat_path(f)": r"""
        regexp_replace(regexp_replace(f, '\."([^"]*)"', '[''\1'']', 'g'), '^\$\.?', '')""",
    # The input may be an array of the engine's own, as SPLIT makes one.
    "_flat_this(r, d, p)": "_exact(r, CAST(d AS VARCHAR), p)",
    "_flat_value(v, d, p)": "_flat_this(coalesce(v, CAST('null' AS JSON)), d, p)",
    # Without blanks between values, so that equal arrays have the same text; _sorted_keys does it to objects.
    "_compact(j)": rf"""
        CASE WHEN starts_with(j, '{{') AND NOT regexp_matches(j, {_LONG}) THEN j
            ELSE CAST(regexp_replace(j, '{_OTHER_JSON}|[ \t\r\n]+', '\1', 'g') AS JSON) END""",
    # A text of JSON, NULL when it is nested so deeply that the engine's stack has no room for its value.
    "_shallow(t)": f"CASE WHEN strlen(t) <= {2 * MOST_LEVELS} OR NOT _is_deep(t) THEN t END",
    # The path leaves out the value itself: it is wrapped, after a sign by which an error is known.
    "_has_key_twice(t)": """
        contains(t, '{') AND len(list_filter(
            CAST(json_keys('\t[' || _shallow(t) || ']', '$..*') AS VARCHAR[][]),
            lambda k: len(k) <> list_unique(k))) > 0""",
    # A number with an exponent stays a DOUBLE: json() would write it without. What is too deep is no JSON to
    # json(): error() would keep the engine from taking the value by its alias. Not with _sorted_keys, which
    # would write all of it seven times: the engine took 5 ms to prepare a statement.
    "_parse_json(t)": f"""
        CASE WHEN trim(t, ' \t\r\n') = '' THEN NULL
            WHEN t IS NOT NULL AND _shallow(t) IS NULL THEN json('more than {MOST_LEVELS} levels')
            WHEN regexp_full_match(t, '\\s*-?[0-9.]+[eE][+-]?[0-9]+\\s*') THEN CAST(trim(t) AS JSON)
            WHEN regexp_matches(t, {_LONG}) AND json_valid(t)
                THEN CAST(_unmark(CAST(CAST(CAST(_mark(_shallow(t)) AS JSON) AS VARIANT) AS JSON)) AS JSON)
            WHEN NOT contains(t, '{{') THEN json(t)
            ELSE CAST(CAST(json(_shallow(t)) AS VARIANT) AS JSON) END""",
    "_try_parse_json(t)": "CASE WHEN json_valid(t) AND _shallow(t) IS NOT NULL THEN _parse_json(t) END",
    # An object that has a key twice is no JSON. Not a condition inside the argument of _parse_json, which
    # would write it eight times: the engine took 4 ms to prepare a statement.
    "_parse_json_once(t)": """
        CASE WHEN _has_key_twice(t) THEN json('duplicate object attribute') ELSE _parse_json(t) END""",
    "_try_parse_json_once(t)": """
        CASE WHEN NOT coalesce(TRY(_has_key_twice(t)), TRUE) THEN _try_parse_json(t) END""",
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
    "_binary": {"BLOB": "x", "VARCHAR": "_hex(x)"},
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


def define_function(connection: duckdb.DuckDBPyConnection) -> None:
    """Define what no macro can do; it is called for long texts only."""
    connection.create_function("_is_deep", _is_deep, [VARCHAR], BOOLEAN)
    # The stubs have classes for what the engine takes by its name as well.
    kinds: Any = {"type": "arrow", "null_handling": "special"}
    connection.create_function("_as_written", _as_written, [VARCHAR] * 3, VARCHAR, **kinds)


# -- Numbers of JSON as their document has them: the engine writes those with a fraction through a DOUBLE --

_STEP = re.compile(r'\."((?:[^"\\]|\\.)*)"|\.([^."\[]+)|\[(\d+)\]')
# Begins the text of a number that is read as a text; no text of a document begins with it.
_DIGITS = "\x01"
_MARKED_DIGITS = re.compile(r'"\\u0001([^"]*)"')


def _as_written(found: pa.ChunkedArray, documents: pa.ChunkedArray, paths: pa.ChunkedArray) -> pa.Array:
    """Return what the engine found at paths, with the digits that numbers have in the documents."""
    is_rounded = pc.match_substring_regex(found, _ROUNDED)
    if not pc.any(is_rounded).as_py():
        return found
    rows = zip(*(part.to_pylist() for part in (is_rounded, found, documents, paths)), strict=True)
    return pa.array(
        [_written_at(text, document, path) if rounded else text for rounded, text, document, path in rows],
        pa.string(),
    )


def _written_at(found: str, document: str, path: str) -> str:
    try:
        value = json.loads(document, parse_float=_digits, parse_int=_digits)
        for key in _steps(path):
            value = value[key]  # the engine found it there
        if not isinstance(value, str):
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            return _MARKED_DIGITS.sub(r"\1", text)
    except (RecursionError, ValueError):
        # More levels than Python reads, or what the engine tolerates: a comma at the end.
        return found
    return value[1:] if value.startswith(_DIGITS) else found


def _digits(text: str) -> str:
    return _DIGITS + text


@functools.lru_cache(maxsize=1024)
def _steps(path: str) -> list[str | int]:
    """Return keys and positions of a path of the engine's."""
    return [
        int(index) if index else name or (json.loads(f'"{quoted}"') if quoted else "")
        for quoted, name, index in _STEP.findall(path)
    ]


# The engine asks for a constant again and again while it makes an expression simpler.
@functools.lru_cache(maxsize=1)
def _is_deep(text: str) -> bool:
    return is_deep(text.encode())


def define(connection: duckdb.DuckDBPyConnection) -> None:
    """Define the macros in an instance, before a database is attached to it."""
    define_function(connection)
    for signature, body in _MACROS.items():
        connection.execute(f"CREATE OR REPLACE MACRO {signature} AS {body}")
    for name, bodies in _BY_TYPE.items():
        more = ", f" if name in {"_formatted", "_cut"} else ""
        forms = ", ".join(f"(x {kind}{more}) AS {body}" for kind, body in bodies.items())
        connection.execute(f"CREATE OR REPLACE MACRO {name} {forms}")


# -- DuckDB expressions that convert one JSON value to the type of its column, as Snowflake's casts do ---

# The type that the plain cast gives, and the macro that reads every text (module engine.values).
_TIMES = {
    "DATE": ("DATE", "_read_date"), "TIME": ("TIME", "_read_time"),
    "TIMESTAMP_NTZ": ("TIMESTAMP", "_read_ntz"), "TIMESTAMP_LTZ": ("TIMESTAMP WITH TIME ZONE", "_read_ltz"),
}  # fmt: skip


def convert_with(column: Column, raw: str, cast: str) -> str:
    """Return the conversion of a JSON value to a column's type, before numbers and texts are cast.

    :param raw: expression of the text; of the JSON itself for VARIANT, OBJECT and ARRAY.
    :param cast: ``CAST`` fails on what it cannot convert, ``TRY_CAST`` gives NULL.
    """
    kind = column.type.kind
    if kind in _CONVERSIONS:
        return cut(column, _CONVERSIONS[kind](raw, cast))
    if kind in {"NUMBER", "VARCHAR", "VARIANT"}:
        return raw
    return f"{cast}({raw} AS {column.type.duckdb})"


def cut(column: Column, value: str) -> str:
    """Return an expression of a TIME or TIMESTAMP without the digits that its column does not keep."""
    kept = column.type.kept_micros
    return value if kept == 1 else f"_cut({value}, {kept})"


def _read(macro: str) -> Callable[[str, str], str]:
    return lambda raw, cast: f"{macro}({raw})" if cast == "CAST" else f"TRY({macro}({raw}))"


def _object(raw: str, cast: str) -> str:
    # The name of another JSON type is no JSON, so this cast fails; error() could not stand inside TRY.
    otherwise = f"CAST(json_type({raw}) AS JSON)" if cast == "CAST" else "NULL"
    return (
        f"CASE WHEN {raw} IS NULL THEN NULL WHEN json_type({raw}) = 'OBJECT' THEN {raw} ELSE {otherwise} END"
    )


def _array(raw: str, _cast: str) -> str:
    wrapped = f"CASE WHEN json_type({raw}) = 'ARRAY' THEN {raw} ELSE json_array({raw}) END"
    return f"CASE WHEN {raw} IS NOT NULL THEN {wrapped} END"


def _time(kind: str) -> Callable[[str, str], str]:
    target, macro = _TIMES[kind]
    # The plain cast is several times as fast; what it refuses, the macro reads in the isolating path.
    return lambda raw, cast: (
        f"TRY({macro}({raw}))"
        if cast == "TRY_CAST"
        else f"CAST({'_ended_time' if kind == 'TIME' else '_ended'}({raw}) AS {target})"
    )


_CONVERSIONS: dict[str, Callable[[str, str], str]] = {
    "BOOLEAN": _read("_read_boolean"),
    "BINARY": _read("from_base64"),
    "OBJECT": _object,
    "ARRAY": _array,
    "TIMESTAMP_TZ": _read("_read_tz"),
    **{kind: _time(kind) for kind in _TIMES},
}


def convert(column: Column, raw: str) -> str:
    """Return a DuckDB expression that turns a JSON value's text (or JSON) into a column's type, or fails.

    :param raw: expression of the text; of the JSON itself for VARIANT, OBJECT and ARRAY.
    """
    if column.type.kind in _TIMES:
        return cut(column, f"{_TIMES[column.type.kind][1]}({raw})")
    return f"CAST({convert_with(column, raw, 'CAST')} AS {column.type.duckdb})"


# What reads a value of any type as one of these.
MACROS = {
    "BOOLEAN": "_boolean", "DATE": "_date", "TIME": "_time", "TIMESTAMP_NTZ": "_ntz", "TIMESTAMP_LTZ": "_ltz",
    "TIMESTAMP_TZ": "_tz",
}  # fmt: skip


def cast(column: Column, value: str, *, tried: bool = False) -> str:
    """Return a cast of a value that may have any type to the type of a column.

    :param tried: the cast gives NULL where it fails.
    """
    if column.type.kind.startswith("TIMESTAMP"):
        read = f"{MACROS[column.type.kind]}({value})"
        return cut(column, f"TRY({read})" if tried else read)
    return f"{'TRY_' if tried else ''}CAST({value} AS {column.type.duckdb})"


def try_convert(column: Column, raw: str) -> str:
    """Return a DuckDB expression that turns a text (or JSON) into a column's type; NULL when it cannot.

    :param raw: expression of the text; of the JSON itself for VARIANT, OBJECT and ARRAY.
    """
    if column.type.kind == "NUMBER":
        return f"TRY_CAST({raw} AS {column.type.duckdb})"
    return convert_with(column, raw, "TRY_CAST")


def too_long(column: Column, value: str) -> str | None:
    """Return the condition that a value is longer than its column, or None when the type has no length."""
    limit = column.type.length
    if limit is None:
        return None
    measure = "octet_length" if column.type.kind == "BINARY" else "length"
    return f"{measure}({value}) > {limit}"


# -- Why a row cannot be stored: branches of the CASE that names the reason, without the value -----------

# The line ``l`` as JSON, NULL when it is no object.
AS_OBJECT = "CASE WHEN json_valid(l) THEN CASE WHEN json_type(l) = 'OBJECT' THEN l::JSON END END"
NOT_AN_OBJECT = "WHEN j IS NULL THEN 'the row is not a JSON object'"


def column_reasons(column: Column, value: str, *, failed: str, why: str) -> str:
    """Return the branches for one column: not converted, too long, absent but required.

    :param value: expression of the converted value.
    :param failed: condition under which the conversion failed.
    :param why: the error's text then.
    """
    name = f"column {quote(column.name)}"
    parts = [f"WHEN {failed} THEN {literal(f'{name}: {why}')}"]
    longer = too_long(column, value)
    if longer is not None:
        parts.append(f"WHEN {longer} THEN {literal(f'{name}: the value is longer than {column.type}')}")
    if not column.nullable:
        parts.append(required(column, f"{value} IS NULL"))
    return " ".join(parts)


def required(column: Column, missing: str = "true") -> str:
    """Return the branch for a column that must have a value.

    :param missing: condition under which it has none.
    """
    return f"WHEN {missing} THEN {literal(f'column {quote(column.name)}: a value is required (NOT NULL)')}"


# -- SQL that turns NDJSON lines into typed rows: a strict fast path and an isolating slow path that agree --
#
# Measured facts behind the shape of these statements (DuckDB 2.0.0):
#
# * ``read_json`` and an extraction as VARCHAR print fractional numbers through a double; a spec of
#   ``DECIMAL(p,s)`` reads the digits exactly, and rounds half away from zero as Snowflake does.
# * ``json_transform_strict`` fails on a missing or duplicate key, on a malformed line and on a non-object,
#   but accepts extra keys; so the keys of the whole group must be known before columns may be left out.
# * Without the ``OFFSET 0`` fence the optimizer parses the JSON once per column.
# * Struct field names ignore case; two spellings of one key need two specs.


@dataclass(frozen=True, slots=True)
class KeyMap:
    """Which JSON keys feed which columns, for one group of lines.

    :param columns: columns that at least one key names, with the spellings of that key.
    """

    columns: tuple[tuple[Column, tuple[str, ...]], ...]

    @classmethod
    def of(cls, table: Table, keys: Sequence[str], *, case_sensitive: bool = False) -> KeyMap:
        """Match keys to columns, ignoring case (default pipes use MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE).

        :param keys: distinct keys, in any order.
        :param case_sensitive: for a pipe with MATCH_BY_COLUMN_NAME = CASE_SENSITIVE.
        """
        spellings: dict[str, list[str]] = {}
        for key in keys:
            spellings.setdefault(key if case_sensitive else key.upper(), []).append(key)
        matched = []
        for column in table.columns:
            found = spellings.get(column.name if case_sensitive else column.name.upper())
            if found:
                # An exact spelling wins over others in one and the same row.
                exact = [key for key in found if key == column.name]
                others = sorted(key for key in found if key != column.name)
                matched.append((column, (*exact, *others)))
        return cls(tuple(matched))

    def covers(self, table: Table) -> bool:
        """True when every column of the table is named by a key."""
        return len(self.columns) == len(table.columns)

    def has_one_spelling_each(self) -> bool:
        """True when no column is named in two spellings."""
        return all(len(spellings) == 1 for _, spellings in self.columns)


def keys_query(source: str) -> str:
    """Return a query for the distinct top-level keys of all lines; it fails on malformed lines."""
    return f"SELECT DISTINCT unnest(json_keys(l)) FROM {source}"


def lenient_keys_query(source: str) -> str:
    """Return a query for the distinct top-level keys of those lines that are JSON objects."""
    return (
        f"SELECT DISTINCT unnest(json_keys(l)) FROM (SELECT CASE WHEN json_valid(l) THEN "
        f"CASE WHEN json_type(l) = 'OBJECT' THEN l END END AS l FROM {source})"
    )


def strict_insert(table: Table, keys: KeyMap, source: str, *, clusters: bool = False) -> str:
    """Return the fast INSERT: it takes every line or fails as a whole.

    :param keys: columns named by the lines, one spelling each; other columns get their default.
    :param source: name of the relation with the columns ``i`` and ``l``.
    :param clusters: the rows are sorted by the clustering key of the table.
    """
    spec = {spellings[0]: _spec_type(column) for column, spellings in keys.columns}
    columns = [column for column, _ in keys.columns]
    values = [
        _checked(column, convert_with(column, f"s.{quote(spellings[0])}", "CAST"))
        for column, spellings in keys.columns
    ]
    return insert(
        table,
        columns,
        values,
        f"(SELECT i, json_transform_strict(l, {literal(json.dumps(spec))}) AS s FROM {source} OFFSET 0)",
        clusters=clusters,
        ordered=False,
    )


def insert(
    table: Table,
    columns: Sequence[Column],
    values: Sequence[str],
    source: str,
    *,
    clusters: bool,
    ordered: bool = True,
) -> str:
    """Return an INSERT of values, in the order of the rows or in that of the table's clustering key.

    :param columns: the columns that the values are for, in the same order; others get their default.
    :param source: the FROM clause; a relation with the row number ``i``.
    :param clusters: sort by the clustering key, when the table has one.
    :param ordered: sort by the row number otherwise; not needed where the source is in order.
    """
    names = ", ".join(quote(column.name) for column in columns)
    if not clusters or table.clustering_key is None:
        order = " ORDER BY i" if ordered else ""
        return f"INSERT INTO {table.path} ({names}) SELECT {', '.join(values)} FROM {source}{order}"
    # The key may name any column; one without a value of its own has the same in all rows.
    typed = [
        f"CAST({value} AS {column.type.duckdb}) AS {quote(column.name)}"
        for column, value in zip(columns, values, strict=True)
    ]
    filled = {column.name for column in columns}
    typed += [
        f"CAST(NULL AS {c.type.duckdb}) AS {quote(c.name)}" for c in table.columns if c.name not in filled
    ]
    keys = ", ".join((*table.clustering_key.expressions, "_i"))
    return (
        f"INSERT INTO {table.path} ({names}) SELECT {names} FROM "
        f"(SELECT i AS _i, {', '.join(typed)} FROM {source}) ORDER BY {keys}"
    )


def isolating_stage(table: Table, keys: KeyMap, source: str, target: str) -> str:
    """Return a statement that converts every line and marks the ones that cannot be stored.

    :param keys: columns named by any line, in all their spellings.
    :param source: name of the relation with the columns ``i`` and ``l``.
    :param target: temporary table to create: ``i``, ``v0``..., ``reason`` (NULL for good rows), ``payload``.
    """
    raws, values, reasons = [], [], [NOT_AN_OBJECT]
    for index, (column, spellings) in enumerate(keys.columns):
        raws.append(f"{spelled(spellings, 's')} AS r{index}")
        value = (
            spelled(spellings, "d")
            if column.type.kind == "NUMBER"
            else convert_with(column, f"r{index}", "TRY_CAST")
        )
        if column.default is not None:
            value = f"CASE WHEN {present(spellings)} OR j IS NULL THEN {value} ELSE {column.default} END"
        values.append(f"{value} AS v{index}")
        failed = f"r{index} IS NOT NULL AND v{index} IS NULL"
        why = f"the value cannot be converted to {column.type}"
        reasons.append(column_reasons(column, f"v{index}", failed=failed, why=why))
    reasons += [required(column) for column in _required_but_absent(table, keys)]
    numbered = ", ".join(f"v{index}" for index in range(len(keys.columns)))
    return (
        f"CREATE OR REPLACE TEMPORARY TABLE {target} AS "
        f"SELECT i, {numbered + ', ' if numbered else ''}"
        f"CASE {' '.join(reasons)} END AS reason, CASE WHEN reason IS NOT NULL THEN l END AS payload FROM "
        f"(SELECT *{''.join(', ' + value for value in values)} FROM "
        f"(SELECT *{''.join(', ' + raw for raw in raws)} FROM "
        f"(SELECT i, l, j{transforms(keys)} FROM "
        f"(SELECT i, l, CASE WHEN json_valid(l) THEN CASE WHEN json_type(l) = 'OBJECT' THEN l END END AS j "
        f"FROM {source} OFFSET 0) OFFSET 0) OFFSET 0))"
    )


def isolated_insert(table: Table, keys: KeyMap, staged: str, *, clusters: bool = False) -> str:
    """Return the INSERT of the good rows that :func:`isolating_stage` left in its table.

    :param clusters: the rows are sorted by the clustering key of the table.
    """
    if not keys.columns:
        first = table.columns[0]
        default = first.default or "NULL"
        target = f"{table.path} ({quote(first.name)})"
        return f"INSERT INTO {target} SELECT {default} FROM {staged} WHERE reason IS NULL"
    values = [f"v{index}" for index in range(len(keys.columns))]
    good = f"{staged} WHERE reason IS NULL"
    return insert(table, [column for column, _ in keys.columns], values, good, clusters=clusters)


def _spec_type(column: Column) -> str:
    if column.type.kind == "NUMBER":
        return column.type.duckdb
    return "JSON" if column.type.is_semi_structured else "VARCHAR"


def _checked(column: Column, value: str) -> str:
    longer = too_long(column, value)
    # Columns of maximal length need no check: a request holds less than that.
    if longer is None or (column.type.length or 0) >= 8_388_608:
        return value
    return f"CASE WHEN {longer} THEN error('too long') ELSE {value} END"


def transforms(keys: KeyMap) -> str:
    """Return the spellings of each rank as columns of ``j``: text or JSON ``s0``.., digits ``d0``.."""
    found = ""
    for rank in range(max((len(spellings) for _, spellings in keys.columns), default=0)):
        at_rank = [(c, s[rank]) for c, s in keys.columns if len(s) > rank]
        raw = {key: "JSON" if c.type.is_semi_structured else "VARCHAR" for c, key in at_rank}
        exact = {key: c.type.duckdb for c, key in at_rank if c.type.kind == "NUMBER"}
        found += f", json_transform(j, {literal(json.dumps(raw))}) AS s{rank}"
        found += f", json_transform(j, {literal(json.dumps(exact))}) AS d{rank}" if exact else ""
    return found


def spelled(spellings: Sequence[str], struct: str) -> str:
    """Return the first value among the spellings of a key, of the columns that :func:`transforms` gives."""
    fields = [f"{struct}{rank}.{quote(key)}" for rank, key in enumerate(spellings)]
    return fields[0] if len(fields) == 1 else f"coalesce({', '.join(fields)})"


def present(spellings: Sequence[str]) -> str:
    """Return the condition that a row has a key in one of its spellings."""
    keys = ", ".join(literal(key) for key in spellings)
    return f"list_has_any(json_keys(j), [{keys}])"


def _required_but_absent(table: Table, keys: KeyMap) -> list[Column]:
    named = {column.name for column, _ in keys.columns}
    return [c for c in table.columns if not c.nullable and c.default is None and c.name not in named]

"""What values mean, as macros of the engine: one definition for SQL, COPY and streamed rows.

Names begin with an underscore, which no statement of a client may call. Macros are kept by the instance in
memory, so that they change with the program and not with a database file.
"""

from __future__ import annotations

import duckdb

_NUMBERS = "('BIGINT', 'UBIGINT', 'HUGEINT', 'DOUBLE')"
_MACROS: dict[str, str] = {
    # Objects with their keys in order, so that equal ones have the same text. The engine's own VARIANT sorts
    # them, but rounds numbers of more than 16 digits.
    "_sorted_keys(j)": """
        CASE WHEN j IS NULL OR NOT contains(CAST(j AS VARCHAR), '{')
            OR regexp_matches(CAST(j AS VARCHAR), '[0-9][0-9.]{16}') THEN j
        ELSE CAST(CAST(j AS VARIANT) AS JSON) END""",
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


def define(connection: duckdb.DuckDBPyConnection) -> None:
    """Define the macros in an instance, before a database is attached to it."""
    for signature, body in _MACROS.items():
        connection.execute(f"CREATE OR REPLACE MACRO {signature} AS {body}")

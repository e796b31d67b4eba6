"""Functions that a statement calls: those that Snowflake documents, with as many arguments as they take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import sqlglot
from sqlglot import Token, TokenType, exp

from airflow_provider_snowpipe.local.errors import SqlError, compilation_error

OPENING = frozenset({TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE})
CLOSING = frozenset({TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE})

# Numbers of arguments, ``least-most``, and the functions ("Function reference", the page of each); where a
# page leaves the number open, the table does as well.
_DOCUMENTED = {
    "0": """
        CUME_DIST CURRENT_ACCOUNT CURRENT_ACCOUNT_NAME CURRENT_AVAILABLE_ROLES CURRENT_CLIENT
        CURRENT_DATABASE CURRENT_DATE CURRENT_IP_ADDRESS CURRENT_ORGANIZATION_NAME
        CURRENT_ORGANIZATION_USER CURRENT_REGION CURRENT_ROLE CURRENT_ROLE_TYPE CURRENT_SCHEMA
        CURRENT_SCHEMAS CURRENT_SECONDARY_ROLES CURRENT_SESSION CURRENT_STATEMENT
        CURRENT_TRANSACTION CURRENT_USER CURRENT_VERSION CURRENT_WAREHOUSE DENSE_RANK GETDATE
        LAST_TRANSACTION PERCENT_RANK PI RANK ROW_NUMBER SYSDATE
    """,
    "0-1": """
        CURRENT_TIME CURRENT_TIMESTAMP LAST_QUERY_ID LOCALTIME LOCALTIMESTAMP RANDOM SEQ1 SEQ2 SEQ4
        SEQ8 SYSTIMESTAMP
    """,
    "0-2": "UUID_STRING",
    "1": """
        ABS ACOS ACOSH ANY_VALUE APPROX_PERCENTILE_ACCUMULATE APPROX_PERCENTILE_COMBINE ARRAYAGG
        ARRAY_AGG ARRAY_COMPACT ARRAY_DISTINCT ARRAY_FLATTEN ARRAY_MAX ARRAY_MIN ARRAY_REVERSE
        ARRAY_SIZE ARRAY_UNION_AGG ARRAY_UNIQUE_AGG ASCII ASIN ASINH AS_ARRAY AS_BINARY AS_BOOLEAN
        AS_CHAR AS_DATE AS_DOUBLE AS_INTEGER AS_OBJECT AS_REAL AS_TIME AS_TIMESTAMP_LTZ
        AS_TIMESTAMP_NTZ AS_TIMESTAMP_TZ AS_VARCHAR ATAN ATANH AVG BITANDAGG BITAND_AGG
        BITMAP_BIT_POSITION BITMAP_BUCKET_NUMBER BITMAP_CONSTRUCT_AGG BITMAP_COUNT BITMAP_OR_AGG
        BITNOT BITORAGG BITOR_AGG BITXORAGG BITXOR_AGG BIT_ANDAGG BIT_AND_AGG BIT_LENGTH BIT_NOT
        BIT_ORAGG BIT_OR_AGG BIT_XORAGG BIT_XOR_AGG BOOLAND_AGG BOOLNOT BOOLOR_AGG BOOLXOR_AGG CBRT
        CHAR CHECK_JSON CHR COLLATION CONDITIONAL_CHANGE_EVENT CONDITIONAL_TRUE_EVENT COS COSH COT
        COUNT_IF DAY DAYNAME DAYOFMONTH DAYOFWEEK DAYOFWEEKISO DAYOFWEEK_ISO DAYOFYEAR DEGREES EXP
        FACTORIAL FIRST_VALUE HEX_DECODE_BINARY HEX_DECODE_STRING HLL_COMBINE HLL_ESTIMATE
        HLL_EXPORT HLL_IMPORT HOUR IS_ARRAY IS_BINARY IS_BOOLEAN IS_CHAR IS_DATE IS_DECIMAL
        IS_DOUBLE IS_INTEGER IS_NULL_VALUE IS_OBJECT IS_REAL IS_ROLE_IN_SESSION IS_TIME
        IS_TIMESTAMP_LTZ IS_TIMESTAMP_NTZ IS_TIMESTAMP_TZ IS_VARCHAR KURTOSIS LAST_VALUE LEN LENGTH
        LN MAP_KEYS MAP_SIZE MAX MD5 MD5_BINARY MD5_HEX MD5_NUMBER_LOWER64 MD5_NUMBER_UPPER64 MEDIAN
        MIN MINHASH_COMBINE MINUTE MODE MONTH MONTHNAME NTILE NULLIFZERO OBJECT_KEYS OCTET_LENGTH
        PERCENTILE_CONT PERCENTILE_DISC QUARTER RADIANS RATIO_TO_REPORT REVERSE RTRIMMED_LENGTH
        SECOND SHA1 SHA1_BINARY SHA1_HEX SIGN SIN SINH SKEW SOUNDEX SOUNDEX_P123 SPACE SQRT SQUARE
        STDDEV STDDEV_POP STDDEV_SAMP STRIP_NULL_VALUE SUM TAN TANH TO_ARRAY TO_BOOLEAN TO_JSON
        TO_OBJECT TO_VARIANT TO_XML TRY_HEX_DECODE_BINARY TRY_HEX_DECODE_STRING TRY_TO_BOOLEAN
        TYPEOF UNICODE UPPER VARIANCE VARIANCE_POP VARIANCE_SAMP VAR_POP VAR_SAMP WEEK WEEKISO
        WEEKOFYEAR YEAR YEAROFWEEK YEAROFWEEKISO ZEROIFNULL
    """,
    "1-2": """
        BASE64_DECODE_BINARY BASE64_DECODE_STRING CEIL CEILING CHECK_XML DATE FLOOR HEX_ENCODE
        INITCAP LAST_DAY LISTAGG LOWER LTRIM PARSE_JSON PARSE_URL PARSE_XML RTRIM SHA2 SHA2_BINARY
        SHA2_HEX STRING_AGG STRTOK_TO_ARRAY TIME TO_BINARY TO_CHAR TO_DATE TO_DECFLOAT TO_DOUBLE
        TO_TIME TO_TIMESTAMP TO_TIMESTAMP_LTZ TO_TIMESTAMP_NTZ TO_TIMESTAMP_TZ TO_VARCHAR TRIM TRUNC
        TRUNCATE TRY_BASE64_DECODE_BINARY TRY_BASE64_DECODE_STRING TRY_PARSE_JSON TRY_TO_BINARY
        TRY_TO_DATE TRY_TO_DECFLOAT TRY_TO_DOUBLE TRY_TO_TIME TRY_TO_TIMESTAMP TRY_TO_TIMESTAMP_LTZ
        TRY_TO_TIMESTAMP_NTZ TRY_TO_TIMESTAMP_TZ
    """,
    "1-3": "APPROX_TOP_K ARRAY_SORT AS_DECIMAL AS_NUMBER BASE64_ENCODE LAG LEAD ROUND STRTOK",
    "1-4": "TO_DECIMAL TO_NUMBER TO_NUMERIC TRY_TO_DECIMAL TRY_TO_NUMBER TRY_TO_NUMERIC",
    "1-": """
        APPROXIMATE_JACCARD_INDEX APPROXIMATE_SIMILARITY APPROX_COUNT_DISTINCT ARRAYS_ZIP CONCAT
        COUNT GREATEST GREATEST_IGNORE_NULLS GROUPING GROUPING_ID HASH HASH_AGG HLL HLL_ACCUMULATE
        LEAST LEAST_IGNORE_NULLS
    """,
    "2": """
        ADD_MONTHS APPROX_PERCENTILE APPROX_PERCENTILE_ESTIMATE ARRAYS_OVERLAP ARRAYS_TO_OBJECT
        ARRAY_APPEND ARRAY_CAT ARRAY_CONTAINS ARRAY_EXCEPT ARRAY_INTERSECTION ARRAY_POSITION
        ARRAY_PREPEND ARRAY_REMOVE ARRAY_REMOVE_AT ARRAY_TO_STRING ATAN2 BITSHIFTLEFT BITSHIFTRIGHT
        BIT_SHIFTLEFT BIT_SHIFTRIGHT BOOLAND BOOLOR BOOLXOR COLLATE COMPRESS CONTAINS CORR COVAR_POP
        COVAR_SAMP DATE_PART DATE_TRUNC DECOMPRESS_BINARY DECOMPRESS_STRING DIV0 DIV0NULL ENDSWITH
        EQUAL_NULL GET GETBIT GET_IGNORE_CASE GET_PATH IFNULL JAROWINKLER_SIMILARITY
        JSON_EXTRACT_PATH_TEXT LEFT LOG MAP_CAT MAP_CONTAINS_KEY MOD MONTHS_BETWEEN NEXT_DAY
        NTH_VALUE NULLIF NVL OBJECT_AGG POW POWER PREVIOUS_DAY RANDSTR REGR_AVGX REGR_AVGY
        REGR_COUNT REGR_INTERCEPT REGR_R2 REGR_SLOPE REGR_SXX REGR_SXY REGR_SYY REGR_VALX REGR_VALY
        REPEAT RIGHT SPLIT STARTSWITH
    """,
    "2-3": """
        ARRAY_GENERATE_RANGE BITAND BITOR BITXOR BIT_AND BIT_OR BIT_XOR CHARINDEX CONVERT_TIMEZONE
        EDITDISTANCE GET_DDL LPAD MAX_BY MIN_BY REGEXP_LIKE REPLACE RPAD SUBSTR SUBSTRING XMLGET
    """,
    "2-4": "REGEXP_COUNT",
    "2-6": "REGEXP_EXTRACT_ALL REGEXP_REPLACE REGEXP_SUBSTR REGEXP_SUBSTR_ALL",
    "2-7": "REGEXP_INSTR",
    "2-8": """
        TIMESTAMPFROMPARTS TIMESTAMPLTZFROMPARTS TIMESTAMPNTZFROMPARTS TIMESTAMPTZFROMPARTS
        TIMESTAMP_FROM_PARTS TIMESTAMP_LTZ_FROM_PARTS TIMESTAMP_NTZ_FROM_PARTS
        TIMESTAMP_TZ_FROM_PARTS
    """,
    "2-": "COALESCE CONCAT_WS MAP_DELETE MAP_PICK MINHASH OBJECT_DELETE OBJECT_PICK",
    "3": """
        ARRAY_INSERT ARRAY_SLICE DATEADD DATEDIFF DATEFROMPARTS DATE_FROM_PARTS IFF NORMAL NVL2
        SPLIT_PART TIMEADD TIMEDIFF TIMESTAMPADD TIMESTAMPDIFF TRANSLATE UNIFORM ZIPF
    """,
    "3-4": "MAP_INSERT OBJECT_INSERT TIMEFROMPARTS TIME_FROM_PARTS TIME_SLICE",
    "3-": "DECODE",
    "4": "HAVERSINE WIDTH_BUCKET",
    # Any number, and what is written with words between its arguments.
    "0-": """
        AI_AGG AI_CLASSIFY AI_EMBED AI_SIMILARITY AI_SUMMARIZE_AGG APPROX_TOP_K_ACCUMULATE
        APPROX_TOP_K_COMBINE APPROX_TOP_K_ESTIMATE ARRAY_CONSTRUCT ARRAY_CONSTRUCT_COMPACT CASE CAST
        CONNECT_BY_ROOT DECRYPT DECRYPT_RAW DIRECTORY ENCRYPT ENCRYPT_RAW EXISTS EXTRACT FILTER
        FLATTEN GENERATOR IDENTIFIER ILIKE INSERT LIKE OBJECT_CONSTRUCT OBJECT_CONSTRUCT_KEEP_NULL
        PARSE_IP POSITION REDUCE RLIKE SEARCH SEARCH_IP SEMANTIC_VIEW SPLIT_TO_TABLE
        STRTOK_SPLIT_TO_TABLE ST_DISTANCE ST_MAKEPOINT ST_POINT TABLE TIMESTAMP TO_FILE TO_GEOGRAPHY
        TO_GEOMETRY TRANSFORM TRY_CAST TRY_DECRYPT TRY_DECRYPT_RAW TRY_TO_FILE
        VECTOR_COSINE_SIMILARITY VECTOR_INNER_PRODUCT VECTOR_L1_DISTANCE VECTOR_L2_DISTANCE XMLTABLE
    """,
}  # fmt: skip


def _bounds(written: str) -> tuple[int, int | None]:
    least, dash, most = written.partition("-")
    return int(least), int(most) if most else None if dash else int(least)


_ARGUMENTS = {name: _bounds(number) for number, names in _DOCUMENTED.items() for name in names.split()}
_PARSER = sqlglot.Dialect.get_or_raise("snowflake").parser_class
# What sqlglot reads as a function because another database has it.
FOREIGN = frozenset({*_PARSER.FUNCTIONS, *_PARSER.FUNCTION_PARSERS}) - {*_ARGUMENTS, "AND", "OR"}
# sqlglot leaves no place at what it reads by a parser of its own.
_WITHOUT_PLACE = frozenset({*_PARSER.FUNCTION_PARSERS, *_PARSER.NO_PAREN_FUNCTION_PARSERS})
_BEFORE_NAMES = frozenset(
    {TokenType.INTO, TokenType.ALIAS, TokenType.TABLE, TokenType.JOIN, TokenType.FROM, TokenType.WITH,
     TokenType.UPDATE, TokenType.USING, TokenType.DOT, TokenType.DCOLON}
)  # fmt: skip


def is_documented(name: str) -> bool:
    """Return True for a function of Snowflake's, by its name in upper case."""
    return name in _ARGUMENTS


class _Call(NamedTuple):
    """A name before a parenthesis: its place and that of the end, arguments, and that it may be no call."""

    name: str
    start: int
    end: int
    given: int
    may_be_name: bool


def check(tokens: Sequence[Token], text: str, tree: exp.Expr | None) -> None:
    """Refuse a call of what is no function of Snowflake's, or with another number of arguments.

    :param tree: the parsed statement, which tells calls from other names before a parenthesis; None when the
        statement could not be parsed, perhaps for such a call.
    :raises SqlError: 002140, 000938, 000939.
    """
    wrong = list(_wrong(tokens))
    if not wrong:
        return
    starts = {
        node.meta.get("start")
        for node in (tree.walk() if tree is not None else ())
        if node.meta and not isinstance(node, (exp.Identifier, exp.Star))
    }
    for call in wrong:
        has_place = tree is not None and call.name not in _WITHOUT_PLACE
        if (call.start not in starts) if has_place else call.may_be_name:
            continue
        if call.name in FOREIGN:
            raise compilation_error(f"Unknown function {call.name}", "002140", "42601")
        least, most = _ARGUMENTS[call.name]
        if call.given < least:
            raise _wrong_number(call, text, "000938", "not enough", f", expected {least}")
        raise _wrong_number(call, text, "000939", "too many", f" expected {most}")


def _wrong_number(call: _Call, text: str, code: str, words: str, expected: str) -> SqlError:
    line = text.count("\n", 0, call.start) + 1
    position = call.start - (text.rfind("\n", 0, call.start) + 1)
    return SqlError(
        code,
        "22023",
        f"SQL compilation error: error line {line} at position {position}\n"
        f"{words} arguments for function [{text[call.start : call.end + 1]}]{expected}, got {call.given}",
    )


def _wrong(tokens: Sequence[Token]) -> Iterator[_Call]:
    """Yield the names before a parenthesis that are no function or do not take so many arguments."""
    # Of each bracket that is open: its place, and the commas so far.
    opened: list[list[int]] = []
    for at, token in enumerate(tokens):
        kind = token.token_type
        if kind in OPENING:
            opened.append([at, 0])
        elif kind == TokenType.COMMA and opened:
            opened[-1][1] += 1
        elif kind in CLOSING and opened:
            start, commas = opened.pop()
            before = tokens[start - 1] if start and kind == TokenType.R_PAREN else None
            if before is None or before.token_type in {TokenType.IDENTIFIER, TokenType.STRING}:
                continue
            name = before.text.upper()
            least, most = _ARGUMENTS.get(name, (0, None))
            count = 0 if start == at - 1 else commas + 1
            if name in FOREIGN or count < least or (most is not None and count > most):
                may_be_name = start > 1 and tokens[start - 2].token_type in _BEFORE_NAMES
                yield _Call(name, before.start, token.end, count, may_be_name)

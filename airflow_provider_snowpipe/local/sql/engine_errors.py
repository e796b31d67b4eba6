"""Errors of the engine beneath, in Snowflake's numbers and words."""

from __future__ import annotations

import re

import duckdb

from airflow_provider_snowpipe.local.engine import disk
from airflow_provider_snowpipe.local.errors import SqlError
from airflow_provider_snowpipe.local.sql import reach

_ERROR_CODES: tuple[tuple[type[duckdb.Error], str, str], ...] = (
    (duckdb.CatalogException, "002003", "42S02"),
    (duckdb.BinderException, "000904", "42000"),
    (duckdb.ParserException, "001003", "42000"),
    (duckdb.SyntaxException, "001003", "42000"),
    (duckdb.NotImplementedException, "000002", "0A000"),
    (duckdb.ConstraintException, "100072", "22000"),
    (duckdb.ConversionException, "100038", "22018"),
    (duckdb.OutOfRangeException, "100046", "22003"),
    (duckdb.InvalidInputException, "100069", "22P02"),
    (duckdb.TransactionException, "000625", "57014"),
    (duckdb.PermissionException, "003001", "42501"),
)
_UNKNOWN_FUNCTION = re.compile(r"Function with name \"?(\w+)\"? does not exist")
_KIND = re.compile(r"\A(?:\w+ )+Error: ")
_HINT = re.compile(
    r"\n\s*Candidate |\s*(?:Use|Try|Consider|You can) [^\n]*\bSET |You might need to add explicit"
)
_COMPILATION = "SQL compilation error:\n"
# Messages of DuckDB 1.5 whose meaning is certain; all others are passed on with the engine's own words.
_WORDED: tuple[tuple[re.Pattern[str], str, str, str], ...] = tuple(
    (re.compile(pattern, re.DOTALL), code, sqlstate, message)
    for pattern, code, sqlstate, message in (
        (
            r"failed to (?:allocate|pin|offload)|Out of Memory|could not allocate",
            "000603",
            "XX000",
            "The statement needs more memory than the local service may use: ask for less at a time, or "
            "start the service with --limits engine-bytes=..",
        ),
        (
            r"(?P<v>(?:String|Binary value) '.*' is too long and would be truncated)",
            "100078",
            "22000",
            "{}",
        ),
        (r"too long and would be truncated", "100078", "22000", "String is too long and would be truncated"),
        (
            r"Invalid input for hex digit|unhex",
            "100115",
            "22000",
            "The following string is not a legal hex-encoded value",
        ),
        (
            r"MERGE INTO command cannot affect the same target row",
            "100090",
            "42P18",
            "Duplicate row detected during DML action",
        ),
        (r"Division by zero", "100051", "22012", "Division by zero"),
        (
            r"\ANOT NULL constraint failed: (?:.*\.)?(?P<v>.+)\Z",
            "100072",
            "22000",
            "NULL result in a non-nullable column '{}'",
        ),
        (
            r"\AReferenced (?:update )?column \"?(?P<v>[^\"]+?)\"? (?:was )?not found",
            "000904",
            "42000",
            _COMPILATION + "invalid identifier '{}'",
        ),
        (
            r"does not have a column (?:named|with name) \"(?P<v>(?:[^\"]|\"\")+)\"",
            "000904",
            "42000",
            _COMPILATION + "invalid identifier '{}'",
        ),
        (
            r"\ACould not convert string (['\"])(?P<v>.*)\1 to BOOL",
            "100037",
            "22018",
            "Boolean value '{}' is not recognized",
        ),
        (
            r"\ACould not convert string (['\"])(?P<v>.*)\1 to (?:DECIMAL|U?(?:HUGE)?INT|DOUBLE|FLOAT)",
            "100038",
            "22018",
            "Numeric value '{}' is not recognized",
        ),
        (
            r"\AAmbiguous reference to column name \"(?P<v>[^\"]+)\"",
            "002028",
            "42601",
            _COMPILATION + "ambiguous column name '{}'",
        ),
        (
            r"\Acolumn \"?(?P<v>[^\"]+?)\"? must appear in the GROUP BY clause",
            "000979",
            "42601",
            _COMPILATION + "[{}] is not a valid group by expression",
        ),
        (
            r"(?:function call|argument types) [\"'](?P<v>[^(]+)\(",
            "001044",
            "42P13",
            _COMPILATION + "Invalid argument types for function '{}'",
        ),
        (
            r"\AReferenced table \"(?P<v>[^\"]+)\" not found",
            "000904",
            "42000",
            _COMPILATION + "invalid identifier '{}'",
        ),
        (
            r"\AMore than one row returned by a subquery",
            "090150",
            "22000",
            "Single-row subquery returns more than one row.",
        ),
        (
            r"\ASet operations can only apply to expressions with the same number",
            "001789",
            "42601",
            _COMPILATION + "invalid number of result columns for set operator input branches",
        ),
        (
            r"\AColumn name/value mismatch for insert.*: (?P<v>expected \d+ columns but \d+)",
            "002020",
            "21S01",
            _COMPILATION + "Insert value list does not match column list: {}",
        ),
        (
            r"\ADuplicate column name \"(?P<v>[^\"]+)\"",
            "002025",
            "42S21",
            _COMPILATION + "duplicate column name '{}'",
        ),
        (r"\AMalformed JSON at (?P<v>.*)", "100069", "22P02", "Error parsing JSON: {}"),
        (
            r"(?:with value (?P<v>\S+) can't be cast because the value is out of range|\AOverflow in )",
            "100046",
            "22003",
            "Number out of representable range",
        ),
        (
            r"\Atimestamp field value out of range: \"(?P<v>.*)\"",
            "100035",
            "22007",
            "Timestamp '{}' is not recognized",
        ),
        (r"\Adate field value out of range: \"(?P<v>.*)\"", "100040", "22007", "Date '{}' is not recognized"),
        (
            r"\Ainvalid timestamp field format: \"(?P<v>.*)\", expected",
            "100035",
            "22007",
            "Timestamp '{}' is not recognized",
        ),
        (
            r"\Ainvalid date field format: \"(?P<v>.*)\", expected",
            "100040",
            "22007",
            "Date '{}' is not recognized",
        ),
        (
            r"\A(?:invalid )?time field (?:format|value out of range): \"(?P<v>.*)\", expected",
            "100108",
            "22007",
            "Time '{}' is not recognized",
        ),
    )
)


def disk_full() -> SqlError:
    """Return the error of a statement for whose rows there was no room (000603)."""
    return SqlError(
        "000603",
        "53100",
        "The statement was rolled back: the disk of the local service is full. Free some space, try again.",
    )


def translate_error(error: duckdb.Error) -> SqlError:
    """Return Snowflake's error for a DuckDB error: its number, and its words where they are known."""
    if disk.is_full(error):
        return disk_full()
    if disk.is_invalidated(error):
        return SqlError("000603", "XX000", "The database was being recovered; run the statement again.")
    message = str(error).split("\n\nLINE ")[0].split("\nLINE ")[0].strip()
    unknown = _UNKNOWN_FUNCTION.search(message)
    if isinstance(error, duckdb.CatalogException) and unknown:
        return reach.unknown_function(unknown[1])
    # Hints on settings and functions of the engine would mislead: clients cannot reach either.
    message = _HINT.split(_KIND.sub("", message), maxsplit=1)[0].strip()
    for pattern, code, sqlstate, words in _WORDED:
        found = pattern.search(message)
        if found is not None:
            return SqlError(code, sqlstate, words.format(found["v"]) if "v" in pattern.groupindex else words)
    for kind, code, sqlstate in _ERROR_CODES:
        if isinstance(error, kind):
            prefix = _COMPILATION if sqlstate.startswith("42") else ""
            return SqlError(code, sqlstate, prefix + message)
    return SqlError("000603", "XX000", message)

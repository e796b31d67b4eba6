"""Session parameters that SHOW PARAMETERS lists, with their defaults (page "Parameters")."""

from __future__ import annotations

from airflow_provider_snowpipe.local.sql.results import Result, listing
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.sql.show import Shown

_B, _N, _S = "BOOLEAN", "NUMBER", "STRING"
# Name: type, default, what it does.
_KNOWN: dict[str, tuple[str, str, str]] = {
    "ABORT_DETACHED_QUERY": (_B, "false", "Aborts a query when its session is lost."),
    "AUTOCOMMIT": (_B, "true", "Commits each statement outside of a transaction by itself."),
    "BINARY_INPUT_FORMAT": (_S, "HEX", "Format of text that is read as BINARY."),
    "BINARY_OUTPUT_FORMAT": (_S, "HEX", "Format of BINARY that is written as text."),
    "CLIENT_MEMORY_LIMIT": (_N, "1536", "Memory of JDBC and ODBC for results, in MB."),
    "CLIENT_PREFETCH_THREADS": (_N, "4", "Threads of a client that fetch results ahead."),
    "CLIENT_RESULT_CHUNK_SIZE": (_N, "160", "Largest part of a result, in MB."),
    "CLIENT_SESSION_KEEP_ALIVE": (_B, "false", "Keeps a session open without use."),
    "CLIENT_SESSION_KEEP_ALIVE_HEARTBEAT_FREQUENCY": (_N, "3600", "Seconds between signs of life."),
    "CLIENT_STAGE_ARRAY_BINDING_THRESHOLD": (_N, "0", "Bound values from which a client uses a stage."),
    "CLIENT_TELEMETRY_ENABLED": (_B, "true", "Lets clients send telemetry."),
    "DATE_INPUT_FORMAT": (_S, "AUTO", "Format of text that is read as DATE."),
    "DATE_OUTPUT_FORMAT": (_S, "YYYY-MM-DD", "Format of DATE that is written as text."),
    "ERROR_ON_NONDETERMINISTIC_MERGE": (_B, "true", "Refuses a MERGE that changes a row twice."),
    "ERROR_ON_NONDETERMINISTIC_UPDATE": (_B, "false", "Refuses an UPDATE that changes a row twice."),
    "JSON_INDENT": (_N, "2", "Blanks of each level of JSON."),
    "JDBC_QUERY_RESULT_FORMAT": (_S, "ARROW", "Format of results for JDBC."),
    "LOCK_TIMEOUT": (_N, "43200", "Seconds that a statement waits for a lock."),
    "LOG_LEVEL": (_S, "OFF", "Least severity of what is logged."),
    "MULTI_STATEMENT_COUNT": (_N, "1", "Statements of one request; 0 for any number."),
    "PYTHON_CONNECTOR_QUERY_RESULT_FORMAT": (_S, "ARROW", "Format of results for the Python connector."),
    "QUERY_TAG": (_S, "", "Text that marks the statements of a session."),
    "QUOTED_IDENTIFIERS_IGNORE_CASE": (_B, "false", "Upper-cases quoted names."),
    "ROWS_PER_RESULTSET": (_N, "0", "Most rows of a result; 0 for no limit."),
    "STATEMENT_QUEUED_TIMEOUT_IN_SECONDS": (_N, "0", "Seconds that a statement may wait."),
    "STATEMENT_TIMEOUT_IN_SECONDS": (_N, "172800", "Seconds that a statement may run."),
    "STRICT_JSON_OUTPUT": (_B, "false", "Writes JSON that every reader takes."),
    "TIMESTAMP_DAY_IS_ALWAYS_24H": (_B, "false", "Counts a day as 24 hours always."),
    "TIMESTAMP_INPUT_FORMAT": (_S, "AUTO", "Format of text that is read as TIMESTAMP."),
    "TIMESTAMP_LTZ_OUTPUT_FORMAT": (_S, "", "Format of TIMESTAMP_LTZ that is written as text."),
    "TIMESTAMP_NTZ_OUTPUT_FORMAT": (_S, "YYYY-MM-DD HH24:MI:SS.FF3", "Format of TIMESTAMP_NTZ as text."),
    "TIMESTAMP_OUTPUT_FORMAT": (_S, "YYYY-MM-DD HH24:MI:SS.FF3 TZHTZM", "Format of TIMESTAMP as text."),
    "TIMESTAMP_TYPE_MAPPING": (_S, "TIMESTAMP_NTZ", "Type that TIMESTAMP stands for."),
    "TIMESTAMP_TZ_OUTPUT_FORMAT": (_S, "", "Format of TIMESTAMP_TZ that is written as text."),
    "TIMEZONE": (_S, "UTC", "Time zone of the session."),
    "TIME_INPUT_FORMAT": (_S, "AUTO", "Format of text that is read as TIME."),
    "TIME_OUTPUT_FORMAT": (_S, "HH24:MI:SS", "Format of TIME that is written as text."),
    "TRANSACTION_ABORT_ON_ERROR": (_B, "false", "Ends a transaction with its first error."),
    "TRANSACTION_DEFAULT_ISOLATION_LEVEL": (_S, "READ COMMITTED", "Isolation of transactions."),
    "TWO_DIGIT_CENTURY_START": (_N, "1970", "First year of two digits."),
    "USE_CACHED_RESULT": (_B, "true", "Answers a repeated query from its result."),
    "WEEK_OF_YEAR_POLICY": (_N, "0", "Which week is the first of a year."),
    "WEEK_START": (_N, "0", "First day of a week."),
}

DEFAULT_PARAMETERS = {name: default for name, (_, default, _) in _KNOWN.items()}
"""What SHOW PARAMETERS lists, with the values of a new session, as text."""


def show_parameters(session: Session, shown: Shown) -> Result:
    """SHOW PARAMETERS [LIKE] [IN SESSION | ..]: those of the session, wherever it is asked for."""
    rows = []
    for name in sorted({*_KNOWN, *session.parameters}):
        kind, default, described = _KNOWN.get(name, (_S, "", ""))
        is_set = name in session.parameters
        value = str(session.parameters[name]) if is_set else default
        if kind == _B:
            value = value.lower()
        if shown.matches(name):
            rows.append((name, value, default, "SESSION" if is_set else "", described, kind))
    return listing(("key", "value", "default", "level", "description", "type"), rows)

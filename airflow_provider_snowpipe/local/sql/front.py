"""Entry of the SQL front: one statement in, one result or one Snowflake-shaped error out."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import duckdb
import sqlglot.errors
from sqlglot import exp

from airflow_provider_snowpipe.local.engine import spool
from airflow_provider_snowpipe.local.errors import SqlError, compilation_error, unsupported
from airflow_provider_snowpipe.local.identifiers import read_path
from airflow_provider_snowpipe.local.sql import (
    account_usage,
    alter_table,
    comments,
    copy_into,
    ddl,
    error_table,
    file_formats,
    file_pipes,
    grants,
    iceberg,
    infer_schema,
    information_schema,
    parameters,
    pipe_functions,
    query,
    sequences,
    show,
    show_objects,
    stages,
    translate,
    users,
    views,
    warehouses,
)
from airflow_provider_snowpipe.local.sql.bindings import Bindings
from airflow_provider_snowpipe.local.sql.current import use_role, use_schema, use_warehouse
from airflow_provider_snowpipe.local.sql.engine_errors import disk_full, translate_error
from airflow_provider_snowpipe.local.sql.infer_schema import inline, inline_words
from airflow_provider_snowpipe.local.sql.properties import plain
from airflow_provider_snowpipe.local.sql.results import USE, Result, listing, status
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.sql.split import strip_comments

# -- Statements about the session: USE, ALTER SESSION, transactions --------------------------------------

_DONE = "Statement executed successfully."
_USE = re.compile(
    r"USE\s+(?:(DATABASE|SCHEMA|ROLE|WAREHOUSE|SECONDARY\s+ROLES)\s+)?(.*)", re.IGNORECASE | re.DOTALL
)
_SET = re.compile(r"ALTER\s+SESSION\s+(SET|UNSET)\s+(.*)", re.IGNORECASE | re.DOTALL)
_PARAMETER = re.compile(r"(\w+)\s*=\s*('(?:[^']|'')*'|[\w.+-]+)\s*,?\s*")


def use(session: Session, text: str, _bindings: Bindings) -> Result:
    """USE [DATABASE | SCHEMA | ROLE | WAREHOUSE] name, USE SECONDARY ROLES ALL | NONE."""
    match = _USE.match(text)
    if match is None or not match[2].strip():
        raise compilation_error("syntax error: USE needs a name.")
    kind = " ".join((match[1] or "").upper().split())
    path, _ = read_path(match[2])
    if kind == "SECONDARY ROLES":
        if path not in (("ALL",), ("NONE",)):
            raise compilation_error("syntax error: USE SECONDARY ROLES takes ALL or NONE.")
        session.secondary_roles = path == ("ALL",)
    elif kind == "ROLE":
        use_role(session, path[-1])
    elif kind == "WAREHOUSE":
        use_warehouse(session, path[-1])
    elif kind == "SCHEMA":
        use_schema(session, path[0] if len(path) == 2 else None, path[-1])
    else:
        use_schema(session, path[0], path[1] if len(path) == 2 else None)
    return dataclasses.replace(status(_DONE), statement_type=USE)


def alter_session(session: Session, text: str, _bindings: Bindings) -> Result:
    """ALTER SESSION SET | UNSET: parameters are remembered; few have an effect here.

    A change of AUTOCOMMIT commits the open transaction ("Transactions", "Autocommit").
    """
    match = _SET.match(text)
    if match is None:
        raise compilation_error("syntax error: expected ALTER SESSION SET or UNSET.")
    autocommit = session.autocommit
    if match[1].upper() == "SET":
        for name, value in _PARAMETER.findall(match[2]):
            session.set_parameter(name.upper(), value.strip("'").replace("''", "'"))
    else:
        for name in match[2].split(","):
            session.set_parameter(name.strip().upper(), None)
    if session.autocommit != autocommit:
        session.commit()
    return status(_DONE)


def begin(session: Session, text: str, _bindings: Bindings) -> Result:
    """BEGIN [TRANSACTION | WORK]."""
    if not re.fullmatch(
        r"(?:BEGIN(?:\s+(?:WORK|TRANSACTION))?|START\s+TRANSACTION)(?:\s+NAME\s+\w+)?\s*", text, re.IGNORECASE
    ):
        raise unsupported("Snowflake Scripting (BEGIN .. END)")
    session.begin()
    return status(_DONE)


def commit(session: Session, _text: str, _bindings: Bindings) -> Result:
    """COMMIT; succeeds outside a transaction, as in Snowflake."""
    session.commit()
    return status(_DONE)


def rollback(session: Session, _text: str, _bindings: Bindings) -> Result:
    """ROLLBACK; succeeds outside a transaction, as in Snowflake."""
    session.rollback()
    return status(_DONE)


# -- STARTS WITH and LIMIT of SHOW statements, the same for all of them ----------------------------------

_STRING = r"'(?:[^']|'')*'"
_CLAUSES = re.compile(
    rf"(?:\s+STARTS\s+WITH\s+(?P<start>{_STRING}))?(?:\s+LIMIT\s+(?P<limit>\d+|NULL)(?:\s+FROM\s+(?P<after>{_STRING}))?)?"
    r"\s*\Z",
    re.IGNORECASE,
)
_Handler = Callable[[Session, str, Bindings], Result]


def narrowed(show: _Handler) -> _Handler:
    """Return a SHOW handler that also takes ``[STARTS WITH 'x'] [LIMIT n [FROM 'name']]``.

    ``FROM`` takes the rows behind the first name that begins with the text, as Snowflake's paging does.
    """

    def handler(session: Session, text: str, bindings: Bindings) -> Result:
        clauses = _CLAUSES.search(text)
        if clauses is None or not clauses[0].strip():
            return show(session, text, bindings)
        result = show(session, text[: clauses.start()], bindings)
        names = [column.name for column in result.columns]
        if "name" not in names:
            raise compilation_error("this SHOW statement has no names; LIMIT and STARTS WITH do not apply.")
        at = names.index("name")
        rows = list(result.rows)
        if clauses["start"]:
            rows = [row for row in rows if str(row[at]).startswith(plain(clauses["start"]))]
        if clauses["after"]:
            rows = [row for row in rows if str(row[at]) > plain(clauses["after"])]
        if clauses["limit"] and clauses["limit"].upper() != "NULL":
            rows = rows[: int(clauses["limit"])]
        return dataclasses.replace(result, rows=rows)

    return handler


# -- Session variables: SET, UNSET, SHOW VARIABLES and ``$name`` in queries ------------------------------

_VARIABLES_SET = re.compile(
    r"SET\s+(?:(?P<one>\w+)|\((?P<many>[\w\s,]+)\))\s*=\s*(?P<value>.*)", re.IGNORECASE | re.DOTALL
)
_MOST = 256


def set_variables(session: Session, text: str, _bindings: Bindings) -> Result:
    """SET name = expression, SET (a, b) = (x, y)."""
    match = _VARIABLES_SET.match(text)
    if match is None:
        raise compilation_error("syntax error: expected SET name = expression.")
    names = [name.strip().upper() for name in (match["one"] or match["many"]).split(",")]
    value = match["value"].strip()
    if match["many"] and value.startswith("(") and value.endswith(")"):
        value = value[1:-1]
    sql = translate.to_duckdb(translate.prepare(session, translate.parse(f"SELECT {value}")))
    row = session.cursor.execute(sql).fetchone()
    if row is None or len(row) != len(names):
        raise compilation_error(f"SET of {len(names)} variables needs as many values.")
    if len({*session.variables, *names}) > _MOST:
        raise SqlError("000002", "0A000", f"a session has {_MOST} variables at most.")
    session.variables.update(zip(names, row, strict=True))
    return status(_DONE)


def unset_variables(session: Session, text: str, _bindings: Bindings) -> Result:
    """UNSET name, UNSET (a, b)."""
    for name in re.sub(r"^UNSET\s+", "", text, flags=re.IGNORECASE).strip("() ").split(","):
        session.variables.pop(name.strip().upper(), None)
    return status(_DONE)


def show_variables(session: Session, _text: str, _bindings: Bindings) -> Result:
    """SHOW VARIABLES."""
    rows = [(name, str(value)) for name, value in sorted(session.variables.items())]
    return listing(("name", "value"), rows)


# -- Entry of the SQL front: one statement in, one result or one Snowflake-shaped error out --------------

log = logging.getLogger(__name__)

SESSION_GONE = "Session no longer exists. New login required to access the service."
Handler = Callable[[Session, str, Bindings], Result]

_IMMEDIATE = re.compile(r"EXECUTE\s+IMMEDIATE\s+('(?:[^']|'')*'|\$\$.*?\$\$)\s*\Z", re.IGNORECASE | re.DOTALL)
_MODIFIERS = (
    r"(?:OR\s+REPLACE\s+)?(?:(?:LOCAL|GLOBAL|SCOPED)\s+)?(?:TRANSIENT\s+|TEMP\s+|TEMPORARY\s+|VOLATILE\s+)?"
)


_PART = r"(?:\"(?:[^\"]|\"\")+\"|[\w$]+)"
_NAME = rf"{_PART}(?:\s*\.\s*{_PART}){{0,2}}"


def _execute_immediate(session: Session, text: str, bindings: Bindings) -> Result:
    """EXECUTE IMMEDIATE '..' with the text of one statement."""
    match = _IMMEDIATE.match(text)
    if match is None:
        raise unsupported("EXECUTE IMMEDIATE of something that is not a text")
    inner = strip_comments(plain(match[1])).rstrip().rstrip(";")
    if not inner:
        raise _empty_statement()
    return _run(session, inner, bindings)


# Owned statements, matched in this order against the start of the statement.
_HANDLERS: tuple[tuple[re.Pattern[str], Handler], ...] = tuple(
    (
        re.compile(f"(?:{pattern})" + ("" if pattern.endswith("(") else r"\b"), re.IGNORECASE),
        narrowed(handler) if pattern.startswith("SHOW") else handler,
    )
    for pattern, handler in (
        (rf"CREATE\s+{_MODIFIERS}DATABASE", ddl.create_database),
        (rf"CREATE\s+{_MODIFIERS}SCHEMA", ddl.create_schema),
        (
            rf"CREATE\s+{_MODIFIERS}TABLE\s+(?:IF\s+NOT\s+EXISTS\s+)?{_NAME}\s+(?:LIKE|CLONE)",
            ddl.copy_table,
        ),
        (rf"CREATE\s+{_MODIFIERS}(?:ICEBERG\s+)?TABLE", ddl.create_table),
        (rf"CREATE\s+(?:OR\s+REPLACE\s+)?(?:SECURE\s+)?{_MODIFIERS}VIEW", views.create_view),
        (r"DROP\s+VIEW", views.drop_view),
        (r"SHOW\s+(?:TERSE\s+)?VIEWS", views.show_views),
        (r"(?:DESCRIBE|DESC)\s+VIEW", information_schema.describe_view),
        (r"(?:DESCRIBE|DESC)\s+SCHEMA", show_objects.describe_schema),
        (r"(?:DESCRIBE|DESC)\s+DATABASE", show_objects.describe_database),
        (r"CREATE\s+(?:OR\s+REPLACE\s+)?SEQUENCE", sequences.create_sequence),
        (r"ALTER\s+SEQUENCE", sequences.alter_sequence),
        (r"DROP\s+SEQUENCE", sequences.drop_sequence),
        (r"SHOW\s+SEQUENCES", sequences.show_sequences),
        (r"(?:DESCRIBE|DESC)\s+SEQUENCE", sequences.describe_sequence),
        (r"SHOW\s+(?:TERSE\s+)?ICEBERG\s+TABLES", iceberg.show_iceberg_tables),
        (r"SHOW\s+COLUMNS", show_objects.show_columns),
        (r"SHOW\s+(?:TERSE\s+)?OBJECTS", show_objects.show_objects),
        (
            r"SHOW\s+(?:STREAMS|TASKS|INTEGRATIONS|PROCEDURES|USER\s+PROCEDURES|FUNCTIONS|USER\s+FUNCTIONS|"
            r"EXTERNAL\s+TABLES|MATERIALIZED\s+VIEWS|DYNAMIC\s+TABLES|TRANSACTIONS|LOCKS|"
            r"(?:PRIMARY|UNIQUE|IMPORTED|EXPORTED)\s+KEYS)",
            show_objects.show_nothing,
        ),
        (r"UNDROP", show_objects.undrop),
        (r"COMMENT", comments.comment_on),
        (r"ALTER\s+SCHEMA", comments.alter_schema),
        (r"ALTER\s+DATABASE", comments.alter_database),
        (r"COPY\s+INTO", copy_into.copy_into),
        (r"CREATE\s+(?:OR\s+REPLACE\s+)?PIPE", file_pipes.create_pipe),
        (r"DROP\s+PIPE", file_pipes.drop_pipe),
        (r"ALTER\s+PIPE", file_pipes.alter_pipe),
        (r"SHOW\s+PIPES", file_pipes.show_pipes),
        (r"(?:DESCRIBE|DESC)\s+PIPE", file_pipes.describe_pipe),
        (r"(?:SELECT|CALL)\s+SYSTEM\$\w+", pipe_functions.system_function),
        (rf"CREATE\s+{_MODIFIERS}STAGE", stages.create_stage),
        (r"ALTER\s+STAGE", stages.alter_stage),
        (r"DROP\s+STAGE", stages.drop_stage),
        (r"SHOW\s+(?:TERSE\s+)?STAGES", stages.show_stages),
        (r"(?:DESCRIBE|DESC)\s+STAGE", stages.describe_stage),
        (rf"CREATE\s+{_MODIFIERS}FILE\s+FORMAT", file_formats.create_file_format),
        (r"ALTER\s+FILE\s+FORMAT", file_formats.alter_file_format),
        (r"DROP\s+FILE\s+FORMAT", file_formats.drop_file_format),
        (r"SHOW\s+(?:TERSE\s+)?FILE\s+FORMATS", file_formats.show_file_formats),
        (r"(?:DESCRIBE|DESC)\s+FILE\s+FORMAT", file_formats.describe_file_format),
        (r"PUT", stages.put),
        (r"GET", stages.get),
        (r"LIST|LS", stages.list_files),
        (r"REMOVE|RM", stages.remove_files),
        (r"DROP\s+DATABASE", ddl.drop_database),
        (r"DROP\s+SCHEMA", ddl.drop_schema),
        (r"DROP\s+TABLE", ddl.drop_table),
        (r"TRUNCATE\s+(?:TABLE\s+)?ERROR_TABLE\s*\(", error_table.truncate),
        (r"ALTER\s+TABLE", alter_table.alter_table),
        (r"TRUNCATE", ddl.truncate_table),
        (r"(?:DESCRIBE|DESC)\s+TABLE", show_objects.describe_relation),
        (r"SHOW\s+(?:TERSE\s+)?TABLES", show.show_tables),
        (r"SHOW\s+(?:TERSE\s+)?SCHEMAS", show.show_schemas),
        (r"SHOW\s+(?:TERSE\s+)?DATABASES", show.show_databases),
        (r"SHOW\s+CHANNELS", show.show_channels),
        (r"SHOW\s+PARAMETERS", parameters.show_parameters),
        (r"CREATE\s+(?:OR\s+REPLACE\s+)?ROLE", users.create_role),
        (r"ALTER\s+ROLE", users.alter_role),
        (r"DROP\s+ROLE", users.drop_role),
        (r"SHOW\s+(?:TERSE\s+)?ROLES", users.show_roles),
        (r"(?:GRANT|REVOKE)\s+ROLE", users.grant_role),
        (r"(?:GRANT|REVOKE)\s+DATABASE\s+ROLE", account_usage.grant_viewer),
        (r"GRANT|REVOKE", grants.grant),
        (r"SHOW\s+GRANTS", grants.show_grants),
        (r"SHOW\s+FUTURE\s+GRANTS", grants.show_future_grants),
        (r"CREATE\s+(?:OR\s+REPLACE\s+)?USER", users.create_user),
        (r"ALTER\s+USER", users.alter_user),
        (r"DROP\s+USER", users.drop_user),
        (r"SHOW\s+(?:TERSE\s+)?USERS", users.show_users),
        (r"(?:DESCRIBE|DESC)\s+USER", users.describe_user),
        (r"CREATE\s+(?:OR\s+REPLACE\s+)?WAREHOUSE", warehouses.create_warehouse),
        (r"ALTER\s+WAREHOUSE", warehouses.alter_warehouse),
        (r"DROP\s+WAREHOUSE", warehouses.drop_warehouse),
        (r"SHOW\s+WAREHOUSES", warehouses.show_warehouses),
        (r"(?:DESCRIBE|DESC)\s+WAREHOUSE", warehouses.describe_warehouse),
        (r"USE", use),
        (r"ALTER\s+SESSION", alter_session),
        (r"EXECUTE\s+IMMEDIATE", _execute_immediate),
        (r"SET", set_variables),
        (r"UNSET", unset_variables),
        (r"SHOW\s+VARIABLES", show_variables),
        (r"BEGIN|START\s+TRANSACTION", begin),
        (r"COMMIT", commit),
        (r"ROLLBACK", rollback),
        (r"SELECT\b[^;]*?\bTABLE\s*\(\s*INFER_SCHEMA", infer_schema.select),
        (r"SELECT|WITH|VALUES", query.select),
        (r"\(", query.select),
        (r"INSERT|UPDATE|DELETE|MERGE", query.modify),
    )
)

# First words of Snowflake's statements, with the kind of object behind them: for what is not supported here.
_UNKNOWN = re.compile(
    r"(CREATE|ALTER|DROP|SHOW|DESCRIBE|DESC)\s+(?:OR\s+(?:REPLACE|ALTER)\s+)?(?:SECURE\s+)?"
    r"(\w+(?:\s+(?:POOL|FUNCTION|INTEGRATION|MONITOR|POLICY|ROLE|TABLES?|VIEWS?|GROUP|SERVICE|REPOSITORY|RULE)\b)?)"
    r"|(EXPLAIN|CALL|EXECUTE|DECLARE|COPY|UNDROP|WITH|ABORT|IF|FOR|LET|RETURN|BEGIN)\b",
    re.IGNORECASE,
)
# Errors of a session without a current database or schema.
_NO_PLACE = frozenset({"090105", "090106"})
_ROLLBACK = re.compile(r"ROLLBACK\b", re.IGNORECASE)
_FILE_COMMAND = re.compile(r"(?:PUT|GET)\b", re.IGNORECASE)
_NAMED_BY_VALUE = re.compile(r"\bIDENTIFIER\s*\(\s*[?:]", re.IGNORECASE)
_AS_WRITTEN = re.compile(
    r"(?:SELECT(?!\s+SYSTEM\$)|WITH|VALUES|INSERT|UPDATE|DELETE|MERGE)\b|\(", re.IGNORECASE
)


def execute(
    session: Session,
    statement: str,
    bindings: Mapping[str, Mapping[str, Any]] | None = None,
    query_id: str | None = None,
) -> Result:
    """Run one statement in a session.

    :param session: the session; its lock is held while the statement runs.
    :param statement: one Snowflake statement, with or without a closing semicolon.
    :param bindings: values for ``?`` or ``:1``, in the form of the connector protocol and the SQL API.
    :param query_id: id under which the result is remembered; None for a new one.
    :raises SqlError: for every failure; no other exception leaves this function.
    """
    text = strip_comments(statement).rstrip().rstrip(";")
    if not text:
        raise _empty_statement()
    if not _is_unicode(text):
        raise SqlError("001003", "42000", "SQL compilation error:\nthe statement is not valid Unicode.")
    with session.lock, snowflake_errors(session):
        if session.has_ended:
            raise SqlError("390111", "08001", SESSION_GONE)
        if session.transaction.lost is not None and not _ROLLBACK.match(text):
            raise session.transaction.lost
        session.is_busy = True
        session.query_id = query_id or str(uuid.uuid4())
        try:
            result = _run(session, text, Bindings(bindings or {}))
        except SqlError as error:
            if error.code in _NO_PLACE:
                words = error.message.replace("Cannot perform operation", f"Cannot perform {_verb(text)}")
                raise SqlError(error.code, error.sqlstate, words) from error
            raise
        finally:
            session.is_busy = False
        session.remember(session.query_id, result)
        return result


def _verb(text: str) -> str:
    """Return what a statement does, as the error of a session without a current database names it."""
    words = re.sub(r"\b(?:OR\s+REPLACE|TEMPORARY|TEMP|TRANSIENT)\s+", "", text.upper()).split()
    return " ".join(words[: 2 if words[0] in {"CREATE", "ALTER", "DROP", "SHOW", "DESCRIBE"} else 1])


def _empty_statement() -> SqlError:
    return SqlError("000900", "42601", "SQL compilation error:\nEmpty SQL statement.")


def _is_unicode(text: str) -> bool:
    """Return False for half a surrogate pair, which JSON can carry and no file name or engine takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@contextlib.contextmanager
def snowflake_errors(session: Session) -> Iterator[None]:
    """Turn every failure of a statement into Snowflake's error; nothing else leaves the context.

    :raises SqlError: for a failure.
    """
    try:
        with _restoring(session):
            yield
    except SqlError:
        raise
    except sqlglot.errors.UnsupportedError as error:
        said = str(error).split("\n", maxsplit=1)[0]
        raise unsupported(re.sub(r" (?:is not supported in|when targeting) DuckDB\b\.?", "", said)) from error
    except sqlglot.errors.SqlglotError as error:
        raise _syntax_error(error) from error
    except RecursionError as error:
        raise compilation_error("the statement is nested too deeply.") from error
    except duckdb.Error as error:
        if spool.is_invalidated(error):
            session.catalog.revive()
        raise translate_error(error) from error
    except OSError as error:
        if spool.is_full(error):
            raise disk_full() from error
        raise _internal(error) from error
    except Exception as error:
        raise _internal(error) from error


def _internal(error: Exception) -> SqlError:
    log.error("statement failed inside the service", exc_info=error)
    return SqlError(
        "000603",
        "XX000",
        f"SQL execution internal error in the local service: {type(error).__name__}: {error}",
    )


@contextlib.contextmanager
def _restoring(session: Session) -> Iterator[None]:
    try:
        yield
    except BaseException:
        session.transaction.restore()
        raise
    finally:
        session.forget_lent()


def _run(session: Session, text: str, bindings: Bindings) -> Result:
    # sqlglot reads queries and DML by itself; a path of PUT and GET may look like a comment.
    if _FILE_COMMAND.match(text):
        text, bindings = inline_words(text, bindings), Bindings({})
    elif _AS_WRITTEN.match(text) is None:
        text, bindings = iceberg.plain(session, inline(text, bindings)), Bindings({})
        ddl.check(text)
    elif bindings and _NAMED_BY_VALUE.search(text):
        # A name has to be known before the statement can be read.
        text, bindings = inline(text, bindings), Bindings({})
    return _handler(text)(session, text, bindings)


def _handler(text: str) -> Handler:
    for pattern, handler in _HANDLERS:
        if pattern.match(text):
            return handler
    head = _UNKNOWN.match(text)
    if head is None:
        raise compilation_error(f"syntax error: unexpected '{text.split()[0][:50]}'.")
    raise unsupported(" ".join(" ".join(part.split()) for part in head.groups() if part).upper())


def _syntax_error(error: sqlglot.errors.SqlglotError) -> SqlError:
    detail = str(error).split("\n", maxsplit=1)[0]
    plain = re.sub(r"\x1b\[[0-9;]*m", "", detail)
    missing = re.search(r"Required keyword: .* missing for <class '[\w.]*?(\w+)'>", plain)
    if missing is not None and _is_function(missing[1]):
        return SqlError("000938", "22023", "SQL compilation error:\nnot enough arguments for function")
    plain = re.sub(r"Required keyword: .* missing for <class .*?>", "an expression is missing", plain)
    many = re.search(r"provided arguments \((\d+)\) is greater than .* arguments \((\d+)\)", plain)
    if many is not None:
        words = f"too many arguments for function, expected {many[2]}, got {many[1]}"
        return SqlError("000939", "22023", f"SQL compilation error:\n{words}")
    return SqlError("001003", "42000", f"SQL compilation error:\nsyntax error: {plain}")


def _is_function(name: str) -> bool:
    """True for a class of sqlglot that stands for a function, not for an operator or a clause."""
    kind = getattr(exp, name, exp.Expression)
    return issubclass(kind, exp.Func) and not issubclass(kind, (exp.Binary, exp.Connector))

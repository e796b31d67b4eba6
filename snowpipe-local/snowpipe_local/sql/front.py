"""Entry of the SQL front: one statement in, one result or one Snowflake-shaped error out."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import duckdb
import sqlglot.errors
from sqlglot import exp

from snowpipe_local.engine import spool
from snowpipe_local.engine.store import SEQUENCE, VIEW
from snowpipe_local.errors import SqlError, compilation_error, unsupported
from snowpipe_local.sql import (
    alter_table,
    ddl,
    grants,
    history,
    iceberg,
    information_schema,
    pipes,
    query,
    show,
    stages,
    translate,
    unload,
    users,
    views,
)
from snowpipe_local.sql.checks import disk_full, translate_error
from snowpipe_local.sql.reader import Reader, inline, name_variables, strip_comments
from snowpipe_local.sql.results import (
    SELECT,
    USE,
    Bindings,
    Result,
    already_dropped,
    done,
    listing,
)
from snowpipe_local.sql.session import Session, require_unrestricted, use_role, use_schema, use_warehouse
from snowpipe_local.sql.show import Shown
from snowpipe_local.stages.definition import FileFormatDefinition, StageDefinition

# -- Statements about the session: USE, ALTER SESSION, transactions --------------------------------------

# Variables of a session, and bytes of a text or binary value ("Using session variables").
_MOST, _MOST_BYTES = 256, 256


def use(session: Session, reader: Reader) -> Result:
    """USE [DATABASE | SCHEMA | ROLE | WAREHOUSE] name, USE SECONDARY ROLES ALL | NONE."""
    kind = reader.accept("SECONDARY ROLES", "DATABASE", "SCHEMA", "ROLE", "WAREHOUSE")
    if kind == "SECONDARY ROLES":
        roles = reader.expect("ALL", "NONE")
        reader.end()
        if roles == "ALL":
            require_unrestricted(session, None)
        session.secondary_roles = roles == "ALL"
        return dataclasses.replace(done(), statement_type=USE)
    path = reader.path(2 if kind in {"", "SCHEMA"} else 1)
    reader.end()
    if kind == "ROLE":
        use_role(session, path[-1])
    elif kind == "WAREHOUSE":
        use_warehouse(session, path[-1])
    elif kind == "SCHEMA":
        use_schema(session, path[0] if len(path) == 2 else None, path[-1])
    else:
        use_schema(session, path[0], path[1] if len(path) == 2 else None)
    return dataclasses.replace(done(), statement_type=USE)


def alter_session(session: Session, reader: Reader) -> Result:
    """ALTER SESSION SET | UNSET: parameters are remembered; few have an effect here.

    A change of AUTOCOMMIT commits the open transaction ("Transactions", "Autocommit").

    :raises SqlError: 001006 for a name that is not a parameter.
    """
    changed: dict[str, Any] = (
        dict(reader.properties(needed=True))
        if reader.expect("SET", "UNSET") == "SET"
        else dict.fromkeys(reader.names())
    )
    reader.end()
    unknown = next((name for name in changed if not show.is_parameter(name)), None)
    if unknown is not None:
        raise compilation_error(f"invalid parameter '{unknown}'", "001006", "22023")
    autocommit = session.autocommit
    for name, value in changed.items():
        session.set_parameter(name, value)
    if session.autocommit != autocommit:
        session.transaction.commit()
    return done()


def begin(session: Session, reader: Reader) -> Result:
    """BEGIN [TRANSACTION | WORK] [NAME name], START TRANSACTION [NAME name]."""
    if reader.verb == "START":
        reader.expect("TRANSACTION")
    elif not reader.accept("TRANSACTION", "WORK") and reader.word not in {"", "NAME"}:
        raise unsupported("Snowflake Scripting (BEGIN .. END)")
    if reader.accept("NAME"):
        reader.name()
    reader.end()
    session.transaction.begin()
    return done()


def end_transaction(session: Session, reader: Reader) -> Result:
    """COMMIT [WORK] and ROLLBACK [WORK]; both succeed outside a transaction, as in Snowflake."""
    reader.accept("WORK")
    reader.end()
    if reader.verb == "COMMIT":
        session.transaction.commit()
    else:
        session.transaction.rollback()
    return done()


# -- Session variables: SET, UNSET, SHOW VARIABLES and ``$name`` in queries ------------------------------


def set_variables(session: Session, reader: Reader) -> Result:
    """SET name = expression, SET (a, b) = (x, y)."""
    many = reader.name_list()
    names = many or [reader.name()]
    reader.expect_sign("=")
    value = reader.parenthesized() if many and reader.is_sign("(") else reader.rest()
    reader.end()
    tree = translate.parse(f"SELECT {value}")
    if any(isinstance(part, exp.Alias) for part in tree.expressions):
        raise compilation_error("syntax error: SET takes expressions without names.")
    sql = translate.to_duckdb(translate.prepare(session, tree))
    row = session.cursor.execute(sql).fetchone()
    if row is None or len(row) != len(names):
        raise compilation_error(f"SET of {len(names)} variables needs as many values.")
    for name, value in zip(names, row, strict=True):
        size = len(str(value).encode())
        if size > _MOST_BYTES:
            raise compilation_error(
                f"Assignment to '{name}' not done because value exceeds size limit for variables. "
                f"Its size is {size}; the limit is {_MOST_BYTES} (internal storage size in bytes)."
            )
    if len({*session.variables, *names}) > _MOST:
        raise SqlError("000002", "0A000", f"a session has {_MOST} variables at most.")
    session.variables.update(zip(names, row, strict=True))
    return done()


def unset_variables(session: Session, reader: Reader) -> Result:
    """UNSET name, UNSET (a, b)."""
    names = reader.name_list() or reader.names()
    reader.end()
    for name in names:
        session.variables.pop(name, None)
    return done()


def show_variables(session: Session, _shown: Shown) -> Result:
    """SHOW VARIABLES."""
    known = sorted(session.variables.items())
    return listing("SHOW VARIABLES", (dict(name=name, value=str(value)) for name, value in known))


# -- The statements, each with its handler ---------------------------------------------------------------

Handler = Callable[[Session, Reader], Result]


def _execute_immediate(session: Session, reader: Reader) -> Result:
    """EXECUTE IMMEDIATE '..' with the text of one statement."""
    if not reader.is_at_string:
        raise unsupported("EXECUTE IMMEDIATE of something that is not a text")
    inner = strip_comments(reader.string()).rstrip().rstrip(";")
    reader.end()
    if not inner:
        raise _empty_statement()
    return _run(session, inner, Bindings({}))


def _listing(listed: Callable[[Session, Shown], Result]) -> Handler:
    """Return the handler of a SHOW statement that has the clauses of all of them."""

    def handler(session: Session, reader: Reader) -> Result:
        shown = Shown.read(reader)
        return shown.narrowed(listed(session, shown))

    return handler


def _limited(listed: Handler) -> Handler:
    """Return the handler of a SHOW statement with clauses of its own before STARTS WITH and LIMIT."""

    def handler(session: Session, reader: Reader) -> Result:
        result = listed(session, reader)
        return Shown.read(reader, ("STARTS", "LIMIT")).narrowed(result)

    return handler


_NEW = "CREATE [OR REPLACE] [TEMPORARY] [TRANSIENT]"
_NEW_CONTAINER = "CREATE [OR REPLACE] [TRANSIENT]"
_NEW_STAGED = "CREATE [OR REPLACE] [TEMPORARY]"
_NOTHING = (
    "STREAMS", "TASKS", "INTEGRATIONS", "PROCEDURES", "USER PROCEDURES", "FUNCTIONS", "USER FUNCTIONS",
    "EXTERNAL TABLES", "MATERIALIZED VIEWS", "DYNAMIC TABLES", "TRANSACTIONS", "LOCKS", "IMPORTED KEYS",
    "EXPORTED KEYS",
)  # fmt: skip
STATEMENTS: dict[str, Handler] = {
    f"{_NEW_CONTAINER} DATABASE": ddl.create_database,
    "ALTER DATABASE": views.alter_container,
    "DROP DATABASE": ddl.drop_database,
    "DESCRIBE DATABASE": show.describe_database,
    "SHOW [TERSE] DATABASES": _listing(show.show_databases),
    f"{_NEW_CONTAINER} SCHEMA": ddl.create_schema,
    "ALTER SCHEMA": views.alter_container,
    "DROP SCHEMA": ddl.drop_schema,
    "DESCRIBE SCHEMA": show.describe_schema,
    "SHOW [TERSE] SCHEMAS": _listing(show.show_schemas),
    f"{_NEW} TABLE": ddl.create_table,
    "ALTER TABLE": alter_table.alter_table,
    "DROP TABLE": ddl.drop_table,
    "TRUNCATE": ddl.truncate_table,
    "TRUNCATE TABLE": ddl.truncate_table,
    "DESCRIBE TABLE": show.describe_relation,
    "SHOW [TERSE] TABLES": _listing(show.show_tables),
    f"{_NEW} ICEBERG TABLE": ddl.create_table,
    "ALTER ICEBERG TABLE": iceberg.only(alter_table.alter_table),
    "DROP ICEBERG TABLE": iceberg.only(ddl.drop_table),
    "TRUNCATE ICEBERG TABLE": iceberg.only(ddl.truncate_table),
    "DESCRIBE ICEBERG TABLE": iceberg.only(show.describe_relation),
    "SHOW [TERSE] ICEBERG TABLES": _listing(iceberg.show_tables),
    "UNDROP": show.undrop,
    f"{_NEW} [SECURE] VIEW": views.create_view,
    "DROP VIEW": views.drop(VIEW),
    "DESCRIBE VIEW": information_schema.describe_view,
    "SHOW [TERSE] VIEWS": _listing(views.show_views),
    "SHOW COLUMNS": _listing(show.show_columns),
    "SHOW [TERSE] OBJECTS": _listing(show.show_objects),
    "COMMENT": views.comment_on,
    "CREATE [OR REPLACE] SEQUENCE": views.create_sequence,
    "ALTER SEQUENCE": views.alter_sequence,
    "DROP SEQUENCE": views.drop(SEQUENCE),
    "DESCRIBE SEQUENCE": views.describe_sequence,
    "SHOW SEQUENCES": _listing(views.show_sequences),
    f"{_NEW_STAGED} STAGE": stages.create_stage,
    "ALTER STAGE": stages.alter_stage,
    "DROP STAGE": stages.drop(StageDefinition),
    "DESCRIBE STAGE": stages.describe_stage,
    "SHOW [TERSE] STAGES": _listing(stages.show_stages),
    "PUT": stages.put,
    "GET": stages.get,
    "LIST": stages.list_files,
    "REMOVE": stages.remove_files,
    f"{_NEW_STAGED} FILE FORMAT": stages.create_file_format,
    "ALTER FILE FORMAT": stages.alter_file_format,
    "DROP FILE FORMAT": stages.drop(FileFormatDefinition),
    "DESCRIBE FILE FORMAT": stages.describe_file_format,
    "SHOW [TERSE] FILE FORMATS": _listing(stages.show_file_formats),
    "COPY INTO": unload.copy,
    "CREATE [OR REPLACE] PIPE": pipes.create_pipe,
    "ALTER PIPE": pipes.alter_pipe,
    "DROP PIPE": pipes.drop_pipe,
    "DESCRIBE PIPE": pipes.describe_pipe,
    "SHOW PIPES": _listing(pipes.show_pipes),
    "SHOW CHANNELS": _listing(show.show_channels),
    "SELECT": pipes.system_function,
    "CALL": pipes.system_function,
    "CREATE [OR REPLACE] ROLE": users.create_role,
    "ALTER ROLE": users.alter_role,
    "DROP ROLE": users.drop_role,
    "SHOW [TERSE] ROLES": _listing(users.show_roles),
    "GRANT ROLE": users.grant_role,
    "REVOKE ROLE": users.grant_role,
    "GRANT DATABASE ROLE": history.grant_viewer,
    "REVOKE DATABASE ROLE": history.grant_viewer,
    "GRANT": grants.grant,
    "REVOKE": grants.grant,
    "SHOW GRANTS": _limited(grants.show_grants),
    "SHOW FUTURE GRANTS": _limited(grants.show_future_grants),
    "CREATE [OR REPLACE] USER": users.create_user,
    "ALTER USER": users.alter_user,
    "DROP USER": users.drop_user,
    "DESCRIBE USER": users.describe_user,
    "SHOW [TERSE] USERS": _listing(users.show_users),
    "CREATE [OR REPLACE] WAREHOUSE": users.create_warehouse,
    "ALTER WAREHOUSE": users.alter_warehouse,
    "DROP WAREHOUSE": users.drop_warehouse,
    "DESCRIBE WAREHOUSE": users.describe_warehouse,
    "SHOW WAREHOUSES": _listing(users.show_warehouses),
    "USE": use,
    "ALTER SESSION": alter_session,
    "SHOW PARAMETERS": _listing(show.show_parameters),
    "SET": set_variables,
    "UNSET": unset_variables,
    "SHOW VARIABLES": _listing(show_variables),
    "EXECUTE IMMEDIATE": _execute_immediate,
    "BEGIN": begin,
    "START": begin,
    "COMMIT": end_transaction,
    "ROLLBACK": end_transaction,
    **{f"SHOW {kind} KEYS": _listing(show.show_keys) for kind in ("PRIMARY", "UNIQUE")},
    **{f"SHOW {kind}": _listing(show.show_nothing) for kind in _NOTHING},
}
"""Every statement that sqlglot does not read: its first words, with what may stand between in brackets.

``TEMPORARY`` stands for its other spellings too. A handler reads the rest, to the end.
"""

_SYNONYMS = {"DESC": "DESCRIBE", "LS": "LIST", "RM": "REMOVE"}
_MODIFIERS = {
    "OR REPLACE": "OR REPLACE", "OR ALTER": "OR ALTER", "SECURE": "SECURE", "TRANSIENT": "TRANSIENT",
    **{f"{scope}{word}": "TEMPORARY"
       for scope in ("LOCAL ", "GLOBAL ", "SCOPED ", "") for word in ("TEMPORARY", "TEMP", "VOLATILE")},
}  # fmt: skip
_MODIFIER_WORDS = frozenset(words.split()[0] for words in _MODIFIERS)


def _declared() -> dict[str, dict[str, tuple[Handler, frozenset[str]]]]:
    """Return by verb, then by kind, the handler and the modifiers that the statement may have."""
    found: dict[str, dict[str, tuple[Handler, frozenset[str]]]] = {}
    for words, handler in STATEMENTS.items():
        allowed = frozenset(re.findall(r"\[(.*?)\]", words))
        verb, _, kind = " ".join(re.sub(r"\[.*?\]", "", words).split()).partition(" ")
        found.setdefault(verb, {})[kind] = handler, allowed
    return found


_DECLARED = _declared()
_MOST_WORDS = 2
# What begins like a statement that is known.
_UNKNOWN = frozenset(f"{verb} DATABASE ROLE" for verb in ("CREATE", "ALTER", "DROP", "SHOW"))
# Statements of Snowflake's without an object behind them that are not supported here.
_OTHER_VERBS = frozenset(
    {"EXPLAIN", "CALL", "EXECUTE", "DECLARE", "COPY", "ABORT", "IF", "FOR", "LET", "RETURN"}
)
_SECOND = (
    "POOL", "FUNCTION", "INTEGRATION", "MONITOR", "POLICY", "ROLE", "TABLE", "TABLES", "VIEW", "VIEWS",
    "GROUP", "SERVICE", "REPOSITORY", "RULE",
)  # fmt: skip


def _handler(reader: Reader) -> Handler:
    """Read the first words of a statement.

    :returns: the handler that reads the rest.
    :raises SqlError: 000002 for a statement of Snowflake's that is not supported, 001003 for any other.
    """
    verb = _SYNONYMS.get(reader.word, reader.word)
    kinds = _DECLARED.get(verb)
    if kinds is None and verb not in _OTHER_VERBS:
        raise compilation_error(f"syntax error: unexpected '{reader.text.split()[0][:50]}'.")
    reader.accept(reader.word)
    reader.verb = verb
    given = []
    if verb == "CREATE":
        while reader.word in _MODIFIER_WORDS and (word := reader.accept(*_MODIFIERS)):
            given.append(_MODIFIERS[word])
    elif verb == "SHOW" and reader.accept("TERSE"):
        given.append("TERSE")
    reader.modifiers = frozenset(given)
    # More words first: GRANT ROLE before GRANT.
    for count in range(_MOST_WORDS, -1, -1):
        kind = reader.ahead(count)
        if kinds is not None and kind in kinds and f"{verb} {reader.ahead(2)}" not in _UNKNOWN:
            handler, allowed = kinds[kind]
            if not reader.modifiers <= allowed:
                raise unsupported(f"{verb} {min(reader.modifiers - allowed)} {kind}")
            if kind:
                reader.accept(kind)
            reader.kind = kind
            return handler
    if verb in _OTHER_VERBS:
        raise unsupported(verb)
    first = reader.word or reader.name()
    reader.accept(first)
    raise unsupported(" ".join(filter(None, (verb, first, reader.accept(*_SECOND)))))


# -- Entry of the SQL front: one statement in, one result or one Snowflake-shaped error out --------------

log = logging.getLogger(__name__)

# Errors of an object that does not exist, and of a session without a current database or schema.
_MISSING = frozenset({"002003", "002043"})
_NO_NAMESPACE = frozenset({"090105", "090106"})
_QUERIES = frozenset({"SELECT", "WITH", "VALUES"})
_CHANGES = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE"})
_WORD = re.compile(r"\w+")
_SYSTEM = re.compile(r"SELECT\s*SYSTEM\$", re.IGNORECASE)
# A bound name, stage or format of a time has to be known before the statement can be read.
_READ_BY_VALUE = re.compile(
    r"\bIDENTIFIER\s*\(\s*[?:]"
    r"|\bINFER_SCHEMA\s*\("
    r"|\b(?:TRY_)?TO_(?:CHAR|VARCHAR|DATE|TIME\w*)\s*\([^()]*(?:\([^()]*\)[^()]*)?,\s*(?:\?|:\w)",
    re.IGNORECASE,
)


def execute(
    session: Session,
    statement: str,
    bindings: Mapping[str, Mapping[str, Any]] | None = None,
    query_id: str | None = None,
    parameters: Mapping[str, object] = MappingProxyType({}),
) -> Result:
    """Run one statement in a session.

    :param session: the session; its lock is held while the statement runs.
    :param statement: one Snowflake statement, with or without a closing semicolon.
    :param bindings: values for ``?`` or ``:1``, in the form of the connector protocol and the SQL API.
    :param query_id: id under which the result is remembered; None for a new one.
    :param parameters: of the session, by upper-case name, with the values that they have for this statement.
    :raises SqlError: for every failure; no other exception leaves this function.
    """
    text = strip_comments(statement).rstrip().rstrip(";")
    if not text:
        raise _empty_statement()
    if not _is_unicode(text):
        raise compilation_error("the statement is not valid Unicode.")
    with session.lock, session.given(parameters), snowflake_errors(session):
        if session.transaction.lost is not None and _first_word(text) != "ROLLBACK":
            raise session.transaction.lost
        session.is_busy = True
        session.query_id = query_id or str(uuid.uuid4())
        try:
            result = _run(session, text, Bindings(bindings or {}))
        except SqlError as error:
            if error.code in _NO_NAMESPACE:
                words = error.message.replace("Cannot perform operation", f"Cannot perform {_verb(text)}")
                raise SqlError(error.code, error.sqlstate, words) from error
            raise
        finally:
            session.is_busy = False
            session.transaction.used_at = time.monotonic()
        if session.most_rows is not None and result.statement_type == SELECT:
            result = dataclasses.replace(result, rows=result.rows[: session.most_rows])
        session.remember(session.query_id, result)
        return result


def _verb(text: str) -> str:
    """Return what a statement does, as the error of a session without a current database names it."""
    words = re.sub(r"\b(?:OR\s+REPLACE|TEMPORARY|TEMP|TRANSIENT)\s+", "", text.upper()).split()
    return " ".join(words[: 2 if words[0] in {"CREATE", "ALTER", "DROP", "SHOW", "DESCRIBE"} else 1])


def _empty_statement() -> SqlError:
    return compilation_error("Empty SQL statement.", "000900", "42601")


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
        raise _not_translated(str(error)) from error
    except sqlglot.errors.SqlglotError as error:
        raise _syntax_error(error) from error
    except RecursionError as error:
        raise compilation_error("the statement is nested too deeply.") from error
    except (duckdb.Error, MemoryError) as error:
        if spool.is_invalidated(error):
            session.catalog.revive()
        raise translate_error(error) from error
    except Exception as error:
        raise (disk_full() if spool.is_full(error) else _internal(error)) from error


def _internal(error: Exception) -> SqlError:
    log.error("statement failed inside the service", exc_info=error)
    why = f"SQL execution internal error in the local service: {type(error).__name__}: {error}"
    return SqlError("000603", "XX000", why)


@contextlib.contextmanager
def _restoring(session: Session) -> Iterator[None]:
    try:
        yield
    except BaseException:
        session.transaction.restore()
        raise
    finally:
        session.unregister()


def _run(session: Session, text: str, bindings: Bindings) -> Result:
    verb = _first_word(text)
    text = name_variables(text, session.variables)
    if verb in _CHANGES or text.startswith("(") or (verb in _QUERIES and not _SYSTEM.match(text)):
        # sqlglot reads queries and DML by itself.
        if bindings and _READ_BY_VALUE.search(text):
            each = bindings.each() if verb in _CHANGES else [bindings]
            if len(each) > 1:
                return _run_for_each(session, text, each)
            text, bindings = inline(text, bindings, typed=True), Bindings({})
        if verb in _CHANGES:
            return query.modify(session, text, bindings)
        return query.select(session, text, bindings)
    reader = Reader.of_file_command(text, bindings) if verb in {"PUT", "GET"} else Reader.of(text, bindings)
    if reader.is_at_end:
        raise _empty_statement()
    handler = _handler(reader)
    try:
        return handler(session, reader)
    except SqlError as error:
        about = reader.about if reader.verb == "DROP" else None
        if about is None or not about.is_tolerant or error.code not in _MISSING:
            raise
        return already_dropped(about.name)


def listed(session: Session, text: str) -> Result:
    """Return the result of a SHOW or DESCRIBE, which changes nothing, though it is not asked for its rows."""
    return _run(session, text, Bindings({}))


def _run_for_each(session: Session, text: str, rows: Sequence[Bindings]) -> Result:
    """Run a change with a bound name or format for several rows of values."""
    with session.together():
        made = [query.modify(session, inline(text, row, typed=True), Bindings({})) for row in rows]
    changed: Counter[str] = Counter()
    for one in made:
        changed.update(one.changed or {})
    counts = [sum(cells) for cells in zip(*(one.rows[0] for one in made), strict=True)]
    return dataclasses.replace(made[0], rows=[counts], changed=changed)


def _first_word(text: str) -> str:
    match = _WORD.match(text)
    return match[0].upper() if match else ""


# How sqlglot reports that the engine lacks something, and the names of functions in it.
_LACKS = re.compile(
    r" (?:is not supported (?:in|by)|when targeting) DuckDB\b\.?| has no DuckDB equivalent|^Snowflake "
)
_OF_TRANSLATOR = re.compile(r"DuckDB|transpile|LIST_SORT|NumberToStr")
_NAME = re.compile(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]+|\b[A-Z]{4,}\b")


def _not_translated(text: str) -> SqlError:
    """Return the error for what sqlglot cannot write for the engine, in words that do not speak of it."""
    words = _LACKS.sub("", text.split("\n", maxsplit=1)[0])
    words = re.sub(r"^Unsupported (\w+) function$", r"\1 in this form", words).removesuffix(" not supported")
    if _OF_TRANSLATOR.search(words):
        named = _NAME.search(words.replace("LIST_SORT", "ARRAY_SORT"))
        words = f"{named[0]} in this form" if named else "a function in this form"
    return unsupported(words)


def _syntax_error(error: sqlglot.errors.SqlglotError) -> SqlError:
    if isinstance(error, sqlglot.errors.TokenError):
        return compilation_error("syntax error: a string, a name or a comment is not closed.")
    detail = str(error).split("\n", maxsplit=1)[0]
    again = error.errors[0] if isinstance(error, sqlglot.errors.ParseError) and error.errors else {}
    if str(again.get("description", "")).startswith("Found multiple"):
        place = f"line {again['line']} at position {again['col'] - len(again['highlight'])}"
        return compilation_error(f"syntax error {place} unexpected '{again['highlight']}'.")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", detail)
    plain = re.sub(r"Required keyword: .* missing for <class .*?>", "an expression is missing", plain)
    plain = re.sub(r"but got <Token token_type: [\w.]+, text: (.*?), line: .*?>", r"at '\1'", plain)
    plain = plain.replace("at 'SENTINEL'", "at the end")
    many = re.search(r"provided arguments \((\d+)\) is greater than .* arguments \((\d+)\)", plain)
    if many is not None:
        words = f"too many arguments for function, expected {many[2]}, got {many[1]}"
        return compilation_error(f"{words}", "000939", "22023")
    return compilation_error(f"syntax error: {plain}")

"""What a statement may call and reach, and the engine's errors in Snowflake's numbers and words.

A client never reads the engine's own text, not even for an error that the table does not know: that one gets
the words of its class, and the engine's text goes to the log of the service.
"""

from __future__ import annotations

import functools
import itertools
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import duckdb
import sqlglot
from sqlglot import Token, TokenType, exp

from snowpipe_local.engine import spool
from snowpipe_local.errors import SqlError, compilation_error, unsupported
from snowpipe_local.sql import numbers
from snowpipe_local.tables import ColumnType

# -- What a statement may reach: its tables and Snowflake's functions, nothing of the engine beneath -----

# Functions of the engine that describe it, wait, log, read its sequences, or make texts of any width.
_INTERNAL = re.compile(
    r"_|duckdb_|pg_|pragma_|has_\w+_privilege\Z|json_(?:de)?serialize_|"
    r"(?:current_setting|current_query|current_query_id|current_connection_id|current_transaction_id|"
    r"current_catalog|txid_current|getvariable|write_log|sleep_ms|nextval|currval|"
    r"format|printf|in_search_path|get_block_size|index_key|create_sort_key|error|"
    r"parse_duckdb_log_message|format_pg_type|map_to_pg_oid)\Z",
    re.IGNORECASE,
)
# What Snowflake has under the engine's name, though sqlglot's dialect does not know it; and table functions
# that read no more than their arguments, into which Snowflake's are translated.
_HARMLESS = frozenset(
    {
        "hash", "md5_number", "st_asbinary", "st_asgeojson", "st_astext", "st_aswkb", "st_aswkt",
        "to_timestamp", "repeat", "unnest", "generate_series", "json_each", "trunc",
    }
)  # fmt: skip
_CHANGES = (exp.DML, exp.Create, exp.Drop, exp.Alter, exp.Command, exp.Describe, exp.Show, exp.Pragma)


def check(tree: exp.Expr) -> None:
    """Refuse what no Snowflake query has; call it on the tree as parsed, before anything is translated.

    :raises SqlError: 002140 for a function of the engine, 000002 for a change inside a query, 100039 for a
        literal that is too large.
    """
    for part in tree.walk():
        if isinstance(part, exp.Literal):
            numbers.check_literal(part)
            continue
        foreign = _FOREIGN.get(type(part))
        if foreign is not None and (word := foreign(part)):
            raise compilation_error(f"syntax error: unexpected '{word}'.")
        if isinstance(part, exp.Func):
            is_unread = isinstance(part, exp.Anonymous)
            name = part.name if is_unread else part.sql_name()
            if _is_of_the_engine(name.lower(), is_unread=is_unread):
                raise missing_function(name)
        if isinstance(part, _SUSPECT):
            _check_part(part)
        # The INSERT, UPDATE and DELETE of a MERGE are branches of it.
        if part is not tree and isinstance(part, _CHANGES) and not isinstance(part.parent, exp.When):
            raise unsupported(f"{part.key.upper()} inside of another statement")


# The word of other databases' syntax that Snowflake does not expect, where a part has it: sqlglot reads it.
_FOREIGN: Mapping[type[exp.Expr], Callable[[exp.Expr], str]] = {
    exp.AtTimeZone: lambda _: "AT",
    exp.Distinct: lambda part: "ON" if part.args.get("on") else "",
    exp.Except: lambda part: "" if part.args.get("distinct") else "ALL",
    exp.Filter: lambda _: "FILTER",
    exp.Insert: lambda part: next(
        (
            word
            for name, word in (("alternative", "OR"), ("conflict", "ON"), ("default", "DEFAULT"))
            if part.args.get(name)
        ),
        "",
    ),
    exp.IntDiv: lambda _: "DIV",
    exp.Intersect: lambda part: "" if part.args.get("distinct") else "ALL",
    exp.Join: lambda part: kind if (kind := part.args.get("kind")) in {"SEMI", "ANTI"} else "",
    exp.LimitOptions: lambda part: (
        "PERCENT" if part.args.get("percent") else "WITH" if part.args.get("with_ties") else ""
    ),
    exp.Select: lambda part: "USING" if part.args.get("sample") else "",
    exp.Update: lambda part: (
        "(" if any(isinstance(one.this, (exp.Paren, exp.Tuple)) for one in part.expressions) else ""
    ),
}
# What sqlglot reads though Snowflake does not have it, or takes there only what has certain parts.
_SUSPECT = (exp.Values, exp.Window, exp.SimilarTo, exp.Collate, exp.Cast, exp.Tuple, exp.HexString)
_OF_VARIANT = (exp.ParseJSON, exp.Array, exp.Struct, exp.ToVariant)
_ORDERED = (
    exp.RowNumber, exp.Rank, exp.DenseRank, exp.Ntile, exp.Lag, exp.Lead, exp.CumeDist, exp.PercentRank,
    exp.FirstValue, exp.LastValue,
)  # fmt: skip
_FOREIGN_TYPES = frozenset({"JSON", "UBIGINT", "MEDIUMINT", "NAME", "LIST"})


def _check_part(part: exp.Expr) -> None:
    """Refuse one expression that Snowflake does not take, or that is not supported."""
    if isinstance(part, exp.Values):
        wrong = next((made for row in part.expressions for made in row.find_all(*_OF_VARIANT)), None)
        if wrong is not None:
            written = wrong.sql(dialect="snowflake")
            raise compilation_error(f"Invalid expression [{written}] in VALUES clause", "002014", "22000")
    elif isinstance(part, exp.Window):
        _check_window(part)
    elif isinstance(part, exp.Cast):
        kind = part.to
        if not kind.expressions and not isinstance(kind.this, exp.Interval):
            ColumnType.from_sqlglot(kind)
        if str(getattr(kind.this, "value", kind.this)).upper() in _FOREIGN_TYPES:
            raise unsupported(f"data type {kind.sql(dialect='snowflake')}")
    elif isinstance(part, exp.HexString):
        if len(part.name) % 2:
            raise compilation_error(f"syntax error: x'{part.name}' has an odd number of digits.")
    elif not isinstance(part, exp.Tuple) or _is_projection(part):
        raise unsupported("COLLATE" if isinstance(part, exp.Collate) else part.sql(dialect="snowflake")[:60])


def _check_window(window: exp.Window) -> None:
    call = window.this.this if isinstance(window.this, (exp.IgnoreNulls, exp.RespectNulls)) else window.this
    if isinstance(call, _ORDERED) and not window.args.get("order") and not window.args.get("alias"):
        raise compilation_error(
            f"Window function type [{call.sql_name()}] requires ORDER BY in window specification",
            "002303",
            "42601",
        )


def _is_projection(part: exp.Expr) -> bool:
    return isinstance(part.parent, exp.Select) and part.arg_key == "expressions"


def missing_function(name: str) -> SqlError:
    """Return the error for a function that the service lacks (000002), or Snowflake itself (002140)."""
    if name.upper() in _ARGUMENTS:
        return unsupported(f"function {name.upper()}")
    return compilation_error(f"Unknown function {name.upper()}", "002140", "42601")


def is_common(table: exp.Table) -> bool:
    """Return True when a table's name is that of a WITH clause that it can see.

    A name that only some other part of the statement defines must not reach the engine: it has views of its
    own that would answer to it.
    """
    changes = isinstance(table.parent, (exp.DML, exp.Schema)) and table.arg_key == "this"
    if table.args.get("db") or changes:
        return False
    way: list[exp.Expr] = [table]
    while (parent := way[-1].parent) is not None:
        clause = parent.args.get("with_")
        if clause is not None and table.name in _visible(clause, way):
            return True
        way.append(parent)
    return False


def _visible(clause: exp.With, way: list[exp.Expr]) -> set[str]:
    """Return the names that the bottom of a way up sees of a WITH clause: inside it, those before."""
    names: set[str] = set()
    for common in clause.expressions:
        is_inside = any(part is common for part in way)
        if is_inside and not clause.args.get("recursive"):
            break
        names.add(common.alias)
        if is_inside:
            break
    return names


def _is_of_the_engine(name: str, *, is_unread: bool) -> bool:
    if _INTERNAL.match(name) is not None or name in _functions("table", "pragma", "table_macro"):
        return True
    return is_unread and name in _functions("scalar", "aggregate", "macro")


@functools.cache
def _functions(*kinds: str) -> frozenset[str]:
    with duckdb.connect(":memory:") as engine:
        found = engine.execute(
            "SELECT DISTINCT lower(function_name) FROM duckdb_functions() "
            "WHERE list_contains(?, function_type)",
            [list(kinds)],
        ).fetchall()
    return frozenset(str(name) for (name,) in found) - _HARMLESS


# -- Errors of the engine beneath, in Snowflake's numbers and words: one table, and nothing passes beside it -

log = logging.getLogger(__name__)

_UNKNOWN_FUNCTION = re.compile(r"Function with name \"?(\w+)\"? does not exist")
_KIND = re.compile(r"\A(?:\w+ )+Error: ")
_BEHIND = re.compile(r"\n\s*(?:Candidate |LINE |Did you mean)| when casting from source column ")
_COMPILATION = "SQL compilation error:\n"
_MARK = re.compile(r"(?P<start>LINE \d+: )(?P<line>.*)\n(?P<blank> *)\^")
_PLAIN_NAME = re.compile(r'"([A-Z_][A-Z0-9_$]*)"')
# Macros, functions with underscores of the engine's, and its types.
_OF_ENGINE = re.compile(r"\b_\w+|\b[a-z]+_[a-z_]+\(|\b(?:STRUCT|BLOB|DECIMAL|\w+INT|U?INT\d+)\b|lambda")
# The engine's names of functions that Snowflake calls otherwise; names with an underscore are of macros.
_FUNCTIONS = {
    "_boolean": "TO_BOOLEAN", "_date": "TO_DATE", "_ntz": "TO_TIMESTAMP_NTZ", "_ltz": "TO_TIMESTAMP_LTZ",
    "_tz": "TO_TIMESTAMP_TZ", "_formatted": "TO_CHAR", "regexp_full_match": "REGEXP_LIKE", "~~": "LIKE",
    "_parse_json": "PARSE_JSON", "json_keys": "OBJECT_KEYS", "json_extract": "GET_PATH",
    "strftime": "TO_CHAR", "date_diff": "DATEDIFF", "arg_max": "MAX_BY", "arg_min": "MIN_BY",
    "strpos": "CHARINDEX", "levenshtein": "EDITDISTANCE",
    "substring": "SUBSTR", "starts_with": "STARTSWITH", "ends_with": "ENDSWITH",
    "json_object": "OBJECT_CONSTRUCT", "string_agg": "LISTAGG", "struct_pack": "OBJECT_CONSTRUCT",
    "!~~": "LIKE", "~~*": "ILIKE", "strptime": "TO_DATE or TO_TIMESTAMP",
}  # fmt: skip
# Of the first one that is found: number, SQLSTATE, words and pattern.
_TABLE: tuple[tuple[re.Pattern[str], str, str, str], ...] = tuple(
    (re.compile(pattern, re.DOTALL), number[:6], number[7:], (_COMPILATION if is_compiled else "") + words)
    for number, words, pattern in (
        line.split("\t")
        for line in Path(__file__).with_name("engine_errors.tsv").read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    )
    # Numbers below 003000 are the compiler's, but for the internal error and what is not supported.
    for is_compiled in [number < "003000" and not number.startswith(("000002", "000603"))]
)
# The text for an error that the table does not know, by its class.
_CLASSES: tuple[tuple[type[duckdb.Error], str, str, str], ...] = (
    (duckdb.CatalogException, "002003", "42S02", _COMPILATION + "an object does not exist."),
    (duckdb.BinderException, "000904", "42000", _COMPILATION + "invalid expression{at}: cast its parts to the"
     " types that it takes, or write it another way; the log of the local service has the reason."),
    (duckdb.ParserException, "001003", "42000", _COMPILATION + "syntax error in the statement."),
    (duckdb.SyntaxException, "001003", "42000", _COMPILATION + "syntax error in the statement."),
    (duckdb.NotImplementedException, "000002", "0A000",
     "Unsupported feature in an expression of the statement in the local Snowpipe service."),
    (duckdb.ConstraintException, "100072", "22000", "NULL result in a non-nullable column"),
    (duckdb.ConversionException, "100038", "22018", "A value is not recognized as one of its type"),
    (duckdb.OutOfRangeException, "100046", "22003", "Number out of representable range"),
    (duckdb.InvalidInputException, "100069", "22P02", "A value is not valid for the function that reads it"),
    (duckdb.TransactionException, "000625", "57014",
     "Statement aborted: another session changed the same rows, or the transaction is lost; run it again."),
    (duckdb.PermissionException, "003001", "42501",
     "SQL access control error:\nInsufficient privileges to operate on this object"),
    (duckdb.InterruptException, "000604", "57014", "SQL execution canceled"),
)  # fmt: skip


def disk_full() -> SqlError:
    """Return the error of a statement whose rows did not fit into memory (000603)."""
    why = "The statement was rolled back: the disk of the local service is full. Free some space, try again."
    return SqlError("000603", "53100", why)


def translate_error(error: duckdb.Error | MemoryError) -> SqlError:
    """Return Snowflake's error for a DuckDB error: number, SQLSTATE and words of the table."""
    if spool.is_full(error):
        return disk_full()
    if spool.is_invalidated(error):
        return SqlError("000603", "XX000", "The database was being recovered; run the statement again.")
    message = "Out of Memory" if isinstance(error, MemoryError) else str(error)
    unknown = _UNKNOWN_FUNCTION.search(message)
    if isinstance(error, duckdb.CatalogException) and unknown:
        return missing_function(_FUNCTIONS.get(unknown[1].lower(), unknown[1]))
    message = message.replace("\x01", "").replace("\x02", "")
    message = _BEHIND.split(_KIND.sub("", message.strip()), maxsplit=1)[0].strip()
    for pattern, code, sqlstate, words in _TABLE:
        found = pattern.search(message)
        if found is not None:
            return SqlError(code, sqlstate, words.format_map(_shown(found)))
    if not isinstance(error, duckdb.InterruptException):
        log.warning("an error of the engine that has no words of its own: %s", message)
    for kind, code, sqlstate, words in _CLASSES:
        if isinstance(error, kind):
            return SqlError(code, sqlstate, words.format(at=_marked(str(error))))
    return SqlError("000603", "XX000", "SQL execution error in the local service; its log has the cause.")


def _marked(message: str) -> str:
    """Return `` [expression]`` at which the engine points; nothing where the words are the engine's."""
    found = _MARK.search(message)
    part = found["line"][len(found["blank"]) - len(found["start"]) :] if found is not None else ""
    depth = end = 0
    for end, sign in enumerate(part + ")"):  # noqa: B007 - its last value counts
        depth += (sign in "([") - (sign in ")]")
        if depth < 0 or (depth == 0 and sign in " ,"):
            break
    named = _PLAIN_NAME.sub(r"\1", part[:end])
    return f" [{named}]" if named and _OF_ENGINE.search(named) is None else ""


def _shown(found: re.Match[str]) -> dict[str, str]:
    """Return the groups of a match in Snowflake's words; groups that took no part are empty."""
    shown = {name: found[name] or "" for name in found.re.groupindex}
    for name in ("t", "u"):
        if shown.get(name):
            shown[name] = _type_word(shown[name])
    if "f" in shown:
        shown["f"] = _FUNCTIONS.get(shown["f"].lower(), shown["f"].upper())
    return {**dict.fromkeys("vwtu", ""), **shown}


def _type_word(engine: str) -> str:
    kind = ColumnType.from_duckdb(engine.strip("'\""))
    return "NUMBER" if engine.startswith("INTEGER") else "VARCHAR" if kind.kind == "VARCHAR" else str(kind)


# -- Functions that a statement calls: those of Snowflake's, with as many arguments as they take ---------

MOST_IN_LIST = 200_000
OPENING = frozenset({TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE})
CLOSING = frozenset({TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE})

# Of each function its number of arguments, ``least-most`` ("Function reference", the page of each); where a
# page leaves the number open, the file does as well, and for what has words between its arguments.
_DOCUMENTED = Path(__file__).with_name("functions.txt").read_text(encoding="utf-8").splitlines()


def _bounds(written: str) -> tuple[int, int | None]:
    least, dash, most = written.partition("-")
    return int(least), int(most) if most else None if dash else int(least)


_ARGUMENTS = {
    name: _bounds(number)
    for number, _, names in (line.partition(": ") for line in _DOCUMENTED)
    for name in names.split()
}
_PARSER = sqlglot.Dialect.get_or_raise("snowflake").parser_class
# What sqlglot reads as a function because another database has it.
FOREIGN = frozenset({*_PARSER.FUNCTIONS, *_PARSER.FUNCTION_PARSERS}) - {*_ARGUMENTS, "AND", "OR"}
# sqlglot leaves no position at what it reads by a parser of its own.
_WITHOUT_START = frozenset({*_PARSER.FUNCTION_PARSERS, *_PARSER.NO_PAREN_FUNCTION_PARSERS})
_BEFORE_NAMES = frozenset(
    {TokenType.INTO, TokenType.ALIAS, TokenType.TABLE, TokenType.JOIN, TokenType.FROM, TokenType.WITH,
     TokenType.UPDATE, TokenType.USING, TokenType.DOT, TokenType.DCOLON}
)  # fmt: skip


# Operators of other databases.
_NO_OPERATORS = frozenset({"&", "|", "^", "<<", ">>", "~", "^@"})
# Tokens that no statement of Snowflake's has in a row: ``IN [1]``, ``INTERVAL 1 DAY``, ``SAMPLE 10%``.
_NO_PAIRS = frozenset(
    {(TokenType.IN, TokenType.L_BRACKET), (TokenType.INTERVAL, TokenType.NUMBER),
     (TokenType.TABLE_SAMPLE, TokenType.NUMBER), (TokenType.MAP, TokenType.L_BRACE)}
)  # fmt: skip


class _Call(NamedTuple):
    """A name before a parenthesis: its position and its end, arguments, and that it may be no call."""

    name: str
    start: int
    end: int
    given: int
    may_be_name: bool


def check_lists(tokens: Sequence[Token]) -> None:
    """Refuse a list of more expressions than Snowflake takes.

    :raises SqlError: 001795.
    """
    counts = [1]
    for token in tokens if len(tokens) > MOST_IN_LIST else ():
        if token.token_type in OPENING:
            counts.append(1)
        elif token.token_type in CLOSING and len(counts) > 1:
            counts.pop()
        elif token.token_type is TokenType.COMMA:
            counts[-1] += 1
            if counts[-1] > MOST_IN_LIST:
                words = "maximum number of expressions in a list exceeded, expected at most"
                raise compilation_error(f"{words} {MOST_IN_LIST:,}, got {counts[-1]:,}", "001795", "42601")


def check_calls(tokens: Sequence[Token], text: str, tree: exp.Expr | None) -> None:
    """Refuse a call of what is not a function of Snowflake's, or with another number of arguments.

    :param tree: the parsed statement, which separates calls from other names before one; None when the
        statement could not be parsed, perhaps for such a call.
    :raises SqlError: 002140, 000938, 000939.
    """
    for before, token in itertools.pairwise(tokens):
        is_written = token.token_type in {TokenType.STRING, TokenType.IDENTIFIER}
        is_joined = before.token_type == token.token_type == TokenType.STRING
        is_empty = before.token_type is TokenType.COMMA and token.token_type in CLOSING
        is_foreign = (before.token_type, token.token_type) in _NO_PAIRS or (
            token.token_type is TokenType.HEX_STRING and text[token.start] == "0"
        )
        if is_joined or is_empty or is_foreign or (token.text in _NO_OPERATORS and not is_written):
            raise compilation_error(f"syntax error: unexpected '{text[token.start : token.end + 1]}'.")
    wrong = list(_wrong(tokens))
    if not wrong:
        return
    starts = {
        node.meta.get("start")
        for node in (tree.walk() if tree is not None else ())
        if node.meta and not isinstance(node, (exp.Identifier, exp.Star))
    }
    for call in wrong:
        has_start = tree is not None and call.name not in _WITHOUT_START
        if (call.start not in starts) if has_start else call.may_be_name:
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
    """Yield the names before a parenthesis that are not functions or do not take so many arguments."""
    # Of each bracket that is open: its position, and the commas so far.
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

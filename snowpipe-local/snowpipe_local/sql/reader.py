"""Reading of statements: one cursor over the tokens of one statement, for all that sqlglot does not parse.

Every handler reads its statement to the end; :meth:`Reader.end` refuses what nobody has read.
"""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from sqlglot import Token, TokenType
from sqlglot.dialects.snowflake import Snowflake
from sqlglot.errors import TokenError

from snowpipe_local.errors import SqlError, compilation_error, unsupported
from snowpipe_local.query_history import without_secrets
from snowpipe_local.sql.results import Bindings
from snowpipe_local.stages.definition import Setting, Word, invalid_value, unescape

# -- Tokens: sqlglot's for Snowflake, but every word is a word, and no word ends the tokens -----------------


class _Tokenizer(Snowflake.Tokenizer):
    # Not the beginning of a comment.
    KEYWORDS = {"FILE://": TokenType.URI_START}  # noqa: RUF012 - as sqlglot declares it
    COMMANDS = set()  # noqa: RUF012 - as sqlglot declares it


class _PathTokenizer(_Tokenizer):
    """Knows no comments: the paths of PUT and GET may hold their signs."""

    COMMENTS = []  # noqa: RUF012 - as sqlglot declares it


class _OfThread(threading.local):
    """A tokenizer keeps the text that it reads, so each thread has its own."""

    def __init__(self) -> None:
        self.statement = _Tokenizer(dialect="snowflake")
        self.file_command = _PathTokenizer(dialect="snowflake")


_TOKENIZERS = _OfThread()
_VALUES = frozenset(
    {TokenType.VAR, TokenType.IDENTIFIER, TokenType.STRING, TokenType.RAW_STRING, TokenType.NUMBER,
     TokenType.HEX_STRING}
)  # fmt: skip
_STRINGS = frozenset({TokenType.STRING, TokenType.RAW_STRING})
# What a value without quotes may be made of: X-SMALL, db.schema."Format", METADATA$FILENAME.
_WORD_STARTS = frozenset(
    {TokenType.VAR, TokenType.IDENTIFIER, TokenType.NUMBER, TokenType.DASH, TokenType.PARAMETER,
     TokenType.TILDE}
)  # fmt: skip
_WORDS = _WORD_STARTS | {TokenType.DOT}
_KEPT_CHARACTERS = 2_000
_LONGEST_NAME = 255  # "Object identifiers", Snowflake documentation
RESERVED = frozenset(
    {"ALL", "ALTER", "AND", "ANY", "AS", "BETWEEN", "BY", "CHECK", "COLUMN", "CONNECT", "CREATE",
     "CURRENT", "DELETE", "DISTINCT", "DROP", "ELSE", "EXISTS", "FOLLOWING", "FOR", "FROM", "GRANT",
     "GROUP", "HAVING", "IN", "INCREMENT", "INSERT", "INTERSECT", "INTO", "IS", "LIKE", "MINUS", "NOT",
     "NULL", "OF", "ON", "OR", "ORDER", "QUALIFY", "REGEXP", "REVOKE", "RLIKE", "ROW", "ROWS", "SAMPLE",
     "SELECT", "SET", "SOME", "START", "TABLE", "TABLESAMPLE", "THEN", "TO", "TRIGGER", "UNION", "UNIQUE",
     "UPDATE", "VALUES", "WHENEVER", "WHERE", "WITH"}
)  # fmt: skip
"""Words that name nothing without quotes ("Reserved & limited keywords")."""
_EXISTS = {"CREATE": "IF NOT EXISTS", "DESCRIBE": ""}
_COMMENTS = ("--", "//", "/*")
_OPEN = {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}


def tokens(text: str) -> Sequence[Token]:
    """Return the tokens of statements; those of short ones without secrets are kept, as they come again.

    :raises SqlError: 001003 when a string, name or comment is not closed.
    """
    if len(text) > _KEPT_CHARACTERS or ("=" in text and without_secrets(text) != text):
        return _tokens(text, _TOKENIZERS.statement)
    return _kept(text)


@functools.lru_cache(maxsize=256)
def _kept(text: str) -> Sequence[Token]:
    return _tokens(text, _TOKENIZERS.statement)


def _tokens(text: str, tokenizer: Snowflake.Tokenizer) -> Sequence[Token]:
    try:
        return list(tokenizer.tokenize(text))
    except TokenError as error:
        # The error of sqlglot shows the text, which may hold a password; its cause has the position.
        found = re.search(r"from \d+:(\d+)\Z", str(error.__cause__))
        where = f" line {text.count(chr(10), 0, int(found[1])) + 1}" if found is not None else ""
        raise compilation_error(
            f"syntax error{where}: a string, a name or a comment is not closed."
        ) from error


# -- Several statements in one text -----------------------------------------------------------------------

_COMMENT = re.compile(r"\A(?:\s+|--[^\n]*(?:\n|\Z)|//[^\n]*(?:\n|\Z)|/\*.*?\*/)", re.DOTALL)


def split_statements(text: str) -> list[str]:
    """Split at semicolons that are outside of strings, quoted names and comments.

    :param text: statements, with or without a closing semicolon; empty ones are dropped.
    :raises SqlError: when a string, name or comment is not closed.
    """
    return [statement for _, statement in numbered_statements(text)]


def numbered_statements(text: str) -> list[tuple[int, str]]:
    """Split as :func:`split_statements` does; each statement has the line of its first word, from 1.

    :raises SqlError: when a string, name or comment is not closed.
    """
    statements: list[tuple[int, str]] = []
    start, first = 0, -1
    for token in tokens(text):
        if token.token_type != TokenType.SEMICOLON:
            first = token.start if first < 0 else first
            continue
        if first >= 0:
            statements.append((text.count("\n", 0, first) + 1, text[start : token.start].strip()))
        start, first = token.end + 1, -1
    if first >= 0:
        statements.append((text.count("\n", 0, first) + 1, text[start:].strip()))
    return statements


def strip_comments(statement: str) -> str:
    """Remove blanks and comments before the first keyword."""
    while match := _COMMENT.match(statement):
        statement = statement[match.end() :]
    return statement


def check_count(statements: list[str], expected: int) -> None:
    """Compare with ``MULTI_STATEMENT_COUNT``; 0 stands for any number.

    :raises SqlError: 000008 for another number, 000900 for none at all.
    """
    if not statements:
        raise compilation_error("Empty SQL statement.", "000900", "42601")
    if expected not in (0, len(statements)):
        why = (
            f"Actual statement count {len(statements)} did not match the desired statement count {expected}."
        )
        raise SqlError("000008", "0A000", why)


# -- Text that needs no bindings: values and names written where the statement has placeholders --------------

_STRING = r"'(?:[^'\\]|\\.|'')*'"
# A placeholder of PUT and GET stands alone, and a path that is not quoted ends at a blank.
_FILE_WORD = re.compile(
    rf"(?P<kept>{_STRING})|(?<!\S)(?:(?P<bind>\?|:(?P<number>\d+))(?!\S)|(?P<path>file://\S*))",
    re.DOTALL | re.IGNORECASE,
)


def inline(text: str, bindings: Bindings, *, typed: bool = False) -> str:
    """Return a statement that needs no bindings, without its comments.

    ``IDENTIFIER('name')`` becomes the name. Text inside of strings and quoted names stays as it is.

    :param typed: dates and times are literals of their types, as queries need them; text otherwise.
    :raises SqlError: when a placeholder has no value, or the statement is to run for several rows.
    """
    return _inlined(text, bindings, typed=typed)[0]


def shares(statements: Sequence[str], sent: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the bound values of each of several statements, whose ``?`` are counted through."""
    shared: list[dict[str, Any]] = []
    first = 1
    for statement in statements:
        after = first + sum(token.token_type is TokenType.PLACEHOLDER for token in tokens(statement))
        shared.append({str(n - first + 1): sent[str(n)] for n in range(first, after) if str(n) in sent})
        first = after
    return shared


def _inlined(text: str, bindings: Bindings, *, typed: bool = False) -> tuple[str, Sequence[Token]]:
    found = tokens(text)
    values, times = _values(bindings), bindings.times if typed else {}
    if not values and not any(sign in text for sign in _COMMENTS) and "IDENTIFIER" not in text.upper():
        return text, found
    parts: list[str] = []
    end, at, used, is_changed = 0, 0, 0, False
    while at < len(found):
        token, width, written = found[at], 1, None
        gap = text[end : token.start]
        if gap and not gap.isspace():
            # A comment; what follows stays in its line.
            gap, is_changed = "\n" * gap.count("\n") or " ", True
        if values and token.token_type is TokenType.PLACEHOLDER:
            used += 1
            written = _bound(values, used, times)
        elif values and _is_numbered(found, at, text):
            width, written = 2, _bound(values, int(found[at + 1].text), times)
        elif token.text.upper() == "IDENTIFIER" and _is_call_with_string(found, at):
            width, written = 4, found[at + 2].text
        last = found[at + width - 1].end + 1
        is_changed = is_changed or written is not None
        parts += gap, text[token.start : last] if written is None else written
        end, at = last, at + width
    if not is_changed:
        return text[:end], found
    # Once more for IDENTIFIER(?).
    return _inlined("".join(parts), Bindings({}))


def name_variables(text: str, variables: Mapping[str, Any]) -> str:
    """Write the value of each session variable in ``IDENTIFIER($name)`` and ``TABLE($name)`` as a string.

    :param variables: by upper-case name.
    :raises SqlError: 002211 for a variable that is not set.
    """
    if "$" not in text or not any(word in text.upper() for word in _NAMING):
        return text
    found, end = tokens(text), 0
    parts: list[str] = []
    for at in range(len(found) - 4):
        call = found[at : at + 5]
        if call[0].text.upper() in _NAMING and [token.token_type for token in call[1:]] == _OF_VARIABLE:
            name = call[3].text.upper()
            if name not in variables:
                raise compilation_error(f"Session variable '${name}' does not exist", "002211", "02000")
            parts += text[end : call[2].start], _literal(variables[name])
            end = call[3].end + 1
    return "".join((*parts, text[end:]))


_NAMING = ("IDENTIFIER", "TABLE")
_OF_VARIABLE = [TokenType.L_PAREN, TokenType.PARAMETER, TokenType.VAR, TokenType.R_PAREN]


def _is_numbered(tokens: Sequence[Token], at: int, text: str) -> bool:
    """True for ``:1``, which is not the path of a column or a cast."""
    colon, following = tokens[at], tokens[at + 1] if at + 1 < len(tokens) else None
    before = text[colon.start - 1 : colon.start]
    return (
        colon.token_type is TokenType.COLON
        and following is not None
        and following.token_type is TokenType.NUMBER
        and following.text.isdecimal()
        and following.start == colon.end + 1
        and not (before.isalnum() or before in {"_", ":", "$"} - {""})
    )


def _is_call_with_string(tokens: Sequence[Token], at: int) -> bool:
    kinds = [token.token_type for token in tokens[at : at + 4]]
    return kinds == [TokenType.VAR, TokenType.L_PAREN, TokenType.STRING, TokenType.R_PAREN]


def _inlined_words(text: str, bindings: Bindings) -> str:
    values, used = _values(bindings), 0

    def replaced(match: re.Match[str]) -> str:
        nonlocal used
        if match["path"]:
            return _literal(match["path"])
        if match["kept"] or not values:
            return match[0]
        used += 1
        return _bound(values, int(match["number"]) if match["number"] else used)

    return _FILE_WORD.sub(replaced, text)


def _values(bindings: Bindings) -> list[Any]:
    rows = bindings.rows() if bindings else []
    if len(rows) > 1:
        raise unsupported("several rows of bound values in a statement that is not DML")
    return rows[0] if rows else []


def _bound(values: list[Any], number: int, times: Mapping[int, str] = MappingProxyType({})) -> str:
    """Return a value as the text of a literal, with the type of what is a date or time in ``times``."""
    if not 1 <= number <= len(values):
        raise compilation_error("Bind variable not set.", "002049", "42601")
    kind = times.get(number - 1)
    return _literal(values[number - 1]) + (f"::{kind}" if kind is not None else "")


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, (int, float, decimal.Decimal)):
        return str(value)
    if isinstance(value, bytes):
        return f"'{value.hex()}'"
    if isinstance(value, (dt.datetime, dt.date, dt.time)):
        return f"'{value.isoformat()}'"
    return "'" + str(value).replace("\\", "\\\\").replace("'", "''") + "'"


# -- The cursor ------------------------------------------------------------------------------------------


class Reader:
    """Cursor over the tokens of one statement; what it reads and does not find is refused with 001003.

    :param found: its tokens; None makes them.
    :ivar verb: first word of the statement, once the front has read it: ``CREATE``, ``DESCRIBE``.
    :ivar kind: words of the object behind it: ``FILE FORMAT``.
    :ivar about: the object of the statement, once :meth:`target` has read it.
    :ivar modifiers: what was given between the two: ``OR REPLACE``, ``TEMPORARY``, ``SECURE``.
    """

    __slots__ = ("_at", "_hides_strings", "_tokens", "_words", "about", "kind", "modifiers", "text", "verb")

    def __init__(self, text: str, found: Sequence[Token] | None = None) -> None:
        found = tokens(text) if found is None else found
        while found and found[-1].token_type is TokenType.SEMICOLON:
            found = found[:-1]
        self.text = text[: found[-1].end + 1] if found else ""
        self.verb, self.kind = "", ""
        self.about: Target | None = None
        self.modifiers: frozenset[str] = frozenset()
        self._tokens = found
        self._words = [t.text.upper() if t.token_type is TokenType.VAR else "" for t in self._tokens]
        self._at = 0
        self._hides_strings = False

    @classmethod
    def of(cls, text: str, bindings: Bindings) -> Reader:
        """Return the reader of a statement with its bound values in it, as :func:`inline` writes them."""
        return cls(*_inlined(text, bindings))

    @classmethod
    def of_file_command(cls, text: str, bindings: Bindings) -> Reader:
        """Return the reader of a PUT or GET: a path is not a comment, and ends at a blank."""
        plain = _inlined_words(text, bindings)
        return cls(plain, _tokens(plain, _TOKENIZERS.file_command))

    # -- where it is

    @property
    def position(self) -> int:
        """Where the next token starts in the text."""
        return self._tokens[self._at].start if self._at < len(self._tokens) else len(self.text)

    @property
    def word(self) -> str:
        """The next token in upper case if it is a word without quotes, else empty."""
        return self._words[self._at] if self._at < len(self._words) else ""

    @property
    def is_at_end(self) -> bool:
        """True when everything is read."""
        return self._at >= len(self._tokens)

    @property
    def is_replacing(self) -> bool:
        """True after CREATE OR REPLACE."""
        return "OR REPLACE" in self.modifiers

    @property
    def is_temporary(self) -> bool:
        """True after CREATE TEMPORARY."""
        return "TEMPORARY" in self.modifiers

    def seek(self, position: int) -> None:
        """Go to a position of the text."""
        self._at = next((n for n, t in enumerate(self._tokens) if t.end >= position), len(self._tokens))
        if self._at < len(self._tokens) and self._tokens[self._at].start < position:
            raise self.unexpected()

    # -- words and signs

    def ahead(self, count: int) -> str:
        """Return the next words without reading them.

        :param count: how many tokens to read; one that is not a word is an empty text.
        """
        return " ".join(self._words[self._at : self._at + count])

    def accept(self, *phrases: str) -> str:
        """Read the first of some phrases that comes next, words without quotes.

        :returns: the phrase as given; empty when none comes next.
        """
        for phrase in phrases:
            words = phrase.split(" ")
            if self._words[self._at : self._at + len(words)] == words:
                self._at += len(words)
                return phrase
        return ""

    def expect(self, *phrases: str) -> str:
        """Read one of some phrases."""
        found = self.accept(*phrases)
        if not found:
            raise self.unexpected()
        return found

    def accept_sign(self, sign: str) -> bool:
        """Read a sign if it comes next: ``(``, ``)``, ``,``, ``=``, ``@``."""
        is_next = self.is_sign(sign)
        self._at += is_next
        return is_next

    def is_sign(self, sign: str, ahead: int = 0) -> bool:
        """Return True when a sign comes next."""
        at = self._at + ahead
        token = self._tokens[at] if at < len(self._tokens) else None
        return token is not None and token.token_type not in _VALUES and token.text == sign

    def expect_sign(self, sign: str) -> None:
        """Read a sign."""
        if not self.accept_sign(sign):
            raise self.unexpected()

    # -- names

    def path(self, most: int = 3) -> tuple[str, ...]:
        """Read a name with its database and schema, under Snowflake's case rules.

        :param most: parts that it may have.
        """
        parts = [self._part()]
        while self.accept_sign("."):
            # ``database..name`` leaves out the schema PUBLIC ("Object name resolution").
            parts.append("PUBLIC" if self.is_sign(".") else self._part())
        if len(parts) > most:
            raise compilation_error(f"'{'.'.join(parts)}' has too many parts.")
        return tuple(parts)

    def name(self) -> str:
        """Read a name of one part."""
        return self.path(1)[0]

    def names(self) -> list[str]:
        """Read names of one part, separated by commas."""
        found = [self.name()]
        while self.accept_sign(","):
            found.append(self.name())
        return found

    def name_list(self) -> list[str] | None:
        """Read names in parentheses; None when no parenthesis comes next."""
        if not self.accept_sign("("):
            return None
        found = self.names()
        self.expect_sign(")")
        return found

    def target(self, most: int = 3) -> Target:
        """Read ``[IF [NOT] EXISTS] name``.

        :param most: parts that the name may have.
        :raises SqlError: 001003 for OR REPLACE with IF NOT EXISTS, and for a reserved word that names
            something new.
        """
        phrase = _EXISTS.get(self.verb, "IF EXISTS")
        is_tolerant = bool(phrase and self.accept(phrase))
        if is_tolerant and self.is_replacing:
            raise compilation_error("options IF NOT EXISTS and OR REPLACE are incompatible.")
        begin = self._at
        self.about = Target(self.path(most), is_tolerant)
        if self.verb == "CREATE" and not RESERVED.isdisjoint(self._words[begin : self._at]):
            self._at = begin
            raise self.unexpected()
        return self.about

    def last_path(self, most: int = 3) -> tuple[str, ...]:
        """Read as :meth:`path` does, to the end of the statement."""
        found = self.path(most)
        self.end()
        return found

    def last_target(self, most: int = 3) -> Target:
        """Read as :meth:`target` does, to the end of the statement; DROP takes CASCADE and RESTRICT."""
        found = self.target(most)
        if self.verb == "DROP":
            self.accept("CASCADE", "RESTRICT")
        self.end()
        return found

    def _part(self) -> str:
        token = self._next()
        if token is not None and token.token_type is TokenType.IDENTIFIER and token.text:
            name = token.text
        elif token is None or token.token_type is not TokenType.VAR or not _is_name(token.text):
            raise self.unexpected()
        else:
            name = token.text.upper()
        if len(name) > _LONGEST_NAME:
            raise compilation_error(
                f"identifier '{name[:30]}..' has {len(name)} characters, at most 255 are."
            )
        self._at += 1
        return name

    # -- literals and properties

    @property
    def is_at_string(self) -> bool:
        """True when a string literal comes next."""
        token = self._next()
        return token is not None and token.token_type in _STRINGS

    def string(self) -> str:
        """Read a string literal, ``'..'`` or ``$$..$$``."""
        token = self._next()
        if token is None or token.token_type not in _STRINGS:
            raise self.unexpected()
        self._at += 1
        if token.token_type is TokenType.RAW_STRING:
            return self.text[token.start + 2 : token.end - 1]
        return unescape(self.text[token.start + 1 : token.end])

    def integer(self) -> int:
        """Read a whole number, with or without a sign."""
        is_negative = self.accept_sign("-")
        token = self._next()
        if token is None or token.token_type is not TokenType.NUMBER or not token.text.isdecimal():
            raise self.unexpected()
        self._at += 1
        return -int(token.text) if is_negative else int(token.text)

    def settings(self, *, needed: bool = False, only: Sequence[str] = ()) -> dict[str, Setting]:
        """Read ``NAME = value`` pairs, separated by blanks or commas, as many as there are.

        An error names the property only: its value may be a credential.

        :param needed: one at least.
        :param only: names to read; the first other one ends the list.
        :returns: upper-case name to value, in order.
        """
        self._hides_strings = True
        found: dict[str, Setting] = {}
        while True:
            begin = self._at
            self.accept_sign(",")
            token = self._next()
            is_exact = token is not None and token.token_type is TokenType.IDENTIFIER
            name = token.text if token is not None and is_exact else self.word
            if not name or not self.is_sign("=", ahead=1) or (only and name not in only):
                self._at = begin
                break
            self._at += 2
            self.accept_sign(">")
            if name in found:
                raise compilation_error(f"duplicate property '{name}'.")
            found[name] = self._value(name)
        if needed and not found:
            raise self.unexpected()
        return found

    def properties(self, *, needed: bool = False) -> dict[str, str]:
        """Read settings to the end of the statement, as text; a list has commas between its values."""
        found = self.settings(needed=needed)
        self.end()
        return {name: _plain(name, value) for name, value in found.items()}

    def _value(self, name: str) -> Setting:
        token = self._next()
        if token is not None and token.token_type in _STRINGS:
            return self.string()
        if self.accept_sign("("):
            return self._nested(name)
        if token is None or token.token_type not in _WORD_STARTS:
            raise compilation_error(f"syntax error: the value of {name} cannot be read.")
        begin, end = token.start, token.start - 1
        while token is not None and token.token_type in _WORDS and token.start == end + 1:
            end = token.end
            self._at += 1
            token = self._next()
        written = self.text[begin : end + 1]
        if written.removeprefix("-").isdecimal():
            return int(written)
        return written.upper() == "TRUE" if written.upper() in {"TRUE", "FALSE"} else Word(written)

    def _nested(self, name: str) -> Setting:
        value: Setting
        if self.is_sign("=", ahead=1):
            value = self.settings()
        else:
            values: list[Setting] = []
            while not self.is_sign(")"):
                values.append(self._value(name))
                if not self.accept_sign(","):
                    break
            value = tuple(values)
        if not self.accept_sign(")"):
            raise compilation_error(f"syntax error: the list of {name} is not closed.")
        return value

    # -- text

    def parenthesized(self) -> str:
        """Read what is between two parentheses, with all that is inside of it."""
        self.expect_sign("(")
        inner = self.until(")")
        self.expect_sign(")")
        return inner

    def until(self, *ends: str) -> str:
        """Read to the next of some words or signs that is in no further parentheses, or to the end.

        :returns: the text before it.
        """
        begin, depth = self.position, 0
        while (token := self._next()) is not None:
            is_quoted = token.token_type in _STRINGS or token.token_type is TokenType.IDENTIFIER
            if depth == 0 and not is_quoted and token.text.upper() in ends:
                break
            depth += _OPEN.get(token.token_type, 0)
            self._at += 1
        return self.text[begin : self.position].strip()

    def rest(self) -> str:
        """Read to the end of the statement."""
        begin, self._at = self.position, len(self._tokens)
        return self.text[begin:].strip()

    def end(self) -> None:
        """Refuse what is left."""
        if not self.is_at_end:
            raise self.unexpected()

    def unexpected(self) -> SqlError:
        """Return the error for the next token, or for the end of the statement."""
        token = self._next()
        position = self.position
        line = self.text.count("\n", 0, position) + 1
        column = position - (self.text.rfind("\n", 0, position) + 1)
        if token is None:
            found = "<EOF>"
        elif self._hides_strings and token.token_type in _STRINGS:
            found = "'..'"
        else:
            found = self.text[token.start : token.end + 1][:80]
        return compilation_error(f"syntax error line {line} at position {column} unexpected '{found}'.")

    def _next(self) -> Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None


@dataclass(frozen=True, slots=True)
class Target:
    """Object that a statement is about.

    :param path: its name with schema and database, where written.
    """

    path: tuple[str, ...]
    is_tolerant: bool

    @property
    def name(self) -> str:
        """Last part of the name."""
        return self.path[-1]


def _is_name(word: str) -> bool:
    return (word[0].isascii() and word[0].isalpha()) or word[0] == "_"


# -- Values of properties --------------------------------------------------------------------------------


def _plain(name: str, value: Setting) -> str:
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, tuple):
        return ",".join(_plain(name, entry) for entry in value)
    if isinstance(value, Mapping):
        raise invalid_value(name, "(..)", "one value")
    if isinstance(value, Word) and value.startswith('"'):
        return value[1:-1].replace('""', '"')
    return str(value)


def flag(name: str, value: str) -> bool:
    """Read TRUE or FALSE.

    :raises SqlError: 001008 for another value.
    """
    if value.upper() in {"TRUE", "FALSE"}:
        return value.upper() == "TRUE"
    raise invalid_value(name, value[:80], "TRUE or FALSE")


def whole(name: str, value: str) -> int:
    """Read a whole number that is not negative; NULL is 0.

    :raises SqlError: 001008 for another value.
    """
    if value.upper() == "NULL":
        return 0
    if value.isascii() and value.isdigit() and len(value) < 16:
        return int(value)
    raise invalid_value(name, value[:80], "a whole number")

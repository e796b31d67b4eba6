"""Query history: the statements of the service, who ran them and from where; the service's audit log.

The newest statements and logins are kept, in memory and as lines of JSON in one file and the one before it.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import re
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

MOST_STATEMENTS = 10_000
"""How many statements, and how many logins, are remembered."""
MOST_CHARACTERS = 8_000_000
"""How long the texts of all remembered statements may be together."""
LONGEST_TEXT = 100_000
"""Longer texts are cut (page "QUERY_HISTORY view", ``QUERY_TEXT``)."""
_FILE_BYTES = 16_000_000
RUNNING, SUCCEEDED, FAILED = "RUNNING", "SUCCESS", "FAIL"

# The parts of a statement, read in one pass whatever stands there; what is not closed goes to the end.
_PART = re.compile(
    r"(?P<text>'(?:[^'\\]|\\.|'')*+'?)|(?P<dollars>\$\$.*?(?:\$\$|\Z))|(?P<name>\"[^\"]*\"?)"
    r"|(?P<blank>\s+|--[^\n]*|//[^\n]*|/\*.*?(?:\*/|\Z))|(?P<word>\w+)|.",
    re.DOTALL,
)
_SECRET = re.compile(r"PASSWORD|PASSPHRASE|SECRET|TOKEN|_KEY", re.IGNORECASE)
_PASSWORD_OF_URL = re.compile(r"(://[^\s:/@'\"]*:)[^\s/@'\"]+@")
_ESCAPED = re.compile(r"\\(.)|'(')", re.DOTALL)
_HIDDEN = "'***'"
_QUERIES = frozenset({"SELECT", "WITH", "INSERT", "UPDATE", "DELETE", "MERGE", "VALUES"})
"""First words of statements that hold data and no properties."""
_SCRIPTS = frozenset({"EXECUTE", "BEGIN", "DECLARE", "LET", "SET", "CALL"})
_HOLDERS = frozenset({"USER", "SECRET", "INTEGRATION", "CONNECTION", "STAGE"})
"""Objects whose properties may be secrets."""
_FIRST_WORDS = 8


@dataclass(slots=True)
class Statement:
    """One statement that began.

    :param text: as it was sent, cut after :data:`LONGEST_TEXT` characters, secrets as ``***``.
    :param text_hash: SHA-256 of the whole text with single blanks, 32 hexadecimal digits; of the text as it
        is kept when it holds a secret, which a hash would let somebody try out.
    :param query_type: ``SELECT``, ``COPY``, ``CREATE_TABLE``, ...
    :param warehouse_size: its size; None when the statement needs none, or it was not created.
    :param end_ms: epoch milliseconds; None while it runs.
    :param error_code: Snowflake's number of the error, or None.
    """

    query_id: str
    text: str
    text_hash: str
    query_type: str
    session_id: int
    user_name: str
    role_name: str
    database_name: str | None
    schema_name: str | None
    warehouse_name: str | None
    warehouse_size: str | None
    query_tag: str
    start_ms: int
    end_ms: int | None = None
    status: str = RUNNING
    error_code: str | None = None
    error_message: str | None = None
    produced: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    unloaded: int = 0


@dataclass(frozen=True, slots=True)
class LoginEvent:
    """One login, or one request of the SQL API, which has a session of its own.

    :param user_name: who it was, or claimed to be.
    :param session_id: the session that it opened; None for one that failed.
    :param error_code: Snowflake's number of the error, or None.
    """

    event_id: int
    at_ms: int
    user_name: str
    client_ip: str
    client: str
    session_id: int | None
    error_code: str | None = None
    error_message: str | None = None


class QueryHistory:
    """The newest statements and logins of the service; may be used from any thread.

    :param file: keeps them over restarts; None keeps them in memory only.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._open: FileIO | None = None
        self._lock = threading.Lock()
        self._statements: deque[Statement] = deque()
        self._characters = 0
        self._logins: deque[LoginEvent] = deque(maxlen=MOST_STATEMENTS)
        for entry in self._kept():
            if isinstance(entry, Statement):
                self._append(entry)
            else:
                self._logins.append(entry)
        last = self._logins[-1].event_id if self._logins else 0
        self._event_ids = itertools.count(last + 1)

    def begin(self, statement: Statement) -> None:
        """Remember a statement that begins."""
        with self._lock:
            self._append(statement)

    def end(self, statement: Statement) -> None:
        """Keep a statement that has ended, with its outcome."""
        with self._lock:
            self._write("statement", statement)

    def login(
        self,
        at_ms: int,
        user_name: str,
        client_ip: str,
        client: str,
        session_id: int | None,
        error: tuple[str, str] | None = None,
    ) -> None:
        """Keep a login.

        :param session_id: the session that it opened; None for one that failed.
        :param error: number and words of the error, None for one that succeeded.
        """
        code, message = error or (None, None)
        with self._lock:
            number = next(self._event_ids)
            made = LoginEvent(number, at_ms, user_name, client_ip, client, session_id, code, message)
            self._logins.append(made)
            self._write("login", made)

    def statements(self) -> list[Statement]:
        """Return the remembered statements in the order in which they began."""
        with self._lock:
            return list(self._statements)

    def logins(self) -> list[LoginEvent]:
        """Return the remembered logins in order."""
        with self._lock:
            return list(self._logins)

    def close(self) -> None:
        """Close the file; it is opened again for the next entry."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def _append(self, statement: Statement) -> None:
        self._statements.append(statement)
        self._characters += len(statement.text)
        while len(self._statements) > MOST_STATEMENTS or self._characters > MOST_CHARACTERS:
            self._characters -= len(self._statements.popleft().text)

    @property
    def _older(self) -> Path | None:
        return None if self._file is None else self._file.with_suffix(".older")

    def _write(self, kind: str, entry: Statement | LoginEvent) -> None:
        if self._file is None:
            return
        line = json.dumps([kind, {name: getattr(entry, name) for name in entry.__slots__}]) + "\n"
        # A full disk must not fail the statement; it fails by itself where it has rows to write.
        with contextlib.suppress(OSError):
            if self._open is None:
                self._open = self._file.open("ab", buffering=0)
                # After a crash the last line may have no end.
                self._open.write(b"\n")
            self._open.write(line.encode())
            if self._open.tell() > _FILE_BYTES and self._older is not None:
                self._close()
                self._file.replace(self._older)

    def _kept(self) -> Iterator[Statement | LoginEvent]:
        for file in (self._older, self._file):
            if file is None or not file.exists():
                continue
            for line in file.read_bytes().splitlines():
                # The last line may be a part only.
                with contextlib.suppress(ValueError, TypeError):
                    kind, fields = json.loads(line)
                    yield Statement(**fields) if kind == "statement" else LoginEvent(**fields)


def without_secrets(text: str) -> str:
    """Return the text of a statement as the history shows it: cut, and with ``***`` for secrets."""
    shown = _PASSWORD_OF_URL.sub(r"\1***@", text[:LONGEST_TEXT])
    if "||" not in shown and _SECRET.search(shown) is None:
        return shown
    return "".join(_shown_parts(shown))


def _shown_parts(text: str) -> Iterator[str]:
    """Yield the parts of statements, ``***`` for what may be a secret; each statement by its first words."""
    parts: list[re.Match[str]] = []
    for part in _PART.finditer(text):
        parts.append(part)
        if part[0] == ";":
            yield from _of_statement(parts)
            parts = []
    yield from _of_statement(parts)


def _of_statement(parts: list[re.Match[str]]) -> Iterator[str]:
    words = (part[0].upper() for part in parts if part.lastgroup == "word")
    first = list(itertools.islice(words, _FIRST_WORDS))
    if not first or first[0] in _QUERIES:
        return (part[0] for part in parts)
    literals = [_inner(part[0]) for part in parts if part.lastgroup in {"text", "dollars"}]
    is_secret = bool(_SECRET.search("".join(literals))) and not any(map(_SECRET.search, literals))
    is_of_secrets = first[0] in _SCRIPTS or (
        first[0] in {"CREATE", "ALTER"} and "TABLE" not in first and not _HOLDERS.isdisjoint(first)
    )
    return _without_values(parts, is_secret=is_secret and is_of_secrets, is_of_secrets=is_of_secrets)


def _without_values(parts: list[re.Match[str]], *, is_secret: bool, is_of_secrets: bool) -> Iterator[str]:
    """Yield the parts of a statement, ``***`` for literals that come after the name of a secret.

    A value is put together of any parts in many ways, and a statement that is refused for its syntax is kept
    as well. So all literals after the name count, and only the next one where names are those of columns.

    :param is_secret: True hides all literals: only together they name a secret
    """
    is_own = has_sign = is_value = False
    for part in parts:
        kind, shown = part.lastgroup, part[0]
        if is_value and kind != "blank" and shown not in ",);":
            continue  # the rest of a value without quotes
        is_value = False
        if kind in {"word", "name"} and is_own and (has_sign or kind == "name"):
            is_own, is_value, shown = False, True, _HIDDEN
        elif kind in {"word", "name"}:
            is_own, has_sign = _SECRET.search(shown) is not None, False
            is_secret = is_secret or (is_own and is_of_secrets)
        elif kind in {"text", "dollars"}:
            inner, is_hidden = _inner(shown), is_secret or is_own
            is_secret = is_secret or (is_of_secrets and _SECRET.search(inner) is not None)
            is_own, shown = False, _HIDDEN if is_hidden else _inner_shown(shown, inner)
        elif kind is None:
            is_own, has_sign = is_own and shown in "=>:", True
        yield shown


def _inner(literal: str) -> str:
    """Return the text of a literal, which may be a statement itself, as EXECUTE IMMEDIATE takes it."""
    if literal[0] == "$":
        return literal.removeprefix("$$").removesuffix("$$")
    return _ESCAPED.sub(r"\1\2", literal.removeprefix("'").removesuffix("'"))


def _inner_shown(literal: str, inner: str) -> str:
    """Return a literal without the secrets in it."""
    shown = "".join(_shown_parts(inner)) if _SECRET.search(inner) else inner
    if shown == inner:
        return literal
    return f"$${shown}$$" if literal[0] == "$" else "'" + shown.replace("'", "''") + "'"


def text_hash(text: str) -> str:
    """Return the hash that statements with the same words share."""
    return hashlib.sha256(" ".join(text.split()).encode(errors="replace")).hexdigest()[:32]

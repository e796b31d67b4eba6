"""Names of pipes and channels, and how names and values are written in URLs and SQL."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any
from urllib.parse import quote

from airflow_provider_snowpipe.streaming.errors import ConfigurationError

DEFAULT_PIPE_SUFFIX = "-STREAMING"
ELASTIC_CHANNEL = "ELASTIC"
MAX_NAME_LENGTH = 255
COMPARED_SUFFIX = "__compared"
"""Ends the name of a channel that holds no rows: its offset token records what a Spark task has compared."""
_PLAIN = re.compile(r"[A-Z_][A-Z0-9_$]*")


def quote_identifier(name: str) -> str:
    """Quote one SQL identifier so that it is taken letter by letter."""
    if not name or "\0" in name or len(name) > MAX_NAME_LENGTH:
        check_name("SQL identifier", name)
    return '"' + name.replace('"', '""') + '"'


def plain_or_quoted(name: str) -> str:
    """Write a name without quotes where it means the same."""
    return name if _PLAIN.fullmatch(name) else quote_identifier(name)


def quote_url_segment(name: str) -> str:
    """Percent-encode one path segment, strictly and once (observed with SDK 1.9.1)."""
    return quote(name, safe="")


def with_suffix(name: str, suffix: str) -> str:
    """Name a channel beside another one; a name that would be too long is cut, and gets a hash."""
    whole = f"{name}{suffix}"
    if len(whole) <= MAX_NAME_LENGTH:
        return whole
    digest = blake2b(whole.encode(), digest_size=8).hexdigest()
    return f"{whole[: MAX_NAME_LENGTH - len(digest) - len(suffix)]}{digest}{suffix}"


def channel_name(prefix: str, source: str, partition: str) -> str:
    """Name the channel of one source partition: ``<prefix>_<source>_<partition>``.

    The scheme is that of the Snowflake Kafka connector v4 (connector, topic, partition), so that a job can
    take a channel over and hand it back. Nothing in the name changes between runs or attempts.
    """
    for part, value in (("prefix", prefix), ("source", source), ("partition", partition)):
        check_name(f"channel {part}", value)
    return check_channel_name(f"{prefix}_{source}_{partition}")


def check_channel_name(name: str) -> str:
    """Return the name of a named channel if it is usable as one."""
    check_name("channel name", name)
    if name in (".", ".."):  # in the path of a URL the folder itself, and the one above
        raise ConfigurationError(f"channel name is {name!r}, which no URL can hold: choose another name")
    if name.upper() == ELASTIC_CHANNEL:
        raise ConfigurationError(
            f"channel name {name!r} is reserved for the elastic channel: choose another name"
        )
    return name


def channel_names(given: object) -> list[str]:
    """Read names of channels as an author gives them, or a template renders them."""
    if isinstance(given, str):
        try:
            found = json.loads(given)
        except ValueError:
            found = None
        # A name that reads as a number, or as null, is a name.
        given = found if isinstance(found, (list, str, dict)) else given
    names: list[Any] = [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    if not all(isinstance(name, str) and name for name in names):
        raise ConfigurationError(f"channels is {given!r}: give the channels' names")
    return names


def check_name(kind: str, value: str) -> None:
    """Refuse what is not a name of a thing of this kind."""
    if not value:
        raise ConfigurationError(f"{kind} is empty: give a non-empty name")
    if not isinstance(value, str):  # as a DAG that renders templates as native objects makes of digits
        raise ConfigurationError(f"{kind} is {value!r}: give a text")
    if "\0" in value or len(value) > MAX_NAME_LENGTH:
        raise ConfigurationError(
            f"{kind} {value[:40]!r}… is not usable: at most {MAX_NAME_LENGTH} characters, none of them NUL"
        )


@dataclass(frozen=True, slots=True)
class PipeName:
    """A pipe's full name. Each part is sent exactly as given.

    :param database: the database
    :param schema: the schema
    :param pipe: the pipe; ``<table>-STREAMING`` is a table's default pipe
    """

    database: str
    schema: str
    pipe: str

    def __post_init__(self) -> None:
        for kind, value in (("database", self.database), ("schema", self.schema), ("pipe", self.pipe)):
            check_name(kind, value)

    @classmethod
    def default_for_table(cls, database: str, schema: str, table: str) -> PipeName:
        """Name the default pipe of a table, which the service makes on first use."""
        check_name("table", table)
        return cls(database, schema, table + DEFAULT_PIPE_SUFFIX)

    @property
    def default_table(self) -> str | None:
        """The table of a default pipe, None for a pipe that somebody created."""
        if self.pipe.upper().endswith(DEFAULT_PIPE_SUFFIX):
            return self.pipe[: -len(DEFAULT_PIPE_SUFFIX)]
        return None

    def address(self, account_url: str) -> str:
        """The pipe's name among those of all accounts."""
        return f"{account_url.rstrip('/')}/{self.url_path.lstrip('/')}"

    @property
    def url_path(self) -> str:
        """The path below ``/v2/streaming`` that addresses this pipe."""
        database, schema, pipe = map(quote_url_segment, (self.database, self.schema, self.pipe))
        return f"/databases/{database}/schemas/{schema}/pipes/{pipe}"

    @property
    def quoted(self) -> str:
        """The full name as SQL takes it, each part letter by letter."""
        return full_name(self.database, self.schema, self.pipe)

    def __str__(self) -> str:
        return f"{self.database}.{self.schema}.{self.pipe}"


def full_name(*parts: str) -> str:
    """Write a full name, each part quoted so that it is taken letter by letter."""
    return ".".join(map(quote_identifier, parts))


# -- Values as they are written in a SQL statement, where Snowflake binds none ---------------------------

_OPTION_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
OptionValue = str | bool | int | float | None | Sequence[str]
"""None is written as the word NONE."""


def string_literal(text: str) -> str:
    """Write a text so that Snowflake reads it letter by letter.

    In quotes a backslash begins an escape sequence (page "String & binary data types"), so it is doubled.
    """
    if "\0" in text:
        raise ConfigurationError(f"the text {text[:40]!r} has a NUL character, which no SQL text can have")
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def option(name: str, value: OptionValue) -> str:
    """Write one option, ``NAME = value``."""
    written = name.upper()
    if not _OPTION_NAME.fullmatch(written):
        raise ConfigurationError(
            f"option {name!r} is not a name of an option: give letters, digits and underlines"
        )
    return f"{written} = {_written_value(written, value)}"


def option_group(name: str, values: Mapping[str, Any]) -> str:
    """Write options in parentheses, ``NAME = (A = 1 B = 'x')``."""
    return f"{name} = ({' '.join(option(*pair) for pair in values.items())})"


def _written_value(name: str, value: Any) -> str:
    if value is None:
        return "NONE"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return string_literal(value)
    if isinstance(value, Sequence) and all(isinstance(one, str) for one in value):
        return f"({', '.join(map(string_literal, value))})"
    raise ConfigurationError(
        f"option {name} is {value!r}: give a text, a number, True, False, None or a list of texts"
    )


_ESCAPE = re.compile(r"''|\\(?:u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})|([0-7]{1,3})|(.))", re.DOTALL)
_CONTROLS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}

STRING_LITERAL = r"'(?:[^'\\]|''|\\.)*'"
"""Regular expression of a text between single quotes, for ``re.DOTALL``."""


def read_string_literal(written: str) -> str:
    """Read a text between single quotes as Snowflake does."""
    return _ESCAPE.sub(_unescaped, written[1:-1])


def _unescaped(found: re.Match[str]) -> str:
    unicode, byte, octal, character = found.groups()
    if unicode or byte:
        return chr(int(unicode or byte, 16))
    if octal:
        return chr(int(octal, 8))
    return "'" if character is None else _CONTROLS.get(character, character)


# -- What opens an object that Snowflake refuses -----------------------------------------------------------

_REFUSED = re.compile(
    r"(?P<missing>\w+) '(?P<name>[^']+)' does not exist or not authorized"
    r"|Insufficient privileges to operate on (?P<closed>\w+) '(?P<closed_name>[^']+)'",
    re.IGNORECASE,
)
_PRIVILEGES = {
    "DATABASE": "USAGE",
    "SCHEMA": "USAGE",
    "WAREHOUSE": "USAGE",
    "STAGE": "READ, WRITE",
    "TABLE": "INSERT, SELECT",
    "VIEW": "SELECT",
    "PIPE": "MONITOR, OPERATE",
}
"""What loading needs, by kind of object; an external stage takes USAGE instead."""


def grant_remedy(message: str) -> str:
    """The GRANT on the object that a refusal names, behind a full stop; empty where it names none."""
    found = _REFUSED.search(message)
    kind = "" if found is None else str(found["missing"] or found["closed"]).upper()
    kinds = ("TABLE", "VIEW") if kind == "OBJECT" else (kind,)
    if found is None or kinds[0] not in _PRIVILEGES:
        return ""
    name = found["name"] or found["closed_name"]
    end = "" if message.endswith(".") else "."
    grants = ", for a view ".join(f"GRANT {_PRIVILEGES[one]} ON {one} {name} TO ROLE …" for one in kinds)
    return f"{end} Check the name; where it is right, {grants} opens it to the connection's role"


def first_few(texts: Sequence[str], separator: str = ", ") -> str:
    """Show the first five of some texts, and how many more there are."""
    more = len(texts) - 5
    shown = separator.join(texts[:5])
    return f"{shown}{separator.rstrip(', ')} and {more:,} more" if more > 0 else shown


def counted(number: int, thing: str) -> str:
    """Write a number with its noun: ``1 row``, ``2,000 rows``, ``2 such rows``."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"

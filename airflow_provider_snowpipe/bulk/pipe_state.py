"""What a file pipe is: from where it loads into which table, and how it stands."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from airflow_provider_snowpipe.bulk.staged_files import StageReference
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SqlError
from airflow_provider_snowpipe.streaming.names import PipeName

# -- The state of a file pipe: ``SYSTEM$PIPE_STATUS`` as a value -----------------------------------------

RUNNING, PAUSED = "RUNNING", "PAUSED"


@dataclass(frozen=True, slots=True)
class PipeStatus:
    """The state of one file pipe (page "SYSTEM$PIPE_STATUS").

    :param execution_state: ``RUNNING``, ``PAUSED``, ``READ_ONLY``, ``FAILING_OVER``, ``STOPPED_…`` or
        ``STALLED_…``
    :param pending_files: files in the pipe's queue that are not loaded yet
    :param oldest_pending_path: the file that waits longest
    :param oldest_pending_at: since when it waits
    :param last_ingested_path: the file that was loaded last
    :param last_ingested_at: when that was
    :param notification_channel: where events of new files come from, None without ``AUTO_INGEST``
    :param error: why the pipe does not load, in Snowflake's words
    :param raw: everything that Snowflake returned, by its own names
    """

    execution_state: str
    pending_files: int = 0
    oldest_pending_path: str | None = None
    oldest_pending_at: dt.datetime | None = None
    last_ingested_path: str | None = None
    last_ingested_at: dt.datetime | None = None
    notification_channel: str | None = None
    error: str | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, text: object) -> Self:
        """Read what the function answers.

        :param text: the JSON text
        :raises SqlError: if it is something else
        """
        try:
            raw = json.loads(str(text))
            state = str(raw["executionState"])
        except (ValueError, KeyError, TypeError):
            raise SqlError(
                f"SYSTEM$PIPE_STATUS answered {str(text)[:80]!r}, which is no state of a pipe: check that "
                "the account URL leads to Snowflake"
            ) from None
        return cls(
            execution_state=state,
            pending_files=int(raw.get("pendingFileCount") or 0),
            oldest_pending_path=_text(raw.get("oldestPendingFilePath")),
            oldest_pending_at=_timestamp(raw.get("oldestFileTimestamp")),
            last_ingested_path=_text(raw.get("lastIngestedFilePath")),
            last_ingested_at=_timestamp(raw.get("lastIngestedTimestamp")),
            notification_channel=_text(raw.get("notificationChannelName")),
            error=_text(raw.get("error")) or _text(raw.get("fault")),
            raw=raw,
        )

    @property
    def is_running(self) -> bool:
        """True when files that are submitted are loaded."""
        return self.execution_state == RUNNING

    @property
    def is_paused(self) -> bool:
        """True when somebody has paused the pipe; files may be submitted, and wait."""
        return self.execution_state == PAUSED

    def __str__(self) -> str:
        words = [self.execution_state, f"{self.pending_files:,} files wait"]
        if self.oldest_pending_at is not None:
            words.append(f"the oldest since {self.oldest_pending_at.isoformat()}")
        if self.error:
            words.append(f"error: {' '.join(self.error.split())[:300]}")
        return ", ".join(words)

    def result(self) -> dict[str, Any]:
        """The state as JSON, for a task's value."""
        return {
            "execution_state": self.execution_state,
            "pending_files": self.pending_files,
            "oldest_pending_path": self.oldest_pending_path,
            "oldest_pending_at": _written(self.oldest_pending_at),
            "last_ingested_path": self.last_ingested_path,
            "last_ingested_at": _written(self.last_ingested_at),
            "notification_channel": self.notification_channel,
            "error": self.error,
        }


def _text(value: object) -> str | None:
    return None if value is None or value == "" else str(value)


def _timestamp(value: object) -> dt.datetime | None:
    """A timestamp in ISO 8601; None for one that is written otherwise, which ``raw`` still has."""
    if not isinstance(value, str):
        return None
    try:
        found = dt.datetime.fromisoformat(value)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)


def _written(timestamp: dt.datetime | None) -> str | None:
    return None if timestamp is None else timestamp.isoformat()


# -- Texts in a SQL statement, read -----------------------------------------------------------------------

_ESCAPE = re.compile(r"''|\\(?:u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})|([0-7]{1,3})|(.))", re.DOTALL)
_CONTROLS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}

STRING_LITERAL = r"'(?:[^'\\]|''|\\.)*'"
"""Regular expression of a text between single quotes, for ``re.DOTALL``."""


def read_string_literal(written: str) -> str:
    """Read a text between single quotes as Snowflake does.

    :param written: the text with its quotes; escape sequences begin with a backslash
    """
    return _ESCAPE.sub(_unescaped, written[1:-1])


def _unescaped(found: re.Match[str]) -> str:
    unicode, byte, octal, letter = found.groups()
    if unicode or byte:
        return chr(int(unicode or byte, 16))
    if octal:
        return chr(int(octal, 8))
    return "'" if letter is None else _CONTROLS.get(letter, letter)


# -- From where a file pipe loads, and into which table: read from its own COPY statement ----------------

_PART = r'(?:"(?:[^"]|"")+"|[A-Za-z_][A-Za-z0-9_$]*)'
_TABLE = re.compile(rf"\s*COPY\s+INTO\s+(?P<table>(?:{_PART}\.){{0,2}}{_PART})(?=[\s(])", re.IGNORECASE)
_FROM = re.compile(
    rf"""\bFROM\s+(?:(?P<quoted>{STRING_LITERAL})|(?P<plain>@[^\s();,]+))|{STRING_LITERAL}""",
    re.IGNORECASE | re.DOTALL,
)
"""A location, or a text, in which there is none."""


@dataclass(frozen=True, slots=True)
class PipeTarget:
    """What a file pipe moves where.

    :param table: database, schema and name of the table
    :param stage: the pipe's location: the stage, with its database and schema, and a path in it
    :param auto_ingest: True where events of new files feed the pipe (``AUTO_INGEST``)
    :param statement: its COPY statement
    """

    table: tuple[str, str, str]
    stage: StageReference
    auto_ingest: bool = False
    statement: str = field(default="", repr=False, compare=False)

    @classmethod
    def of(cls, pipe: PipeName, definition: str, *, auto_ingest: bool = False) -> Self:
        """Read a pipe's COPY statement; names without a database or a schema are those of the pipe's own.

        :param pipe: the pipe
        :param definition: the statement, as ``DESCRIBE PIPE`` shows it
        :param auto_ingest: True where events of new files feed the pipe
        :raises ConfigurationError: if it shows none, or one that names no table or no stage
        """
        table, location = _TABLE.match(definition), _location(definition)
        if table is None or location is None:
            raise ConfigurationError(
                f"pipe {pipe}: DESCRIBE PIPE shows the statement {definition[:80]!r}, which does not tell "
                "table and stage: give the role MONITOR on the pipe, and make it a pipe of the form COPY "
                "INTO … FROM @…"
            )
        names = [_spelled(part) for part in re.findall(_PART, table["table"])]
        database, schema, name = [pipe.database, pipe.schema][: 3 - len(names)] + names
        whole = StageReference.parse(location).location("", database=pipe.database, schema=pipe.schema)
        return cls((database, schema, name), StageReference.parse(whole), auto_ingest, definition)

    def below(self, staged: StageReference, pipe: PipeName) -> str:
        """The start of the paths below the pipe's location of what lies in a directory of a stage.

        :param staged: the directory
        :param pipe: the pipe, for its database and schema, and for the error's text
        :return: empty, or a path that ends in ``/``
        :raises ConfigurationError: if the directory is not below the pipe's location
        """
        given = StageReference.parse(staged.location("", database=pipe.database, schema=pipe.schema))
        inside = f"{given.path}/".removeprefix("/")
        root = f"{self.stage.path}/".removeprefix("/")
        if stage_key(given) != stage_key(self.stage) or not inside.startswith(root):
            raise ConfigurationError(
                f"pipe {pipe} loads from {written(self.stage)}, and the files are at {written(given)}: stage "
                "them below the pipe's location, or name the pipe of that stage"
            )
        return inside.removeprefix(root)


@dataclass(frozen=True, slots=True)
class ListedPipe:
    """A file pipe as SHOW PIPES lists it.

    :param name: its full name
    :param target: what it moves where
    :param created: since when it is there, None where that is not reported
    :param pattern: the regular expression that the paths of its files match
    """

    name: PipeName
    target: PipeTarget
    created: dt.datetime | None = None
    pattern: str | None = None

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Self | None:
        """Read a row of SHOW PIPES; None for a pipe of another kind.

        :param row: the row, its keys are the columns' names in lower case
        :raises ConfigurationError: if its definition does not show to the role
        """
        if row.get("kind") == "STREAMING":
            return None
        name = PipeName(str(row["database_name"]), str(row["schema_name"]), str(row["name"]))
        auto_ingest = bool(row.get("notification_channel"))
        created = row.get("created_on")
        return cls(
            name,
            PipeTarget.of(name, str(row.get("definition") or ""), auto_ingest=auto_ingest),
            created if isinstance(created, dt.datetime) else None,
            row.get("pattern") or None,
        )

    def takes(self, path: str, stage: StageReference) -> bool:
        """True for a file that lies where the pipe loads from.

        :param path: its path below the stage
        :param stage: the stage, with its database and schema
        """
        is_there = self.loads_from(stage) and path.startswith(self.target.stage.path)
        return is_there and self._matches(path)

    def takes_url(self, url: str, stage_url: str) -> bool:
        """True for a file that lies where the pipe loads from, by way of another external stage.

        :param url: the file's URL
        :param stage_url: what the pipe's own stage stands for
        """
        return url.startswith(f"{stage_url.rstrip('/')}/{self.target.stage.path}") and self._matches(url)

    def loads_from(self, stage: StageReference) -> bool:
        """True for the stage of the pipe.

        :param stage: a stage, with its database and schema
        """
        return stage_key(stage) == stage_key(self.target.stage)

    def _matches(self, path: str) -> bool:
        try:
            # A part that matches is enough: whatever the pipe matches as a whole is then among it.
            return self.pattern is None or re.search(self.pattern, path) is not None
        except re.error:
            return True  # an expression that only Snowflake reads


def written(stage: StageReference) -> str:
    """A stage and a path as text.

    :param stage: with its database and schema
    """
    return f"@{stage.owner}{stage.name}" + (f"/{stage.path}" if stage.path else "")


def _location(statement: str) -> str | None:
    for found in _FROM.finditer(statement):
        if found["plain"]:
            return str(found["plain"])
        if found["quoted"] and (location := read_string_literal(found["quoted"])).startswith("@"):
            return location
    return None


def stage_key(stage: StageReference) -> tuple[str, ...]:
    """Database, schema and name of a stage, each as Snowflake keeps it.

    :param stage: the stage, with its database and schema
    """
    mark = "%" if stage.name.startswith("%") else ""
    owner = [_spelled(part) for part in re.findall(_PART, stage.owner)]
    return (*owner, mark + _spelled(stage.name.removeprefix("%")))


def _spelled(part: str) -> str:
    """A name as Snowflake keeps it: in capitals unless it is quoted."""
    return part[1:-1].replace('""', '"') if part.startswith('"') else part.upper()

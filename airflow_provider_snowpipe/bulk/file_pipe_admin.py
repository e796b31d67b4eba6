"""A file pipe in SQL: making, pausing, refreshing and dropping it, from where it loads, and its state."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from airflow_provider_snowpipe.bulk.copy import CopyInto
from airflow_provider_snowpipe.bulk.staged_files import PART, StageReference, spelled, staged_at
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    NothingStagedError,
    PipeBusyError,
    SqlError,
)
from airflow_provider_snowpipe.streaming.names import (
    STRING_LITERAL,
    PipeName,
    option,
    plain_or_quoted,
    read_string_literal,
    string_literal,
)

RunSql = Callable[[str, Sequence[str] | None], Sequence[Mapping[str, Any]]]
"""Runs a statement with the values that it binds; the rows' keys are the columns' names in lower case."""

IF_EXISTS = ("check", "keep", "replace")
_MISSING = 2003
_STALE = 3605
_GAP = re.compile(rf"""({STRING_LITERAL}|"[^"]*")|\s+""", re.DOTALL)


@dataclass(frozen=True, slots=True)
class KnownPipe:
    """A pipe as DESCRIBE reports it.

    :param auto_ingest: whether events of new files feed it
    :param created: when it was created, or last replaced; None where that is not reported
    """

    definition: str
    auto_ingest: bool
    created: dt.datetime | None = None

    def differs_from(self, definition: PipeDefinition) -> str | None:
        """Describe the difference, None for none."""
        expected = definition.copy.statement()
        if _spaced(self.definition) != _spaced(expected):
            return f"its statement is {self.definition!r} and not {expected!r}"
        if self.auto_ingest != definition.auto_ingest:
            return f"its AUTO_INGEST is {self.auto_ingest} and not {definition.auto_ingest}"
        return None


@dataclass(frozen=True, slots=True)
class PipeChange:
    """What an action did.

    :param changed: False where there was nothing to do
    :param statements: what was run, or would be
    :param files: of a refresh, the paths of the files that it submitted, below the pipe's location
    """

    changed: bool
    statements: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


class FilePipeAdmin:
    """The SQL of one file pipe.

    :param is_rehearsal: True reads only: the change lists what would be run
    """

    def __init__(self, run: RunSql, pipe: PipeName, *, is_rehearsal: bool = False) -> None:
        self._run = run
        self.pipe = pipe
        self._rehearses = is_rehearsal

    def known(self) -> KnownPipe | None:
        """The pipe as it is, None where there is none, or the role may not see it.

        :raises SqlError: if the statement fails
        """
        try:
            rows = self._run(f"DESCRIBE PIPE {self.pipe.quoted}", None)
        except SqlError as error:
            if error.errno == _MISSING:
                return None
            raise
        (row,) = rows
        definition, created = str(row.get("definition") or ""), staged_at(row.get("created_on"))
        return KnownPipe(definition, bool(row.get("notification_channel")), created)

    def status(self) -> PipeStatus:
        """Ask for the pipe's state.

        :raises ConfigurationError: if there is no such pipe, or the role may not see it
        :raises SqlError: if the statement fails
        """
        try:
            (row,) = self._run(PIPE_STATUS, (self.pipe.quoted,))
        except SqlError as error:
            if error.errno != _MISSING:
                raise
            raise ConfigurationError(
                f"there is no pipe {self.pipe}, or the role may not see it: create it first, or check the "
                "names, letter by letter, and that the role has MONITOR or OPERATE on it"
            ) from None
        return PipeStatus.read(next(iter(row.values())))

    def create(self, definition: PipeDefinition, if_exists: str, *, force: bool = False) -> PipeChange:
        """Make the pipe unless there is one that does the same.

        :param if_exists: what becomes of a pipe that does something else: ``check`` is an error, ``keep``
            leaves it, ``replace`` recreates it
        :param force: with ``replace``, also while files wait in its queue, which are then not loaded
        :raises ConfigurationError: if there is another pipe of that name
        :raises PipeBusyError: if files wait in the queue of the pipe that is to be replaced
        """
        known = self.known()
        if known is None:
            return self._changed([definition.create(self.pipe)])
        difference = known.differs_from(definition)
        if difference is None or if_exists == "keep":
            return PipeChange(False)
        if if_exists == "check":
            raise ConfigurationError(
                f"pipe {self.pipe} exists, and {difference}: drop it, name another one, or set "
                "if_exists='replace', which forgets what it has loaded"
            )
        self._require_empty(force, "replaced")
        return self._changed([definition.create(self.pipe, replace=True)])

    def alter(self, *, comment: str | None, error_integration: str | None) -> PipeChange:
        """Change what can be changed of the pipe without recreating it.

        :param comment: a new comment, an empty one to remove it, None to leave it
        :param error_integration: another integration, None to leave it
        :raises ConfigurationError: if there is nothing to change
        """
        head = f"ALTER PIPE {self.pipe.quoted}"
        statements = []
        if comment is not None:
            words = f"SET {option('COMMENT', comment)}" if comment else "UNSET COMMENT"
            statements.append(f"{head} {words}")
        if error_integration is not None:
            statements.append(f"{head} SET ERROR_INTEGRATION = {plain_or_quoted(error_integration)}")
        if not statements:
            raise ConfigurationError(
                f"nothing of pipe {self.pipe} is to be altered: give comment=… or error_integration=…; "
                "another COPY statement needs action='create' with if_exists='replace'"
            )
        return self._changed(statements)

    def pause(self) -> PipeChange:
        """Pause the pipe; files that are submitted wait from now on."""
        if self.status().is_paused:
            return PipeChange(False)
        return self._changed([self._paused(True)])

    def resume(self, *, force: bool = False) -> PipeChange:
        """Resume the pipe.

        :param force: also when it was paused for longer than 14 days
        :raises ConfigurationError: if it was, without ``force``
        """
        if not self.status().is_paused:
            return PipeChange(False)
        if force:
            return self._changed([FORCE_RESUME], (self.pipe.quoted,))
        try:
            return self._changed([self._paused(False)])
        except SqlError as error:
            if error.errno != _STALE:
                raise
            raise ConfigurationError(
                f"pipe {self.pipe} was paused for more than 14 days, so it is stale, and events of files "
                "that came before are gone: set force=True to resume it for what comes from now on, and load "
                "what it has missed by action='refresh' or COPY INTO"
            ) from error

    def refresh(
        self,
        *,
        prefix: str | None,
        modified_after: dt.datetime | None,
        on_nothing: str,
        before: Sequence[str] = (),
    ) -> PipeChange:
        """Submit the files of the last 7 days that neither the pipe nor a COPY into its table has loaded.

        :param prefix: only files whose path below the pipe's location begins so
        :param on_nothing: ``fail`` when there is no such file, or ``report``
        :param before: files that an earlier try may have submitted, which count as submitted
        :raises ConfigurationError: if that is more than 7 days ago
        :raises NothingStagedError: if there is none and that is ``fail``
        """
        words, now = [f"ALTER PIPE {self.pipe.quoted} REFRESH"], dt.datetime.now(dt.UTC)
        if prefix:
            words.append(option("PREFIX", prefix))
        if modified_after is not None:
            if modified_after < now - REFRESHED:
                raise ConfigurationError(
                    f"modified_after is {modified_after.isoformat()}, which is {(now - modified_after).days} "
                    f"days ago. {_REMEDY_OF_AGE}"
                )
            words.append(option("MODIFIED_AFTER", modified_after.isoformat(timespec="milliseconds")))
        statement = " ".join(words)
        if self._rehearses:
            return PipeChange(True, (statement,))
        files = tuple(dict.fromkeys([*(str(row["file"]) for row in self._run(statement, None)), *before]))
        if not files and on_nothing == "fail":
            where = f" whose path begins with {prefix!r}" if prefix else ""
            raise NothingStagedError(
                f"REFRESH of pipe {self.pipe} found no file{where} that is not loaded, or waiting, already. "
                f"{_REMEDY_OF_AGE}"
            )
        return PipeChange(bool(files), (statement,), files)

    def drop(self, *, force: bool = False) -> PipeChange:
        """Drop the pipe; one that is gone already is well.

        :param force: also while files wait in its queue, which are then not loaded
        :raises PipeBusyError: if files wait, without ``force``
        """
        if self.known() is None:
            return PipeChange(False)
        self._require_empty(force, "dropped")
        return self._changed([f"DROP PIPE IF EXISTS {self.pipe.quoted}"])

    def _paused(self, paused: bool) -> str:
        return f"ALTER PIPE {self.pipe.quoted} SET {option('PIPE_EXECUTION_PAUSED', paused)}"

    def _require_empty(self, force: bool, what: str) -> None:
        if force:
            return
        status = self.status()
        if status.pending_files:
            raise PipeBusyError(
                f"pipe {self.pipe} was to be {what}, but {status.pending_files:,} files wait in its queue "
                "and would not be loaded: wait until it is empty, or set force=True"
            )

    def _changed(self, statements: Sequence[str], values: Sequence[str] | None = None) -> PipeChange:
        if not self._rehearses:
            for statement in statements:
                self._run(statement, values)
        shown = [string_literal(value) for value in values or ()]
        return PipeChange(True, tuple(one % tuple(shown) if shown else one for one in statements))


def _spaced(statement: str) -> str:
    """A statement with one blank for every gap outside of its quotes."""
    return _GAP.sub(lambda found: found[1] or " ", statement.strip().rstrip("; \n"))


# -- The SQL of file pipes: CREATE, ALTER, REFRESH and DROP, with every name quoted and every text escaped --

PIPE_STATUS = "SELECT SYSTEM$PIPE_STATUS(%s)"
"""Takes the pipe's full name; needs MONITOR, OPERATE or OWNERSHIP on the pipe."""
FORCE_RESUME = "SELECT SYSTEM$PIPE_FORCE_RESUME(%s, 'staleness_check_override')"
"""Takes the pipe's full name; resumes a pipe that was paused for longer than 14 days."""
REFRESHED = dt.timedelta(days=7)
"""REFRESH considers files that were staged within this time (page "ALTER PIPE")."""
_REMEDY_OF_AGE = (
    "REFRESH looks at files that were staged in the last 7 days only: stage older files again under "
    "other names, or load them by COPY INTO"
)


@dataclass(frozen=True, slots=True)
class PipeDefinition:
    """What a file pipe does.

    :param copy: its COPY statement, without files
    :param auto_ingest: True loads files when the stage's events report them, False when they are submitted
    :param integration: the notification integration of these events
    :param aws_sns_topic: the topic that they come from instead
    :param error_integration: the notification integration that gets the errors
    :raises ConfigurationError: if a pipe cannot have one of the COPY statement's options
    """

    copy: CopyInto
    auto_ingest: bool = False
    integration: str | None = None
    aws_sns_topic: str | None = None
    error_integration: str | None = None
    comment: str | None = None

    def __post_init__(self) -> None:
        options = self.copy.options
        given = {
            "on_error": options.on_error == "ABORT_STATEMENT",
            "size_limit": options.size_limit is not None,
            "purge": options.purge,
            "force": options.force,
        }
        for name, is_given in given.items():
            if is_given:
                raise ConfigurationError(
                    f"options has {name}={getattr(options, name)!r}, which a pipe cannot have: leave it out, "
                    'or load by SnowpipeCopyOperator (page "CREATE PIPE")'
                )
        if self.copy.location.startswith("@~"):
            raise ConfigurationError(
                "stage is '@~', a user's own, from which no pipe loads: give a named stage or @%<table>"
            )
        if not self.auto_ingest and (self.integration or self.aws_sns_topic):
            raise ConfigurationError(
                "integration and aws_sns_topic define where events of new files come from: give "
                "auto_ingest=True as well"
            )

    def create(self, pipe: PipeName, *, replace: bool = False) -> str:
        """Write the statement that makes the pipe.

        :param replace: True replaces a pipe of that name, with its queue and its memory of files
        """
        words = ["CREATE OR REPLACE PIPE" if replace else "CREATE PIPE", pipe.quoted]
        if self.auto_ingest:
            words.append("AUTO_INGEST = TRUE")
        if self.error_integration:
            words.append(f"ERROR_INTEGRATION = {plain_or_quoted(self.error_integration)}")
        texts = {
            "AWS_SNS_TOPIC": self.aws_sns_topic,
            "INTEGRATION": self.integration,
            "COMMENT": self.comment,
        }
        words += [option(name, value) for name, value in texts.items() if value is not None]
        return " ".join([*words, "AS", self.copy.statement()])


# -- The state of a file pipe: ``SYSTEM$PIPE_STATUS`` as a value -----------------------------------------


@dataclass(frozen=True, slots=True)
class PipeStatus:
    """The state of one file pipe (page "SYSTEM$PIPE_STATUS").

    :param execution_state: ``RUNNING``, ``PAUSED``, ``READ_ONLY``, ``FAILING_OVER``, ``STOPPED_…`` or
        ``STALLED_…``
    :param pending_files: files in the pipe's queue that are not loaded yet
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

        :raises SqlError: if it is something else
        """
        try:
            raw = json.loads(str(text))
            state = str(raw["executionState"])
        except (ValueError, KeyError, TypeError):
            raise SqlError(
                f"SYSTEM$PIPE_STATUS answered {str(text)[:80]!r}, which is not a state of a pipe: check that "
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
        return self.execution_state == "RUNNING"

    @property
    def is_paused(self) -> bool:
        """True when somebody has paused the pipe; files may be submitted, and wait."""
        return self.execution_state == "PAUSED"

    def __str__(self) -> str:
        words = [self.execution_state, f"{self.pending_files:,} files wait"]
        if self.oldest_pending_at is not None:
            words.append(f"the oldest since {self.oldest_pending_at.isoformat()}")
        if self.error:
            words.append(f"error: {' '.join(self.error.split())[:300]}")
        return ", ".join(words)

    def result(self) -> dict[str, Any]:
        """The state as JSON, for a task's value."""
        values = {name: getattr(self, name) for name in self.__slots__ if name != "raw"}
        return {
            name: value.isoformat() if isinstance(value, dt.datetime) else value
            for name, value in values.items()
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


# -- From where a file pipe loads, and into which table: read from its own COPY statement ----------------

_TABLE = re.compile(rf"\s*COPY\s+INTO\s+(?P<table>(?:{PART}\.){{0,2}}{PART})(?=[\s(])", re.IGNORECASE)
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
    """

    table: tuple[str, str, str]
    stage: StageReference
    auto_ingest: bool = False
    statement: str = field(default="", repr=False, compare=False)

    @classmethod
    def of(cls, pipe: PipeName, definition: str, *, auto_ingest: bool = False) -> Self:
        """Read a pipe's COPY statement; names without a database or a schema are those of the pipe's own.

        :param definition: the statement, as ``DESCRIBE PIPE`` shows it
        :param auto_ingest: True where events of new files feed the pipe
        :raises ConfigurationError: if it shows none, or one that names no table or no stage
        """
        table, location = _TABLE.match(definition), _location(definition)
        if table is None or location is None:
            raise ConfigurationError(
                f"pipe {pipe}: DESCRIBE PIPE shows the statement {definition[:80]!r}, which does not show "
                "table and stage: give the role MONITOR on the pipe, and make it a pipe of the form COPY "
                "INTO … FROM @…"
            )
        names = spelled(table["table"])
        database, schema, name = (*(pipe.database, pipe.schema)[: 3 - len(names)], *names)
        stage = StageReference.parse(location, pipe.database, pipe.schema)
        return cls((database, schema, name), stage, auto_ingest, definition)

    def below(self, staged: StageReference, pipe: PipeName) -> str:
        """The start of the paths below the pipe's location of what lies in a directory of a stage.

        :param pipe: the pipe, for its database and schema, and for the error's text
        :return: empty, or a path that ends in ``/``
        :raises ConfigurationError: if the directory is not below the pipe's location
        """
        given = StageReference.parse(str(staged), pipe.database, pipe.schema)
        inside = f"{given.path}/".removeprefix("/")
        root = f"{self.stage.path}/".removeprefix("/")
        if given.key() != self.stage.key() or not inside.startswith(root):
            raise ConfigurationError(
                f"pipe {pipe} loads from {self.stage}, and the files are at {given}: stage "
                "them below the pipe's location, or name the pipe of that stage"
            )
        return inside.removeprefix(root)


@dataclass(frozen=True, slots=True)
class ListedPipe:
    """A file pipe as SHOW PIPES lists it.

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

        :param stage: the stage, with its database and schema
        """
        is_there = self.loads_from(stage) and path.startswith(self.target.stage.path)
        return is_there and self._matches(path)

    def takes_url(self, url: str, stage_url: str) -> bool:
        """True for a file that lies where the pipe loads from, by way of another external stage.

        :param stage_url: what the pipe's own stage stands for
        """
        return url.startswith(f"{stage_url.rstrip('/')}/{self.target.stage.path}") and self._matches(url)

    def loads_from(self, stage: StageReference) -> bool:
        """True for the stage of the pipe."""
        return stage.key() == self.target.stage.key()

    def _matches(self, path: str) -> bool:
        try:
            # A part that matches is enough: whatever the pipe matches as a whole is then among it.
            return self.pattern is None or re.search(self.pattern, path) is not None
        except re.error:
            return True  # an expression that only Snowflake reads


def _location(statement: str) -> str | None:
    for found in _FROM.finditer(statement):
        if found["plain"]:
            return str(found["plain"])
        if found["quoted"] and (location := read_string_literal(found["quoted"])).startswith("@"):
            return location
    return None

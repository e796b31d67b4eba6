"""Making, pausing, refreshing and dropping one file pipe by SQL, so that doing it again changes nothing."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_snowpipe.bulk.copy import CopyInto
from airflow_provider_snowpipe.bulk.pipe_state import STRING_LITERAL, PipeStatus
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    NothingStagedError,
    PipeBusyError,
    SqlError,
)
from airflow_provider_snowpipe.streaming.names import (
    PipeName,
    full_name,
    option,
    plain_or_quoted,
    string_literal,
)

RunSql = Callable[[str, Sequence[str] | None], Sequence[Mapping[str, Any]]]
"""Runs a statement with the values that it binds; the rows' keys are the columns' names in lower case."""

IF_EXISTS = ("check", "keep", "replace")
ON_NOTHING = ("fail", "report")
_MISSING = 2003
_STALE = 3605
_BARE = re.compile(r'@(?:(?!--|/\*)[\w$"%~./=-])+')
_GAP = re.compile(rf"""({STRING_LITERAL}|"[^"]*")|\s+""", re.DOTALL)


@dataclass(frozen=True, slots=True)
class KnownPipe:
    """A pipe as DESCRIBE reports it.

    :param definition: its COPY statement
    :param auto_ingest: whether events of new files feed it
    """

    definition: str
    auto_ingest: bool

    def differs_from(self, definition: PipeDefinition) -> str | None:
        """Describe the difference, None for none.

        :param definition: what the pipe is to be
        """
        expected = definition.copy.statement()
        # Earlier releases wrote a location of plain letters without quotes, which means the same.
        location = definition.copy.location
        bare = (
            expected.replace(string_literal(location), location, 1) if _BARE.fullmatch(location) else expected
        )
        if _spaced(self.definition) not in (_spaced(expected), _spaced(bare)):
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

    :param run: runs SQL in the pipe's account
    :param pipe: the pipe
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
            rows = self._run(f"DESCRIBE PIPE {written(self.pipe)}", None)
        except SqlError as error:
            if error.errno == _MISSING:
                return None
            raise
        (row,) = rows
        return KnownPipe(str(row.get("definition") or ""), bool(row.get("notification_channel")))

    def status(self) -> PipeStatus:
        """Ask for the pipe's state.

        :raises ConfigurationError: if there is no such pipe, or the role may not see it
        :raises SqlError: if the statement fails
        """
        try:
            (row,) = self._run(PIPE_STATUS, (written(self.pipe),))
        except SqlError as error:
            raise self._unknown() if error.errno == _MISSING else error from None
        return PipeStatus.read(next(iter(row.values())))

    def create(self, definition: PipeDefinition, if_exists: str, *, force: bool = False) -> PipeChange:
        """Make the pipe unless there is one that does the same.

        :param definition: what it does
        :param if_exists: what becomes of a pipe that does something else: ``check`` is an error, ``keep``
            leaves it, ``replace`` makes it anew
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
                f"pipe {self.pipe} exists, and {difference}: drop it, name another one, or say "
                "if_exists='replace', which forgets what it has loaded"
            )
        self._require_empty(force, "replaced")
        return self._changed([definition.create(self.pipe, replace=True)])

    def alter(self, *, comment: str | None, error_integration: str | None) -> PipeChange:
        """Change comment or error integration.

        :param comment: as for :func:`alter_pipe`
        :param error_integration: as for :func:`alter_pipe`
        """
        return self._changed(alter_pipe(self.pipe, comment=comment, error_integration=error_integration))

    def pause(self) -> PipeChange:
        """Pause the pipe; files that are submitted wait from now on."""
        if self.status().is_paused:
            return PipeChange(False)
        return self._changed([pause_pipe(self.pipe, paused=True)])

    def resume(self, *, force: bool = False) -> PipeChange:
        """Resume the pipe.

        :param force: also when it was paused for longer than 14 days
        :raises ConfigurationError: if it was, without ``force``
        """
        if not self.status().is_paused:
            return PipeChange(False)
        if force:
            return self._changed([FORCE_RESUME], (written(self.pipe),))
        try:
            return self._changed([pause_pipe(self.pipe, paused=False)])
        except SqlError as error:
            if error.errno != _STALE:
                raise
            raise ConfigurationError(
                f"pipe {self.pipe} was paused for more than 14 days, so it is stale, and events of files "
                "that came before are gone: say force=True to resume it for what comes from now on, and load "
                "what it has missed by action='refresh' or COPY INTO"
            ) from error

    def refresh(
        self, *, prefix: str | None, modified_after: dt.datetime | None, on_nothing: str
    ) -> PipeChange:
        """Submit the files of the last 7 days that neither the pipe nor a COPY into its table has loaded.

        :param prefix: as for :func:`refresh_pipe`
        :param modified_after: as for :func:`refresh_pipe`
        :param on_nothing: ``fail`` when there is no such file, or ``report``
        :raises NothingStagedError: if there is none and that is ``fail``
        """
        statement = refresh_pipe(
            self.pipe, prefix=prefix, modified_after=modified_after, now=dt.datetime.now(dt.UTC)
        )
        if self._rehearses:
            return PipeChange(True, (statement,))
        files = tuple(str(row["file"]) for row in self._run(statement, None))
        if not files and on_nothing == "fail":
            raise NothingStagedError(nothing_refreshed(self.pipe, prefix))
        return PipeChange(bool(files), (statement,), files)

    def drop(self, *, force: bool = False) -> PipeChange:
        """Drop the pipe; one that is gone already is well.

        :param force: also while files wait in its queue, which are then not loaded
        :raises PipeBusyError: if files wait, without ``force``
        """
        if self.known() is None:
            return PipeChange(False)
        self._require_empty(force, "dropped")
        return self._changed([drop_pipe(self.pipe)])

    def _require_empty(self, force: bool, what: str) -> None:
        if force:
            return
        status = self.status()
        if status.pending_files:
            raise PipeBusyError(
                f"pipe {self.pipe} was to be {what}, but {status.pending_files:,} files wait in its queue "
                "and would not be loaded: wait until it is empty, or say force=True"
            )

    def _changed(self, statements: Sequence[str], values: Sequence[str] | None = None) -> PipeChange:
        if not self._rehearses:
            for statement in statements:
                self._run(statement, values)
        shown = [string_literal(value) for value in values or ()]
        return PipeChange(True, tuple(one % tuple(shown) if shown else one for one in statements))

    def _unknown(self) -> ConfigurationError:
        return ConfigurationError(
            f"there is no pipe {self.pipe}, or the role may not see it: create it first, or check the names, "
            "letter by letter, and that the role has MONITOR or OPERATE on it"
        )


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
    :param comment: a comment
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
            "return_failed_only": options.return_failed_only,
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
                "integration and aws_sns_topic say where events of new files come from: give "
                "auto_ingest=True as well"
            )

    def create(self, pipe: PipeName, *, replace: bool = False) -> str:
        """Write the statement that makes the pipe.

        :param pipe: the pipe
        :param replace: True replaces a pipe of that name, with its queue and its memory of files
        """
        words = ["CREATE OR REPLACE PIPE" if replace else "CREATE PIPE", written(pipe)]
        if self.auto_ingest:
            words.append("AUTO_INGEST = TRUE")
        if self.error_integration:
            words.append(f"ERROR_INTEGRATION = {plain_or_quoted(self.error_integration)}")
        words += [
            option(name, value)
            for name, value in (
                ("AWS_SNS_TOPIC", self.aws_sns_topic),
                ("INTEGRATION", self.integration),
                ("COMMENT", self.comment),
            )
            if value is not None
        ]
        return " ".join([*words, "AS", self.copy.statement()])


def written(pipe: PipeName) -> str:
    """The full name as SQL takes it.

    :param pipe: the pipe
    """
    return full_name(pipe.database, pipe.schema, pipe.pipe)


def pause_pipe(pipe: PipeName, *, paused: bool) -> str:
    """Write the statement that pauses or resumes a pipe.

    :param pipe: the pipe
    :param paused: True pauses
    """
    return f"ALTER PIPE {written(pipe)} SET {option('PIPE_EXECUTION_PAUSED', paused)}"


def alter_pipe(pipe: PipeName, *, comment: str | None, error_integration: str | None) -> list[str]:
    """Write the statements that change what can be changed of a pipe without making it anew.

    :param pipe: the pipe
    :param comment: a new comment, an empty one to remove it, None to leave it
    :param error_integration: another integration, None to leave it
    :raises ConfigurationError: if there is nothing to change
    """
    head = f"ALTER PIPE {written(pipe)}"
    statements = []
    if comment is not None:
        statements.append(f"{head} SET {option('COMMENT', comment)}" if comment else f"{head} UNSET COMMENT")
    if error_integration is not None:
        statements.append(f"{head} SET ERROR_INTEGRATION = {plain_or_quoted(error_integration)}")
    if not statements:
        raise ConfigurationError(
            f"nothing of pipe {pipe} is to be altered: give comment=… or error_integration=…; another COPY "
            "statement needs action='create' with if_exists='replace'"
        )
    return statements


def refresh_pipe(
    pipe: PipeName, *, prefix: str | None, modified_after: dt.datetime | None, now: dt.datetime
) -> str:
    """Write the statement that submits staged files which neither pipe nor table have loaded.

    :param pipe: the pipe
    :param prefix: only files whose path below the pipe's location begins so
    :param modified_after: only files that were staged after this time
    :param now: the time
    :raises ConfigurationError: if that is more than 7 days ago
    """
    words = [f"ALTER PIPE {written(pipe)} REFRESH"]
    if prefix:
        words.append(option("PREFIX", prefix))
    if modified_after is not None:
        if modified_after < now - REFRESHED:
            raise ConfigurationError(
                f"modified_after is {modified_after.isoformat()}, which is {(now - modified_after).days} "
                f"days ago. {_REMEDY_OF_AGE}"
            )
        words.append(option("MODIFIED_AFTER", modified_after.isoformat(timespec="milliseconds")))
    return " ".join(words)


def nothing_refreshed(pipe: PipeName, prefix: str | None) -> str:
    """Explain what it means that a refresh has found no file.

    :param pipe: the pipe
    :param prefix: the prefix that it was for
    """
    where = f" whose path begins with {prefix!r}" if prefix else ""
    return (
        f"REFRESH of pipe {pipe} found no file{where} that is not loaded, or waiting, already. "
        f"{_REMEDY_OF_AGE}"
    )


def drop_pipe(pipe: PipeName) -> str:
    """Write the statement that drops a pipe; one that is gone is no error.

    :param pipe: the pipe
    """
    return f"DROP PIPE IF EXISTS {written(pipe)}"

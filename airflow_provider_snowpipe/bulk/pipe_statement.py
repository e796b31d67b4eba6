"""The SQL of file pipes: CREATE, ALTER, REFRESH and DROP, with every name quoted and every text escaped."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass

from airflow_provider_snowpipe.bulk.copy_statement import CopyInto
from airflow_provider_snowpipe.bulk.literals import option
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.listing import full_name
from airflow_provider_snowpipe.streaming.names import PipeName, quote_identifier

PIPE_STATUS = "SELECT SYSTEM$PIPE_STATUS(%s)"
"""Takes the pipe's full name; needs MONITOR, OPERATE or OWNERSHIP on the pipe."""
FORCE_RESUME = "SELECT SYSTEM$PIPE_FORCE_RESUME(%s, 'staleness_check_override')"
"""Takes the pipe's full name; resumes a pipe that was paused for longer than 14 days."""
REFRESHED = dt.timedelta(days=7)
"""REFRESH looks at files that were staged within this time (page "ALTER PIPE")."""
_PLAIN = re.compile(r"[A-Z_][A-Z0-9_$]*")
_REMEDY_OF_AGE = (
    "REFRESH looks at files that were staged in the last 7 days only: stage older files again under "
    "other names, or load them by COPY INTO"
)


@dataclass(frozen=True, slots=True)
class PipeDefinition:
    """What a file pipe does.

    :param copy: its COPY statement, without files
    :param auto_ingest: True loads files when the stage's events tell of them, False when they are submitted
    :param integration: the notification integration of these events
    :param aws_sns_topic: the topic that they come from instead
    :param error_integration: the notification integration that is told of errors
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
            words.append(f"ERROR_INTEGRATION = {_identifier(self.error_integration)}")
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
        statements.append(f"{head} SET ERROR_INTEGRATION = {_identifier(error_integration)}")
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
    :param modified_after: only files that were staged after this moment
    :param now: the time
    :raises ConfigurationError: if that moment is more than 7 days ago
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
    """Say what it means that a refresh has found no file.

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


def _identifier(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else quote_identifier(name)

"""Everything that can go wrong with a channel, as one hierarchy.

Each message says what happened to which thing, and what to do. None holds a credential or a row.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

_CONNECTOR_TRANSIENT = range(250_000, 252_000)
"""Numbers of Snowflake's connector for a network that fails (``errorcode.py``, 4.8)."""

_CONNECTOR_TRANSFER = range(253_000, 254_000)
"""Its numbers for files that could not be moved to or from a stage."""

_SIGN_IN_REFUSED = "Failed to connect to DB"
"""The connector gives a refused sign-in the number of a broken network (250001); only the text differs."""


IF_NO_ANSWER = (
    "See whether the service is up, whether its address is right, and whether this machine may reach it "
    "(firewall, proxy)"
)


# pragma: no mutate start (classes and their words)


class SnowpipeError(Exception):
    """Base of every error this package raises on purpose.

    Each class states whether another try of the task can help; operators, sensors, triggers, Spark tasks and
    the retry policy all read it here. What an error's own data decide better, its instance states.
    """

    error_id: str = "SP00"
    """Stable short code of the class, by which the errors page of the documentation lists it."""
    remedy: str = "read the message: it names what happened, the value and what to do"
    """What to do about it, in words."""
    retryable: bool = True
    """False where every other try would meet the error again, or would do harm."""
    retry_reason: str = "the operation can be retried"
    """Why, in words, for the retry policy's decision."""
    retry_delay: float | None = None
    """Seconds to wait before another try at least, None for the task's own delay."""

    @property
    def spark_may_retry(self) -> bool:
        """True when Spark may start another attempt of the task that met the error."""
        return self.retryable


class ConfigurationError(SnowpipeError, ValueError):
    """A parameter, a plan or a connection is wrong; nothing was sent."""

    error_id = "SP01"
    remedy = "correct the argument, plan or connection field that the message names"
    retryable = False
    retry_reason = "a setting or a plan is wrong; it stays wrong"


class OffsetTokenError(ConfigurationError):
    """An offset token does not have the format that the caller declared."""

    error_id = "SP02"
    remedy = "name the format that wrote the token (offset_format), or reset the channel's token on purpose"


class SourcePositionError(SnowpipeError):
    """The committed position is not in the source (any more): resuming would lose or double rows."""

    error_id = "SP03"
    remedy = 'bring the source back to what it held; or choose on_data_loss="skip", or reset the token'
    retryable = False
    retry_reason = "the committed position is not in the source"


class SourceChangedError(SourcePositionError):
    """A channel's positions are those of another source, or count its rows in another way; nothing was sent.

    The message names the channel and both sources. With ``rebind="continue"`` an operator takes the position,
    with ``rebind="restart"`` it begins at the source's first row. ``airflow snowpipe offsets rebind`` does so
    for one channel.
    """

    error_id = "SP36"
    remedy = (
        'put the source back, or set rebind="continue" (same positions) or "restart" (from its beginning)'
    )
    retry_reason = "the channel belongs to another source"


class ImbalanceError(SnowpipeError):
    """A channel counts other rows than its checkpoint: rows were lost, doubled or written by others.

    Another program wrote to it, its token was set by hand, or it was dropped and created again. With
    ``on_imbalance="warn"``, the default, a load logs it and continues.
    """

    error_id = "SP37"
    remedy = "find out who else wrote to the channel or recreated it; airflow snowpipe audit counts"
    retryable = False
    retry_reason = "the channel's counters do not match its checkpoint; another try finds the same"


class AuditError(SnowpipeError):
    """What a source holds, what its channels count and what the table has do not agree."""

    error_id = "SP38"
    remedy = "look at the differences that the log names: which rows were changed, and by whom"
    retryable = False
    retry_reason = "another audit finds the same"


class RecordUnavailableError(SnowpipeError):
    """Airflow did not give the record of a source's last checkpoints; nothing was sent.

    Without it, a channel that has expired looks like that of a new partition, whose rows are loaded again.
    """

    error_id = "SP39"
    remedy = "see whether Airflow's API server answers its workers"
    retry_reason = "Airflow may answer again"


class SourceMissingError(SourcePositionError):
    """The source's directory is not there, or it has no row to make columns of; no row was lost by that."""

    error_id = "SP04"
    remedy = "mount or create the directory, or wait until files arrive"
    retryable = True
    retry_reason = "the directory may be mounted again, and files may arrive"


class PartlyStreamedError(SnowpipeError):
    """A file is streamed in part, so that COPY, which takes whole files, would double its first rows."""

    error_id = "SP05"
    remedy = "stream the file to its end first, then load the next files by COPY"
    retryable = False
    retry_reason = "a file is streamed in part; another try finds it so, too"


class SourceUnavailableError(SnowpipeError):
    """The source does not answer; what was read before stands, and another try goes on from there."""

    error_id = "SP06"
    remedy = "check that the source's address answers from the driver and the executors"
    retry_reason = "the source may answer again"


class ContinuityError(SnowpipeError):
    """The caller's rows are not in order after the last accepted one; nothing was sent."""

    error_id = "SP07"
    remedy = "give the rows in the order of their positions, after the committed token"
    retryable = False
    retry_reason = "the rows are out of order; another try sends the same"


class EncodingError(SnowpipeError, ValueError):
    """A value or a type has no faithful NDJSON form; nothing was sent."""

    error_id = "SP08"
    remedy = "convert the value that the message names, or choose how it is written (binary, non_finite)"
    retryable = False
    retry_reason = "a value has no JSON form; it will have none next time"


class AuthenticationError(SnowpipeError):
    """The service refuses the credentials, or they cannot be used."""

    error_id = "SP09"
    remedy = "check user, key or token, and the CA bundle; airflow snowpipe doctor asks each step"
    retryable = False
    retry_reason = "the credentials are refused; repeating may lock the user"


class RetriesExhaustedError(SnowpipeError):
    """The service stayed unreachable or overloaded for longer than the retry budget."""

    error_id = "SP10"
    remedy = "check the network and the service's state; run again, which resumes from the committed tokens"
    retry_reason = "the service is unreachable or overloaded"

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        if retry_after:
            self.retry_reason = f"{self.retry_reason}; it asked to wait"
            self.retry_delay = retry_after


class WriterActiveError(SnowpipeError):
    """Somebody writes to a channel that must be quiet for what was asked; nothing was changed."""

    error_id = "SP11"
    remedy = "stop the other writer, or wait until it ends"
    retry_reason = "somebody else writes to the channel"
    retry_delay = 60.0


class OffsetTokenMovedError(WriterActiveError):
    """A channel's committed token is not the one that setting it was planned on."""

    error_id = "SP12"
    remedy = "find out who moved the token; plan again on the token that is committed now"

    def __init__(self, message: str, *, channel: str, expected: str | None, committed: str | None) -> None:
        super().__init__(message)
        self.channel = channel
        self.expected = expected
        self.committed = committed


class ApiError(SnowpipeError):
    """The service refused a request in a way that repeating cannot fix."""

    error_id = "SP13"
    remedy = "read the service's own code and text in the message; it refuses the same request again"
    retryable = False
    retry_reason = "the service refuses the request"

    def __init__(self, message: str, *, http_status: int, code: str = "") -> None:
        super().__init__(message)
        self.http_status = http_status
        self.code = code
        if type(self).retry_reason is ApiError.retry_reason:
            self.retry_reason = f"{self.retry_reason} (HTTP {http_status})"


class PipeNotFoundError(ApiError):
    """The database, schema, pipe or table does not exist, or the role may not use it."""

    error_id = "SP14"
    remedy = "check the names letter by letter, and the role's grants on database, schema, table and pipe"
    retry_reason = "the pipe, its table or a right is missing"


class PipeFailedOverError(ApiError):
    """The pipe moved (HTTP 410): every channel of this client is dead, make a new client."""

    error_id = "SP15"
    remedy = "run again: a new client finds the pipe"
    retryable = True
    retry_reason = "the pipe moved; a new client finds it"
    retry_delay = 5.0


class ChannelError(ApiError):
    """A request on one channel was refused."""

    error_id = "SP16"
    remedy = "read the service's own code and text in the message; it names the channel"

    def __init__(self, message: str, *, channel: str, http_status: int, code: str = "") -> None:
        super().__init__(message, http_status=http_status, code=code)
        self.channel = channel


class ChannelFencedError(ChannelError):
    """Another writer opened the channel later, so this one may not write to it any more."""

    error_id = "SP17"
    remedy = "let one writer have the channel (max_active_runs=1), or give each its own channel_prefix"
    retry_reason = "a newer writer has the channel: another try would shut it out"

    @property
    def spark_may_retry(self) -> bool:
        """True: the newer writer may be another attempt of the same Spark task, and may end it."""
        return True


class ChannelInvalidError(ChannelError):
    """The channel's session is broken (a gap, a dropped pipe): open it again and replay from its token."""

    error_id = "SP18"
    remedy = "run the load again: it opens the channel and resumes from its token"
    retryable = True
    retry_reason = "the channel's session is broken; opening it again resumes from its token"


class UncommittedRowsError(ChannelError):
    """The channel still holds received rows that are not committed yet."""

    error_id = "SP19"
    remedy = "wait for the commit, then run again"
    retryable = True
    retry_reason = "rows wait for their commit"
    retry_delay = 30.0


class SqlError(SnowpipeError):
    """A SQL statement about channels failed, or the sign-in for it.

    Another try can help where the network failed, not where Snowflake refuses the statement or the sign-in.
    """

    error_id = "SP20"
    remedy = "read Snowflake's text: grant the right, correct the statement, or check the network"
    retry_reason = "Snowflake could not be reached for SQL"

    def __init__(self, message: str, *, errno: int | None = None) -> None:
        super().__init__(message)
        self.errno = errno
        if _SIGN_IN_REFUSED in message:
            self.retryable, self.retry_reason = False, AuthenticationError.retry_reason
        elif errno in _CONNECTOR_TRANSFER:
            self.retry_reason = "a file could not be moved to or from the stage"
        elif errno is not None and errno not in _CONNECTOR_TRANSIENT:
            self.retryable, self.retry_reason = False, f"the statement is refused (error {errno})"


class UnfitRowsError(SnowpipeError):
    """Rows do not fit the table's columns; neither they nor the rest of their batch were sent."""

    error_id = "SP21"
    remedy = 'correct the rows, or the columns of the table, or choose on_error="dead_letter"'
    retryable = False
    retry_reason = "the same rows would not fit the table again"


class UnknownColumnsError(UnfitRowsError):
    """Rows have keys for which the table has no column; neither they nor a row after them were sent."""

    error_id = "SP22"
    remedy = 'add the columns (evolve_columns=True), or choose unknown_columns="ignore"'
    retry_reason = "the same keys match no column again"


class DeadLetterError(SnowpipeError):
    """Rows that do not fit the table could not be put aside, so that nothing after them was sent."""

    error_id = "SP23"
    remedy = "make dead_letter_path writable for the executors"
    retry_reason = "the dead letters' storage may be reached again"


class NothingStagedError(SnowpipeError):
    """A stage holds no file of those that were asked for."""

    error_id = "SP24"
    remedy = 'stage the files first, or choose on_nothing="report"'
    retry_reason = "no file is staged yet"


class StagedFileDiffersError(SnowpipeError):
    """A stage has another content under the name of a file that was to be staged; it stays as it is."""

    error_id = "SP25"
    remedy = 'stage under another name or path, or choose if_staged="overwrite"'
    retryable = False
    retry_reason = "another content is staged under that name"


class PipeBusyError(SnowpipeError):
    """Files wait in a file pipe's queue, which what was asked would lose; nothing was changed."""

    error_id = "SP26"
    remedy = "wait until the pipe has loaded its files, or choose force=True"
    retry_reason = "files wait in the pipe's queue"
    retry_delay = 60.0


class PipeNotRunningError(SnowpipeError):
    """A file pipe is paused, stopped or stalled, so that it loads nothing."""

    error_id = "SP27"
    remedy = "resume the pipe, or correct what stalls it; SYSTEM$PIPE_STATUS shows what"
    retry_reason = "the pipe may be fixed, or resumed"
    retry_delay = 60.0


class FilesNotLoadedError(SnowpipeError):
    """Files that a file pipe has taken are not in the table after the time that was given them."""

    error_id = "SP28"
    remedy = "look at the pipe's status and load history; wait longer with load_timeout"
    retry_reason = "the pipe may still load the files"


class WaitRefusedError(SnowpipeError):
    """The service refuses to report how far a commit or a load is; asking again meets the same refusal."""

    error_id = "SP29"
    remedy = "read the service's text in the message: the pipe, a right or the credentials are missing"
    retryable = False
    retry_reason = "the service refuses to answer"


class TokenWentBackError(SnowpipeError):
    """The committed token moved backwards: somebody reset or recreated the channel during this run."""

    error_id = "SP30"
    remedy = "find out who reset or recreated the channel; set its token to what the table holds"
    retryable = False
    retry_reason = "somebody set the channel's token back; another try could load rows that are in the table"


class ExecutorLostError(SnowpipeError):
    """The executor was lost on every attempt of a Spark task."""

    error_id = "SP31"
    remedy = "read the executors' logs; give them more memory, or keep them longer"
    retry_reason = "the executors may live longer; another try resumes from the committed tokens"


class CommitTimeoutError(SnowpipeError):
    """A channel did not commit its target in time; the rows may still be committed later."""

    error_id = "SP32"
    remedy = "run again, which resumes from the committed token, or raise commit_timeout"
    retry_reason = "the commit is late; another try resumes from the token"

    def __init__(self, message: str, *, channel: str, committed: str | None, target: str) -> None:
        super().__init__(message)
        self.channel = channel
        self.committed = committed
        self.target = target


class RowsRejectedError(SnowpipeError):
    """The service skipped rows that do not fit the table."""

    error_id = "SP33"
    remedy = 'append these rows corrected, and clear the task; or choose on_error="dead_letter" for next runs'
    retryable = False
    retry_reason = "rows were skipped and the tokens have moved on: another try would not see them"

    def __init__(
        self, message: str, *, channel: str, rejected: int, last_error: str | None, load: Any = None
    ) -> None:
        super().__init__(message)
        self.channel = channel
        self.rejected = rejected
        self.last_error = last_error
        self.load = load


class FilesGivenTwiceError(SnowpipeError):
    """Files were loaded another way already, or are being; loading them this way would double their rows."""

    error_id = "SP34"
    remedy = (
        "leave these files to the way that has loaded them; COPY and file pipes load again with force=True"
    )
    retryable = False
    retry_reason = "the files were loaded another way; another try finds the same load"

    def __init__(self, message: str, *, files: tuple[str, ...], may_pass: bool = False) -> None:
        super().__init__(message)
        self.files = files
        if may_pass:
            self.retryable = True
            self.retry_reason = "the files are in another loader's hands; a later try finds what came of that"
            self.retry_delay = 60.0


class FilesRejectedError(SnowpipeError):
    """Files were not loaded, or only some of their rows."""

    error_id = "SP35"
    remedy = 'correct the files that the message names and stage them again, or choose on_rejected="report"'
    retryable = False
    retry_reason = "files were not loaded as a whole; another try finds the same files"

    def __init__(self, message: str, *, files: tuple[str, ...], rejected: int) -> None:
        super().__init__(message)
        self.files = files
        self.rejected = rejected


def error_class(name: str) -> type[SnowpipeError]:
    """Find an error's class by its name in a report or a log line; SnowpipeError where there is none."""
    kind = globals().get(name)
    return kind if isinstance(kind, type) and issubclass(kind, SnowpipeError) else SnowpipeError


def error_line(kind: str, text: object) -> str:
    """An error as a task's log has it, with the code by which the documentation lists its class."""
    found = error_class(kind)
    code = f" [{found.error_id}]" if found.__name__ == kind else ""
    return f"snowpipe error: {kind}: {text}{code}"


# pragma: no mutate end


# -- Whether a task should be retried, and when at the earliest ------------------------------------------
#
# The error's class knows; it is found in a chain of exceptions, or in the text that another process left.

_NAMED = re.compile(r"snowpipe error: (?P<kind>\w+): ")


class Worth(StrEnum):
    """Whether the task should be retried."""

    RETRY = "retry"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class RetryAdvice:
    """What to do about an error."""

    worth: Worth
    reason: str
    delay_seconds: float | None = None


def advise(error: BaseException) -> RetryAdvice:
    """Decide whether to retry, by the error itself or the first one in its chain that is known."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if (known := _known(current)) is not None:
            worth = Worth.RETRY if known.retryable else Worth.FAIL
            return RetryAdvice(worth, known.retry_reason, known.retry_delay)
        current = current.__cause__ or current.__context__
    return RetryAdvice(Worth.UNKNOWN, "no error of this provider")


def _known(error: BaseException) -> SnowpipeError | type[SnowpipeError] | None:
    if isinstance(error, SnowpipeError):
        return error
    named = _NAMED.search(str(error))
    kind = error_class(named["kind"]) if named else None
    return kind if named and kind and kind.__name__ == named["kind"] else None

"""Whether running a task again can mend an error, and when at the earliest."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from airflow_provider_snowpipe.streaming import errors
from airflow_provider_snowpipe.streaming.errors import SnowpipeError

_NAMED = re.compile(r"snowpipe error: (?P<kind>\w+): ")
_CONNECTOR_TRANSIENT = range(250_000, 252_000)
"""Numbers of Snowflake's connector for a network that fails (``errorcode.py``, 4.8)."""

_CONNECTOR_TRANSFER = range(253_000, 254_000)
"""Its numbers for files that could not be moved to or from a stage."""

_SIGN_IN_REFUSED = "Failed to connect to DB"
"""The connector gives a refused sign-in the number of a broken network (250001); only the text differs."""


class Worth(StrEnum):
    """What another try is worth."""

    RETRY = "retry"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class RetryAdvice:
    """What to do about an error.

    :param worth: try again, do not, or nothing is known about it
    :param reason: why, in words
    :param delay_seconds: wait this long at least, None for the task's own delay
    """

    worth: Worth
    reason: str
    delay_seconds: float | None = None


_RULES: dict[type[SnowpipeError], RetryAdvice] = {
    errors.ConfigurationError: RetryAdvice(Worth.FAIL, "a setting or a plan is wrong; it stays wrong"),
    errors.EncodingError: RetryAdvice(Worth.FAIL, "a value has no JSON form; it will have none next time"),
    errors.ContinuityError: RetryAdvice(Worth.FAIL, "the rows are out of order; another try sends the same"),
    errors.SourcePositionError: RetryAdvice(Worth.FAIL, "the committed position is not in the source"),
    errors.PartlyStreamedError: RetryAdvice(
        Worth.FAIL, "a file is streamed in part; another try finds it so, too"
    ),
    errors.SourceUnavailableError: RetryAdvice(Worth.RETRY, "the source may answer again"),
    errors.AuthenticationError: RetryAdvice(
        Worth.FAIL, "the credentials are refused; repeating may lock the user"
    ),
    errors.RowsRejectedError: RetryAdvice(
        Worth.FAIL, "rows were skipped and the tokens have moved on: another try would not see those rows"
    ),
    errors.FilesRejectedError: RetryAdvice(
        Worth.FAIL, "files were not loaded as a whole; another try finds the same files"
    ),
    errors.FilesGivenTwiceError: RetryAdvice(
        Worth.FAIL, "the files were loaded another way; another try finds the same load"
    ),
    errors.PipeNotFoundError: RetryAdvice(Worth.FAIL, "the pipe, its table or a right is missing"),
    errors.ChannelFencedError: RetryAdvice(
        Worth.FAIL, "a newer writer has the channel: another try would shut it out"
    ),
    errors.PipeFailedOverError: RetryAdvice(Worth.RETRY, "the pipe moved; a new client finds it", 5.0),
    errors.ChannelInvalidError: RetryAdvice(
        Worth.RETRY, "the channel's session is broken; opening it again resumes from its token"
    ),
    errors.UncommittedRowsError: RetryAdvice(Worth.RETRY, "rows wait for their commit", 30.0),
    errors.WriterActiveError: RetryAdvice(Worth.RETRY, "somebody else writes to the channel", 60.0),
    errors.CommitTimeoutError: RetryAdvice(
        Worth.RETRY, "the commit is late; another try resumes from the token"
    ),
    errors.UnfitRowsError: RetryAdvice(Worth.FAIL, "the same rows would not fit the table again"),
    errors.DeadLetterError: RetryAdvice(Worth.RETRY, "the dead letters' place may be reached again"),
    errors.NothingStagedError: RetryAdvice(Worth.RETRY, "no file is staged yet"),
    errors.StagedFileDiffersError: RetryAdvice(Worth.FAIL, "another content is staged under that name"),
    errors.PipeBusyError: RetryAdvice(Worth.RETRY, "files wait in the pipe's queue", 60.0),
    errors.PipeNotRunningError: RetryAdvice(Worth.RETRY, "the pipe may be mended, or resumed", 60.0),
    errors.FilesNotLoadedError: RetryAdvice(Worth.RETRY, "the pipe may still load the files"),
    errors.RetriesExhaustedError: RetryAdvice(Worth.RETRY, "the service is unreachable or overloaded"),
}


def advise(error: BaseException) -> RetryAdvice:
    """Say what another try is worth, by the error itself or the first one in its chain that is known.

    :param error: what ended the task; an error of the Spark job is known by its text
    """
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        advice = _of(current)
        if advice is not None:
            return advice
        current = current.__cause__ or current.__context__
    return RetryAdvice(Worth.UNKNOWN, "no error of this provider")


def is_permanent(error: SnowpipeError) -> bool:
    """True when no other try can mend the error, so that the task is to fail at once."""
    return advise(error).worth is Worth.FAIL


def _of(error: BaseException) -> RetryAdvice | None:
    if isinstance(error, errors.SqlError):
        return _of_sql(error)
    if isinstance(error, SnowpipeError):
        return _with_delay(error, _by_class(type(error)))
    named = _NAMED.search(str(error))
    if named is not None:
        kind = getattr(errors, named["kind"], None)
        if isinstance(kind, type) and issubclass(kind, SnowpipeError):
            return _by_class(kind)
    return None


def _by_class(kind: type[SnowpipeError]) -> RetryAdvice | None:
    return next((_RULES[base] for base in kind.__mro__ if base in _RULES), None)


def _with_delay(error: SnowpipeError, advice: RetryAdvice | None) -> RetryAdvice | None:
    if advice is not None and isinstance(error, errors.RetriesExhaustedError) and error.retry_after:
        return RetryAdvice(advice.worth, f"{advice.reason}; it asked to wait", error.retry_after)
    if advice is None and isinstance(error, errors.ApiError):
        return RetryAdvice(Worth.FAIL, f"the service refuses the request (HTTP {error.http_status})")
    return advice


def _of_sql(error: errors.SqlError) -> RetryAdvice:
    if _SIGN_IN_REFUSED in str(error):
        return _RULES[errors.AuthenticationError]
    if error.errno is None or error.errno in _CONNECTOR_TRANSIENT:
        return RetryAdvice(Worth.RETRY, "Snowflake could not be reached for SQL")
    if error.errno in _CONNECTOR_TRANSFER:
        return RetryAdvice(Worth.RETRY, "a file could not be moved to the stage")
    return RetryAdvice(Worth.FAIL, f"the statement is refused (error {error.errno})")

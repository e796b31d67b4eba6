"""Everything that can go wrong with a channel, as one hierarchy.

Each message names the channel or pipe, says what happened and what to do about it. No message and no
attribute ever holds a credential or a row.
"""

from __future__ import annotations


class SnowpipeError(Exception):
    """Base of every error this package raises on purpose."""


class ConfigurationError(SnowpipeError, ValueError):
    """A parameter, a plan or a connection is wrong; nothing was sent."""


class OffsetTokenError(ConfigurationError):
    """An offset token does not have the format that the caller declared."""


class SourcePositionError(SnowpipeError):
    """The committed position is not in the source (any more): resuming would lose or double rows."""


class PartlyStreamedError(SnowpipeError):
    """A file is streamed in part, so that COPY, which takes whole files, would double its first rows."""


class SourceUnavailableError(SnowpipeError):
    """The source does not answer; what was read before stands, and another try goes on from there."""


class ContinuityError(SnowpipeError):
    """The caller's rows are not in order after the last accepted one; nothing was sent."""


class EncodingError(SnowpipeError, ValueError):
    """A value or a type has no faithful NDJSON form; nothing was sent."""


class AuthenticationError(SnowpipeError):
    """The service refuses the credentials, or they cannot be used."""


class RetriesExhaustedError(SnowpipeError):
    """The service stayed unreachable or overloaded for longer than the retry budget.

    :param message: what happened, in words
    :param retry_after: seconds that the service asked to wait, None where it did not ask
    """

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class WriterActiveError(SnowpipeError):
    """Somebody writes to a channel that must be quiet for what was asked; nothing was changed."""


class OffsetTokenMovedError(WriterActiveError):
    """A channel's committed token is not the one that setting it was planned on.

    :param message: what happened, with both tokens
    :param channel: the channel's name
    :param expected: the committed token that was expected, None for NULL
    :param committed: the committed token that was found, None for NULL
    """

    def __init__(self, message: str, *, channel: str, expected: str | None, committed: str | None) -> None:
        super().__init__(message)
        self.channel = channel
        self.expected = expected
        self.committed = committed


class ApiError(SnowpipeError):
    """The service refused a request in a way that repeating cannot mend.

    :param message: what happened, in words
    :param http_status: the status of the answer
    :param code: the service's stable code (``ERR_…``), empty where the answer had none
    """

    def __init__(self, message: str, *, http_status: int, code: str = "") -> None:
        super().__init__(message)
        self.http_status = http_status
        self.code = code


class PipeNotFoundError(ApiError):
    """The database, schema, pipe or table does not exist, or the role may not use it."""


class PipeFailedOverError(ApiError):
    """The pipe moved (HTTP 410): every channel of this client is dead, make a new client."""


class ChannelError(ApiError):
    """A request on one channel was refused.

    :param channel: the channel's name
    """

    def __init__(self, message: str, *, channel: str, http_status: int, code: str = "") -> None:
        super().__init__(message, http_status=http_status, code=code)
        self.channel = channel


class ChannelFencedError(ChannelError):
    """Another writer opened the channel later, so this one may not write to it any more."""


class ChannelInvalidError(ChannelError):
    """The channel's session is broken (a gap, a dropped pipe): open it again and replay from its token."""


class UncommittedRowsError(ChannelError):
    """The channel still holds received rows that are not committed yet."""


class SqlError(SnowpipeError):
    """A SQL statement about channels failed, or the sign-in for it.

    :param message: what happened, in words
    :param errno: the connector's number of the error, None where it has none
    """

    def __init__(self, message: str, *, errno: int | None = None) -> None:
        super().__init__(message)
        self.errno = errno


class UnfitRowsError(SnowpipeError):
    """Rows do not fit the table's columns; neither they nor the rest of their batch were sent."""


class DeadLetterError(SnowpipeError):
    """Rows that do not fit the table could not be put aside, so that nothing after them was sent."""


class NothingStagedError(SnowpipeError):
    """A stage holds no file of those that were asked for."""


class StagedFileDiffersError(SnowpipeError):
    """A stage has another content under the name of a file that was to be staged; it stays as it is."""


class PipeBusyError(SnowpipeError):
    """Files wait in a file pipe's queue, which what was asked would lose; nothing was changed."""


class PipeNotRunningError(SnowpipeError):
    """A file pipe is paused, stopped or stalled, so that it loads nothing."""


class FilesNotLoadedError(SnowpipeError):
    """Files that a file pipe has taken are not in the table after the time that was given them."""


class CommitTimeoutError(SnowpipeError):
    """A channel did not commit its target in time; the rows may still be committed later.

    :param channel: the channel's name
    :param committed: the committed offset token last seen, None for NULL
    :param target: the offset token waited for
    """

    def __init__(self, message: str, *, channel: str, committed: str | None, target: str) -> None:
        super().__init__(message)
        self.channel = channel
        self.committed = committed
        self.target = target


class RowsRejectedError(SnowpipeError):
    """The service skipped rows that do not fit the table.

    :param channel: the channel's name
    :param rejected: number of rows skipped since the channel was opened by this run
    :param last_error: the service's own text for the last of them, None where it gave none
    """

    def __init__(self, message: str, *, channel: str, rejected: int, last_error: str | None) -> None:
        super().__init__(message)
        self.channel = channel
        self.rejected = rejected
        self.last_error = last_error


class FilesGivenTwiceError(SnowpipeError):
    """Files were loaded another way already; loading them this way would double their rows.

    :param files: their paths below the stage
    """

    def __init__(self, message: str, *, files: tuple[str, ...]) -> None:
        super().__init__(message)
        self.files = files


class FilesRejectedError(SnowpipeError):
    """Files were not loaded, or only some of their rows.

    :param files: their paths below the stage
    :param rejected: records in error
    """

    def __init__(self, message: str, *, files: tuple[str, ...], rejected: int) -> None:
        super().__init__(message)
        self.files = files
        self.rejected = rejected

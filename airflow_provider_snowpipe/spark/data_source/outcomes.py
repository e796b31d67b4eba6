"""What a task tells the driver of its channels."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChannelOutcome:
    """What a task did on one channel: a hint for the driver, never evidence.

    :param channel: the channel's name
    :param from_token: the committed offset token that the task found, None for NULL
    :param target_token: the token that proves the task's rows committed, None if it had none
    :param rows: rows sent by this attempt
    :param bytes: their size as NDJSON
    :param inserted_before: rows that the service had inserted when the task looked
    :param errors_before: rows that it had skipped before the batch
    :param append_seconds: time until the service had received the rows
    :param commit_seconds: time from then until they were committed
    :param requests: appends that the service answered
    :param request_seconds: time that their answers took together
    :param longest_request: the longest of them, seconds
    :param retries: requests that had to be repeated
    :param dead_lettered: rows put aside by this attempt, not among ``rows``
    :param superseded_by: the later batch that the channel has committed; nothing was done then
    """

    channel: str
    from_token: str | None = None
    target_token: str | None = None
    rows: int = 0
    bytes: int = 0
    inserted_before: int = 0
    errors_before: int = 0
    append_seconds: float = 0.0
    commit_seconds: float = 0.0
    requests: int = 0
    request_seconds: float = 0.0
    longest_request: float = 0.0
    retries: int = 0
    dead_lettered: int = 0
    superseded_by: int | None = None


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """What a task did.

    :param partition: the partition's number
    :param attempt: the attempt's number
    :param channels: the channels that it worked on
    :param complete: False if the scoped token's life was too short
    :param error_type: class name of an error that no further attempt can mend, None for success
    :param error: its text
    :param for_another: True if another task knows more about the error
    """

    partition: int
    attempt: int
    channels: tuple[ChannelOutcome, ...] = ()
    complete: bool = True
    error_type: str | None = None
    error: str = ""
    for_another: bool = False

"""The channel sink: what one Spark task does with one partition of the source.

It opens the channel, which shuts out every older attempt, goes on just after the committed token that it
finds then, and ends only when the service has committed what it sent.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from airflow_provider_snowpipe.spark.file_source import FileGroup
from airflow_provider_snowpipe.spark.lines import RowBlock, row_blocks
from airflow_provider_snowpipe.spark.plan import JobPlan
from airflow_provider_snowpipe.spark.resume import OnDataLoss, Resume, files_to_read, resume_after
from airflow_provider_snowpipe.streaming.auth import ScopedToken
from airflow_provider_snowpipe.streaming.channel import Channel
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.errors import (
    AuthenticationError,
    ConfigurationError,
    ContinuityError,
    EncodingError,
    PipeNotFoundError,
    SnowpipeError,
    SourcePositionError,
)
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.names import PipeName
from airflow_provider_snowpipe.streaming.offsets import FileLineOffset, Offset

APPEND_BYTES = 1 << 20
"""One append to the channel, which fills its batches with them; small pieces fill a batch more evenly."""
_TOKEN_LIFE_USED = 0.75
"""Share of the scoped token's remaining life in which a task reads; the rest is for the commit."""
_TEXT_GROWTH = 8
"""A line of text may grow this much as JSON: six bytes for a control character, and the column's name."""

_FINAL = (
    AuthenticationError,
    ConfigurationError,
    ContinuityError,
    EncodingError,
    PipeNotFoundError,
    SourcePositionError,
)
"""Errors that another attempt of the same task would meet again: reported, not raised."""


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """What a task needs to know besides its partition; holds no credential.

    :param account_url: the account's address
    :param ca_bundle: PEM file of trusted roots, None for the environment's or the public ones
    :param pipe: the pipe
    :param format: the source's format
    :param text_column: the column for lines of text
    :param growing: True if the last file's unterminated line belongs to a later run
    :param on_data_loss: what to do if the committed file is gone
    :param wait_for_commit: False ends the task when its rows are received
    :param commit_timeout: seconds to wait for the commit
    :param limits: when a batch is closed
    """

    account_url: str
    ca_bundle: str | None
    pipe: PipeName
    format: Literal["ndjson", "text"]
    text_column: str
    growing: bool
    on_data_loss: OnDataLoss
    wait_for_commit: bool
    commit_timeout: float
    limits: BatchLimits

    @classmethod
    def of(cls, plan: JobPlan) -> SinkSettings:
        """The part of a plan that travels to the executors."""
        return cls(
            account_url=plan.account_url,
            ca_bundle=plan.ca_bundle,
            pipe=plan.pipe,
            format=plan.source.format,
            text_column=plan.source.text_column,
            growing=plan.source.growing,
            on_data_loss=plan.on_data_loss,
            wait_for_commit=plan.wait_for_commit,
            commit_timeout=plan.commit_timeout,
            limits=plan.limits,
        )


@dataclass(frozen=True, slots=True)
class PartitionWork:
    """One partition with its channel and the place found by the driver.

    :param channel: the channel's name
    :param group: the partition's files
    :param committed: the committed position when ``resume`` was found, None for NULL
    :param resume: the place just after it; found again if the channel has moved on
    """

    channel: str
    group: FileGroup
    committed: FileLineOffset | None
    resume: Resume


@dataclass(frozen=True, slots=True)
class PartitionResult:
    """What one task achieved.

    :param channel: the channel's name
    :param position: the last position that the service has, None if the partition has no row
    :param rows: rows sent by this attempt
    :param bytes: their size as NDJSON
    :param append_seconds: time until the service had received them
    :param commit_seconds: time from then until they were committed
    :param retries: requests that had to be repeated
    :param complete: False if the scoped token's life was too short for everything; another round with a
        fresh one goes on from what is committed then
    :param error_type: class name of an error that no further attempt can mend, None for success
    :param error: its text
    """

    channel: str
    position: FileLineOffset | None = None
    rows: int = 0
    bytes: int = 0
    append_seconds: float = 0.0
    commit_seconds: float = 0.0
    retries: int = 0
    complete: bool = True
    error_type: str | None = None
    error: str = field(default="")


def load_partition(settings: SinkSettings, token: ScopedToken, work: PartitionWork) -> PartitionResult:
    """Send one partition's rows that are not committed yet; runs in a Spark task.

    :param settings: what the tasks of a run have in common
    :param token: the driver's scoped token
    :param work: the partition
    :return: the result; an error that another attempt would meet again is part of it
    :raises SnowpipeError: for everything that another attempt may mend, such as a fenced channel
    """
    try:
        return _Sink(settings, token, work).load()
    except _FINAL as error:
        if isinstance(error, AuthenticationError) and token.remaining_seconds() <= 0:
            return PartitionResult(work.channel, complete=False)
        return PartitionResult(work.channel, error_type=type(error).__name__, error=str(error))


class _Sink:
    def __init__(self, settings: SinkSettings, token: ScopedToken, work: PartitionWork) -> None:
        self._settings = settings
        self._token = token
        self._work = work
        self._stop_at = time.time() + _TOKEN_LIFE_USED * token.remaining_seconds()
        self._rows = 0
        self._bytes = 0

    def load(self) -> PartitionResult:
        settings, name = self._settings, self._work.channel
        with (
            SnowpipeClient(
                settings.account_url, self._token, settings.pipe, ca_bundle=settings.ca_bundle
            ) as client,
            Channel.open(client, name, FileLineOffset, limits=settings.limits) as channel,
        ):
            committed = _file_line(channel.committed, name)
            began = time.monotonic()
            complete = self._send(channel, committed)
            channel.flush()
            received = time.monotonic()
            sent = _file_line(channel.sent, name)
            if sent is not None and settings.wait_for_commit:
                channel.wait_for_commit(sent, timeout=settings.commit_timeout)
            waited = time.monotonic() - received
        return PartitionResult(
            channel=name,
            position=sent or committed,
            rows=self._rows,
            bytes=self._bytes,
            append_seconds=received - began,
            commit_seconds=waited,
            retries=client.retries,
            complete=complete,
        )

    def _send(self, channel: Channel, committed: FileLineOffset | None) -> bool:
        """Append what is not committed; False if it stopped ahead of the scoped token's end."""
        resume = self._work.resume
        if committed != self._work.committed:
            resume = resume_after(
                self._work.group, committed, self._settings.on_data_loss, self._work.channel
            )
        for name, block in self._blocks(resume):
            if time.time() >= self._stop_at:
                return False
            body = self._body(block, name)
            channel.append(
                body,
                FileLineOffset(name, block.first_line),
                FileLineOffset(name, block.last_line),
                rows=block.rows,
            )
            self._rows += block.rows
            self._bytes += len(body)
        return True

    def _blocks(self, resume: Resume) -> Iterator[tuple[str, RowBlock]]:
        limits = self._settings.limits
        largest = min(APPEND_BYTES, limits.raw_bytes, limits.wire_bytes // 2)
        if self._settings.format == "text":
            largest //= _TEXT_GROWTH
        for file, place, keep_tail in files_to_read(self._work.group, resume, growing=self._settings.growing):
            for block in row_blocks(
                file,
                after_line=place.after_line,
                offset=place.offset,
                keep_tail=keep_tail,
                max_bytes=max(largest, 1),
                max_rows=limits.rows,
            ):
                yield file.name, block

    def _body(self, block: RowBlock, file: str) -> memoryview:
        if self._settings.format == "ndjson":
            return block.body
        from airflow_provider_snowpipe.spark.text_format import text_rows

        return text_rows(block, self._settings.text_column, file)


def _file_line(position: Offset | None, channel: str) -> FileLineOffset | None:
    if position is None or isinstance(position, FileLineOffset):
        return position
    raise SnowpipeError(f"channel {channel!r} holds {position!r} instead of a file:line position")

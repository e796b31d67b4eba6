"""Appending a bounded number of rows to one channel, exactly once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from airflow_provider_snowpipe.streaming.batch import AdmittedParts, Part
from airflow_provider_snowpipe.streaming.channel import Channel
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.commits import decide
from airflow_provider_snowpipe.streaming.errors import RowsRejectedError, SourcePositionError
from airflow_provider_snowpipe.streaming.offsets import Offset
from airflow_provider_snowpipe.streaming.reset import TokenChange, compare_and_set
from airflow_provider_snowpipe.streaming.rows import NumberedRows, check_batch
from airflow_provider_snowpipe.streaming.status import ChannelStatus

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SmallLoad:
    """What an append did.

    :param channel: the channel's name
    :param from_token: the committed token before, None for NULL
    :param target_token: the token that proves the rows committed, None when there were none
    :param rows: rows sent
    :param skipped: rows left out because they were committed already
    :param raw_bytes: bytes of NDJSON sent
    :param rejected: rows that the service skipped because they do not fit the table
    :param rejected_baseline: rows of the channel that it had skipped before
    :param committed: True when the rows were seen to be committed
    :param append_seconds: time until the service had received them
    :param commit_seconds: time from then until they were committed, 0 when not waited for
    :param requests: appends that the service answered
    :param request_seconds: time that their answers took together
    :param longest_request: the longest of them, seconds
    :param retries: requests that had to be repeated
    :param dead_lettered: rows put aside because they do not fit the table, not among ``rows``
    :param unknown_columns: rows that have a key which matches no column of the table, by key
    """

    channel: str
    from_token: str | None
    target_token: str | None
    rows: int
    skipped: int
    raw_bytes: int
    rejected: int
    committed: bool
    rejected_baseline: int = 0
    append_seconds: float = 0.0
    commit_seconds: float = 0.0
    requests: int = 0
    request_seconds: float = 0.0
    longest_request: float = 0.0
    retries: int = 0
    dead_lettered: int = 0
    unknown_columns: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AppendRules:
    """How rows are appended.

    :param batch: the batch that the rows' positions are of, None where a column numbers them
    :param on_error: ``continue`` reports rows that the service skips, everything else raises
    :param on_older_batch: ``fail`` raises when the channel has gone on to a later batch, ``skip`` sends none
    :param wait_for_commit: False returns when the rows are received
    :param commit_timeout: seconds to wait for the commit, and before it for that of an earlier writer's rows
    """

    batch: int | None = None
    on_error: str = "abort"
    on_older_batch: str = "fail"
    wait_for_commit: bool = True
    commit_timeout: float = 600.0


def rows_to_send(
    rows: NumberedRows, committed: Offset | None, rules: AppendRules, *, channel: str
) -> NumberedRows:
    """Leave out what the channel has committed, or refuse what cannot be told.

    :param rows: all rows
    :param committed: the committed position
    :param rules: how rows are appended
    :param channel: the channel, for errors
    :raises SourcePositionError: if the channel has gone on to a later batch, or the rows have changed
    """
    if rules.batch is not None and not check_batch(rows, committed, rules.batch, channel=channel):
        if rules.on_older_batch == "skip":
            return NumberedRows((), ())
        raise SourcePositionError(
            f"channel {channel!r} has committed {committed}, which lies after batch {rules.batch}: a channel "
            "goes "
            "forward only, so these rows cannot be told from those that are loaded. Give a later batch or "
            "another channel, or choose on_older_batch='skip' where batch "
            f"{rules.batch} is known to be loaded"
        )
    return rows.after(committed)


def rejected_by_earlier_tries(
    rows: NumberedRows, left: NumberedRows, found: ChannelStatus, offset_class: type[Offset]
) -> int:
    """Rows that the service has rejected of these rows, when an earlier try had sent them; at least so many.

    A channel counts rejected rows over its whole life and does not say of which rows they were. It says where
    the last one lies, which is among these rows only if one of them was rejected. So a try whose worker was
    killed, or that did not wait, leaves what the next one has to know, on every Airflow.

    :param rows: all rows
    :param left: those that are not committed
    :param found: the channel's status when it was opened
    :param offset_class: the format of the positions
    """
    last = found.last_error_offset_upper_bound
    if last is None or found.rows_error_count == 0 or len(left.lines) == len(rows.lines):
        return 0
    position = offset_class.parse(last, channel=found.channel)
    return int(rows.offsets[0] <= position <= rows.offsets[-1])


class RowsAdmitted(Protocol):
    """What rows pass before they are sent."""

    @property
    def dead_lettered(self) -> int:
        """Rows put aside so far."""

    @property
    def unknown_columns(self) -> Mapping[str, int]:
        """Rows so far that have a key which matches no column, by key."""

    def admit(self, part: Part) -> Part | None:
        """The part with the rows that are to be sent, None if it has none."""

    def settle(self, committed: Offset | None) -> None:
        """Clear away what an attempt left that was shut out meanwhile."""


def append_to_channel(
    client: SnowpipeClient,
    channel: str,
    rows: NumberedRows,
    offset_class: type[Offset],
    rules: AppendRules,
    admission: Callable[[Offset | None], RowsAdmitted] | None = None,
) -> SmallLoad:
    """Append rows after the committed ones, and wait for their commit.

    :param client: the pipe's client
    :param channel: the channel's name
    :param rows: all rows, in order
    :param offset_class: the format of their positions
    :param rules: how rows are appended
    :param admission: makes the check of rows before they are sent, from the committed position
    :raises UnfitRowsError: if a row does not fit and there is no place for it; it was not sent
    :raises UncommittedRowsError: if an earlier writer's rows are not committed in time; nothing was sent
    :raises RowsRejectedError: if the service skipped rows and that is an error
    :raises CommitTimeoutError: if the commit takes too long
    """
    status: ChannelStatus | None = None
    with Channel.open(
        client,
        channel,
        offset_class,
        gaps_legal=rules.batch is None,
        uncommitted_timeout=rules.commit_timeout,
        # What is uncommitted may be an earlier run's batch, which is not among these rows.
        discard_uncommitted=False,
    ) as writer:
        from_token = writer.status_at_open.committed
        wanted = rows_to_send(rows, writer.committed, rules, channel=channel)
        began = time.monotonic()
        admitted = None if admission is None else admission(writer.committed)
        passed = _append(writer, wanted, admitted)
        writer.flush()
        received = time.monotonic()
        if rules.wait_for_commit and passed is None:
            status = writer.wait_for_commit(timeout=rules.commit_timeout)
            if admitted is not None:
                admitted.settle(writer.sent)
        committed = time.monotonic()
        counters, found = writer.counters, writer.status_at_open
    if passed is not None:
        _set_token(client, TokenChange(channel, str(passed), found.committed))
        status = found
    baseline = found.rows_error_count - rejected_by_earlier_tries(rows, wanted, found, offset_class)
    if status is None and not wanted.lines:
        status = found
    rejected = 0 if status is None else decide(status, None, rejected_baseline=baseline).rejected
    load = SmallLoad(
        channel=channel,
        from_token=from_token,
        target_token=str(rows.offsets[-1]) if rows.offsets and wanted.offsets else from_token,
        rows=counters.rows,
        skipped=len(rows.lines) - len(wanted.lines),
        raw_bytes=counters.raw_bytes,
        rejected=rejected,
        committed=rules.wait_for_commit or not wanted.lines or passed is not None,
        rejected_baseline=baseline,
        append_seconds=received - began,
        commit_seconds=committed - received if status is not None else 0.0,
        requests=counters.requests,
        request_seconds=counters.seconds,
        longest_request=counters.longest_seconds,
        retries=client.retries,
        dead_lettered=0 if admitted is None else admitted.dead_lettered,
        unknown_columns={} if admitted is None else admitted.unknown_columns,
    )
    if rejected and rules.on_error != "continue":
        last = None if status is None else status.last_error_message
        raise RowsRejectedError(
            f"channel {channel!r}: the service rejected {rejected} of {len(rows.lines)} row(s) and committed "
            f"the others; the last error: {last or 'no message'}. Fix those rows and append them as a batch "
            "of their own, or accept them with on_error='continue'",
            channel=channel,
            rejected=rejected,
            last_error=last,
        )
    return load


def _append(writer: Channel, rows: NumberedRows, admitted: RowsAdmitted | None) -> Offset | None:
    """Append the rows that are admitted.

    :return: the last position, if none of the rows is sent, so that no append carries it
    """
    parts = AdmittedParts(_parts(rows), (lambda part: part) if admitted is None else admitted.admit)
    for part in parts:
        writer.append(part.body, part.start, part.end, rows=part.rows)
    return parts.passed


def _parts(rows: NumberedRows) -> Iterator[Part]:
    first = 0
    for body, start, end, count in rows.parts():
        yield Part(body, start, end, count, rows.offsets[first : first + count].__getitem__)
        first += count


def _set_token(client: SnowpipeClient, change: TokenChange) -> None:
    """Set the token behind rows of which none is sent, as opening a channel with a token does."""

    def set_token(channel: str, token: str) -> None:
        client.open_channel(channel, offset_token=token)

    compare_and_set(client, change, set_token=set_token)

"""What the driver does before a batch's rows move, and the gate that they pass afterwards."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

from airflow_provider_snowpipe.bulk.statement_client import statement_rows
from airflow_provider_snowpipe.spark.data_source.agreement import forget
from airflow_provider_snowpipe.spark.data_source.kept_offsets import keep_backup, last_tokens
from airflow_provider_snowpipe.spark.data_source.options import WriteOptions
from airflow_provider_snowpipe.spark.data_source.parts import (
    GIVEN_WRITER,
    BatchIdentity,
    DigestedShare,
    channel_shares,
    channel_source,
    without_empty,
)
from airflow_provider_snowpipe.spark.data_source.task import (
    BatchesSeen,
    Prepared,
    TaskOutcome,
    compares_before_sending,
)
from airflow_provider_snowpipe.spark.driver.credentials import (
    CREDENTIALS_FILE_VARIABLE,
    CREDENTIALS_VARIABLE,
    standing_credentials,
)
from airflow_provider_snowpipe.spark.driver.outcome import (
    final_error,
    refuse_missing_commits,
    refuse_rejected_rows,
    settle,
)
from airflow_provider_snowpipe.spark.driver.report import ChannelReport
from airflow_provider_snowpipe.spark.sources.tables.rows import RowEncoder
from airflow_provider_snowpipe.streaming.admin import mark_reported
from airflow_provider_snowpipe.streaming.auth import Credentials, ScopedToken
from airflow_provider_snowpipe.streaming.channel import take_over
from airflow_provider_snowpipe.streaming.checkpoint import Checkpoint, check_balance
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.errors import (
    AuthenticationError,
    ConfigurationError,
    ContinuityError,
    OffsetTokenError,
    RowsRejectedError,
    SnowpipeError,
    SourcePositionError,
    WriterActiveError,
)
from airflow_provider_snowpipe.streaming.names import full_name
from airflow_provider_snowpipe.streaming.offsets import (
    BatchDigestOffset,
    IntegerOffset,
    LexicographicOffset,
    Offset,
)
from airflow_provider_snowpipe.streaming.progress import (
    STATUS_NAMES_PER_REQUEST,
    ChannelStatus,
    ListedChannel,
    show_channels,
)
from airflow_provider_snowpipe.streaming.table_schema import TableColumn, columns_of_describe, table_of

if TYPE_CHECKING:
    import pyarrow as pa


log = logging.getLogger(__name__)

_FENCED_AT_ONCE = 8


def _client(options: WriteOptions, credentials: Credentials | ScopedToken) -> SnowpipeClient:
    return SnowpipeClient(options.account_url, credentials, options.pipe, ca_bundle=options.ca_bundle)


def prepare(
    options: WriteOptions, *, integer_offsets: bool, variants: frozenset[str] = frozenset()
) -> Prepared:
    """Make sure that the pipe is there and the channels fit the options, and get a scoped token.

    :raises SourceChangedError: if a channel has rows of another offset column or number of partitions
    :raises ImbalanceError: if a channel counts other rows than its checkpoint, with ``onImbalance=fail``
    :raises ConfigurationError: if the offset backup cannot be read or written
    """
    token = driver_token(options)
    with _client(options, token) as client:
        client.pipe_info()
        prepared = Prepared(
            token,
            BatchesSeen(),
            checked_columns(options),
            integer_offsets,
            variants,
            known=last_tokens(client, options.offset_backup),
        )
        if options.partitions is None:
            return prepared
        # Channels beyond the own ones are there if there were more partitions once.
        own = [options.channel(number) for number in range(options.partitions)]
        rounded = -(-options.partitions // STATUS_NAMES_PER_REQUEST) * STATUS_NAMES_PER_REQUEST
        statuses = client.channel_statuses([options.channel(number) for number in range(rounded)])
        seen = _seen(options, statuses, integer_offsets)
        if compares_before_sending(options):
            statuses |= _fenced(client, [name for name in own if statuses[name].exists])
            seen = _seen(options, statuses, integer_offsets)
        _check_balances(options, [statuses[name] for name in own], integer_offsets)
        return replace(prepared, seen=seen)


def forget_agreement(options: WriteOptions, seen: BatchesSeen, batch: int | None) -> None:
    """Drop the channels by which a write's tasks have agreed on a batch, where they had to."""
    if compares_before_sending(options) and batch in seen.batches():
        with _client(options, driver_token(options)) as client:
            forget(client, [options.channel(number) for number in range(options.partitions or 0)])


def _fenced(client: SnowpipeClient, channels: Sequence[str]) -> dict[str, ChannelStatus]:
    """Shut out older writers, and wait for what they left uncommitted, so that the tokens stay."""
    if not channels:
        return {}
    with ThreadPoolExecutor(_FENCED_AT_ONCE) as pool:
        list(pool.map(partial(take_over, client), channels))
    return client.channel_statuses(channels)


def _seen(options: WriteOptions, statuses: dict[str, ChannelStatus], integer_offsets: bool) -> BatchesSeen:
    if options.offset_column is not None:
        for channel, status in statuses.items():
            channel_source(options, channel, None, integer_offsets=integer_offsets).start(status)
    return BatchesSeen(
        {name: status.committed for name, status in statuses.items() if status.committed is not None}
    )


def _check_balances(options: WriteOptions, statuses: Iterable[ChannelStatus], integer_offsets: bool) -> None:
    """Compare what channels count with their checkpoints, whoever wrote them."""
    kind = _position_class(options, integer_offsets)
    for status in statuses:
        name, token = status.channel, status.committed
        sent = 0 if token is None else Checkpoint.parse(token, kind, channel=name).rows
        check_balance(name, status.rows_counted - sent, options.on_imbalance)


def _position_class(options: WriteOptions, integer_offsets: bool) -> type[Offset]:
    if options.offset_column is None:
        return BatchDigestOffset
    return IntegerOffset if integer_offsets else LexicographicOffset


def settle_batch(
    options: WriteOptions, outcomes: Sequence[TaskOutcome | None], batch: str, *, integer_offsets: bool
) -> tuple[ChannelReport, ...]:
    """Believe the committed tokens, not the messages; the batch succeeds only if this returns.

    :return: what the batch did on each of its channels, nothing if it had no rows
    :raises CommitTimeoutError: if a channel's committed token is behind its target
    :raises ConfigurationError: if the offset backup cannot be written
    :raises ImbalanceError: if a channel counts other rows than its checkpoint, with ``onImbalance=fail``
    :raises RowsRejectedError: if the service skipped rows, unless ``onError`` is ``continue``
    """
    tasks = _successful(outcomes, batch)
    channels = [channel for task in tasks for channel in task.channels]
    superseded = next((task.superseded for task in tasks if task.superseded is not None), None)
    if superseded is not None:
        raise WriterActiveError(
            f"{batch}: channel {superseded[0]!r} has committed batch {superseded[1]} of this query already, "
            "so nothing was sent on it. Another driver runs the query, or an older copy of its checkpoint "
            "was put back: run it once, with its latest checkpoint"
        )
    _refuse_shared(channels)
    has_sent = any(channel.target_token is not None for channel in channels)
    if options.partitions is not None and len(tasks) != options.partitions and has_sent:
        raise ConfigurationError(
            f"the plan has {len(tasks)} partitions, option partitions is {options.partitions}: rows are "
            "committed, but a repeated run might spread them in another way. Fix the plan's number by "
            f"repartition({options.partitions}, column)"
        )
    reports = [channel for channel in channels if channel.target_token is not None or channel.dead_lettered]
    if not reports and options.offset_backup is None:
        return ()
    positions = _position_class(options, integer_offsets)
    with _client(options, driver_token(options)) as client:
        now = client.channel_statuses([report.channel for report in reports])
        settled = settle(reports, now, positions.format_name)
        refuse_missing_commits(options.pipe, settled, now)
        if options.offset_backup is not None:
            keep_backup(client, options.offset_backup, now, positions.format_name)
        _check_balances(options, now.values(), integer_offsets)
        try:
            if options.on_error != "continue":
                refuse_rejected_rows(options.pipe, settled, now)
        except RowsRejectedError as error:
            log.error("%s", error)  # before the tokens show that they are reported
            raise
        finally:
            mark_reported(client, now)
    return settled


def _successful(outcomes: Sequence[TaskOutcome | None], batch: str) -> list[TaskOutcome]:
    tasks = [task for task in outcomes if task is not None]
    failed = [task for task in tasks if task.error_type is not None]
    if failed:
        more = f" ({len(failed) - 1} more partitions failed)" if len(failed) > 1 else ""
        first = min(failed, key=lambda task: task.for_another)
        raise final_error(first.error_type or "", f"{first.error}{more}. {_sent(tasks)}")
    if len(tasks) != len(outcomes):
        raise WriterActiveError(
            f"{batch}: Spark reports success without the messages of {len(outcomes) - len(tasks)} tasks; "
            "repeat it, which goes on behind the committed offset tokens"
        )
    unfinished = [task.partition for task in tasks if not task.complete]
    if unfinished:
        raise AuthenticationError(
            f"{batch}: partitions {unfinished[:5]} took longer than three quarters of a scoped token's "
            "life (about an hour). What was sent is committed: repeat the batch, which goes on behind it, or "
            "make batches smaller (maxFilesPerTrigger, maxOffsetsPerTrigger, more partitions)"
        )
    return tasks


def _sent(tasks: Sequence[TaskOutcome]) -> str:
    """Whether a batch that failed has sent anything; an attempt knows nothing of the ones before it."""
    rows = sum(channel.rows for task in tasks for channel in task.channels)
    if rows:
        return f"{rows} rows were sent on {sum(1 for t in tasks for c in t.channels if c.rows)} channels"
    return (
        "Earlier attempts may have sent rows" if any(task.attempt for task in tasks) else "Nothing was sent"
    )


def _refuse_shared(channels: Iterable[ChannelReport]) -> None:
    """A channel's rows from two partitions have no order, so some may have been taken for committed ones."""
    counts = Counter(channel.channel for channel in channels if channel.target_token is not None)
    shared = sorted(name for name, count in counts.items() if count > 1)
    if shared:
        raise ContinuityError(
            f"rows of channel {shared[0]!r} came from {counts[shared[0]]} partitions ({len(shared)} channels "
            "such): of rows with an offsetColumn some were then skipped as if they were committed. Load the "
            "missing ones (compare the table with the source), and repartition by the channelColumn before "
            "the write"
        )


def identity_of(options: WriteOptions, batch: int | None, query_id: str | None) -> BatchIdentity | None:
    """The identity of a batch, None where an offset column identifies rows; ``df.write`` has no query id."""
    if options.offset_column is not None or batch is None:
        return None
    partitions = options.partitions or 0
    if query_id is None:
        return BatchIdentity(batch, GIVEN_WRITER, partitions)
    return BatchIdentity.of_query(batch, query_id, partitions)


# -- The scoped token that the driver gives to tasks, kept over micro-batches while it is young ----------
#
# Spark uses its helper processes on the driver again for the next micro-batch (observed with PySpark 4.2),
# so that a stream need not ask for the ingest host and a token each time.

_LIFE_LEFT = 0.8
"""A token with less of its life than this is replaced: a batch may take most of it."""


_kept: dict[tuple[object, ...], tuple[ScopedToken, float]] = {}
"""With the time until which it is young."""


def driver_token(options: WriteOptions) -> ScopedToken:
    """A scoped token with most of its life before it.

    Credentials that were replaced, in the file or the environment, are read again.
    """
    key = (options.account_url, options.ca_bundle, *_credentials_stamp(options.credentials_file))
    kept = _kept.get(key)
    if kept is not None and time.time() < kept[1]:
        return kept[0]
    with _client(options, standing_credentials(options.credentials_file)) as client:
        token = client.scoped_token()
    _kept.clear()
    _kept[key] = (token, token.expires_at - _LIFE_LEFT * token.remaining_seconds())
    return token


def _credentials_stamp(path: str | None) -> tuple[object, ...]:
    """What changes when the credentials are replaced or become readable by others."""
    found = path or os.environ.get(CREDENTIALS_FILE_VARIABLE)
    if not found:
        text = os.environ.get(CREDENTIALS_VARIABLE, "")
        return (hashlib.sha256(text.encode()).digest(),)
    try:
        facts = os.lstat(found)
    except OSError:
        return (found,)
    return (found, facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_mode)


# -- The table's columns as the driver knows them: rows are compared with them before they are sent ------

_KEPT_SECONDS = 60.0
"""A column that is added while a stream runs is known a minute later."""


_columns_kept: dict[tuple[object, ...], tuple[tuple[TableColumn, ...], float]] = {}
"""With the time until which they count."""


def checked_columns(options: WriteOptions) -> tuple[TableColumn, ...]:
    """Describe the table if the options request a check of rows or columns; nothing otherwise.

    Kept for a minute, since each micro-batch asks twice.
    """
    if not options.needs_columns:
        return ()
    table = table_of(options.pipe)
    key = (options.account_url, options.ca_bundle, table, *_credentials_stamp(options.credentials_file))
    kept = _columns_kept.get(key)
    if kept is not None and time.monotonic() < kept[1]:
        return kept[0]
    columns = columns_of_describe(_rows(options, f"DESCRIBE TABLE {table}"))
    if not columns:
        raise ConfigurationError(f"table {table} has no column to compare rows with")
    _columns_kept.clear()
    _columns_kept[key] = (columns, time.monotonic() + _KEPT_SECONDS)
    return columns


def _rows(options: WriteOptions, statement: str) -> list[dict[str, Any]]:
    credentials = standing_credentials(options.credentials_file)
    return statement_rows(options.account_url, credentials, statement, ca_bundle=options.ca_bundle)


# -- A batch that an earlier run has begun, judged as a whole over all its channels before a row is sent --
#
# Each token shows which rows of the batch its channel has. Whether they are the first rows of the share of
# that channel now is seen for one channel only by whoever reads its share; a channel that has nothing yet
# would take rows that lie committed in another one. So the driver asks for the tokens of all channels, tasks
# of a job of its own compare, and rows move only if none has found a difference. A new batch costs no such
# job.

FINDING_SCHEMA = "partition int, channel string, error_type string, error string"
"""What a task gives, as Spark writes a schema."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a task found out about one channel's share of a partition.

    :param channel: the channel's name, empty where the error belongs to none
    :param error_type: class name of the error, None if the committed rows are the share's first ones
    """

    partition: int
    channel: str
    error_type: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class BegunBatch:
    """A batch with rows that an earlier run has committed."""

    options: WriteOptions
    identity: BatchIdentity
    committed: Mapping[str, BatchDigestOffset]
    variants: frozenset[str] = frozenset()

    @classmethod
    def find(
        cls, options: WriteOptions, identity: BatchIdentity, variants: frozenset[str] = frozenset()
    ) -> BegunBatch | None:
        """Ask all channels what they have of a batch; older writers of them are shut out.

        Channels that a column names are found by ``SHOW CHANNELS``, over the SQL API.

        :return: None where there is nothing to compare: the batch is new, or has one channel, which its own
            task compares, or nothing of it can be sent any more
        :raises SourcePositionError: if it was begun over other partitions, or by another way to name channels
        """
        if options.partitions == 1:
            return None
        names = _channels(options)
        with _client(options, driver_token(options)) as client:
            statuses = client.channel_statuses(names)
            found = {name: status for name, status in statuses.items() if status.exists}
            open_ones = [
                name
                for name, status in found.items()
                if options.partitions is not None
                or status.committed is None
                or _begun(options, status, identity) is not None
            ]
            now = _fenced(client, open_ones)
        positions = {name: _begun(options, status, identity) for name, status in now.items()}
        begun = {name: position for name, position in positions.items() if position is not None}
        if not begun or (len(begun) == options.partitions and all(one.final for one in begun.values())):
            return None
        return cls(options, identity, begun, variants)

    def compare(self, partition: int, batches: Iterator[pa.RecordBatch]) -> Iterator[Finding]:
        """Hold one partition's rows against what is committed; runs in a Spark task, and sends nothing.

        Shares without a commit are not read.
        """
        options = self.options
        try:
            for part, rows in channel_shares(options, partition, without_empty(batches)):
                first = next(rows, None)
                if first is None:
                    continue
                channel = options.channel(part)
                position = self.committed.get(channel)
                try:
                    if position is not None:
                        encoder = RowEncoder(
                            options.ndjson, options.omit_columns, options.limits, self.variants
                        )
                        share = DigestedShare(channel, self.identity, encoder)
                        next(share.parts(chain([first], rows), position), None)
                except SourcePositionError as error:
                    yield Finding(partition, channel, type(error).__name__, str(error))
                else:
                    yield Finding(partition, channel)
        except SnowpipeError as error:
            yield Finding(partition, "", type(error).__name__, str(error))

    def refuse_differences(self, findings: Iterable[Finding]) -> None:
        """Refuse the batch unless every channel's committed rows are the first ones of its share."""
        found = list(findings)
        where: dict[str, int] = {}
        for one in found:
            if one.channel and where.setdefault(one.channel, one.partition) != one.partition:
                raise ContinuityError(
                    f"rows of channel {one.channel!r} lie in the partitions {where[one.channel]} and "
                    f"{one.partition}. Nothing was sent: repartition by the channelColumn before the write"
                )
        wrong = [(one.error_type, one.error or "") for one in found if one.error_type is not None]
        gone = sorted(self.committed.keys() - where.keys())
        if gone and not wrong:
            wrong = [
                (
                    SourcePositionError.__name__,
                    f"channel {name!r}: batch {self.identity.batch} has no row for it now, but "
                    f"{str(self.committed[name])!r} is committed: the replay brings other rows",
                )
                for name in gone
            ]
        if wrong:
            more = f" ({len(wrong) - 1} more differ)" if len(wrong) > 1 else ""
            raise final_error(
                wrong[0][0] or "",
                f"batch {self.identity.batch} is refused as a whole, and nothing was sent: "
                f"{wrong[0][1]}{more}. The rows that it was begun with, in the partitions that they lay in, "
                "are accepted at any time",
            )


def _channels(options: WriteOptions) -> list[str]:
    if options.partitions is not None:
        return [options.channel(number) for number in range(options.partitions)]
    pipe = options.pipe
    listed = list(map(ListedChannel.from_row, _rows(options, show_channels(pipe))))
    if not listed:  # the pipe is new, or the streaming API takes its name in characters that SQL does not
        rows = _rows(options, f"SHOW CHANNELS IN SCHEMA {full_name(pipe.database, pipe.schema)}")
        in_schema = map(ListedChannel.from_row, rows)
        listed = [one for one in in_schema if one.pipe and one.pipe.casefold() == pipe.pipe.casefold()]
    return [one.name for one in listed if one.name.startswith(f"{options.channel_prefix}_")]


def _begun(options: WriteOptions, status: ChannelStatus, identity: BatchIdentity) -> BatchDigestOffset | None:
    """The committed position of a channel within a batch, None where it has nothing of the batch."""
    try:
        found = Checkpoint.parse(status.committed or "", BatchDigestOffset)
    except OffsetTokenError:  # of another program or source, which the channel's task refuses
        return None
    source = channel_source(options, status.channel, identity)
    position = cast("BatchDigestOffset", found.position)
    if found.source != source.binding.source_digest or position.batch != identity.batch:
        return None
    source.start(status)
    return position

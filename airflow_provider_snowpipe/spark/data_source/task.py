"""What one Spark task does with one partition of a DataFrame; knows nothing of PySpark.

A task works on its channels one after the other. Everything that another attempt would meet again goes to
the driver as part of the message; what it may fix, such as a fenced channel, is raised.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, cast

from airflow_provider_snowpipe.spark.data_source.agreement import Agreement, RefusedByAnotherError
from airflow_provider_snowpipe.spark.data_source.kept_offsets import begin
from airflow_provider_snowpipe.spark.data_source.options import WriteOptions
from airflow_provider_snowpipe.spark.data_source.parts import (
    GIVEN_WRITER,
    BatchIdentity,
    DigestedShare,
    OrderedRows,
    SupersededError,
    channel_shares,
    channel_source,
    position_in_batch,
    without_empty,
)
from airflow_provider_snowpipe.spark.driver.report import ChannelReport
from airflow_provider_snowpipe.spark.sources.tables.rows import RowEncoder
from airflow_provider_snowpipe.spark.task.sink import (
    PartitionResult,
    SinkSettings,
    load_channel,
    process_transports,
    went_back,
)
from airflow_provider_snowpipe.streaming.auth import ScopedToken
from airflow_provider_snowpipe.streaming.batch import Part
from airflow_provider_snowpipe.streaming.checked_values import RowRules
from airflow_provider_snowpipe.streaming.checkpoint import ChannelSource, Checkpoint, is_begun
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.errors import (
    AuthenticationError,
    SnowpipeError,
    SourcePositionError,
    WriterActiveError,
)
from airflow_provider_snowpipe.streaming.offsets import BatchDigestOffset, Offset
from airflow_provider_snowpipe.streaming.table_schema import TableColumn

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class BatchesSeen:
    """What the channels had committed when the driver read them, over all of them.

    A task sees its own channel only. Where that is empty yet, the others still show that the batches are
    another query's, or that a later one is committed.

    :param committed: the tokens, by channel, of those that had one
    """

    committed: Mapping[str, str] = field(default_factory=dict)

    def has_begun(self, mine: BatchIdentity) -> bool:
        """True if rows of a batch were committed before this write began."""
        return mine.batch in self.batches()

    def batches(self) -> set[int]:
        """The ids of the batches that channels have committed last."""
        return {position.batch for position in self._positions().values()}

    def check(self, options: WriteOptions, mine: BatchIdentity) -> None:
        """Judge a batch by all channels before any row moves.

        :raises SupersededError: if a later micro-batch is committed
        :raises SourceChangedError: if another query wrote one of the channels, or over other partitions
        :raises ConfigurationError: if the caller's batch id is behind one that is committed
        """
        for channel, token in self.committed.items():
            channel_source(options, channel, mine).read(token, channel=channel)
        for channel, position in self._positions().items():
            position_in_batch(channel, position, mine)

    def _positions(self) -> dict[str, BatchDigestOffset]:
        return {
            channel: cast(
                "BatchDigestOffset", Checkpoint.parse(token, BatchDigestOffset, channel=channel).position
            )
            for channel, token in self.committed.items()
        }


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the driver hands to the tasks.

    :param token: a scoped token, the only credential that leaves the driver
    :param columns: the table's columns, none where rows are not checked
    :param known: the last checkpoints in the offset backup, by channel
    """

    token: ScopedToken
    seen: BatchesSeen
    columns: tuple[TableColumn, ...] = ()
    integer_offsets: bool = False
    variants: frozenset[str] = frozenset()
    write: str = field(default_factory=lambda: secrets.token_hex(8))
    known: Mapping[str, str] = field(default_factory=dict)


def compares_before_sending(options: WriteOptions) -> bool:
    """True where a begun batch's rows might lie in other channels than before, as far as options show."""
    return options.offset_column is None and not options.fixed_spread and (options.partitions or 0) > 1


@dataclass(frozen=True, slots=True)
class Task:
    """One attempt at one partition; it has no identity where an offset column identifies rows."""

    options: WriteOptions
    prepared: Prepared
    identity: BatchIdentity | None
    partition: int
    attempt: int

    def run(self, batches: Iterator[pa.RecordBatch]) -> TaskOutcome:
        """Load the partition's rows that are not committed yet; an error for good is part of the outcome."""
        done: list[ChannelReport] = []
        outcome = TaskOutcome(self.partition, self.attempt)
        options = self.options
        try:
            transports = process_transports(os.getpid(), options.ca_bundle)
            token = self.prepared.token
            client = SnowpipeClient(options.account_url, token, options.pipe, transports=transports)
            with closing(client), self._agreement(client) as agreement:
                for part, rows in channel_shares(options, self.partition, without_empty(batches)):
                    channel = options.channel(part)
                    try:
                        result, loaded = self._load(client, channel, rows, agreement)
                    except SupersededError as error:
                        outcome = replace(outcome, superseded=outcome.superseded or (channel, error.batch))
                        continue
                    done.append(loaded)
                    if result is not None and (result.error_type is not None or not result.complete):
                        outcome = replace(
                            outcome,
                            complete=result.complete,
                            error_type=result.error_type,
                            error=result.error,
                        )
                        break
        except SnowpipeError as error:
            if error.spark_may_retry:
                raise
            if isinstance(error, AuthenticationError) and self.prepared.token.remaining_seconds() <= 0:
                outcome = replace(outcome, complete=False)
            else:
                for_another = isinstance(error, RefusedByAnotherError)
                kind = SourcePositionError if for_another else type(error)
                outcome = replace(
                    outcome, error_type=kind.__name__, error=str(error), for_another=for_another
                )
        return replace(outcome, channels=tuple(done))

    @contextmanager
    def _agreement(self, client: SnowpipeClient) -> Iterator[Agreement | None]:
        """The agreement of all tasks, None where each may send; a task that fails for good refuses."""
        options = self.options
        names = [options.channel(number) for number in range(options.partitions or 0)]
        begun = self.identity is not None and self.prepared.seen.has_begun(self.identity)
        if not begun or not compares_before_sending(options) or self.partition >= len(names):
            yield None
            return
        agreement = Agreement(client, names, self.partition, self.prepared.write)
        agreement.begin()
        try:
            yield agreement
        except SnowpipeError as error:
            if not error.spark_may_retry:
                agreement.refuse()
            raise
        agreement.finish()

    def _load(
        self,
        client: SnowpipeClient,
        channel: str,
        rows: Iterator[pa.RecordBatch],
        agreement: Agreement | None,
    ) -> tuple[PartitionResult | None, ChannelReport]:
        options = self.options
        status = client.channel_statuses([channel])[channel]
        known = self.prepared.seen.committed.get(channel)
        if known is not None and status.committed is None:
            raise went_back(channel, f"went from {known} back to NULL")
        last, first = self.prepared.known.get(channel), next(rows, None)
        rows = rows if first is None else chain([first], rows)
        backup = options.offset_backup
        if status.committed is None and last is None and first is not None and backup is not None:
            last, status = begin(client, backup, status)
        if last is not None and status.committed is None and not is_begun(last, status):
            how = "a write was about to send rows" if is_begun(last) else f"{last!r} was committed"
            raise SourcePositionError(
                f"channel {channel!r} has no offset token, and {how}: it was dropped, or deleted after 30 "
                f"days without rows. Nothing was sent on it. Restore the tokens from {backup} (airflow "
                "snowpipe restore), or delete its entry there and its file beside it where its rows are not "
                "in the table"
            )
        integers, write = self.prepared.integer_offsets, self.prepared.write
        source = channel_source(options, channel, self.identity, integer_offsets=integers, write=write)
        start = source.start(status)
        found = ChannelReport(
            channel,
            channel,
            from_token=status.committed,
            inserted_before=status.rows_inserted,
            errors_before=status.rows_error_count,
            rejected_before=start.errors,
            unreported=max(status.rows_error_count - start.errors, 0) if start.run != source.run else 0,
            unreported_run=start.run,
        )
        if self.identity is None:
            return self._load_ordered(found, source, rows)
        try:
            self.prepared.seen.check(options, self.identity)
            return self._load_batch(self.identity, found, source, start.position, rows, agreement)
        except SupersededError:
            if agreement is not None:
                agreement.refuse()
            raise

    def _load_ordered(
        self, found: ChannelReport, source: ChannelSource, rows: Iterator[pa.RecordBatch]
    ) -> tuple[PartitionResult | None, ChannelReport]:
        first = next(rows, None)
        if first is None:
            return None, found
        ordered = OrderedRows(found.channel, self.options.offset_column or "", self._encoder())
        result = load_channel(
            self._settings(),
            self.prepared.token,
            found.channel,
            lambda committed: ordered.parts(chain([first], rows), committed),
            source=source,
            gaps_legal=True,
        )
        return result, _loaded(found, result)

    def _load_batch(
        self,
        identity: BatchIdentity,
        found: ChannelReport,
        source: ChannelSource,
        committed: Offset | None,
        rows: Iterator[pa.RecordBatch],
        agreement: Agreement | None,
    ) -> tuple[PartitionResult | None, ChannelReport]:
        channel = found.channel
        known = committed if isinstance(committed, BatchDigestOffset) else None
        begun = position_in_batch(channel, known, identity)
        first = next(rows, None)
        if first is None:
            if begun is not None:
                raise SourcePositionError(
                    f"channel {channel!r}: partition {self.partition} of batch {identity.batch} has no row "
                    f"now, but {str(begun)!r} is committed: the replay brings other rows. Put the query's "
                    "source and plan back as they were, or take another channelPrefix"
                )
            return None, found
        rows = chain([first], rows)
        share = DigestedShare(channel, identity, self._encoder())
        if begun is not None and begun.final:
            for _ in share.parts(rows, begun):
                """Compares only: a share that is complete has no further part."""
            return None, replace(found, target_token=found.from_token)
        compared: Iterator[Part] | None = None
        if agreement is not None:
            if begun is not None:
                parts = share.parts(rows, begun)
                compared = chain([next(parts)], parts)  # the first one comes behind the committed rows
            agreement.wait()

        def rows_after(position: Offset | None) -> Iterator[Part]:
            now = position if isinstance(position, BatchDigestOffset) else None
            now = position_in_batch(channel, now, identity)
            if compared is None:
                return share.parts(rows, now)
            if now != begun:
                raise WriterActiveError(
                    f"channel {channel!r}: {str(now)!r} is committed, and it was {str(begun)!r} when the "
                    "rows were compared: another writer is at work. Repeat the batch once it has ended"
                )
            return compared

        token = self.prepared.token
        result = load_channel(self._settings(), token, channel, rows_after, known=begun, source=source)
        return result, _loaded(found, result)

    def _encoder(self) -> RowEncoder:
        options = self.options
        return RowEncoder(options.ndjson, options.omit_columns, options.limits, self.prepared.variants)

    def _settings(self) -> SinkSettings:
        options = self.options
        return SinkSettings(
            account_url=options.account_url,
            ca_bundle=options.ca_bundle,
            pipe=options.pipe,
            wait_for_commit=True,
            commit_timeout=options.commit_timeout,
            limits=options.limits,
            row_rules=row_rules(options, self.prepared.columns, self.identity),
            sdk_profile=options.sdk_profile,
            on_imbalance=options.on_imbalance,
        )


def _loaded(found: ChannelReport, result: PartitionResult) -> ChannelReport:
    return replace(found, target_token=result.token, **result.counts())


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """What a task did.

    :param channels: what it did on each of its channels, a hint for the driver, never evidence: the target is
        the token that proves its rows committed, and whether it is, the driver finds out
    :param complete: False if the scoped token's life was too short
    :param error_type: class name of an error that no further attempt can fix, None for success
    :param for_another: True if another task knows more about the error
    :param superseded: the first channel that has committed a later batch, on which nothing was done then, and
        that batch
    """

    partition: int
    attempt: int
    channels: tuple[ChannelReport, ...] = ()
    complete: bool = True
    error_type: str | None = None
    error: str = ""
    for_another: bool = False
    superseded: tuple[str, int] | None = None


# -- Where a DataFrame's rows go that do not fit the table -----------------------------------------------


def row_rules(
    options: WriteOptions, columns: tuple[TableColumn, ...], identity: BatchIdentity | None
) -> RowRules | None:
    """Make the rules by which a task checks its rows.

    A batch has a directory of its own, because its row numbers mean nothing outside of it: an attempt may
    then clear away what others left without touching another batch's or another query's rows.

    :returns: None if rows are not checked before they are sent
    """
    if not options.checks_rows:
        return None
    folders, application = [], f"{options.channel_prefix} by {options.offset_column}"
    if identity is not None:
        query = [] if identity.writer == GIVEN_WRITER else [f"query={identity.writer}"]
        folders = [*query, f"batch={identity.batch}"]
        application = f"{options.channel_prefix} {' '.join(folders)}"
    path = options.dead_letter_path
    if path is not None:
        # Of a URL, what follows "?" are settings of its file system, such as an endpoint.
        address, mark, settings = path.partition("?") if "://" in path else (path, "", "")
        path = "/".join([address.rstrip("/"), *folders]) + mark + settings
    return RowRules.of(options.on_error, options.check_rows, path, columns, application, str(options.pipe))

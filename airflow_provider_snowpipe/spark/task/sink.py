"""What a Spark task does: the channel sink for one partition of the source, and what surrounds it.

It opens the channel, which shuts out every older attempt, goes on just after the committed token that it
finds then, and ends only when the service has committed what it sent.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Self, TypeVar

from airflow_provider_snowpipe import __version__
from airflow_provider_snowpipe.spark.source import CHANNEL, FrameWork, Partition, SourcePartition, release
from airflow_provider_snowpipe.streaming.arguments import OnUnknown, SentRows, UnloadedRow
from airflow_provider_snowpipe.streaming.auth import ScopedToken
from airflow_provider_snowpipe.streaming.batch import AdmittedParts, Part
from airflow_provider_snowpipe.streaming.channel import Channel, ChannelSession
from airflow_provider_snowpipe.streaming.checked_values import RowRules
from airflow_provider_snowpipe.streaming.checkpoint import ChannelSource, OnImbalance, Rebind, check_balance
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.errors import (
    AuthenticationError,
    ChannelInvalidError,
    ConfigurationError,
    ContinuityError,
    SnowpipeError,
    TokenWentBackError,
)
from airflow_provider_snowpipe.streaming.http import Transports
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.names import PipeName
from airflow_provider_snowpipe.streaming.offsets import Offset
from airflow_provider_snowpipe.streaming.progress import CHANNEL_MISSING
from airflow_provider_snowpipe.streaming.table_schema import TableColumn

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_provider_snowpipe.streaming.row_gate import OpenDeadLetters

_T = TypeVar("_T")
_R = TypeVar("_R")
_TOKEN_LIFE_USED = 0.75
"""Share of the scoped token's remaining life in which a task reads; the rest is for the commit."""


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """What a task needs to know besides its partition, as the plan has it; holds no credential.

    :param skips_undecoded: True skips and counts records that cannot be decoded, where none are kept
    :param columns: the table's columns, to compare keys of rows with; none where they are not compared
    :param has_bare_tokens: True for channels of a Kafka connector
    """

    account_url: str
    ca_bundle: str | None
    pipe: PipeName
    wait_for_commit: bool
    commit_timeout: float
    limits: BatchLimits
    row_rules: RowRules | None = None
    sdk_profile: str | None = None
    skips_undecoded: bool = False
    columns: tuple[TableColumn, ...] = ()
    unknown_columns: OnUnknown = "ignore"
    run: str = "0"
    rebind: Rebind | None = None
    has_bare_tokens: bool = False
    on_imbalance: OnImbalance = "warn"

    def source_of(self, partition: Partition) -> ChannelSource:
        """Whose rows a partition's channel gets."""
        return ChannelSource(
            partition.offset_class, partition.binding, self.run, self.rebind, self.has_bare_tokens
        )


@dataclass(frozen=True, slots=True)
class PartitionWork:
    """One partition with its channel and the position found before anything was opened.

    :param committed: the committed position when ``resume_at`` was found, None for NULL
    :param resume_at: the position just after it; found again if the channel has moved on
    """

    channel: str
    partition: SourcePartition[Any]
    committed: Offset | None
    resume_at: Any


@dataclass(frozen=True, slots=True)
class PartitionResult(SentRows):
    """What one attempt of a task achieved.

    :param position: the last position that the service has, None if the partition has no row
    :param passed: the last position that was read, where none of what was read is a row that is sent: nothing
        carries it to the service, and the driver sets it
    :param pieces: the first position that was sent of each piece of the partition, and how many rows
    :param unloaded: the first rows that were put aside or skipped
    :param complete: False if the scoped token's life was too short for everything; another round with a
        fresh one goes on from what is committed then
    :param error_type: class name of an error that no further attempt can fix, None for success
    """

    channel: str
    position: Offset | None = None
    token: str | None = None
    passed: Offset | None = None
    passed_token: str | None = None
    columns: tuple[str, ...] = ()
    pieces: tuple[tuple[Offset, int], ...] = ()
    unloaded: tuple[UnloadedRow, ...] = ()
    complete: bool = True
    error_type: str | None = None
    error: str = field(default="")


def load_partition(settings: SinkSettings, token: ScopedToken, work: PartitionWork) -> PartitionResult:
    """Send one partition's rows that are not committed yet in a task; an error for good is in the result."""
    partition = work.partition
    ahead = partition.read(work.resume_at, settings.limits)  # a store answers while the channel opens

    def rows_after(committed: Offset | None) -> Iterator[Part]:
        if committed == work.committed:
            return ahead
        resume_at = partition.resume(committed)
        return iter(()) if resume_at is None else partition.read(resume_at, settings.limits)

    return load_channel(
        settings,
        token,
        work.channel,
        rows_after,
        known=work.committed,
        source=settings.source_of(partition),
        gaps_legal=partition.gaps_legal,
        open_dead_letters=partition.open_dead_letters,
    )


def load_channel(
    settings: SinkSettings,
    token: ScopedToken,
    channel: str,
    rows_after: Callable[[Offset | None], Iterator[Part]],
    *,
    known: Offset | None = None,
    source: ChannelSource,
    gaps_legal: bool = False,
    open_dead_letters: OpenDeadLetters | None = None,
) -> PartitionResult:
    """Open a channel, send the rows behind its committed token, and wait for their commit.

    :param rows_after: the rows that come after a committed position, None for NULL
    :param known: what was committed when the run began, None for NULL; a channel that has less now was
        dropped or reset, and gets no row
    :param open_dead_letters: opens the store of rows that do not fit the table and are put aside, None for
        that of a folder
    :raises SnowpipeError: for everything that another attempt may fix, such as a fenced channel
    """
    # It brings PyArrow, for which a driver that finds no new rows need not wait.
    from airflow_provider_snowpipe.streaming.row_gate import Admission, DeadLetterFolder

    open_session: Callable[..., ChannelSession] = partial(Channel.open, limits=settings.limits)
    if settings.sdk_profile is not None:
        from airflow_provider_snowpipe.spark.task.sdk_channel import SdkChannel

        open_session = partial(SdkChannel.open, profile=settings.sdk_profile, ca_bundle=settings.ca_bundle)
    stop_at = time.time() + _TOKEN_LIFE_USED * token.remaining_seconds()
    try:
        # Not closed: its connections are those of all tasks of this process.
        client = SnowpipeClient(
            settings.account_url,
            token,
            settings.pipe,
            transports=process_transports(os.getpid(), settings.ca_bundle),
        )
        with open_session(client, channel, source, gaps_legal=gaps_legal) as session:
            committed = session.progress.committed
            check_balance(channel, session.start.excess, settings.on_imbalance)
            if known is not None and (committed is None or committed < known):
                raise went_back(channel, f"went from {known} back to {committed or 'NULL'}")
            admission = Admission(
                settings.row_rules,
                settings.columns,
                settings.unknown_columns,
                channel,
                source.positions,
                committed,
                open_dead_letters or DeadLetterFolder,
                skips_undecoded=settings.skips_undecoded,
                limits=settings.limits if settings.sdk_profile is None else None,
            )
            began = time.monotonic()
            parts = AdmittedParts(rows_after(committed), admission.admit, stop_at)
            pieces: dict[int, tuple[Offset, int]] = {}
            for part in parts:
                session.append(part.body, part.start, part.end, rows=part.rows)
                first, rows = pieces.get(part.start.piece, (part.start, 0))
                pieces[part.start.piece] = first, rows + part.rows
            session.flush()
            received = time.monotonic()
            sent = session.progress.sent
            if sent is not None and settings.wait_for_commit:
                session.wait_for_commit(sent, timeout=settings.commit_timeout)
                admission.settle(sent)
            waited = time.monotonic() - received
            reached, passed = sent or committed, parts.passed
            tokens = [None if one is None else session.token(one) for one in (reached, passed)]
    except SnowpipeError as error:
        return _failed(channel, token, error)
    return PartitionResult(
        channel=channel,
        position=reached,
        token=tokens[0],
        passed=passed,
        passed_token=tokens[1],
        append_seconds=received - began,
        commit_seconds=waited,
        **asdict(session.counters),
        retries=client.http.retries,
        dead_lettered=admission.dead_lettered,
        undecoded=admission.undecoded,
        unknown_columns=admission.unknown_columns,
        columns=admission.columns,
        pieces=tuple(pieces.values()),
        unloaded=admission.unloaded,
        complete=parts.complete,
    )


def went_back(channel: str, how: str) -> TokenWentBackError:
    """The error of a channel whose token somebody took away, with what became of it."""
    return TokenWentBackError(
        f"channel {channel!r} {how} while this run was under way. Rows that it had committed may be in the "
        "table; going on would load them again, so that nothing more was sent. Set the token to what the "
        "table holds (SnowpipeResetOffsetOperator), or leave it where the table is to be loaded again, and "
        "then run again"
    )


def _failed(channel: str, token: ScopedToken, error: SnowpipeError) -> PartitionResult:
    """The result that another attempt would come to as well; an error that it may fix is raised.

    Where the channel is gone, another attempt would recreate it and begin with rows that this one has sent.
    """
    if isinstance(error, ChannelInvalidError) and error.code == CHANNEL_MISSING:
        error = went_back(channel, "was dropped, and its token with it,")
    if error.spark_may_retry:
        raise error
    if isinstance(error, AuthenticationError) and token.remaining_seconds() <= 0:
        return PartitionResult(channel, complete=False)
    text = str(error)
    named = text if repr(channel) in text else f"channel {channel!r}: {text}"
    return PartitionResult(channel, error_type=type(error).__name__, error=named)


@lru_cache(maxsize=4)
def process_transports(process: int, ca_bundle: str | None) -> Transports:
    """The connections that all tasks of an executor's Python process share, kept alive between them.

    :param process: the process's id; connections must not be inherited by a forked worker
    """
    return Transports(ca_bundle)


# -- The versions that an executor must have, and where a partition goes on ------------------------------


@dataclass(frozen=True, slots=True)
class Versions:
    """What a process runs; PySpark's version is None where a Connect server stands between."""

    pyspark: str | None
    package: str

    @classmethod
    def here(cls) -> Self:
        """The versions of this process."""
        import pyspark

        return cls(pyspark.__version__, __version__)

    def require(self, driver: Versions) -> None:
        """Refuse to work for a driver of other versions; called in every task before it does anything."""
        if self.pyspark and driver.pyspark and release(self.pyspark) != release(driver.pyspark):
            raise ConfigurationError(
                f"an executor runs PySpark {self.pyspark}, the driver {driver.pyspark}: submit with the "
                "cluster's version of Spark, and let PYSPARK_PYTHON name a Python without its own pyspark"
            )
        if self.package != driver.package:
            raise ConfigurationError(
                f"an executor has airflow-provider-snowpipe {self.package}, the driver {driver.package}: "
                "install the driver's version there, or none and give the package's zip file to --py-files"
            )


def in_same_version(driver: Versions, work: Callable[[_T], _R], item: _T) -> _R:
    """Do one item's work in a task, if its process runs the driver's versions."""
    Versions.here().require(driver)
    return work(item)


@dataclass(frozen=True, slots=True)
class NotResumed:
    """Why no position was found, for the driver."""

    error_type: str
    error: str


def locate_one(work: tuple[str, SourcePartition[Any], Offset | None]) -> Any:
    """Find a position in a task; an error comes back as a value: another attempt would meet it again."""
    _, partition, committed = work
    try:
        return partition.resume(committed)
    except SnowpipeError as error:
        return NotResumed(type(error).__name__, str(error))


# -- Rows of a query, which Spark itself reads: each task gets one channel's, in order ---------------------

RESULT = "result"


def load_batches(
    settings: SinkSettings, token: ScopedToken, works: Sequence[FrameWork], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Load one channel's rows as they arrive; runs in a Spark task. No rows, no channel is opened."""
    import pyarrow as pa

    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return
    work = works[first.column(CHANNEL)[0].as_py()]
    mine = (_only(work, works, batch) for batch in chain([first], filled))
    result = load_channel(
        settings,
        token,
        work.channel,
        lambda committed: work.partition.parts(mine, committed, settings.limits),
        known=work.committed,
        source=settings.source_of(work.partition),
        gaps_legal=work.partition.gaps_legal,
        open_dead_letters=work.partition.open_dead_letters,
    )
    yield pa.record_batch({RESULT: pa.array([pickle.dumps(result)], pa.binary())})


def _only(work: FrameWork, works: Sequence[FrameWork], batch: pa.RecordBatch) -> pa.RecordBatch:
    numbers = batch.column(CHANNEL).unique().to_pylist()
    if numbers != [works.index(work)]:
        others = sorted({works[number].channel for number in numbers} - {work.channel})
        raise ContinuityError(
            f"channel {work.channel!r}: its Spark task also got rows of {others}; run with "
            "spark.sql.adaptive.enabled=false"
        )
    return batch

"""What the Spark driver does: check, resume, load, and believe nothing but the committed tokens."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_snowpipe.spark.driver.outcome import (
    error_type_of,
    final_error,
    refuse_missing_commits,
    refuse_rejected_rows,
    settle,
)
from airflow_provider_snowpipe.spark.driver.plan import JobPlan
from airflow_provider_snowpipe.spark.driver.report import ChannelReport, ChannelStart, RunReport, fewer_files
from airflow_provider_snowpipe.spark.driver.session import ProgressLines, start_spark
from airflow_provider_snowpipe.spark.source import (
    Partition,
    Source,
    SourcePartition,
    SourceSecrets,
)
from airflow_provider_snowpipe.spark.sources.registry import open_source
from airflow_provider_snowpipe.spark.task.sink import PartitionResult
from airflow_provider_snowpipe.streaming.admin import TokenChange, compare_and_set, mark_reported, renew
from airflow_provider_snowpipe.streaming.arguments import MOST_UNLOADED, UnloadedRow
from airflow_provider_snowpipe.streaming.checkpoint import ChannelSource, Start, check_balance
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.errors import (
    AuthenticationError,
    SnowpipeError,
    SourcePositionError,
    SourceUnavailableError,
)
from airflow_provider_snowpipe.streaming.lag import FileBacklog
from airflow_provider_snowpipe.streaming.offsets import Offset
from airflow_provider_snowpipe.streaming.ownership import EarlierChannels, OwnChannel, refuse_lost
from airflow_provider_snowpipe.streaming.progress import ChannelStatus, ListedChannel

if TYPE_CHECKING:
    from pyspark import SparkContext

    from airflow_provider_snowpipe.spark.driver.session import LocalTasks

log = logging.getLogger(__name__)

_MOST_IDLE_ROUNDS = 3
_OPENED_AT_ONCE = 8
_MOST_PLANS = 50
_QUICK_SECONDS = 5.0
"""Searching longer for a row than Spark takes to start would gain nothing."""
_SMALL_BYTES = 64 << 20
_SMALL_ROWS = 200_000
"""So much is loaded in the time that Spark takes to start."""

_FOLLOWED_FILES = 4_000
"""So many, of all channels together, are written for whoever follows a run, or one for each channel."""


class Run:
    """One run of the job, step by step.

    :meth:`prepare` opens no channel and sends nothing; whatever it raises leaves the channels as they were.
    :attr:`channels` is filled as far as the run came, also when a step raises.

    :param client: the driver's client, which has the credentials
    :param list_channels: lists the pipe's channels; None where SQL is not to be had
    :param session: starts the Spark session or gives the running one; called by :meth:`prepare` only where
        Spark has to read the source
    """

    def __init__(
        self,
        plan: JobPlan,
        client: SnowpipeClient,
        session: Callable[[], Any] | None = None,
        secrets: SourceSecrets | None = None,
        list_channels: Callable[[], Sequence[ListedChannel]] | None = None,
    ) -> None:
        self._plan = plan
        self._list_channels = list_channels
        self._found: dict[str, Start] = {}
        self._rows_before: dict[str, tuple[int, int]] = {}
        self._secrets = secrets or SourceSecrets()
        self._settled: Mapping[str, ChannelStatus] = {}
        self._client = client
        self._session = session or partial(start_spark, plan.application)
        self._settings = plan.sink_settings()
        self._sources: dict[str, ChannelSource] = {}
        self._source: Source | None = None
        self._partitions: dict[str, Partition] = {}
        self._start: dict[str, ChannelStatus] = {}
        self._committed: dict[str, Offset | None] = {}
        self._results: dict[str, PartitionResult] = {}
        self.channels: tuple[ChannelReport, ...] = ()
        self._columns: tuple[str, ...] = ()
        self._unloaded: tuple[UnloadedRow, ...] = ()

    def prepare(self) -> None:
        """Check pipe, source and committed tokens against each other.

        :raises PipeNotFoundError: if pipe or table is unknown
        :raises SourcePositionError: if the source is not there, or not where the channels have come to
        :raises OffsetTokenError: if a committed token does not parse
        """
        with ThreadPoolExecutor(1) as pool:
            pipe = pool.submit(self._client.pipe_info)
            for _ in range(_MOST_PLANS):
                source = self._open_source().with_spark(self._session)
                found = source.partitions()
                pipe.result()
                self._take_partitions(source, found)
                self._rows_before = self._earlier().hand_over(self._own(), self._check)
                if self._rows_before:
                    self._take_statuses(self._client.channel_statuses(list(self._rows_before)))
                if self._claims(source):
                    return
        raise SourceUnavailableError(
            f"source {self._plan.source.address!r}: other runs have written its log {_MOST_PLANS} times "
            "while this one was planned. Nothing was sent; run again"
        )

    def has_no_rows(self) -> bool:
        """Prepare the run without Spark if it has no row to load; :meth:`verify` is the next step then.

        :return: False where there are rows, or the check takes Spark or long; nothing is kept of that, and
            another run has to begin
        :raises SnowpipeError: as :meth:`prepare`
        """
        source = self._open_source().without_spark()
        if source is None:
            return False
        self._take_partitions(source, source.partitions())
        if self._plan.last_checkpoints is not None:
            refuse_lost(self._own(), self._plan.last_checkpoints)
        latest = time.monotonic() + _QUICK_SECONDS
        for name, partition in self._partitions.items():
            if not isinstance(partition, SourcePartition) or time.monotonic() > latest:
                return False
            if not partition.is_done(self._committed[name]):
                return False
        if not any(status.committed for status in self._start.values()):
            self._client.pipe_info()  # only what is there has committed a row
        if not self._claims(source):
            return False
        self._results = self._nothing_sent()
        if rebound := self._rebind_quiet():
            self._start = {**self._start, **self._client.channel_statuses(rebound)}
        return True

    def _claims(self, source: Source) -> bool:
        plan = self._plan
        logs, rebind = plan.source_logs if plan.is_recorded else None, plan.rebind
        found = self._partitions, self._committed
        return source.claim(*found, rebind=rebind, logs=logs, table=plan.table_created)

    def without_rows(self) -> RunReport | None:
        """Do the whole run without Spark if it has no row to load.

        :return: its report; None where there are rows, or the check takes Spark or long
        :raises SnowpipeError: as :meth:`prepare` and :meth:`verify`
        """
        began = time.monotonic()
        if not self.has_no_rows():
            return None
        self.verify(self._start)
        self.mark_reported()
        self.finish()
        return self.report(began)

    def report(self, began: float, error: SnowpipeError | None = None) -> RunReport:
        """Report what the run did so far.

        :param began: when it began, by the monotonic clock
        :param error: what ended it, None for success
        """
        return RunReport(
            self._plan.application,
            self.channels,
            elapsed(began),
            error=None if error is None else str(error),
            error_type=None if error is None else error_type_of(error),
            reading=self.reading,
            columns=self._columns,
            unloaded=self._unloaded,
        )

    def begin(self) -> RunReport | None:
        """Claim the rows, and create the channels of new partitions, for whoever records them.

        :return: a report of them; None where there are none, or Spark alone lists the partitions
        """
        new = [name for name in self._unrecorded() if self._has_rows(name)]
        # A source's own record has its identity from the first claim on.
        if self._source is None or not new or not self._claims(self._source):
            return None
        self._create(new)
        return self.report(time.monotonic())

    def _unrecorded(self) -> list[str]:
        """The channels without a token of which nobody has recorded that they get rows."""
        known = self._plan.last_checkpoints or {}
        return [one.name for one in self._own() if one.is_unknown_to(known)]

    def _create(self, new: Sequence[str]) -> None:
        """Create channels, and report what tells one that is lost from one that has not got a row yet."""
        with ThreadPoolExecutor(_OPENED_AT_ONCE) as pool:
            list(pool.map(self._client.open_channel, (n for n in new if not self._start[n].exists)))
        now = self._client.channel_statuses(new)
        self.channels = tuple(
            ChannelReport(name, self._partitions[name].name, to_token=self._sources[name].begun(now[name]))
            for name in new
        )

    def _has_rows(self, name: str) -> bool:
        left = self._partitions[name].behind(None)
        return left.bytes != 0 and left.rows != 0

    @property
    def reading(self) -> str:
        """How the source's rows are numbered, in words."""
        return next((one.binding.reading for one in self._partitions.values()), "")

    def is_small(self) -> bool:
        """True where the partitions are known to hold little behind what is committed.

        Of a channel whose position is not known, all of the partition counts.
        """
        left = [one.behind(self._committed.get(name)) for name, one in self._partitions.items()]
        return (
            bool(left)
            and all(isinstance(one, SourcePartition) for one in self._partitions.values())
            and all(one.bytes is not None or one.rows is not None for one in left)
            and sum(one.bytes or 0 for one in left) <= _SMALL_BYTES
            and sum(one.rows or 0 for one in left) <= _SMALL_ROWS
        )

    def _started(self, partitions: Mapping[str, Partition]) -> dict[str, ChannelStart]:
        """What the run has found on each channel."""
        began_ms = int(time.time() * 1_000)
        most = max(1, _FOLLOWED_FILES // max(1, len(partitions)))
        found = {}
        for name, status in self._start.items():
            pending = partitions.get(name)
            position = self._committed[name]
            files = () if pending is None else pending.files_behind(position)
            found[name] = ChannelStart(
                inserted_before=status.rows_inserted,
                errors_before=status.rows_error_count,
                rows_behind=0 if pending is None else pending.behind(position).rows,
                began_ms=began_ms,
                files_behind=None if files is None else fewer_files(files, most),
            )
        return found

    def _open_source(self) -> Source:
        plan = self._plan
        source = open_source(plan.source, plan.on_data_loss, self._secrets)
        return source.for_target(plan.pipe.address(plan.account_url), run=plan.run_mark)

    def _nothing_sent(self) -> dict[str, PartitionResult]:
        return {
            name: PartitionResult(name, position, None if position is None else self._start[name].committed)
            for name, position in self._committed.items()
        }

    def _take_partitions(self, source: Source, partitions: Iterable[Partition]) -> None:
        """Hold the committed positions against the partitions."""
        plan = self._plan
        self._source = source
        self._partitions = {plan.channel(one.name): one for one in partitions}
        self._sources = {name: self._settings.source_of(one) for name, one in self._partitions.items()}
        self._take_statuses(self._client.channel_statuses(list(self._partitions)))
        for name, start in self._found.items():
            check_balance(name, start.excess, plan.on_imbalance)
        self._refuse_other_spellings()
        for name, position in self._committed.items():
            self._check(name, position)

    def _own(self) -> list[OwnChannel]:
        return [
            OwnChannel(self._sources[name], status, self._partitions[name].recorded())
            for name, status in self._start.items()
        ]

    def _earlier(self) -> EarlierChannels:
        plan = self._plan
        return EarlierChannels(
            self._client,
            self._list_channels or tuple,
            plan.last_checkpoints,
            plan.on_imbalance,
            accepts_rejected=plan.on_error == "continue",
        )

    def _take_statuses(self, found: Mapping[str, ChannelStatus]) -> None:
        for name, status in found.items():
            self._start[name] = status
            self._found[name] = self._sources[name].start(status)
            self._committed[name] = self._found[name].position

    def _check(self, name: str, position: Offset | None) -> None:
        """Refuse a position that is not in the source any more."""
        try:
            self._partitions[name].check(position)
        except SourcePositionError as error:
            raise SourcePositionError(f"channel {name!r}: {error}") from None

    def load(
        self,
        spark: SparkContext | LocalTasks,
        begins: Callable[[dict[str, ChannelStart]], None] = lambda _: None,
    ) -> bool:
        """Find each channel's position in the source and send what lies behind it, one task a channel.

        :return: False where nothing was sent, since :attr:`channels` are new and have to be recorded first
        :param spark: the context whose executors do the work, a session of Spark Connect, or the tasks of
            this process
        :param begins: gets what the run found on each channel, before it opens one
        :raises SnowpipeError: if a task failed for good
        """
        # It brings PyArrow, for which a run without new rows need not wait.
        from airflow_provider_snowpipe.spark.driver.rounds import rounds_of

        rounds = rounds_of(self._source, spark)
        self._results = self._nothing_sent()
        pending = rounds.locate(self._partitions, self._committed)
        settings = self._settings
        partitions = {work.channel: work.partition for work in pending}
        new = [name for name in self._unrecorded() if name in partitions] if self._plan.is_recorded else []
        if new:
            self._create(new)
            return False
        begins(self._started(partitions))
        idle_rounds, began = 0, time.monotonic()
        while pending:
            token = self._client.scoped_token()
            client = partial(
                SnowpipeClient, self._plan.account_url, token, self._plan.pipe, ca_bundle=self._plan.ca_bundle
            )
            finished = len(partitions) - len(pending)
            done = partial(rounds.finished_channels, finished)
            with ProgressLines(client, partitions, self._start, began=began, done=done):
                results = rounds.run(settings, token, pending)
            self._take(results)
            pending = rounds.unfinished(pending, results)
            moved = any(result.complete or result.rows for result in results)
            idle_rounds = 0 if moved else idle_rounds + 1
            if idle_rounds == _MOST_IDLE_ROUNDS:
                raise AuthenticationError(
                    f"the service's scoped tokens live too short: {len(pending)} channels of pipe "
                    f"{self._plan.pipe} got nowhere in {idle_rounds} rounds; check this machine's clock"
                )
        self._pass_what_is_no_row()
        return True

    def verify(self, now: Mapping[str, ChannelStatus] | None = None) -> None:
        """Read what is committed now and hold it against what was sent; the run's only evidence.

        :param now: what is committed, where nothing was sent since it was read; None to read it
        :raises CommitTimeoutError: if a channel's committed token is behind its target
        :raises RowsRejectedError: if the service skipped rows, unless the plan has ``continue``
        :raises ImbalanceError: if a channel counts other rows than its checkpoint, with ``fail``
        :raises SourceChangedError: if another new channel has loaded the same rows meanwhile
        """
        self.channels = tuple(self._report(name) for name in self._partitions)
        if not self._plan.wait_for_commit:
            return
        if now is None:
            now = self._client.channel_statuses(list(self._partitions))
        self.channels = settle(self.channels, now, self._plan.offset_format)
        refuse_missing_commits(self._plan.pipe, self.channels, now)
        self._settled = now
        if self._plan.on_error != "continue":
            refuse_rejected_rows(self._plan.pipe, self.channels, now)
        for name, status in now.items():
            check_balance(name, self._sources[name].start(status).excess, self._plan.on_imbalance)
        self._earlier().refuse_twins(self._own())

    def mark_reported(self) -> None:
        """Record in the tokens that the rejected rows of this run are reported; called when they are."""
        if self._settled:
            mark_reported(self._client, self._settled)

    def finish(self) -> None:
        """Move the source's bookmark to what is committed; to be called when :meth:`verify` is content.

        Where the run did not wait, that is whatever is committed by now.

        :raises SnowpipeError: if the source does not take it; the rows are committed all the same
        """
        if self._source is None:
            return
        now = self._settled or self._client.channel_statuses(list(self._partitions))
        quiet = [now[name] for name in self._plan.renew if name in now]
        renew(self._client, [one for one in quiet if one.committed == self._start[one.channel].committed])
        committed: dict[str, Offset] = {}
        complete: dict[str, Offset | None] = {}
        for name, status in now.items():
            position = self._sources[name].start(status).position
            sent = self._results[name].position
            if position is not None:
                committed[self._partitions[name].name] = position
            if sent is None or (position is not None and position >= sent):
                complete[self._partitions[name].name] = position
        self._source.finish(committed)
        sent_pieces = {self._partitions[name].name: one.pieces for name, one in self._results.items()}
        self._source.mark_complete(complete, sent_pieces)

    def _pass_what_is_no_row(self) -> None:
        """Set the tokens of channels behind records that have no row to carry them.

        Done by compare-and-set when the tasks have ended and what they put aside is safe.
        """
        for name, result in self._results.items():
            if result.passed is None:
                continue
            expected = result.token or self._start[name].committed
            if result.position == self._committed[name]:
                expected = self._start[name].committed
            compare_and_set(self._client, TokenChange(name, str(result.passed_token), expected))
            self._results[name] = replace(result, position=result.passed, token=result.passed_token)
        self._rebind_quiet()

    def _rebind_quiet(self) -> list[str]:
        """Give channels that go on for another source its binding, where no row has carried it.

        :return: these channels
        """
        rebound = []
        for name, source in self._sources.items():
            found, before, result = self._found[name], self._start[name].committed, self._results[name]
            if source.rebind != "continue" or found.position is None or source.is_own(str(before)):
                continue
            if result.token != before:
                continue
            token = source.token(found.position, found.rows, found.errors)
            compare_and_set(self._client, TokenChange.after(self._start[name], token))
            self._results[name] = replace(result, token=token)
            rebound.append(name)
        return rebound

    def _refuse_other_spellings(self) -> None:
        """Refuse to start a channel again that others have loaded under a name that differs in case."""
        plan = self._plan
        others = {
            other: name
            for name, committed in self._committed.items()
            if committed is None
            for other in plan.source.other_spellings(plan.channel_prefix, self._partitions[name].name)
        }
        if not others:
            return
        for other, status in self._client.channel_statuses(list(others)).items():
            if status.committed is not None:
                raise SourcePositionError(
                    f"channel {others[other]!r} is new, and {other!r} has committed {status.committed!r}: "
                    "they are the same rows under two names, and would be loaded twice. Nothing was sent. "
                    "Take the other prefix (connector_name for the channels of a connector), or drop the "
                    f"channel {other!r} if its rows are not in the table"
                )

    def _take(self, results: Iterable[PartitionResult]) -> None:
        failed: list[PartitionResult] = []
        for result in results:
            before = self._results[result.channel]
            if result.error_type is not None:
                failed.append(result)
                continue
            self._columns = tuple(sorted({*self._columns, *result.columns}))
            self._unloaded = (*self._unloaded, *result.unloaded)[:MOST_UNLOADED]
            self._results[result.channel] = replace(
                before.and_then(result),
                position=result.position or before.position,
                token=result.token or before.token,
                passed=result.passed,
                passed_token=result.passed_token,
                pieces=before.pieces + result.pieces,
            )
        if failed:
            first = failed[0]
            more = f" ({len(failed) - 1} more channels failed)" if len(failed) > 1 else ""
            raise final_error(first.error_type or "", first.error + more)

    def _report(self, name: str) -> ChannelReport:
        """Sum up what was sent on one channel."""
        start, result = self._start[name], self._results[name]
        files = self._partitions[name].files_behind(self._committed[name])
        found = FileBacklog.of(files or ())
        counts: dict[str, Any] = {
            name: round(one, 3) if isinstance(one, float) else one for name, one in result.counts().items()
        }
        before, rejected_earlier = self._rows_before.get(name, (-self._found[name].restarted, 0))
        return ChannelReport(
            channel=name,
            partition=self._partitions[name].name,
            from_token=start.committed,
            to_token=result.token,
            target_token=result.token,
            **counts,
            inserted_before=start.rows_inserted,
            errors_before=start.rows_error_count,
            rejected_before=self._found[name].errors,
            unreported=max(start.rows_error_count - self._found[name].errors, 0),
            unreported_run=self._found[name].run,
            rows_before=before,
            rejected_earlier=rejected_earlier,
            files_found=None if files is None else found.files,
            bytes_found=found.bytes,
            oldest_found_ms=found.oldest_ms,
        )


def elapsed(since: float) -> float:
    """Seconds since a reading of the monotonic clock, to the millisecond."""
    return round(time.monotonic() - since, 3)

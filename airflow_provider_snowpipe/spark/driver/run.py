"""What the Spark driver does: check, resume, load, and believe nothing but the committed tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_snowpipe.spark.driver.outcome import (
    final_error,
    refuse_missing_commits,
    refuse_rejected_rows,
    settle,
)
from airflow_provider_snowpipe.spark.driver.plan import JobPlan
from airflow_provider_snowpipe.spark.driver.report import ChannelReport, ChannelStart, RunReport, fewer_files
from airflow_provider_snowpipe.spark.driver.rounds import rounds_of
from airflow_provider_snowpipe.spark.driver.session import ProgressLines, start_spark
from airflow_provider_snowpipe.spark.source import Partition, Source, SourcePartition, SourceSecrets
from airflow_provider_snowpipe.spark.sources.registry import open_source
from airflow_provider_snowpipe.spark.task.sink import PartitionResult
from airflow_provider_snowpipe.streaming.admin import TokenChange, compare_and_set
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.errors import AuthenticationError, SourcePositionError
from airflow_provider_snowpipe.streaming.offsets import Offset, offset_class
from airflow_provider_snowpipe.streaming.progress import ChannelStatus

if TYPE_CHECKING:
    from pyspark import SparkContext


_MOST_IDLE_ROUNDS = 3
_QUICK_SECONDS = 5.0
"""Searching longer for a row than Spark takes to start would gain nothing."""
_SMALL_BYTES = 256 << 20
_SMALL_ROWS = 1_000_000
"""So much is loaded within seconds whatever the JVM's compiler does: rows known ahead do not pass the JVM."""

_FOLLOWED_FILES = 4_000
"""So many, of all channels together, are written for whoever follows a run, or one for each channel."""


class Run:
    """One run of the job, step by step.

    :meth:`prepare` opens no channel and sends nothing; whatever it raises leaves the channels as they were.
    :attr:`channels` is filled as far as the run came, also when a step raises; :attr:`rejected_before`, the
    rows skipped before this run and its unreported tries, by :meth:`prepare`.

    :param client: the driver's client, which has the credentials
    :param session: starts the Spark session or gives the running one; called by :meth:`prepare` only where
        Spark has to read the source
    """

    def __init__(
        self,
        plan: JobPlan,
        client: SnowpipeClient,
        session: Callable[[], Any] | None = None,
        secrets: SourceSecrets | None = None,
    ) -> None:
        self._plan = plan
        self._secrets = secrets or SourceSecrets()
        self._settled: Mapping[str, ChannelStatus] = {}
        self._client = client
        self._session = session or partial(start_spark, plan.application)
        self._offsets = offset_class(plan.offset_format)
        self._source: Source | None = None
        self._partitions: dict[str, Partition] = {}
        self._start: dict[str, ChannelStatus] = {}
        self._committed: dict[str, Offset | None] = {}
        self._results: dict[str, PartitionResult] = {}
        self.channels: tuple[ChannelReport, ...] = ()
        self.rejected_before: dict[str, int] = {}

    def prepare(self) -> None:
        """Check pipe, source and committed tokens against each other.

        :raises PipeNotFoundError: if pipe or table is unknown
        :raises SourcePositionError: if the source is not there, or not where the channels have come to
        :raises OffsetTokenError: if a committed token does not parse
        """
        self._client.pipe_info()
        source = self._open_source().with_spark(self._session)
        self._take_partitions(source)
        self._compare(source)

    def has_no_rows(self) -> bool:
        """Prepare the run without Spark if it has no row to load; :meth:`verify` is the next step then.

        :return: False where there are rows, or the check takes Spark or long; nothing is kept of that, and
            another run has to begin
        :raises SnowpipeError: as :meth:`prepare`
        """
        source = self._open_source().without_spark()
        if source is None:
            return False
        self._take_partitions(source)
        latest = time.monotonic() + _QUICK_SECONDS
        for name, partition in self._partitions.items():
            if not isinstance(partition, SourcePartition) or time.monotonic() > latest:
                return False
            if not partition.is_done(self._committed[name]):
                return False
        self._client.pipe_info()
        self._compare(source)
        self._results = self._nothing_sent()
        return True

    def without_rows(self) -> RunReport | None:
        """Do the whole run without Spark if it has no row to load.

        :return: its report; None where there are rows, or the check takes Spark or long
        :raises SnowpipeError: as :meth:`prepare` and :meth:`verify`
        """
        began = time.monotonic()
        if not self.has_no_rows():
            return None
        self.verify()
        self.finish()
        return RunReport(self._plan.application, self.channels, elapsed(began))

    def is_small(self) -> bool:
        """True where the partitions are known to hold little behind what is committed."""
        left = [
            partition.behind(self._start[name].committed)
            for name, partition in self._partitions.items()
            if name in self._start
        ]
        return (
            bool(left)
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
            files = () if pending is None else pending.files_behind(status.committed)
            found[name] = ChannelStart(
                rejected_before=self.rejected_before[name],
                inserted_before=status.rows_inserted,
                errors_before=status.rows_error_count,
                rows_behind=0 if pending is None else pending.behind(status.committed).rows,
                began_ms=began_ms,
                files_behind=None if files is None else fewer_files(files, most),
            )
        return found

    def _open_source(self) -> Source:
        return open_source(self._plan.source, self._plan.on_data_loss, self._secrets)

    def _nothing_sent(self) -> dict[str, PartitionResult]:
        return {name: PartitionResult(name, committed) for name, committed in self._committed.items()}

    def _take_partitions(self, source: Source) -> None:
        """List the partitions, and hold the committed positions against them."""
        plan = self._plan
        self._source = source
        self._partitions = {plan.channel(one.name): one for one in source.partitions()}
        self._start = self._client.channel_statuses(list(self._partitions))
        for name, status in self._start.items():
            committed = status.committed
            self._committed[name] = (
                None if committed is None else self._offsets.parse(committed, channel=name)
            )
        self._refuse_other_spellings()
        since = plan.rejected_since_ms
        self.rejected_before = {
            name: plan.rejected_before.get(
                name, status.rows_error_count - (0 if since is None else status.rejected_since(since))
            )
            for name, status in self._start.items()
        }
        for name, position in self._committed.items():
            try:
                self._partitions[name].check(position)
            except SourcePositionError as error:
                raise SourcePositionError(f"channel {name!r}: {error}") from None

    def _compare(self, source: Source) -> None:
        """Refuse what the committed positions do not show, and keep what the next run has to know."""
        target = self._plan.pipe.address(self._plan.account_url)
        source.compare_with_last_run(target, self._partitions, self._committed)
        source.check_identity(self._client, self._partitions, self._committed)

    def load(
        self, spark: SparkContext, begins: Callable[[dict[str, ChannelStart]], None] = lambda _: None
    ) -> None:
        """Find each channel's position in the source and send what lies behind it, one task a channel.

        :param spark: the context whose executors do the work, or a session of Spark Connect
        :param begins: gets what the run found on each channel, before it opens one
        :raises SnowpipeError: if a task failed for good
        """
        rounds = rounds_of(self._source, spark)
        self._results = self._nothing_sent()
        pending = rounds.locate(self._partitions, self._committed)
        settings = self._plan.sink_settings()
        partitions = {work.channel: work.partition for work in pending}
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

    def verify(self) -> None:
        """Read what is committed now and hold it against what was sent; the run's only evidence.

        :raises CommitTimeoutError: if a channel's committed token is behind its target
        :raises RowsRejectedError: if the service skipped rows, unless the plan has ``continue``
        """
        self.channels = tuple(self._report(name) for name in self._partitions)
        if not self._plan.wait_for_commit:
            return
        now = self._client.channel_statuses(list(self._partitions))
        self.channels = settle(self.channels, now, self._offsets)
        self._settled = now
        refuse_missing_commits(self._plan.pipe, self.channels, now)
        if self._plan.on_error != "continue":
            refuse_rejected_rows(self._plan.pipe, self.channels, now)

    def finish(self) -> None:
        """Move the source's bookmark to what is committed; to be called when :meth:`verify` is content.

        Where the run did not wait, that is whatever is committed by now.

        :raises SnowpipeError: if the source does not take it; the rows are committed all the same
        """
        if self._source is None:
            return
        now = self._settled or self._client.channel_statuses(list(self._partitions))
        self._source.finish(
            {
                self._partitions[name].name: self._offsets.parse(status.committed, channel=name)
                for name, status in now.items()
                if status.committed is not None
            }
        )

    def _pass_what_is_no_row(self) -> None:
        """Set the tokens of channels behind records of which none is a row that could carry them.

        Done by compare-and-set when the tasks have ended and what they put aside is safe.

        :raises OffsetTokenMovedError: if another writer has moved the token meanwhile
        """
        for name, result in self._results.items():
            if result.passed is None:
                continue
            known = self._start[name].committed
            same = result.position == self._committed[name]
            expected = known if same or result.position is None else str(result.position)
            compare_and_set(self._client, TokenChange(name, str(result.passed), expected))
            self._results[name] = replace(result, position=result.passed, passed=None)

    def _refuse_other_spellings(self) -> None:
        """Refuse to start a channel again that others have loaded under a name that differs in case.

        :raises SourcePositionError: naming both channels
        """
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
            self._results[result.channel] = replace(
                before.and_then(result),
                position=result.position or before.position,
                passed=result.passed,
                complete=result.complete,
            )
        if failed:
            first = failed[0]
            more = f" ({len(failed) - 1} more channels failed)" if len(failed) > 1 else ""
            raise final_error(first.error_type or "", first.error + more)

    def _report(self, name: str) -> ChannelReport:
        """Sum up what was sent on one channel."""
        start, result = self._start[name], self._results[name]
        target = result.position
        counts: dict[str, Any] = {
            name: round(one, 3) if isinstance(one, float) else one for name, one in result.counts().items()
        }
        return ChannelReport(
            channel=name,
            partition=self._partitions[name].name,
            from_token=start.committed,
            to_token=None if target is None else str(target),
            target_token=None if target is None else str(target),
            **counts,
            inserted_before=start.rows_inserted,
            errors_before=start.rows_error_count,
            rejected_before=self.rejected_before[name],
        )


def elapsed(since: float) -> float:
    """Seconds since a reading of the monotonic clock, to the millisecond."""
    return round(time.monotonic() - since, 3)

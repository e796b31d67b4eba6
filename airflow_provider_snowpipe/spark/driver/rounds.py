"""How the tasks of a run come about: one for each partition, or one query over all of them."""

from __future__ import annotations

import pickle
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from airflow_provider_snowpipe.spark.driver.outcome import error_of_task, final_error
from airflow_provider_snowpipe.spark.driver.session import LocalTasks, one_connect_task_each
from airflow_provider_snowpipe.spark.source import (
    FramePartition,
    FrameSource,
    FrameWork,
    Partition,
    Source,
    SourcePartition,
    is_connect,
)
from airflow_provider_snowpipe.spark.task.sink import (
    RESULT,
    NotResumed,
    PartitionResult,
    PartitionWork,
    SinkSettings,
    Versions,
    in_same_version,
    load_batches,
    load_partition,
    locate_one,
)
from airflow_provider_snowpipe.streaming.auth import ScopedToken
from airflow_provider_snowpipe.streaming.errors import SourcePositionError
from airflow_provider_snowpipe.streaming.offsets import Offset

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.sql import DataFrame


def _run_frame(
    frame: DataFrame, works: Sequence[FrameWork], settings: SinkSettings, token: ScopedToken
) -> list[PartitionResult]:
    driver, all_works = Versions.here(), tuple(works)

    def load(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        Versions.here().require(driver)
        return load_batches(settings, token, all_works, batches)

    rows = frame.mapInArrow(load, f"{RESULT} binary").collect()
    found = {result.channel: result for result in (pickle.loads(bytes(row[0])) for row in rows)}  # noqa: S301  our own tasks wrote it
    return [_ended(work, found.get(work.channel, PartitionResult(work.channel))) for work in works]


def _ended(work: FrameWork, result: PartitionResult) -> PartitionResult:
    """Refuse a task's success where its rows did not come to the end that was fixed before."""
    if result.error_type is not None or not result.complete or work.end is None:
        return result
    reached = result.passed or result.position or work.committed
    if reached is not None and reached >= work.end:
        return result
    return PartitionResult(
        work.channel,
        error_type=SourcePositionError.__name__,
        error=f"channel {work.channel!r}: the source had rows to position {work.end} when the run began, but "
        f"they ended at {reached or 'none'}: rows were deleted meanwhile. Run again when nothing changes "
        "them",
    )


# -- The rounds of a run: each ends ahead of its scoped token, and what is left then is for the next one --

_T = TypeVar("_T")
_R = TypeVar("_R")
WorkT = TypeVar("WorkT", PartitionWork, FrameWork)
_LOCATING_SECONDS = 1.0
"""Starting a task takes longer than searching for a few positions; for many of them tasks share the work."""


class Rounds(ABC, Generic[WorkT]):
    """The rounds of one run, on the executors of a context or in the tasks of this process."""

    def __init__(self, spark: SparkContext | LocalTasks) -> None:
        self._spark = spark

    @abstractmethod
    def locate(
        self, partitions: Mapping[str, Partition], committed: Mapping[str, Offset | None]
    ) -> list[WorkT]:
        """Find where each channel goes on that has something to load, before any of them is opened."""

    @abstractmethod
    def run(
        self, settings: SinkSettings, token: ScopedToken, works: Sequence[WorkT]
    ) -> list[PartitionResult]:
        """Load, one task a channel."""

    def unfinished(self, works: Sequence[WorkT], results: Sequence[PartitionResult]) -> list[WorkT]:
        """The works of the next round: those that stopped ahead of the token's end."""
        left = {result.channel for result in results if not result.complete}
        return [work for work in works if work.channel in left]

    def finished_channels(self, before: int) -> int:
        """Count the channels whose task has ended: those of earlier rounds, and those of the running one.

        Only the last stage of a job loads; the ones before prepare its rows.

        Spark Connect reports nothing of the running one.
        """
        if isinstance(self._spark, LocalTasks):
            return before + self._spark.finished
        if is_connect(self._spark):
            return before
        tracker = self._spark.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getActiveJobsIds()]
        loading = [
            tracker.getStageInfo(max(job.stageIds)) for job in jobs if job is not None and job.stageIds
        ]
        return before + sum(info.numCompletedTasks for info in loading if info is not None)


class TaskRounds(Rounds[PartitionWork]):
    """Rounds in which each task reads its own partition."""

    def locate(
        self, partitions: Mapping[str, Partition], committed: Mapping[str, Offset | None]
    ) -> list[PartitionWork]:
        """Give each channel its position; where the search takes long, tasks do it."""
        own = {name: one for name, one in partitions.items() if isinstance(one, SourcePartition)}
        latest = time.monotonic() + _LOCATING_SECONDS
        found: dict[str, Any] = {}
        left = []
        for name, position in committed.items():
            if own[name].is_quick(position) and (position is None or time.monotonic() < latest):
                found[name] = locate_one((name, own[name], position))
            else:
                left.append((name, own[name], position))
        if left:
            located = one_task_each(self._spark, locate_one, left)
            found |= {name: one for (name, _, _), one in zip(left, located, strict=True)}
        for name, resume_at in found.items():
            if isinstance(resume_at, NotResumed):
                raise final_error(resume_at.error_type, f"channel {name!r}: {resume_at.error}")
        works = []
        for name, partition in own.items():
            if found[name] is not None:
                works.append(PartitionWork(name, partition, committed[name], found[name]))
        return works

    def run(
        self, settings: SinkSettings, token: ScopedToken, works: Sequence[PartitionWork]
    ) -> list[PartitionResult]:
        """Run one Spark task for each channel."""
        return one_task_each(self._spark, partial(load_partition, settings, token), list(works))


class FrameRounds(Rounds[FrameWork]):
    """Rounds in which Spark reads the rows of all channels by one query."""

    def __init__(self, spark: SparkContext | LocalTasks, source: FrameSource) -> None:
        super().__init__(spark)
        self._source = source

    def locate(
        self, partitions: Mapping[str, Partition], committed: Mapping[str, Offset | None]
    ) -> list[FrameWork]:
        """Ask the source, which asks Spark."""
        works = [
            FrameWork(name, partition, committed[name])
            for name, partition in partitions.items()
            if isinstance(partition, FramePartition)
        ]
        return _translated(lambda: self._source.locate(works))

    def run(
        self, settings: SinkSettings, token: ScopedToken, works: Sequence[FrameWork]
    ) -> list[PartitionResult]:
        """Run one query for all channels."""
        return _translated(lambda: _run_frame(self._source.frame(works), works, settings, token))

    def unfinished(self, works: Sequence[FrameWork], results: Sequence[PartitionResult]) -> list[FrameWork]:
        """The works of the next round, which need not read again what this one has committed."""
        reached = {result.channel: result.position for result in results}
        return [
            replace(work, committed=reached[work.channel] or work.committed)
            for work in super().unfinished(works, results)
        ]


def rounds_of(source: Source | None, spark: SparkContext | LocalTasks) -> Rounds[Any]:
    """Choose how a source's partitions become tasks."""
    return FrameRounds(spark, source) if isinstance(source, FrameSource) else TaskRounds(spark)


def one_task_each(spark: SparkContext | LocalTasks, work: Callable[[_T], _R], items: list[_T]) -> list[_R]:
    """Run one task for each item, in one job."""
    if isinstance(spark, LocalTasks):
        return spark.run(work, items)
    here = Versions.here()
    if is_connect(spark):
        here = replace(here, pyspark=None)
    checked = partial(in_same_version, here, work)
    if is_connect(spark):
        return _translated(lambda: one_connect_task_each(spark, checked, items))
    return _translated(lambda: spark.parallelize(items, len(items)).map(checked).collect())


def _translated(work: Callable[[], _R]) -> _R:
    """Do something with Spark; an error of ours that a task met is raised as it was there."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        return work()
    except (Py4JJavaError, PySparkException) as error:
        ours = error_of_task(str(error))
        if ours is None:
            raise
        raise ours from None

"""What runs in a Spark task around the sink: versions compared, positions found, rows of a query loaded."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Self, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_snowpipe import __version__
from airflow_provider_snowpipe.spark.source import CHANNEL, FrameWork, SourcePartition, release
from airflow_provider_snowpipe.spark.task.sink import SinkSettings, load_channel
from airflow_provider_snowpipe.streaming.auth import ScopedToken
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, ContinuityError, SnowpipeError
from airflow_provider_snowpipe.streaming.offsets import Offset

_T = TypeVar("_T")
_R = TypeVar("_R")

# -- The versions that an executor must have, and where a partition goes on ------------------------------


@dataclass(frozen=True, slots=True)
class Versions:
    """What a process runs.

    :param pyspark: PySpark's version; None where it may differ, because a Connect server stands between
    """

    pyspark: str | None
    package: str

    @classmethod
    def here(cls) -> Self:
        """The versions of this process."""
        import pyspark

        return cls(pyspark.__version__, __version__)

    def require(self, driver: Versions) -> None:
        """Refuse to work for a driver of other versions; called in every task before it does anything.

        :raises ConfigurationError: if a version differs
        """
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
    """Do one item's work in a task.

    :raises ConfigurationError: if this process runs another version than the driver
    """
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
    settings: SinkSettings,
    token: ScopedToken,
    works: Sequence[FrameWork],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Load one channel's rows as they arrive; runs in a Spark task. No rows, no channel is opened.

    :param works: all channels of the query
    :param batches: the rows of one of them
    """
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
    numbers = pc.unique(batch.column(CHANNEL)).to_pylist()
    if numbers != [works.index(work)]:
        others = sorted({works[number].channel for number in numbers} - {work.channel})
        raise ContinuityError(
            f"channel {work.channel!r}: its Spark task also got rows of {others}; run with "
            "spark.sql.adaptive.enabled=false"
        )
    return batch

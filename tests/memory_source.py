"""A source of rows in memory, and as much of Spark as its rounds need, both in this process."""

from __future__ import annotations

import json
import pickle
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.errors import PySparkException

from airflow_provider_snowpipe.spark.source import (
    CHANNEL,
    LINE,
    Behind,
    FramePartition,
    FrameSource,
    FrameWork,
    Source,
    SourcePartition,
    SourceSpec,
)
from airflow_provider_snowpipe.spark.task import sink
from airflow_provider_snowpipe.streaming.batch import Part
from airflow_provider_snowpipe.streaming.checkpoint import Binding
from airflow_provider_snowpipe.streaming.errors import SourcePositionError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset, Offset
from tests.checkpoints import binding_of


def rows(count: int, start: int = 0) -> tuple[dict[str, Any], ...]:
    return tuple({"ID": number} for number in range(start, start + count))


class _Positions:
    """What partitions whose rows are numbered have in common."""

    name: str
    offset_class: ClassVar[type[Offset]] = IntegerOffset

    @property
    def binding(self) -> Binding:
        return binding_of(self.name)

    def behind(self, committed: Offset | None) -> Behind:
        return Behind(None)


@dataclass(frozen=True)
class MemoryPartition(_Positions, SourcePartition[int]):
    """Rows whose position is their number from ``first``; each part has ``rows_per_part`` of them.

    Reading a part takes ``seconds_per_part`` by the sink's clock.
    """

    name: str
    rows: Sequence[Mapping[str, Any]]
    first: int = 0
    rows_per_part: int = 2
    seconds_per_part: float = 0.0
    gaps_legal = False

    def check(self, committed: Offset | None) -> None:
        if isinstance(committed, IntegerOffset) and committed.value < self.first - 1:
            raise SourcePositionError(f"position {committed} is not in the source any more")
        self.resume(committed)  # a source that knows its end says so before a channel is opened or dropped

    def resume(self, committed: Offset | None) -> int | None:
        first_row = self.first if not isinstance(committed, IntegerOffset) else committed.value + 1
        if first_row > self.first + len(self.rows):
            raise SourcePositionError(f"position {committed} lies behind the source's end")
        return first_row if first_row < self.first + len(self.rows) else None

    def read(self, first_row: int, limits: BatchLimits) -> Iterator[Part]:
        for start in range(first_row - self.first, len(self.rows), self.rows_per_part):
            sink.time.sleep(self.seconds_per_part)
            some = self.rows[start : start + self.rows_per_part]
            body = b"".join(json.dumps(row).encode() + b"\n" for row in some)
            low = self.first + start
            yield Part(body, IntegerOffset(low), IntegerOffset(low + len(some) - 1), len(some))


@dataclass
class MemorySource(Source):
    """Partitions in memory, and what the run moved the bookmark to."""

    own: Sequence[MemoryPartition]
    bookmark: dict[str, Offset] = field(default_factory=dict)

    def partitions(self) -> tuple[MemoryPartition, ...]:
        return tuple(self.own)

    def finish(self, committed: Mapping[str, Offset]) -> None:
        self.bookmark.update(committed)


@dataclass(frozen=True)
class MemorySpec(SourceSpec):
    """The specification of a memory source."""

    kind: str = "memory"
    offset_format = "integer"
    default_name = "memory"
    address = "memory:"


@dataclass(frozen=True)
class MemoryFramePartition(_Positions, FramePartition):
    """A partition of a query over rows in memory."""

    name: str
    rows: Sequence[Mapping[str, Any]]
    seconds_per_part: float = 0.0
    gaps_legal: bool = False

    def check(self, committed: Offset | None) -> None: ...

    def parts(
        self, batches: Iterator[pa.RecordBatch], committed: Offset | None, limits: BatchLimits
    ) -> Iterator[Part]:
        for batch in batches:
            for line, number in zip(batch.column(LINE), batch.column("number").to_pylist(), strict=True):
                position = IntegerOffset(number)
                if committed is None or position > committed:
                    sink.time.sleep(self.seconds_per_part)
                    yield Part(line.as_py().encode(), position, position, 1)


@dataclass
class MemoryFrameSource(FrameSource):
    """A query over rows in memory."""

    own: Sequence[MemoryFramePartition]
    asked: list[dict[str, Offset | None]] = field(default_factory=list)
    loses: int = 0

    def use(self, session: Any) -> None: ...

    def partitions(self) -> tuple[MemoryFramePartition, ...]:
        return tuple(self.own)

    def locate(self, works: Sequence[FrameWork]) -> list[FrameWork]:
        located = []
        for work in works:
            end = IntegerOffset(len(work.partition.rows) - 1)  # type: ignore[attr-defined]
            if work.committed is None or work.committed < end:
                located.append(FrameWork(work.channel, work.partition, work.committed, end))
        return located

    def frame(self, works: Sequence[FrameWork]) -> Any:
        self.asked.append({work.channel: work.committed for work in works})
        batches = []
        for number, work in enumerate(works):
            own = work.partition.rows  # type: ignore[attr-defined]
            begin = 0 if work.committed is None else work.committed.value + 1  # type: ignore[attr-defined]
            requested = range(begin, len(own) - self.loses)
            lines = [json.dumps(own[index]) + "\n" for index in requested]
            batches.append(
                pa.record_batch({CHANNEL: [number] * len(lines), LINE: lines, "number": list(requested)})
            )
        return MemoryFrame(batches)


@dataclass
class MemoryFrame:
    """A query's rows, a partition each."""

    partitions: Sequence[pa.RecordBatch]
    task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] | None = None

    def mapInArrow(self, task: Any, schema: str) -> MemoryFrame:  # noqa: N802  Spark's name
        assert schema == "result binary"
        return MemoryFrame(self.partitions, task)

    def collect(self) -> list[tuple[bytes]]:
        assert self.task is not None
        found: list[tuple[bytes]] = []
        for partition in self.partitions:
            found += [(row["result"],) for batch in self.task(iter([partition])) for row in batch.to_pylist()]
        return found


class InProcessSpark:
    """A Spark context whose tasks run here, one after the other; what travels is pickled."""

    def __init__(self, attempts: int = 1) -> None:
        self.attempts = attempts
        self.jobs: list[int] = []

    def parallelize(self, items: Iterable[Any], slices: int) -> _Collection:
        items = [pickle.dumps(item) for item in items]
        assert slices == len(items), "a task for each item"
        self.jobs.append(slices)
        return _Collection(self, items)

    def statusTracker(self) -> Any:  # noqa: N802  as Spark names it
        return SimpleNamespace(getActiveJobsIds=list)


@dataclass
class _Collection:
    spark: InProcessSpark
    items: list[bytes]
    work: Any = None

    def map(self, work: Callable[[Any], Any]) -> _Collection:
        return _Collection(self.spark, self.items, work)

    def collect(self) -> list[Any]:
        return [pickle.loads(self._tried(item)) for item in self.items]  # noqa: S301  made here

    def _tried(self, item: bytes, attempt: int = 1) -> bytes:
        try:
            return pickle.dumps(self.work(pickle.loads(item)))  # noqa: S301  made here
        except Exception:  # noqa: BLE001  as Spark does
            if attempt < self.spark.attempts:
                return self._tried(item, attempt + 1)
            text = traceback.format_exc()
            raise PySparkException(f"Job aborted due to stage failure:\n{text}\n\n") from None

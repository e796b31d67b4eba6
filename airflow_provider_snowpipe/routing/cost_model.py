"""What loading costs and how long it takes: every figure with its unit and its source, each one overridable.

Beside the figures stands what an author decides about a load: a forced path, a warehouse, thresholds.

Figures without a published source are marked as guesses. GB is 10^9 bytes throughout.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_snowpipe.routing.load_plan import (
    CompactAdvice,
    LoadPath,
    MeasuredLoad,
    PathEstimate,
    measured_floors,
)
from airflow_provider_snowpipe.streaming.arguments import check_numbers_and_switches, known_arguments
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.limits import (
    CHANNEL_BYTES_PER_SECOND,
    STREAM_LATENCY,
    TABLE_BYTES_PER_SECOND,
    DocumentedLimit,
)

if TYPE_CHECKING:
    from airflow_provider_snowpipe.routing.probes import DataShape

GB = 1e9
WRITTEN = "WRITTEN"
"""Stands for the format of files that are written only to be copied."""
_SIZES = ("X-SMALL", "SMALL", "MEDIUM", "LARGE", *(f"{number}X-LARGE" for number in ("", *range(2, 7))))
WAREHOUSE_CREDITS = {size: 1 << power for power, size in enumerate(_SIZES)}
"""Credits per hour of a standard warehouse, which also measure its power (page "Overview of warehouses")."""

_TERABYTES = (
    'blog post "Loading Terabytes Into Snowflake: Speeds, Feeds and Techniques", read in November 2026, '
    "4.7 TB of STORE_SALES"
)
_SIZING = 'page "Preparing your data files", read in November 2026'
_COMPUTE = 'page "Overview of warehouses", read in November 2026'
_NEXT_GENERATION = (
    'blog post "Introducing Our Next-Gen Snowpipe Streaming Architecture", read in November 2026'
)


def _figure(value: float, unit: str, source: str, *, guess: bool = False) -> Any:
    return dataclasses.field(default=value, metadata={"unit": unit, "source": source, "guess": guess})


def _limit(limit: DocumentedLimit) -> Any:
    return _figure(limit.value, limit.unit, limit.source)


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of the cost model."""

    name: str
    value: float
    unit: str
    source: str
    is_guess: bool


@dataclass(frozen=True, slots=True)
class CostModel:
    """The figures that estimates are made of; ``figures()`` gives the unit and the source of each."""

    stream_credits_per_gb: float = _figure(0.0037, "credits per uncompressed GB", _NEXT_GENERATION)
    pipe_credits_per_gb: float = _figure(
        0.0037,
        "credits per GB: text uncompressed, binary files as they are",
        'page "Snowpipe costs" for the rule; the amount as seen in PIPE_USAGE_HISTORY by seemoredata.io',
    )
    pipe_credits_per_1000_files: float = _figure(
        0.0, "credits", 'page "Snowpipe costs": none since the price per GB, 0.06 before'
    )
    warehouse_credit_factor: float = _figure(
        1.0, "times the table of warehouse sizes", "1 for first generation; about 1.35 for generation 2"
    )
    warehouse_minimum_seconds: float = _figure(60.0, "s billed for every resume", _COMPUTE)
    copy_csv_gb_per_credit: float = _figure(573.0, "uncompressed GB", f"{_TERABYTES}: 8.2 credits")
    copy_json_gb_per_credit: float = _figure(269.0, "uncompressed GB", f"{_TERABYTES}: 17.5 credits")
    copy_parquet_gb_per_credit: float = _figure(
        270.0, "uncompressed GB", f"{_TERABYTES}: 17.4 credits; 855 with USE_VECTORIZED_SCANNER"
    )
    copy_written_gb_per_credit: float = _figure(
        855.0,
        "uncompressed GB of rows that are written to Parquet for COPY",
        f"{_TERABYTES}: 5.5 credits with USE_VECTORIZED_SCANNER",
    )
    copy_other_gb_per_credit: float = _figure(
        270.0, "uncompressed GB", "Avro, ORC, XML and mixtures as Parquet", guess=True
    )
    copy_statement_seconds: float = _figure(
        2.0, "s of the warehouse beside the rows", "compiling and listing", guess=True
    )
    copy_file_seconds: float = _figure(0.1, "s of a thread for each file", "open and commit", guess=True)
    warehouse_threads: float = _figure(8.0, "files at once in an X-SMALL", "8 cores in a node", guess=True)
    stream_floor_seconds: float = _limit(STREAM_LATENCY)
    pipe_floor_seconds: float = _figure(
        90.0,
        "s until a file's rows can be queried",
        'page "Introduction to Snowpipe" gives none; about a minute is usual',
        guess=True,
    )
    copy_floor_seconds: float = _figure(
        30.0, "s until a statement's rows can be queried", "task start, sign-in, resume", guess=True
    )
    copy_shortest_interval: float = _figure(300.0, "s between two COPYs", "less is overhead", guess=True)
    copy_usual_interval: float = _figure(3600.0, "s between two COPYs at most", "an hourly DAG", guess=True)
    channel_bytes_per_second: float = _limit(CHANNEL_BYTES_PER_SECOND)
    table_bytes_per_second: float = _limit(TABLE_BYTES_PER_SECOND)
    pipe_bytes_per_second: float = _figure(300e6, "uncompressed bytes", "two serverless X-SMALL", guess=True)
    stage_bytes_per_second: float = _figure(100e6, "bytes put to a stage", "a gigabit line", guess=True)
    text_ratio: float = _figure(4.0, "times, compressed text", "gzip on logs and CSV", guess=True)
    columnar_ratio: float = _figure(3.6, "times, Parquet, ORC, Avro as text", f"{_TERABYTES}: 1.3 TB inside")
    bytes_per_row: float = _figure(164.0, "uncompressed bytes, where only rows are counted", _TERABYTES)
    smallest_file_bytes: float = _figure(100e6, "bytes as stored, lower end of the advice", _SIZING)
    largest_file_bytes: float = _figure(250e6, "bytes as stored, upper end of the advice", _SIZING)
    tiny_file_bytes: float = _figure(10e6, "bytes as stored", f"{_SIZING}, lower end of its older advice")
    huge_file_bytes: float = _figure(100e9, "bytes as stored", f"{_SIZING}: not recommended from here on")
    split_file_bytes: float = _figure(
        128e6, "bytes of a CSV file from which on many threads may read it", f"{_SIZING}: see splits_csv"
    )
    copy_longest_seconds: float = _figure(86_400.0, "s until a load may be aborted", f"{_SIZING}: 24 hours")

    def __post_init__(self) -> None:
        for figure in self.figures():
            is_none = figure.value == 0 and figure.name != "pipe_credits_per_1000_files"
            if is_none or not 0 <= figure.value < math.inf:
                raise ConfigurationError(
                    f"cost figure {figure.name} is {figure.value!r}: give a number above 0 ({figure.unit})"
                )

    @classmethod
    def with_figures(cls, figures: Mapping[str, Any]) -> Self:
        """Make a model of the published figures, some of them replaced."""
        if not isinstance(figures, Mapping):
            raise ConfigurationError(f"costs is {figures!r}: give a mapping, such as {{'text_ratio': 3}}")
        known = {one.name for one in dataclasses.fields(cls)}
        values: dict[str, float] = {}
        for name, value in figures.items():
            if name not in known:
                raise ConfigurationError(
                    f"cost figure {name!r} is unknown: use one of {', '.join(sorted(known))}"
                )
            try:
                values[name] = float(value)
            except (TypeError, ValueError):
                raise ConfigurationError(f"cost figure {name} is {value!r}: give a number") from None
        return cls(**values)

    def figures(self) -> tuple[Figure, ...]:
        """Every figure with its unit and its source, in the order of the fields."""
        return tuple(
            Figure(
                one.name,
                getattr(self, one.name),
                one.metadata["unit"],
                one.metadata["source"],
                one.metadata["guess"],
            )
            for one in dataclasses.fields(self)
        )

    def copy_bytes_per_second(self, file_format: str | None) -> float:
        """Uncompressed bytes that COPY reads in a second of an X-SMALL warehouse.

        :param file_format: None for a mixture, ``WRITTEN`` for Parquet that is written for this load
        """
        per_credit = {
            WRITTEN: self.copy_written_gb_per_credit,
            "CSV": self.copy_csv_gb_per_credit,
            "JSON": self.copy_json_gb_per_credit,
            "PARQUET": self.copy_parquet_gb_per_credit,
        }.get(file_format or "", self.copy_other_gb_per_credit)
        return per_credit * GB / 3600


# -- What an author decides about a load: a forced path, a warehouse, thresholds, figures ----------------

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class LoadPolicy:
    """The author's side of a plan; the defaults suit an account with a small warehouse and no file pipe.

    :param path: ``auto``, or the path to take whatever the shape: ``stream``, ``copy`` or ``pipe``
    :param warehouse: size of the warehouse that COPY runs in
    :param largest_warehouse: the largest size that a plan may ask for instead
    :param warehouse_is_running: True when it runs anyway, so that no minimum is billed for a COPY
    :param has_pipe: True when a file pipe for these files exists, so that bounded data may go through it
    :param may_make_pipe: False leaves the pipe out for files that keep arriving where there is none
    :param splits_csv: True where COPY reads CSV without compression by ``MULTI_LINE = FALSE`` and
        ``COMPRESSION = NONE``, with ``ON_ERROR`` of ``ABORT_STATEMENT`` or ``CONTINUE``: only then do many
        threads read one file (page "Preparing your data files")
    :param may_write_files: True when rows that are in no file may be written to files for COPY
    :param load_within: seconds that a bounded load without a freshness may take
    :param many_files: number of bounded files from which on they are a flood, whatever their size
    :param flood_bytes: uncompressed bytes from which on bounded data is a flood, whatever streaming costs
    :param band: how much better another path has to be than the previous one, as a fraction
    :param costs: the figures
    :param measured: seconds until a row could be queried in the last loads, by path, instead of the floors
    """

    path: str = AUTO
    warehouse: str = "X-SMALL"
    largest_warehouse: str = "X-LARGE"
    warehouse_is_running: bool = False
    has_pipe: bool = False
    may_make_pipe: bool = True
    splits_csv: bool = False
    may_write_files: bool = True
    load_within: float = 6 * 3600.0
    many_files: int = 1000
    flood_bytes: float = 100e9
    band: float = 0.25
    costs: CostModel = field(default_factory=CostModel)
    measured: Mapping[LoadPath, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path != AUTO and self.path not in list(LoadPath):
            raise ConfigurationError(f"path is {self.path!r}: give 'auto', 'stream', 'copy' or 'pipe'")
        for name in ("warehouse", "largest_warehouse"):
            if getattr(self, name) not in list(WAREHOUSE_CREDITS):
                raise ConfigurationError(
                    f"{name} is {getattr(self, name)!r}: give one of {', '.join(WAREHOUSE_CREDITS)}"
                )
        check_numbers_and_switches(self)
        if self.load_within <= 0 or self.many_files < 1 or self.flood_bytes <= 0:
            raise ConfigurationError(
                f"load_within={self.load_within}, many_files={self.many_files}, "
                f"flood_bytes={self.flood_bytes}: give numbers above 0"
            )
        if not isinstance(self.costs, CostModel):
            raise ConfigurationError(f"costs of policy is {self.costs!r}: give the argument costs instead")
        measured = self.measured
        if not isinstance(measured, Mapping) or any(
            path not in list(LoadPath) or not 0 < seconds < math.inf for path, seconds in measured.items()
        ):
            raise ConfigurationError(
                f"measured is {measured!r}: give seconds above 0 by 'stream', 'copy' or 'pipe'"
            )

    @classmethod
    def of(
        cls,
        policy: Mapping[str, Any] | None,
        costs: Mapping[str, Any] | None,
        loads: Sequence[MeasuredLoad] = (),
    ) -> Self:
        """Make the policy of an author's arguments."""
        given = costs or {}
        floors = {
            path: seconds
            for path, seconds in measured_floors(loads).items()
            if f"{path.value}_floor_seconds" not in given
        }
        own = known_arguments(cls, policy or {}, "policy")
        return cls(**{"costs": CostModel.with_figures(given), "measured": floors, **own})

    @property
    def forced(self) -> LoadPath | None:
        """The path that the author chose, None for ``auto``."""
        return None if self.path == AUTO else LoadPath(self.path)

    def floor(self, path: LoadPath) -> float:
        """Seconds until a row can be queried at best: as measured, or else by the figures."""
        figure: float = getattr(self.costs, f"{path.value}_floor_seconds")
        return self.measured.get(path, figure)


# -- What each load path costs and how long it takes ---------------------------------------------------

DAY = 86_400.0


def estimate_stream(shape: DataShape, policy: LoadPolicy) -> PathEstimate:
    """Estimate a load through channels: credits by uncompressed volume, time by the channels' limits."""
    costs, volume = policy.costs, shape.uncompressed(policy.costs)
    latency = policy.floor(LoadPath.STREAM)
    if not shape.bounded:
        per_day = volume * DAY / GB * costs.stream_credits_per_gb
        return PathEstimate(LoadPath.STREAM, per_day, latency, latency + _file_through_channel(shape, policy))
    seconds = latency + volume / stream_bytes_per_second(shape, policy)
    return PathEstimate(LoadPath.STREAM, volume / GB * costs.stream_credits_per_gb, latency, seconds)


def stream_bytes_per_second(shape: DataShape, policy: LoadPolicy) -> float:
    """The most that the channels of a shape's partitions take, uncompressed."""
    costs = policy.costs
    return min(shape.partitions * costs.channel_bytes_per_second, costs.table_bytes_per_second)


def estimate_pipe(shape: DataShape, policy: LoadPolicy) -> PathEstimate:
    """Estimate a load by a file pipe: credits by the volume that it bills, and by files where these cost."""
    costs, files = policy.costs, shape.files
    billed = shape.billed_by_pipe(costs)
    count = float(files.count) if files else 1.0
    if not shape.bounded:
        billed *= DAY
        count = DAY / files.interval if files and files.interval else DAY / 60
    credits = billed / GB * costs.pipe_credits_per_gb + count / 1000 * costs.pipe_credits_per_1000_files
    latency = policy.floor(LoadPath.PIPE)
    one = one_thread_seconds(shape, policy)
    seconds = latency + one
    if shape.bounded:
        together = shape.uncompressed(costs) / costs.pipe_bytes_per_second
        seconds = latency + _staging(shape, policy) + max(together, one)
    return PathEstimate(LoadPath.PIPE, credits, latency, seconds)


def estimate_copy(shape: DataShape, policy: LoadPolicy) -> PathEstimate:
    """Estimate a load by COPY: seconds of a warehouse, with its minimum; unbounded data at an interval.

    The size grows until the load takes no longer than it may. Without a freshness never so far that the
    billed minimum or the largest file counts; a freshness that a larger size keeps is paid for.
    """
    costs = policy.costs
    work = _work(shape, policy, shape.uncompressed(costs), shape.files.count if shape.files else 1)
    if shape.bounded:
        one, floor = one_thread_seconds(shape, policy), policy.floor(LoadPath.COPY)
        is_required = shape.freshness is not None and not shape.backfill
        size = _warehouse(work, _allowed(shape, policy), policy, one=one, whatever_it_costs=is_required)
        power = WAREHOUSE_CREDITS[size]
        seconds = floor + _staging(shape, policy) + max(work / power, one)
        credits = _credits(max(work, one * power), policy, power)
        return PathEstimate(LoadPath.COPY, credits, floor, seconds, warehouse=size)
    scheduled = _interval(shape, policy)
    arrival = shape.files.interval if shape.files and shape.files.interval else scheduled
    interval = max(scheduled, arrival)
    work = _work(shape, policy, shape.uncompressed(costs) * interval, interval / arrival)
    size = _warehouse(work, interval, policy)
    resumed = _credits(work, policy, WAREHOUSE_CREDITS[policy.warehouse])
    # A warehouse that never sleeps ends what resumes can cost.
    always = max(24.0 * WAREHOUSE_CREDITS[policy.warehouse], work * DAY / interval / 3600)
    credits = min(resumed * DAY / interval, always * costs.warehouse_credit_factor)
    latency = policy.floor(LoadPath.COPY) + scheduled
    seconds = latency + one_thread_seconds(shape, policy)
    return PathEstimate(LoadPath.COPY, credits, latency, seconds, warehouse=size, interval=interval)


def floor_seconds(path: LoadPath, shape: DataShape, policy: LoadPolicy) -> float:
    """Seconds until a row can be queried at best, whatever the volume."""
    scheduled = path is LoadPath.COPY and not shape.bounded
    return policy.floor(path) + (policy.costs.copy_shortest_interval if scheduled else 0.0)


def least_seconds(path: LoadPath, shape: DataShape, policy: LoadPolicy) -> float:
    """Seconds until the last row can be queried at best, with the largest warehouse that is allowed.

    Of unbounded data this is the last row of a file, and never where more arrives than the channels take.
    """
    if not shape.bounded:
        floor = floor_seconds(path, shape, policy)
        if path is not LoadPath.STREAM:
            return floor + one_thread_seconds(shape, policy)
        lags = shape.uncompressed(policy.costs) > stream_bytes_per_second(shape, policy)
        return math.inf if lags else floor + _file_through_channel(shape, policy)
    if path is LoadPath.STREAM:
        return estimate_stream(shape, policy).seconds
    if path is LoadPath.PIPE:
        return estimate_pipe(shape, policy).seconds
    work = _work(shape, policy, shape.uncompressed(policy.costs), shape.files.count if shape.files else 1)
    power = max(WAREHOUSE_CREDITS[size] for size in (policy.warehouse, policy.largest_warehouse))
    fixed = policy.floor(path) + _staging(shape, policy)
    return fixed + max(work / power, one_thread_seconds(shape, policy))


def one_thread_seconds(shape: DataShape, policy: LoadPolicy) -> float:
    """Seconds that the largest file takes: one thread reads a file, whatever its size."""
    costs, files = policy.costs, shape.files
    if files is None or not files.bytes:
        return 0.0
    largest = min(files.bytes, files.mean if files.largest is None else files.largest)
    is_csv = files.format == "CSV" and not files.compressed
    if policy.splits_csv and is_csv and largest > costs.split_file_bytes:
        return 0.0
    expansion = shape.uncompressed(costs) / files.bytes if shape.bounded else files.expansion(costs)
    volume = largest * expansion
    rate = costs.copy_bytes_per_second(files.format) / costs.warehouse_threads
    return volume / rate + costs.copy_file_seconds


def compact_advice(shape: DataShape, policy: LoadPolicy) -> CompactAdvice | None:
    """Advise how to combine thousands of tiny files, None where they are not so many or not so small."""
    files, costs = shape.files, policy.costs
    if not shape.bounded or files is None or files.count < policy.many_files:
        return None
    target = (costs.smallest_file_bytes + costs.largest_file_bytes) / 2
    combined = max(1, math.ceil(files.bytes / target))
    if files.mean >= costs.tiny_file_bytes:
        return None
    work = _work(shape, policy, shape.uncompressed(costs), combined)
    credits = _credits(work, policy, WAREHOUSE_CREDITS[policy.warehouse])
    return CompactAdvice(files.count, combined, files.bytes / combined, credits)


def _work(shape: DataShape, policy: LoadPolicy, volume: float, files: float) -> float:
    """Seconds of an X-SMALL warehouse."""
    costs = policy.costs
    read = volume / costs.copy_bytes_per_second(shape.files.format if shape.files else WRITTEN)
    return costs.copy_statement_seconds + read + files * costs.copy_file_seconds / costs.warehouse_threads


def _credits(work: float, policy: LoadPolicy, power: float) -> float:
    least = 0.0 if policy.warehouse_is_running else policy.costs.warehouse_minimum_seconds * power
    return max(work, least) / 3600 * policy.costs.warehouse_credit_factor


def _warehouse(
    work: float, allowed: float, policy: LoadPolicy, *, one: float = 0.0, whatever_it_costs: bool = False
) -> str:
    """The smallest size from the author's on that does the work in time."""
    sizes = list(WAREHOUSE_CREDITS)
    first, last = sizes.index(policy.warehouse), sizes.index(policy.largest_warehouse)
    usable = sizes[first : max(first, last) + 1]
    in_time = (size for size in usable if max(work / WAREHOUSE_CREDITS[size], one) <= allowed)
    if whatever_it_costs and (enough := next(in_time, None)):
        return enough
    longest, size = max(allowed, 2 * policy.costs.warehouse_minimum_seconds), usable[0]
    for larger in usable[1:]:
        if work / WAREHOUSE_CREDITS[size] <= longest or work / WAREHOUSE_CREDITS[larger] < one:
            break
        size = larger
    return size


def _allowed(shape: DataShape, policy: LoadPolicy) -> float:
    if shape.freshness is None or shape.backfill:
        return policy.load_within
    return max(0.0, shape.freshness - policy.floor(LoadPath.COPY) - _staging(shape, policy))


def _interval(shape: DataShape, policy: LoadPolicy) -> float:
    """Seconds between two scheduled COPYs; where files come more rarely, nothing is done in between."""
    costs = policy.costs
    if shape.freshness is None:
        return costs.copy_usual_interval
    read = policy.floor(LoadPath.COPY) + one_thread_seconds(shape, policy)
    possible = max(costs.copy_shortest_interval, shape.freshness - read)
    return min(costs.copy_usual_interval, possible)


def _file_through_channel(shape: DataShape, policy: LoadPolicy) -> float:
    """Seconds in which one channel takes a file of those that keep arriving: its rows have an order."""
    costs, files = policy.costs, shape.files
    if files is None or shape.live_into_files:
        return 0.0
    return files.mean * files.expansion(costs) / costs.channel_bytes_per_second


def _staging(shape: DataShape, policy: LoadPolicy) -> float:
    """Seconds to bring bounded data to a stage."""
    costs, files = policy.costs, shape.files
    if files is not None and files.staged:
        return 0.0
    stored = files.bytes if files is not None else shape.uncompressed(costs) / costs.columnar_ratio
    return stored / costs.stage_bytes_per_second

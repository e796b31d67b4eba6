"""What loading costs and how long it takes: every figure with its unit and its source, each one overridable.

Beside the figures stands what an author decides about a load: a forced path, a warehouse, thresholds.

Figures without a published source are marked as guesses. GB is 10^9 bytes throughout.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from airflow_provider_snowpipe.routing.load_plan import LoadPath, MeasuredLoad, measured_floors
from airflow_provider_snowpipe.streaming.arguments import check_numbers_and_switches, known_arguments
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.limits import (
    CHANNEL_BYTES_PER_SECOND,
    STREAM_LATENCY,
    TABLE_BYTES_PER_SECOND,
    DocumentedLimit,
)

GB = 1e9
WRITTEN = "WRITTEN"
"""Stands for the format of files that are written only to be copied."""
WAREHOUSE_CREDITS = {
    "X-SMALL": 1,
    "SMALL": 2,
    "MEDIUM": 4,
    "LARGE": 8,
    "X-LARGE": 16,
    "2X-LARGE": 32,
    "3X-LARGE": 64,
    "4X-LARGE": 128,
    "5X-LARGE": 256,
    "6X-LARGE": 512,
}
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
    """One figure of the cost model.

    :param name: the field of :class:`CostModel`
    :param source: who published it, or what the guess rests on
    :param is_guess: True when nobody published it
    """

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
    copy_file_seconds: float = _figure(
        0.1, "s of one thread for each file", "one open and one commit", guess=True
    )
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
    copy_shortest_interval: float = _figure(
        300.0, "s between two scheduled COPYs", "a DAG run in less is all overhead", guess=True
    )
    copy_usual_interval: float = _figure(
        3600.0, "s between two scheduled COPYs at most", "an hourly DAG", guess=True
    )
    channel_bytes_per_second: float = _limit(CHANNEL_BYTES_PER_SECOND)
    table_bytes_per_second: float = _limit(TABLE_BYTES_PER_SECOND)
    pipe_bytes_per_second: float = _figure(
        300e6, "uncompressed bytes", "two X-SMALL of serverless", guess=True
    )
    stage_bytes_per_second: float = _figure(100e6, "bytes put to a stage", "a gigabit line", guess=True)
    text_ratio: float = _figure(
        4.0, "times, when compressed text is read", "gzip on logs and CSV", guess=True
    )
    columnar_ratio: float = _figure(
        3.6, "times, Parquet, ORC and Avro as text", f"{_TERABYTES}: 1.3 TB inside"
    )
    bytes_per_row: float = _figure(164.0, "uncompressed bytes, where only rows are counted", _TERABYTES)
    smallest_file_bytes: float = _figure(100e6, "bytes as stored, lower end of the advice", _SIZING)
    largest_file_bytes: float = _figure(250e6, "bytes as stored, upper end of the advice", _SIZING)
    tiny_file_bytes: float = _figure(10e6, "bytes as stored", f"{_SIZING}, lower end of its older advice")
    huge_file_bytes: float = _figure(100e9, "bytes as stored", f"{_SIZING}: not recommended from here on")
    split_file_bytes: float = _figure(
        128e6, "bytes of a CSV file from which on many threads may read it", f"{_SIZING}: see splits_csv"
    )
    copy_longest_seconds: float = _figure(
        86_400.0, "s after which a load may be aborted", f"{_SIZING}: 24 hours"
    )

    def __post_init__(self) -> None:
        for figure in self.figures():
            least = 0 if figure.name == "pipe_credits_per_1000_files" else math.ulp(0)
            if not (math.isfinite(figure.value) and figure.value >= least):
                raise ConfigurationError(
                    f"cost figure {figure.name} is {figure.value!r}: give a number above 0 ({figure.unit})"
                )

    @classmethod
    def with_figures(cls, figures: Mapping[str, Any]) -> Self:
        """Make a model of the published figures, some of them replaced.

        :param figures: name of a figure to its value, a number or its text
        :raises ConfigurationError: if a name or a value is wrong
        """
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

        :param file_format: ``CSV``, ``JSON``, ``PARQUET``, another format, None for a mixture, or
            ``WRITTEN`` for Parquet that is written for this load
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
    :param may_make_pipe: True when one may be made for files that keep arriving, False leaves the pipe out
        where there is none
    :param splits_csv: True where COPY reads CSV without compression by ``MULTI_LINE = FALSE`` and
        ``COMPRESSION = NONE``, with ``ON_ERROR`` of ``ABORT_STATEMENT`` or ``CONTINUE``: only then do many
        threads read one file (page "Preparing your data files")
    :param may_write_files: True when rows that are in no file may be written to files for COPY
    :param load_within: seconds that a bounded load without a freshness may take
    :param many_files: number of bounded files from which on they are a flood, whatever their size
    :param flood_bytes: uncompressed bytes from which on bounded data is a flood, whatever streaming costs
    :param band: how much better another path has to be than the previous one, as a fraction
    :param costs: the figures
    :param measured: seconds until a row could be queried in the last loads, by path, which go before the
        floors of the figures
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
        """Make the policy of an author's arguments.

        :param policy: its parameters
        :param costs: figures of the cost model to replace, by name
        :param loads: the last loads of the table, whose latency goes before floors that the author does not
            give
        :raises ConfigurationError: if one is wrong
        """
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

"""What a load plan holds, how it reads in a log, and what earlier loads of the table have shown."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self, TypeVar

from airflow_provider_snowpipe.streaming.checked_values import checked_values


class LoadPath(StrEnum):
    """The three ways into a table."""

    STREAM = "stream"
    COPY = "copy"
    PIPE = "pipe"


class Concern(StrEnum):
    """What a plan warns of."""

    MICRO_BATCHES = "micro_batches"
    FLOOD_THROUGH_STREAM = "flood_through_stream"
    TINY_FILES = "tiny_files"
    HUGE_FILE = "huge_file"
    TWO_LOADERS = "two_loaders"
    OLD_FILES = "old_files"
    NOT_FRESH = "not_fresh"
    SLOW = "slow"
    TABLE_LIMIT = "table_limit"
    UNFIT = "unfit"


@dataclass(frozen=True, slots=True)
class PlanWarning:
    """Something that the plan's reader should know.

    :param concern: what it is about
    :param text: in words, with the remedy
    """

    concern: Concern
    text: str


@dataclass(frozen=True, slots=True)
class PathEstimate:
    """What one path would cost, and how long it would take.

    :param path: the path
    :param credits: Snowflake credits, for bounded data of all of it, for unbounded data of a day
    :param latency: seconds until the first rows can be queried, whatever the volume
    :param seconds: seconds until all of the bounded data can be queried; of unbounded data, until the last
        row of a file can
    :param unfit: why the path does not suit this shape, None where it does
    :param warehouse: for COPY the size of the warehouse
    :param interval: for COPY of unbounded data the seconds between two statements
    """

    path: LoadPath
    credits: float
    latency: float
    seconds: float
    unfit: str | None = None
    warehouse: str | None = None
    interval: float | None = None


@dataclass(frozen=True, slots=True)
class CompactAdvice:
    """How many files to make of too many.

    :param files: files that there are
    :param combined: files to make of them
    :param file_bytes: bytes of each, as stored
    :param credits: credits of a COPY of the combined files
    """

    files: int
    combined: int
    file_bytes: float
    credits: float


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The path to take, why, and what each path would have cost.

    :param path: the path
    :param reasons: in words, the strongest first
    :param estimates: one for each path, in the order stream, copy, pipe
    :param warnings: what to know, and what to do about it
    :param per_day: True when credits are those of a day, False when they are those of the whole load
    :param is_forced: True when the author chose the path
    :param compact: how to combine the files first, None where that is not worth it
    :param nothing_to_load: True if there is no data: the path is that of the run before, or the
        one that finds it out with the least effort
    """

    path: LoadPath
    reasons: tuple[str, ...]
    estimates: tuple[PathEstimate, ...]
    warnings: tuple[PlanWarning, ...] = ()
    per_day: bool = False
    is_forced: bool = False
    compact: CompactAdvice | None = None
    nothing_to_load: bool = False

    def estimate(self, path: LoadPath | None = None) -> PathEstimate:
        """The estimate of one path, by default of the chosen one."""
        return next(one for one in self.estimates if one.path == (path or self.path))

    def as_json(self) -> dict[str, Any]:
        """The plan as a JSON object, for a task's value."""
        found: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return found

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self | None:
        """Read what :meth:`as_json` made, among other keys; None if it is not a plan of this release."""
        try:
            own = {one.name: value[one.name] for one in dataclasses.fields(cls)}
            own = checked_values(cls, own, "plan", skip_types=_NESTED)
            return cls(
                **{
                    **own,
                    "path": LoadPath(own["path"]),
                    "estimates": tuple(_built(PathEstimate, one, path=LoadPath) for one in own["estimates"]),
                    "warnings": tuple(_built(PlanWarning, one, concern=Concern) for one in own["warnings"]),
                    "compact": None if own["compact"] is None else _built(CompactAdvice, own["compact"]),
                }
            )
        except (KeyError, TypeError, ValueError):
            return None

    def table(self) -> list[dict[str, str]]:
        """The paths side by side, each cell in words."""
        unit = "credits per day" if self.per_day else "credits"
        return [
            {
                "path": one.path.value,
                "chosen": ("forced" if self.is_forced else "yes") if one.path == self.path else "",
                unit: credit_count(one.credits),
                "first rows": duration(one.latency),
                "all rows": "" if self.per_day else duration(one.seconds),
                "with": _with(one),
                "against": one.unfit or "",
            }
            for one in self.estimates
        ]

    def lines(self) -> list[str]:
        """The plan in words, a line for each reason, piece of advice and warning."""
        found = [f"path {self.path.value}{' (forced)' if self.is_forced else ''}: {self.reasons[0]}"]
        found += [f"also: {reason}" for reason in self.reasons[1:]]
        if self.compact is not None:
            found.append(
                f"advice: combine the {self.compact.files:,} files to {self.compact.combined:,} of about "
                f"{size(self.compact.file_bytes)} first, by compact=True of SnowpipeStageFilesOperator; "
                f"their COPY costs {credit_count(self.compact.credits)} credits"
            )
        return found + [f"warning ({one.concern.value}): {one.text}" for one in self.warnings]


_NESTED = frozenset({"path", "estimates", "warnings", "compact"})
Built = TypeVar("Built")


def _built(kind: type[Built], value: Any, **enums: type[StrEnum]) -> Built:
    """Build a part of a plan; a value of another type, such as a number that is a text, is refused."""
    given = checked_values(kind, value, "plan", skip_types=frozenset(enums))
    return kind(**{**given, **{name: enum(given[name]) for name, enum in enums.items()}})


def _with(estimate: PathEstimate) -> str:
    words = [] if estimate.warehouse is None else [f"warehouse {estimate.warehouse}"]
    if estimate.interval is not None:
        words.append(f"every {duration(estimate.interval)}")
    return ", ".join(words)


# -- Numbers as a person reads them: sizes, durations, credits -------------------------------------------

_SIZES = (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
_DURATIONS = (("days", 172_800.0, 86_400.0), ("h", 7_200.0, 3_600.0), ("min", 120.0, 60.0))


def size(count: float) -> str:
    """Write a number of bytes in decimal units, such as ``2.5 GB``."""
    for unit, one in _SIZES:
        if count >= one:
            return f"{_short(count / one)} {unit}"
    return f"{_short(count)} bytes"


def duration(seconds: float) -> str:
    """Write a duration in the unit that suits it, such as ``90 s`` or ``5 min``."""
    for unit, least, one in _DURATIONS:
        if seconds >= least:
            return f"{_short(seconds / one)} {unit}"
    return f"{_short(seconds)} s"


def credit_count(credits: float) -> str:
    """Write a number of credits with three digits that count."""
    return "0" if credits == 0 else f"{credits:,.0f}" if credits >= 1000 else f"{credits:.3g}"


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 or number == int(number) else f"{number:.3g}"


# -- What the last loads of a table took, as the next plan takes it into account -------------------------

MOST_KEPT = 20
ENOUGH = 3
"""Loads by a path from which on their latency counts more than the figures."""


@dataclass(frozen=True, slots=True)
class MeasuredLoad:
    """One load.

    :param seconds: from the beginning of the task until all rows could be queried
    :param latency: those of them that the volume does not explain, None where that is not known
    """

    table: str
    path: LoadPath
    seconds: float
    latency: float | None = None
    credits: float | None = None
    credits_from: str | None = None
    query_tag: str | None = None
    ended: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """The load as a JSON object."""
        return {**dataclasses.asdict(self), "path": self.path.value}


def kept_loads(kept: Any, table: str) -> tuple[MeasuredLoad, ...]:
    """Read the loads that a run before has kept; what is something else is left out."""
    names = {one.name for one in dataclasses.fields(MeasuredLoad)}
    found = [
        MeasuredLoad(**{**one, "path": LoadPath(one["path"])})
        for one in (kept if isinstance(kept, list) else [])
        if isinstance(one, Mapping) and set(one) == names and one["path"] in list(LoadPath)
    ]
    return tuple(one for one in found if one.table == table)[-MOST_KEPT:]


def measured_floors(loads: Iterable[MeasuredLoad]) -> dict[LoadPath, float]:
    """The median latency of each path that has loads enough."""
    latencies: dict[LoadPath, list[float]] = {}
    for load in loads:
        if load.latency is not None and load.latency > 0:
            latencies.setdefault(load.path, []).append(load.latency)
    return {path: statistics.median(found) for path, found in latencies.items() if len(found) >= ENOUGH}


def measured_latency(estimate: Mapping[str, Any], seconds: float) -> float:
    """The seconds of a load that its volume does not explain, at most those that were estimated or taken."""
    rest = seconds - (float(estimate["seconds"]) - float(estimate["latency"]))
    return rest if rest > 0 else min(seconds, float(estimate["latency"]))


def outcome_of(
    plan: Any,
    path: str,
    actual: Mapping[str, Any],
    load: MeasuredLoad | None = None,
    before: Sequence[MeasuredLoad] = (),
) -> dict[str, Any]:
    """Put what a load did beside the estimate of its path."""
    estimated: dict[str, Any] = {}
    planned = None
    if isinstance(plan, Mapping):
        planned = plan.get("path")
        found: Mapping[str, Any] = next((one for one in plan["estimates"] if one["path"] == path), {})
        costs = {name: found.get(name) for name in ("seconds", "credits")}
        estimated = {**plan.get("expected", {}), **costs}
    cost: dict[str, Any] = {}
    if load is not None:
        cost = {"latency": load.latency, "credits": load.credits, "credits_from": load.credits_from}
    own = [load] if load is not None and actual["rows"] else []
    return {
        "path": path,
        "planned": planned,
        "estimated": estimated,
        "actual": {**actual, **cost},
        "loads": [one.as_json() for one in [*before, *own][-MOST_KEPT:]],
    }

"""A load plan: the path that data takes into a table, and what speaks for it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from airflow_provider_snowpipe.routing.in_words import credit_count, duration, size


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
    :param nothing_to_load: True for data of which there is none: the path is that of the run before, or the
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
        """The estimate of one path.

        :param path: the path, None for the chosen one
        """
        return next(one for one in self.estimates if one.path == (path or self.path))

    def as_json(self) -> dict[str, Any]:
        """The plan as a JSON object, for a task's value."""
        found: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return found

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
                "their COPY costs "
                f"{credit_count(self.compact.credits)} credits"
            )
        return found + [f"warning ({one.concern.value}): {one.text}" for one in self.warnings]


def _with(estimate: PathEstimate) -> str:
    words = [] if estimate.warehouse is None else [f"warehouse {estimate.warehouse}"]
    if estimate.interval is not None:
        words.append(f"every {duration(estimate.interval)}")
    return ", ".join(words)

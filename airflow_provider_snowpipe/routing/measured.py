"""What the last loads of a table took, as the next plan takes it into account."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_snowpipe.routing.load_plan import LoadPath

MOST_KEPT = 20
"""Loads of a table that are kept."""
ENOUGH = 3
"""Loads by a path from which on their latency counts more than the figures."""


@dataclass(frozen=True, slots=True)
class MeasuredLoad:
    """One load.

    :param table: the table, or the pipe that stands for it
    :param path: the path that was taken
    :param seconds: from the beginning of the task until all rows could be queried
    :param latency: those of them that the volume does not explain, None where that is not known
    :param credits: what it cost, None for unknown
    :param credits_from: what the credits are known from
    :param query_tag: of its statements, for a load by COPY
    :param ended: when it ended, in seconds since 1970
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
    """Read the loads that a run before has kept; what another release has written otherwise is left out.

    :param kept: a list of JSON objects, as :meth:`MeasuredLoad.as_json` makes them
    :param table: loads of this table only
    """
    names = {one.name for one in dataclasses.fields(MeasuredLoad)}
    found = [
        MeasuredLoad(**{**one, "path": LoadPath(one["path"])})
        for one in (kept if isinstance(kept, list) else [])
        if isinstance(one, Mapping) and set(one) == names and one["path"] in list(LoadPath)
    ]
    return tuple(one for one in found if one.table == table)[-MOST_KEPT:]


def measured_floors(loads: Iterable[MeasuredLoad]) -> dict[LoadPath, float]:
    """The median latency of each path of which there are loads enough.

    :param loads: the last loads of a table
    """
    latencies: dict[LoadPath, list[float]] = {}
    for load in loads:
        if load.latency is not None:
            latencies.setdefault(load.path, []).append(load.latency)
    return {path: statistics.median(found) for path, found in latencies.items() if len(found) >= ENOUGH}


def measured_latency(estimate: Mapping[str, Any], seconds: float) -> float:
    """The seconds of a load that its volume does not explain.

    Where the volume was estimated to take longer than the whole load, nothing is learned but that the latency
    is no longer than it.

    :param estimate: ``seconds`` and ``latency`` that were estimated
    :param seconds: what it took
    """
    rest = seconds - (float(estimate["seconds"]) - float(estimate["latency"]))
    return rest if rest > 0 else min(seconds, float(estimate["latency"]))

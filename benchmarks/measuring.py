"""What a piece of work costs, in turns with its peer, and whether a ratio reaches its target."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil


@dataclass(frozen=True)
class Cost:
    """The cost of one round.

    :param wall: seconds that passed
    :param cpu: processor seconds, user and system, of all processes that worked on it
    """

    wall: float
    cpu: float


@dataclass(frozen=True)
class Target:
    """One line of the result.

    :param what: what was compared
    :param measured: the ratio
    :param required: the ratio to reach, None where there is none
    :param at_most: True where less is better
    :param detail: the medians behind it
    """

    what: str
    measured: float
    required: float | None
    detail: str
    at_most: bool = False

    @property
    def is_met(self) -> bool:
        """True when the target is reached, or there is none."""
        if self.required is None:
            return True
        return self.measured <= self.required if self.at_most else self.measured >= self.required


@dataclass
class Stopwatch:
    """Measures wall time, and the processor time of this process and all that it started.

    :param strangers: processes among those whose time does not count, such as a receiver
    """

    strangers: frozenset[int] = field(default_factory=frozenset)

    def time(self, work: Callable[[], object]) -> Cost:
        """Do the work once."""
        cpu, began = self._cpu(), time.perf_counter()
        work()
        wall = time.perf_counter() - began
        return Cost(wall, self._cpu() - cpu)

    def _cpu(self) -> float:
        """Processor seconds so far; those of children that ended are in their parents' account."""
        return sum(self._of(process) for process in self._family(psutil.Process()))

    def _family(self, process: psutil.Process) -> Iterable[psutil.Process]:
        yield process
        for child in process.children(recursive=True):
            if child.pid not in self.strangers:
                yield child

    @staticmethod
    def _of(process: psutil.Process) -> float:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            return 0.0
        return float(times.user + times.system + times.children_user + times.children_system)


def interleaved(
    rounds: int,
    watch: Stopwatch,
    works: Mapping[str, Callable[[], object]],
    *,
    prepare: Callable[[], object] = lambda: None,
    settle: Callable[[], object],
    warm_up: int = 1,
) -> dict[str, Cost]:
    """Medians of several works, measured in turns after rounds that warm up.

    :param rounds: rounds that count
    :param watch: measures them
    :param works: what to do, by name
    :param prepare: called before each one, outside its time
    :param settle: called after it, outside its time as well
    :param warm_up: rounds before them that do not count
    """
    costs: dict[str, list[Cost]] = {name: [] for name in works}
    for number in range(warm_up + rounds):
        for name, work in works.items():
            prepare()
            cost = watch.time(work)
            settle()
            print(
                f"round {number} {name}: {cost.wall:.2f} s, {cost.cpu:.2f} CPU-s", file=sys.stderr, flush=True
            )
            if number >= warm_up:
                costs[name].append(cost)
    return {
        name: Cost(
            statistics.median(cost.wall for cost in found), statistics.median(cost.cpu for cost in found)
        )
        for name, found in costs.items()
    }


def table_of(targets: Iterable[Target]) -> str:
    """The results as a table of three columns and what is behind them."""
    lines = [("what", "measured", "target", "")]
    for one in targets:
        sign = "<=" if one.at_most else ">="
        required = "none" if one.required is None else f"{sign} {one.required:g}"
        verdict = "" if one.is_met else "MISSED "
        lines.append((one.what, f"{one.measured:.2f}", required, f"{verdict}{one.detail}"))
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    return "\n".join(
        " | ".join([line[0].ljust(widths[0]), line[1].rjust(widths[1]), line[2].ljust(widths[2]), line[3]])
        for line in lines
    )


def report(targets: Sequence[Target], **facts: Any) -> int:
    """Print the results as a table, and in the last line as JSON, where ``python -m benchmarks`` reads them.

    :param facts: how they were measured, and what else was
    :return: the exit code: 1 where a target is missed
    """
    print(table_of(targets))
    print(json.dumps({**facts, "load": os.getloadavg()[0], "results": [asdict(one) for one in targets]}))
    return int(not all(one.is_met for one in targets))


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had, 0 for one that has ended.

    :param pid: its id
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:  # it has ended
        return 0
    peak = next((line for line in status.splitlines() if line.startswith("VmHWM:")), "VmHWM: 0 kB")
    return int(peak.split()[1]) * 1024

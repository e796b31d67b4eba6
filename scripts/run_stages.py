"""Run the stages of ``make quick``, ``make test`` and ``make nightly``; sum up what they took and skipped.

    python scripts/run_stages.py RUN [STAGE…]

``scripts/stages.toml`` lists which stages a run has and what each executes. A stage that fails fails the run;
the others still run and report. What a stage prints is kept in ``.stages/RUN/STAGE.log`` and shown when it
ends.

A stage that takes over 10 % more CPU seconds than its committed figure fails, too. The limit is fair on a
busy or a slow machine: it counts CPU seconds, not wall time, and while stages run it measures what a fixed
piece of work costs (:class:`Yardstick`). Where that costs more than on the machine of the committed figures,
the limit rises in proportion. The summary names each stage that takes over 10 % less: lower its figure.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

REPOSITORY = Path(__file__).parents[1]
STAGES = REPOSITORY / "scripts" / "stages.toml"
WORKERS = 4
"""Test processes at a time: there are two cores, and each waits half its time for what it has started."""
TOLERANCE = 0.1
SLACK = 3.0
"""CPU seconds that a stage may differ by at least: a tenth of a small figure is noise."""
SLOWEST = 10
_END_SECONDS = 90.0  # for fixtures to end what they started
_SKIPPED_STAGE = re.compile(r"^\S+: SKIPPED: (.+)$", re.MULTILINE)
_MISSING = {
    "Chromium": re.compile("chromium|chromedriver", re.IGNORECASE),
    "Maven": re.compile(r"maven|\bmvn\b|cannot be fetched", re.IGNORECASE),
    "npm": re.compile(r"\bnpm\b", re.IGNORECASE),
    "PyPI": re.compile(r"pypi|cannot be installed", re.IGNORECASE),
}


@dataclass(frozen=True, slots=True)
class Stage:
    """One command of a run.

    :param workers: how many test processes it has
    :param cpu_seconds: the committed figure, on a quiet machine
    :param minutes: after which it is stopped
    """

    name: str
    command: str
    workers: int = 1
    cpu_seconds: float | None = None
    minutes: float = 60.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a stage; ``result`` is ``passed``, ``skipped``, or what went wrong."""

    stage: Stage
    result: str
    wall: float = 0.0
    cpu: float = 0.0
    tests: Sequence[tuple[str, float, float]] = ()
    skips: Sequence[tuple[str, str, int]] = ()
    failures: Sequence[tuple[str, str]] = ()
    slowness: float = 1.0

    @property
    def failed(self) -> bool:
        """Whether the run fails with it."""
        return self.result not in ("passed", "skipped") or self.grew

    @property
    def grew(self) -> bool:
        """Whether it took too many CPU seconds, even for a machine as slow as this one."""
        return self.stage.cpu_seconds is not None and self.cpu > max(1.0, self.slowness) * self._limit(1)

    @property
    def shrank(self) -> bool:
        """Whether its committed figure is too high, even for a machine as quick as this one."""
        passed = self.stage.cpu_seconds is not None and self.result == "passed"
        return passed and self.cpu < min(1.0, self.slowness) * self._limit(-1)

    def _limit(self, sign: int) -> float:
        committed = self.stage.cpu_seconds or 0.0
        return committed + sign * max(TOLERANCE * committed, SLACK)


class Yardstick:
    """Measures how slow the processor is while stages run, by a piece of work that is always the same.

    Beside other programs, or on another machine, the same computation costs more CPU seconds.

    :param committed: CPU seconds of the work on the machine of the committed figures; None measures nothing
    """

    EVERY_SECONDS = 5.0
    WORK = "value = [{'a': call(1, *args), 'b': left + right} for left, right in pairs if left]\n" * 600

    def __init__(self, committed: float | None = None) -> None:
        self._committed = committed
        self._measured: list[float] = []
        if committed is not None:
            threading.Thread(target=self._measure, daemon=True).start()

    def _measure(self) -> None:
        while True:
            self._measured.append(self.once())
            time.sleep(self.EVERY_SECONDS)

    @classmethod
    def once(cls) -> float:
        """CPU seconds of the work now."""
        began = time.thread_time()
        ast.parse(cls.WORK)
        return time.thread_time() - began

    def mark(self) -> int:
        """A point of time for :meth:`slowness_since`."""
        return len(self._measured)

    def slowness_since(self, mark: int = 0) -> float:
        """How many times the committed CPU seconds the work has cost since then."""
        measured = self._measured[mark:]
        return statistics.fmean(measured) / self._committed if measured and self._committed else 1.0


@dataclass(slots=True)
class Run:
    """A run of stages, as many beside each other as there is room for their workers.

    They begin in their order; one that finds no room holds up none behind it that does.

    :param minutes: after which what runs is stopped, and what did not run is left out
    """

    stages: Sequence[Stage]
    minutes: float
    folder: Path
    environment: Mapping[str, str]
    yardstick: Yardstick = field(default_factory=Yardstick)
    outcomes: list[Outcome] = field(default_factory=list)
    _free: int = WORKERS
    _ending: bool = False
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _processes: set[subprocess.Popen[bytes]] = field(default_factory=set)

    def execute(self) -> list[Outcome]:
        """Run all of them; the outcomes in the order of the stages."""
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            # A shell starts a run in the background so; no stage would end when it is asked to.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        end = time.monotonic() + 60 * self.minutes
        waiting = list(self.stages)
        threads: list[threading.Thread] = []
        try:
            while waiting:
                with self._changed:
                    while not (fitting := [one for one in waiting if self._needs(one) <= self._free]):
                        self._changed.wait()
                    self._free -= self._needs(fitting[0])
                waiting.remove(fitting[0])
                threads.append(threading.Thread(target=self._run, args=(fitting[0], end)))
                threads[-1].start()
            for thread in threads:
                thread.join()
        finally:
            self._end()
        return sorted(self.outcomes, key=lambda one: self.stages.index(one.stage))

    def _end(self) -> None:
        """Interrupt what still runs, and kill it after some seconds or at a second interrupt."""
        with self._changed:
            self._ending = True
            try:
                for process in self._processes:
                    _interrupt(process)
                # Not by Thread.join: Python 3.11 takes a thread for ended whose join was interrupted.
                self._changed.wait_for(lambda: not self._processes, _END_SECONDS)
            finally:
                for process in self._processes:
                    kill_session(process)

    @staticmethod
    def _needs(stage: Stage) -> int:
        return min(stage.workers, WORKERS)

    def _run(self, stage: Stage, end: float) -> None:
        seconds = min(60 * stage.minutes, end - time.monotonic())
        outcome = Outcome(stage, "failed: no result")
        try:
            if seconds > 0:
                outcome = self._execute(stage, seconds)
            else:
                outcome = Outcome(stage, "not run: the run is out of time")
        finally:
            with self._changed:
                self.outcomes.append(outcome)
                self._free += self._needs(stage)
                self._changed.notify_all()

    def _execute(self, stage: Stage, seconds: float) -> Outcome:
        log, reports = self.folder / f"{stage.name}.log", self.folder / f"{stage.name}.tests"
        reports.mkdir(parents=True, exist_ok=True)
        for old in reports.iterdir():
            old.unlink()
        began, mark = time.monotonic(), self.yardstick.mark()
        print(f"==> {stage.name}: {stage.command.strip()}", flush=True)
        with log.open("wb") as output:
            # Begun and listed in one step: what is not listed is not ended by an interrupt.
            with self._changed:
                if self._ending:
                    return Outcome(stage, "not run: the run was interrupted")
                process = subprocess.Popen(
                    ["bash", "-euo", "pipefail", "-c", stage.command],
                    cwd=REPOSITORY,
                    env={**self.environment, "SNOWPIPE_TEST_REPORTS": str(reports)},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # a stage that is stopped takes its processes with it
                )
                self._processes.add(process)
            with _stopped_after(process, seconds) as stopped:
                _, status, used = os.wait4(process.pid, 0)
            with self._changed:
                self._processes.discard(process)
        process.returncode = os.waitstatus_to_exitcode(status)
        text = log.read_text(errors="replace")
        result = "passed" if process.returncode == 0 else f"failed: exit {process.returncode}"
        skips: list[tuple[str, str, int]] = [(stage.name, why, 1) for why in _SKIPPED_STAGE.findall(text)]
        if stopped.is_set():
            result = f"stopped after {seconds / 60:.0f} minutes"
        elif skips and process.returncode == 0:
            result = "skipped"
        tests: list[tuple[str, float, float]] = []
        failures: list[tuple[str, str]] = []
        for report in sorted(reports.glob("*.json")):
            found = json.loads(report.read_text())
            tests += map(tuple, found["tests"])
            skips += map(tuple, found["skips"])
            failures += map(tuple, found["failures"])
        wall, cpu = time.monotonic() - began, used.ru_utime + used.ru_stime
        with self._changed:
            print(f"\n===== {stage.name}\n{text}", end="")
            print(f"===== {stage.name}: {result}, {wall:.0f} s, {cpu:.0f} CPU-s", flush=True)
        slowness = self.yardstick.slowness_since(mark)
        return Outcome(stage, result, wall, cpu, tests, skips, failures, slowness)


@contextlib.contextmanager
def _stopped_after(process: subprocess.Popen[bytes], seconds: float) -> Iterator[threading.Event]:
    """Interrupt the process group after some seconds, so that fixtures clean up, and then kill it."""
    stopped, ended = threading.Event(), threading.Event()

    def watch() -> None:
        if not ended.wait(seconds):
            stopped.set()
            _interrupt(process)
            if not ended.wait(_END_SECONDS):
                kill_session(process)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield stopped
    finally:
        ended.set()
        watcher.join()


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    """Interrupt the process group of a stage."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)


def kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill the session of a stage: also what has a group of its own, as a local service of the tests has."""
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(pid) == process.pid:
                os.kill(pid, signal.SIGKILL)


def summary(outcomes: Sequence[Outcome], wall: float) -> Iterator[str]:
    """What a run ends with: seconds of each stage, the slowest tests, all skips, and what was not proved."""
    yield f"{'stage':18} {'seconds':>8} {'CPU-s':>7} {'committed':>9} {'slow':>5}  result"
    for one in outcomes:
        committed = "-" if one.stage.cpu_seconds is None else f"{one.stage.cpu_seconds:.0f}"
        figures = f"{one.wall:8.0f} {one.cpu:7.0f} {committed:>9} {one.slowness:5.2f}"
        yield f"{one.stage.name:18} {figures}  {one.result}"
    yield f"{'all':18} {wall:8.0f} {sum(one.cpu for one in outcomes):7.0f}"
    for one in outcomes:
        if one.grew or one.shrank:
            yield (
                f"{'grew' if one.grew else 'shrank'}: {one.stage.name} took {one.cpu:.0f} CPU-s, committed: "
                f"{one.stage.cpu_seconds:.0f}, on a machine {one.slowness:.2f} times as slow as that figure's"
            )
        if one.shrank:
            yield f"  lower cpu_seconds of [stage.{one.stage.name}] in scripts/stages.toml"
    tests = sorted((test for one in outcomes for test in one.tests), key=lambda test: -test[1])
    if tests:
        yield f"\nslowest of {len(tests)} tests (seconds, CPU-s of the test's process)"
        yield from (f"{wall:8.1f} {cpu:7.1f}  {name}" for name, wall, cpu in tests[:SLOWEST])
    yield from _skips(outcomes)
    yield from (f"\nFAILED: {name}\n{end}" for one in outcomes for name, end in one.failures)
    yield from (
        f"FAILED: {one.stage.name}: {one.result}{', but it grew' if one.result == 'passed' else ''}"
        for one in outcomes
        if one.failed
    )


def _skips(outcomes: Sequence[Outcome]) -> Iterator[str]:
    skips = Counter[tuple[str, str]]()
    for one in outcomes:
        for where, why, count in one.skips:
            skips[where, " ".join(why.split())] += count
    yield f"\nskipped: {sum(skips.values())}"
    yield from (f"{count:8}  {where}: {why}" for (where, why), count in sorted(skips.items()))
    for name, pattern in _MISSING.items():
        if less := sum(count for (_, why), count in skips.items() if pattern.search(why)):
            yield f"proved less: {name} was missing, so {less} skipped"


def read_run(content: Mapping[str, Any], name: str, only: Sequence[str] = ()) -> tuple[list[Stage], float]:
    """The stages of a run, or those of them that are named, and its minutes."""
    run = content["run"][name]
    known = ", ".join(run["stages"])
    if unknown := set(only) - set(run["stages"]):
        raise SystemExit(f"{name} has no stage {', '.join(sorted(unknown))}; it has {known}")
    stages = [Stage(one, **content["stage"][one]) for one in run["stages"] if not only or one in only]
    return stages, run["minutes"]


def main() -> None:
    """Run what the command line names; exits with 1 when a stage failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("stage", nargs="*", help="only these")
    given = parser.parse_args()
    content = tomllib.loads(STAGES.read_text())
    stages, minutes = read_run(content, given.run, given.stage)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = REPOSITORY / ".stages" / given.run
    folder.mkdir(parents=True, exist_ok=True)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **content["environment"], "PATH": path}
    began = time.monotonic()
    yardstick = Yardstick(content["machine"]["yardstick_seconds"])
    outcomes = Run(stages, minutes, folder, environment, yardstick).execute()
    text = "\n".join(summary(outcomes, time.monotonic() - began))
    (folder / "summary.txt").write_text(text + "\n")
    print(f"\n{text}", flush=True)
    sys.exit(any(one.failed for one in outcomes))


if __name__ == "__main__":
    main()

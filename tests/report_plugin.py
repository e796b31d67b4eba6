"""Pytest plugin: what tests cost, what was skipped or failed, as JSON in the directory SNOWPIPE_TEST_REPORTS.

``scripts/run_stages.py`` reads it to list the slowest tests, all skips and failures of a run of some stages.
"""

import json
import os
from collections import Counter, defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

_CPU = "cpu_seconds"
_LONGEST_FAILURE = 700
_begun, _cpu = pytest.StashKey[float](), pytest.StashKey[float]()
_is_last = pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    target = os.environ.get("SNOWPIPE_TEST_REPORTS")
    if target and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Report(Path(target, f"{os.getpid()}.json")), "snowpipe-test-report")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Measure in the process that runs the test; the figure travels with the report of its teardown."""
    item.stash[_begun], item.stash[_is_last] = _spent(), nextitem is None
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    # What the fixtures of the session started ends in the teardown of the last test, which has no part in it.
    if report.when != "teardown" or not item.stash[_is_last]:
        item.stash[_cpu] = _spent() - item.stash[_begun]
    if report.when == "teardown":
        report.user_properties.append((_CPU, item.stash[_cpu]))
    return report


def _spent() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class _Report:
    """Collects what the tests of a session report, in the process that shows it."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._wall: defaultdict[str, float] = defaultdict(float)
        self._cpu: dict[str, float] = {}
        self._skips: Counter[tuple[str, str]] = Counter()
        self._failures: list[tuple[str, str]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._wall[report.nodeid] += report.duration
        if report.when == "teardown":
            self._cpu[report.nodeid] = float(str(dict(report.user_properties).get(_CPU, 0.0)))
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed:
            self._failures.append((report.nodeid, report.longreprtext[-_LONGEST_FAILURE:]))
        if report.skipped and isinstance(report.longrepr, tuple):
            path = report.nodeid.partition("::")[0]
            self._skips[path, report.longrepr[2].removeprefix("Skipped: ")] += 1

    def pytest_sessionfinish(self) -> None:
        tests = [[name, round(self._wall[name], 3), round(cpu, 3)] for name, cpu in self._cpu.items()]
        skips = [[path, reason, count] for (path, reason), count in sorted(self._skips.items())]
        found = {"tests": tests, "skips": skips, "failures": self._failures}
        self._target.write_text(json.dumps(found))

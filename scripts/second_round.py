"""The second round of ``scripts/mutants.py --sample``: what lives meets the integration tests.

First those run once in the copy (``mutants/``) without a mutant, and each mutated function writes down which
test reaches it, also in processes that a test starts: Spark's Python workers, spark-submit. A test that fails
there shows nothing later: it is printed and left out.

Then each mutant meets, in a process of its own, the tests of the files that reach its function: those first
that reach it themselves, and the quickest, as many as took ``SECONDS`` together. Before them come unit tests
in the same way: some were too long for the first round, and what runs when a module is imported had run
before that forked. A mutant is killed when a test fails or when they take three times as long, and ``START``
for what starts: Spark, a service, a broker; longer where more processes run than there are processors.

pytest loads this file as a plugin, too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

COPY = Path("mutants")
TESTS = (
    "tests/integration",
    "--ignore=tests/integration/test_dist.py",  # builds what the copy has not
    "tests/unit/streaming/test_status_poll.py",
    "tests/unit/streaming/test_transport.py",
)
"""The integration tests, and those unit tests that start threads, which the first round does not fork."""
PARTS = ("spark and not nightly", "not spark and not airflow and not nightly")
"""The tests of one process each, beside each other."""
SECONDS = 30.0
START = 90.0
NOTES = "MUTANTS_REACHED"
"""Variable with the folder of the notes of a run without a mutant."""
# A function of the copy calls this where MUTANT_UNDER_TEST is "stats".
RECORDER = f"""
import os as _os
from mutmut.mutation import trampoline as _trampoline

def _reached(name, caller=None, *, _known=set()):
    if folder := _os.environ.get({NOTES!r}):
        test = _os.readlink(folder + "/test")
        if (name, test) not in _known:
            _known.add((name, test))
            with open(f"{{folder}}/{{_os.getpid()}}.tsv", "a") as file:
                file.write(f"{{name}}\\t{{test}}\\n")

_trampoline.record_trampoline_hit = _reached
"""


@dataclass
class Notes:
    """What the run without a mutant has shown.

    :param seconds: of each test that passed
    :param reached: the tests that reach a function, by its mangled name
    :param failed: the tests that show nothing
    """

    seconds: dict[str, float] = field(default_factory=dict)
    reached: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    failed: list[str] = field(default_factory=list)

    @classmethod
    def of_first_round(cls) -> Notes:
        """Read those of mutmut, which are about unit tests."""
        known = json.loads((COPY / "mutmut-stats.json").read_text())
        reached = {name: set(tests) for name, tests in known["tests_by_mangled_function_name"].items()}
        return cls(known["duration_by_test"], defaultdict(set, reached))

    def add(self, folder: Path) -> None:
        """Read a folder that a process of tests and its children have written."""
        outcomes = json.loads((folder / "outcomes.json").read_text())
        self.seconds |= {test: seconds for test, (seconds, passed) in outcomes.items() if passed}
        self.failed += [test for test, (_, passed) in outcomes.items() if not passed]
        for file in folder.glob("*.tsv"):
            for line in file.read_text().splitlines():
                name, test = line.split("\t")
                self.reached[name].add(test)

    def tests_of(self, key: str) -> list[str]:
        """The tests that a mutant meets, in their order; none where no test reaches its function."""
        reaching = self.reached.get(key.rpartition("__mutmut_")[0], set())
        files = {_file(test) for test in reaching}
        near = [test for test in self.seconds if _file(test) in files]
        near.sort(key=lambda test: (test not in reaching, self.seconds[test], test))
        units = [test for test in near if test.startswith("tests/unit/")]
        return [
            *within(SECONDS / 2, units, self.seconds),
            *within(SECONDS, [test for test in near if test not in units], self.seconds),
        ]


def within(limit: float, tests: Iterable[str], seconds: Mapping[str, float]) -> list[str]:
    """The first tests that fit into a limit together, without those that are too long; one at least."""
    chosen: list[str] = []
    left = limit
    for test in (tests := list(tests)):
        if seconds[test] <= left:
            chosen.append(test)
            left -= seconds[test]
    return chosen or tests[:1]


def _file(test: str) -> str:
    return test.partition("::")[0]


def second_round(package: str, keys: Sequence[str], folder: Path, processes: int) -> dict[str, str]:
    """Show mutants to the tests, and return the outcome of those that a test reaches.

    :param package: of the copy
    :param keys: mutmut's names of the mutants
    :param folder: for notes and the tests' output
    """
    notes = _without_mutant(package, folder, processes)
    for test in notes.failed:
        print(f"left out, fails or skips without a mutant: {test}", flush=True)

    def outcome(key: str) -> str:
        tests = notes.tests_of(key)
        limit = START + 3 * sum(notes.seconds[test] for test in tests)
        limit *= max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        return _outcome(key, tests, folder / f"{key}.log", limit) if tests else "no tests"

    with ThreadPoolExecutor(processes) as pool:
        return dict(zip(keys, pool.map(outcome, keys), strict=True))


def _without_mutant(package: str, folder: Path, processes: int) -> Notes:
    face = COPY / package / "__init__.py"
    plain = face.read_text()
    face.write_text(plain + RECORDER)

    def run(part: int) -> Path:
        notes = folder / f"part{part}"
        notes.mkdir()
        (notes / "test").symlink_to("collection")
        options = ("-m", PARTS[part], *TESTS)
        _pytest(options, {"MUTANT_UNDER_TEST": "stats", NOTES: str(notes)}, notes / "log", None)
        return notes

    found = Notes.of_first_round()
    with ThreadPoolExecutor(min(processes, len(PARTS))) as pool:
        for notes in pool.map(run, range(len(PARTS))):
            found.add(notes)
    face.write_text(plain)
    return found


def _outcome(key: str, tests: Sequence[str], log: Path, seconds: float) -> str:
    code = _pytest(("-x", *tests), {"MUTANT_UNDER_TEST": key}, log, seconds)
    if code is None:
        return "timeout"
    if code == pytest.ExitCode.OK:
        return "survived"
    # Neither 4 nor 5: a test that is not found says nothing.
    is_killed = code < 0 or code in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED)
    return "integration" if is_killed else "suspicious"


def _pytest(
    options: Sequence[str], variables: Mapping[str, str], log: Path, seconds: float | None
) -> int | None:
    """Run tests in the copy, and return pytest's exit code, None where they were stopped."""
    from run_stages import kill_session

    here = Path(__file__).parent
    paths = [str(COPY.resolve()), str(here), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += ["-p", "second_round", "--rootdir=.", *options]
    environment = {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(paths)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=COPY, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            kill_session(process)
            process.wait()


_outcomes: dict[str, tuple[float, bool]] = {}


def pytest_runtest_logstart(nodeid: str) -> None:
    """Say to all processes which test runs."""
    if notes := os.environ.get(NOTES):
        link = Path(notes, "next")
        link.symlink_to(nodeid)
        link.replace(Path(notes, "test"))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add one of the three steps of a test."""
    seconds, passed = _outcomes.get(report.nodeid, (0.0, True))
    _outcomes[report.nodeid] = (seconds + report.duration, passed and report.passed)


def pytest_sessionfinish() -> None:
    """Write down what the tests took and whether they passed."""
    if notes := os.environ.get(NOTES):
        Path(notes, "outcomes.json").write_text(json.dumps(_outcomes))

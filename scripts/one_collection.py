"""How ``scripts/mutants.py`` runs tests: collected once, in the process from which each mutant's is forked.

mutmut starts pytest for each mutant, which costs more than the tests that notice it. Here the items of one
collection run in the forked process. First come those that have killed another mutant of the same function,
then those of a file that is named like the module or that have killed others in it, the quickest first: most
mutants are killed within milliseconds. A mutant that none of them kills would run all the tests that reach
it, which take up to half a minute; so there is a limit.
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from mutmut.runners.harness import PytestRunner
from mutmut.state import state
from second_round import within


class Killers:
    """Which tests have killed mutants of which function, in a file that all forked processes add to.

    :param path: the file; a line is a function, a tabulator and the id of the test
    :param mutant_name: as mutmut names it: the function, ``__mutmut_`` and a number
    """

    def __init__(self, path: Path, mutant_name: str) -> None:
        self._path = path
        self._function = mutant_name.rpartition("__mutmut_")[0]

    def counted(self) -> tuple[Counter[str], Counter[str]]:
        """How many mutants of the function, and of its module, each test has killed."""
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        pairs = [line.split("\t", 1) for line in lines]
        module = self._function.rpartition(".")[0]
        return (
            Counter(test for function, test in pairs if function == self._function),
            Counter(test for function, test in pairs if function.rpartition(".")[0] == module),
        )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the test that fails."""
        if report.failed:
            with self._path.open("a") as file:
                file.write(f"{self._function}\t{report.nodeid}\n")


class CollectedOnce(PytestRunner):
    """Runs tests in a process that is forked for each mutant from the one that has called :meth:`warm_up`."""

    seconds: float
    """How long the tests of a mutant may take together."""
    _session: pytest.Session
    _killers: Path

    def warm_up(self) -> None:
        """Collect all selected tests."""
        self._session = self._collected()
        self._killers = Path(tempfile.mkdtemp(prefix="killers-"), "killers.tsv")
        # A forked process that collects garbage copies every page of what was collected here.
        gc.collect()
        gc.freeze()

    def _collected(self) -> pytest.Session:
        os.chdir("mutants")
        options = ["--rootdir=.", "--tb=native", "-q", "--capture=no", *self._pytest_add_cli_args]
        # Not pytest.main: it ends the session, and what was collected could run no more. This call leaves out
        # "addopts" of pyproject.toml.
        options.append("--import-mode=importlib")
        config = pytest.Config.fromdictargs({}, [*options, *self._pytest_add_cli_args_test_selection])
        config._do_configure()
        session = pytest.Session.from_config(config)
        config.hook.pytest_sessionstart(session=session)
        config.hook.pytest_collection(session=session)
        if session.testsfailed:  # a mutant would live for want of the tests that are not there
            raise RuntimeError(f"{session.testsfailed} files of tests cannot be collected")
        return session

    def run_tests(self, *, mutant_name: str | None, tests: Iterable[str]) -> int:
        """Run tests up to the first that fails.

        :param mutant_name: None for all tests without a mutant
        :param tests: their ids
        :return: pytest's exit code
        """
        if mutant_name is None:
            return (
                pytest.ExitCode.OK
            )  # they have passed when mutmut asked which function each of them reaches
        session, durations = self._session, state().duration_by_test
        killers = Killers(self._killers, mutant_name)
        session.config.pluginmanager.register(killers)
        # pytest removes a temporary folder of its own at an end that this process does not come to.
        folder = tempfile.mkdtemp(prefix="mutant-")
        config = session.config
        config.option.maxfail = 1
        config._tmp_path_factory._given_basetemp = Path(folder, "tests")
        items = {item.nodeid: item for item in session.items}
        # Of a test that could not be set up there is no duration.
        chosen = set(tests) & items.keys() & durations.keys()
        ordered = in_order(chosen, durations, *killers.counted(), mutant_name)
        session.items = [items[name] for name in within(self.seconds, ordered, durations)]
        for item in session.items:
            # A mutant that waits for ever is killed by the test that it stops, not by the time of them all.
            item.add_marker(pytest.mark.timeout(3 + 10 * durations[item.nodeid]))
        session.exitstatus = pytest.ExitCode.OK
        try:
            config.hook.pytest_runtestloop(session=session)
        except (session.Failed, session.Interrupted, pytest.fail.Exception):
            # A test failed, a test file cannot be imported, or the time was over between two steps of a test.
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        except BaseException:  # noqa: BLE001  mutmut's loop, of which this process is a copy, must not go on here
            traceback.print_exc()
            os._exit(pytest.ExitCode.INTERRUPTED)
        config.hook.pytest_sessionfinish(session=session, exitstatus=session.exitstatus)
        shutil.rmtree(folder, ignore_errors=True)
        return int(pytest.ExitCode.TESTS_FAILED if session.testsfailed else session.exitstatus)

    def run_forced_fail(self) -> int:
        """Not tried: if no test noticed any mutant, the run would fail by its share of killed ones."""
        return int(pytest.ExitCode.TESTS_FAILED)


def in_order(
    tests: Iterable[str],
    seconds: Mapping[str, float],
    killed: Mapping[str, int],
    in_module: Mapping[str, int],
    mutant_name: str,
) -> list[str]:
    """The ids of tests, those first that are likely to notice a mutant, and of these the quickest.

    :param killed: how many mutants of the same function each of them has noticed
    :param in_module: how many of the same module; a test may take as much longer
    """
    module = mutant_name.rpartition(".")[0].rpartition(".")[2]

    def rank(test: str) -> tuple[int, bool, float, str]:
        is_near = test in in_module or module in test.partition("::")[0].rpartition("/")[2]
        return -killed.get(test, 0), not is_near, seconds[test] / (1 + in_module.get(test, 0)), test

    return sorted(tests, key=rank)

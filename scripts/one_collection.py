"""How ``scripts/mutants.py`` runs tests: collected once, in the process from which each mutant's is forked.

mutmut starts pytest anew for each mutant, which costs more than the tests that notice it. Here the items of
one collection run in the forked process, the quickest first: most mutants are killed within milliseconds.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import traceback
from collections.abc import Iterable
from pathlib import Path

import pytest
from mutmut.runners.harness import PytestRunner
from mutmut.state import state


class CollectedOnce(PytestRunner):
    """Runs tests in a process that is forked for each mutant from the one that has called :meth:`warm_up`."""

    _session: pytest.Session | None = None

    def warm_up(self) -> None:
        """Collect all selected tests."""
        self._session = self._collected()

    def _collected(self) -> pytest.Session:
        os.chdir("mutants")
        options = ["--rootdir=.", "--tb=native", "-q", "--capture=no", *self._pytest_add_cli_args]
        # Not pytest.main: it ends the session, and what was collected could run no more.
        config = pytest.Config.fromdictargs({}, [*options, *self._pytest_add_cli_args_test_selection])
        config._do_configure()
        session = pytest.Session.from_config(config)
        config.hook.pytest_sessionstart(session=session)
        config.hook.pytest_collection(session=session)
        return session

    def run_tests(self, *, mutant_name: str | None, tests: Iterable[str]) -> int:
        """Run tests up to the first that fails.

        :param tests: their ids; all when empty
        :return: pytest's exit code
        :raises LookupError: if a test was not collected
        """
        if self._session is None:
            self._session = self._collected()  # without a mutant, as with one: the tests have to pass
        session, seconds = self._session, state().duration_by_test
        wanted = set(tests) or {item.nodeid for item in session.items}
        # pytest removes a temporary folder of its own at an end that this process does not come to.
        folder = tempfile.mkdtemp(prefix="mutant-")
        config = session.config
        config.option.maxfail = 1
        config._tmp_path_factory._given_basetemp = Path(folder, "tests")
        session.items = sorted(
            (item for item in session.items if item.nodeid in wanted), key=lambda item: seconds[item.nodeid]
        )
        for item in session.items:
            # A mutant that waits for ever is killed by the test that it stops, not by the time of them all.
            item.add_marker(pytest.mark.timeout(5 + 10 * seconds[item.nodeid]))
        if len(session.items) != len(wanted):
            raise LookupError(f"{len(wanted) - len(session.items)} tests were not collected")
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

"""The demo's processes and ports, and benchmarks, which no other test runs."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from demo.ports import _reserve, reserved_port

# A parent that adopts orphans, as process 1 does, and collects none of them.
_ADOPTS_AND_COLLECTS_NONE = """
import ctypes, subprocess, sys
PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
sys.exit(subprocess.run([sys.executable, "-c", *sys.argv[1:]]).returncode)
"""
_STOPS_A_PROCESS_WITH_A_CHILD = """
import os, sys
from pathlib import Path
from demo import processes
processes.KILL_SECONDS = 2.0
group = processes.ProcessGroup(Path(sys.argv[1], "processes.json"))
log = Path(sys.argv[1], "log")
group.start("parent", ["sh", "-c", "sleep 300 & echo started; wait"], os.environ, log)
while "started" not in log.read_text():
    pass
print(len(group.members()), flush=True)
group.stop(grace=2.0)
print(len(group.members()), flush=True)
"""


def test_an_orphan_that_nobody_collects_has_ended(tmp_path):
    program = [sys.executable, "-c", _ADOPTS_AND_COLLECTS_NONE, _STOPS_A_PROCESS_WITH_A_CHILD, str(tmp_path)]
    stopped = subprocess.run(program, capture_output=True, text=True, timeout=60)
    assert stopped.returncode == 0, stopped.stderr
    before, after = map(int, stopped.stdout.split())
    assert (before, after) == (2, 0)


def test_port_is_below_those_the_kernel_gives_and_reserved_once():
    with socket.socket() as given:
        given.bind(("127.0.0.1", 0))
        assert reserved_port() < given.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            _reserve(given.getsockname()[1])
    again = f"from demo.ports import _reserve; _reserve({reserved_port()})"
    done = subprocess.run([sys.executable, "-c", again], capture_output=True, text=True)
    assert "BlockingIOError" in done.stderr


ROOT = Path(__file__).parents[2]
_LOAD = """
import runpy, sys
sys.path.insert(0, ".")
for path in sys.argv[1:]:
    sys.path.insert(0, "benchmarks")
    runpy.run_path(path, run_name="loaded")
"""


@pytest.mark.nightly
@pytest.mark.parametrize("distribution", [".", "snowpipe-local"])
def test_every_benchmark_loads(distribution):
    folder = ROOT / distribution
    paths = sorted(str(path) for path in (folder / "benchmarks").glob("*.py"))
    ended = subprocess.run([sys.executable, "-c", _LOAD, *paths], cwd=folder, capture_output=True, text=True)
    assert (ended.returncode, bool(paths)) == (0, True), ended.stderr[-2000:]

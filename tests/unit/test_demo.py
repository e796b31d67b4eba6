"""The demo's processes: all ended, whatever collects them."""

import subprocess
import sys

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

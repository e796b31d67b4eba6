"""Benchmarks, which no other test runs, at least load: what they measure with is there."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_LOAD = """
import runpy, sys
sys.path.insert(0, ".")
for path in sys.argv[1:]:
    sys.path.insert(0, "benchmarks")
    runpy.run_path(path, run_name="loaded")
"""


@pytest.mark.nightly
def test_every_benchmark_loads():
    paths = sorted(str(path) for path in (ROOT / "benchmarks").glob("*.py"))
    assert len(paths) > 10

    ended = subprocess.run(
        [sys.executable, "-c", _LOAD, *paths], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert ended.returncode == 0, ended.stderr[-2000:]

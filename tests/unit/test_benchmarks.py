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
@pytest.mark.parametrize(("distribution", "least"), [(".", 10), ("snowpipe-local", 1)])
def test_every_benchmark_loads(distribution, least):
    folder = ROOT / distribution
    paths = sorted(str(path) for path in (folder / "benchmarks").glob("*.py"))
    assert len(paths) >= least

    ended = subprocess.run(
        [sys.executable, "-c", _LOAD, *paths], cwd=folder, capture_output=True, text=True, check=False
    )

    assert ended.returncode == 0, ended.stderr[-2000:]

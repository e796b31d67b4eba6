"""Benchmarks, which no other test runs, at least load: what they measure with is there."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.__main__ import chart, write_rows
from benchmarks.measuring import Target

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


def test_the_page_shows_each_result_with_its_goal_and_the_chart_is_an_svg(tmp_path):
    found = [Target("a & b", 9.5, 9.0, "x"), Target("c", 0.4, 0.15, "y", at_most=True)]
    write_rows(found, tmp_path / "rows.csv")

    lines = (tmp_path / "rows.csv").read_text().splitlines()
    assert lines[1:] == ["a & b,at least 9,9.50,x", 'c,at most 0.15,"0.40, missed",y']
    drawn = ElementTree.fromstring(chart(found))  # noqa: S314  our own text
    assert [float(bar.get("width")) for bar in drawn.findall("{*}rect")[1:]] == [211, 75]

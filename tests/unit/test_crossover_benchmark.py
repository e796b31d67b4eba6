"""What the crossover benchmark makes of its measurements: a policy, a verdict and a plot."""

from xml.etree import ElementTree

import pytest

from airflow_provider_snowpipe.routing.load_plan import LoadPath
from benchmarks.crossover import Measured, choice, policy_of
from benchmarks.crossover_plot import plot

_SVG = "{http://www.w3.org/2000/svg}"


def _measured(rows):
    """A machine where a channel takes 0.2 s and 20 s a GB, COPY 0.5 s and 5 s a GB: they cross at 20 MB."""
    size = rows * 365
    return Measured(rows, size, size // 7, stream=0.2 + size * 20e-9, copy=0.5 + size * 5e-9)


@pytest.mark.parametrize("rows", [100, 1_000, 10_000, 100_000, 1_000_000])
def test_router_takes_the_faster_path_where_figures_are_those_of_the_machine(rows):
    policy = policy_of(_measured(100), _measured(1_000_000))
    assert choice(_measured(rows), policy) == _measured(rows).faster


def test_paths_within_the_band_are_equal():
    assert Measured(1, 365, 50, stream=1.0, copy=1.19).faster is None
    assert Measured(1, 365, 50, stream=1.0, copy=1.21).faster is LoadPath.STREAM


def test_sizes_that_took_the_same_time_are_no_result():
    same = Measured(1000, 365_000, 50_000, stream=0.2, copy=0.5)
    with pytest.raises(SystemExit, match="too close"):
        policy_of(_measured(100), same)


def test_plot_is_an_svg_with_both_paths_and_the_routers_choice():
    points = [(100, 0.2, 0.5), (1_000_000, 7.5, 2.3)]
    drawn = ElementTree.fromstring(plot(points, [LoadPath.STREAM, LoadPath.COPY]))  # noqa: S314  our own
    assert len(drawn.findall(f"{_SVG}polyline")) == 2
    filled = [
        dot.findtext(f"{_SVG}title") for dot in drawn.findall(f"{_SVG}circle") if dot.get("fill") != "white"
    ]
    assert filled == ["stream, 100 rows: 0.20 s", "copy, 1,000,000 rows: 2.30 s"]

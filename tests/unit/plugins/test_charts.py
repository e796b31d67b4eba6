"""Charts: what they show, to whom, and whatever the names are."""

import datetime as dt
import re
from xml.etree import ElementTree

import pytest

BEGAN = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)


@pytest.fixture(scope="module", autouse=True)
def served():
    """Import what the API server does, when the first test runs: every process collects this file."""
    global rendering, draw_chart
    from airflow_provider_snowpipe.plugins import rendering
    from airflow_provider_snowpipe.plugins.rendering import draw_chart


def series(name, *values):
    return rendering.Series(
        name, [(BEGAN + dt.timedelta(minutes=at), value) for at, value in enumerate(values)]
    )


def steps(*given):
    return draw_chart(*given, is_steps=True)


def drawn(chart):
    return ElementTree.fromstring(str(chart))  # noqa: S314  made by the test itself


def test_names_are_escaped():
    hostile = "</title><script>alert('x')</script>"
    chart = str(steps(hostile, [series(hostile, 1), series('"&', 2)], hostile))
    assert "<script" not in chart
    plain = str(steps("Rows", [series("a", 1, 2)]))
    assert not re.search(r"style=|href|url\(|on\w+=", plain)
    assert drawn(chart).find("svg/title").text == hostile


def test_a_long_line_keeps_its_peaks_and_ends():
    points = [(float(at), 1.0) for at in range(10_000)]
    points[5_432] = (5_432.0, 99.0)
    left = rendering.thinned(points)
    assert len(left) <= rendering.MOST_POINTS
    assert (left[0], left[-1]) == (points[0], points[-1])
    assert (5_432.0, 99.0) in left
    assert left == sorted(left)
    assert rendering.thinned(points[:10]) == points[:10]


def test_little_is_drawn_too_and_numbers_are_short():
    assert steps("Rows", [series("a"), series("b", None, float("nan"))]) == ""
    for chart in (steps("Rows", [series("a", 0)]), draw_chart("Rows", [series("a", 7)])):
        for one in drawn(chart).iter("circle"):
            assert 0 <= float(one.get("cx", "")) <= rendering.WIDTH
            assert 0 <= float(one.get("cy", "")) <= rendering.HEIGHT
    shown = {0: "0", 0.5: "0.5", 999: "999", 12_500: "12.5k", 999_500: "1M", 999_499: "999k", 3e9: "3G"}
    assert {value: rendering.number(value) for value in shown} == shown

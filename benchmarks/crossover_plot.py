"""Rows against seconds for two paths as an SVG with logarithmic axes; needs no library."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from airflow_provider_snowpipe.routing.load_plan import LoadPath

_WIDTH, _HEIGHT = 720, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 50, 70
_COLOURS = {LoadPath.STREAM: "#0b7285", LoadPath.COPY: "#c2410c"}
_SHORT = {3: "k", 6: "M", 9: "G"}


def plot(points: Sequence[tuple[int, float, float]], chosen: Sequence[LoadPath]) -> str:
    """Draw both paths.

    :param points: rows, seconds through a channel, seconds by COPY
    :param chosen: the router's choice for each
    :return: the SVG
    """
    across = _Axis([rows for rows, _, _ in points], _LEFT, _WIDTH - _RIGHT)
    upwards = _Axis([value for _, *both in points for value in both], _HEIGHT - _BOTTOM, _TOP)
    body = [*_grid(across, upwards)]
    for column, path in ((1, LoadPath.STREAM), (2, LoadPath.COPY)):
        colour = _COLOURS[path]
        line = " ".join(f"{across.at(one[0]):.1f},{upwards.at(one[column]):.1f}" for one in points)
        body.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for one, choice in zip(points, chosen, strict=True):
            x, y = across.at(one[0]), upwards.at(one[column])
            fill = colour if choice is path else "white"
            words = f"{path.value}, {one[0]:,} rows: {one[column]:.2f} s"
            body.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{fill}" stroke="{colour}">'
                f"<title>{words}</title></circle>"
            )
    for index, path in enumerate(_COLOURS):
        x = _LEFT + 170 * index
        body.append(f'<rect x="{x}" y="14" width="14" height="14" fill="{_COLOURS[path]}"/>')
        body.append(f'<text x="{x + 20}" y="26">{path.value}</text>')
    body.append(f'<text x="{_LEFT + 340}" y="26">filled: the path that the router takes</text>')
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
            'font-family="sans-serif" font-size="13" role="img">',
            "<title>Seconds until all rows can be queried, by the number of rows</title>",
            f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
            *body,
            "</svg>",
            "",
        ]
    )


class _Axis:
    """A logarithmic axis over whole powers of ten."""

    def __init__(self, values: Sequence[float], low: float, high: float) -> None:
        self.first = math.floor(math.log10(min(values)))
        self.last = max(math.ceil(math.log10(max(values))), self.first + 1)
        self._low, self._high = low, high

    def at(self, value: float) -> float:
        """Where a value lies."""
        share = (math.log10(value) - self.first) / (self.last - self.first)
        return self._low + share * (self._high - self._low)

    def ticks(self) -> Iterator[tuple[float, str]]:
        """Positions and labels of the powers of ten."""
        for power in range(self.first, self.last + 1):
            whole = 3 * (power // 3)
            label = f"{10 ** (power - whole)}{_SHORT[whole]}" if whole in _SHORT else f"{10.0**power:g}"
            yield self.at(10.0**power), label


def _grid(across: _Axis, upwards: _Axis) -> Iterator[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    for x, label in across.ticks():
        yield f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}" stroke="#ddd"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 20}" text-anchor="middle">{label}</text>'
    for y, label in upwards.ticks():
        yield f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#ddd"/>'
        yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
    yield f'<text x="{(_LEFT + right) / 2}" y="{bottom + 45}" text-anchor="middle">rows</text>'
    middle = (_TOP + bottom) / 2
    yield f'<text x="18" y="{middle}" transform="rotate(-90 18 {middle})" text-anchor="middle">seconds</text>'

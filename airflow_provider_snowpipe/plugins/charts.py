"""Charts as SVG, drawn on the server: no script, no build step, and nothing to fetch."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from markupsafe import Markup

WIDTH, HEIGHT = 720, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 12, 12, 30
MOST_POINTS = 300
"""Points of a line that are drawn: there are not many more pixels."""
_TICKS = 4
_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Series:
    """One line, or one row of bars, of a chart.

    :param name: its name in the legend
    :param points: time and value, by time; a value of None is left out
    """

    name: str
    points: Sequence[tuple[dt.datetime, float | None]]

    def known(self) -> list[tuple[float, float]]:
        """Seconds since 1970 and value of those points that have a finite one."""
        return [
            (time.timestamp(), float(value))
            for time, value in self.points
            if value is not None and math.isfinite(value)
        ]


def step_chart(title: str, series: Sequence[Series], unit: str = "") -> Markup:
    """Draw lines that keep a value until the next one is known.

    :param title: what is shown, which a screen reader says
    :param series: the lines
    :param unit: of the values
    :returns: the SVG, empty where no value is known
    """
    return _chart(title, series, unit, _steps)


def dot_chart(title: str, series: Sequence[Series], unit: str = "") -> Markup:
    """Draw a stroke and a dot for each value, which stands for itself.

    :param title: what is shown, which a screen reader says
    :param series: the values
    :param unit: of the values
    :returns: the SVG, empty where no value is known
    """
    return _chart(title, series, unit, _dots)


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where times and values lie in the picture."""

    first: float
    last: float
    top: float

    def x(self, time: float) -> float:
        span = self.last - self.first
        share = (time - self.first) / span if span else 0.5
        return round(_LEFT + share * (WIDTH - _LEFT - _RIGHT), 1)

    def y(self, value: float) -> float:
        return round(HEIGHT - _BOTTOM - value / self.top * (HEIGHT - _TOP - _BOTTOM), 1)


_Draw = Callable[[_Frame, Sequence[tuple[float, float]], int], Markup]


def _chart(title: str, series: Sequence[Series], unit: str, draw: _Draw) -> Markup:
    known = [(one.name, thinned(one.known())) for one in series]
    times = [time for _, points in known for time, _ in points]
    if not times:
        return Markup()
    greatest = max(value for _, points in known for _, value in points)
    frame = _Frame(min(times), max(times), _round_up(greatest) or _TICKS)
    name = f"chart{next(_numbers)}"
    parts = [_grid(frame, unit)]
    parts += [draw(frame, points, number) for number, (_, points) in enumerate(known)]
    first, last = (_time(timestamp, frame) for timestamp in (frame.first, frame.last))
    ends = ", ".join(f"{label} {number(points[-1][1])}{unit}" for label, points in known if points)
    legend = [
        Markup('<span class="key key{}">{}</span>').format(index, label)
        for index, (label, _) in enumerate(known)
    ]
    return Markup(
        '<figure class="chart"><figcaption>{title} {legend}</figcaption>'
        '<svg viewBox="0 0 {width} {height}" role="img" aria-labelledby="{name}t {name}d">'
        '<title id="{name}t">{title}</title>'
        '<desc id="{name}d">From {first} to {last}. At the end: {ends}.</desc>'
        '<text class="tick" x="{left}" y="{base}">{first}</text>'
        '<text class="tick end" x="{right}" y="{base}">{last}</text>{parts}</svg></figure>'
    ).format(
        title=title,
        legend=Markup().join(legend) if len(legend) > 1 else "",
        width=WIDTH,
        height=HEIGHT,
        name=name,
        first=first,
        last=last,
        ends=ends,
        left=_LEFT,
        right=WIDTH - _RIGHT,
        base=HEIGHT - 8,
        parts=Markup().join(parts),
    )


def _grid(frame: _Frame, unit: str) -> Markup:
    lines = []
    for tick in range(_TICKS + 1):
        value = frame.top * tick / _TICKS
        lines.append(
            Markup('<line class="grid" x1="{}" x2="{}" y1="{y}" y2="{y}"/>').format(
                _LEFT, WIDTH - _RIGHT, y=frame.y(value)
            )
        )
        lines.append(
            Markup('<text class="tick end" x="{}" y="{}">{}{}</text>').format(
                _LEFT - 6, frame.y(value) + 4, number(value), unit
            )
        )
    return Markup().join(lines)


def _steps(frame: _Frame, points: Sequence[tuple[float, float]], index: int) -> Markup:
    if not points:
        return Markup()
    path = f"M{frame.x(points[0][0])} {frame.y(points[0][1])}"
    path += "".join(f"H{frame.x(time)}V{frame.y(value)}" for time, value in points[1:])
    path += f"H{WIDTH - _RIGHT}"
    last = Markup('<circle class="dot line{}" cx="{}" cy="{}" r="3"/>').format(
        index, frame.x(points[-1][0]), frame.y(points[-1][1])
    )
    return Markup('<path class="line line{}" d="{}"/>').format(index, path) + last


def _dots(frame: _Frame, points: Sequence[tuple[float, float]], index: int) -> Markup:
    return Markup().join(
        Markup(
            '<path class="line line{i}" d="M{x} {base}V{y}"/>'
            '<circle class="dot line{i}" cx="{x}" cy="{y}" r="3"/>'
        ).format(i=index, x=frame.x(time), y=frame.y(value), base=frame.y(0))
        for time, value in points
    )


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Leave points out of a long line: of each stretch its greatest stays, and the first and the last point.

    :param points: time and value
    """
    if len(points) <= MOST_POINTS:
        return list(points)
    inner = points[1:-1]
    width = len(inner) / (MOST_POINTS - 2)
    stretches = (
        inner[int(at * width) : max(int(at * width) + 1, int((at + 1) * width))]
        for at in range(MOST_POINTS - 2)
    )
    return [
        points[0],
        *(max(stretch, key=lambda one: one[1]) for stretch in stretches if stretch),
        points[-1],
    ]


def number(value: float) -> str:
    """Write a number in few characters, such as ``12.5k``.

    :param value: the number
    """
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * 0.9995:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def _round_up(value: float) -> float:
    """The next round number, so that the ticks are round, too."""
    if value <= 0:
        return 0.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 5, 8, 10) if step * power >= value * (1 - 1e-9))


def _time(seconds: float, frame: _Frame) -> str:
    timestamp = dt.datetime.fromtimestamp(seconds, dt.UTC)
    is_short = frame.last - frame.first < 86_400
    return f"{timestamp:%m-%d %H:%M:%S}" if is_short else f"{timestamp:%Y-%m-%d %H:%M}"

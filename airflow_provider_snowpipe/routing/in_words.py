"""Numbers as a person reads them: sizes, durations, credits."""

from __future__ import annotations

_SIZES = (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
_DURATIONS = (("days", 172_800.0, 86_400.0), ("h", 7_200.0, 3_600.0), ("min", 120.0, 60.0))


def size(count: float) -> str:
    """Write a number of bytes in decimal units, such as ``2.5 GB``.

    :param count: bytes
    """
    for unit, one in _SIZES:
        if count >= one:
            return f"{_short(count / one)} {unit}"
    return f"{_short(count)} bytes"


def duration(seconds: float) -> str:
    """Write a duration in the unit that suits it, such as ``90 s`` or ``5 min``.

    :param seconds: the duration
    """
    for unit, least, one in _DURATIONS:
        if seconds >= least:
            return f"{_short(seconds / one)} {unit}"
    return f"{_short(seconds)} s"


def credit_count(credits: float) -> str:
    """Write a number of credits with three digits that count.

    :param credits: the number
    """
    return "0" if credits == 0 else f"{credits:,.0f}" if credits >= 1000 else f"{credits:.3g}"


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 or number == int(number) else f"{number:.3g}"

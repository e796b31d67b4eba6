"""What a run tells of keys of its rows for which the table has no column: how many rows have each.

How they are found is :mod:`~airflow_provider_snowpipe.streaming.key_check`'s; this is all that operators
need.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

OnUnknown = Literal["warn", "fail", "ignore"]
UNKNOWN_COLUMNS: tuple[OnUnknown, ...] = ("warn", "fail", "ignore")
MOST_NAMES = 20
"""Keys that are named; where they are data, such as ids of customers, there is no end of them."""
_LONGEST_NAME = 100


def add_counts(counts: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    """Add up rows by key, of at most 20 keys, those that came first.

    :param counts: rows by key
    :param more: further rows by key
    """
    found = dict(counts)
    for key, rows in more.items():
        name = key if len(key) <= _LONGEST_NAME else f"{key[:_LONGEST_NAME]}…"
        if name in found or len(found) < MOST_NAMES:
            found[name] = found.get(name, 0) + rows
    return found


def named(counts: Mapping[str, int]) -> str:
    """Keys and their rows in words, for people.

    :param counts: rows by key
    """
    return ", ".join(f"{key!r} ({rows:,} rows)" for key, rows in add_counts({}, counts).items())

"""Spark's settings that decide which rows come together and in which order, pinned for a write.

With its defaults Spark packs files into tasks by the number of cores, and joins shuffle partitions by their
size while the job runs, so that the same query gives other partitions on another cluster or another day.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_ADAPTIVE = "spark.sql.adaptive.enabled"
PINNED: Mapping[str, str] = {
    _ADAPTIVE: "false",
    "spark.sql.execution.sortBeforeRepartition": "true",
    "spark.sql.files.maxPartitionBytes": str(1 << 40),
    "spark.sql.files.openCostInBytes": str(1 << 40),
    "spark.sql.session.timeZone": "UTC",
}
"""Both file settings at a tebibyte give one whole file to each partition on any number of cores."""


@contextmanager
def pinned_layout(session: Any) -> Iterator[None]:
    """Pin the layout of what is planned inside the block; the session's own settings come back after it.

    Settings count when a DataFrame is planned, which is when its first action runs.
    """
    before = {name: session.conf.get(name) for name in PINNED}
    pin_layout(session)
    try:
        yield
    finally:
        for name, value in before.items():
            session.conf.set(name, value)


def pin_layout(session: Any) -> None:
    """Pin the layout of a session that nobody else uses."""
    for name, value in PINNED.items():
        session.conf.set(name, value)


@contextmanager
def free_layout(session: Any) -> Iterator[None]:
    """Let Spark choose the layout of questions whose answer does not depend on it, such as counts."""
    session.conf.set(_ADAPTIVE, "true")
    try:
        yield
    finally:
        session.conf.set(_ADAPTIVE, PINNED[_ADAPTIVE])


def unpinned(session: Any) -> dict[str, str]:
    """The settings that differ from the pinned ones, with their present values."""
    return {name: session.conf.get(name) for name, value in PINNED.items() if not _same(session, name, value)}


def _same(session: Any, name: str, value: str) -> bool:
    """True when a setting has a value; Spark shows sizes with a unit."""
    now = str(session.conf.get(name)).lower()
    return now == value.lower() or (value.isdecimal() and now.rstrip("b") == value)


def layout_fingerprint(*facts: Any) -> str:
    """Eight hexadecimal digits that change when one of the facts of a layout does.

    :param facts: JSON values
    """
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:8]

"""PATTERN of COPY, pipes, LIST, GET and REMOVE: RE2, in time that grows with the path only, everywhere."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_snowpipe.local.errors import SqlError


def match_whole(pattern: str, paths: Sequence[str]) -> list[bool]:
    """Return for each path whether a regular expression matches the whole of it.

    :raises SqlError: 100048 for what is no regular expression of RE2 (it has no look-around).
    """
    try:
        # The empty path makes Arrow look at the pattern even when there is no other.
        found = pc.match_substring_regex(pa.array([*paths, ""]), rf"\A(?:{pattern})\z")
    except pa.ArrowInvalid as error:
        raise SqlError("100048", "2201B", f"Invalid regular expression: '{pattern}': {error}") from error
    return [bool(value) for value in found.to_pylist()[:-1]]


def check(pattern: str) -> None:
    """Refuse a pattern before it is kept.

    :raises SqlError: as :func:`match_whole`.
    """
    match_whole(pattern, [])

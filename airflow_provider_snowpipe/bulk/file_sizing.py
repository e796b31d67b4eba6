"""How many files, and how large: Snowflake's advice is 100 to 250 MB, compressed.

Everything here goes by bytes of files that are written, never by an estimate of what they might become.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from airflow_provider_snowpipe.streaming.errors import ConfigurationError

TARGET_FILE_BYTES = 160_000_000
"""With it the files have 100 to 250 MB (page "Preparing your data files"): see :func:`file_count`."""
_LARGEST, _SMALLEST = 1.56, 0.625
"""Of the target: 250 and 100 MB of 160 MB."""
_ROOM = 1.2
"""Files are packed whole, one after the other: room for the last one, so that no pack is left half full."""
_LEAST_BLOCK, _LARGEST_BLOCK = 64 << 10, 128 << 20


def check_target(target: int) -> None:
    """Refuse a target that no file can have.

    :param target: bytes of a file
    :raises ConfigurationError: if it is below 1 kB
    """
    if not isinstance(target, int) or isinstance(target, bool) or target < 1_000:
        raise ConfigurationError(
            f"target_file_bytes is {target!r}: give the bytes of a file, such as {TARGET_FILE_BYTES:,}"
        )


def file_count(total: float, target: int) -> int:
    """How many files some bytes become: the nearest whole number, so that each has 2/3 to 3/2 of the target.

    :param total: bytes of all
    :param target: bytes of a file
    """
    return max(1, round(total / target))


def is_well_cut(sizes: Sequence[int], target: int) -> bool:
    """True where files need not be written again: none is too large, and they are not too small on average.

    :param sizes: bytes of each file
    :param target: bytes of a file
    """
    if not sizes:
        return True
    few = len(sizes) == 1 or sum(sizes) / len(sizes) >= target * _SMALLEST
    return few and max(sizes) <= target * _LARGEST


def packed_bytes(total: int, target: int) -> int:
    """Bytes at which a pack of files is full.

    :param total: bytes of all
    :param target: bytes of a file
    """
    return max(1, math.ceil(total / file_count(total, target) * _ROOM))


def block_bytes(target: int) -> int:
    """Bytes of a row group or stripe: a file can only be cut between two of them.

    :param target: bytes of a file
    """
    return max(_LEAST_BLOCK, min(_LARGEST_BLOCK, target // 8))

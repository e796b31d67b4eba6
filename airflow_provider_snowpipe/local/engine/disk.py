"""A disk without room: what is held back before it is full, and what happened when it is."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import duckdb

# Kept free for the write-ahead log of a commit that has begun and for the small files of the service.
RESERVED_BYTES = 16 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)
_WORDS = ("No space left on device", "Disk quota exceeded")


def has_room(folder: Path, size: int) -> bool:
    """Return True when a folder's disk takes so many bytes and keeps its reserve."""
    return shutil.disk_usage(folder).free >= size + RESERVED_BYTES


def is_full(error: BaseException) -> bool:
    """Return True for the failure of a write that found no room, also of the engine's."""
    if isinstance(error, OSError) and error.errno in _FULL:
        return True
    return isinstance(error, duckdb.Error) and any(word in str(error) for word in _WORDS)


def is_invalidated(error: BaseException) -> bool:
    """Return True when the engine refuses a database whose checkpoint failed."""
    return isinstance(error, duckdb.Error) and "has been invalidated" in str(error)

"""Which lines of which files go into which new file: planned on the driver, from the files' sizes.

A cut is a byte of a file. Whoever reads from one goes on to the end of the line that it is in, and whoever
reads up to it ends there, so that no line is read twice or not at all.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_snowpipe.bulk.compaction import file_count

_SAMPLES, _SAMPLE_BYTES = 32, 256 << 10
_UNKNOWN_RATIO = 0.25
_OVERFULL = 1.25
_REST = 0.5
"""Of a new file: so little goes into the last one, too, however full it is."""


@dataclass(frozen=True, slots=True)
class LineFile:
    """A file of lines.

    :param path: where it is
    :param size: its bytes
    :param compression: ``gzip``, ``zstd``, ``bz2``, ``xz`` or ``none``
    :param splits: True where it may be cut between two lines
    """

    path: str
    size: int
    compression: str = "none"
    splits: bool = False


@dataclass(frozen=True, slots=True)
class LineSlice:
    """Lines of one file that begin between two of its bytes.

    :param file: the file
    :param start: the first byte
    :param end: the byte after the last one
    """

    file: LineFile
    start: int
    end: int


def cut_lines(files: Sequence[LineFile], target: int, ratio: float) -> list[tuple[LineSlice, ...]]:
    """Share lines out into new files of about a size, in order.

    :param files: the files, in the order in which their lines go on
    :param target: bytes of a new file, compressed
    :param ratio: what a byte of a file that is not compressed becomes
    :return: the slices of each new file
    """
    weights = {file.path: file.size * (ratio if file.compression == "none" else 1.0) for file in files}
    total = sum(weights.values())
    count = file_count(total, target)
    share = total / count
    cuts: list[tuple[LineSlice, ...]] = []
    current: list[LineSlice] = []
    filled = 0.0
    for file in files:
        start, per_byte = 0, weights[file.path] / max(1, file.size)
        while start < file.size:
            left = (file.size - start) * per_byte
            room = share - filled
            is_last = len(cuts) >= count - 1 and left < share * _REST
            if (
                current
                and not is_last
                and left > room * _OVERFULL
                and (not file.splits or room < share * 0.1)
            ):
                cuts.append(tuple(current))
                current, filled = [], 0.0
                continue
            end = file.size
            if file.splits and left > share * _OVERFULL:
                end = min(file.size, start + max(1, int(room / per_byte)))
            current.append(LineSlice(file, start, end))
            filled += (end - start) * per_byte
            start = end
            if filled >= share * 0.999 and len(cuts) < count - 1:
                cuts.append(tuple(current))
                current, filled = [], 0.0
    return cuts + ([tuple(current)] if current else [])


def sampled_ratio(files: Sequence[LineFile]) -> float:
    """What gzip makes of a byte, measured on the beginnings of some of the files.

    :param files: the files; those that are compressed do not count
    """
    plain = [file for file in files if file.compression == "none" and file.size]
    step = max(1, len(plain) // _SAMPLES)
    raw = packed = 0
    for file in plain[::step][:_SAMPLES]:
        with Path(file.path).open("rb") as stream:
            sample = stream.read(_SAMPLE_BYTES)
        raw += len(sample)
        packed += len(gzip.compress(sample, compresslevel=4))
    return min(1.0, packed / raw) if raw else _UNKNOWN_RATIO

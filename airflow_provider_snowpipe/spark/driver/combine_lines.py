"""New files of lines from slices of others: cut on the driver, written in tasks that touch headers alone."""

from __future__ import annotations

import gzip
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from airflow_provider_snowpipe.bulk.run_files import WrittenFile, file_count
from airflow_provider_snowpipe.spark.sources.files.formats import BYTE_ORDER_MARK, pieces
from airflow_provider_snowpipe.spark.sources.files.spec import SourceFile
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SourcePositionError

_READ_BYTES = 1 << 20
_LONGEST_HEADER = 1 << 20
_LEVEL = 4


def combine(slices: Sequence[LineSlice], target: Path, header: bytes | None) -> WrittenFile:
    """Write the lines of some slices into one file, compressed with gzip.

    The file is there as a whole or not at all. The same lines give the same bytes. A file's
    last line is ended where it was not.

    :param header: the line that each file begins with, without its end; None where there is none
    :return: the file by its name, with its lines but the header
    """
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    lines = 0
    try:
        with (
            partial.open("wb") as stored,
            gzip.GzipFile("", "wb", compresslevel=_LEVEL, fileobj=stored, mtime=0) as packed,
        ):
            if header is not None:
                packed.write(header + b"\n")
            for one in slices:
                last = b"\n"
                for piece in filter(None, _text(one, header)):
                    last = piece[-1:]
                    lines += piece.count(b"\n")
                    packed.write(piece)
                if last != b"\n":
                    lines += 1
                    packed.write(b"\n")
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    return WrittenFile(target.name, target.stat().st_size, lines)


def header_of(file: LineFile) -> bytes:
    """The first line of a file, without its end."""
    return _split_header(_unmarked(_whole(file)), file.path)[0]


def _text(one: LineSlice, header: bytes | None) -> Iterator[bytes]:
    found = _between(one) if one.file.compression == "none" else _whole(one.file)
    if not one.start:
        found = _unmarked(found)
    if header is None or one.start:
        yield from found
        return
    first, rest = _split_header(found, one.file.path)
    if first != header:
        raise ConfigurationError(
            f"file {one.file.path!r} begins with the line {first[:80]!r} and the first file with "
            f"{header[:80]!r}: files with other columns are not combined; stage them by a task of their own"
        )
    yield rest
    yield from found


def _split_header(found: Iterator[bytes], path: str) -> tuple[bytes, bytes]:
    """The first line, and what came with it; the iterator goes on behind that."""
    text = b""
    for piece in found:
        text += piece
        if b"\n" in text or len(text) > _LONGEST_HEADER:
            break
    line, end, rest = text.partition(b"\n")
    if len(line) > _LONGEST_HEADER and not end:
        raise ConfigurationError(f"file {path!r} has no line end in its first megabyte: it is not text")
    return line.removesuffix(b"\r"), rest


def _unmarked(found: Iterator[bytes]) -> Iterator[bytes]:
    """The same text without a byte order mark before it."""
    yield next(found, b"").removeprefix(BYTE_ORDER_MARK)  # COPY skips it at the start of a file only
    yield from found


def _whole(file: LineFile) -> Iterator[bytes]:
    listed = SourceFile(Path(file.path).name, file.path, file.size)
    return map(bytes, pieces(listed, 0, compression=file.compression, read_bytes=_READ_BYTES))


def _between(one: LineSlice) -> Iterator[bytes]:
    with open(one.file.path, "rb", buffering=0) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size != one.file.size:
            raise SourcePositionError(
                f"file {one.file.path!r} had {one.file.size:,} bytes and has {size:,} now: run again when "
                "nothing changes it. Nothing was staged"
            )
        position, end = _line_after(stream, one.start, size), _line_after(stream, one.end, size)
        stream.seek(position)
        while position < end and (piece := stream.read(min(_READ_BYTES, end - position))):
            position += len(piece)
            yield piece


def _line_after(stream: IO[bytes], cut: int, size: int) -> int:
    """Where the first line begins that begins at a cut or after it."""
    if cut <= 0 or cut >= size:
        return max(0, min(cut, size))
    position = cut - 1
    stream.seek(position)
    while piece := stream.read(_READ_BYTES):
        found = piece.find(b"\n")
        if found >= 0:
            return position + found + 1
        position += len(piece)
    return size


# -- The lines of each new file, and their files of before: planned on the driver, from the files' sizes -----
#
# A cut is a byte of a file. Whoever reads from one goes on to the end of the line that it is in, and
# whoever reads up to it ends there, so that no line is read twice or not at all.

_SAMPLES, _SAMPLE_BYTES = 32, 256 << 10
_UNKNOWN_RATIO = 0.25
_OVERFULL = 1.25
_REST = 0.5
"""Of a new file: so little goes into the last one, too, however full it is."""


@dataclass(frozen=True, slots=True)
class LineFile:
    """A file of lines; one that ``splits`` may be cut between two of them."""

    path: str
    size: int
    compression: str = "none"
    splits: bool = False


@dataclass(frozen=True, slots=True)
class LineSlice:
    """Lines of one file that begin between two of its bytes."""

    file: LineFile
    start: int
    end: int


def cut_lines(files: Sequence[LineFile], target: int, ratio: float) -> list[tuple[LineSlice, ...]]:
    """Share lines out into new files of about a size, in order.

    :param target: bytes of a new file, compressed
    :param ratio: what a byte of a file that is not compressed becomes
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
    """What gzip makes of a byte, measured on the beginnings of some files that are not compressed."""
    plain = [file for file in files if file.compression == "none" and file.size]
    step = max(1, len(plain) // _SAMPLES)
    raw = packed = 0
    for file in plain[::step][:_SAMPLES]:
        with Path(file.path).open("rb") as stream:
            sample = stream.read(_SAMPLE_BYTES)
        raw += len(sample)
        packed += len(gzip.compress(sample, compresslevel=4))
    return min(1.0, packed / raw) if raw else _UNKNOWN_RATIO

"""Probes: from a listing, a folder, a queue's offsets or past loads to the shape of the data.

All but :func:`folder_shape` are pure: who can list or ask does so, and passes plain values on.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from airflow_provider_snowpipe.routing.data_shape import DataShape, FileSet
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

Scan = Callable[[str], Iterable[os.DirEntry[str]]]

_FORMATS = {
    "csv": "CSV", "tsv": "CSV", "txt": "CSV", "tbl": "CSV", "psv": "CSV", "log": "CSV",
    "json": "JSON", "jsonl": "JSON", "ndjson": "JSON",
    "xml": "XML", "parquet": "PARQUET", "avro": "AVRO", "orc": "ORC",
}  # fmt: skip
_COMPRESSIONS = ("gz", "zst", "bz2", "br", "deflate", "snappy", "lz4", "lzo")
_UNKNOWN_SIZE = 2**62
"""Spark's statistics say 2^63 - 1 or a product of it where they do not know a size."""


@dataclass(frozen=True, slots=True)
class ListedFile:
    """One entry of a listing.

    :param name: the file's path or URL
    :param bytes: its size as stored
    :param modified: when it was written last, None for unknown
    """

    name: str
    bytes: int
    modified: dt.datetime | None = None

    @classmethod
    def from_list_row(cls, row: Mapping[str, Any]) -> ListedFile:
        """Read a row of ``LIST``, whose keys are the columns' names in small letters (page "LIST").

        :param row: the row; ``last_modified`` is a timestamp or a text, ``Sat, 21 Nov 2026 14:43:01 GMT``
        """
        modified = row.get("last_modified")
        if isinstance(modified, str):
            modified = parsedate_to_datetime(modified)
        return cls(str(row["name"]), int(row["size"]), modified)


def listing_shape(
    files: Iterable[ListedFile], now: dt.datetime, /, *, staged: bool = False, **known: Any
) -> DataShape:
    """Make the shape of files that a listing names.

    :param files: the listing, of a stage, an object store or a disk; it is read once and not kept
    :param now: the timestamp from which ages are counted
    :param staged: True for the files of a stage
    :param known: what else is known of the data: other parameters of :class:`DataShape`
    :raises ConfigurationError: if ``files`` is one of them
    """
    if "files" in known:
        raise ConfigurationError(
            f"the shape has files={known['files']!r}, and the source names files that are listed: leave it "
            "out, or give the whole shape as the source"
        )
    count, total, largest = 0, 0, 0
    kinds: set[tuple[str | None, bool]] = set()
    first: dt.datetime | None = None
    last: dt.datetime | None = None
    for file in files:
        count, total, largest = count + 1, total + file.bytes, max(largest, file.bytes)
        kinds.add(file_kind(file.name))
        if file.modified is not None:
            first = min(first or file.modified, file.modified)
            last = max(last or file.modified, file.modified)
    formats = {kind for kind, _ in kinds}
    found = FileSet(
        count,
        total,
        largest=largest if count else None,
        format=formats.pop() if len(formats) == 1 else None,
        compressed=bool(kinds) and all(compressed for _, compressed in kinds),
        staged=staged,
        oldest=_age(first, now),
        newest=_age(last, now),
        interval=_interval(count, first, last) if known.get("bounded") is False else None,
    )
    return DataShape(files=found, **known)


def file_kind(name: str) -> tuple[str | None, bool]:
    """Tell a file's format, and whether it is compressed text, by the endings of its name.

    :param name: path or URL
    """
    endings = name.rpartition("/")[2].lower().split(".")[1:]
    compressed = bool(endings) and endings[-1] in _COMPRESSIONS
    known = [_FORMATS[ending] for ending in endings if ending in _FORMATS]
    kind = known[-1] if known else None
    return kind, compressed and kind not in ("PARQUET", "AVRO", "ORC")


def folder_shape(folder: str | Path, now: dt.datetime, *, scan: Scan = os.scandir, **known: Any) -> DataShape:
    """Make the shape of the files below a folder, or of one file; hidden ones do not count.

    :param folder: a path of this machine
    :param now: the timestamp from which ages are counted
    :param scan: lists one folder
    :param known: what else is known of the data
    :raises ConfigurationError: if the path does not exist or cannot be read
    """
    path = Path(folder)
    try:
        if path.is_file():
            listed = [_listed(str(path), path.stat())]
            return listing_shape(listed, now, **known)
        return listing_shape(_below(str(path), scan), now, **known)
    except OSError as error:
        raise ConfigurationError(
            f"the files of {str(folder)!r} cannot be listed ({error.strerror}): name a folder or a "
            "file that this "
            "machine can read"
        ) from None


def backlog_shape(
    partitions: Mapping[Any, tuple[int | None, int, int]], bytes_per_record: float | None, /, **known: Any
) -> DataShape:
    """Make the shape of what a queue holds beyond what is committed, such as the topic of a Kafka cluster.

    :param partitions: for each partition the next offset to read (None for none committed), the first offset
        that the queue still has, and the end, one past the last offset
    :param bytes_per_record: uncompressed bytes of a record on average, None where nobody knows
    :param known: what else is known of the data
    :raises ConfigurationError: if an end lies before its beginning
    """
    rows = 0
    for name, (committed, begin, end) in partitions.items():
        if end < begin:
            raise ConfigurationError(
                f"partition {name!r} ends at {end}, before it begins at {begin}: ask again"
            )
        rows += max(0, end - max(begin, begin if committed is None else committed))
    size = None if bytes_per_record is None else rows * bytes_per_record
    return DataShape(**{"rows": rows, "bytes": size, "partitions": max(1, len(partitions)), **known})


def dataframe_shape(size_in_bytes: int, partitions: int, rows: int | None = None, **known: Any) -> DataShape:
    """Make the shape of a DataFrame from the statistics of its optimised plan.

    :param size_in_bytes: ``sizeInBytes`` of the statistics
    :param partitions: partitions of its RDD
    :param rows: ``rowCount`` of the statistics, None where there is none
    :param known: what else is known of the data
    :raises ConfigurationError: if Spark knows neither size nor rows
    """
    size = None if size_in_bytes >= _UNKNOWN_SIZE else float(size_in_bytes)
    if size is None and rows is None:
        raise ConfigurationError(
            f"the plan's statistics say {size_in_bytes} bytes, which stands for unknown: give rows or "
            "bytes, or "
            "compute statistics of the tables"
        )
    return DataShape(bytes=size, rows=rows, partitions=max(1, partitions), **known)


def past_loads_shape(loads: Iterable[Mapping[str, Any]], **known: Any) -> DataShape:
    """Make the shape of the files that keep coming into a table, from its loads of the last days.

    The interval between files is that of the loads' timestamps; bytes of a file are the mean ones.

    :param loads: rows of ``COPY_HISTORY`` with ``file_name``, ``file_size`` and ``last_load_time``
    :param known: what else is known of the data
    :raises ConfigurationError: if there are fewer than two loads, or all at one timestamp
    """
    files = [
        ListedFile(str(row["file_name"]), int(row["file_size"] or 0), row["last_load_time"])
        for row in loads
        if row.get("last_load_time") is not None
    ]
    now = max((file.modified for file in files if file.modified), default=dt.datetime.now(dt.UTC))
    shape = listing_shape(files, now, bounded=False, arrival_rate=0.0)
    if shape.files is None or shape.files.interval is None:
        raise ConfigurationError(
            f"load history has {len(files)} loads, which say no rate: give bytes or arrival_rate instead"
        )
    return DataShape(bounded=False, files=shape.files, **known)


def _below(folder: str, scan: Scan) -> Iterator[ListedFile]:
    with_entries = scan(folder)
    for entry in with_entries:
        if entry.name.startswith((".", "_")):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _below(entry.path, scan)
        elif entry.is_file():
            yield _listed(entry.path, entry.stat())


def _listed(name: str, status: os.stat_result) -> ListedFile:
    return ListedFile(name, status.st_size, dt.datetime.fromtimestamp(status.st_mtime, dt.UTC))


def _age(timestamp: dt.datetime | None, now: dt.datetime) -> float | None:
    return None if timestamp is None else max(0.0, (now - timestamp).total_seconds())


def _interval(count: int, first: dt.datetime | None, last: dt.datetime | None) -> float | None:
    if count < 2 or first is None or last is None or first == last:
        return None
    return (last - first).total_seconds() / (count - 1)

"""The shape of data over time, and probes that find it in a listing, a folder, a queue or past loads.

A shape describes how much there is, how fast it comes, in what files, and how fresh it must be.

All but :func:`folder_shape` are pure: who can list or ask does so, and passes plain values on.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Self

from airflow_provider_snowpipe.routing.cost_model import CostModel
from airflow_provider_snowpipe.streaming.arguments import (
    check_numbers_and_switches,
    check_one_of,
    known_arguments,
)
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

TEXT_FORMATS = ("CSV", "JSON", "XML")
BINARY_FORMATS = ("PARQUET", "AVRO", "ORC")
LOADERS = ("copy", "pipe")


@dataclass(frozen=True, slots=True)
class FileSet:
    """Files that exist, or the usual files of a stream of them.

    :param count: number of files
    :param bytes: bytes of them all, as they are stored
    :param largest: bytes of the largest, None for unknown
    :param format: ``CSV``, ``JSON``, ``XML``, ``PARQUET``, ``AVRO`` or ``ORC``; None for a mixture
    :param compressed: True for compressed text
    :param staged: True when they lie in a stage already
    :param oldest: age in seconds of the oldest, None for unknown
    :param newest: age in seconds of the newest, None for unknown
    :param interval: seconds from the arrival of one to that of the next, None where none arrive any more
    """

    count: int
    bytes: float
    largest: float | None = None
    format: str | None = None
    compressed: bool = False
    staged: bool = False
    oldest: float | None = None
    newest: float | None = None
    interval: float | None = None

    def __post_init__(self) -> None:
        check_numbers_and_switches(self)
        if self.format is not None and self.format not in TEXT_FORMATS + BINARY_FORMATS:
            raise ConfigurationError(
                f"format of the files is {self.format!r}: give one of "
                f"{', '.join(TEXT_FORMATS + BINARY_FORMATS)}, or None for a mixture"
            )
        if self.interval == 0:
            raise ConfigurationError("interval of the files is 0: give the seconds between two arrivals")

    @property
    def mean(self) -> float:
        """Bytes of a file on average, 0 where there is none."""
        return self.bytes / self.count if self.count else 0.0

    def expansion(self, costs: CostModel) -> float:
        """How many uncompressed bytes a stored byte stands for."""
        if self.format in BINARY_FORMATS:
            return costs.columnar_ratio
        return costs.text_ratio if self.compressed else 1.0


@dataclass(frozen=True, slots=True)
class DataShape:
    """What is to be loaded, as far as it is known. Bytes are uncompressed unless they are those of files.

    :param bounded: True for data with an end (files of a day, a backlog), False for a stream without one
    :param bytes: uncompressed bytes of bounded data, None to estimate them from files or rows
    :param rows: rows of bounded data, None for unknown
    :param files: the files, where data is in files or arrives in them; None for rows in memory or a queue
    :param arrival_rate: uncompressed bytes per second of unbounded data
    :param freshness: seconds after which a row has to be queryable, None for no wish
    :param backfill: True for data of the past that nobody waits for
    :param live_into_files: True for rows that come one by one and are written to files only to be loaded
    :param given_to: who loads these very files already: ``copy``, ``pipe`` or None
    :param partitions: ordered units of the source; each can have a channel
    """

    bounded: bool = True
    bytes: float | None = None
    rows: int | None = None
    files: FileSet | None = None
    arrival_rate: float | None = None
    freshness: float | None = None
    backfill: bool = False
    live_into_files: bool = False
    given_to: str | None = None
    partitions: int = 1

    def __post_init__(self) -> None:
        check_numbers_and_switches(self)
        if self.partitions < 1:
            raise ConfigurationError(f"partitions is {self.partitions}: give 1 or more")
        check_one_of("given_to", self.given_to, (None, *LOADERS))
        if self.given_to is not None and self.files is None:
            raise ConfigurationError(
                f"given_to is {self.given_to!r} without files: only files are given to one"
            )
        if self.bounded and self.bytes is None and self.rows is None and self.files is None:
            raise ConfigurationError("the shape has no size: give bytes, rows or files")
        if not self.bounded and self.arrival_rate is None and not (self.files and self.files.interval):
            raise ConfigurationError(
                "the shape is unbounded and has no rate: give arrival_rate (uncompressed bytes per second), "
                "or files with an interval"
            )

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Make a shape of a JSON object whose keys are the parameters' names."""
        given = cls.known(value)
        files = given.get("files")
        if files is not None:
            given["files"] = FileSet(**_known(FileSet, files, "files of the shape"))
        return cls(**given)

    @classmethod
    def known(cls, value: Any) -> dict[str, Any]:
        """Take what is known of a shape: some of its parameters by name."""
        return _known(cls, value, "the shape")

    def as_json(self) -> dict[str, Any]:
        """The shape as a JSON object, without what is unknown."""
        found = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        if self.files is not None:
            found["files"] = {name: value for name, value in found["files"].items() if value is not None}
        return found

    def uncompressed(self, costs: CostModel) -> float:
        """Uncompressed bytes: of bounded data all of them, of unbounded data those of a second."""
        given = self.bytes if self.bounded else self.arrival_rate
        if given is not None:
            return given
        if self.files is not None and (self.bounded or self.files.interval):
            stored = self.files.bytes if self.bounded else self.files.mean / (self.files.interval or 1.0)
            return stored * self.files.expansion(costs)
        return (self.rows or 0) * costs.bytes_per_row

    def expected(self, costs: CostModel) -> dict[str, float]:
        """Rows and uncompressed bytes that the shape stands for."""
        size = self.uncompressed(costs)
        return {
            "rows": self.rows if self.rows is not None else round(size / costs.bytes_per_row),
            "bytes": size,
        }

    def nothing(self) -> str | None:
        """What there is none of, in words; None for data that is there or may come."""
        if not self.bounded:
            return None
        if self.files is not None and self.files.count == 0 and not self.bytes:
            return "0 files"
        if self.rows == 0:
            return "0 rows"
        stored = None if self.files is None else self.files.bytes
        return "0 bytes" if self.bytes == 0 or (self.bytes is None and stored == 0) else None

    def billed_by_pipe(self, costs: CostModel) -> float:
        """Bytes that a pipe bills for the data: of binary files those stored, of text the uncompressed."""
        if self.files is not None and self.files.format in BINARY_FORMATS:
            return self.uncompressed(costs) / self.files.expansion(costs)
        return self.uncompressed(costs)


def _known(kind: type, value: Any, what: str) -> dict[str, Any]:
    given = known_arguments(kind, value, what)
    for one in dataclasses.fields(kind):
        if one.type == "bool" and not isinstance(given.get(one.name, False), bool):
            raise ConfigurationError(f"{one.name} of {what} is {given[one.name]!r}: give true or false")
    return given


# -- Probes: from a listing, a folder, a queue's offsets or past loads to the shape of the data ----------

Scan = Callable[[str], Iterable[os.DirEntry[str]]]

_FORMATS = {
    "csv": "CSV", "tsv": "CSV", "txt": "CSV", "tbl": "CSV", "psv": "CSV", "log": "CSV",
    "json": "JSON", "jsonl": "JSON", "ndjson": "JSON",
    "xml": "XML", "parquet": "PARQUET", "avro": "AVRO", "orc": "ORC",
}  # fmt: skip
_COMPRESSIONS = ("gz", "zst", "bz2", "br", "deflate", "snappy", "lz4", "lzo")
_UNKNOWN_SIZE = 2**62
"""Spark's statistics have 2^63 - 1 or a product of it where they do not know a size."""


@dataclass(frozen=True, slots=True)
class ListedFile:
    """One entry of a listing."""

    name: str
    bytes: int
    modified: dt.datetime | None = None

    @classmethod
    def from_list_row(cls, row: Mapping[str, Any]) -> ListedFile:
        """Read a row of ``LIST``, whose keys are the columns' names in small letters (page "LIST")."""
        modified = row.get("last_modified")
        if isinstance(modified, str):
            modified = parsedate_to_datetime(modified)
        return cls(str(row["name"]), int(row["size"]), modified)


def listing_shape(
    files: Iterable[ListedFile], now: dt.datetime, /, *, staged: bool = False, **known: Any
) -> DataShape:
    """Make the shape of files that a listing names."""
    _refuse_files(known)
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
    """Find a file's format, and whether it is compressed text, by the endings of its name."""
    endings = name.rpartition("/")[2].lower().split(".")[1:]
    compressed = bool(endings) and endings[-1] in _COMPRESSIONS
    known = [_FORMATS[ending] for ending in endings if ending in _FORMATS]
    kind = known[-1] if known else None
    return kind, compressed and kind not in ("PARQUET", "AVRO", "ORC")


def folder_shape(folder: str | Path, now: dt.datetime, *, scan: Scan = os.scandir, **known: Any) -> DataShape:
    """Make the shape of the files below a folder, or of one file; hidden ones do not count."""
    path = Path(folder)
    try:
        if path.is_file():
            listed = [_listed(str(path), path.stat())]
            return listing_shape(listed, now, **known)
        return listing_shape(_below(str(path), scan), now, **known)
    except OSError as error:
        raise ConfigurationError(
            f"the files of {str(folder)!r} cannot be listed ({error.strerror}): name a path that can be read"
        ) from None


def backlog_shape(
    partitions: Mapping[Any, tuple[int | None, int, int]], bytes_per_record: float | None, /, **known: Any
) -> DataShape:
    """Make the shape of what a queue holds beyond what is committed, such as the topic of a Kafka cluster.

    :param partitions: for each partition the next offset to read (None for none committed), the first offset
        that the queue still has, and the end, one past the last offset
    :param bytes_per_record: uncompressed bytes of a record on average, None where nobody knows
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
    """Make the shape of a DataFrame from the statistics of its optimised plan."""
    size = None if size_in_bytes >= _UNKNOWN_SIZE else float(size_in_bytes)
    if size is None and rows is None:
        raise ConfigurationError(
            f"the plan's statistics report {size_in_bytes} bytes, which stands for unknown: give rows or "
            "bytes, or compute statistics of the tables"
        )
    return DataShape(bytes=size, rows=rows, partitions=max(1, partitions), **known)


def past_loads_shape(loads: Iterable[Mapping[str, Any]], **known: Any) -> DataShape:
    """Make the shape of the files that keep coming into a table, from its loads of the last days."""
    _refuse_files(known)
    if known.pop("bounded", False):
        raise ConfigurationError(
            "the shape has bounded=True, and past loads show files that keep coming: leave it out, or name "
            "what is to be loaded as the source, a stage or a path, or a shape with bytes or rows"
        )
    files = [
        ListedFile(str(row["file_name"]), int(row["file_size"] or 0), row["last_load_time"])
        for row in loads
        if row.get("last_load_time") is not None
    ]
    now = max((file.modified for file in files if file.modified), default=dt.datetime.now(dt.UTC))
    shape = listing_shape(files, now, bounded=False, arrival_rate=0.0)
    if shape.files is None or shape.files.interval is None:
        raise ConfigurationError(
            f"load history has {len(files)} loads, which show no rate: give bytes or arrival_rate instead"
        )
    return DataShape(bounded=False, files=shape.files, **known)


def _refuse_files(known: Mapping[str, Any]) -> None:
    if "files" in known:
        raise ConfigurationError(
            f"the shape has files={known['files']!r}, and the source names files that are listed: leave it "
            "out, or give the whole shape as the source"
        )


def _below(folder: str, scan: Scan) -> Iterator[ListedFile]:
    for entry in scan(folder):
        if entry.name.startswith((".", "_")):
            continue
        with suppress(FileNotFoundError):  # it went meanwhile, as when a writer gives a file its final name
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

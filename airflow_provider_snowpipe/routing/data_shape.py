"""The shape of data over time: how much, how fast, in what files, and how fresh it must be."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Self

from airflow_provider_snowpipe.routing.cost_model import CostModel
from airflow_provider_snowpipe.streaming.arguments import known_arguments
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
        _require_numbers(self, "count", "bytes", "largest", "oldest", "newest", "interval")
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
        """How many uncompressed bytes a stored byte stands for.

        :param costs: the figures to estimate with
        """
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
    :param partitions: ordered units of the source, each of which can have a channel
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
        _require_numbers(self, "bytes", "rows", "arrival_rate", "freshness", "partitions")
        if self.partitions < 1:
            raise ConfigurationError(f"partitions is {self.partitions}: give 1 or more")
        if self.given_to not in (None, *LOADERS):
            raise ConfigurationError(f"given_to is {self.given_to!r}: give 'copy', 'pipe' or None")
        if self.given_to is not None and self.files is None:
            raise ConfigurationError(
                f"given_to is {self.given_to!r} without files: only files are given to one"
            )
        if self.bounded and self.bytes is None and self.rows is None and self.files is None:
            raise ConfigurationError("the shape has no size: give bytes, rows or files")
        if not self.bounded and self.arrival_rate is None and not (self.files and self.files.interval):
            raise ConfigurationError(
                "the shape is unbounded and has no rate: give arrival_rate (uncompressed bytes per "
                "second), or "
                "files with an interval"
            )

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Make a shape of a JSON object whose keys are the parameters' names.

        :param value: the object; ``files`` is one as well
        :raises ConfigurationError: if a key or a value is wrong
        """
        given = cls.known(value)
        files = given.get("files")
        if files is not None:
            given["files"] = FileSet(**_known(FileSet, files, "files of the shape"))
        return cls(**given)

    @classmethod
    def known(cls, value: Any) -> dict[str, Any]:
        """Take what is known of a shape: some of its parameters by name.

        :param value: the mapping
        :raises ConfigurationError: if it is none, or a key or a value is wrong
        """
        return _known(cls, value, "the shape")

    def as_json(self) -> dict[str, Any]:
        """The shape as a JSON object, without what is unknown."""
        found = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        if self.files is not None:
            found["files"] = {name: value for name, value in found["files"].items() if value is not None}
        return found

    def uncompressed(self, costs: CostModel) -> float:
        """Uncompressed bytes: of bounded data all of them, of unbounded data those of a second.

        :param costs: the figures to estimate with
        """
        given = self.bytes if self.bounded else self.arrival_rate
        if given is not None:
            return given
        if self.files is not None and (self.bounded or self.files.interval):
            stored = self.files.bytes if self.bounded else self.files.mean / (self.files.interval or 1.0)
            return stored * self.files.expansion(costs)
        return (self.rows or 0) * costs.bytes_per_row

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
        """Bytes that a pipe bills for the same data: of binary files those stored, of text the uncompressed.

        :param costs: the figures to estimate with
        """
        if self.files is not None and self.files.format in BINARY_FORMATS:
            return self.uncompressed(costs) / self.files.expansion(costs)
        return self.uncompressed(costs)


def _require_numbers(value: Any, *names: str) -> None:
    for name in names:
        number = getattr(value, name)
        if number is None:
            continue
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise ConfigurationError(f"{name} is {number!r}: give a number")
        if not math.isfinite(number) or number < 0:
            raise ConfigurationError(f"{name} is {number!r}: give a number of 0 or more")


def _known(kind: type, value: Any, what: str) -> dict[str, Any]:
    given = known_arguments(kind, value, what)
    for one in dataclasses.fields(kind):
        if one.type == "bool" and not isinstance(given.get(one.name, False), bool):
            raise ConfigurationError(f"{one.name} of {what} is {given[one.name]!r}: give true or false")
    return given

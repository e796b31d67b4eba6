"""Files that a run writes and stages for COPY: how they are combined, and the manifest that names them.

A manifest is kept in the load ledger. It lists which staged files are one piece of work. Files that an
attempt leaves behind when it dies are in no manifest, and nobody loads them.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self, get_args

from airflow_provider_snowpipe.streaming.arguments import check_one_of
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

MANIFEST_VERSION = 1
_UNSAFE = re.compile(r"[^A-Za-z0-9_.=-]+")
_LONGEST_NAME = 80


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that is as it will stay.

    :param name: its path below the folder of the work; no other attempt has one of that name
    :param rows: its rows, or lines
    """

    name: str
    bytes: int
    rows: int


class WrittenFiles:
    """What a manifest and the report of a job have in common: the files."""

    __slots__ = ()
    files: tuple[WrittenFile, ...]

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class RunManifest(WrittenFiles):
    """The files that one attempt has written.

    :param columns: the table's columns that their rows have; none where nobody has to know
    :param json_columns: those of them that hold JSON as text
    :param source: what the rows were read from, in words that tell it from another one; empty where the files
        are named by it
    """

    attempt: str
    files: tuple[WrittenFile, ...]
    columns: tuple[str, ...] = ()
    json_columns: tuple[str, ...] = ()
    source: str = ""

    @property
    def names(self) -> list[str]:
        """The files' paths below the folder."""
        return [file.name for file in self.files]

    def to_json(self) -> str:
        """The manifest as JSON text."""
        return json.dumps({"manifest_version": MANIFEST_VERSION, **asdict(self)}, indent=2)

    @classmethod
    def from_json(cls, text: str, where: str) -> Self:
        """Read a manifest.

        :raises ConfigurationError: if it is none of this version
        """
        try:
            data: Any = json.loads(text)
            if data.pop("manifest_version") != MANIFEST_VERSION:
                raise ValueError("another version")
            files = tuple(WrittenFile(**file) for file in data.pop("files"))
            columns, parsed = tuple(data.pop("columns")), tuple(data.pop("json_columns"))
            return cls(files=files, columns=columns, json_columns=parsed, **data)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"{where} is not a manifest of version {MANIFEST_VERSION} ({error!r}): let the version of "
                "airflow-provider-snowpipe finish the run that began it, or load it under another run_key"
            ) from None


def run_folder(names: Sequence[str], *more: str) -> str:
    """The folder of one piece of work, the same for every attempt.

    :param names: what distinguishes one piece of work from another, such as DAG, run, task and map index
    """
    digest = hashlib.blake2b(json.dumps([*names, *more]).encode(), digest_size=8).hexdigest()
    shown = _UNSAFE.sub("-", ".".join(names))[:_LONGEST_NAME].strip(".-")
    return f"{shown}-{digest}"


# -- Combining files before they are staged: what kind they are, and whether it is worth it ------------
#
# The form stays what it was, so that the COPY that follows needs no other file format: lines stay lines,
# which are compressed with gzip, and Parquet stays Parquet. Lines are not made Parquet, since nobody has
# specified what their columns are. Snowflake's advice is 100 to 250 MB a file, compressed; all here goes by
# bytes of files that are written, never by an estimate of what they might become.

# pragma: no mutate start (sizes are tested as a whole)

TARGET_FILE_BYTES = 160_000_000
"""With it the files have 100 to 250 MB (page "Preparing your data files"): see :func:`file_count`."""
_LARGEST, _SMALLEST = 1.56, 0.625
"""Of the target: 250 and 100 MB of 160 MB."""
_ROOM = 1.2
"""Files are packed whole, one after the other: room for the last one, so that no pack is left half full."""
_LEAST_BLOCK, _LARGEST_BLOCK = 64 << 10, 128 << 20


def check_target(target: int) -> None:
    """Refuse a target that no file can have.

    :raises ConfigurationError: if it is below 1 kB
    """
    if not isinstance(target, int) or isinstance(target, bool) or target < 1_000:
        raise ConfigurationError(
            f"target_file_bytes is {target!r}: give the bytes of a file, such as {TARGET_FILE_BYTES:,}"
        )


def file_count(total: float, target: int) -> int:
    """How many files some bytes become: the nearest number, so that each has 2/3 to 3/2 of the target."""
    return max(1, round(total / target))


def is_well_cut(sizes: Sequence[int], target: int) -> bool:
    """True where files need not be written again: none is too large, nor are they too small on average."""
    if not sizes:
        return True
    few = len(sizes) == 1 or sum(sizes) / len(sizes) >= target * _SMALLEST
    return few and max(sizes) <= target * _LARGEST


def packed_bytes(total: int, target: int) -> int:
    """Bytes at which a pack of files is full."""
    return max(1, math.ceil(total / file_count(total, target) * _ROOM))


def block_bytes(target: int) -> int:
    """Bytes of a row group or stripe: a file can only be cut between two of them."""
    return max(_LEAST_BLOCK, min(_LARGEST_BLOCK, target // 8))


Kind = Literal["ndjson", "json", "csv", "text", "parquet", "orc", "avro"]
ROW_KINDS = frozenset({"parquet", "orc", "avro"})
"""Kinds whose rows have columns, so that Spark reads and writes rows."""
_KINDS: Mapping[str, Kind] = {
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "text",
    ".log": "text",
    ".parquet": "parquet",
    ".orc": "orc",
    ".avro": "avro",
}
_COMPRESSED = (".gz", ".zst", ".bz2", ".xz")
_LINES_PER_BYTE = 0.25
"""What gzip makes of a byte of text, roughly: only to see whether files are worth combining."""


@dataclass(frozen=True, slots=True)
class CompactOptions:
    """How files are combined.

    :param kind: ``ndjson``, ``json`` (documents over several lines), ``csv``, ``text``, ``parquet``, ``orc``
        or ``avro``; None for what the names' endings show
    :param header: for ``csv``, whether each file begins with a line of names; is required
    :param newlines_in_values: for ``csv``, False means that no quoted value has a line end in it, so that a
        large file may be cut; it is then cut between any two lines
    :param target_file_bytes: bytes of a new file, compressed
    """

    kind: Kind | None = None
    header: bool | None = None
    newlines_in_values: bool = True
    target_file_bytes: int = TARGET_FILE_BYTES

    def __post_init__(self) -> None:
        if self.kind is not None:
            check_one_of("compact kind", self.kind, get_args(Kind))
        check_target(self.target_file_bytes)

    @classmethod
    def of(cls, value: Any) -> Self | None:
        """Read the author's argument; None where files are not to be combined.

        :param value: True, False, or a mapping of the parameters
        :raises ConfigurationError: if it is something else
        """
        if value is None or value is False:
            return None
        if value is True:
            return cls()
        known = [field.name for field in fields(cls)]
        if not isinstance(value, Mapping) or set(value) - set(known):
            raise ConfigurationError(f"compact is {value!r}: give True, or a mapping with keys of {known}")
        return cls(**value)

    def form_of(self, names: Sequence[str]) -> CompactForm:
        """Return the form of some files.

        :raises ConfigurationError: if that is not known, or they are of two kinds
        """
        kinds: dict[Kind, str] = {}
        endings = set()
        for name in names:
            base, ending = os.path.splitext(name.rpartition("/")[2].lower())
            if ending in _COMPRESSED:
                ending = os.path.splitext(base)[1]
            found = self.kind or _KINDS.get(ending)
            if found is None:
                raise ConfigurationError(
                    f"compact: the ending of file {name!r} does not show what it is: give compact={{'kind': "
                    f"…}} with one of {get_args(Kind)}, or choose files by pattern=…"
                )
            kinds.setdefault(found, name)
            endings.add(ending)
        if len(kinds) > 1:
            shown = " and ".join(f"{name!r} is {kind}" for kind, name in list(kinds.items())[:2])
            raise ConfigurationError(
                f"compact: {shown}: files of one kind are combined; choose them by pattern=…, by a task for "
                "each kind"
            )
        (kind,) = kinds
        if kind == "csv" and self.header is None:
            raise ConfigurationError(
                "compact: CSV files begin with a line of names, or they do not, and nothing in them shows "
                "so: give compact={'header': True} or {'header': False}"
            )
        ending = endings.pop() if len(endings) == 1 else f".{kind}"
        splits = kind in ("ndjson", "text") or (kind == "csv" and not self.newlines_in_values)
        return CompactForm(kind, ending or f".{kind}", kind == "csv" and bool(self.header), splits)


@dataclass(frozen=True, slots=True)
class CompactForm:
    """What the files are.

    :param ending: what the new files' names end with
    :param header: True where each file begins with a line of names
    :param splits: True where a file may be cut between two lines
    """

    kind: Kind
    ending: str
    header: bool
    splits: bool

    @property
    def has_rows(self) -> bool:
        """True where the files have columns, False where they have lines."""
        return self.kind in ROW_KINDS

    def is_worth_it(self, files: Sequence[tuple[str, int]], target: int) -> bool:
        """True where the files are too many or too large."""
        sizes = [size for name, size in files if self._is_compressed(name)]
        sizes += [int(size * _LINES_PER_BYTE) for name, size in files if not self._is_compressed(name)]
        return not is_well_cut(sizes, target)

    def _is_compressed(self, name: str) -> bool:
        return self.has_rows or name.lower().endswith(_COMPRESSED)


def content_key(files: Sequence[tuple[str, int, str]], options: CompactOptions) -> str:
    """Name the content of some files: the same files give the same name, in this run and in every other.

    :param files: path, bytes and a mark of the content of each
    """
    facts = json.dumps([sorted(files), asdict(options)])
    return hashlib.blake2b(facts.encode(), digest_size=16).hexdigest()


# pragma: no mutate end

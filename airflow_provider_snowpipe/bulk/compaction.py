"""Combining files before they are staged: what kind they are, and whether it is worth it.

The form stays what it was, so that the COPY that follows needs no other file format: lines stay lines, which
are compressed with gzip, and Parquet stays Parquet. Lines are not made Parquet, since nobody has defined what
their columns are.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self, get_args

from airflow_provider_snowpipe.streaming.arguments import check_one_of
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

# -- How many files, and how large: Snowflake's advice is 100 to 250 MB, compressed ----------------------
#
# Everything here goes by bytes of files that are written, never by an estimate of what they might become.

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


# -- Combining files before they are staged: what kind they are, and whether it is worth it --------------
#
# The form stays what it was, so that the COPY that follows needs no other file format: lines stay lines,
# which are compressed with gzip, and Parquet stays Parquet. Lines are not made Parquet, since nobody has
# specified what their columns are.

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

        :param names: their paths
        :raises ConfigurationError: if that is not known, or they are of two kinds
        """
        kinds: dict[Kind, str] = {}
        endings = set()
        for name in names:
            ending = _ending(name)
            found = self.kind or _KINDS.get(ending)
            if found is None:
                raise ConfigurationError(
                    f"compact: the ending of file {name!r} does not say what it is: give compact={{'kind': "
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
                "compact: CSV files begin with a line of names, or they do not, and nothing in them says "
                "so: give compact={'header': True} or {'header': False}"
            )
        ending = endings.pop() if len(endings) == 1 else f".{kind}"
        splits = kind in ("ndjson", "text") or (kind == "csv" and not self.newlines_in_values)
        return CompactForm(kind, ending or f".{kind}", kind == "csv" and bool(self.header), splits)


@dataclass(frozen=True, slots=True)
class CompactForm:
    """What the files are.

    :param kind: their kind
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
        """True where the files are too many or too large.

        :param files: name and bytes of each
        :param target: bytes of a new file, compressed
        """
        sizes = [size for name, size in files if self._is_compressed(name)]
        sizes += [int(size * _LINES_PER_BYTE) for name, size in files if not self._is_compressed(name)]
        return not is_well_cut(sizes, target)

    def _is_compressed(self, name: str) -> bool:
        return self.has_rows or name.lower().endswith(_COMPRESSED)


def content_key(files: Sequence[tuple[str, int, str]], options: CompactOptions) -> str:
    """Name the content of some files: the same files give the same name, in this run and in every other.

    :param files: path, bytes and a mark of the content of each
    :param options: how they are combined
    """
    facts = json.dumps([sorted(files), asdict(options)])
    return hashlib.blake2b(facts.encode(), digest_size=16).hexdigest()


def _ending(name: str) -> str:
    """A name's ending without that of its compression, in lower case."""
    base, ending = os.path.splitext(name.rpartition("/")[2].lower())
    return os.path.splitext(base)[1] if ending in _COMPRESSED else ending

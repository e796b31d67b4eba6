"""Files that a run writes and stages for COPY: how they are combined, and the manifest that names them.

A manifest lists which staged files are one piece of work, written when all are staged and none is loaded.

Files that an attempt leaves behind when it dies are in no manifest, and nobody loads them. Each attempt
writes a manifest of its own, and the one that was staged first counts: every attempt takes its files, so that
what COPY is given to load is the same each time. COPY itself, or load history, shows which it has loaded.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import logging
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, get_args

from airflow_provider_snowpipe.bulk.copy import StageAccount
from airflow_provider_snowpipe.bulk.staged_files import (
    LOADED,
    PARTIALLY_LOADED,
    FileLoad,
    StagedFiles,
    StageReference,
)
from airflow_provider_snowpipe.streaming.arguments import check_one_of
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, FilesGivenTwiceError

if TYPE_CHECKING:
    from airflow_provider_snowpipe.bulk.copy import RunIdentity

log = logging.getLogger(__name__)
MANIFEST_VERSION = 1
OUTCOME_NAME = "loaded.json"
"""Written when the files are in the table; it holds the task's value."""
ATTEMPT_NAME = "attempt.json"
"""The manifest of an attempt, in the attempt's own folder: no other attempt replaces it."""
ANEW_NAME = "made-anew.json"
"""Written when a run has found the work of a deleted one: clearing its task does not make it its own."""
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
    """The files of one piece of work.

    :param columns: the table's columns that their rows have; none where nobody has to know
    :param json_columns: those of them that hold JSON as text
    :param source: what the rows were read from, in words that tell it from another one; empty where the files
        are named by it
    :param began: when the run began whose work it is; empty where it is of no run
    """

    work: str
    attempt: str
    files: tuple[WrittenFile, ...]
    columns: tuple[str, ...] = ()
    json_columns: tuple[str, ...] = ()
    source: str = ""
    began: str = ""

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
            origin = {name: data.pop(name) for name in ("source", "began")}
            return cls(files=files, columns=columns, json_columns=parsed, **origin, **data)
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


def loaded_files(manifest: RunManifest, folder: str, history: Iterable[FileLoad]) -> dict[str, FileLoad]:
    """The loads of a manifest's files, by their paths below the folder.

    :param history: loads into the table, from the oldest
    """
    expected = frozenset(manifest.names)
    return {name: load for name, load in _below(folder, history) if name in expected}


def refuse_loaded_folder(folder: str, work: str, history: Iterable[FileLoad]) -> None:
    """Refuse to begin a piece of work of which files are in the table although it has no manifest any more.

    :param history: loads into the table, from the oldest
    :raises FilesGivenTwiceError: if there are such files
    """
    found = dict(_below(folder, history))
    if not found:
        return
    first = next(iter(found.values()))
    when = f", the first one at {first.loaded_at:%Y-%m-%d %H:%M:%S %Z}" if first.loaded_at else ""
    raise FilesGivenTwiceError(
        f"COPY has loaded {len(found):,} files of {work} ({sum(one.rows_loaded for one in found.values()):,} "
        f"rows{when}), and folder {folder!r} of the stage has no manifest any more, so that nobody knows "
        "whether these are all. Compare the table with the source; to load all of it once more, give another "
        "run_key",
        files=tuple(found),
    )


def refuse_other_files(manifest: RunManifest, folder: str, history: Iterable[FileLoad]) -> None:
    """Refuse to load the files of a manifest where other files of its folder are in the table.

    That nobody can have loaded who went by the manifest that was staged first; asked all the same just before
    COPY, since that is judged by the clocks of a stage.

    :param history: loads into the table, from the oldest
    :raises FilesGivenTwiceError: if there are such files
    """
    expected = frozenset(manifest.names)
    others = [name for name, _ in _below(folder, history) if name not in expected]
    if others:
        raise FilesGivenTwiceError(
            f"COPY has loaded {len(others):,} files of {manifest.work} that are not in the manifest of "
            f"folder {folder!r}, the first one {others[0]!r}: another try has gone by another one. Compare "
            "the table with the source; to load all of it once more, give another run_key",
            files=tuple(others),
        )


def _below(folder: str, history: Iterable[FileLoad]) -> Iterable[tuple[str, FileLoad]]:
    """Loads by COPY of files in a folder; a history names a file by its location and the path below that."""
    for load in history:
        if load.status not in (LOADED, PARTIALLY_LOADED) or load.pipe is not None:
            continue
        _, found, name = f"/{load.location.rstrip('/')}/{load.path}".rpartition(f"/{folder}/")
        if found:
            yield name, load


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
            ending = _ending(name)
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


def _ending(name: str) -> str:
    """A name's ending without that of its compression, in lower case."""
    base, ending = os.path.splitext(name.rpartition("/")[2].lower())
    return os.path.splitext(base)[1] if ending in _COMPRESSED else ending


# pragma: no mutate end


# -- The files of a run whose COPY has FORCE -------------------------------------------------------------

_KEPT_IN = "airflow_snowpipe/forced_copies"
"""Folder of the user's own stage."""


# pragma: no mutate start
class FileAccount(StageAccount, Protocol):
    """As much of the account's hook as small files in a stage need."""

    def put_file(self, path: str, location: str) -> None:
        """Upload a small file."""

    def get_file(self, location: str, folder: str) -> None:
        """Bring one file of an internal stage to this machine."""

    def run_sql(self, statement: str, values: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Run one statement."""


class FirstTryFiles:
    """The files of a run whose COPY has FORCE, as the run's first try has listed them.

    COPY itself then skips nothing, and load history does not show whose a load was, so that a later try can
    only see by the files what is left to do. They are kept as a small file in the user's own stage, which
    every connection may write to, whatever the stage of the files and the version of Airflow. Its name shows
    what it lists, so that tries that begin at once with the same files agree; each lists the names after
    writing its own, and where there are two, none of them loads.

    :param target: the table's full name and the stage
    :param choice: tells the choice of these files from another one
    """

    def __init__(
        self, account: FileAccount, identity: RunIdentity, target: Sequence[str], choice: str
    ) -> None:
        self._account = account
        self._identity = identity
        self._choice = choice
        self._location = f"@~/{_KEPT_IN}/{run_folder(identity.names, *target)}"

    def read(self, stage: StageReference, *, resumed: bool = False) -> tuple[StagedFiles | None, RunIdentity]:
        """The files that an earlier try has listed, None where none has; and the run as it began.

        What a run of the same id has listed that was deleted is removed: this run loads again.

        :param resumed: True where the task was deferred, so that it has listed the files itself
        :raises FilesGivenTwiceError: if two tries have listed files, or a deleted run may have
        :raises ConfigurationError: if this one is to load other files
        """
        lists = {name: self._kept(name) for name in self._names()}
        if not resumed:
            self._remove_deleted(lists)
        if len(lists) > 1:
            raise self._of_two_tries(list(lists))
        for kept in lists.values():
            files = StagedFiles.from_json(kept, stage)
            if kept["choice"] != self._choice:
                raise ConfigurationError(
                    f"the first try of this run has listed {len(files.files):,} files for a COPY with force "
                    f"({next(iter(files.files), None)!r}, …) by other values of stage, files, prefix or "
                    f"pattern, and they are kept in {self._location}: to load what is chosen now, begin "
                    "another run; an instance of a mapped task has to get the same files at each try"
                )
            # Clearing a task lets its run begin again, which does not undo what it has loaded.
            since = min(self._identity.since, dt.datetime.fromisoformat(kept["since"]))
            # The same try may begin twice, or go on after a deferral: history is asked as by a second one.
            number = max(2, self._identity.try_number)
            return files, replace(self._identity, since=since, try_number=number, mark=kept["mark"])
        # The statements of a deleted run would answer for this one's, which may have the same files.
        self._identity = replace(self._identity, mark=self._identity.since.isoformat())
        return None, self._identity

    def keep(self, staged: StagedFiles, limit: int | None) -> StagedFiles:
        """Write the files down before the first COPY, which takes these.

        :param limit: bytes after which COPY begins no more files; they are cut to it if all sizes are known
        :raises FilesGivenTwiceError: if another try has listed others in the meantime
        """
        found = staged.files.values()
        if limit is not None and all(file.size is not None for file in found):
            begun = accumulate((file.size or 0 for file in found), initial=0)
            cut = {file.path: file for file, before in zip(found, begun, strict=False) if before < limit}
            staged = replace(staged, files=cut)
        began = self._identity.since.isoformat()
        kept = {"since": began, "choice": self._choice, "mark": self._identity.mark, **staged.to_json()}
        listed = json.dumps([kept["url"], kept["files"]])
        name = f"{blake2b(listed.encode(), digest_size=16).hexdigest()}.json"
        with TemporaryDirectory(prefix="snowpipe-put-") as folder:
            Path(folder, name).write_text(json.dumps(kept), encoding="utf-8")
            self._account.put_file(f"{folder}/{name}", f"{self._location}/")
        names = self._names()
        if names != [name]:
            raise self._of_two_tries(names)
        return staged

    def _remove_deleted(self, lists: dict[str, Any]) -> None:
        """Remove the lists of a run of the same id that was deleted, from the stage as well."""
        for name, kept in list(lists.items()):
            since = dt.datetime.fromisoformat(kept["since"])
            if not self._identity.is_anew(since):
                continue
            if self._identity.try_number > 1:
                raise FilesGivenTwiceError(
                    f"{self._location} has the files of a COPY with force by a run of the same id that began "
                    f"at {since:%Y-%m-%d %H:%M:%S %Z}, and this run began at "
                    f"{self._identity.since:%Y-%m-%d %H:%M:%S %Z} without being cleared: that one was "
                    "deleted, or this one was set to queued, and whether it has loaded files is not known. "
                    "Where it has not, REMOVE that folder and clear the task; where it has, mark it as "
                    "successful",
                    files=(),
                )
            log.info(
                "what a deleted run of the same id has listed is listed again: %d files", len(kept["files"])
            )
            self._account.run_sql("REMOVE %s", (f"{self._location}/{name}",))
            del lists[name]

    def _kept(self, name: str) -> Any:
        with TemporaryDirectory(prefix="snowpipe-get-") as folder:
            self._account.get_file(f"{self._location}/{name}", folder)
            return json.loads(Path(folder, name).read_text(encoding="utf-8"))

    def _names(self) -> list[str]:
        return sorted(str(row["name"]).rpartition("/")[2] for row in self._account.list_files(self._location))

    def _of_two_tries(self, names: Sequence[str]) -> FilesGivenTwiceError:
        return FilesGivenTwiceError(
            f"{len(names)} tries of this run have listed different files at the same time for a COPY with "
            f"force, in {self._location}, so that nobody knows which of the lists was loaded: compare the "
            "table with the stage, and load what is missing in a new run",
            files=(),
        )


# pragma: no mutate end

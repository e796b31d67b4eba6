"""Manifests: which staged files are one piece of work, written when all are staged and none is loaded.

Files that an attempt leaves behind when it dies are in no manifest, and nobody loads them. Each attempt
writes a manifest of its own, and the one that was staged first counts: every attempt takes its files, so that
what COPY is given to load is the same each time. COPY itself, or load history, shows which it has loaded.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from airflow_provider_snowpipe.bulk.staged_files import LOADED, PARTIALLY_LOADED, FileLoad
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, FilesGivenTwiceError

MANIFEST_VERSION = 1
OUTCOME_NAME = "loaded.json"
"""Written when the files are in the table; it holds the task's value."""
ATTEMPT_NAME = "attempt.json"
"""The manifest of an attempt, in the attempt's own folder: no other attempt replaces it."""
_UNSAFE = re.compile(r"[^A-Za-z0-9_.=-]+")
_LONGEST_NAME = 80


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that is as it will stay.

    :param name: its path below the folder of the work; no other attempt has one of that name
    :param bytes: its size
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

    :param work: whose they are, in words
    :param attempt: the attempt that staged them
    :param files: the files
    :param columns: the table's columns that their rows have; none where nobody has to know
    :param json_columns: those of them that hold JSON as text
    """

    work: str
    attempt: str
    files: tuple[WrittenFile, ...]
    columns: tuple[str, ...] = ()
    json_columns: tuple[str, ...] = ()

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

        :param text: its text
        :param where: where it is, for errors
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
                f"{where} is no manifest of version {MANIFEST_VERSION} ({error!r}): another release has "
                "written it. Let that one finish the run, or load it again under another run_key"
            ) from None


def run_folder(names: Sequence[str], *more: str) -> str:
    """The folder of one piece of work, the same for every attempt.

    :param names: what distinguishes one piece of work from another, such as DAG, run, task and map index
    :param more: further such words, such as the table
    """
    digest = hashlib.blake2b(json.dumps([*names, *more]).encode(), digest_size=8).hexdigest()
    shown = _UNSAFE.sub("-", ".".join(names))[:_LONGEST_NAME].strip(".-")
    return f"{shown}-{digest}"


def loaded_files(manifest: RunManifest, folder: str, history: Iterable[FileLoad]) -> dict[str, FileLoad]:
    """The loads of a manifest's files, by their paths below the folder.

    :param manifest: the manifest
    :param folder: its folder's own name
    :param history: loads into the table, from the oldest
    """
    expected = frozenset(manifest.names)
    return {name: load for name, load in _below(folder, history) if name in expected}


def refuse_loaded_folder(folder: str, work: str, history: Iterable[FileLoad]) -> None:
    """Refuse to begin a piece of work of which files are in the table although it has no manifest any more.

    :param folder: the folder's own name
    :param work: whose work it is, in words
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

    :param manifest: the manifest
    :param folder: its folder's own name
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

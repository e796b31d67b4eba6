"""Files on their way into a stage: which are there already, and paths that name what a file holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from hashlib import blake2b, file_digest, md5
from pathlib import Path
from typing import Any

from airflow_provider_snowpipe.bulk.staged_files import StageReference
from airflow_provider_snowpipe.streaming.arguments import check_one_of
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, StagedFileDiffersError
from airflow_provider_snowpipe.streaming.names import option, string_literal

# -- Uploading files to an internal stage: which are there already, and the PUT of those that are not ----

IF_STAGED = ("skip_same", "skip", "overwrite", "fail")
_MOST_PARALLEL = 99
_CIPHER_BLOCK = 16
_SUFFIX = ".gz"
_COMPRESSED = (".gz", ".tgz", ".bz2", ".br", ".zst", ".parquet", ".orc")
"""Endings, in any case, of files that are compressed already."""


class Sameness(StrEnum):
    """What LIST reports of a file that is about to be staged.

    Files that the client encrypts are longer in the stage, by 1 to 16 bytes, and their MD5 is that of the
    cipher; files that were uploaded in several parts have an MD5 of the parts'. Of both, LIST cannot show
    whether the content is the same (pages "LIST" and "PUT").
    """

    SAME = "same"
    CHANGED = "changed"
    UNKNOWN = "unknown"


class PutKind(StrEnum):
    """How a file is uploaded: as a new one, over another, or over it unless PUT finds the same content.

    PUT leaves a file of that name as it is, whatever its content, where it is for a new one.
    """

    NEW = "new"
    OVER = "over"
    UNLESS_SAME = "unless_same"


def check_parallel(parallel: int) -> None:
    """Refuse a number of files at a time that PUT does not take.

    :raises ConfigurationError: if it is below 1, or too large
    """
    if not isinstance(parallel, int) or not 1 <= parallel <= _MOST_PARALLEL:
        raise ConfigurationError(
            f"parallel is {parallel!r}: give a number of files from 1 to {_MOST_PARALLEL}"
        )


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file that is to be staged.

    :param below: its path below the stage's, with ``/``
    :param address: where it is, for people
    """

    below: str
    size: int
    address: str

    @property
    def folder(self) -> str:
        """The path without the name; may be empty."""
        return self.below.rpartition("/")[0]

    @property
    def name(self) -> str:
        """The name without the path."""
        return self.below.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file as LIST reports it.

    :param md5: the MD5 that the storage has of it
    """

    size: int
    md5: str


@dataclass(frozen=True, slots=True)
class Staging:
    """How files are put into a stage.

    :param auto_compress: True compresses with gzip what is not compressed, which adds ``.gz`` to its name
    :param if_staged: what becomes of a file whose name is in the stage: ``skip_same`` replaces it where its
        content is another, ``skip`` leaves it, ``overwrite`` replaces it, ``fail`` objects where LIST shows
        that the content is another, and leaves it otherwise
    """

    stage: StageReference
    auto_compress: bool = False
    if_staged: str = "skip_same"

    def __post_init__(self) -> None:
        check_one_of("if_staged", self.if_staged, IF_STAGED)

    def listed(self, rows: Iterable[Mapping[str, Any]]) -> dict[str, ListedFile]:
        """Read what LIST answers; the files by their paths below the stage.

        :param rows: ``name``, ``size`` and ``md5`` of each
        :raises ConfigurationError: if the stage is an external one
        """
        found = {}
        for row in rows:
            name = str(row["name"])
            if "://" in name:
                raise ConfigurationError(
                    f"stage '@{self.stage.owner}{self.stage.name}' is external, where PUT writes nothing: "
                    "write to its storage directly, or name an internal stage"
                )
            found[self.stage.relative(name)] = ListedFile(int(row["size"]), str(row.get("md5") or ""))
        return found

    def staged_as(self, below: str) -> str:
        """The path below the stage's that a file has there.

        :param below: its path below the source
        """
        is_plain = self.auto_compress and not below.lower().endswith(_COMPRESSED)
        return below + _SUFFIX if is_plain else below

    def decide(
        self, file: SourceFile, listed: Mapping[str, ListedFile], here: Callable[[], Path]
    ) -> PutKind | None:
        """Decide how a file is to be uploaded; None where it is not.

        :param here: brings it as it is to be staged, which is done only where it decides
        :raises StagedFileDiffersError: if another content is staged under its name, with ``fail``
        """
        staged = self.staged_as(file.below)
        found = listed.get(self.stage.below(staged))
        if found is None:
            return PutKind.NEW
        if self.if_staged in ("skip", "overwrite"):
            return PutKind.OVER if self.if_staged == "overwrite" else None
        how = sameness(here, found, file.size if staged == file.below else None)
        if how is Sameness.SAME:
            return None
        if self.if_staged == "fail" and how is Sameness.UNKNOWN:
            return PutKind.NEW
        if self.if_staged == "fail":
            raise StagedFileDiffersError(
                f"{file.address} has {file.size:,} bytes, and the stage has another content, of "
                f"{found.size:,} bytes, under its name: give it another name, or set if_staged='skip_same', "
                "which replaces it"
            )
        return PutKind.OVER if how is Sameness.CHANGED else PutKind.UNLESS_SAME

    def put(self, file: SourceFile, path: str, root: str, kind: PutKind, parallel: int) -> str:
        """Write the statement that uploads one file.

        :param root: the stage's own path, as :meth:`StageReference.location` writes it
        :param parallel: threads for the parts of a large file, 1 to 99
        """
        target = "/".join(part for part in (root.rstrip("/"), file.folder) if part)
        words = [
            "PUT",
            string_literal(f"file://{path}"),
            string_literal(target),
            option("PARALLEL", parallel),
            option("AUTO_COMPRESS", value=False),
            option("OVERWRITE", kind is not PutKind.NEW),
        ]
        return " ".join(words)


def sameness(here: Callable[[], Path], listed: ListedFile, size: int | None) -> Sameness:
    """Compare a file with what LIST reports of the one in the stage.

    :param here: brings the file to this machine, which is done only where its size does not decide
    :param size: its size, None where only the file itself shows it
    """
    if size is None:
        size = here().stat().st_size
    if listed.size == size:
        if len(listed.md5) != 32:
            return Sameness.UNKNOWN
        with here().open("rb") as file:
            found = file_digest(file, partial(md5, usedforsecurity=False)).hexdigest()
        return Sameness.SAME if found == listed.md5.lower() else Sameness.CHANGED
    encrypted = size - size % _CIPHER_BLOCK + _CIPHER_BLOCK
    return Sameness.UNKNOWN if listed.size == encrypted else Sameness.CHANGED


_UNSAFE = re.compile(r"[^A-Za-z0-9._=-]")


def plain_name(name: str) -> str:
    """A name in letters that need no quotes; where it has others, a digest in front keeps it distinct."""
    plain = _UNSAFE.sub("_", name)
    if plain == name:
        return name
    return f"{blake2b(name.encode(), digest_size=4).hexdigest()}-{plain}"

"""A stage, or a URL, with a path in it, and the files that are there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from snowpipe_local.errors import SqlError, compilation_error
from snowpipe_local.stages.definition import OptionValue, StageDefinition
from snowpipe_local.stages.files import FileArea, FolderArea, StagedFile

# -- PATTERN of COPY, pipes, LIST, GET and REMOVE: RE2, in time that grows with the path only, everywhere --


def match_whole(pattern: str, paths: Sequence[str]) -> list[bool]:
    """Return for each path whether a regular expression matches the whole of it.

    :raises SqlError: 100048 for what is not a regular expression of RE2 (it has no look-around).
    """
    try:
        # The empty path makes Arrow check the pattern even when there is no other.
        found = pc.match_substring_regex(pa.array([*paths, ""]), rf"\A(?:{pattern})\z")
    except pa.ArrowInvalid as error:
        raise SqlError("100048", "2201B", f"Invalid regular expression: '{pattern}': {error}") from error
    return [bool(value) for value in found.to_pylist()[:-1]]


def check(pattern: str) -> None:
    """Refuse a pattern before it is kept.

    :raises SqlError: as :func:`match_whole`.
    """
    match_whole(pattern, [])


@dataclass(frozen=True, slots=True)
class StageLocation:
    """A stage, or a URL, and a path in it.

    :param name: the reference as messages show it, for example ``@LOCAL.PUBLIC.S/in/``.
    :param kind: ``INTERNAL``, ``TABLE``, ``USER``, ``EXTERNAL`` or ``URL``.
    :param base: what stands before a file's path in LIST: ``stage/``, a URL, or nothing.
    :param prefix: start of the paths that the location holds; a text, not only a folder.
    :param file_format: default format options of the stage, with TYPE; empty when it has none.
    :param table: database, schema and name of the table of a table stage, or None.
    """

    name: str
    kind: str
    area: FileArea = field(repr=False)
    base: str
    prefix: str = ""
    stage: StageDefinition | None = None
    file_format: Mapping[str, OptionValue] = field(default_factory=dict)
    copy_options: Mapping[str, OptionValue] = field(default_factory=dict)
    table: tuple[str, str, str] | None = None

    @property
    def is_external(self) -> bool:
        """True when the files are outside of the service."""
        return self.kind in {"EXTERNAL", "URL"}

    @property
    def url(self) -> str:
        """The location as COPY_HISTORY's STAGE_LOCATION shows it: a URL, or the stage's name and the path."""
        return self.base + self.prefix if self.is_external else self.name.removeprefix("@")

    def matching(self, files: list[StagedFile], pattern: str) -> list[StagedFile]:
        """Return the files whose whole path matches a regular expression, with or without :attr:`base`.

        :raises SqlError: for a pattern that is not a regular expression.
        """
        short = match_whole(pattern, [file.path for file in files])
        long = match_whole(pattern, [self.base + file.path for file in files])
        return [file for file, *chosen in zip(files, short, long, strict=True) if any(chosen)]

    def list(self, pattern: str | None = None) -> list[StagedFile]:
        """Return the files of the location, by path.

        :param pattern: regular expression that the whole path must match, with or without :attr:`base`.
        :raises SqlError: for a pattern that is not a regular expression.
        """
        files = self.area.list(self.prefix)
        return files if pattern is None else self.matching(files, pattern)

    def local_copy(self, file: StagedFile) -> AbstractContextManager[Path]:
        """Return a path on this machine that can be read inside the ``with`` block."""
        return self.area.local_copy(file)

    def remove(self, files: Iterable[StagedFile]) -> None:
        """Delete files of the location."""
        self.area.remove(files)

    def listed_name(self, file: StagedFile) -> str:
        """Return a file's name as LIST and the result of COPY show it."""
        return self.base + file.path

    def metadata_name(self, file: StagedFile) -> str:
        """Return METADATA$FILENAME: the path below the stage, or below the bucket of an external one."""
        if self.is_external and self.base.startswith("s3"):
            return self.base.split("/", 3)[3] + file.path
        return file.path

    def path_of(self, name: str) -> str:
        """Return the path of a file that FILES names relative to the location."""
        separator = "/" if self.prefix and not self.prefix.endswith("/") else ""
        return self.prefix + separator + name.lstrip("/")

    def upload_folder(self) -> tuple[FolderArea, str]:
        """Return where PUT stores files: the stage's folder and a path that is empty or ends with ``/``.

        :raises SqlError: for an external stage, and for a path that no file can have here.
        """
        if not isinstance(self.area, FolderArea) or self.is_external:
            raise compilation_error(f"cannot PUT files to the external stage {self.name}.")
        folder = self.path_of("")
        if folder:
            self.area.path(folder.removesuffix("/"))
        return self.area, folder

"""Which files a wait is for, the ways of naming them, and which of them a load is of."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_snowpipe.bulk.file_load import FileLoad
from airflow_provider_snowpipe.bulk.stage import StageReference
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, NothingStagedError


@dataclass(frozen=True, slots=True)
class ExpectedFiles:
    """Files by name, or a number of files by the start of their paths. Paths are those below the stage.

    Without names and prefix there is nothing to wait for.

    :param names: the files
    :param prefix: instead of names, the start of the paths
    :param count: with it, how many different files there have to be
    """

    names: tuple[str, ...] = ()
    prefix: str | None = None
    count: int = 0
    _known: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_known", frozenset(self.names))
        if self.names and self.prefix is not None:
            raise ConfigurationError(
                "there are two things to wait for: give files=[…], or prefix=… with stage=… or count=…"
            )
        if self.prefix is not None and self.count < 1:
            raise ConfigurationError(
                f"prefix is {self.prefix!r} and count is {self.count}: give count=… of 1 or more, or "
                "stage=…, where the files are listed"
            )

    @property
    def total(self) -> int:
        """Number of files."""
        return self.count if self.prefix is not None else len(self.names)

    def name_of(self, load: FileLoad) -> str | None:
        """The name under which a load's file is waited for, None for another file.

        A path is given relative to what COPY or the pipe names, which may be a path in the stage itself:
        ``a.csv`` of ``@S/in`` and ``in/a.csv`` of ``@S`` are one file. So what ends the location may come
        before the path.

        :param load: the load
        """
        paths = _paths(load)
        if self.prefix is None:
            return next((name for name in paths if name in self._known), None)
        return next((name for name in paths if name.startswith(self.prefix)), None)


def file_names(files: Any, *, may_be_none: bool = False) -> list[str]:
    """Take names of files: a list of texts, or its JSON text as a template renders it.

    :param files: the list
    :param may_be_none: True takes an empty list
    :raises ConfigurationError: if it is something else, or empty
    """
    if isinstance(files, str):
        try:
            files = json.loads(files)
        except ValueError:
            raise ConfigurationError(
                f"files is the text {files[:80]!r}, which is no JSON list: give a list of paths, an XCom of "
                'one, or a template that ends in "| tojson"'
            ) from None
    if isinstance(files, (bytes, dict)) or not hasattr(files, "__iter__"):
        raise ConfigurationError(f"files is {files!r}: give a list of paths below the stage")
    names = list(dict.fromkeys(files))
    for name in names:
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"files has the entry {name!r}: give paths below the stage, as text")
    if not names and not may_be_none:
        raise ConfigurationError("files is []: give at least one path, or skip the task where there is none")
    return names


def possible_paths(names: Sequence[str]) -> set[str]:
    """The paths by which a load history may know these files: each one's own, and the ends of it.

    :param names: paths below the stage, or URLs
    """
    found: set[str] = set()
    for name in names:
        parts = name.split("/")
        found.update("/".join(parts[start:]) for start in range(len(parts)))
    found.discard("")
    return found


def _paths(load: FileLoad) -> Iterator[str]:
    yield load.path
    parts = load.location.rstrip("/").split("/")
    path = load.path.lstrip("/")
    for start in range(len(parts) - 1, -1, -1):
        tail = "/".join(parts[start:])
        if tail:
            yield f"{tail}/{path}"


@dataclass(frozen=True, slots=True)
class FileChoice:
    """Files by name; all of a stage with a prefix; or any number of them with a prefix.

    :param files: paths below the stage, or below ``stage`` where it has a path
    :param prefix: instead of files, the start of the paths
    :param count: with it, how many different files
    :param stage: where the files are; without a count, where they are listed
    """

    files: Any = None
    prefix: str | None = None
    count: int | str | None = None
    stage: str | None = None

    def check(self) -> None:
        """Find what no rendering of templates can fix.

        :raises ConfigurationError: if the arguments do not go together
        """
        if (self.files is None) == (self.prefix is None):
            raise ConfigurationError(
                f"files is {self.files!r} and prefix is {self.prefix!r}: give one of the two"
            )
        if self.prefix is None and self.count is not None:
            raise ConfigurationError(f"count is {self.count!r} without prefix=…: leave it out with files=…")
        if self.prefix is not None and self.count is None and self.stage is None:
            raise ConfigurationError(
                f"prefix is {self.prefix!r}: give stage=…, where the files are listed, or count=…, how many "
                "there are"
            )

    def expected(self, list_stage: Callable[[str, str], Sequence[str]]) -> ExpectedFiles:
        """Say which files these are.

        :param list_stage: lists the files of a stage with a prefix: their paths below the stage
        :raises NothingStagedError: if the stage has none with the prefix
        :raises ConfigurationError: if an argument is wrong
        """
        reference = StageReference.parse(self.stage) if self.stage else None
        if self.files is not None:
            names = file_names(self.files, may_be_none=True)
            return ExpectedFiles(tuple(reference.below(name) if reference else name for name in names))
        prefix = self.prefix or ""
        if self.count is not None:
            return ExpectedFiles(
                (), reference.below(prefix) if reference else prefix, number_of_files(self.count)
            )
        listed = list_stage(self.stage or "", prefix)
        if not listed:
            raise NothingStagedError(
                f"no file of stage {self.stage!r} begins with {prefix!r}: stage the files before this task "
                "runs, or give count=…, the number to wait for"
            )
        return ExpectedFiles(tuple(listed))


def number_of_files(count: int | str | None) -> int:
    """Take a number as a template renders it.

    :param count: the number, or its text
    :raises ConfigurationError: if it is something else
    """
    try:
        return int(str(count))
    except ValueError:
        raise ConfigurationError(f"count is {count!r}: give a number of files") from None

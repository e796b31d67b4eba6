"""The file source: ordered groups of files, frozen once for a run.

A group is the source's partition: its files form one series of rows, ordered by the files' names, and one
task reads them in that order. The list and the sizes are taken once, on the driver, so that a run has a
fixed end however the files grow meanwhile.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

from airflow_provider_snowpipe.spark.sources.files.spec import FileSourceSpec
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    OffsetTokenError,
    SourceMissingError,
    SourcePositionError,
)
from airflow_provider_snowpipe.streaming.offsets import FileLineOffset

log = logging.getLogger(__name__)

LISTING_FOLDER = "_snowpipe"
"""Directory in a source's path that belongs to this package: nothing in it is a file of the source."""
PartitionValues = tuple[tuple[str, str | None], ...]
_Identity = tuple[int, int, int, int]
"""A file on its device, its size and its time."""
_NUMBER = re.compile(r"([0-9]+)")
_NULL_VALUE = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file as it was when the run began.

    :param name: its name within the group, the file part of its offset tokens
    :param path: where it is
    :param size: its size in bytes at that time; nothing behind it is read in this run
    :param values: the partition values in its path that become columns of its rows, by name
    :param modified_ns: when it was written last, nanoseconds since 1970
    """

    name: str
    path: str
    size: int
    values: PartitionValues = ()
    modified_ns: int = 0


@dataclass(frozen=True, slots=True)
class FileGroup:
    """One partition of the source: a series of files read in the order of their names.

    :param partition: the partition's name
    :param files: its files, ordered
    """

    partition: str
    files: tuple[SourceFile, ...]

    @property
    def bytes(self) -> int:
        """Size of all its files."""
        return sum(file.size for file in self.files)


def freeze(spec: FileSourceSpec) -> tuple[FileGroup, ...]:
    """List the source's groups and files, with their present sizes.

    :param spec: the source
    :return: the groups ordered by partition name; each has at least one file
    :raises SourceMissingError: if the path is missing
    :raises ConfigurationError: if a file belongs to no group, if names do not sort as their numbers do, or if
        one file is reached by two paths
    """
    root = Path(spec.path)
    if not root.is_dir():
        state = "is not a directory" if root.exists() else "does not exist"
        raise SourceMissingError(
            f"source path {spec.path!r} {state}: give the directory that holds the files, as the "
            f"Spark driver "
            "sees it"
        )
    found = _GROUPINGS[spec.group_by](root, spec)
    reached: dict[_Identity, str] = {}
    groups = tuple(_group(partition, files, spec, reached) for partition, files in sorted(found.items()))
    if not groups:
        directories = {"directory": "in its subdirectories", "partition": "below it"}
        log.warning(
            "source path %r: no file %s matches %r, so that there is nothing to load",
            spec.path,
            directories.get(spec.group_by, "in it"),
            spec.glob,
        )
    return groups


def _by_directory(root: Path, spec: FileSourceSpec) -> dict[str, list[tuple[str, Path]]]:
    stray = sorted(_matching(root, spec.glob, below=False))
    if stray:
        raise ConfigurationError(
            f"source path {spec.path!r}: {len(stray)} matching file(s) such as {stray[0].name!r} lie outside "
            "any group directory and would be left out; move them into one directory for each partition, or "
            "use group_by='name' with a name_pattern"
        )
    groups: dict[str, list[tuple[str, Path]]] = {}
    for directory in (entry for entry in root.iterdir() if entry.is_dir() and entry.name != LISTING_FOLDER):
        files = [(path.relative_to(directory).as_posix(), path) for path in _matching(directory, spec.glob)]
        if files:
            groups[directory.name] = files
    return groups


def _by_name(root: Path, spec: FileSourceSpec) -> dict[str, list[tuple[str, Path]]]:
    pattern = re.compile(spec.name_pattern or "")
    groups: dict[str, list[tuple[str, Path]]] = {}
    for path in _matching(root, spec.glob):
        name = path.relative_to(root).as_posix()
        match = pattern.fullmatch(name)
        partition = match.group("partition") if match else None
        if not partition:
            raise ConfigurationError(
                f"source path {spec.path!r}: file {name!r} matches {spec.glob!r} but its whole "
                f"name gives no "
                f"partition by name_pattern {spec.name_pattern!r}; make one of the two patterns fit"
            )
        groups.setdefault(partition, []).append((name, path))
    return groups


def _by_partition(root: Path, spec: FileSourceSpec) -> dict[str, list[tuple[str, Path]]]:
    groups: dict[str, list[tuple[str, Path]]] = {}
    for path in _matching(root, f"**/{spec.glob}"):
        name = path.relative_to(root).as_posix()
        if any(_is_hidden(part) for part in name.split("/")):
            continue
        value = dict(_partition_values(name)).get(spec.partition_key or "", "")
        if value == "":
            raise ConfigurationError(
                f"source path {spec.path!r}: file {name!r} matches {spec.glob!r} but lies in no directory "
                f"{spec.partition_key}=<value>; move it, or make the pattern leave it out"
            )
        groups.setdefault(_NULL_VALUE if value is None else value, []).append((name, path))
    return groups


def _is_hidden(part: str) -> bool:
    """True for what Spark and Hive leave out, such as ``_temporary`` and ``.part-0.crc``."""
    return part.startswith(".") or (part.startswith("_") and "=" not in part)


def _partition_values(name: str) -> PartitionValues:
    """The values in a file's path, as Spark writes them: percent-encoded, with a text of its own for NULL."""
    pairs = (part.partition("=") for part in name.split("/")[:-1] if "=" in part)
    return tuple((key, None if value == _NULL_VALUE else unquote(value)) for key, _, value in pairs)


def _all_together(root: Path, spec: FileSourceSpec) -> dict[str, list[tuple[str, Path]]]:
    files = [(path.relative_to(root).as_posix(), path) for path in _matching(root, spec.glob)]
    return {"all": files} if files else {}


_GROUPINGS = {
    "directory": _by_directory,
    "name": _by_name,
    "partition": _by_partition,
    "all": _all_together,
}


def _matching(directory: Path, pattern: str, *, below: bool = True) -> Iterator[Path]:
    for path in directory.glob(pattern):
        if LISTING_FOLDER in path.parts[len(directory.parts) :]:
            continue
        if path.is_file() and (below or path.parent == directory):
            yield path


def _group(
    partition: str, files: Iterable[tuple[str, Path]], spec: FileSourceSpec, reached: dict[_Identity, str]
) -> FileGroup:
    ordered = tuple(
        _file(name, path, reached, with_values=spec.partition_columns) for name, path in sorted(files)
    )
    for file in ordered:
        _check_name(file, partition)
    if spec.numbering == "checked":
        _check_numbering([file.name for file in ordered], partition)
    return FileGroup(partition=partition, files=ordered)


def _file(name: str, path: Path, reached: dict[_Identity, str], *, with_values: bool) -> SourceFile:
    """Take a file as it is now.

    :param reached: the files that were taken before
    """
    values = _partition_values(name) if with_values else ()
    try:
        found = path.stat()
    except FileNotFoundError:
        raise SourcePositionError(
            f"file {str(path)!r} vanished while the source was being listed; run again when nothing "
            f"moves files"
        ) from None
    file = SourceFile(name, os.path.abspath(path), found.st_size, values, found.st_mtime_ns)
    # Size and time distinguish files where a mounted storage gives all of them one number.
    same = reached.setdefault((found.st_dev, found.st_ino, file.size, file.modified_ns), file.path)
    if file.size and same != file.path:
        raise ConfigurationError(
            f"{same!r} and {file.path!r} are one file, which a link leads to twice: its rows would be loaded "
            "twice. Remove the link, make the pattern leave it out, or put a copy in its place if the rows "
            "are meant twice. Nothing was read or sent"
        )
    return file


def _check_name(file: SourceFile, partition: str) -> None:
    """Refuse a name that would not come back unchanged from an offset token."""
    try:
        token = str(FileLineOffset(file.name, 1))
        token.encode("utf-8")
        survives = token.isprintable() and FileLineOffset.parse(token).file == file.name
    except (OffsetTokenError, UnicodeEncodeError):
        survives = False
    if not survives:
        raise ConfigurationError(
            f"partition {partition!r}: the file name {file.name!r} cannot be part of an offset token (not "
            "printable UTF-8 text); rename the file"
        )


def _check_numbering(names: list[str], partition: str) -> None:
    """Refuse ``log_10`` before ``log_9``: a file that sorts before the committed one would never be read."""
    for earlier, later in pairwise(names):
        if _numbers_disagree(earlier, later):
            raise ConfigurationError(
                f"partition {partition!r}: {earlier!r} sorts before {later!r}, although its number is "
                "larger; files are read in the order of their names. Pad the numbers with zeros, or set "
                "numbering='ignored' if the order of these names means nothing and none is added later"
            )


def refuse_numbers_before(group: FileGroup, committed: FileLineOffset | None) -> None:
    """Refuse ``log_10`` where the committed ``log_9`` is not there any more: it would never be read.

    :param group: a partition of a source whose numbering is checked
    :param committed: the committed position, None for NULL
    :raises ConfigurationError: if a file's number goes on, and its name sorts before the committed file
    """
    if committed is None:
        return
    for file in group.files:
        if file.name < committed.file and _numbers_disagree(file.name, committed.file):
            raise ConfigurationError(
                f"partition {group.partition!r}: {str(committed)!r} is committed, and {file.name!r} sorts "
                "before that file, although its number is larger; files are read in the order of their "
                "names, so that it would never be read. Pad the numbers with zeros, or set "
                "numbering='ignored' if the order of these names means nothing. Nothing was sent"
            )


def _numbers_disagree(earlier: str, later: str) -> bool:
    """True when two names first differ in a number, and the one that sorts first has the larger one."""
    for one, other in zip(_NUMBER.split(earlier), _NUMBER.split(later), strict=False):
        if one != other:
            return one.isdecimal() and other.isdecimal() and int(one) > int(other)
    return False

"""The file source: where its files are, how they are read, and how they are split, frozen once for a run.

A group is a partition of the source: its files form one series of rows, ordered by the names of the files,
and one task reads them in that order. The list and the sizes are taken once, on the driver, so that a run has
a fixed end however the files grow meanwhile.
"""

from __future__ import annotations

import logging
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal, cast
from urllib.parse import unquote

from airflow_provider_snowpipe.spark.source import SourceSpec
from airflow_provider_snowpipe.streaming.arguments import NonFinite, UnknownTypes
from airflow_provider_snowpipe.streaming.checked_values import TypedArgument, is_template
from airflow_provider_snowpipe.streaming.checkpoint import Binding
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    OffsetTokenError,
    SourceMissingError,
    SourcePositionError,
)
from airflow_provider_snowpipe.streaming.offsets import FileLineOffset, VerifiedFileLineOffset

# -- How files are read: a value for each format ---------------------------------------------------------

_GLOBS = {"text": "*.txt"}
FormatName = Literal["ndjson", "text", "csv", "parquet", "orc", "avro"]
GroupingName = Literal["directory", "all"]


class FileFormat(TypedArgument):
    """How the files of a source are read."""

    __slots__ = ()
    _argument = "source format"
    reader_class: ClassVar[str]
    """``module:name`` of the reader beside this module, which is made from the value."""
    _numbering: ClassVar[tuple[str, ...]] = ()
    """The fields that decide how the rows of a file are numbered."""
    compression: str = "auto"
    growing: bool = False

    @property
    def numbering(self) -> str:
        """What decides how the rows of a file are numbered, in words."""
        return ", ".join((self.type, *(f"{name} {getattr(self, name)!r}" for name in self._numbering)))


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class LineFormat(FileFormat):
    """A format with a row on each line, or between ends of lines.

    :param compression: ``gzip``, ``zstd``, ``bz2``, ``xz``, ``none``, or ``auto`` to go by the endings
        ``.gz``, ``.zst``, ``.bz2`` and ``.xz``
    :param growing: True while something appends to a group's last file, which is not compressed: its last
        line waits until it is terminated
    """

    compression: Literal["auto", "none", "gzip", "zstd", "bz2", "xz"] = "auto"
    growing: bool = False

    def _check(self) -> None:
        if self.growing and self.compression not in ("auto", "none"):
            raise ConfigurationError(
                f"source format compression is {self.compression!r} with growing=True: a compressed file "
                "cannot grow; drop one of the two"
            )


class Ndjson(LineFormat):
    """Reads each line as a JSON object, which is passed on as it is."""

    __slots__ = ()
    type = "ndjson"
    reader_class = "formats:LineReader"


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Text(LineFormat):
    """Reads each line as the value of a column.

    :param column: the column that takes the lines
    """

    column: str = "LINE"
    type = "text"
    reader_class = "formats:LineReader"
    _filled = ("column",)


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Csv(LineFormat):
    """Reads records of values, which are all loaded as text.

    :param columns: the columns to load, None for all
    :param header: True if the first record of a file names its columns
    :param column_names: names of the columns, instead of those in the header
    :param delimiter: one character between values
    :param quote: one character around values, doubled within them; empty if there is none
    :param escape: one character that takes its meaning from the next one; empty if there is none
    :param null_values: texts that mean NULL, as COPY's NULL_IF; the empty text only without quotes
    """

    columns: Sequence[str] | None = None
    header: bool = True
    column_names: Sequence[str] | None = None
    delimiter: str = ","
    quote: str = '"'
    escape: str = ""
    null_values: Sequence[str] = ("",)
    type = "csv"
    reader_class = "csv_format:CsvReader"
    _numbering = ("header", "delimiter", "quote", "escape")
    _filled = ("columns", "column_names")

    def _check(self) -> None:
        LineFormat._check(self)
        for key in ("delimiter", "quote", "escape"):
            value = getattr(self, key)
            is_one = is_template(value) or (len(value) == 1 and value.isascii() and value not in "\r\n")
            if not is_one and (value or key == "delimiter"):
                or_none = "" if key == "delimiter" else ", or '' where the files have none"
                raise ConfigurationError(
                    f"source format {key} is {value!r}: give one ASCII character that ends no line{or_none}"
                )
        used = [value for value in (self.delimiter, self.quote, self.escape) if value]
        if len(set(used)) < len(used):
            raise ConfigurationError(
                f"source format delimiter {self.delimiter!r}, quote {self.quote!r} and escape "
                f"{self.escape!r} must differ; a quote within quotes is doubled, which needs no escape"
            )
        escaped = next((text for text in self.null_values if self.escape and self.escape in text), None)
        if escaped is not None:
            raise ConfigurationError(
                f"source format null_values has {escaped!r} with escape {self.escape!r}, which is taken away "
                "before the texts are compared, so that such a value would be loaded as a text: leave escape "
                "out where the file has it for NULL alone, or load it by COPY, which compares before"
            )
        if not self.header and self.column_names is None:
            raise ConfigurationError(
                "source format header is False: give column_names, since nothing else names the columns"
            )


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class ColumnFormat(FileFormat):
    """A format of typed columns.

    :param columns: the columns to load, None for all
    :param non_finite: ``refuse`` or ``null`` for NaN, infinities, years outside 0 to 9999, times beyond a day
    :param unknown_types: logical types of a file's Avro schema that are not known: ``fail`` refuses the file,
        ``ignore`` loads their values as they are
    """

    columns: Sequence[str] | None = None
    non_finite: NonFinite = "refuse"
    unknown_types: UnknownTypes = "fail"
    _filled = ("columns",)


class Parquet(ColumnFormat):
    """Reads Parquet files."""

    __slots__ = ()
    type = "parquet"
    reader_class = "arrow_format:ParquetReader"


class Orc(ColumnFormat):
    """Reads ORC files."""

    __slots__ = ()
    type = "orc"
    reader_class = "arrow_format:OrcReader"


class Avro(ColumnFormat):
    """Reads Avro files."""

    __slots__ = ()
    type = "avro"
    reader_class = "avro_format:AvroReader"


# -- How files are split into partitions: a value for each way -------------------------------------------

Groups = dict[str, list[tuple[str, Path]]]
"""Files by partition, each with its name within it."""


@dataclass(frozen=True, slots=True, repr=False)
class Grouping(TypedArgument, ABC):
    """How the files of a source are split into partitions."""

    _argument = "source partitions"

    @abstractmethod
    def groups(self, root: Path, glob: str) -> Groups:
        """List the files below a directory that match a glob.

        :raises ConfigurationError: if a file belongs to no partition
        """


class ByDirectory(Grouping):
    """Makes each directory in the source's path a partition."""

    __slots__ = ()
    type = "directory"

    def groups(self, root: Path, glob: str) -> Groups:
        """List the files of each directory."""
        if stray := sorted(path for path in _matching(root, glob) if path.parent == root):
            raise ConfigurationError(
                f"source path {str(root)!r}: {len(stray)} matching file(s) such as {stray[0].name!r} lie "
                "outside any group directory and would be left out; move them into one directory for each "
                "partition, or use partitions=ByName(regex=…)"
            )
        groups: Groups = {}
        for directory in root.iterdir():
            if not directory.is_dir() or directory.name == LISTING_FOLDER or directory.name.startswith("."):
                continue
            if files := list(_named(directory, glob)):
                groups[directory.name] = files
        return groups


@dataclass(frozen=True, slots=True, repr=False)
class ByName(Grouping):
    """Takes the partition from the names of the files.

    :param regex: regular expression for the whole name with a group ``(?P<partition>…)``
    """

    regex: str
    type = "name"

    def _check(self) -> None:
        if is_template(self.regex):
            return
        try:
            named = re.compile(self.regex).groupindex
        except re.error as error:
            raise ConfigurationError(
                f"source partitions regex {self.regex!r} is no regular expression ({error})"
            ) from None
        if "partition" not in named:
            raise ConfigurationError(
                f"source partitions regex {self.regex!r} needs a group (?P<partition>…), for example "
                "'(?P<partition>[a-z]+)_[0-9]+[.]ndjson'"
            )

    def groups(self, root: Path, glob: str) -> Groups:
        """Take the partition of each file from its name."""
        groups: Groups = {}
        for name, path in _named(root, glob):
            match = re.fullmatch(self.regex, name)
            partition = match.group("partition") if match else None
            if not partition:
                raise ConfigurationError(
                    f"source path {str(root)!r}: file {name!r} matches {glob!r} but its whole name gives no "
                    f"partition by regex {self.regex!r}; make one of the two patterns fit"
                )
            groups.setdefault(partition, []).append((name, path))
        return groups


@dataclass(frozen=True, slots=True, repr=False)
class ByKey(Grouping):
    """Takes the partition from a key in the paths of the files, as in ``day=2024-01-01/part-0.parquet``.

    :param key: the key, such as ``day``
    :param as_columns: True adds all such keys in a file's path to its rows, as columns of text
    """

    key: str
    as_columns: bool = False
    type = "key"
    _filled = ("key",)

    def groups(self, root: Path, glob: str) -> Groups:
        """Take the partition of each file from its path."""
        groups: Groups = {}
        for name, path in _named(root, f"**/{glob}"):
            # Spark and Hive leave out such as ``_temporary`` and ``.part-0.crc``.
            if any(part[:1] == "." or (part[:1] == "_" and "=" not in part) for part in name.split("/")):
                continue
            value = dict(_partition_values(name)).get(self.key, "")
            if value == "":
                raise ConfigurationError(
                    f"source path {str(root)!r}: file {name!r} matches {glob!r} but lies in no directory "
                    f"{self.key}=<value>; move it, or make the pattern leave it out"
                )
            groups.setdefault(_NULL_VALUE if value is None else value, []).append((name, path))
        return groups


class AllFiles(Grouping):
    """Makes the files in the source's path one partition, named ``all``."""

    __slots__ = ()
    type = "all"

    def groups(self, root: Path, glob: str) -> Groups:
        """List all files."""
        files = list(_named(root, glob))
        return {"all": files} if files else {}


# -- The source: where files are -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class FileSource(SourceSpec):
    """Ordered groups of files.

    :param path: the directory that holds them, as the Spark driver and its executors see it
    :param pattern: glob that a file must match, and that takes names beginning with ``.`` only where it names
        them so: inside its group's directory, inside ``path`` where ``partitions`` is ``ByName`` or
        ``AllFiles``, at any depth below it where that is ``ByKey``; None for the format's own, such as
        ``*.ndjson``
    :param format: how files are read: a value of ``Ndjson``, ``Text``, ``Csv``, ``Parquet``, ``Orc`` or
        ``Avro``, its ``type`` for one with its defaults, or its dictionary
    :param partitions: how files are split into partitions: a value of ``ByDirectory``, ``ByName``, ``ByKey``
        or ``AllFiles``, likewise
    :param numbering: ``checked`` refuses names like ``log_9`` and ``log_10``, whose order as names is not the
        order of their numbers; ``ignored`` takes them in the order of their names
    :param verify: ``rows``: a resumed file has to have the committed row; ``digest``: it also has to be the
        same up to there, which the offset tokens then show (``file:line/digest``)
    :param on_late_files: what becomes of a run that finds a file before the committed one new, larger or
        younger than the run before has listed it. ``fail``: it stops before anything is sent; ``warn``: it
        names the file in the log and leaves it out
    :param listing_path: directory that keeps each run's listing for the next one, the same for all runs; None
        for ``_snowpipe`` in ``path``
    :param kind: always ``files``
    """

    path: str
    pattern: str | None = None
    format: Ndjson | Text | Csv | Parquet | Orc | Avro | FormatName | Mapping[str, Any] = field(
        default_factory=Ndjson
    )
    partitions: ByDirectory | ByName | ByKey | AllFiles | GroupingName | Mapping[str, Any] = field(
        default_factory=ByDirectory
    )
    numbering: Literal["checked", "ignored"] = "checked"
    verify: Literal["rows", "digest"] = "rows"
    on_late_files: Literal["fail", "warn"] = "fail"
    listing_path: str | None = None
    kind: Literal["files"] = "files"
    source_class: ClassVar[str] = "airflow_provider_snowpipe.spark.sources.files.reader:FileSource"
    _filled = ("path", "pattern", "listing_path")

    def _check(self) -> None:
        if Path(self.glob).is_absolute() or ".." in Path(self.glob).parts:
            raise ConfigurationError(
                f"source pattern {self.pattern!r} leaves the source's path: give one below it"
            )
        if is_template(self.pattern):
            return
        try:
            next(Path(os.devnull).glob(self.glob), None)
        except ValueError as error:
            raise ConfigurationError(f"source pattern {self.pattern!r} is no glob ({error})") from None

    @property
    def form(self) -> FileFormat:
        """The value of ``format``, which a text or a dictionary has become."""
        return cast(FileFormat, self.format)

    @property
    def grouping(self) -> Grouping:
        """The value of ``partitions``, likewise."""
        return cast(Grouping, self.partitions)

    @property
    def glob(self) -> str:
        """The pattern, or the format's own."""
        return self.pattern or _GLOBS.get(self.form.type, f"*.{self.form.type}")

    @property
    def offset_format(self) -> str:
        """``file:line``, with ``verify="digest"`` ``file:line/digest``."""
        return FileLineOffset.format_name if self.verify == "rows" else VerifiedFileLineOffset.format_name

    def binding(self, partition: str) -> Binding:
        """What the positions of a partition mean: where its files are, and how their rows are numbered."""
        split = ", ".join(f"{name} {value!r}" for name, value in sorted(self.grouping.as_json().items()))
        where = f"files {self.glob!r} in {os.path.normpath(self.path)!r}, split by {split}"
        return Binding(f"{where}, partition {partition!r}", self.form.numbering)

    @property
    def default_name(self) -> str:
        """The last part of the path."""
        return Path(self.path).name

    @property
    def address(self) -> str:
        """The directory."""
        return self.path


FileSourceSpec = FileSource
"""The name of the class inside the job, where a FileSource reads what the spec describes."""


# -- The groups of files ---------------------------------------------------------------------------------

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
    """One partition of the source: a series of files read in the order of their names."""

    partition: str
    files: tuple[SourceFile, ...]

    @property
    def bytes(self) -> int:
        """Size of all its files."""
        return sum(file.size for file in self.files)


def freeze(spec: FileSourceSpec) -> tuple[FileGroup, ...]:
    """List the source's groups and files, with their present sizes.

    :return: the groups ordered by partition name; each has at least one file
    :raises SourceMissingError: if the path is missing
    :raises ConfigurationError: if a file belongs to no group, if names do not sort as their numbers do, or if
        one file is reached by two paths
    """
    root = Path(spec.path)
    if not root.is_dir():
        state = "is not a directory" if root.exists() else "does not exist"
        raise SourceMissingError(
            f"source path {spec.path!r} {state}: give the directory that holds the files, as the Spark "
            "driver sees it"
        )
    found = spec.grouping.groups(root, spec.glob)
    reached: dict[_Identity, str] = {}
    groups = tuple(_group(partition, files, spec, reached) for partition, files in sorted(found.items()))
    if not groups:
        log.warning(
            "source path %r: no file matches %r with %r, so that there is nothing to load",
            spec.path,
            spec.glob,
            spec.grouping,
        )
    return groups


def _partition_values(name: str) -> PartitionValues:
    """The values in a file's path, as Spark writes them: percent-encoded, with a text of its own for NULL."""
    pairs = (part.partition("=") for part in name.split("/")[:-1] if "=" in part)
    return tuple((key, None if value == _NULL_VALUE else unquote(value)) for key, _, value in pairs)


def _named(directory: Path, pattern: str) -> Iterator[tuple[str, Path]]:
    """The matching files, each with its path below the directory."""
    return ((path.relative_to(directory).as_posix(), path) for path in _matching(directory, pattern))


def _matching(directory: Path, pattern: str) -> Iterator[Path]:
    names_hidden = any(part.startswith(".") for part in Path(pattern).parts)
    for path in directory.glob(pattern):
        parts = path.parts[len(directory.parts) :]
        # As in a shell: copies of editors, snapshots and unfinished files have such names.
        is_hidden = not names_hidden and any(part.startswith(".") for part in parts)
        if is_hidden or LISTING_FOLDER in parts:
            continue
        if path.is_file():
            yield path


def _group(
    partition: str, files: Iterable[tuple[str, Path]], spec: FileSourceSpec, reached: dict[_Identity, str]
) -> FileGroup:
    with_values = isinstance(spec.grouping, ByKey) and spec.grouping.as_columns
    ordered = tuple(_file(name, path, reached, with_values=with_values) for name, path in sorted(files))
    _check_partition(partition)
    for file in ordered:
        _check_name(file, partition)
    names = [file.name for file in ordered] if spec.numbering == "checked" else []
    for earlier, later in pairwise(names):
        if _numbers_disagree(earlier, later):  # a file that sorts before the committed one is never read
            raise ConfigurationError(
                f"partition {partition!r}: {earlier!r} sorts before {later!r}, although its number is "
                "larger; files are read in the order of their names. Pad the numbers with zeros, or set "
                "numbering='ignored' if the order of these names means nothing and none is added later"
            )
    return FileGroup(partition=partition, files=ordered)


def _file(name: str, path: Path, reached: dict[_Identity, str], *, with_values: bool) -> SourceFile:
    """Take a file as it is now; the others were taken before."""
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
            f"partition {partition!r}: the file name {file.name!r} cannot be part of an offset token: it is "
            "not printable UTF-8 text, or ends like the digest of a token, '@' and 16 hexadecimal digits; "
            "rename the file"
        )


def _check_partition(partition: str) -> None:
    """Refuse a name that no channel's name can hold."""
    try:
        partition.encode("utf-8")
    except UnicodeEncodeError:
        raise ConfigurationError(
            f"partition {partition!r} is no UTF-8 text, as a channel's name has to be: rename the directory"
        ) from None


def refuse_numbers_before(group: FileGroup, committed: FileLineOffset | None) -> None:
    """Refuse ``log_10`` where the committed ``log_9`` is not there any more: it would never be read.

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

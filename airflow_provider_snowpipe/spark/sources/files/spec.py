"""The file source: where its files are, how they are read, and how they are split.

A group is a partition of the source: its units form one series of rows, ordered by their numbers in the
source log, and one task reads them in that order. The driver lists once, so that a run has a fixed end
however the files grow meanwhile.
"""

from __future__ import annotations

import fnmatch
import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, cast
from urllib.parse import unquote

from airflow_provider_snowpipe.spark.source import SourceSecrets, SourceSpec
from airflow_provider_snowpipe.spark.sources.files.storage import (
    LOG_FOLDER,
    LocalStorage,
    Storage,
    bucket_of,
    canonical_path,
    check_path,
    is_url,
)
from airflow_provider_snowpipe.spark.sources.files.storage_options import options_of
from airflow_provider_snowpipe.streaming.arguments import NonFinite, UnknownTypes
from airflow_provider_snowpipe.streaming.checked_values import TypedArgument, is_template
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.names import counted
from airflow_provider_snowpipe.streaming.offsets import UnitOffset

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
    reader_class = "line_format:LineReader"


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Text(LineFormat):
    """Reads each line as the value of a column.

    :param column: the column that takes the lines
    """

    column: str = "LINE"
    type = "text"
    reader_class = "line_format:LineReader"
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

PartitionValues = tuple[tuple[str, str | None], ...]
Groups = dict[str, list[tuple[str, str]]]
"""Files by partition, each with its name within it and its name below the source's path."""
_OURS = re.compile(rf"(.*/)?({LOG_FOLDER}/.*|log-[0-9a-f]{{16}}/[es][0-9]{{12}}[.]parquet)", re.DOTALL)
"""Files in that directory, and entries of a log that ``log_path`` has put somewhere else in the path."""
FILE_NAME, ROW_NUMBER = "filename", "file_row_number"
METADATA = (
    *(FILE_NAME, ROW_NUMBER, "file_last_modified", "file_content_key", "start_scan_time", "run_id", "unit"),
)
"""What columns can be given of rows, by the names of Snowflake's metadata columns where it has them."""
_NULL_VALUE = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True, repr=False)
class Grouping(TypedArgument, ABC):
    """How the files of a source are split into partitions."""

    _argument = "source partitions"

    @abstractmethod
    def groups(self, path: str, names: Sequence[str], glob: str) -> Groups:
        """Split the files that match a glob.

        :param names: of the files below it, in order
        """

    def depth(self, glob: str) -> int | None:
        """How many parts the names of matching files have at most, None for any number."""
        return None if "**" in glob.split("/") else glob.count("/") + 1


class ByDirectory(Grouping):
    """Makes each directory in the source's path a partition."""

    __slots__ = ()
    type = "directory"

    def groups(self, path: str, names: Sequence[str], glob: str) -> Groups:
        """Take the partition of each file from the first part of its name."""
        matches = _matcher(glob)
        groups: Groups = {}
        stray = []
        for name in names:
            directory, separator, within = name.partition("/")
            if not separator and matches(name):
                stray.append(name)
            elif separator and not directory.startswith(".") and matches(within):
                groups.setdefault(directory, []).append((within, name))
        if stray:
            raise ConfigurationError(
                f"source path {path!r}: {counted(len(stray), 'matching file')} such as {stray[0]!r} lie "
                "outside any group directory and would be left out; move them into one directory for each "
                "partition, or use partitions=ByName(regex=…), or AllFiles()"
            )
        return groups

    def depth(self, glob: str) -> int | None:
        """One part more than within a directory."""
        within = Grouping.depth(self, glob)
        return None if within is None else within + 1


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
                f"source partitions regex {self.regex!r} is not a regular expression ({error})"
            ) from None
        if "partition" not in named:
            raise ConfigurationError(
                f"source partitions regex {self.regex!r} needs a group (?P<partition>…), for example "
                "'(?P<partition>[a-z]+)_[0-9]+[.]ndjson'"
            )

    def groups(self, path: str, names: Sequence[str], glob: str) -> Groups:
        """Take the partition of each file from its name."""
        groups: Groups = {}
        for name in filter(_matcher(glob), names):
            match = re.fullmatch(self.regex, name)
            partition = match.group("partition") if match else None
            if not partition:
                raise ConfigurationError(
                    f"source path {path!r}: file {name!r} matches {glob!r} but its whole name gives no "
                    f"partition by regex {self.regex!r}; make one of the two patterns fit"
                )
            groups.setdefault(partition, []).append((name, name))
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

    def groups(self, path: str, names: Sequence[str], glob: str) -> Groups:
        """Take the partition of each file from its path."""
        groups: Groups = {}
        for name in filter(_matcher(f"**/{glob}"), names):
            # Spark and Hive leave out such as ``_temporary`` and ``.part-0.crc``.
            if any(part[:1] == "." or (part[:1] == "_" and "=" not in part) for part in name.split("/")):
                continue
            value = dict(_partition_values(name)).get(self.key, "")
            if value == "":
                raise ConfigurationError(
                    f"source path {path!r}: file {name!r} matches {glob!r} but lies in no directory "
                    f"{self.key}=<value>; move it, or make the pattern leave it out"
                )
            groups.setdefault(_NULL_VALUE if value is None else value, []).append((name, name))
        return groups

    def depth(self, glob: str) -> int | None:
        """Any number."""
        return None


class AllFiles(Grouping):
    """Makes the files in the source's path one partition, named ``all``."""

    __slots__ = ()
    type = "all"

    def groups(self, path: str, names: Sequence[str], glob: str) -> Groups:
        """Take all files."""
        files = [(name, name) for name in filter(_matcher(glob), names)]
        return {"all": files} if files else {}


def _matcher(glob: str) -> Callable[[str], bool]:
    """Match names below a directory as ``pathlib`` does, and leave out hidden ones and our own.

    As in a shell: copies of editors, snapshots and unfinished files have names that begin with a dot.
    """
    parts = [part for part in glob.split("/") if part not in ("", ".")]
    names_hidden = any(part.startswith(".") for part in parts)
    pattern = "".join("(?:[^/]+/)*" if part == "**" else f"{_of_part(part)}/" for part in parts)
    matches = re.compile(pattern.removesuffix("/"), re.DOTALL).fullmatch

    def is_chosen(name: str) -> bool:
        is_hidden = not names_hidden and (name.startswith(".") or "/." in name)
        return not is_hidden and _OURS.fullmatch(name) is None and matches(name) is not None

    return is_chosen


def _of_part(glob: str) -> str:
    """An expression for one part of a name."""
    wild = {"*": "[^/]*", "?": "[^/]"}
    tokens = re.split(r"(\[!?\]?[^\]]*\]|[*?])", glob)
    return "".join(
        wild.get(one) or (fnmatch.translate(one)[4:-3] if one.startswith("[") else re.escape(one))
        for one in tokens
    )


def _partition_values(name: str) -> PartitionValues:
    """The values in a file's path, as Spark writes them: percent-encoded, with a text of its own for NULL."""
    pairs = (part.partition("=") for part in name.split("/")[:-1] if "=" in part)
    return tuple((key, None if value == _NULL_VALUE else unquote(value)) for key, _, value in pairs)


# -- The source: where files are -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class FileSource(SourceSpec):
    """Ordered groups of files.

    :param path: the directory that holds them, as the Spark driver and its executors see it; or a URL of an
        object store, ``s3://``, ``gs://``, ``az://`` or ``abfss://``; or of Hadoop's file system,
        ``webhdfs://`` or ``hdfs://``
    :param pattern: glob that a file must match, and that takes names beginning with ``.`` only where it names
        them so: inside its group's directory, inside ``path`` where ``partitions`` is ``ByName`` or
        ``AllFiles``, at any depth below it where that is ``ByKey``; None for the format's own, such as
        ``*.ndjson``
    :param format: how files are read: a value of ``Ndjson``, ``Text``, ``Csv``, ``Parquet``, ``Orc`` or
        ``Avro``, its ``type`` for one with its defaults, or its dictionary
    :param partitions: how files are split into partitions: a value of ``ByDirectory``, ``ByName``, ``ByKey``
        or ``AllFiles``, likewise
    :param on_changed_files: what becomes of a file that was taken and has other content now. ``fail``: the
        run stops before anything is sent; ``reload``: its new content is loaded, too; ``ignore``: it is left
        out
    :param log_path: a folder or URL for the source log, which driver and worker write; None for
        ``[snowpipe] log_path`` of the configuration, or for ``_snowpipe`` in ``path``
    :param after_commit: what becomes of a file when all of it is committed: ``keep``, ``archive`` moves it to
        ``archive_path``, ``delete`` deletes it. It is done at the end of a run, as far as commits were seen,
        and never to a file that has changed since it was taken
    :param archive_path: a folder, or a URL in the same bucket, that is not below ``path``
    :param retention: seconds that a committed file is kept before that, at least
    :param conn_id: Airflow connection of the store: ``aws``, ``google_cloud_platform``, ``wasb``,
        ``webhdfs`` or ``hdfs``; None for the identity that driver and executors have themselves
    :param metadata: columns that show where rows are from, each with one of ``filename`` (below ``path``),
        ``file_row_number``, ``file_last_modified``, ``file_content_key`` (an object's ETag),
        ``start_scan_time``, ``run_id`` and ``unit``; times are UTC
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
    on_changed_files: Literal["fail", "reload", "ignore"] = "fail"
    log_path: str | None = None
    after_commit: Literal["keep", "archive", "delete"] = "keep"
    archive_path: str | None = None
    retention: float = 0.0
    conn_id: str | None = None
    metadata: Mapping[str, str] | None = None
    kind: Literal["files"] = "files"
    source_class: ClassVar[str] = "airflow_provider_snowpipe.spark.sources.files.reader:FileSource"
    offset_format = UnitOffset.format_name
    takes_connection = True
    _filled = ("path", "pattern", "log_path", "archive_path", "conn_id")

    def _check(self) -> None:
        if not is_template(self.path):
            check_path(self.path)
        if self.conn_id and not is_template(self.path) and not is_url(self.path):
            raise ConfigurationError(
                f"source conn_id is {self.conn_id!r}, and path {self.path!r} is a directory, which needs no "
                "connection: leave conn_id out, or give the URL of an object store"
            )
        self._check_cleaning()
        for name, value in (self.metadata or {}).items():
            if not name or value not in METADATA:
                raise ConfigurationError(
                    f"source metadata has {name!r}: {value!r}: give a column one of {', '.join(METADATA)}"
                )
        if Path(self.glob).is_absolute() or ".." in Path(self.glob).parts:
            raise ConfigurationError(
                f"source pattern {self.pattern!r} leaves the source's path: give one below it"
            )
        if is_template(self.pattern):
            return
        try:
            next(Path(os.devnull).glob(self.glob), None)
        except ValueError as error:
            raise ConfigurationError(f"source pattern {self.pattern!r} is not a glob ({error})") from None

    def _check_cleaning(self) -> None:
        if not 0 <= self.retention < math.inf:
            raise ConfigurationError(f"source retention is {self.retention!r}: give seconds, 0 or more")
        if (self.after_commit == "archive") != bool(self.archive_path):
            raise ConfigurationError(
                f"source after_commit is {self.after_commit!r} and archive_path {self.archive_path!r}: "
                "'archive' needs archive_path, and nothing else takes it"
            )
        if self.archive_path is None or is_template(self.path) or is_template(self.archive_path):
            return
        both = (self.archive_path, self.path)  # a link or ".." may lead from one to the other
        archive, path = (one.rstrip("/") if is_url(one) else os.path.realpath(one) for one in both)
        is_below = f"{archive}/".startswith(f"{path}/")
        if is_below or is_url(archive) != is_url(path) or bucket_of(archive) != bucket_of(path):
            raise ConfigurationError(
                f"source archive_path is {archive!r} and path {path!r}: give a folder or a URL of the same "
                "bucket that is not below path, where archived files would be files of the source"
            )

    @staticmethod
    def with_connection(values: Mapping[str, Any], connection: Any) -> tuple[dict[str, Any], SourceSecrets]:
        """Take what the client of the object store needs from the connection; all of it travels in secret."""
        FileSource.from_mapping({**values, "conn_id": connection.conn_id})
        return dict(values), options_of(connection)

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
    def owner(self) -> str:
        """The load as the units of its source log name it: which files it takes, and how it splits them."""
        return f"files {self.glob!r}, {self.split}"

    @property
    def split(self) -> str:
        """How its files are grouped, in words."""
        grouped = (f"{name} {value!r}" for name, value in sorted(self.grouping.as_json().items()))
        return f"split by {', '.join(grouped)}"

    @property
    def row_columns(self) -> tuple[tuple[str, ...], str] | None:
        """The columns with the file's name and the row's number, where ``metadata`` has both."""
        columns = {value: name for name, value in (self.metadata or {}).items()}
        if not {FILE_NAME, ROW_NUMBER} <= columns.keys():
            return None
        return (columns[FILE_NAME],), columns[ROW_NUMBER]

    @property
    def default_name(self) -> str:
        """The last part of the path."""
        return Path(self.path).name

    @property
    def address(self) -> str:
        """The directory, in the one spelling that every record of the source has."""
        return canonical_path(self.path)


# -- The groups of files ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A unit of the source log: a file, or a piece of one, as it was when it was taken.

    :param name: the file's name within its partition, the file part of its offset tokens
    :param size: the byte behind its last one; nothing behind it is read
    :param values: the partition values in its path that become columns of its rows, by name
    :param modified_ns: when it was written last, nanoseconds since 1970
    :param version: another one when its content is another one, an object's ETag; empty for local files
    :param unit: its number in the log
    :param after_line: lines before it in the file
    :param ends: digest of the file's first and last bytes up to ``size``; empty where nobody has taken it
    """

    name: str
    path: str
    size: int
    values: PartitionValues = ()
    modified_ns: int = 0
    version: str = ""
    storage: Storage = field(default=LocalStorage("/"), repr=False, compare=False)
    unit: int = 1
    start: int = 0
    after_line: int = 0
    ends: str = ""

    @property
    def name_below(self) -> str:
        """Its name below the source's path."""
        return self.path.removeprefix(self.storage.path("")).lstrip("/")


@dataclass(frozen=True, slots=True)
class FileGroup:
    """One partition of the source: the units of it that are streamed, read by their numbers.

    :param gone: the numbers of those whose files are not there any more
    :param replaced: the numbers of those whose files have other content, which are units of their own
    :param committed: the last lines of those that were seen as committed to their last row, by number
    :param given: units that COPY or a pipe was given and is not known to have loaded, which no stream reads
    """

    partition: str
    files: tuple[SourceFile, ...]
    gone: frozenset[int] = frozenset()
    replaced: frozenset[int] = frozenset()
    committed: Mapping[int, int] = field(default_factory=dict)
    given: tuple[SourceFile, ...] = ()

    def is_complete(self, position: UnitOffset) -> bool:
        """True where the log has a position as the end of its unit."""
        return 0 < self.committed.get(position.unit, 0) <= position.line


def values_of(spec: FileSource, name: str) -> PartitionValues:
    """The partition values in a file's name that become columns of its rows."""
    with_values = isinstance(spec.grouping, ByKey) and spec.grouping.as_columns
    return _partition_values(name) if with_values else ()

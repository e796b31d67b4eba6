"""COPY INTO a table: the statement and its options, the choice of its files, and what it did with each."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol, Self

from airflow_provider_snowpipe.bulk.staged_files import (
    LOAD_FAILED,
    PARTIALLY_LOADED,
    FileLoad,
    StagedFile,
    StagedFiles,
    StageReference,
    file_names,
    staged_at,
)
from airflow_provider_snowpipe.streaming.arguments import check_numbers_and_switches, known_arguments
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    FilesRejectedError,
    NothingStagedError,
)
from airflow_provider_snowpipe.streaming.names import (
    first_few,
    full_name,
    option,
    option_group,
    plain_or_quoted,
    quote_identifier,
    string_literal,
)

# -- COPY INTO table as a value: every option typed, every name quoted, every text escaped ---------------

MOST_FILES = 1_000
"""Files that one statement names (page "COPY INTO <table>", FILES)."""

_ON_ERROR = re.compile(r"CONTINUE|ABORT_STATEMENT|SKIP_FILE(_[1-9]\d*%?)?")
_MATCHING = ("CASE_SENSITIVE", "CASE_INSENSITIVE", "NONE")
_LOAD_MODES = ("FULL_INGEST", "ADD_FILES_COPY")
_METADATA = re.compile(r"METADATA\$[A-Z_]+")
_FORMATS = {"parquet": "PARQUET", "avro": "AVRO", "orc": "ORC", "json": "JSON", "ndjson": "JSON"}
"""Formats of files by the endings of their names, other than CSV."""
_VALIDATION = re.compile(r"RETURN_([1-9]\d*_ROWS|ERRORS|ALL_ERRORS)")


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """The options of COPY INTO table; None and False leave one out, so that the stage's or Snowflake's count.

    :param file_format: name of a file format, as it is written in SQL, or its options by name, such as
        ``{"type": "CSV", "skip_header": 1}``; None for that of the stage
    :param pattern: regular expression that the whole path must match
    :param on_error: ``CONTINUE``, ``SKIP_FILE``, ``SKIP_FILE_<n>``, ``SKIP_FILE_<n>%`` or ``ABORT_STATEMENT``
    :param size_limit: bytes after which no more files are begun
    :param purge: remove files that were loaded
    :param match_by_column_name: ``CASE_SENSITIVE``, ``CASE_INSENSITIVE`` or ``NONE``
    :param include_metadata: with it, name of a column to ``METADATA$…``
    :param enforce_length: False cuts texts that are too long
    :param truncate_columns: True cuts texts that are too long
    :param force: load files that were loaded before
    :param load_uncertain_files: load files that nobody remembers as loaded or not
    :param load_mode: ``FULL_INGEST`` or ``ADD_FILES_COPY`` (Iceberg tables)
    :param cluster_at_ingest_time: sort the rows by the table's clustering key before they are committed
    :param file_processor: options by name, for unstructured files
    """

    file_format: str | Mapping[str, Any] | None = None
    pattern: str | None = None
    on_error: str | None = None
    size_limit: int | None = None
    purge: bool = False
    match_by_column_name: str | None = None
    include_metadata: Mapping[str, str] = field(default_factory=dict)
    enforce_length: bool | None = None
    truncate_columns: bool | None = None
    force: bool = False
    load_uncertain_files: bool = False
    load_mode: str | None = None
    cluster_at_ingest_time: bool = False
    file_processor: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, allowed, shown in (
            ("on_error", _ON_ERROR, "CONTINUE, SKIP_FILE, SKIP_FILE_10, SKIP_FILE_10%, …"),
            ("match_by_column_name", _MATCHING, ", ".join(_MATCHING)),
            ("load_mode", _LOAD_MODES, ", ".join(_LOAD_MODES)),
        ):
            if (word := getattr(self, name)) is not None:
                _one_of(name, word, allowed, shown)
        for name in ("include_metadata", "file_processor"):
            if not isinstance(getattr(self, name), Mapping):
                raise ConfigurationError(f"{name} is {getattr(self, name)!r}: give a mapping")
        if self.file_format is not None and not isinstance(self.file_format, str | Mapping):
            raise ConfigurationError(
                f"file_format is {self.file_format!r}: give a name, or options as a mapping"
            )
        for column, metadata in self.include_metadata.items():
            _one_of(f"include_metadata of {column!r}", metadata, _METADATA, "METADATA$FILENAME, …")
        if self.include_metadata and self.match_by_column_name in (None, "NONE"):
            raise ConfigurationError(
                "include_metadata needs match_by_column_name: name the columns by it, too"
            )
        if self.size_limit is not None and (not isinstance(self.size_limit, int) or self.size_limit < 1):
            raise ConfigurationError(f"size_limit is {self.size_limit!r}: give a number of bytes above 0")
        if self.enforce_length is not None and self.enforce_length == self.truncate_columns:
            raise ConfigurationError(
                f"enforce_length and truncate_columns are both {self.enforce_length}: they are "
                "opposites, give one"
            )

    @classmethod
    def of(cls, options: Mapping[str, Any] | None) -> Self:
        """Take the argument ``options`` of an operator.

        :param options: options by the names of the fields, None for none
        :raises ConfigurationError: if a name or a value is wrong
        """
        if not options:
            return cls()
        given = known_arguments(cls, options, "options")
        found = cls(**{name: value for name, value in given.items() if value is not None})
        check_numbers_and_switches(found)
        return found

    def written(self, *, is_own: bool = False) -> list[str]:
        """Each option as it is written in a statement.

        :param is_own: as of :meth:`CopyInto.statement`
        """
        words = [] if self.file_format is None else [_written_format(self.file_format)]
        if self.pattern is not None:
            words.append(option("PATTERN", self.pattern))
        plain = {
            "SIZE_LIMIT": self.size_limit,
            "MATCH_BY_COLUMN_NAME": self.match_by_column_name,
            "LOAD_MODE": self.load_mode,
        }
        words += [f"{name} = {value}" for name, value in plain.items() if value is not None]
        if self.on_error is not None:
            # A percentage is not a word of SQL, so it is written as a text.
            words.append(
                f"ON_ERROR = {string_literal(self.on_error) if '%' in self.on_error else self.on_error}"
            )
        switches = {
            "PURGE": self.purge or None,
            "ENFORCE_LENGTH": self.enforce_length,
            "TRUNCATECOLUMNS": self.truncate_columns,
            "FORCE": self.force or None,
            "LOAD_UNCERTAIN_FILES": self.load_uncertain_files or None,
            "CLUSTER_AT_INGEST_TIME": self.cluster_at_ingest_time or None,
        }
        if is_own:  # a stage may set these as well: every file is reported, none loaded twice, no value cut
            fixed = {"PURGE": False, "RETURN_FAILED_ONLY": False, "FORCE": self.force}
            switches |= {**fixed, "LOAD_UNCERTAIN_FILES": self.load_uncertain_files}
            if self.enforce_length is None:
                switches["TRUNCATECOLUMNS"] = bool(self.truncate_columns)
        words += [f"{name} = {str(on).upper()}" for name, on in switches.items() if on is not None]
        if self.include_metadata:
            pairs = ", ".join(
                f"{plain_or_quoted(name)} = {value}" for name, value in self.include_metadata.items()
            )
            words.append(f"INCLUDE_METADATA = ({pairs})")
        if self.file_processor:
            words.append(option_group("FILE_PROCESSOR", self.file_processor))
        return words


@dataclass(frozen=True, slots=True)
class CopyInto:
    """One COPY INTO table, before its files are known.

    :param table: database, schema and name
    :param location: the stage with ``@``, as :meth:`StageReference.location` writes it
    :param columns: the columns to fill, None for all in their order
    :param expressions: what to fill them with, as SQL over ``$1``, ``$1:name::type``, ``METADATA$FILENAME``;
        written as they are
    """

    table: tuple[str, str, str]
    location: str
    options: CopyOptions = field(default_factory=CopyOptions)
    columns: Sequence[str] | None = None
    expressions: Sequence[str] | None = None

    def format_remedy(self, paths: Sequence[str]) -> str:
        """What to do where COPY would read files of another format as CSV, with a space before.

        :param paths: paths of the files; empty for a remedy if none of their names shows a format
        """
        if self.options.file_format is not None:
            return ""
        for path in paths:
            kind = _FORMATS.get(path.rpartition(".")[2].lower())
            if kind is not None:
                return (
                    f" File {path!r} is {kind} by its name, and without file_format COPY reads it in the "
                    f"stage's format, which is CSV unless the stage sets another: give "
                    f"options={{'file_format': {{'type': {kind!r}}}}}"
                )
        return ""

    def __post_init__(self) -> None:
        for name in ("columns", "expressions"):
            if isinstance(given := getattr(self, name), str):
                raise ConfigurationError(f"{name} is {given[:80]!r}, a text: give a list, [{given[:80]!r}]")
            if given is not None and not (
                isinstance(given, Sequence) and all(isinstance(one, str) for one in given)
            ):
                raise ConfigurationError(f"{name} is {given!r}: give a list of texts")
        if not self.location.startswith("@"):
            raise ConfigurationError(
                f"location is {self.location[:80]!r}: give a stage with @, and a path after a slash"
            )
        if "\0" in self.location or any("\ud800" <= character <= "\udfff" for character in self.location):
            raise ConfigurationError(
                f"stage path {self.location!r} has a NUL or half a surrogate pair, which no SQL text can "
                "have: stage the files under another path"
            )
        matched = self.options.match_by_column_name not in (None, "NONE")
        if matched and (self.columns or self.expressions):
            raise ConfigurationError(
                "match_by_column_name fills columns by their names: leave columns and expressions out"
            )
        if self.columns and self.expressions and len(self.columns) != len(self.expressions):
            raise ConfigurationError(
                f"{len(self.columns)} columns are filled by {len(self.expressions)} expressions: give as many"
            )

    def statement(self, files: Sequence[str] = (), *, is_own: bool = False, skips: bool = False) -> str:
        """Write the statement; the location is a text, so that nothing in a path is read as SQL.

        :param files: paths below the location, at most 1,000; none for all files there
        :param is_own: True for a task's own load of files, in which no option of the stage changes what is
            loaded and no file is removed before the commit; empty without files
        :param skips: True leaves the options out that load files again
        :raises ConfigurationError: if there are more files
        """
        if is_own and not files:
            return ""
        if len(files) > MOST_FILES:
            raise ConfigurationError(
                f"one COPY names {MOST_FILES:,} files at most, not {len(files):,}: take parts(), which "
                "divides them"
            )
        words = [f"COPY INTO {full_name(*self.table)}"]
        if self.columns:
            words.append(f"({', '.join(map(quote_identifier, self.columns))})")
        source = string_literal(self.location)
        if self.expressions:
            source = f"(SELECT {', '.join(self.expressions)} FROM {source})"  # noqa: S608  the author's own
        words.append(f"FROM {source}")
        if files:
            words.append(f"FILES = ({', '.join(map(string_literal, files))})")
        options = replace(self.options, force=False, load_uncertain_files=False) if skips else self.options
        return " ".join([*words, *options.written(is_own=is_own)])

    @staticmethod
    def parts(files: Sequence[str]) -> list[Sequence[str]]:
        """Divide files into those of as many statements as they need, at most 1,000 each.

        Each is a transaction of its own.
        """
        return [files[start : start + MOST_FILES] for start in range(0, len(files), MOST_FILES)]

    def validation(self, mode: str, files: Sequence[str] = ()) -> str:
        """Write the statement that only validates the files and loads nothing.

        :param mode: ``RETURN_ERRORS``, ``RETURN_ALL_ERRORS`` or ``RETURN_<n>_ROWS``
        :raises ConfigurationError: if the mode is another one, or rows are transformed or matched by name
        """
        _one_of("validation_mode", mode, _VALIDATION, "RETURN_ERRORS, RETURN_ALL_ERRORS, RETURN_10_ROWS, …")
        if self.not_validated is not None:
            raise ConfigurationError(
                f"validation_mode is {mode!r}, which Snowflake refuses together with {self.not_validated}: "
                "leave one out"
            )
        # Snowflake refuses PURGE beside it, and nothing is loaded that could be removed.
        copy = replace(self, options=replace(self.options, purge=False))
        return f"{copy.statement(files)} VALIDATION_MODE = {mode}"

    @property
    def not_validated(self) -> str | None:
        """The argument with which Snowflake validates no files, None where it does."""
        if self.expressions:
            return "expressions"
        return None if self.options.match_by_column_name in (None, "NONE") else "match_by_column_name"


def _written_format(file_format: str | Mapping[str, Any]) -> str:
    if isinstance(file_format, str):
        return f"FILE_FORMAT = (FORMAT_NAME = {string_literal(file_format)})"
    if not file_format:
        raise ConfigurationError("file_format is {}: give type=… at least, or leave it out for the stage's")
    return option_group("FILE_FORMAT", file_format)


def _one_of(name: str, value: str, allowed: Sequence[str] | re.Pattern[str], shown: str) -> None:
    fits = allowed.fullmatch(str(value)) is not None if isinstance(allowed, re.Pattern) else value in allowed
    if not fits:
        raise ConfigurationError(f"{name} is {value!r}: give {shown}")


# -- Whose work a COPY is ----------------------------------------------------------------------------------


class LogEntry(NamedTuple):
    """An entry of a source log: the path of the source, the id of the log, and the number."""

    source: str
    log: str
    number: int


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """Whose work a COPY is, the same for every try.

    :param names: what distinguishes one piece of work from another, such as DAG, run, task and map index
    :param since: when the run began: what was loaded before was loaded by somebody else
    :param try_number: 1 for the first try
    :param began_once: True where the run is known to have begun only once, since nobody has cleared it
    :param first: nothing of the run was loaded before, although it was cleared since; None for not known
    :param work: names the work itself, whichever run does it; None where it is the run's
    :param entry: the entry of a source log that gave these files to COPY or a pipe, None for other files
    """

    names: tuple[str, ...]
    since: dt.datetime
    try_number: int = 1
    began_once: bool = False
    first: dt.datetime | None = None
    work: str | None = None
    entry: LogEntry | None = None

    def is_anew(self, since: dt.datetime) -> bool:
        """True where a run of these names that began then is another one, which was deleted meanwhile.

        A run that is cleared begins later as well, but the tries of its tasks are numbered on.
        """
        return self.work is None and since < self.since and (self.try_number == 1 or self.began_once)


def query_tag(names: Sequence[str]) -> str:
    """What the account's query history has of whoever has planned a COPY."""
    return json.dumps({"snowpipe": list(names)})[:2000]


# -- What a COPY did with each file: read from its result, never assumed ---------------------------------

LOAD_SKIPPED = "LOAD_SKIPPED"


@dataclass(frozen=True, slots=True)
class CopyOutcome:
    """The files of one COPY, or of several.

    :param loads: what became of each file; ``path`` is below the stage
    :param before: the loads of files that were loaded before, by another run or another way
    """

    loads: tuple[FileLoad, ...] = ()
    before: tuple[FileLoad, ...] = ()

    def require(self, on_rejected: str, table: str) -> None:
        """Object to files that failed or were loaded in part.

        :param on_rejected: ``fail``, or ``report`` to accept them
        :raises FilesRejectedError: if there is such a file and ``on_rejected`` is ``fail``
        """
        every = self.loads + self.before
        bad = [load for load in every if load.status in (LOAD_FAILED, PARTIALLY_LOADED)]
        if not bad or on_rejected == "report":
            return
        named = [
            f"{load.path!r} {load.status}, {load.rows_loaded:,} of {load.rows_parsed:,} rows"
            + (f", first error: {load.first_error}" if load.first_error else "")
            for load in bad
        ]
        raise FilesRejectedError(
            f"COPY into {table}: {len(bad):,} of {len(every):,} files were not loaded as a whole: "
            f"{first_few(named, '; ')}. "
            "Fix files that failed and stage them again; of those loaded in part, stage the rejected rows "
            "alone, under another name; or accept them by on_rejected='report', with SnowpipeLoadOperator by "
            "on_error='continue' and ON_ERROR = CONTINUE",
            files=tuple(load.path for load in bad),
            rejected=sum(load.errors_seen for load in bad),
        )

    def result(self) -> dict[str, Any]:
        """The outcome as JSON, for a task's value: totals, and each file by its path."""
        return {
            "rows_loaded": sum(load.rows_loaded for load in self.loads),
            "rejected": sum(load.errors_seen for load in self.loads),
            "files": {load.path: load.result() for load in self.loads},
            "loaded_before": {load.path: load.result() for load in self.before},
        }


# pragma: no mutate start (tested with the operators, against the fake account)
# -- Which staged files are to be loaded -------------------------------------------------------------------


class StageAccount(Protocol):
    """As much of the account's hook as the choice of files needs."""

    def database_and_schema(self) -> tuple[str, str]:
        """Database and schema of what is not named with its own."""

    def list_files(self, stage: str, prefix: str = "", pattern: str | None = None) -> list[dict[str, Any]]:
        """List the files of a stage."""

    def stage_url(self, stage: str) -> str | None:
        """The URL that an external stage stands for."""


@dataclass(frozen=True, slots=True)
class StagedChoice:
    """Files by name, by the start of their paths, by a pattern, or all of a stage.

    :param files: paths below that: a list or its JSON text
    :param prefix: instead of files, the start of their paths
    :param pattern: regular expression that their whole paths match
    """

    stage: str
    files: Any = None
    prefix: str | None = None
    pattern: str | None = None

    def __str__(self) -> str:
        narrowed = {"prefix": self.prefix, "pattern": self.pattern}
        more = (f", {name} {value!r}," for name, value in narrowed.items() if value is not None)
        return f"stage {self.stage!r}{''.join(more)}"

    def check(self) -> None:
        """Find what no rendering of templates can fix.

        :raises ConfigurationError: if the arguments do not go together
        """
        if self.files is not None and (self.prefix is not None or self.pattern is not None):
            raise ConfigurationError(
                f"files is {self.files!r} beside prefix or pattern: the files are named, leave the others out"
            )

    def key(self) -> str:
        """What tells this choice from another one of the same stage."""
        names = None if self.files is None else sorted(file_names(self.files))
        stage = StageReference.parse(self.stage)
        chosen = [stage.owner, stage.name, stage.path, names, self.prefix, self.pattern]
        return blake2b(json.dumps(chosen).encode(), digest_size=16).hexdigest()

    def below(self, path: str) -> str:
        """A file's path below the choice's own, from that below the stage."""
        begin = StageReference.parse(self.stage).path
        return path.removeprefix(f"{begin}/") if begin else path

    def find(self, hook: StageAccount, known: Container[str] = ()) -> StagedFiles:
        """List the files, in the order of their names or in the one that they were given in.

        :param known: paths of files that may be missing
        :raises NothingStagedError: if another file that is named is not there
        :raises SqlError: if the stage cannot be listed
        """
        stage = StageReference.parse(self.stage, *hook.database_and_schema())
        listed = hook.list_files(self.stage, self.prefix or "", self.pattern)
        url = hook.stage_url(self.stage) if not listed or "://" in str(listed[0]["name"]) else None
        found: dict[str, StagedFile] = {}
        for row in listed:
            path, size = stage.relative(str(row["name"]), url), row.get("size")
            mark, since = str(row.get("md5") or row.get("last_modified") or ""), row.get("last_modified")
            found[path] = StagedFile(path, mark, None if size is None else int(size), staged_at(since))
        if self.files is None:
            return StagedFiles(dict(sorted(found.items())), stage, url)
        names = [stage.below(name) for name in file_names(self.files)]
        missing = [name for name in names if name not in found and name not in known]
        if missing:
            raise NothingStagedError(
                f"{len(missing):,} of {len(names):,} files are not in stage {self.stage!r}: "
                f"{first_few([repr(one) for one in missing])}; stage them first, under these very names"
            )
        return StagedFiles({name: found[name] for name in names if name in found}, stage, url)


# pragma: no mutate end

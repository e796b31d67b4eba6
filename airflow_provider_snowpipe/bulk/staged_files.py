"""Files in a stage: how they are named and chosen, and what Snowflake reports of the load of one."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from email.utils import parsedate_to_datetime
from typing import Any, Self

from airflow_provider_snowpipe.streaming.errors import ConfigurationError, NothingStagedError
from airflow_provider_snowpipe.streaming.names import full_name, quote_identifier

# pragma: no mutate start (stages are tested against the service)

PART = r'(?:"(?:[^"]|"")+"|[A-Za-z_][A-Za-z0-9_$]*)'
_NAME = r'("(?:[^"]|"")+"|%?[^".]+)'
_FULL_NAME = re.compile(rf"@?{_NAME}\.{_NAME}\.{_NAME}")
"""Of a stage, as a location in load history begins."""
_REFERENCE = re.compile(rf"@?(?P<owner>(?:{PART}\.){{0,2}})(?P<name>~|%?{PART})(?:/(?P<path>[^\0]*)|\s*)")


@dataclass(frozen=True, slots=True)
class StageReference:
    """A stage and a path in it.

    :param owner: what the reference itself names of database and schema, such as ``DB.S.``; may be empty
    :param name: the stage: ``STAGE``, ``%TABLE`` or ``~``
    :param path: the path below the stage, without ``/`` at its ends; may be empty
    """

    owner: str
    name: str
    path: str

    @classmethod
    def parse(cls, text: str, *place: str) -> StageReference:
        """Read ``@[[database.]schema.]stage[/path]``, ``@[…]%table[/path]`` or ``@~[/path]``.

        Blanks in a path are letters of it, at its end as well.

        :param text: the reference; the ``@`` may be left out
        :param place: database and schema of a stage that is not named with its own; none leaves them out
        :raises ConfigurationError: if it is not such a reference
        """
        found = _REFERENCE.fullmatch(text.lstrip()) if isinstance(text, str) else None
        if found is None:
            raise ConfigurationError(
                f"stage is {str(text)[:80]!r}: give @<stage>, @<database>.<schema>.<stage>, @%<table> or @~, "
                "with or without a path after a slash"
            )
        path, owner, name = (found["path"] or "").strip("/"), found["owner"] or "", found["name"]
        if place and name != "~" and len(re.findall(PART, owner)) < 2:
            database, schema = map(quote_identifier, place)
            owner = f"{database}.{owner or f'{schema}.'}"
        return cls(owner, name, path)

    def __str__(self) -> str:
        return f"@{self.owner}{self.name}" + (f"/{self.path}" if self.path else "")

    def below(self, name: str) -> str:
        """A file's path below the stage.

        :param name: the file's path below this reference's, or a URL, which stays as it is
        """
        return f"{self.path}/{name}" if self.path and "://" not in name else name

    def location(self, prefix: str = "") -> str:
        """What LIST takes to list the files whose path below this reference begins with a prefix."""
        path = f"{self.path}/{prefix}" if self.path else prefix
        return f"@{self.owner}{self.name}" + (f"/{path}" if path else "")

    def key(self, url: str | None = None) -> str:
        """The stage in one spelling, without a path, or where an external one points.

        :param url: what an external stage stands for
        """
        return url.rstrip("/") if url is not None else ".".join(spelled(self.owner + self.name))

    def relative(self, listed: str, url: str | None = None) -> str:
        """A file's path below the stage.

        :param listed: the name that LIST gives it: with the stage's, except for a table's and a user's own;
            below an external stage its URL
        :param url: what an external stage stands for; without it, a URL stays as it is
        """
        if "://" in listed:
            return listed.removeprefix(url).lstrip("/") if url else listed
        return listed if self.name[0] in "%~" else listed.partition("/")[2]


def spelled(name: str) -> tuple[str, ...]:
    """The parts of a name, each as Snowflake keeps it: in capitals unless it is quoted."""
    return tuple(
        mark + (one[1:-1].replace('""', '"') if one.startswith('"') else one.upper())
        for mark, one in re.findall(rf"(%?)({PART}|~)", name)
    )


def stage_prefix(stage: StageReference) -> str:
    """What LIST puts before the paths of a named stage."""
    name = stage.name.strip('"').lower()
    return f"{name}/"


def exact_pattern(files: StagedFiles, paths: Sequence[str], *, with_name: bool) -> str:
    """The regular expression that matches these files alone, in each form in which LIST shows a path.

    :param with_name: False where another path of the stage begins with the stage's name
    """
    begin = stage_prefix(files.stage) if files.url is None else f"{files.url.rstrip('/')}/"
    every = f"({'|'.join(map(re.escape, paths))})"
    return f"({re.escape(begin)})?{every}" if with_name else every


def staged_at(value: object) -> dt.datetime | None:
    """The time at which a file was staged, as LIST writes it: ``Sun, 22 Nov 2026 14:00:00 GMT``.

    :returns: None where it has no time
    """
    if isinstance(value, dt.datetime):
        return value
    try:
        found = parsedate_to_datetime(str(value or ""))
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file to copy.

    :param path: below the stage
    :param mark: distinguishes its content from an earlier one of that name, such as its checksum
    :param size: bytes, None where that is not known
    :param staged_at: since when it is there, None where that is not known
    """

    path: str
    mark: str = ""
    size: int | None = None
    staged_at: dt.datetime | None = None


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """Files of one stage.

    :param files: by their paths below the stage
    :param url: what an external stage stands for, None for an internal one
    """

    files: Mapping[str, StagedFile]
    stage: StageReference
    url: str | None = None

    def without(self, paths: Container[str]) -> StagedFiles:
        """The other files."""
        return replace(self, files={path: file for path, file in self.files.items() if path not in paths})


# pragma: no mutate end


# -- The load of one file: COPY, a pipe and load history report the same of it under different names -------


LOADED = "LOADED"
PARTIALLY_LOADED = "PARTIALLY_LOADED"
LOAD_FAILED = "LOAD_FAILED"
FINAL = frozenset({LOADED, PARTIALLY_LOADED, LOAD_FAILED})
"""What ends a load. A skipped file is one that another load has taken, which has its own entry."""
COPY_RESULT = {
    "path": "file",
    "status": "status",
    "rows_loaded": "rows_loaded",
    "rows_parsed": "rows_parsed",
    "errors_seen": "errors_seen",
    "message": "first_error",
    "line": "first_error_line",
    "character": "first_error_character",
    "column": "first_error_column_name",
}
"""Columns of what COPY INTO table answers, in lower case; it names a file as ``LIST`` does."""
COPY_HISTORY = {
    "path": "file_name",
    "location": "stage_location",
    "status": "status",
    "rows_loaded": "row_count",
    "rows_parsed": "row_parsed",
    "errors_seen": "error_count",
    "message": "first_error_message",
    "line": "first_error_line_number",
    "character": "first_error_character_pos",
    "column": "first_error_column_name",
    "loaded_at": "last_load_time",
}
"""Columns of ``COPY_HISTORY``, in lower case."""
PIPE_REPORT = {
    "path": "path",
    "location": "stageLocation",
    "status": "status",
    "rows_loaded": "rowsInserted",
    "rows_parsed": "rowsParsed",
    "errors_seen": "errorsSeen",
    "message": "firstError",
    "line": "firstErrorLineNum",
    "character": "firstErrorCharacterPos",
    "column": "firstErrorColumnName",
    "loaded_at": "lastInsertTime",
}
"""Keys of an entry of ``files`` in insertReport and loadHistoryScan (page "Snowpipe REST API")."""


@dataclass(frozen=True, slots=True)
class FirstError:
    """The first error in a file.

    :param line: line, counted from 1; None where the file as a whole could not be read
    :param column: the column, as ``"TABLE"["COLUMN":number]``
    """

    message: str
    line: int | None = None
    character: int | None = None
    column: str | None = None

    def __str__(self) -> str:
        named = (("line", self.line), ("character", self.character), ("column", self.column))
        where = ", ".join(f"{name} {value}" for name, value in named if value is not None)
        return " ".join(self.message.split()).rstrip(".") + (f" ({where})" if where else "")


@dataclass(frozen=True, slots=True)
class FileLoad:
    """One load of one file.

    :param path: the file, relative to the location that COPY or the pipe names
    :param location: that location: a stage with a path, or a URL
    :param status: ``LOADED``, ``PARTIALLY_LOADED``, ``LOAD_FAILED``, or another one that is not final
    :param rows_parsed: records in the file
    :param errors_seen: records in error
    :param loaded_at: when the load ended, None where that is not reported
    :param pipe: full name of the pipe that loaded it, None for COPY and where that is not reported
    """

    path: str
    location: str
    status: str
    rows_loaded: int = 0
    rows_parsed: int = 0
    errors_seen: int = 0
    first_error: FirstError | None = None
    loaded_at: dt.datetime | None = None
    pipe: str | None = None

    @classmethod
    def read(cls, row: Mapping[str, Any], names: Mapping[str, str]) -> Self:
        """Read what Snowflake reports of a load.

        :param row: values by their names there
        :param names: these names: :data:`COPY_RESULT`, :data:`COPY_HISTORY` or :data:`PIPE_REPORT`
        """
        given = {key: row.get(name) for key, name in names.items()}
        # "Partially loaded" of COPY_HISTORY is PARTIALLY_LOADED of the reports.
        status = str(given["status"] or "").strip().upper().replace(" ", "_")
        pipe = [row.get(f"pipe_{part}") for part in ("catalog_name", "schema_name", "name")]
        error = None
        if message := given["message"] or row.get("systemError"):
            line, character, column = given["line"], given["character"], given["column"]
            error = FirstError(
                str(message),
                None if line is None else int(str(line)),
                None if character is None else int(str(character)),
                None if column is None else str(column),
            )
        time = given.get("loaded_at")
        if isinstance(time, str) and time:
            time = dt.datetime.fromisoformat(time)
        loaded_at = time if isinstance(time, dt.datetime) else None
        if loaded_at is not None and loaded_at.tzinfo is None:
            loaded_at = loaded_at.replace(tzinfo=dt.UTC)
        return cls(
            path=str(row[names["path"]]),
            location=str(given.get("location") or ""),
            status=status if row.get("complete", True) else "LOAD_IN_PROGRESS",
            rows_loaded=int(str(given["rows_loaded"] or 0)),
            rows_parsed=int(str(given["rows_parsed"] or 0)),
            errors_seen=int(str(given["errors_seen"] or 0)),
            first_error=error,
            loaded_at=loaded_at,
            pipe=".".join(str(name) for name in pipe if name) if pipe[-1] else None,
        )

    @classmethod
    def from_result(cls, path: str, result: Mapping[str, Any]) -> Self:
        """Read what :meth:`result` returned for a load."""
        error = result["first_error"]
        return cls(
            path,
            "",
            result["status"],
            result["rows_loaded"],
            result["rows_parsed"],
            result["errors_seen"],
            None if error is None else FirstError(**error),
        )

    def result(self) -> dict[str, Any]:
        """The load as JSON, for a task's value."""
        counted = {name: getattr(self, name) for name in ("rows_loaded", "rows_parsed", "errors_seen")}
        error = None if self.first_error is None else asdict(self.first_error)
        return {"status": self.status, **counted, "first_error": error}


# -- Which files are meant, and which of them a load is of --------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExpectedFiles:
    """Files by name, or a number of files by the start of their paths. Paths are those below the stage's own.

    Without names and prefix there is nothing to wait for.

    :param prefix: instead of names, the start of the paths
    :param count: with it, how many different files there have to be
    :param stage: their stage, with or without a path; None counts files of every stage that have these paths
    :param url: what an external stage stands for, None for an internal one
    """

    names: tuple[str, ...] = ()
    prefix: str | None = None
    count: int = 0
    stage: StageReference | None = None
    url: str | None = None

    @property
    def total(self) -> int:
        """Number of files."""
        return self.count if self.prefix is not None else len(self.names)

    def of(self, loads: Iterable[FileLoad]) -> list[tuple[str, FileLoad]]:
        """The loads of these files, in their order, each with the name under which its file is waited for.

        A path is given relative to what COPY or the pipe names, which may be a path in the stage itself:
        ``a.csv`` of ``@S/in`` and ``in/a.csv`` of ``@S`` are one file. So what ends the location may come
        before the path. Where the location is that of a stage which is known here, all of it does.
        """
        known, prefix, found = frozenset(self.names), self.prefix, []
        for load in loads:
            if self.stage is not None and not is_of_stage(load, self.stage, self.url):
                continue
            path, folders = load.path.lstrip("/"), load.location.rstrip("/").split("/")
            if self.stage is not None and _FULL_NAME.fullmatch(folders[0]):
                folder = "".join(f"{name}/" for name in folders[1:])
                # Some history may have the whole path beside the location.
                whole = (folder + path, path) if path.startswith(folder) else (folder + path,)
                begin = f"{self.stage.path}/" if self.stage.path else ""
                names = [one.removeprefix(begin) for one in whole if one.startswith(begin)]
            else:
                ends = ("/".join(folders[start:]) for start in reversed(range(len(folders))))
                names = [load.path, *(f"{end}/{path}" for end in ends if end)]
            if prefix is None:
                meant = [name for name in names if name in known]
            else:
                meant = [name for name in names if name.startswith(prefix) and not name.endswith("/")]
            found += [(name, load) for name in meant[:1]]
        return found


def is_of_stage(load: FileLoad, stage: StageReference, url: str | None = None) -> bool:
    """False for a load whose location shows another stage; one that does not name its stage counts.

    Files of two stages may have the same paths, and one table takes both.

    :param stage: the stage; its database and schema are compared where it names both
    :param url: what an external stage stands for, None for an internal one
    """
    if "://" in load.location:
        if url is None:
            return False
        # Which of the folders between stage and file a location has is not the same everywhere.
        one, other = (f"{address.rstrip('/')}/" for address in (load.location, url))
        return one.startswith(other) or other.startswith(one)
    named = _FULL_NAME.fullmatch(load.location.partition("/")[0])
    if named is None:
        return True
    own = [*re.findall(PART, stage.owner), stage.name]
    own = own[-1:] if len(own) < 3 else own
    for shown, name in zip(named.groups()[-len(own) :], own, strict=True):
        # A location may leave quotes out, and a name without them is kept in capitals.
        exact, kept = (re.sub('"("?)', r"\1", one) for one in (shown, name))
        if '"' not in name:
            exact, kept = exact if '"' in shown else exact.upper(), kept.upper()
        if exact != kept:
            return False
    return True


def file_names(files: Any, *, may_be_none: bool = False) -> list[str]:
    """Take names of files: a list of texts, or its JSON text as a template renders it.

    :param files: the list; that of a mapped task has a list of each instance
    :param may_be_none: True takes an empty list; an XCom that no instance of a mapped task has is none
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
    given = list(files)
    every = (name for one in given for name in (one if isinstance(one, list | tuple) else [one]))
    names = list(dict.fromkeys(every))
    for name in names:
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"files has the entry {name!r}: give paths below the stage, as text")
    if not names and not (may_be_none and (given or isinstance(files, list | tuple | set))):
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
        """Describe these files.

        :param list_stage: lists the files of a stage with a prefix: their paths below the stage
        :raises NothingStagedError: if the stage has none with the prefix
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

    :raises ConfigurationError: if it is something else, or below 1
    """
    try:
        found = int(str(count))
    except ValueError:
        found = 0
    if found < 1:
        raise ConfigurationError(f"count is {count!r}: give a number of files, 1 or more")
    return found


# -- Load history by SQL: the table function COPY_HISTORY, which knows loads by COPY and pipes for 14 days --

HISTORY_COLUMNS = (
    "FILE_NAME, STAGE_LOCATION, LAST_LOAD_TIME, ROW_COUNT, ROW_PARSED, FILE_SIZE, ERROR_COUNT, STATUS, "
    "FIRST_ERROR_MESSAGE, FIRST_ERROR_LINE_NUMBER, FIRST_ERROR_CHARACTER_POS, FIRST_ERROR_COLUMN_NAME, "
    "PIPE_CATALOG_NAME, PIPE_SCHEMA_NAME, PIPE_NAME"
)
MOST_NAMES = 5_000
"""Names that a statement lists; for more, it asks for every file since then."""


# pragma: no mutate start (SQL is tested against the service)


def copy_history(
    table: tuple[str, str, str],
    since: dt.datetime,
    pipe: tuple[str, str, str] | None = None,
    paths: Sequence[str] | None = None,
) -> tuple[str, list[str]]:
    """The statement that asks for loads, and the values that it binds (page "COPY_HISTORY").

    The function is that of the information schema, without the 10,000 rows at which ``LOAD_HISTORY`` ends.

    :param since: the first timestamp, at most 14 days ago
    :param pipe: database, schema and name of a pipe, None for all loads
    :param paths: only files with these paths or with ends of them, None for all; for very many of them, the
        statement asks for all as well
    """
    arguments = "TABLE_NAME => %s, START_TIME => %s::TIMESTAMP_LTZ"
    values = [full_name(*table), since.isoformat(timespec="milliseconds")]
    if pipe is not None:
        arguments += ", PIPE_NAME => %s"
        values.append(full_name(*pipe))
    condition = ""
    known = None if paths is None else possible_paths(paths)
    if known is not None and len(known) <= MOST_NAMES:
        condition = f" WHERE FILE_NAME IN ({', '.join(['%s'] * len(known))})"
        values += sorted(known)
    return (
        f"SELECT {HISTORY_COLUMNS} FROM TABLE({quote_identifier(table[0])}.INFORMATION_SCHEMA.COPY_HISTORY("  # noqa: S608
        f"{arguments})){condition} ORDER BY LAST_LOAD_TIME",
        values,
    )


# pragma: no mutate end

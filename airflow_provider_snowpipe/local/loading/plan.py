"""A COPY INTO statement, ready to run: what is read, what is filled, and what happens with errors."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.errors import object_missing
from airflow_provider_snowpipe.local.loading.selection import Selection
from airflow_provider_snowpipe.local.stages.files import StagedFile
from airflow_provider_snowpipe.local.stages.formats import FileFormat
from airflow_provider_snowpipe.local.stages.location import StageLocation
from airflow_provider_snowpipe.local.tables import Table

CONTINUE, SKIP_FILE, ABORT_STATEMENT = "CONTINUE", "SKIP_FILE", "ABORT_STATEMENT"


@dataclass(frozen=True, slots=True)
class OnError:
    """ON_ERROR of a COPY statement.

    :param action: CONTINUE, SKIP_FILE or ABORT_STATEMENT.
    :param count: errors at which SKIP_FILE gives a file up.
    :param percent: the same, as a share of the file's records; None when a number is meant.
    """

    action: str = ABORT_STATEMENT
    count: int = 1
    percent: float | None = None

    def limit(self, parsed: int) -> int:
        """Return the number of errors at which a file with so many records is given up."""
        if self.action == CONTINUE:
            return parsed
        if self.percent is not None:
            return int(parsed * self.percent / 100) + 1
        return self.count

    def gives_up(self, parsed: int, errors: int) -> bool:
        """Return True when no row of a file is to be loaded."""
        return self.action != CONTINUE and errors >= self.limit(parsed)


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """One COPY INTO table.

    :param database: where the table is.
    :param table: the table.
    :param location: where the files are.
    :param file_format: how they are written.
    :param selection: which values fill which columns.
    :param on_error: what happens with records in error.
    :param files: FILES, relative to the location; None for all.
    :param pattern: PATTERN, or None.
    :param size_limit: bytes after which no further file is begun; None for no limit.
    :param purge: files are removed when they were loaded.
    :param failed_only: the result shows files with errors only.
    :param truncate: text that is too long is cut.
    :param force: files are loaded whether or not they were loaded before.
    :param load_uncertain: files too old for the history are loaded.
    """

    database: Database
    table: Table
    location: StageLocation
    file_format: FileFormat
    selection: Selection
    on_error: OnError = OnError()
    files: tuple[str, ...] | None = None
    pattern: str | None = None
    size_limit: int | None = None
    purge: bool = False
    failed_only: bool = False
    truncate: bool = False
    force: bool = False
    load_uncertain: bool = False

    def check_names(self) -> None:
        """Raise when the table was dropped or got another name since the statement was compiled.

        :raises SqlError: 002003.
        """
        if self.database.tables.find(self.table.schema, self.table.name) is None:
            raise object_missing("Table", str(self.table))

    def file_key(self, file: StagedFile) -> str:
        """Return what the load history recognises a file by: its place and its path."""
        return self.place + file.path

    @property
    def place(self) -> str:
        """The bucket or folder of an external location; the identity of an internal stage."""
        location = self.location
        if location.is_external:
            return location.base
        root = getattr(location.area, "root", None)
        return f"{root.name if root is not None else location.name}/"

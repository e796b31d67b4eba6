"""What Snowflake says of one file that was loaded, or was to be."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

LOADED = "LOADED"
PARTIALLY_LOADED = "PARTIALLY_LOADED"
LOAD_FAILED = "LOAD_FAILED"
FINAL = frozenset({LOADED, PARTIALLY_LOADED, LOAD_FAILED})
"""What ends a load. A skipped file is one that another load has taken, which has its own entry."""


@dataclass(frozen=True, slots=True)
class FirstError:
    """The first error in a file.

    :param message: Snowflake's own words
    :param line: line, counted from 1; None where the file as a whole could not be read
    :param character: character in the line
    :param column: the column, as ``"TABLE"["COLUMN":number]``
    """

    message: str
    line: int | None = None
    character: int | None = None
    column: str | None = None

    def __str__(self) -> str:
        named = (("line", self.line), ("character", self.character), ("column", self.column))
        where = ", ".join(f"{name} {value}" for name, value in named if value is not None)
        return " ".join(self.message.split()) + (f" ({where})" if where else "")


@dataclass(frozen=True, slots=True)
class FileLoad:
    """One load of one file.

    :param path: the file, relative to the location that COPY or the pipe names
    :param location: that location: a stage with a path, or a URL
    :param status: ``LOADED``, ``PARTIALLY_LOADED``, ``LOAD_FAILED``, or another one that is not final
    :param rows_loaded: rows in the table
    :param rows_parsed: records in the file
    :param errors_seen: records in error
    :param first_error: the first of them
    :param loaded_at: when the load ended, None where that is not said
    :param pipe: full name of the pipe that loaded it, None for COPY and where that is not said
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
    def from_report(cls, entry: Mapping[str, Any]) -> Self:
        """Read an entry of ``files`` in insertReport or loadHistoryScan (page "Snowpipe REST API").

        :param entry: the entry
        """
        status = _status(entry.get("status"))
        return cls(
            path=str(entry["path"]),
            location=str(entry.get("stageLocation") or ""),
            status=status if entry.get("complete", True) else "LOAD_IN_PROGRESS",
            rows_loaded=_number(entry.get("rowsInserted")),
            rows_parsed=_number(entry.get("rowsParsed")),
            errors_seen=_number(entry.get("errorsSeen")),
            first_error=_first_error(
                entry.get("firstError") or entry.get("systemError"),
                entry.get("firstErrorLineNum"),
                entry.get("firstErrorCharacterPos"),
                entry.get("firstErrorColumnName"),
            ),
            loaded_at=_time(entry.get("lastInsertTime")),
        )

    @classmethod
    def from_copy_history(cls, row: Mapping[str, Any]) -> Self:
        """Read a row of ``COPY_HISTORY``, whose keys are the columns' names in lower case.

        :param row: the row
        """
        pipe = [row.get(f"pipe_{part}") for part in ("catalog_name", "schema_name", "name")]
        return cls(
            path=str(row["file_name"]),
            location=str(row.get("stage_location") or ""),
            status=_status(row.get("status")),
            rows_loaded=_number(row.get("row_count")),
            rows_parsed=_number(row.get("row_parsed")),
            errors_seen=_number(row.get("error_count")),
            first_error=_first_error(
                row.get("first_error_message"),
                row.get("first_error_line_number"),
                row.get("first_error_character_pos"),
                row.get("first_error_column_name"),
            ),
            loaded_at=_time(row.get("last_load_time")),
            pipe=".".join(str(name) for name in pipe if name) if pipe[-1] else None,
        )

    @classmethod
    def from_copy_result(cls, row: Mapping[str, Any]) -> Self:
        """Read a row of what COPY INTO table answers, whose keys are the columns' names in lower case.

        :param row: the row; its file is named as ``LIST`` names it
        """
        return cls(
            path=str(row["file"]),
            location="",
            status=_status(row.get("status")),
            rows_loaded=_number(row.get("rows_loaded")),
            rows_parsed=_number(row.get("rows_parsed")),
            errors_seen=_number(row.get("errors_seen")),
            first_error=_first_error(
                row.get("first_error"),
                row.get("first_error_line"),
                row.get("first_error_character"),
                row.get("first_error_column_name"),
            ),
        )

    @classmethod
    def from_result(cls, path: str, result: Mapping[str, Any]) -> Self:
        """Read what :meth:`result` said of a load.

        :param path: the file
        :param result: the JSON
        """
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

    @property
    def is_final(self) -> bool:
        """True when this load has ended, well or not."""
        return self.status in FINAL

    def result(self) -> dict[str, Any]:
        """The load as JSON, for a task's value."""
        error = self.first_error
        return {
            "status": self.status,
            "rows_loaded": self.rows_loaded,
            "rows_parsed": self.rows_parsed,
            "errors_seen": self.errors_seen,
            "first_error": None
            if error is None
            else {
                "message": error.message,
                "line": error.line,
                "character": error.character,
                "column": error.column,
            },
        }


def _status(text: object) -> str:
    """``Partially loaded`` of COPY_HISTORY is ``PARTIALLY_LOADED`` of the reports."""
    return str(text or "").strip().upper().replace(" ", "_")


def _number(value: object) -> int:
    return 0 if value is None else int(str(value))


def _first_error(message: object, line: object, character: object, column: object) -> FirstError | None:
    if not message:
        return None
    return FirstError(
        str(message),
        None if line is None else _number(line),
        None if character is None else _number(character),
        None if column is None else str(column),
    )


def _time(value: object) -> dt.datetime | None:
    if isinstance(value, str) and value:
        value = dt.datetime.fromisoformat(value)
    if not isinstance(value, dt.datetime):
        return None
    return value if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)

"""What the job that writes files is to do, and what it has done, as JSON files without a secret in them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from airflow_provider_snowpipe.bulk.compaction import TARGET_FILE_BYTES, check_target
from airflow_provider_snowpipe.bulk.run_manifest import WrittenFile, WrittenFiles
from airflow_provider_snowpipe.spark.sources.tables.spec import check_one_input, check_options
from airflow_provider_snowpipe.spark.submit.checked_values import checked_values
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.table_schema import TableColumn

WRITE_PLAN_VERSION = 1
Form = Literal["parquet", "orc", "avro"]


@dataclass(frozen=True, slots=True)
class RowsToWrite:
    """Rows of whatever Spark reads.

    :param table: a table of Spark's catalog, ``[catalog.][schema.]table``
    :param query: a SQL query of Spark instead
    :param path: files or a table directory instead, in any format that Spark reads
    :param paths: these files instead
    :param format: for paths, Spark's name of the format
    :param options: for paths, options of Spark's reader; never a secret
    """

    table: str | None = None
    query: str | None = None
    path: str | None = None
    paths: tuple[str, ...] = ()
    format: str = "parquet"
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_one_input(self, ("table", "query", "path", "paths"))
        check_options(self.options)

    @classmethod
    def from_mapping(cls, values: Any) -> Self:
        """Build it from a JSON object.

        :param values: the object
        :raises ConfigurationError: naming the key and the value that are wrong
        """
        return cls(**checked_values(cls, values, "source", skip_types=frozenset({"options"})))

    @property
    def address(self) -> str:
        """The table, the path, or the first words of the query."""
        paths = f"{len(self.paths):,} files" if self.paths else ""
        return self.table or self.path or paths or f"query {' '.join((self.query or '').split())[:60]!r}"


@dataclass(frozen=True, slots=True)
class LinesToCombine:
    """Files of lines, which are combined and cut without a look at what the lines hold.

    :param paths: the files, in the order in which their lines go on
    :param ending: what the new files' names end with, before ``.gz``, such as ``.ndjson``
    :param header: True where each file begins with the same line that names columns
    :param splits: True where a file may be cut between two lines
    """

    paths: tuple[str, ...]
    ending: str
    header: bool = False
    splits: bool = False

    @property
    def address(self) -> str:
        """How many files."""
        return f"{len(self.paths):,} files of lines"


@dataclass(frozen=True, slots=True)
class WritePlan:
    """What one run of the job is to write; either rows or lines.

    :param application: the Spark application's name
    :param folder: the URL of a new folder that all executors reach
    :param attempt: what tells this writing from every other one: the start of the files' names
    :param report_path: where the report goes, on the driver's machine
    :param rows: rows to write
    :param form: their files' format
    :param columns: the columns of the table that the rows are for; none leaves the rows as they are
    :param lines: lines to combine instead
    :param target_file_bytes: bytes of a file
    """

    application: str
    folder: str
    attempt: str
    report_path: str
    rows: RowsToWrite | None = None
    form: Form = "parquet"
    columns: tuple[TableColumn, ...] = ()
    lines: LinesToCombine | None = None
    target_file_bytes: int = TARGET_FILE_BYTES

    def __post_init__(self) -> None:
        for key in ("application", "folder", "attempt", "report_path"):
            if not getattr(self, key):
                raise ConfigurationError(f"plan {key} is empty: give it a value")
        if (self.rows is None) == (self.lines is None):
            raise ConfigurationError("plan has rows and lines, or neither: give one of the two")
        check_target(self.target_file_bytes)

    @property
    def address(self) -> str:
        """What is written, for people."""
        work = self.rows or self.lines
        return "" if work is None else work.address

    def to_json(self) -> str:
        """The plan as JSON text."""
        return json.dumps({"write_plan_version": WRITE_PLAN_VERSION, **asdict(self)}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a plan.

        :param text: its text
        :raises ConfigurationError: naming the key and the value that are wrong
        """
        try:
            data: Any = json.loads(text)
        except ValueError as error:
            raise ConfigurationError(f"the plan is not JSON ({error})") from None
        version = data.pop("write_plan_version", None) if isinstance(data, dict) else None
        if version != WRITE_PLAN_VERSION:
            raise ConfigurationError(
                f"write_plan_version is {version!r}, this job reads {WRITE_PLAN_VERSION}: install one "
                "version of airflow-provider-snowpipe where Airflow and where Spark run"
            )
        nested = frozenset({"rows", "lines", "columns"})
        values = checked_values(cls, data, "plan", skip_types=nested)
        if values.get("rows") is not None:
            values["rows"] = RowsToWrite.from_mapping(values["rows"])
        if values.get("lines") is not None:
            values["lines"] = LinesToCombine(**checked_values(LinesToCombine, values["lines"], "plan lines"))
        values["columns"] = tuple(
            TableColumn(**checked_values(TableColumn, one, "plan columns"))
            for one in values.get("columns") or ()
        )
        return cls(**values)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Read a plan's file.

        :param path: the file
        :raises ConfigurationError: if it cannot be read or is not a plan
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"plan {os.fspath(path)!r} cannot be read ({error}): give the path of a plan file"
            ) from None
        return cls.from_json(text)


@dataclass(frozen=True, slots=True)
class WriteReport(WrittenFiles):
    """What a run of the job has written.

    :param application: the Spark application's name
    :param folder: the URL of the folder
    :param attempt: as in the plan
    :param files: the files that have a row
    :param columns: the columns that the rows have, by the table's names; none where the plan has none
    :param json_columns: those that hold JSON as text, since the table's column is semi-structured
    :param seconds: elapsed time
    :param error: None for a successful run, else the text of the error that ended it
    :param error_type: the error's class name
    """

    application: str
    folder: str
    attempt: str
    files: tuple[WrittenFile, ...] = ()
    columns: tuple[str, ...] = ()
    json_columns: tuple[str, ...] = ()
    seconds: float = 0.0
    error: str | None = None
    error_type: str | None = None

    def to_json(self) -> str:
        """The report as JSON text."""
        return json.dumps({"write_report_version": WRITE_PLAN_VERSION, **asdict(self)}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a report.

        :param text: what the driver has left
        :raises ConfigurationError: if it is not a report
        """
        try:
            data: Any = json.loads(text)
        except ValueError as error:
            raise ConfigurationError(f"the driver's report holds no JSON ({error})") from None
        if not isinstance(data, dict) or data.pop("write_report_version", None) != WRITE_PLAN_VERSION:
            raise ConfigurationError(
                "the driver's report is of another version: install one version of "
                "airflow-provider-snowpipe where Airflow and where Spark run"
            )
        values = checked_values(cls, data, "the report", skip_types=frozenset({"files"}))
        files = (WrittenFile(**checked_values(WrittenFile, one, "a file")) for one in values["files"])
        return cls(**{**values, "files": tuple(files)})

"""The plans of the two jobs: all that each needs to know, as JSON without a secret in it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from airflow_provider_snowpipe.bulk.run_files import (
    TARGET_FILE_BYTES,
    WrittenFile,
    WrittenFiles,
    check_target,
)
from airflow_provider_snowpipe.spark.driver.credentials import check_driver_credentials
from airflow_provider_snowpipe.spark.driver.report import UnreadableReportError, is_url, versioned_object
from airflow_provider_snowpipe.spark.source import OnDataLoss, SourceSpec
from airflow_provider_snowpipe.spark.sources.registry import source_spec
from airflow_provider_snowpipe.spark.sources.tables.spec import check_one_input, check_reader_options
from airflow_provider_snowpipe.spark.task.sink import SinkSettings
from airflow_provider_snowpipe.streaming.arguments import OnUnknown
from airflow_provider_snowpipe.streaming.checked_values import (
    OnError,
    RowRules,
    checked_values,
    dead_letter_topic,
    refuse_secret,
)
from airflow_provider_snowpipe.streaming.checkpoint import OnImbalance, Rebind, run_mark
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.names import PipeName
from airflow_provider_snowpipe.streaming.table_schema import TableColumn

PLAN_VERSION = 2
LOCAL_MASTER = re.compile(r"local(\[(?P<threads>\d+|\*)(\s*,\s*(?P<attempts>\d+))?\])?")
"""A master whose driver is the only process that runs tasks: ``local``, ``local[*]``."""


@dataclass(frozen=True, slots=True)
class JobPlan:
    """What one run of the job is to do.

    :param application: the Spark application's name
    :param account_url: the account's address, ``https://<host>[:<port>]``
    :param pipe: the pipe to load through
    :param channel_prefix: first part of each channel's name, stable over runs
    :param source_name: second part of each channel's name, stable over runs; a plan's JSON may leave it out,
        for the source's own name
    :param source: what to read
    :param report_path: where the run report goes: an absolute path of the driver's machine or the URL of a
        file that Spark's Hadoop reaches; empty for none, the log has the same
    :param credentials_path: the credentials file, removed by the driver as soon as it is read; or
    :param credentials_variable: the environment variable of the driver that holds what would be in the file;
        or
    :param credentials_from: ``file:/path`` of such a file on the driver's machine, which stays there, or
        ``python:module:function`` of a function there that returns what would be in it
    :param ca_bundle: PEM file of trusted roots, None for the environment's or the public ones
    :param on_error: ``abort``: the run fails if the service skips a row; ``continue``: it reports them;
        ``dead_letter``: rows that do not fit ``columns`` are put aside before the others are sent, and the
        run fails if the service skips one of those
    :param check_rows: with ``abort``, True fails the run before a row is sent that does not fit ``columns``
    :param dead_letter_path: where such rows go: a directory or a URL that all executors reach, or
        ``kafka:<topic>`` for a topic of a Kafka source's cluster
    :param columns: the table's columns, for the checks
    :param unknown_columns: what becomes of keys that match none of ``columns``, where those are given:
        ``warn`` counts them, and refuses rows without a key that matches; ``fail`` refuses the first one;
        ``ignore`` does not check
    :param on_data_loss: ``fail``: the run fails if the committed position is not in the source any more;
        ``skip``: it goes on with what the source still has after that position
    :param wait_for_commit: False ends the run when the service has received the rows, committed or not
    :param commit_timeout: seconds to wait for a channel's commit
    :param limits: when a batch is closed and sent
    :param sdk_profile: path, on every machine with executors, of the profile file with which Snowflake's SDK
        carries the rows, in files where they are many; None for this package's own client
    :param run: the run, as checkpoints name it; empty takes the application's name
    :param rebind: what to do about a channel whose checkpoint is another source's: ``continue`` takes its
        position, ``restart`` begins at the source's first row, None fails
    :param on_imbalance: ``fail`` ends the run where a channel counts other rows than its checkpoint
    :param local_master: a local master whose tasks are threads of the driver; empty where Spark runs them
    :param last_checkpoints: channel and checkpoint that each source partition had last, as far as is known,
        by the digits of the checkpoint that stand for it; a channel without a token has lost it then. None
        leaves it to the source's own record
    :param source_logs: the logs by which COPY and pipes have loaded the source, each with its last entry, as
        far as is known
    :param table_created: with such a log, when the table was created, as the account writes it; empty for not
        known
    :param renew: channels that have been quiet for long; the run opens them, so that the service keeps them
    :param is_recorded: True where whoever submits the run records each channel without a token before it gets
        rows: where ``last_checkpoints`` lacks one, the run sends nothing and ends with those in its report
    """

    application: str
    account_url: str
    pipe: PipeName
    channel_prefix: str
    source_name: str
    source: SourceSpec
    report_path: str = ""
    credentials_path: str = ""
    credentials_variable: str = ""
    credentials_from: str = ""
    ca_bundle: str | None = None
    on_error: OnError = "abort"
    check_rows: bool = False
    dead_letter_path: str | None = None
    columns: tuple[TableColumn, ...] = ()
    unknown_columns: OnUnknown = "fail"
    on_data_loss: OnDataLoss = "fail"
    wait_for_commit: bool = True
    commit_timeout: float = 600.0
    limits: BatchLimits = field(default_factory=BatchLimits)
    sdk_profile: str | None = None
    run: str = ""
    rebind: Rebind | None = None
    on_imbalance: OnImbalance = "warn"
    local_master: str = ""
    last_checkpoints: Mapping[str, tuple[str, str]] | None = None
    source_logs: Mapping[str, int] = field(default_factory=dict)
    table_created: str = ""
    renew: tuple[str, ...] = ()
    is_recorded: bool = False

    def __post_init__(self) -> None:
        for key in ("application", "account_url", "channel_prefix", "source_name"):
            if not getattr(self, key):
                raise ConfigurationError(f"plan {key} is empty: give it a value")
        paths = ["credentials_path", "sdk_profile", *([] if is_url(self.report_path) else ["report_path"])]
        for key in paths:
            if getattr(self, key) and not os.path.isabs(getattr(self, key)):
                raise ConfigurationError(
                    f"plan {key} is {getattr(self, key)!r}: give an absolute path, Spark's working "
                    f"directory differs"
                )
        given = (self.credentials_path, self.credentials_variable, self.credentials_from)
        if sum(map(bool, given)) != 1:
            raise ConfigurationError(
                f"plan credentials_path is {given[0]!r}, credentials_variable {given[1]!r} and "
                f"credentials_from {given[2]!r}: give one of them"
            )
        if self.credentials_from:
            check_driver_credentials("plan credentials_from", self.credentials_from)
        if not self.commit_timeout > 0:
            raise ConfigurationError(f"plan commit_timeout is {self.commit_timeout}: give seconds above 0")
        self.channel("0")
        self._check_source()
        self.row_rules()
        topic = dead_letter_topic(self.dead_letter_path)
        if topic is not None:
            self.source.check_dead_letter_topic(topic)

    def _check_source(self) -> None:
        conn_id = getattr(self.source, "conn_id", None)
        if conn_id is not None:
            raise ConfigurationError(
                f"plan source conn_id is {conn_id!r}: the job has no Airflow connections; give what the "
                "connection sets, and its secrets in the credentials file"
            )
        form = getattr(self.source, "binary", "BASE64")
        bytes_column = next((one.name for one in self.columns if one.column_type.kind == "BINARY"), None)
        if form != "BASE64" and bytes_column is not None and self.pipe.default_table is not None:
            raise ConfigurationError(
                f"source binary is {form!r}, and a table's default pipe reads column {bytes_column!r} as "
                "BASE64: leave binary out, or name the pipe that has this BINARY_INPUT_FORMAT"
            )

    @property
    def offset_format(self) -> str:
        """Format of the offset tokens, the source's."""
        return self.source.offset_format

    def channel(self, partition: str) -> str:
        """Name the channel of a partition of the source."""
        return self.source.channel(self.channel_prefix, self.source_name, partition)

    @property
    def run_mark(self) -> str:
        """The run as checkpoints name it."""
        return self.run or run_mark(self.application)

    def row_rules(self) -> RowRules | None:
        """How rows are checked before they are sent, None if they are not."""
        return RowRules.of(
            self.on_error,
            self.check_rows,
            self.dead_letter_path,
            self.columns,
            self.application,
            str(self.pipe),
        )

    def sink_settings(self) -> SinkSettings:
        """The part of the plan that travels to the executors."""
        return SinkSettings(
            account_url=self.account_url,
            ca_bundle=self.ca_bundle,
            pipe=self.pipe,
            wait_for_commit=self.wait_for_commit,
            commit_timeout=self.commit_timeout,
            limits=self.limits,
            row_rules=self.row_rules(),
            sdk_profile=self.sdk_profile,
            skips_undecoded=self.on_error == "continue",
            columns=self.columns,
            unknown_columns=self.unknown_columns,
            run=self.run_mark,
            rebind=self.rebind,
            has_bare_tokens=self.source.has_bare_tokens,
            on_imbalance=self.on_imbalance,
        )

    def to_json(self) -> str:
        """The plan as JSON text."""
        values = {**asdict(self), "source": self.source.as_json()}
        return json.dumps({"plan_version": PLAN_VERSION, **values}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a plan."""
        data = versioned_object(text, "the plan", "plan_version", PLAN_VERSION)
        nested: dict[str, Any] = {"pipe": PipeName, "limits": BatchLimits}
        skipped = frozenset(nested) | {"source", "columns", "last_checkpoints", "source_logs", "renew"}
        if data.get("source_name") is None:
            skipped |= {"source_name"}
        values = checked_values(cls, {"source_name": None, **data}, "plan", skip_types=skipped)
        values["source"] = source_spec(values["source"])
        if values["source_name"] is None:
            values["source_name"] = values["source"].default_name
        columns = values.get("columns", [])
        if not isinstance(columns, list):
            raise ConfigurationError(f"plan columns is {columns!r}: give a list of the table's columns")
        values["columns"] = tuple(
            TableColumn(**checked_values(TableColumn, value, f"plan columns[{index}]"))
            for index, value in enumerate(columns)
        )
        known = values.get("last_checkpoints")
        values["last_checkpoints"] = known and {
            digits: (str(name), str(token)) for digits, (name, token) in known.items()
        }
        values["renew"] = tuple(map(str, values.get("renew", ())))
        for key, kind in nested.items():
            if key in values:
                values[key] = kind(**checked_values(kind, values[key], f"plan {key}"))
        return cls(**values)


def read_plan(path: str | os.PathLike[str]) -> JobPlan:
    """Read a plan's file, or a plan that is itself the argument where no file reaches the driver."""
    if isinstance(path, str) and path.lstrip().startswith("{"):
        return JobPlan.from_json(path)
    return JobPlan.from_json(_plan_text(path))


def _plan_text(path: str | os.PathLike[str]) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"plan {os.fspath(path)!r} cannot be read ({error.strerror}): give the path of a plan file"
        ) from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"plan {os.fspath(path)!r} is not UTF-8 text") from None


# -- The job that writes files for COPY ------------------------------------------------------------------

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
    :param options: for paths, options of Spark's reader that are known to hold no secret
    """

    table: str | None = None
    query: str | None = None
    path: str | None = None
    paths: tuple[str, ...] = ()
    format: str = "parquet"
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_one_input(self, ("table", "query", "path", "paths"))
        for name in ("table", "query", "path"):
            refuse_secret(f"source {name}", getattr(self, name) or "")
        for path in self.paths:
            refuse_secret("source path", path)
        check_reader_options(self.options, self.format)

    @classmethod
    def from_mapping(cls, values: Any) -> Self:
        """Build it from a JSON object."""
        return cls(**checked_values(cls, values, "source", skip_types=frozenset({"options"})))

    @property
    def address(self) -> str:
        """The table, the path, or the first words of the query."""
        paths = f"{len(self.paths):,} files" if self.paths else ""
        return self.table or self.path or paths or f"query {' '.join((self.query or '').split())[:60]!r}"


@dataclass(frozen=True, slots=True)
class LinesToCombine:
    """Files of lines, which are combined and cut without reading what the lines hold.

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

    :param folder: the URL of a new folder that all executors reach
    :param attempt: what distinguishes this writing from every other one: the start of the files' names
    :param columns: the columns of the table that the rows are for; none leaves the rows as they are
    :param lines: lines to combine instead
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
        """Read a plan."""
        data = versioned_object(text, "the plan", "write_plan_version", WRITE_PLAN_VERSION)
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
        """Read a plan's file."""
        return cls.from_json(_plan_text(path))


@dataclass(frozen=True, slots=True)
class WriteReport(WrittenFiles):
    """What a run of the job has written.

    :param columns: the columns that the rows have, by the table's names; none where the plan has none
    :param json_columns: those that hold JSON as text, since the table's column is semi-structured
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
        """Read a report."""
        data = versioned_object(
            text, "the driver's report", "write_report_version", WRITE_PLAN_VERSION, UnreadableReportError
        )
        values = checked_values(cls, data, "the report", skip_types=frozenset({"files"}))
        files = (WrittenFile(**checked_values(WrittenFile, one, "a file")) for one in values["files"])
        return cls(**{**values, "files": tuple(files)})

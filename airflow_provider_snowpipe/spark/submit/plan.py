"""The plan of a run: everything that the job needs to know, as a JSON file without a secret in it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from airflow_provider_snowpipe.spark.report import is_url
from airflow_provider_snowpipe.spark.sources.registry import source_spec
from airflow_provider_snowpipe.spark.sources.source import OnDataLoss, SourceSpec
from airflow_provider_snowpipe.spark.submit.checked_values import checked_values
from airflow_provider_snowpipe.spark.submit.row_rules import OnError, RowRules, dead_letter_topic
from airflow_provider_snowpipe.streaming.arguments import OnUnknown
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.names import PipeName
from airflow_provider_snowpipe.streaming.table_schema import TableColumn

PLAN_VERSION = 2


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
    :param credentials_variable: the environment variable of the driver that holds what would be in the file
    :param ca_bundle: PEM file of trusted roots, None for the environment's or the public ones
    :param on_error: ``abort``: the run fails if the service skips a row; ``continue``: it reports them;
        ``dead_letter``: rows that do not fit ``columns`` are put aside before the others are sent, and the
        run fails if the service skips one of those
    :param check_rows: with ``abort``, True fails the run before a row is sent that does not fit ``columns``
    :param dead_letter_path: where such rows go: a directory or a URL that all executors reach, or
        ``kafka:<topic>`` for a topic of a Kafka source's cluster
    :param columns: the table's columns, for the checks
    :param unknown_columns: what becomes of keys that match none of ``columns``, where those are given:
        ``warn`` counts them, and refuses rows of which no key matches; ``fail`` refuses the first one;
        ``ignore`` does not look
    :param on_data_loss: ``fail``: the run fails if the committed position is not in the source any more;
        ``skip``: it goes on with what the source still has after that position
    :param wait_for_commit: False ends the run when the service has received the rows, committed or not
    :param commit_timeout: seconds to wait for a channel's commit
    :param limits: when a batch is closed and sent
    :param sdk_profile: path, on every machine with executors, of the profile file with which Snowflake's SDK
        carries the rows, in files where they are many; None for this package's own client
    :param rejected_before: rows skipped before an earlier try of the same run began, by channel; what that
        try skipped counts as this one's, since nobody has reported it. Other channels count from now on
    :param rejected_since_ms: for a retry that knows of no such counts: a channel whose last skipped row is
        not older than this time, milliseconds since 1970, counts from one row earlier, and one that was made
        since then from none. None for a first try
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
    ca_bundle: str | None = None
    on_error: OnError = "abort"
    check_rows: bool = False
    dead_letter_path: str | None = None
    columns: tuple[TableColumn, ...] = ()
    unknown_columns: OnUnknown = "warn"
    on_data_loss: OnDataLoss = "fail"
    wait_for_commit: bool = True
    commit_timeout: float = 600.0
    limits: BatchLimits = field(default_factory=BatchLimits)
    sdk_profile: str | None = None
    rejected_before: Mapping[str, int] = field(default_factory=dict)
    rejected_since_ms: int | None = None

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
        if bool(self.credentials_path) == bool(self.credentials_variable):
            raise ConfigurationError(
                f"plan credentials_path is {self.credentials_path!r} and credentials_variable "
                f"{self.credentials_variable!r}: give one of the two"
            )
        if not self.commit_timeout > 0:
            raise ConfigurationError(f"plan commit_timeout is {self.commit_timeout}: give seconds above 0")
        self.channel("0")
        self._check_source()
        self.row_rules()
        topic = dead_letter_topic(self.dead_letter_path)
        if topic is not None:
            self.source.check_dead_letter_topic(topic)
        for channel, count in checked_counts(self.rejected_before).items():
            if count < 0:
                raise ConfigurationError(f"plan rejected_before of {channel!r} is {count}: give 0 or more")

    def _check_source(self) -> None:
        conn_id = getattr(self.source, "conn_id", None)
        if conn_id is not None:
            raise ConfigurationError(
                f"plan source conn_id is {conn_id!r}: the job has no Airflow connections; give what the "
                "connection says, and its secrets in the credentials file"
            )

    @property
    def offset_format(self) -> str:
        """Format of the offset tokens, the source's."""
        return self.source.offset_format

    def channel(self, partition: str) -> str:
        """Name the channel of a partition of the source."""
        return self.source.channel(self.channel_prefix, self.source_name, partition)

    def row_rules(self) -> RowRules | None:
        """How rows are checked before they are sent, None if they are not.

        :raises ConfigurationError: if the keys about it do not go together
        """
        return RowRules.of(
            self.on_error, self.check_rows, self.dead_letter_path, self.columns, self.application
        )

    def to_json(self) -> str:
        """The plan as JSON text."""
        values = asdict(self)
        values["source"].pop("conn_id", None)  # never set here, and drivers of earlier releases refuse it
        return json.dumps({"plan_version": PLAN_VERSION, **values}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a plan.

        :raises ConfigurationError: naming the key and the value that are wrong
        """
        try:
            data: Any = json.loads(text)
        except ValueError as error:
            raise ConfigurationError(f"the plan is not JSON ({error})") from None
        if not isinstance(data, dict):
            raise ConfigurationError(f"the plan is a JSON {type(data).__name__}: it must be an object")
        version = data.pop("plan_version", None)
        if version != PLAN_VERSION:
            raise ConfigurationError(
                f"plan_version is {version!r}, this job reads {PLAN_VERSION}: install one version of "
                "airflow-provider-snowpipe where Airflow and where Spark run"
            )
        nested: dict[str, Any] = {"pipe": PipeName, "limits": BatchLimits}
        skipped = frozenset(nested) | {"source", "rejected_before", "columns"}
        if data.get("source_name") is None:
            skipped |= {"source_name"}
        values = checked_values(cls, {"source_name": None, **data}, "plan", skip_types=skipped)
        values["source"] = source_spec(values["source"])
        if values["source_name"] is None:
            values["source_name"] = values["source"].default_name
        values["columns"] = _columns(values.get("columns", []))
        for key, kind in nested.items():
            if key in values:
                values[key] = kind(**checked_values(kind, values[key], f"plan {key}"))
        return cls(**values)


def read_plan(path: str | os.PathLike[str]) -> JobPlan:
    """Read a plan's file, or a plan that is itself the argument where no file reaches the driver.

    :param path: the file, or the plan's JSON object as text
    :raises ConfigurationError: if it cannot be read or is not a plan
    """
    if isinstance(path, str) and path.lstrip().startswith("{"):
        return JobPlan.from_json(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"plan {os.fspath(path)!r} cannot be read ({error.strerror}): give the path of a plan file"
        ) from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"plan {os.fspath(path)!r} is not UTF-8 text") from None
    return JobPlan.from_json(text)


def write_plan(plan: JobPlan, path: str | os.PathLike[str]) -> None:
    """Write a plan's file."""
    Path(path).write_text(plan.to_json(), encoding="utf-8")


def _columns(values: Any) -> tuple[TableColumn, ...]:
    if not isinstance(values, list):
        raise ConfigurationError(f"plan columns is {values!r}: give a list of the table's columns")
    return tuple(
        TableColumn(**checked_values(TableColumn, value, f"plan columns[{index}]"))
        for index, value in enumerate(values)
    )


def checked_counts(values: Any) -> Mapping[str, int]:
    """Check the plan's numbers of rows.

    :raises ConfigurationError: if it is no mapping of channels to numbers
    """
    if not isinstance(values, Mapping) or not all(
        isinstance(name, str) and isinstance(count, int) and not isinstance(count, bool)
        for name, count in values.items()
    ):
        raise ConfigurationError(f"plan rejected_before is {values!r}: give a number of rows by channel")
    return values

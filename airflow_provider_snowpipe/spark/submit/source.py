"""A run where it is submitted: its source with its connection, first rows, backlog, and what it has sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_snowpipe.routing.probes import DataShape, dataframe_shape
from airflow_provider_snowpipe.spark.driver.outcome import (
    refuse_missing_commits,
    refuse_rejected_rows,
    settle,
)
from airflow_provider_snowpipe.spark.driver.report import RunReport
from airflow_provider_snowpipe.spark.source import OnDataLoss, SourcePartition, SourceSecrets, SourceSpec
from airflow_provider_snowpipe.spark.sources.registry import (
    DEFAULT_KIND,
    open_source,
    source_spec,
    spec_class,
    spec_of_address,
)
from airflow_provider_snowpipe.streaming.checkpoint import Checkpoint, position_of, source_changed
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    OffsetTokenError,
    PipeNotFoundError,
    SourcePositionError,
)
from airflow_provider_snowpipe.streaming.lag import FileBacklog
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.table_schema import common_types

if TYPE_CHECKING:
    from airflow_provider_snowpipe.spark.driver.plan import JobPlan
    from airflow_provider_snowpipe.spark.driver.run import Run
    from airflow_provider_snowpipe.spark.sources.files.spec import FileSource
    from airflow_provider_snowpipe.streaming.client import SnowpipeClient
    from airflow_provider_snowpipe.streaming.names import PipeName
    from airflow_provider_snowpipe.streaming.progress import ChannelStatus


def connected_source(source: Any, get_connection: Callable[[str], Any]) -> tuple[SourceSpec, SourceSecrets]:
    """Build a source from its rendered dictionary, and complete it from the connection that it names."""
    if not isinstance(source, Mapping):
        return source_spec(source), SourceSecrets()
    conn_id, spec = source.get("conn_id"), spec_class(source)
    if not conn_id or not spec.takes_connection:
        return source_spec(source), SourceSecrets()
    values = {key: one for key, one in source.items() if key != "conn_id"}
    values, secrets = spec.with_connection(values, get_connection(conn_id))
    return source_spec(values), secrets


def file_source(values: Mapping[str, Any]) -> FileSource | None:
    """The source of files of this machine, None for a source of another kind or in an object store."""
    from airflow_provider_snowpipe.spark.sources.files.spec import FileSource

    if not isinstance(values, Mapping):
        raise ConfigurationError(
            f"source is {values!r}: give a source, such as FileSource(path=…), its mapping, a path, or @stage"
        )
    if values.get("kind", DEFAULT_KIND) != DEFAULT_KIND:
        return None
    spec = source_spec(values)
    return spec if isinstance(spec, FileSource) and not is_in_object_store(values) else None


def with_log_path(source: Any, log_path: str) -> Any:
    """Give a source of files that names no folder for its log that of Airflow's configuration, if any."""
    is_files = isinstance(source, Mapping) and source.get("kind", DEFAULT_KIND) == DEFAULT_KIND
    if not (is_files and log_path) or source.get("log_path"):
        return source
    return {**source, "log_path": log_path}


def is_in_object_store(source: Any) -> bool:
    """True for the dictionary of a source of files with a URL as its path."""
    from airflow_provider_snowpipe.spark.sources.files.storage import is_url

    is_files = isinstance(source, Mapping) and source.get("kind", DEFAULT_KIND) == DEFAULT_KIND
    return is_files and is_url(str(source.get("path", "")))


# -- The first rows of a source, read where the plan is made ---------------------------------------------

SAMPLE_ROWS = 1000
"""Rows from which columns are inferred, over all partitions with new ones."""
_MOST_PARTITIONS = 20


@dataclass(frozen=True, slots=True)
class FirstRows:
    """The first rows of a source.

    :param types: types of columns, by name, where the source's own schema has them
    :param is_begun: True where rows of the source are committed already
    """

    lines: list[bytes]
    types: Mapping[str, str]
    is_begun: bool = False


def first_rows(
    spec: SourceSpec,
    secrets: SourceSecrets | None = None,
    *,
    committed: Callable[[Sequence[str]], Mapping[str, str]] = lambda _: {},
    on_data_loss: OnDataLoss = "fail",
    target: str = "",
) -> FirstRows:
    """Read the first rows that a run would load of a source's first partitions with such rows, as NDJSON.

    A partition that the run refuses, or whose token it does not understand, is left to the run.

    :param committed: gives the committed offset tokens of partitions, by their names
    :param target: the account and the pipe; empty where all rows are to be loaded
    :return: no line where the source has no such row
    """
    # It brings PyArrow, for which no DAG file waits that only names an operator.
    from airflow_provider_snowpipe.streaming.ndjson import BlockLines

    source = open_source(spec, on_data_loss, secrets or SourceSecrets()).for_target(target, writes=False)
    partitions = source.partitions()
    if any(not isinstance(one, SourcePartition) for one in partitions):
        raise ConfigurationError(
            f"source {spec.address!r} is read by Spark alone, so that its columns are not known before "
            "the job starts: make the table first, and leave create_table and evolve_columns out"
        )
    tokens = committed([one.name for one in partitions])
    begun: list[tuple[SourcePartition[Any], Any]] = []
    for partition in partitions:
        if isinstance(partition, SourcePartition) and len(begun) < _MOST_PARTITIONS:
            with suppress(OffsetTokenError, SourcePositionError):
                token = tokens.get(partition.name)
                position = None if token is None else position_of(token, partition.offset_class)
                if (resume_at := partition.resume(position)) is not None:
                    begun.append((partition, resume_at))
    share = max(1, SAMPLE_ROWS // max(1, len(begun)))
    found: list[bytes] = []
    types: dict[str, str] = {}
    for partition, resume_at in begun:
        got = 0
        for part in partition.read(resume_at, BatchLimits(rows=share)):
            lines = BlockLines.of(part.body)
            taken = min(lines.rows, share - got)
            found += [lines.row(row) for row in range(taken)]
            types = common_types(types, part.types)
            got += taken
            if got == share:
                break
    return FirstRows(found, types, is_begun=bool(tokens))


# -- What a source holds beyond the committed tokens of its channels, as the shape of a load --------------

_SIZED = ("rows", "bytes")


def addressed_source(source: Any) -> Any:
    """The dictionary of a source that the author gives as an address, such as ``kafka://host:port/topic``."""
    spec = spec_of_address(source) if isinstance(source, str) else None
    return source if spec is None else spec.from_address(source)


def has_backlog(source: Any) -> bool:
    """True for the dictionary of a source that knows what it holds beyond the committed tokens."""
    return isinstance(source, Mapping) and "kind" in source and spec_class(source).backlog_shape is not None


@dataclass(frozen=True, slots=True)
class SourceBacklog:
    """The rows of a source that are not in a table yet.

    :param connect: completes the source, one with a ``backlog_shape``, with its connection
    :param statuses: of channels of the table's default pipe, which show how far partitions are; None counts
        from where the source begins
    :param channel_prefix: the first part of the channels' names
    :param may_lack_table: True where the stream makes the table
    """

    connect: Callable[[], tuple[SourceSpec, SourceSecrets]]
    statuses: Callable[[Sequence[str]], Mapping[str, ChannelStatus]] | None = None
    channel_prefix: str | None = None
    may_lack_table: bool = False

    def shape(self, known: Mapping[str, Any]) -> DataShape:
        """Ask the source for its ends, and the service for the tokens; nobody if the author gives all."""
        if known.get("bounded") is False or any(known.get(name) is not None for name in _SIZED):
            return DataShape.from_json(dict(known))
        spec, secrets = self.connect()
        shape: DataShape = resolve_name(str(spec.backlog_shape))(
            spec, secrets, self.channel_prefix, self._committed, known
        )
        return shape

    def _committed(self, channels: Sequence[str]) -> dict[str, str]:
        if self.statuses is None or not channels:
            return {}
        try:
            statuses = self.statuses(channels)
        except PipeNotFoundError:
            if not self.may_lack_table:
                raise
            return {}
        return {name: one.committed for name, one in statuses.items() if one.committed is not None}


def channel_backlogs(
    spec: SourceSpec, secrets: SourceSecrets, target: str, channels: str, committed: Mapping[str, str]
) -> dict[str, FileBacklog]:
    """List the files of a source that are not committed, by channel, whose names begin with ``channels``."""
    source = open_source(spec, "skip", secrets).for_target(target, writes=False)
    found = {}
    for one in source.partitions():
        channel, position = f"{channels}{one.name}", None
        if channel in committed:
            checkpoint = Checkpoint.parse(committed[channel], one.offset_class, channel=channel)
            if checkpoint.binding != one.binding.digest:
                raise source_changed(channel, checkpoint, one.binding)
            position = checkpoint.position
        found[channel] = FileBacklog.of(one.files_behind(position) or ())
    return found


# -- A load whose rows the service has received: what its task keeps of it, and what is committed of it ----


def run_of(plan: JobPlan, client: SnowpipeClient, secrets: SourceSecrets) -> Run:
    """Make a run in this process, by the driver's own code: it may have no rows, or few."""
    # It brings PyArrow, for which no DAG file waits.
    from airflow_provider_snowpipe.spark.driver.run import Run

    return Run(plan, client, secrets=secrets)


@dataclass(frozen=True, slots=True)
class SubmittedLoad:
    """A load whose rows the service has received; its report counts as committed what was settled."""

    report: RunReport
    offset_format: str

    def to_kept(self) -> dict[str, str]:
        """What Airflow keeps of it, in the task's state and with the deferral."""
        return {"report": self.report.to_json(), "offset_format": self.offset_format}

    @classmethod
    def of(cls, kept: Mapping[str, str]) -> Self:
        """Read what Airflow kept."""
        return cls(RunReport.from_json(kept["report"]), kept["offset_format"])

    @property
    def channels(self) -> list[str]:
        """The names of its channels."""
        return [channel.channel for channel in self.report.channels]

    @property
    def is_committed(self) -> bool:
        """True when every channel was seen at or past its target."""
        return all(channel.owes_nothing for channel in self.report.channels)

    def seen(self, now: Mapping[str, ChannelStatus]) -> Self:
        """Complete it with what is committed now, whatever that is."""
        channels = settle(self.report.channels, now, self.offset_format)
        return replace(self, report=replace(self.report, channels=channels))

    def settled(
        self, pipe: PipeName, now: Mapping[str, ChannelStatus], *, on_error: str, awaited: bool
    ) -> Self:
        """Hold what is committed now to the rules of a driver that waits itself.

        :param on_error: anything but ``continue`` refuses skipped rows
        :param awaited: True where everything must be committed by now
        """
        settled = self.seen(now)
        channels = settled.report.channels
        if awaited:
            refuse_missing_commits(pipe, channels, now)
        if settled.is_committed and on_error != "continue":
            refuse_rejected_rows(pipe, channels, now)
        return settled


# -- What Spark's optimiser knows of a DataFrame, as the shape of a load ------------------------------------

_ADAPTIVE_PLAN = "AdaptiveSparkPlanExec"
_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"


def shape_of_frame(frame: Any, **known: Any) -> DataShape:
    """Make the shape of a DataFrame from the statistics of its optimised plan; no job is run.

    :param frame: a DataFrame of a classic session
    :param known: what else is known of the data: other parameters of :class:`DataShape`
    """
    java = getattr(frame, "_jdf", None)
    if java is None:
        raise ConfigurationError(
            f"{type(frame).__module__}.{type(frame).__qualname__} has no statistics of its plan: take a "
            "DataFrame of a classic session, or give the shape's rows or bytes"
        )
    execution = java.queryExecution()
    statistics = execution.optimizedPlan().stats()
    counted = statistics.rowCount()
    rows = int(str(counted.get())) if counted.isDefined() else None
    plan = execution.executedPlan()
    if plan.getClass().getSimpleName() == _ADAPTIVE_PLAN:  # knows its partitions only after it has run
        partitions = int(frame.sparkSession.conf.get(_SHUFFLE_PARTITIONS))
    else:
        partitions = int(plan.execute().getNumPartitions())
    return dataframe_shape(int(str(statistics.sizeInBytes())), partitions, rows, **known)

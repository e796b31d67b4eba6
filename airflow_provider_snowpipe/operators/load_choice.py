"""Which path a load takes: what the plan says, unless what is loaded already leaves only one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_provider_snowpipe.operators.file_copy import why_not_copy
from airflow_provider_snowpipe.operators.load_outcome import expected_of
from airflow_provider_snowpipe.operators.load_planning import is_staged
from airflow_provider_snowpipe.operators.shape_source import ShapeSource
from airflow_provider_snowpipe.routing.boundary import PartitionPosition, share_of_copy
from airflow_provider_snowpipe.routing.data_shape import DataShape
from airflow_provider_snowpipe.routing.load_plan import LoadPath
from airflow_provider_snowpipe.routing.planner import plan_load
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, PartlyStreamedError

if TYPE_CHECKING:
    from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
    from airflow_provider_snowpipe.operators.file_boundary import FileBoundary
    from airflow_provider_snowpipe.operators.kafka_backlog import KafkaBacklog
    from airflow_provider_snowpipe.routing.load_plan import LoadPlan
    from airflow_provider_snowpipe.routing.load_policy import LoadPolicy
    from airflow_provider_snowpipe.spark.files.spec import FileSourceSpec


@dataclass(frozen=True)
class LoadChoice:
    """What is known before a load: the data, the author's side, and what is in the table already.

    :param source: as the author gave it
    :param files: the same as files of this machine, None where it is something else
    :param boundary: these files and their channels, None where there is nothing to copy into
    :param hook: asks the account about a stage
    :param known: what the author and the kind of run say of the data
    :param policy: the author's side
    :param before: the path of the run before
    :param may_lack_table: True where the stream makes the table
    :param backlog: the records of a Kafka source, None where it is something else
    """

    source: Any
    files: FileSourceSpec | None
    boundary: FileBoundary | None
    hook: SnowpipeBulkHook
    known: Mapping[str, Any]
    policy: LoadPolicy
    before: LoadPath | None = None
    may_lack_table: bool = False
    backlog: KafkaBacklog | None = None

    @cached_property
    def positions(self) -> Sequence[PartitionPosition]:
        """How far each partition is in the table."""
        return [] if self.boundary is None else self.boundary.positions(may_lack_table=self.may_lack_table)

    @cached_property
    def shape(self) -> DataShape | None:
        """The shape of what is left to load, None where nothing is known of it."""
        if is_staged(self.source):
            return ShapeSource(self.source, self.hook).shape(self.known)
        if self.boundary is not None:
            return self.boundary.shape(self.positions, self.known)
        if self.backlog is not None and self.policy.forced is not LoadPath.STREAM:
            return self.backlog.shape(self.known)
        return DataShape.from_json(dict(self.known)) if self.known else None

    @cached_property
    def plan(self) -> LoadPlan | None:
        """The plan; None where the author asks for a stream of something whose shape is not known.

        :raises ConfigurationError: if there is no shape, and no path is forced
        """
        if self.shape is not None:
            return plan_load(self.shape, self.policy, self.before)
        if self.policy.forced is LoadPath.STREAM:
            return None
        raise ConfigurationError(
            f"source is {self.source!r}, whose shape is not known: give shape=…, such as {{'bounded': False, "
            "'arrival_rate': 1e6}, or say path='stream'"
        )

    def path(self) -> tuple[LoadPath, str | None]:
        """The path to take, and why it is not the one of the plan.

        :raises ConfigurationError: if there is no way to take it
        """
        if self.plan is None:
            return LoadPath.STREAM, None
        planned = self.plan.path
        if is_staged(self.source):
            if planned is LoadPath.STREAM:
                raise ConfigurationError(
                    f"source is {self.source!r} and path is 'stream': files in a stage are copied, or given "
                    "to a pipe; name the folder that they came from to stream them, or say path='copy'"
                )
            return planned, None
        if self.plan.is_forced:
            return planned, None
        why = self._why_not_copy()
        if why is None and planned is not LoadPath.STREAM and self.boundary is not None:
            why = self.boundary.why_not_copy(self.positions)
        if planned is not LoadPath.STREAM and why is not None:
            return LoadPath.STREAM, why
        if why is None and all(position.is_done for position in self.positions):
            return LoadPath.COPY, "no row is left, which COPY finds out without Spark"
        return planned, None

    def xcom(self) -> dict[str, Any] | None:
        """The plan as JSON, with the rows and bytes that it is for."""
        if self.plan is None or self.shape is None:
            return None
        return {**self.plan.as_json(), "expected": expected_of(self.shape, self.policy.costs)}

    def _why_not_copy(self) -> str | None:
        if self.files is None or self.boundary is None:
            return "only files are copied, and only into a table that is named"
        try:
            for position in self.positions:
                share_of_copy(position, growing=self.files.growing)
        except PartlyStreamedError as error:
            return str(error)
        return why_not_copy(self.files)

"""What a task reports to OpenLineage: what it read, what it loaded, and where its channels stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_snowpipe.assets.uri import account_namespace
from airflow_provider_snowpipe.bulk.staged_files import StageReference

if TYPE_CHECKING:
    from airflow_provider_snowpipe.assets.events import LoadedChannel
    from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook

CHANNELS_FACET = "snowpipe_channels"
# Of ObjectStoragePath, and Hadoop's names of the same store.
_STORES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
# What stands before the @ of these is the container; elsewhere it is a connection or a credential.
_CONTAINER_FIRST = frozenset({"abfs", "abfss", "wasb", "wasbs"})


@dataclass(frozen=True, slots=True)
class TaskLineage:
    """What a task did, in the terms of lineage.

    :param hook: names account and pipe; its connection is read when somebody asks for the lineage
    :param loads: False for a task that waits for rows and loads none
    :param sources: addresses of what was read
    :param size: bytes of NDJSON of the rows that were sent
    """

    hook: SnowpipeHook
    offset_format: str = "unit/file:line"
    channels: Sequence[LoadedChannel] = ()
    loads: bool = True
    sources: tuple[str, ...] = ()
    sql: str | None = None
    rows: int | None = None
    size: int | None = None


class ReportsLineage:
    """Operators whose lineage Airflow's OpenLineage provider asks for when a task has ended.

    They set :attr:`task_lineage` while they execute. Without that provider nobody asks.
    """

    task_lineage: TaskLineage | None = None

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return the task's datasets and facets as an ``OperatorLineage``."""
        return operator_lineage(self.task_lineage)

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Any:
        """Return what a task that failed had loaded by then, as far as it is known."""
        return operator_lineage(self.task_lineage)


def operator_lineage(lineage: TaskLineage | None) -> Any:
    """Return lineage as the OpenLineage provider takes it, None without that provider."""
    try:
        from airflow.providers.openlineage.extractors import OperatorLineage
    except ImportError:
        return None
    if lineage is None:
        return OperatorLineage()
    from airflow.providers.common.compat.openlineage.facet import (
        Dataset,
        OutputDataset,
        OutputStatisticsOutputDatasetFacet,
        SQLJobFacet,
    )

    inputs = [
        Dataset(*(stage_of(lineage.hook, address) if address.startswith("@") else store_of(address)))
        for address in lineage.sources
    ]
    outputs = []
    namespace, name = account_namespace(lineage.hook.account()), dataset_name(lineage.hook)
    if lineage.loads:
        statistics = OutputStatisticsOutputDatasetFacet(rowCount=lineage.rows, size=lineage.size)
        outputs.append(OutputDataset(namespace, name, outputFacets={"outputStatistics": statistics}))
    else:
        inputs.append(Dataset(namespace, name))
    run_facets = {}
    if lineage.channels:
        run_facets[CHANNELS_FACET] = _channels_facet()(
            pipe=str(lineage.hook.pipe_name()),
            offsetFormat=lineage.offset_format,
            channels=[
                {
                    "channel": one.channel,
                    "fromOffset": one.found,
                    "toOffset": one.token,
                    "rows": one.rows,
                    "rejected": one.rejected,
                }
                for one in lineage.channels
            ],
        )
    job_facets = {} if lineage.sql is None else {"sql": SQLJobFacet(query=lineage.sql)}
    return OperatorLineage(inputs=inputs, outputs=outputs, run_facets=run_facets, job_facets=job_facets)


@cache
def _channels_facet() -> Any:
    """The class of this provider's run facet, made only where the OpenLineage client is installed."""
    import attrs
    from airflow.providers.common.compat.openlineage.facet import RunFacet

    @attrs.define
    class SnowpipeChannelsRunFacet(RunFacet):  # type: ignore[misc, unused-ignore] # without the client it is not a class
        """Where a run found and left its channels.

        No field is called a token: those would be masked as secrets, which offsets are not.

        :param pipe: the pipe's full name
        :param offsetFormat: the format of the offsets, such as ``unit/file:line``
        :param channels: for each channel its name, ``fromOffset``, ``toOffset``, ``rows`` and ``rejected``;
            the client leaves out what is None: NULL or unknown
        """

        pipe: str
        offsetFormat: str  # noqa: N815 - OpenLineage's style of names
        channels: list[dict[str, str | int | None]]

        _additional_skip_redact: ClassVar[list[str]] = ["pipe", "offsetFormat"]

    return SnowpipeChannelsRunFacet


def dataset_name(hook: SnowpipeHook) -> str:
    """Return what a hook's pipe fills: the table of a default pipe; of another one the pipe itself."""
    pipe = hook.pipe_name()
    return f"{pipe.database}.{pipe.schema}.{pipe.default_table or pipe.pipe}"


def stage_of(hook: SnowpipeHook, stage: str) -> tuple[str, str]:
    """Return namespace and name of the dataset of a stage, or of a path in one."""
    pipe = hook.pipe_name()
    whole = str(StageReference.parse(stage, pipe.database, pipe.schema))
    return account_namespace(hook.account()), whole.strip("@/").replace('"', "")


def store_of(address: str) -> tuple[str, str]:
    """Return namespace and name of a file's or directory's dataset, by OpenLineage's naming conventions.

    A connection or credential in the address stays out of it.
    """
    scheme, separator, rest = address.partition("://")
    if not separator or scheme == "file":
        return "file", "/" + rest.lstrip("/") if separator else address
    store, _, path = rest.partition("/")
    if scheme not in _CONTAINER_FIRST:
        store = store.rpartition("@")[2]
    if scheme in ("http", "https"):  # the query of an address may be its signature
        path = path.partition("?")[0]
    return f"{_STORES.get(scheme, scheme)}://{store}", path.strip("/") or "/"

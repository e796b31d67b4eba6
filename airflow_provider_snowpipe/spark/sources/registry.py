"""The registry of sources: each by the ``kind`` of its spec, imported when it is used; and its first rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from airflow_provider_snowpipe.spark.sources.source import (
    OnDataLoss,
    Source,
    SourcePartition,
    SourceSecrets,
    SourceSpec,
)
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.row_check import BlockLines
from airflow_provider_snowpipe.streaming.table_schema import common_types

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource

_NO_SECRETS = SourceSecrets()
DEFAULT_KIND = "files"


ENTRY_POINTS = "airflow_provider_snowpipe.sources"
"""The group of entry points by which other packages add sources: a kind, and the class of its spec."""
_SOURCES = {
    "delta": "delta.spec:DeltaSource",
    "files": "files.spec:FileSource",
    "iceberg": "iceberg.spec:IcebergSource",
    "kafka": "kafka.spec:KafkaSource",
    "table": "tables.spec:TableSource",
}


def source_spec(values: Any) -> SourceSpec:
    """Build a source's spec from its JSON object.

    :param values: the object; its ``kind`` says which source it is, ``files`` where there is none
    :raises ConfigurationError: if there is no such source, or a key or value is wrong
    """
    found = spec_class(values).from_mapping(values)
    found.check_streamable()
    return found


def spec_class(values: Any) -> type[SourceSpec]:
    """The class of a source's spec, by the ``kind`` of its JSON object.

    :param values: the object
    :raises ConfigurationError: if it is no object, or there is no such source
    """
    if not isinstance(values, Mapping):
        raise ConfigurationError(f"plan source is {values!r}: it must be an object with keys")
    kind = values.get("kind", DEFAULT_KIND)
    if isinstance(kind, str):
        if kind in _SOURCES:
            return _own_spec(kind)
        for added in entry_points(group=ENTRY_POINTS, name=kind):
            found: type[SourceSpec] = added.load()
            return found
    known = sorted({*_SOURCES, *entry_points(group=ENTRY_POINTS).names})
    raise ConfigurationError(f"source kind is {kind!r}: it must be one of {known}")


def open_source(spec: SourceSpec, on_data_loss: OnDataLoss, secrets: SourceSecrets = _NO_SECRETS) -> Source:
    """Make the source that a spec describes; nothing is read yet.

    :param spec: the spec
    :param on_data_loss: what to do if a committed position is not in the source any more
    :param secrets: the source's passwords and keys, which no plan holds
    """
    source: Source = resolve_name(spec.source_class)(spec, on_data_loss)
    source.take_secrets(secrets)
    return source


def streams() -> Iterator[type[DataSource]]:
    """The data sources for ``readStream`` that sources have."""
    for kind in _SOURCES:
        stream = _own_spec(kind).stream_class
        if stream is not None:
            yield resolve_name(stream)


def _own_spec(kind: str) -> type[SourceSpec]:
    spec: type[SourceSpec] = resolve_name(f"{__package__}.{_SOURCES[kind]}")
    return spec


# -- The first rows of a source, read where the plan is made ---------------------------------------------

SAMPLE_ROWS = 1000
"""Rows from which columns are inferred, over all partitions."""
_MOST_PARTITIONS = 20


@dataclass(frozen=True, slots=True)
class FirstRows:
    """The first rows of a source.

    :param lines: the rows as NDJSON
    :param types: types of columns, by name, where the source's own schema says them
    """

    lines: list[bytes]
    types: Mapping[str, str]


def first_rows(spec: SourceSpec, secrets: SourceSecrets | None = None, count: int = SAMPLE_ROWS) -> FirstRows:
    """Read the first rows of a source's first partitions, as NDJSON.

    :param spec: the source
    :param secrets: its passwords and keys
    :param count: rows in all
    :return: no line where the source has no row
    :raises ConfigurationError: if only Spark can read the source
    :raises SourcePositionError: if the source cannot be seen from this machine
    """
    partitions = open_source(spec, "fail", secrets or SourceSecrets()).partitions()[:_MOST_PARTITIONS]
    share = max(1, count // max(1, len(partitions)))
    found: list[bytes] = []
    types: dict[str, str] = {}
    for partition in partitions:
        if not isinstance(partition, SourcePartition):
            raise ConfigurationError(
                f"source {spec.address!r} is read by Spark alone, so that its columns are not known before "
                "the job starts: make the table first, and leave create_table and evolve_columns out"
            )
        place = partition.resume(None)
        if place is None:
            continue
        got = 0
        for part in partition.read(place, BatchLimits(rows=share)):
            lines = BlockLines.of(part.body)
            taken = min(lines.rows, share - got)
            found += [lines.row(row) for row in range(taken)]
            types = common_types(types, part.types)
            got += taken
            if got == share:
                break
    return FirstRows(found, types)

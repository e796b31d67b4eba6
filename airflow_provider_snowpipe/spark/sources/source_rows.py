"""The first rows of a source, read where the plan is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_snowpipe.spark.sources.registry import open_source
from airflow_provider_snowpipe.spark.sources.source import SourcePartition, SourceSpec
from airflow_provider_snowpipe.spark.sources.source_secrets import SourceSecrets
from airflow_provider_snowpipe.streaming.block_lines import BlockLines
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.table_ddl import common_types

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

"""The first rows of a source, read where the plan is made."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from airflow_provider_snowpipe.spark.source import SourcePartition, SourceSpec
from airflow_provider_snowpipe.spark.source_secrets import SourceSecrets
from airflow_provider_snowpipe.spark.sources import open_source
from airflow_provider_snowpipe.streaming.block_lines import BlockLines
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SourceMissingError
from airflow_provider_snowpipe.streaming.limits import BatchLimits

SAMPLE_ROWS = 1000
"""Rows from which columns are inferred, over all partitions."""
_MOST_PARTITIONS = 20


def first_rows(
    spec: SourceSpec, secrets: SourceSecrets | None = None, count: int = SAMPLE_ROWS
) -> list[bytes]:
    """Read the first rows of a source's first partitions, as NDJSON.

    :param spec: the source
    :param secrets: its passwords and keys
    :param count: rows in all
    :raises ConfigurationError: if only Spark can read the source
    :raises SourceMissingError: if the source has no row, or cannot be seen from this machine
    """
    partitions = open_source(spec, "fail", secrets or SourceSecrets()).partitions()[:_MOST_PARTITIONS]
    share = max(1, count // max(1, len(partitions)))
    found: list[bytes] = []
    for partition in partitions:
        if not isinstance(partition, SourcePartition):
            raise ConfigurationError(
                f"source {spec.address!r} is read by Spark alone, so that its columns are not known before "
                "the job starts: make the table first, and leave create_table and evolve_columns out"
            )
        place = partition.resume(None)
        if place is None:
            continue
        parts = partition.read(place, BatchLimits(rows=share))
        found += islice(_rows(BlockLines.of(part.body) for part in parts), share)
    if not found:
        raise SourceMissingError(
            f"source {spec.address!r} has no row yet from which columns could be inferred: make the table "
            "first, or run when there are rows"
        )
    return found


def _rows(blocks: Iterator[BlockLines]) -> Iterator[bytes]:
    for block in blocks:
        yield from (block.row(row) for row in range(block.rows))

"""The source log of a folder of files under test: its units, and tokens of their rows."""

from typing import Any

from airflow_provider_snowpipe.spark.source import SourceSecrets
from airflow_provider_snowpipe.spark.sources.files.listing import log_store
from airflow_provider_snowpipe.spark.sources.files.partition import FilePartition
from airflow_provider_snowpipe.spark.sources.files.reader import FileSource
from airflow_provider_snowpipe.spark.sources.files.spec import FileGroup
from airflow_provider_snowpipe.spark.sources.files.spec import FileSource as FileSourceSpec
from airflow_provider_snowpipe.streaming.checkpoint import Checkpoint
from airflow_provider_snowpipe.streaming.offsets import FileLineOffset, UnitOffset


def taken(spec: FileSourceSpec, target: str) -> dict[str, FilePartition]:
    """The partitions of a source, whose files are in the log when this returns, and given to no channel."""
    source = FileSource(spec, "skip").for_target(target)
    partitions = {one.name: one for one in source.partitions()}
    assert source.claim({}, {})
    return partitions


def unit_offset(partition: FilePartition, position: str) -> UnitOffset:
    """The position of ``file:line``; one of a unit that the log does not have where the file is not there."""
    found = FileLineOffset.parse(position)
    units = [one for one in partition.group.files if one.name == found.file]
    unit = next((one.unit for one in units if found.line <= one.after_line or one is units[-1]), None)
    return UnitOffset(unit or partition.last_unit + 1, found.file, found.line)


def unit_token(spec: FileSourceSpec, target: str, partition: str, position: str, rows: int) -> str:
    """The checkpoint of ``file:line`` in a partition of a source."""
    found = taken(spec, target)[partition]
    return str(Checkpoint(unit_offset(found, position), found.binding.digest, rows, "r0", 0))


def groups_of(spec: FileSourceSpec, secrets: SourceSecrets | None = None) -> tuple[FileGroup, ...]:
    """The groups of a source that has no log yet; nothing is written."""
    source = FileSource(spec, "fail")
    source.take_secrets(secrets or SourceSecrets())
    return tuple(one.group for one in source.partitions())


def states(spec: FileSourceSpec, target: str) -> dict[str, str]:
    """The loader of each file of a source's log, and ``taken`` where it is not known to have loaded it."""
    lines = described(spec, target)
    return {one["file"]: f"{one['loader']} {one['state']}".removesuffix(" committed") for one in lines}


def described(spec: FileSourceSpec, target: str) -> list[dict[str, Any]]:
    """What a source's log tells of its units."""
    return log_store(spec, target, SourceSecrets()).read().described()

"""What COPY takes of one partition, and what load history says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_snowpipe.bulk.content_path import ContentPath, loaded_contents
from airflow_provider_snowpipe.bulk.file_load import FileLoad
from airflow_provider_snowpipe.bulk.load_history import OVERLAP
from airflow_provider_snowpipe.streaming.errors import FilesGivenTwiceError

if TYPE_CHECKING:
    from airflow_provider_snowpipe.routing.boundary import PartitionPosition
    from airflow_provider_snowpipe.spark.files.groups import SourceFile
    from airflow_provider_snowpipe.streaming.copy_intent import CopyIntent


@dataclass(frozen=True, slots=True)
class CopyShare:
    """What COPY takes of one partition.

    :param position: how far the partition is in the table
    :param files: the files, in order; at least one
    :param paths: where each is staged
    :param end: the channel's token when they are loaded
    :param intent: the channel's token until then
    """

    position: PartitionPosition
    files: tuple[SourceFile, ...]
    paths: tuple[ContentPath, ...]
    end: str
    intent: CopyIntent


def loaded_since(share: CopyShare, history: Sequence[FileLoad]) -> dict[str, FileLoad]:
    """The loads of a share's files since its COPY began, by path.

    :param share: the share
    :param history: loads from the oldest
    :raises SourcePositionError: if a file has changed after it was loaded
    """
    earliest = share.intent.since - OVERLAP
    lately = [load for load in history if load.loaded_at is None or load.loaded_at >= earliest]
    return loaded_contents(share.paths, lately)


def refuse_loaded(share: CopyShare, loads: Mapping[str, FileLoad]) -> None:
    """Refuse files that COPY has loaded although the channel's token says that they are not in the table.

    :param share: what COPY is to take
    :param loads: loads of its files
    :raises FilesGivenTwiceError: if there are any
    """
    if not loads:
        return
    first = next(iter(loads.values()))
    when = f" at {first.loaded_at:%Y-%m-%d %H:%M:%S %Z}" if first.loaded_at else ""
    raise FilesGivenTwiceError(
        f"channel {share.position.channel!r}: its committed token {share.position.committed or 'NULL'!s} "
        f"says that file {share.files[0].name!r} and later ones are not in the table, and COPY has loaded "
        f"{len(loads):,} of these {len(share.files):,} files, the first one{when}. Where the token was set "
        "back to load them again, take path='stream', since COPY loads a file once; where their rows are in "
        f"the table, set the token to {share.end!r}. Nothing was loaded",
        files=tuple(loads),
    )

"""What COPY or a pipe takes of one partition, and what load history says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_snowpipe.bulk.content_path import ContentPath, loaded_contents, staged_place
from airflow_provider_snowpipe.bulk.file_load import FileLoad
from airflow_provider_snowpipe.bulk.load_history import OVERLAP
from airflow_provider_snowpipe.streaming.errors import FilesGivenTwiceError, SourcePositionError

if TYPE_CHECKING:
    from airflow_provider_snowpipe.routing.boundary import PartitionPosition
    from airflow_provider_snowpipe.spark.files.groups import SourceFile
    from airflow_provider_snowpipe.streaming.copy_intent import CopyIntent


@dataclass(frozen=True, slots=True)
class CopyShare:
    """What COPY or a pipe takes of one partition.

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
    """The loads of a share's files since its load began, by path.

    :param share: the share
    :param history: loads from the oldest
    :raises SourcePositionError: if a file has changed after it was loaded
    """
    earliest = share.intent.since - OVERLAP
    lately = [load for load in history if load.loaded_at is None or load.loaded_at >= earliest]
    return loaded_contents(share.paths, lately)


def refuse_loaded(share: CopyShare, loads: Mapping[str, FileLoad]) -> None:
    """Refuse files that are loaded although the channel's token says that they are not in the table.

    :param share: what is to be loaded
    :param loads: loads of its files
    :raises FilesGivenTwiceError: if there are any
    """
    if not loads:
        return
    first = next(iter(loads.values()))
    when = f" at {first.loaded_at:%Y-%m-%d %H:%M:%S %Z}" if first.loaded_at else ""
    raise FilesGivenTwiceError(
        f"channel {share.position.channel!r}: its committed token {share.position.committed or 'NULL'!s} "
        f"says that file {share.files[0].name!r} and later ones are not in the table, and "
        f"{'COPY' if first.pipe is None else f'pipe {first.pipe}'} has loaded {len(loads):,} of these "
        f"{len(share.files):,} files, the first one{when}. Where the token was set back to load them again, "
        "take path='stream', since a staged file is loaded once; where their rows are in the table, set the "
        f"token to {share.end!r}. Nothing was loaded",
        files=tuple(loads),
    )


def refuse_waiting(share: CopyShare, staged: Sequence[str], loads: Sequence[FileLoad], pipe: str) -> None:
    """Refuse files whose former content may wait in a pipe's queue.

    :param share: what the pipe was given before
    :param staged: files of the channel in the pipe's stage, as ``LIST`` names them
    :param loads: loads into the table, from the oldest
    :param pipe: the pipe
    :raises SourcePositionError: if there is one that the pipe has neither loaded nor failed to load
    """
    now = {path.name: path.digest for path in share.paths}
    ended = {staged_place(f"{load.location.rstrip('/')}/{load.path}") for load in loads if load.is_final}
    for name in staged:
        place = staged_place(name)
        if place is not None and now.get(place[2], place[1]) != place[1] and place not in ended:
            raise SourcePositionError(
                f"file {place[2]!r} of channel {share.position.channel!r} has changed, and pipe {pipe!r} may "
                f"have its former content, staged as {name!r}, in its queue: bring that content back; or see "
                "that SYSTEM$PIPE_STATUS tells of no pending file, and REMOVE the staged one. Nothing was "
                "loaded"
            )

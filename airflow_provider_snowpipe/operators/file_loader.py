"""What loads the files of a boundary: COPY or a file pipe, from a place in a stage that is its own."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from os.path import commonprefix
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from airflow_provider_snowpipe.bulk.content_path import ContentPath, loaded_contents
from airflow_provider_snowpipe.bulk.file_load import FileLoad
from airflow_provider_snowpipe.bulk.load_history import OVERLAP, REMEMBERED
from airflow_provider_snowpipe.bulk.pipe_target import written
from airflow_provider_snowpipe.bulk.stage import StageReference
from airflow_provider_snowpipe.bulk.stage_upload import SourceFile as StagedSource
from airflow_provider_snowpipe.bulk.stage_upload import Staging
from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.operators.copy_share import (
    CopyShare,
    loaded_since,
    refuse_loaded,
    refuse_waiting,
)
from airflow_provider_snowpipe.streaming.errors import SourcePositionError
from airflow_provider_snowpipe.streaming.names import PipeName

if TYPE_CHECKING:
    from airflow_provider_snowpipe.spark.files.groups import SourceFile

Load = Callable[[Sequence[str]], dict[str, Any]]
"""Loads staged files, given by their paths below the loader's place; what a COPY task returns."""


_PARALLEL = 4
"""Files that are uploaded at a time, each with a session of its own."""


@dataclass(frozen=True, slots=True)
class _NamedByContent:
    """Files under the names that they have in the stage, as links in a folder.

    :param folder: the folder
    :param files: the files by their paths below the stage's
    """

    folder: Path
    files: Mapping[str, SourceFile]

    @contextmanager
    def local(self, file: StagedSource) -> Iterator[Path]:
        """Have a file on this machine, as long as the block runs.

        :param file: the file
        """
        link = self.folder / file.below
        link.parent.mkdir(parents=True)
        link.symlink_to(self.files[file.below].path)
        yield link


@dataclass(frozen=True, slots=True)
class FileLoader:
    """COPY or a file pipe.

    :param hook: for the table's load history and for the stage
    :param stage: where files are staged for it, with or without a path
    :param load: has them loaded
    :param pipe: the pipe, None for COPY
    :param told: loads that load history may not know yet, by the files' paths below the stage
    """

    hook: SnowpipeBulkHook
    stage: StageReference
    load: Load
    pipe: str | None = None
    told: Mapping[str, FileLoad] = field(default_factory=dict)

    def loaded(self, shares: Sequence[CopyShare]) -> dict[str, FileLoad]:
        """The loads by an interrupted run, by path below the stage.

        :param shares: what is to be loaded
        :raises FilesGivenTwiceError: if files are loaded that are not to be, by the channel's token
        :raises SourcePositionError: if a file has changed after it was loaded, or may be loaded still
        """
        table = str(self.hook.table)
        fresh = [share for share in shares if share.position.intent is None]
        if fresh:
            known = self._known_loads(table, fresh)
            for share in fresh:
                refuse_loaded(share, loaded_contents(share.paths, known))
        begun = [share for share in shares if share.position.intent is not None]
        found: dict[str, FileLoad] = {}
        if begun:
            self._require_remembered(begun)
            # A pipe may have been given a former content of a file, which may have ended at any time.
            since = None if self.pipe else min(share.intent.since for share in begun) - OVERLAP
            history = [FileLoad.from_copy_history(row) for row in self.hook.past_loads(table, since)]
            own = [load for load in history if load.pipe == self._own_name]
            for share in begun:
                found |= loaded_since(share, own)
                found |= {one.path: self.told[one.path] for one in share.paths if one.path in self.told}
                if self.pipe is not None:
                    refuse_waiting(share, self._staged(share), history, self.pipe)
        return found

    def put(self, shares: Sequence[CopyShare], loaded: Mapping[str, FileLoad]) -> list[str]:
        """Stage the files that are not loaded; their paths below the loader's place.

        :param shares: what is to be loaded
        :param loaded: files that are in the table
        :raises SourcePositionError: if a file grew meanwhile
        """
        wanted = [
            (file, path)
            for share in shares
            for file, path in zip(share.files, share.paths, strict=True)
            if path.path not in loaded
        ]
        if not wanted:
            return []
        with TemporaryDirectory(prefix="snowpipe-put-") as folder:
            source = _NamedByContent(Path(folder), {path.path: file for file, path in wanted})
            files = [StagedSource(path.path, file.size, file.path) for file, path in wanted]
            prefix = commonprefix([file.below for file in files])  # noqa: RUF071  LIST takes any start of a path
            # What has that path has that content.
            staging = Staging(self.stage, if_staged="skip")
            self.hook.get_stage_upload(staging, source, prefix, _PARALLEL).run(files)
        for file, _ in wanted:
            if (size := Path(file.path).stat().st_size) != file.size:
                raise SourcePositionError(
                    f"file {file.path!r} grew from {file.size:,} to {size:,} bytes while it was staged: load "
                    "it when nothing appends to it, or say growing=True, which leaves the last file to the "
                    "stream. Nothing was loaded"
                )
        return [path.path for _, path in wanted]

    def rows_of(self, share: CopyShare, value: Mapping[str, Any]) -> int:
        """Rows of a share that are in the table.

        :param share: the share
        :param value: what loading it has given, as of a COPY task
        """
        loads = {**value["loaded_before"], **value["files"]}
        found = (loads.get(self.below(path)) or loads.get(path.path) for path in share.paths)
        return sum(int(load["rows_loaded"]) for load in found if load)

    def below(self, path: ContentPath) -> str:
        """A file's path below the stage itself.

        :param path: the file's place
        """
        return self.stage.below(path.path)

    def _known_loads(self, table: str, fresh: Sequence[CopyShare]) -> list[FileLoad]:
        """Loads of files that are to be loaded for the first time; a pipe has no memory of COPY's own.

        A channel without a token may be one that was deleted after 30 idle days: then the loads may be older
        than what the information schema knows.
        """
        known = self.hook.loads_of(table, [self.below(one) for share in fresh for one in share.paths])
        untold = [
            self.below(one) for share in fresh if share.position.committed is None for one in share.paths
        ]
        if self.pipe is None or not untold:
            return known
        return [*self.hook.older_copies(table, untold), *known]

    @property
    def _own_name(self) -> str | None:
        """The loader, as load history names it."""
        return None if self.pipe is None else str(PipeName(*self.hook.place(), self.pipe))

    def _staged(self, share: CopyShare) -> list[str]:
        """The files that are staged for the share's channel, as LIST names them."""
        folder = f"{share.paths[0].folder}/"
        return [str(row["name"]) for row in self.hook.list_files(written(self.stage), folder)]

    def _require_remembered(self, shares: Sequence[CopyShare]) -> None:
        oldest = min(shares, key=lambda share: share.intent.since)
        if self.pipe is not None and oldest.intent.since < dt.datetime.now(dt.UTC) - REMEMBERED:
            raise SourcePositionError(
                f"channel {oldest.position.channel!r}: pipe {self.pipe!r} was given files up to "
                f"{oldest.intent.last_file!r} at {oldest.intent.since:%Y-%m-%d %H:%M:%S %Z}, and neither "
                "pipe nor load history remembers loads of more than 14 days ago: see which of their rows are "
                f"in the table, and set the channel's token to {oldest.end!r} if all are, or to "
                f"{oldest.intent.after or 'the first row'!r} if none is. Nothing was loaded"
            )

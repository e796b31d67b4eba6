"""Which staged files a COPY is for: looked up before it, so that the same statement means the same files."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_snowpipe.bulk.copy_outcome import CopyOutcome, newest_loads, path_below
from airflow_provider_snowpipe.bulk.copy_run import StagedFile
from airflow_provider_snowpipe.bulk.file_load import FileLoad
from airflow_provider_snowpipe.bulk.stage import StageReference
from airflow_provider_snowpipe.bulk.two_loaders import StagedPaths, refuse_files_of_others
from airflow_provider_snowpipe.bulk.wanted_files import WantedFiles, file_names
from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, NothingStagedError

_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """Files that were found.

    :param files: by their paths below the stage
    :param url: what an external stage stands for, None for an internal one
    """

    files: list[StagedFile]
    url: str | None = None


@dataclass(frozen=True, slots=True)
class StagedChoice:
    """Files by name, by the start of their paths, by a pattern, or all of a stage.

    :param stage: the stage, with or without a path
    :param files: paths below that: a list or its JSON text
    :param prefix: instead of files, the start of their paths
    :param pattern: regular expression that their whole paths match
    """

    stage: str
    files: Any = None
    prefix: str | None = None
    pattern: str | None = None

    def check(self) -> None:
        """Find what no rendering of templates can mend.

        :raises ConfigurationError: if the arguments do not go together
        """
        if self.files is not None and (self.prefix is not None or self.pattern is not None):
            raise ConfigurationError(
                f"files is {self.files!r} beside prefix or pattern: the files are named, leave the others out"
            )

    def loaded_and_gone(self, hook: SnowpipeBulkHook, table: str, since: dt.datetime) -> CopyOutcome | None:
        """What this run has loaded of the files and then removed (``purge``); None where that is not all.

        :param hook: asks the account
        :param table: the table
        :param since: when the run began
        """
        reference = StageReference.parse(self.stage)
        history = [FileLoad.from_copy_history(row) for row in hook.past_loads(table, since)]
        if self.files is not None:
            names = [reference.below(name) for name in file_names(self.files)]
            found = newest_loads(names, history)
            return CopyOutcome(tuple(found.values())) if len(found) == len(names) else None
        wanted = WantedFiles((), reference.below(self.prefix or ""), 1)
        paths = dict.fromkeys(name for load in history if (name := wanted.name_of(load)) is not None)
        return CopyOutcome(tuple(newest_loads(list(paths), history).values())) if paths else None

    def find(self, hook: SnowpipeBulkHook) -> StagedFiles:
        """List the files, in the order of their names or in the one that they were given in.

        :param hook: asks the account
        :raises NothingStagedError: if a file that is named is not there
        :raises SqlError: if the stage cannot be listed
        """
        reference = StageReference.parse(self.stage)
        listed = hook.list_files(self.stage, self.prefix or "", self.pattern)
        url = hook.stage_url(self.stage) if listed and "://" in str(listed[0]["name"]) else None
        found = _below_stage(listed, reference, url)
        if self.files is None:
            return StagedFiles(sorted(found.values(), key=lambda file: file.path), url)
        names = [reference.below(name) for name in file_names(self.files)]
        missing = [name for name in names if name not in found]
        if missing:
            shown = ", ".join(map(repr, missing[:_MOST_NAMED])) + (" …" if len(missing) > _MOST_NAMED else "")
            raise NothingStagedError(
                f"{len(missing):,} of {len(names):,} files are not in stage {self.stage!r}: {shown}; "
                "stage them "
                "first, under these very names"
            )
        return StagedFiles([found[name] for name in names], url)


def refuse_files_of_pipes(
    hook: SnowpipeBulkHook, table: str, choice: StagedChoice, staged: StagedFiles
) -> None:
    """Refuse files that a pipe has loaded, of which COPY knows nothing.

    :param hook: asks the account
    :param table: the table
    :param choice: names the stage
    :param staged: the files
    :raises FilesGivenTwiceError: if a pipe has put rows of one into the table
    """
    paths = tuple(file.path for file in staged.files)
    files = StagedPaths(paths, StageReference.parse(choice.stage), staged.url)
    refuse_files_of_others(files, hook.loads_of(table, paths), table=table, now=dt.datetime.now(dt.UTC))


def _below_stage(
    listed: Sequence[dict[str, Any]], reference: StageReference, url: str | None
) -> dict[str, StagedFile]:
    found: dict[str, StagedFile] = {}
    for row in listed:
        path = path_below(reference.relative(str(row["name"])), url)
        mark, size = str(row.get("md5") or row.get("last_modified") or ""), row.get("size")
        found[path] = StagedFile(path, mark, None if size is None else int(size))
    return found

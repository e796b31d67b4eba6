"""Which staged files a file pipe is to be given, and what is known of their loads."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_snowpipe.bulk.file_load import FileLoad
from airflow_provider_snowpipe.bulk.file_pipe import SubmittedFile
from airflow_provider_snowpipe.bulk.load_history import REMEMBERED, HistoryQuestion
from airflow_provider_snowpipe.bulk.stage import StageReference
from airflow_provider_snowpipe.bulk.two_loaders import (
    StagedPaths,
    not_loaded_by,
    refuse_files_of_others,
)
from airflow_provider_snowpipe.bulk.wanted_files import file_names
from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.operators.copy_files import StagedChoice
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.names import PipeName

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PipeFiles:
    """Files by their paths below a pipe's location, or those that a stage has there.

    :param hook: asks the account
    :param pipe: the pipe
    :param files: the paths, a list or its JSON text; None for all that ``stage`` has
    :param stage: the pipe's location, where the files are listed; None to take them as they are named
    :param prefix: instead of files: the start of their paths below it
    :param pattern: instead of files: a regular expression that the whole path matches
    """

    hook: SnowpipeBulkHook
    pipe: PipeName
    files: Any = None
    stage: str | None = None
    prefix: str | None = None
    pattern: str | None = None

    def chosen(self) -> list[SubmittedFile]:
        """The files by their paths below the pipe's location.

        :raises NothingStagedError: if a file that is named is not in the stage
        """
        if self.stage is None:
            return [SubmittedFile(name) for name in file_names(self.files)]
        reference = StageReference.parse(self.stage)
        staged = StagedChoice(self.stage, self.files, self.prefix, self.pattern).find(self.hook)
        below = f"{reference.path}/" if reference.path else ""
        return [SubmittedFile(file.path.removeprefix(below), file.size) for file in staged.files]

    def known_loads(self, paths: Sequence[str], table: str | None, *, force: bool) -> list[FileLoad]:
        """The pipe's loads of these files, as far back as they are remembered.

        :param paths: paths below the pipe's location
        :param table: the pipe's table, None to ask the pipe itself, which knows nothing of other loaders
        :param force: True accepts files that somebody else has put into the table
        :raises FilesGivenTwiceError: if COPY or another pipe has put rows of one into the table
        """
        if table:
            return self._loads_into(table, paths, force)
        history = self.hook.get_load_history()
        now = dt.datetime.now(dt.UTC)
        try:
            return history.loads([HistoryQuestion(frozenset(paths), now - REMEMBERED)], now)
        finally:
            history.close()

    def _loads_into(self, table: str, paths: Sequence[str], force: bool) -> list[FileLoad]:
        location = None if force else self._location()
        if location is None:
            return self.hook.loads_of(table, paths, self.pipe.pipe)
        whole = tuple(location.below(path) for path in paths)
        loader = str(self.pipe)
        loads = self.hook.loads_of(table, whole)
        # What this pipe has loaded it does not load again, so a retry need not look far back.
        new = not_loaded_by(whole, loads, loader)
        older = self.hook.older_copies(table, new) if new else []
        files = StagedPaths(whole, location, self._url(location))
        history = list(dict.fromkeys([*older, *loads]))
        refuse_files_of_others(files, history, table=table, now=dt.datetime.now(dt.UTC), loader=loader)
        return [load for load in loads if load.pipe == loader]

    def _location(self) -> StageReference | None:
        """The pipe's location, None where nobody says it."""
        if self.stage is not None:
            return StageReference.parse(self.stage)
        why = "DESCRIBE PIPE shows no such pipe to this role"
        try:
            target = self.hook.pipe_target(self.pipe.pipe)
        except ConfigurationError as error:
            target, why = None, str(error)
        if target is None:
            log.warning("whether COPY has loaded these files is not known (%s); stage=… would tell", why)
            return None
        return target.stage

    def _url(self, location: StageReference) -> str | None:
        return self.hook.stage_url(f"@{location.owner}{location.name}")


def check_choice(files: Any, stage: str | None, prefix: str | None, pattern: str | None) -> None:
    """Find what no rendering of templates can mend in what names files for a pipe.

    :param files: as of :class:`PipeFiles`
    :param stage: the same
    :param prefix: the same
    :param pattern: the same
    :raises ConfigurationError: if these do not go together
    """
    if stage is not None:
        StagedChoice(stage, files, prefix, pattern).check()
    elif files is None:
        raise ConfigurationError(
            "no files and no stage: give files=[…], or stage=…, the location of the pipe, which is listed"
        )
    elif prefix is not None or pattern is not None:
        raise ConfigurationError(
            f"prefix is {prefix!r} and pattern is {pattern!r} without stage=…, where files are listed: give "
            "it as well"
        )

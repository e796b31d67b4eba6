"""Which staged files a file pipe is to be given, and what is known of their loads."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_snowpipe.bulk.copy_run import StagedFile
from airflow_provider_snowpipe.bulk.file_load import FileLoad
from airflow_provider_snowpipe.bulk.file_pipe import SubmittedFile
from airflow_provider_snowpipe.bulk.load_history import REMEMBERED, HistoryQuestion
from airflow_provider_snowpipe.bulk.pipe_target import PipeTarget, written
from airflow_provider_snowpipe.bulk.stage import StageReference
from airflow_provider_snowpipe.bulk.two_loaders import (
    NOT_AUTHORIZED,
    StagedPaths,
    not_loaded_by,
    refuse_files_for_pipes,
    refuse_files_of_others,
)
from airflow_provider_snowpipe.bulk.wanted_files import file_names
from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.operators.copy_files import StagedChoice, StagedFiles, pipes_beside
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SqlError
from airflow_provider_snowpipe.streaming.names import PipeName

log = logging.getLogger(__name__)
Begin = Callable[[SnowpipeBulkHook, str, StagedPaths], None]
"""Is told that files are about to be loaded into a table, whose place the hook knows."""


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

    def known_loads(
        self, paths: Sequence[str], table: str | None, *, force: bool, begin: Begin | None = None
    ) -> list[FileLoad] | None:
        """The pipe's loads of these files, as the load history of its table remembers them.

        :param paths: paths below the pipe's location
        :param table: the pipe's table, None to take it from the pipe's own statement
        :param force: True accepts files that somebody else has put into the table
        :param begin: is told of the files before other pipes and history are asked, where table and location
            are known; not with ``force``. None asks history only
        :return: None where the table is not known, or may not be asked; the log then has a warning
        :raises FilesGivenTwiceError: if COPY or another pipe has put rows of one into the table, or another
            pipe has files in its queue that may be these
        """
        if table and force:
            return self.hook.loads_of(table, paths, self.pipe.pipe)
        if force:
            return None
        target = None if table and self.stage else self._target()
        if table:
            if self.stage is None and target is None:
                return self.hook.loads_of(table, paths, self.pipe.pipe)
            return self._loads_into(self.hook, table, self._location(target), paths, begin)
        if target is None:
            return None
        database, schema, name = target.table
        hook = SnowpipeBulkHook(self.hook.snowflake_conn_id, table=name, database=database, schema=schema)
        try:
            return self._loads_into(hook, name, self._location(target), paths, begin)
        except SqlError as error:
            if error.errno not in NOT_AUTHORIZED:
                raise
            _warn(f"{error}; grant the role a privilege on the pipe's table and a warehouse")
            return None

    def reported_loads(self, paths: Sequence[str]) -> list[FileLoad]:
        """The pipe's loads of these files as it reports them itself; it knows nothing of other loaders.

        :param paths: paths below the pipe's location
        """
        history = self.hook.get_load_history()
        now = dt.datetime.now(dt.UTC)
        try:
            return history.loads([HistoryQuestion(frozenset(paths), now - REMEMBERED)], now)
        finally:
            history.close()

    def _loads_into(
        self,
        hook: SnowpipeBulkHook,
        table: str,
        location: StageReference,
        paths: Sequence[str],
        begin: Begin | None,
    ) -> list[FileLoad]:
        whole = tuple(location.below(path) for path in paths)
        files = StagedPaths(whole, location, self._url(location))
        loader = str(self.pipe)
        if begin is not None:
            begin(hook, table, files)
            choice, staged = StagedChoice(written(location)), [StagedFile(path) for path in whole]
            beside = pipes_beside(hook, table, choice, StagedFiles(staged, files.url))
            # Without the time at which the files were staged nobody knows of which events tell a pipe.
            queues = [replace(one, announced=()) for one in beside]
            refuse_files_for_pipes(queues, table=table, loader=loader)
        loads = hook.loads_of(table, whole)
        # What this pipe has loaded it does not load again, so a retry need not look far back.
        new = not_loaded_by(whole, loads, loader)
        older = hook.older_copies(table, new) if new else []
        history = list(dict.fromkeys([*older, *loads]))
        refuse_files_of_others(files, history, table=table, now=dt.datetime.now(dt.UTC), loader=loader)
        return [load for load in loads if load.pipe == loader]

    def _location(self, target: PipeTarget | None) -> StageReference:
        return target.stage if self.stage is None and target else StageReference.parse(str(self.stage))

    def _target(self) -> PipeTarget | None:
        """From where the pipe loads into which table, None where nobody says it."""
        why = "DESCRIBE PIPE shows no such pipe to this role"
        try:
            target = self.hook.pipe_target(self.pipe.pipe)
        except ConfigurationError as error:
            target, why = None, str(error)
        if target is None:
            _warn(f"{why}; table=… and stage=… would tell")
        return target

    def _url(self, location: StageReference) -> str | None:
        return self.hook.stage_url(f"@{location.owner}{location.name}")


def _warn(why: str) -> None:
    log.warning("whether COPY has loaded these files is not known (%s)", why)


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

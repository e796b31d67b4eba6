"""The operator that gives staged files to a file pipe, and waits until they are loaded."""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import conf

from airflow_provider_snowpipe.assets.events import describe_file_load
from airflow_provider_snowpipe.bulk.file_pipe import SubmittedFile
from airflow_provider_snowpipe.bulk.file_pipe_admin import PipeTarget, stage_key
from airflow_provider_snowpipe.bulk.files_watch import FilesWatch, Tolerance
from airflow_provider_snowpipe.bulk.load_history import REMEMBERED, HistoryQuestion
from airflow_provider_snowpipe.bulk.staged_files import (
    ExpectedFiles,
    FileLoad,
    StagedFile,
    StagedFiles,
    StageReference,
    file_names,
)
from airflow_provider_snowpipe.bulk.two_loaders import (
    NOT_AUTHORIZED,
    LoadIntent,
    not_loaded_by,
    pipes_beside,
    refuse_files_for_pipe,
    refuse_files_of_others,
)
from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.lineage import ReportsLineage, TaskLineage
from airflow_provider_snowpipe.operators.account_operator import (
    FILES_KEY,
    FileOperator,
    check_arguments,
    failing_at_once,
    require_name,
    run_identity,
)
from airflow_provider_snowpipe.operators.copy import StagedChoice
from airflow_provider_snowpipe.streaming.commits import RetryBudget
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    NothingStagedError,
    SnowpipeError,
    SqlError,
)
from airflow_provider_snowpipe.streaming.names import PipeName

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_snowpipe.bulk.file_pipe import Submission


_MARGIN_SECONDS = 120.0
_BUDGET_SECONDS = 20.0


class SnowpipeIngestFilesOperator(ReportsLineage, FileOperator):
    """Give staged files to a file pipe by the Snowpipe REST API, and wait until it has loaded them.

    A pipe loads a file of one path once within 14 days, so every try may submit the same files. Files that
    COPY or another pipe has loaded, or another task is about to submit, are refused, and searched for once
    more in load history when they are loaded. With
    ``wait_for_load`` the pipe's history is asked first: what it has loaded is not submitted again, and a
    failure of before does not count for a file that is.

    The XCom ``files`` has the files that the pipe takes, by their paths below its location, as
    :class:`SnowpipeFilesLoadedSensor` takes them. The task's value has ``files``, ``submitted``,
    ``unmatched``, ``loaded_before``, and after a wait ``loads``, what became of each file, and
    ``rows_loaded``.

    :param pipe: the pipe (templated)
    :param files: paths below the pipe's location, a list or its JSON text; None for all that ``stage`` has
        (templated)
    :param stage: the pipe's location, ``@stage/path``: the files are listed there first, which finds missing
        ones and gives the pipe their sizes (templated)
    :param prefix: with ``stage``, instead of files: the start of their paths below it (templated)
    :param pattern: with ``stage``, instead of files: a regular expression that the whole path matches
        (templated)
    :param table: the table that the pipe loads into, None to take it from the pipe's own statement: its
        ``COPY_HISTORY`` is asked before the files are submitted, and, where it is given, wherever the pipe's
        own report does not answer. Files that COPY has put into it within
        64 days, or another pipe within 14, are then refused; for the older of COPY's loads the role needs
        ``SNOWFLAKE.ACCOUNT_USAGE.COPY_HISTORY`` (templated)
    :param force: True submits files although COPY or another pipe has loaded them
    :param wait_for_load: False ends the task when the pipe has taken the files
    :param wait_for_completion: ``wait_for_load`` by the name that Airflow's other providers have for it
    :param load_timeout: seconds to wait for the loads
    :param on_partial: ``fail`` or ``report`` a file of which only some rows are loaded
    :param on_failed: the same for a file that failed to load
    :param on_unmatched: the same for files that the pipe's ``PATTERN`` leaves out
    :param on_nothing: the same for a stage without such a file
    :param retry_seconds: how long one post is repeated when the pipe is overloaded or does not answer
    :param deferrable: True waits in the triggerer
    :param poll_interval: seconds between two polls of the loads
    :param max_consecutive_errors: give up after this many polls in a row that failed for a passing reason
    :raises ConfigurationError: if an argument is wrong
    """

    template_fields: Sequence[str] = (
        "pipe",
        "files",
        "stage",
        "prefix",
        "pattern",
        "table",
        *FileOperator.template_fields,
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"files": "json"}

    def __init__(
        self,
        *,
        pipe: str,
        files: Any = None,
        stage: str | None = None,
        prefix: str | None = None,
        pattern: str | None = None,
        table: str | None = None,
        force: bool = False,
        wait_for_load: bool = True,
        wait_for_completion: bool | None = None,
        load_timeout: float = 3600.0,
        on_partial: str = "fail",
        on_failed: str = "fail",
        on_unmatched: str = "fail",
        on_nothing: str = "fail",
        retry_seconds: float = 600.0,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poll_interval: float = 15.0,
        max_consecutive_errors: int = 10,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.pipe = pipe
        self.files = files
        self.stage = stage
        self.prefix = prefix
        self.pattern = pattern
        self.table = table
        self.force = force
        self.wait_for_load = wait_for_load if wait_for_completion is None else wait_for_completion
        self.load_timeout = load_timeout
        self.on_partial = on_partial
        self.on_failed = on_failed
        self.on_unmatched = on_unmatched
        self.on_nothing = on_nothing
        self.retry_seconds = retry_seconds
        self.deferrable = deferrable
        self.poll_interval = poll_interval
        self.max_consecutive_errors = max_consecutive_errors
        self.passes_over = False
        """As of :class:`SnowpipeCopyOperator`."""
        self._check_arguments()

    @cached_property
    def hook(self) -> SnowpipeBulkHook:
        """The hook of the pipe; made when first asked for, after templates are rendered."""
        return SnowpipeBulkHook(
            self.snowflake_conn_id,
            table=self.table,
            pipe=require_name("pipe", self.pipe),
            database=self.database,
            schema=self.schema,
        )

    def execute(self, context: Context) -> dict[str, Any]:
        """Submit the files, and wait.

        :return: the task's value
        :raises NothingStagedError: if the stage has no such file
        :raises FilesGivenTwiceError: if COPY or another pipe has loaded one of the files, before or
            meanwhile, or another task is about to
        :raises FilesRejectedError: if a file did not load as a whole, or the pipe leaves it out
        :raises FilesNotLoadedError: if the time is over
        """
        with failing_at_once():
            from airflow_provider_snowpipe.streaming.limits import RetryPolicy

            identity = run_identity(context)
            intent: LoadIntent | None = None

            def begin(hook: SnowpipeBulkHook, table: str, files: StagedFiles) -> None:
                nonlocal intent
                intent = LoadIntent(hook, table, identity, str(self.pipe_name(self.pipe)), files)
                intent.declare()

            try:
                submission = self._planned(begin)
                client = self.hook.get_file_pipe_client(
                    retry=RetryPolicy(self.retry_seconds, cap_seconds=60.0)
                )
            except SnowpipeError:
                if intent is not None:
                    intent.revoke()
                raise
            is_known = False
            try:
                submission = submission.submit(client, identity)
                is_known = True
            except SnowpipeError as error:
                is_known = not error.retryable
                raise
            finally:
                client.close()
                if intent is not None and is_known:
                    intent.withdraw()
            value = submission.result(str(client.pipe))
            self.log.info(
                "pipe %s: %d files submitted in %d posts, %d were loaded before",
                client.pipe,
                len(value["submitted"]),
                submission.posts,
                len(submission.before),
            )
            context["ti"].xcom_push(key=FILES_KEY, value=submission.taken())
            if self.on_unmatched == "fail":
                submission.require_matched(str(client.pipe))
            if not self.wait_for_load:
                return value
            if not submission.awaited():
                return self._loaded(context, value, {})
            if self.deferrable:
                self._wait_in_triggerer(submission, value)
            return self._loaded(context, value, self._waited_here(submission))

    def execute_complete(
        self, context: Context, event: Mapping[str, Any], submitted: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Go on where the task was deferred.

        :param event: the payload of the trigger
        :param submitted: what the task reported before
        :raises AirflowFailException: if a file did not load
        """
        from airflow_provider_snowpipe.bulk.files_watch import load_failure

        with failing_at_once():
            if event["status"] != "success":
                raise load_failure(event["reason"], event["message"])
            return self._loaded(context, submitted, event["files"])

    def preview(self) -> list[str]:
        """Report which files would be submitted."""
        submission = self._planned()
        owed = submission.owed()
        lines = [
            f"would submit {len(owed):,} of {len(submission.files):,} files to pipe "
            f"{self.pipe_name(self.pipe)}; {len(submission.before):,} were loaded before"
        ]
        return lines + [f"would submit {one.path}" for one in owed]

    def _planned(self, begin: Begin | None = None) -> Submission:
        from airflow_provider_snowpipe.bulk.file_pipe import Submission

        choice = self._files()
        files = choice.chosen()
        if not files and self.on_nothing == "fail":
            raise NothingStagedError(
                f"stage {self.stage!r} has no file for pipe {self.pipe!r}: stage the files before this task "
                "runs, or set on_nothing='report'"
            )
        if not files:
            return Submission(())
        history = choice.known_loads(files, self.table, force=self.force, begin=begin)
        if not self.wait_for_load:
            return Submission(tuple(files))
        if history is None:
            history = choice.reported_loads([one.path for one in files])
        submission = Submission.planned(files, history, dt.datetime.now(dt.UTC))
        if again := submission.staged_again():
            self.log.warning(
                "pipe %s has loaded %d files before they were staged again, such as %r, and takes a path "
                "once in 14 days: what has changed in them is not in the table; stage it under other names",
                self.pipe,
                len(again),
                again[0],
            )
        submission.require_whole(str(self.pipe_name(self.pipe)), self._tolerance())
        return submission

    def _files(self) -> PipeFiles:
        return PipeFiles(
            self.hook,
            self.pipe_name(self.pipe),
            self.files,
            self.stage,
            self.prefix,
            self.pattern,
            self.passes_over,
        )

    def _wait_in_triggerer(self, submission: Submission, value: dict[str, Any]) -> None:
        from airflow_provider_snowpipe.triggers.files_loaded import SnowpipeFilesLoadedTrigger

        self.defer(
            trigger=SnowpipeFilesLoadedTrigger(
                files=list(submission.awaited()),
                table=self.table,
                pipe=self.pipe,
                database=self.database,
                schema=self.schema,
                snowflake_conn_id=self.snowflake_conn_id,
                since=None if submission.since is None else submission.since.isoformat(),
                on_partial=self.on_partial,
                on_failed=self.on_failed,
                poll_interval=self.poll_interval,
                max_consecutive_errors=self.max_consecutive_errors,
                deadline=time.time() + self.load_timeout,
                timeout=self.load_timeout,
            ),
            method_name="execute_complete",
            kwargs={"submitted": value},
            timeout=dt.timedelta(seconds=self.load_timeout + _MARGIN_SECONDS),
        )

    def _waited_here(self, submission: Submission) -> dict[str, Any]:
        from airflow_provider_snowpipe.bulk.files_watch import wait_for_loads
        from airflow_provider_snowpipe.streaming.limits import RetryPolicy

        expected, budget = ExpectedFiles(submission.awaited()), RetryBudget(self.max_consecutive_errors)
        watch = FilesWatch(expected, submission.since, self._tolerance(), budget)
        history = self.hook.get_load_history(retry=RetryPolicy(budget_seconds=_BUDGET_SECONDS))
        try:
            return wait_for_loads(history, watch, timeout=self.load_timeout, interval=self.poll_interval)
        finally:
            history.close()

    def _loaded(self, context: Context, value: Mapping[str, Any], loads: Mapping[str, Any]) -> dict[str, Any]:
        rows = sum(int(load["rows_loaded"]) for load in loads.values())
        self.log.info("pipe %s: %d files loaded, %d rows", value["pipe"], len(loads), rows)
        if self.table:
            hook = self.bulk_hook(self.table)
            self.task_lineage = TaskLineage(hook, sources=(self.stage,) if self.stage else (), rows=rows)
            describe_file_load(self, context, hook, self.table, rows, value["pipe"])
        if loads:
            loaded = [SubmittedFile(path) for path in loads]
            self._files().known_loads(loaded, self.table, force=self.force)
        return {**value, "loads": dict(loads), "rows_loaded": rows}

    def _tolerance(self) -> Tolerance:
        return Tolerance(self.on_partial, self.on_failed)

    def _check_arguments(self) -> None:
        """Find what no rendering can fix."""
        self._tolerance()
        RetryBudget(self.max_consecutive_errors)
        seconds = ("load_timeout", "retry_seconds", "poll_interval")
        check_arguments(self, fail_or_report=("on_unmatched", "on_nothing"), seconds=seconds)
        check_choice(self.files, self.stage, self.prefix, self.pattern)


# -- Which staged files a file pipe is to be given, and what is known of their loads ---------------------

log = logging.getLogger(__name__)
Begin = Callable[[SnowpipeBulkHook, str, StagedFiles], None]
"""Called before files are loaded into a table, whose database and schema the hook knows."""


@dataclass(frozen=True, slots=True)
class PipeFiles:
    """Files by their paths below a pipe's location, or those that a stage has there.

    :param hook: asks the account
    :param pipe: the pipe
    :param files: the paths, a list or its JSON text; None for all that ``stage`` has
    :param stage: the pipe's location, where the files are listed; None to take them as they are named
    :param prefix: instead of files: the start of their paths below it
    :param pattern: instead of files: a regular expression that the whole path matches
    :param passes_over: True where files are passed over that others have loaded since they were staged
    """

    hook: SnowpipeBulkHook
    pipe: PipeName
    files: Any = None
    stage: str | None = None
    prefix: str | None = None
    pattern: str | None = None
    passes_over: bool = False

    def chosen(self) -> list[SubmittedFile]:
        """The files by their paths below the pipe's location.

        :raises NothingStagedError: if a file that is named is not in the stage
        """
        if self.stage is None:
            return [SubmittedFile(name) for name in file_names(self.files)]
        reference = StageReference.parse(self.stage)
        staged = StagedChoice(self.stage, self.files, self.prefix, self.pattern).find(self.hook)
        below = f"{reference.path}/" if reference.path else ""
        return [
            SubmittedFile(path.removeprefix(below), file.size, file.staged_at)
            for path, file in staged.files.items()
        ]

    def known_loads(
        self, files: Sequence[SubmittedFile], table: str | None, *, force: bool, begin: Begin | None = None
    ) -> list[FileLoad] | None:
        """The pipe's loads of these files, as the load history of its table remembers them.

        Those of files that are passed over come last.

        :param files: the files
        :param table: the pipe's table, None to take it from the pipe's own statement
        :param force: True accepts files that somebody else has put into the table
        :param begin: called with the files before other pipes and history are asked, where table and location
            are known; not with ``force``. None asks history only, of files that were submitted
        :return: None where the table is not known, or may not be asked; the log then has a warning
        :raises FilesGivenTwiceError: if COPY or another pipe has put rows of one into the table, or another
            pipe has files in its queue that may be these
        :raises ConfigurationError: if the pipe loads from elsewhere, or into another table
        """
        is_needed = not force and not (table and self.stage)
        is_compared = begin is not None and (table or self.stage)
        target = self._target(is_needed=is_needed) if is_needed or is_compared else None
        if is_compared and target is not None:
            self._require(target, table)
        paths = [one.path for one in files]
        if force:
            return self.hook.loads_of(table, paths, self.pipe.pipe) if table else None
        if table:
            if self.stage is None and target is None:
                return self.hook.loads_of(table, paths, self.pipe.pipe)
            return self._loads_into(self.hook, table, self._location(target), files, begin)
        if target is None:
            return None
        database, schema, name = target.table
        hook = SnowpipeBulkHook(self.hook.snowflake_conn_id, table=name, database=database, schema=schema)
        try:
            return self._loads_into(hook, name, self._location(target), files, begin)
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
        files: Sequence[SubmittedFile],
        begin: Begin | None,
    ) -> list[FileLoad]:
        whole = {location.below(one.path): one for one in files}
        staged = StagedFiles(
            {path: StagedFile(path, staged_at=one.staged_at) for path, one in whole.items()},
            location,
            self._url(location),
        )
        loader = str(self.pipe)
        if begin is not None:
            begin(hook, table, staged)
            for one in pipes_beside(hook, table, staged):
                if self.stage is None:
                    # Without the time at which the files were staged nobody knows which ones events announce.
                    one = replace(one, announced=())
                refuse_files_for_pipe(one, table=table, loader=loader)
        loads = hook.loads_of(table, list(whole))
        # What this pipe has loaded it does not load again, so a retry need not search far back.
        new = not_loaded_by(list(whole), loads, loader)
        older = hook.older_copies(table, new, by_pipes=self.passes_over) if new else []
        passed = refuse_files_of_others(
            staged,
            loads,
            table=table,
            now=dt.datetime.now(dt.UTC),
            loader=loader,
            older=older,
            passes_over=self.passes_over,
        )
        own = [load for load in loads if load.pipe == loader]
        return [*own, *(replace(load, path=whole[path].path) for path, load in passed.items())]

    def _location(self, target: PipeTarget | None) -> StageReference:
        return target.stage if self.stage is None and target else StageReference.parse(str(self.stage))

    def _target(self, *, is_needed: bool) -> PipeTarget | None:
        """From where the pipe loads into which table, None where that is not known."""
        why = "DESCRIBE PIPE shows no such pipe to this role"
        try:
            target = self.hook.pipe_target(self.pipe.pipe)
        except ConfigurationError as error:
            target, why = None, str(error)
        except SqlError as error:
            if is_needed or error.errno not in NOT_AUTHORIZED:
                raise
            target = None
        if target is None and is_needed:
            _warn(f"{why}; table=… and stage=… would show it")
        return target

    def _require(self, target: PipeTarget, table: str | None) -> None:
        """Refuse another location than the pipe's, below which it has other files of these paths."""
        database, schema = self.hook.database_and_schema()
        if table and target.table != (database, schema, table):
            raise ConfigurationError(
                f"pipe {self.pipe} loads into {'.'.join(target.table)}, and table is {table!r} in "
                f"{database}.{schema}: name the pipe's own table, or leave table out"
            )
        if self.stage is None:
            return
        whole = StageReference.parse(self.stage).location("", database=database, schema=schema)
        given, own = StageReference.parse(whole), target.stage
        if stage_key(given) == stage_key(own):
            is_own = given.path == own.path
        else:  # two external stages may stand for one address
            urls = [(self._url(one), one.path) for one in (given, own)]
            one, other = (f"{(url or '').rstrip('/')}/{path}".rstrip("/") for url, path in urls)
            is_own = one == other and all(url for url, _ in urls)
        if not is_own:
            raise ConfigurationError(
                f"pipe {self.pipe} loads from {own}, and stage is {self.stage!r}: it takes paths "
                f"below its own location, where other files may have them. Give stage={str(own)!r}, and "
                "the rest of the path as prefix, or name the pipe of that stage"
            )

    def _url(self, location: StageReference) -> str | None:
        return self.hook.stage_url(f"@{location.owner}{location.name}")


def _warn(why: str) -> None:
    log.warning("whether COPY has loaded these files is not known (%s)", why)


def check_choice(files: Any, stage: str | None, prefix: str | None, pattern: str | None) -> None:
    """Find what no rendering of templates can fix in what names files for a pipe.

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

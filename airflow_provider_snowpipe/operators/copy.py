"""The operator that copies staged files into a table, once per run."""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from os.path import commonprefix
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from airflow.providers.common.compat.sdk import conf

from airflow_provider_snowpipe.assets.events import describe_file_load
from airflow_provider_snowpipe.bulk.copy import (
    LOAD_SKIPPED,
    CopyInto,
    CopyOptions,
    CopyOutcome,
    RunIdentity,
    StagedChoice,
)
from airflow_provider_snowpipe.bulk.copy_run import CopyRun, LeaveWorker
from airflow_provider_snowpipe.bulk.ledger import LedgerName
from airflow_provider_snowpipe.bulk.ledger_entry import GIVEN_UP, Entry, GivenUpError, files_of, work_key
from airflow_provider_snowpipe.bulk.other_loaders import (
    pipes_beside,
    refuse_files_for_pipe,
    refuse_files_of_others,
    unknown_since,
)
from airflow_provider_snowpipe.bulk.staged_files import (
    LOADED,
    FileLoad,
    StagedFile,
    StagedFiles,
    StageReference,
    exact_pattern,
    file_names,
    stage_prefix,
)
from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.lineage import ReportsLineage, TaskLineage
from airflow_provider_snowpipe.links.snowpipe import leaving_copies
from airflow_provider_snowpipe.operators.account_operator import (
    CHOICE,
    AccountArguments,
    FileOperator,
    check_arguments,
    failing_at_once,
    run_identity,
)
from airflow_provider_snowpipe.streaming.errors import (
    FilesGivenTwiceError,
    NothingStagedError,
    SourceChangedError,
    SqlError,
)

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class CopyTask(ReportsLineage, AccountArguments):
    """Base of the operators that run a COPY once: a task may leave the worker while its statement runs."""

    _load: Any = None
    """What :meth:`on_kill` stops."""
    _begun: Mapping[str, int] | None = None

    def execute_complete(
        self, context: Context, event: Mapping[str, Any], begun: Mapping[str, int]
    ) -> dict[str, Any]:
        """Go on where the task was deferred: the ledger shows what is loaded by now.

        :param begun: versions of ledger entries when the try began
        """
        if event.get("message"):
            self.log.warning("the triggerer could not wait: %s", event["message"])
        self._begun = begun
        value: dict[str, Any] = self.execute(context)
        return value

    def on_kill(self) -> None:
        """Cancel the COPY that runs, which then leaves the table as it was, and whatever else runs."""
        if self._load is not None:
            self._load.stop()
        super().on_kill()


class SnowpipeCopyOperator(CopyTask, FileOperator):
    """Load staged files into a table by COPY INTO: once per run, whatever becomes of worker and connection.

    The files are listed first, so every statement names its files. A row of the load ledger, the table
    ``SNOWPIPE_LOADS`` beside the target, is planned for each statement, and marked as loaded in COPY's own
    transaction. So every try of the task in this run, on whichever worker, finds there what is loaded: it
    joins a statement that runs, and loads only what the ledger does not have. An earlier load counts as long
    as its rows are in the table: a table that was emptied is loaded again, and one that was replaced or has
    lost rows fails the task.

    Files that a pipe has loaded, has in its queue or gets by events are refused, since COPY and pipes
    do not share their memory of files; so are those that another task is about to give to a pipe. When COPY
    has run, its files are searched for once more at the pipes and in load history, and the task fails where
    somebody has loaded them in the meantime.

    The task's value has ``rows_loaded``, ``rejected``, ``files`` (each file's status, rows and first error by
    its path below the stage) and ``loaded_before``: the files that COPY skipped, and their loads by history.

    :param table: the table (templated)
    :param stage: ``@stage``, ``@database.schema.stage``, ``@%table`` or ``@~``, with or without a path
        (templated)
    :param files: paths below that, a list or its JSON text (templated)
    :param prefix: instead of files, the start of their paths (templated)
    :param pattern: instead of files, a regular expression that the whole path matches (templated)
    :param columns: the columns to fill, None for all in their order
    :param expressions: what to fill them with, as SQL such as ``$1:id::NUMBER``, written as it is
    :param options: parameters of :class:`~airflow_provider_snowpipe.bulk.copy.CopyOptions`:
        ``file_format``, ``on_error``, ``force``, ``match_by_column_name``, ``purge``, … (templated)
    :param on_rejected: ``fail`` fails the task when a file was not loaded, or only in part; ``report`` leaves
        that to whoever reads the value. The rows that fit are in the table either way
    :param on_nothing: the same for a stage that has no such file
    :param force: True loads files although a pipe has loaded them in the last 14 days, or is about to; the
        option ``force`` does so, too, and besides loads what COPY itself has loaded
    :param validation_mode: ``RETURN_ERRORS``, ``RETURN_ALL_ERRORS`` or ``RETURN_<n>_ROWS``: load nothing, the
        value has the ``rows`` of the answer
    :param ledger_table: name of the load ledger, alone or with schema and database; None for ``[snowpipe]
        ledger_table`` of the configuration, or ``SNOWPIPE_LOADS`` in the target's schema (templated)
    :param deferrable: True waits for each statement in the triggerer, after a first poll in the worker
    :param poll_interval: seconds between two polls in the triggerer
    :raises ConfigurationError: if an argument is wrong
    """

    template_fields: Sequence[str] = (
        "table",
        "stage",
        "files",
        "prefix",
        "pattern",
        "options",
        "ledger_table",
        *FileOperator.template_fields,
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"options": "json", "files": "json"}

    def __init__(
        self,
        *,
        table: str,
        stage: str,
        files: Any = None,
        prefix: str | None = None,
        pattern: str | None = None,
        columns: Sequence[str] | None = None,
        expressions: Sequence[str] | None = None,
        options: Mapping[str, Any] | None = None,
        on_rejected: str = "fail",
        on_nothing: str = "fail",
        force: bool = False,
        validation_mode: str | None = None,
        ledger_table: str | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poll_interval: float = 5.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.stage = stage
        self.files = files
        self.prefix = prefix
        self.pattern = pattern
        self.columns = columns
        self.expressions = expressions
        self.options = options
        self.on_rejected = on_rejected
        self.on_nothing = on_nothing
        self.force = force
        self.validation_mode = validation_mode
        self.ledger_table = ledger_table
        self.deferrable = deferrable
        self.poll_interval = poll_interval
        check_arguments(
            self,
            fail_or_report=["on_rejected", "on_nothing"],
            seconds=["poll_interval"],
            switches=["force", "deferrable"],
        )
        StagedChoice(stage, files, prefix, pattern).check()
        # Of what is not a template; names and options may be one.
        written = CopyInto(("D", "S", "T"), "@S", columns=columns, expressions=expressions)
        if validation_mode is not None:
            written.validation(validation_mode)
        self.chosen_by = [name for name in CHOICE if getattr(self, name) is not None]

    def execute(self, context: Context) -> dict[str, Any]:
        """Do the work and return the task's value."""
        with failing_at_once():
            load = self._load = self._made(run_identity(context))
            try:
                with leaving_copies(context, load.hook, [load]):
                    return (
                        load.run() if self.validation_mode is None else load.validated(self.validation_mode)
                    )
            finally:  # files that are in the table are there in a task that fails for others, too
                if load.outcome is not None:
                    rows = load.outcome.result()["rows_loaded"]
                    self.task_lineage = TaskLineage(load.hook, sources=(self.stage,), rows=rows)
                    describe_file_load(self, context, load.hook, self.table, rows, "COPY")

    def preview(self) -> list[str]:
        """Report which statements would be run, and which errors the files would have; loads nothing."""
        return self._made(RunIdentity((), dt.datetime.now(dt.UTC))).preview()

    def _made(self, identity: RunIdentity) -> CopyLoad:
        hook = self.bulk_hook(self.table)
        return CopyLoad(
            hook,
            copy_into(hook, self.table, self.stage, self.options, self.columns, self.expressions),
            StagedChoice(self.stage, self.files, self.prefix, self.pattern),
            identity,
            on_rejected=self.on_rejected,
            on_nothing=self.on_nothing,
            force=self.force,
            ledger_table=self.ledger_table,
            leave_worker=partial(wait_for_statement, self, self.poll_interval) if self.deferrable else None,
            begun=self._begun,
        )


def wait_for_statement(
    task: AccountArguments, seconds: float, begun: Mapping[str, int], handle: str, statement: str
) -> NoReturn:
    """Leave the worker until a statement has ended; the task's ``execute_complete`` comes back.

    :param seconds: between two polls
    :raises TaskDeferred: always
    """
    from airflow_provider_snowpipe.triggers.commit import deferral_limit
    from airflow_provider_snowpipe.triggers.statement import SnowpipeStatementTrigger

    limit = deferral_limit(task)
    task.defer(
        trigger=SnowpipeStatementTrigger(
            handle=handle,
            statement=statement.partition(" FILES = ")[0],
            snowflake_conn_id=task.snowflake_conn_id,
            poll_interval=seconds,
            deadline=None if limit is None else time.time() + limit.total_seconds(),
        ),
        method_name="execute_complete",
        kwargs={"begun": dict(begun)},
    )


# -- The COPY of staged files, for every operator that has one -------------------------------------------

log = logging.getLogger(__name__)
_MOST_REMOVED = 200
"""Files that one REMOVE names."""


def copy_into(
    hook: SnowpipeBulkHook,
    table: str,
    stage: str,
    options: Mapping[str, Any] | None = None,
    columns: Sequence[str] | None = None,
    expressions: Sequence[str] | None = None,
) -> CopyInto:
    """The statement that copies from a stage into a table, both of the hook's schema unless named otherwise.

    :param stage: the stage; files are named by their paths below it, whatever path it is given with
    :param options: parameters of :class:`~airflow_provider_snowpipe.bulk.copy.CopyOptions`
    :param columns: the columns to fill, None for all in their order
    :raises ConfigurationError: if an option is wrong
    """
    schema = hook.database_and_schema()
    root = replace(StageReference.parse(stage, *schema), path="")
    return CopyInto((*schema, table), root.location(), CopyOptions.of(options), columns, expressions)


@dataclass(slots=True)
class CopyLoad:
    """The COPY of staged files into a table, once per run of a task.

    :param copy: the statement; its location is the stage without a path
    :param on_rejected: as of :class:`SnowpipeCopyOperator`; so are ``on_nothing``, ``force`` and
        ``ledger_table``
    :param passes_over: True for a load whose runs take more than one way: what another way has loaded is
        skipped
    :param leave_worker: leaves the worker while a statement runs, None to wait here
    :param begun: versions of ledger entries when the task was deferred, None for a try that begins
    :param details: as of :class:`CopyRun`
    """

    hook: SnowpipeBulkHook
    copy: CopyInto
    choice: StagedChoice
    identity: RunIdentity
    _: KW_ONLY
    on_rejected: str = "fail"
    on_nothing: str = "fail"
    force: bool = False
    ledger_table: LedgerName = None
    passes_over: bool = False
    leave_worker: LeaveWorker | None = None
    begun: Mapping[str, int] | None = None
    details: Callable[[Sequence[str]], str] = lambda _: ""
    outcome: CopyOutcome | None = field(default=None, init=False)
    """What came of the files, once that is known."""
    copy_run: CopyRun | None = field(default=None, init=False)

    def run(self, planned: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Load the files.

        :raises NothingStagedError: if a file that is named, or any, is not there
        :raises FilesGivenTwiceError: if somebody else loads or has loaded one of them
        :raises FilesRejectedError: if one was not loaded as a whole, or rows of an earlier try are gone
        :raises SqlError: if a statement fails
        """
        is_fenced, table = not (self.force or self.copy.options.force), self.copy.table[-1]
        with self._prepared() as run:
            entries = run.entries()
            staged = self._staged(run, entries)
            run.url = staged.url
            entries = run.plan(staged.files, entries)
            try:
                planned()
                passed = self._refuse_others(run, staged) if is_fenced else {}
            except (FilesGivenTwiceError, SourceChangedError):
                run.give_up(entries)
                raise
            left = {path: file for path, file in staged.files.items() if path not in passed}
            outcome = run.judged(run.load(entries, left))
            self.outcome = replace(outcome, before=(*passed.values(), *outcome.before))
            if self.copy.options.purge:
                self._remove_loaded(files_of(run.ledger.entries(run.work)), staged, outcome)
            value = self.outcome.result()
            log.info(
                "%s: %d of %d files loaded, %d rows, %d rejected, %d files were loaded before",
                table,
                len(outcome.loads),
                len(staged.files),
                value["rows_loaded"],
                value["rejected"],
                len(self.outcome.before),
            )
            if unknown := [load for load in outcome.before if load.status == LOAD_SKIPPED]:
                self._warn_of_unknown(unknown)
            if is_fenced:
                self._refuse_others(run, staged, has_copied=True)
            self.outcome.require(self.on_rejected, table)
            return value

    def validated(self, mode: str) -> dict[str, Any]:
        """Have COPY validate the files, and load nothing.

        :param mode: as of :meth:`~airflow_provider_snowpipe.bulk.copy.CopyInto.validation`
        """
        files = list(self.choice.find(self.hook).files)
        if not files:
            self._refuse_nothing()
            self.outcome = CopyOutcome()
            return self.outcome.result()
        rows = self._validation_rows(mode, files)
        log.info(
            "%s: validation by %s of %d files: %d rows", self.copy.table[-1], mode, len(files), len(rows)
        )
        return {"validation_mode": mode, "files": len(files), "rows": rows}

    def preview(self) -> list[str]:
        """The statements that would be run, and the errors that the files would have; loads nothing."""
        files = list(self.choice.find(self.hook).files)
        parts = self.copy.parts(files)
        lines = [f"{len(part)} files: {self.copy.statement(part, is_own=True)}" for part in parts]
        if self.copy.not_validated is None and files:
            lines += map(str, self._validation_rows("RETURN_ERRORS", files))
        return lines

    def take_back(self) -> dict[str, FileLoad]:
        """Keep what is not committed of this work from being committed; the loads of what is, by path."""
        with self._prepared() as run:
            return run.take_back()

    def give_up(self) -> None:
        """Keep a COPY of an earlier try from being committed, before another loader gets its files."""
        with self._prepared() as run:
            run.give_up(run.entries())

    def stop(self) -> None:
        """Cancel the statement that runs: COPY then leaves the table as it was."""
        if self.copy_run is not None:
            self.copy_run.stop()

    @contextmanager
    def _prepared(self) -> Iterator[CopyRun]:
        """Sign in for the ledger and for the statements."""
        hook, table, choice = self.hook, self.copy.table[-1], self.choice.key()
        with (
            hook.load_ledger(table, self.ledger_table) as ledger,
            closing(hook.get_statement_client()) as client,
        ):
            self.copy_run = CopyRun(
                self.copy,
                StageReference.parse(self.copy.location),
                client,
                ledger,
                partial(hook.loads_of, table),
                self.identity,
                # With FORCE every choice of files is the same work.
                work_key(self.identity, ledger.target, "" if self.copy.options.force else choice),
                choice,
                leave=self.leave_worker,
                begun=self.begun,
                details=self.details,
            )
            yield self.copy_run

    def _staged(self, run: CopyRun, entries: Sequence[Entry]) -> StagedFiles:
        """The files to load: what is staged now; with FORCE, or after a deferral, what is planned already.

        :raises GivenUpError: if another task has given a file up, or all before any was planned
        """
        known, table = files_of(entries), self.copy.table[-1]
        is_whole = self.copy.options.force or self.begun is not None
        if self.identity.work is not None:
            # Another task may have planned some of the files.
            stage = StageReference.parse(self.choice.stage)
            chosen = {stage.below(path) for path in file_names(self.choice.files)}
            for one in entries:
                is_given_up = not one.choice or any(file.path in chosen for file in one.files)
                if one.state == GIVEN_UP and is_given_up:
                    raise GivenUpError(
                        f"COPY into {table}: another task has given this load of files up, and may "
                        "have loaded them another way. Nothing was loaded; run again"
                    )
            known = {path: file for path, file in known.items() if path in chosen}
            is_whole = len(known) == len(chosen)
        if known and is_whole:
            log.info("%s: %d files are planned already", table, len(known))
            run.listed = self.choice.find(self.hook, known).files
            return StagedFiles(known, run.stage, self.hook.stage_url(self.choice.stage))
        loaded = files_of(one for one in entries if one.is_loaded)
        found = self.choice.find(self.hook, loaded)
        is_empty = not (found.files or loaded)
        # Another try that has begun meanwhile may have removed files from the stage.
        if (is_empty or self.copy.options.purge) and len(run.ledger.entries(run.work)) > len(entries):
            raise SqlError(f"COPY into {table}: another try has begun meanwhile. Run again")
        if is_empty:
            self._refuse_nothing()
        return found

    def _refuse_others(
        self, run: CopyRun, staged: StagedFiles, *, has_copied: bool = False
    ) -> dict[str, FileLoad]:
        """Refuse files that pipes or other tasks load as well: when COPY is planned, and when it has run.

        :return: the loads of files that are skipped, by their paths
        :raises FilesGivenTwiceError: if somebody else loads or has loaded one of the others
        """
        if not staged.files:
            return {}
        if not has_copied:
            run.ledger.refuse_planned_by_others(run.work, None, staged.files, run.stage.key(run.url))
        table = self.copy.table[-1]
        # The queues first: what is loaded between the two questions is in history then.
        pipes = pipes_beside(self.hook, table, staged)
        history = self.hook.loads_of(table, list(staged.files))
        older: Sequence[FileLoad] = ()
        given: Container[tuple[str, str, str | None]] = ()
        if self.passes_over:
            given = run.ledger.given_files(list(staged.files), run.stage.key(run.url))
            if forgotten := unknown_since(staged, history):
                older = self.hook.older_copies(table, forgotten, by_pipes=True)
        passed = refuse_files_of_others(
            staged,
            history,
            table=table,
            now=dt.datetime.now(dt.UTC),
            older=older,
            passes_over=self.passes_over,
            given=given,
        )
        for one in pipes:
            refuse_files_for_pipe(one.without(passed), table=table, has_copied=has_copied)
        return passed

    def _refuse_nothing(self) -> None:
        """Refuse a stage without files, unless they may be missing.

        :raises NothingStagedError: to fail the task
        """
        if self.on_nothing == "fail":
            raise NothingStagedError(
                f"{self.choice} has no file for {self.copy.table[-1]}: stage the files before this "
                "task runs, or set on_nothing='report'"
            )
        log.info("nothing is staged for %s", self.copy.table[-1])

    def _remove_loaded(
        self, loaded: Mapping[str, StagedFile], staged: StagedFiles, outcome: CopyOutcome
    ) -> None:
        """Remove what is loaded as a whole from the stage; a changed file stays.

        COPY's own PURGE would remove files although the transaction is rolled back later.
        """
        now = self.choice.find(self.hook, loaded).files
        gone = [
            load.path
            for load in outcome.loads
            if load.status == LOADED
            and load.path in now
            and load.path in loaded
            and now[load.path].mark == loaded[load.path].mark
        ]
        root = StageReference.parse(self.copy.location)
        # A file's path may begin with the stage's own name, by which a pattern would match another one.
        named = "" if staged.url is not None else stage_prefix(root)
        with_name = bool(gone) and not (named and self.hook.list_files(str(root), named))
        for start in range(0, len(gone), _MOST_REMOVED):
            paths = gone[start : start + _MOST_REMOVED]
            begin = commonprefix(paths)  # noqa: RUF071  REMOVE takes any start of a path
            pattern = exact_pattern(staged, paths, with_name=with_name)
            self.hook.run_sql("REMOVE %s PATTERN = %s", (root.location(begin), pattern))

    def _warn_of_unknown(self, unknown: Sequence[FileLoad]) -> None:
        """Name files that COPY has left out and load history does not know: they may not be in the table."""
        log.warning(
            "%s: COPY has left out %d files that load history of the last 14 days does not know, such as "
            "%r (%s). They were loaded longer ago; or they are older than 64 days, so that COPY does not "
            "know whether they were loaded: load_uncertain_files=True loads those",
            self.copy.table[-1],
            len(unknown),
            unknown[0].path,
            unknown[0].first_error or "no message",
        )

    def _validation_rows(self, mode: str, files: Sequence[str]) -> list[dict[str, Any]]:
        statements = [self.copy.validation(mode, part) for part in self.copy.parts(files)]
        return [row for one in statements for row in self.hook.run_sql(one)]

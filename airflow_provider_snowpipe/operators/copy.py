"""The operator that copies staged files into a table, once per run."""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
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
from airflow_provider_snowpipe.bulk.load_history import may_have_run, running_statements
from airflow_provider_snowpipe.bulk.run_files import FirstTryFiles
from airflow_provider_snowpipe.bulk.staged_files import (
    FileLoad,
    StagedFiles,
    StageReference,
)
from airflow_provider_snowpipe.bulk.statement_client import CopyRun
from airflow_provider_snowpipe.bulk.two_loaders import NOT_AUTHORIZED, OtherLoaders
from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.lineage import ReportsLineage, TaskLineage
from airflow_provider_snowpipe.operators.account_operator import (
    CHOICE,
    AccountArguments,
    FileOperator,
    check_arguments,
    failing_at_once,
    run_identity,
)
from airflow_provider_snowpipe.streaming.errors import FilesRejectedError, NothingStagedError, SqlError
from airflow_provider_snowpipe.streaming.names import full_name

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_snowpipe.bulk.statement_client import Rows


class SnowpipeCopyOperator(ReportsLineage, FileOperator):
    """Load staged files into a table by COPY INTO: once per run, whatever becomes of worker and connection.

    The files are listed first, so every statement names its files. Each goes through the SQL API under a
    request id that every try of this task in this run derives alike, from DAG, run, task, map index,
    statement and the files' checksums: a try after an unknown outcome waits for a statement of an earlier one
    that still runs, and submits only what neither that nor load history knows. Each file's status is read
    from the result.

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
        self.deferrable = deferrable
        self.poll_interval = poll_interval
        self._load: CopyLoad | None = None
        self._listed: Mapping[str, Any] | None = None
        check_arguments(
            self,
            fail_or_report=["on_rejected", "on_nothing"],
            seconds=["poll_interval"],
            switches=["force", "deferrable"],
        )
        StagedChoice(stage, files, prefix, pattern).check()
        # Of what is no template; names and options may be one.
        written = CopyInto(("D", "S", "T"), "@S", columns=columns, expressions=expressions)
        if validation_mode is not None:
            written.validation(validation_mode)
        self.chosen_by = [name for name in CHOICE if getattr(self, name) is not None]

    def execute_complete(
        self, context: Context, event: Mapping[str, Any], listed: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Go on where the task was deferred: every statement is asked for by its request id.

        :param listed: the files that were listed before, None where a statement of an earlier try ran
        """
        if event.get("message"):
            self.log.warning("the triggerer could not wait: %s", event["message"])
        self._listed = listed
        return self.execute(context)

    def execute(self, context: Context) -> dict[str, Any]:
        """Do the work and return the task's value."""
        with failing_at_once():
            load = self._load = self._made(run_identity(context))
            try:
                return load.run() if self.validation_mode is None else load.validated(self.validation_mode)
            finally:  # files that are in the table are there in a task that fails for others, too
                if load.outcome is not None:
                    hook, rows = self.bulk_hook(self.table), load.outcome.result()["rows_loaded"]
                    self.task_lineage = TaskLineage(hook, sources=(self.stage,), rows=rows)
                    describe_file_load(self, context, hook, self.table, rows, "COPY")

    def on_kill(self) -> None:
        """Cancel the statement that runs: COPY then leaves the table as it was."""
        if self._load is not None:
            self._load.stop()

    def preview(self) -> list[str]:
        """Report which statements would be run, and which errors the files would have; loads nothing."""
        return self._made(RunIdentity((), dt.datetime.now(dt.UTC))).preview()

    def _made(self, identity: RunIdentity) -> CopyLoad:
        return CopyLoad(
            self.hook,
            copy_into(self.hook, self.table, self.stage, self.options, self.columns, self.expressions),
            StagedChoice(self.stage, self.files, self.prefix, self.pattern),
            identity,
            on_rejected=self.on_rejected,
            on_nothing=self.on_nothing,
            force=self.force,
            leave_worker=partial(wait_for_statement, self, self.poll_interval) if self.deferrable else None,
            listed=self._listed,
            resumed=self._listed is not None,
        )


def wait_for_statement(
    task: AccountArguments, seconds: float, listed: Mapping[str, Any] | None, handle: str, statement: str
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
        kwargs={"listed": listed},
    )


# -- The COPY of staged files, for every operator that has one -------------------------------------------

log = logging.getLogger(__name__)
LeaveWorker = Callable[[Mapping[str, Any] | None, str, str], NoReturn]
"""Defers the task, given the files that were listed, a statement's handle and its text."""


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
    database, schema = hook.database_and_schema()
    root = replace(StageReference.parse(stage), path="")
    location = root.location("", database=database, schema=schema)
    return CopyInto((database, schema, table), location, CopyOptions.of(options), columns, expressions)


@dataclass(slots=True)
class CopyLoad:
    """The COPY of staged files into a table, once per run of a task.

    :param copy: the statement; its location is the stage without a path
    :param on_rejected: as of :class:`SnowpipeCopyOperator`; so are ``on_nothing`` and ``force``
    :param passes_over: True for a load whose runs take more than one way: what another way has loaded is
        skipped
    :param leave_worker: leaves the worker while a statement runs, None to wait here
    :param listed: the files that COPY was given before the task was deferred, None to list them
    :param resumed: True where the task was deferred for this COPY
    """

    hook: SnowpipeBulkHook
    copy: CopyInto
    choice: StagedChoice
    identity: RunIdentity
    _: KW_ONLY
    on_rejected: str = "fail"
    on_nothing: str = "fail"
    force: bool = False
    passes_over: bool = False
    leave_worker: LeaveWorker | None = None
    listed: Mapping[str, Any] | None = None
    resumed: bool = False
    outcome: CopyOutcome | None = field(default=None, init=False)
    """What came of the files, once that is known."""
    _run: CopyRun | None = field(default=None, init=False)

    def run(self) -> dict[str, Any]:
        """Load the files.

        :raises NothingStagedError: if a file that is named, or any, is not there
        :raises FilesGivenTwiceError: if somebody else loads or has loaded one of them
        :raises FilesRejectedError: if one was not loaded as a whole
        :raises SqlError: if a statement fails
        """
        table, options = self.copy.table[-1], self.copy.options
        self.finish_earlier()
        staged = self._staged()
        if isinstance(staged, CopyOutcome):
            self.outcome = staged
            return staged.result()
        others = OtherLoaders(
            self.hook,
            table,
            self.identity,
            has_noted=self.resumed or self.identity.try_number > 1,
            is_forced=self.force or options.force,
            passes_over=self.passes_over,
        )
        if self.resumed:
            passed = (self.listed or {}).get("before", {})
            before = {path: FileLoad.from_result(path, one) for path, one in passed.items()}
        elif before := others.refuse(staged):
            staged = staged.without(before)
        wait, emptied, counted = None, bool((self.listed or {}).get("emptied")), None
        if options.force and self.identity.try_number > 1 and not self.resumed:
            # Without FORCE load history and COPY itself show what is gone.
            counted = self._known_count()
            emptied = counted == 0
        if self.leave_worker is not None:
            passed = {path: load.result() for path, load in before.items()}
            listed = {**staged.to_json(), "before": passed, "emptied": emptied}
            wait = partial(self._poll_or_leave, partial(self.leave_worker, listed))
        try:
            with closing(self.hook.get_statement_client()) as client:
                history, asks = partial(self.hook.loads_of, table), self._may_have_run
                count = self._count if emptied else None
                self._run = CopyRun(
                    self.copy, staged.stage, client, history, asks, self.identity, staged.url, count
                )
                outcome = self._run.load(list(staged.files.values()), wait)
        except SqlError:
            others.withdraw(staged)
            raise
        if counted is not None:
            self._refuse_missing_rows(outcome, counted)
        self.outcome = replace(outcome, before=(*before.values(), *outcome.before))
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
        others.refuse(staged, has_copied=True)
        self.outcome.require(self.on_rejected, table)
        return value

    def validated(self, mode: str) -> dict[str, Any]:
        """Have COPY validate the files, and load nothing.

        :param mode: as of :meth:`~airflow_provider_snowpipe.bulk.copy.CopyInto.validation`
        """
        files = list(self.choice.find(self.hook).files)
        if not files:
            self.outcome = self._nothing_staged()
            return self.outcome.result()
        rows = self._validation_rows(mode, files)
        log.info("%s: validation by %s of %d files: %d rows", self._table, mode, len(files), len(rows))
        return {"validation_mode": mode, "files": len(files), "rows": rows}

    def preview(self) -> list[str]:
        """The statements that would be run, and the errors that the files would have; loads nothing."""
        files = list(self.choice.find(self.hook).files)
        lines = [f"{len(part)} files: {statement}" for part, statement in self.copy.statements(files)]
        if self.copy.not_validated is None and files:
            lines += map(str, self._validation_rows("RETURN_ERRORS", files))
        return lines

    def stop(self) -> None:
        """Cancel the statement that runs: COPY then leaves the table as it was."""
        if self._run is not None:
            self._run.stop()

    @property
    def _table(self) -> str:
        return self.copy.table[-1]

    def finish_earlier(self) -> None:
        """Wait for a statement of an earlier try that runs, before the files are listed.

        For other files, as where one has arrived since, it has another request id, and may purge its own.

        :raises SqlError: if the account cannot be asked
        """
        if self.identity.try_number == 1:
            return
        database, _ = self.hook.database_and_schema()
        running = running_statements(self.hook.run_sql, database, self.identity.query_tag)
        if not running:
            return
        log.info("%s: %d statements of an earlier try run; they end first", self._table, len(running))
        with closing(self.hook.get_statement_client()) as client:
            stage, history = StageReference.parse(self.choice.stage), partial(self.hook.loads_of, self._table)
            self._run = CopyRun(self.copy, stage, client, history, self._may_have_run, self.identity)
            leave = None if self.leave_worker is None else partial(self.leave_worker, self.listed)
            for handle in running:
                self._run.finish(handle, None if leave is None else partial(self._poll_or_leave, leave))

    def _known_count(self) -> int | None:
        """The table's rows, None where the role may not count them.

        Where it has none, none of an earlier try is there, whatever that reports.
        """
        try:
            return self._count()
        except SqlError as error:
            if error.errno not in NOT_AUTHORIZED:
                raise
            log.warning(
                "whether %s still has what an earlier try loaded is not known: %s", self._table, error
            )
            return None

    def _refuse_missing_rows(self, outcome: CopyOutcome, counted: int) -> None:
        """Refuse the result of an earlier try of which rows are not in the table any more.

        Only where the table has fewer rows than the result is that known: others may be in it as well.

        :raises FilesRejectedError: if rows are missing
        """
        loaded = sum(load.rows_loaded for load in outcome.loads)
        found = counted if counted >= loaded else self._known_count()
        if found is None or found >= loaded:
            return
        raise FilesRejectedError(
            f"COPY into {self._table}: an earlier try of this run has loaded {loaded:,} rows of "
            f"{len(outcome.loads):,} files with force, and the table has {found:,}: some were deleted, or a "
            "policy hides them from this role. Nothing was loaded now: rows that are there would double. To "
            "load the files again, begin another run, or empty the table and clear this task",
            files=tuple(load.path for load in outcome.loads),
            rejected=0,
        )

    def _count(self) -> int:
        (row,) = self.hook.run_sql(f"SELECT COUNT(*) AS FOUND FROM {full_name(*self.copy.table)}")  # noqa: S608
        return int(row["found"])

    def _may_have_run(self, since: dt.datetime, statement: str | None = None) -> bool:
        """False where no statement of this run, or not this one, has ended well since then."""
        database, _ = self.hook.database_and_schema()
        return may_have_run(self.hook.run_sql, database, self.identity.query_tag, since, statement)

    def _staged(self) -> StagedFiles | CopyOutcome:
        """The files to load; where there are none, what an earlier try has loaded and removed."""
        stage, first = StageReference.parse(self.choice.stage), None
        if self.copy.options.force:
            first = FirstTryFiles(
                self.hook, self.identity, (*self.copy.table, self.copy.location), self.choice.key()
            )
            found, self.identity = first.read(stage, resumed=self.resumed)
            if found is not None:
                log.info("%s: the run's first try has listed %d files", self._table, len(found.files))
                return self._within_limit(found)
        if self.listed is not None:
            # The stage may have others now, or these no more (``purge``).
            return StagedFiles.from_json(self.listed, stage)
        try:
            found = self.choice.find(self.hook)
        except NothingStagedError:
            if (gone := self._purged()) is None:
                raise
            return gone
        if not found.files:
            return self._nothing_staged()
        return found if first is None else self._within_limit(first.keep(found, self.copy.options.size_limit))

    def _within_limit(self, staged: StagedFiles) -> StagedFiles:
        """Have COPY take all of the files or none where they are cut to the limit already."""
        if all(file.size is not None for file in staged.files.values()):
            self.copy = replace(self.copy, options=replace(self.copy.options, size_limit=None))
        return staged

    def _poll_or_leave(self, leave: Callable[[str, str], NoReturn], handle: str, statement: str) -> Rows:
        """Poll a few times, then leave the worker."""
        rows = None if self._run is None else self._run.poll(handle, statement)
        return leave(handle, statement) if rows is None else rows

    def _warn_of_unknown(self, unknown: Sequence[FileLoad]) -> None:
        """Name files that COPY has left out and load history does not know: they may not be in the table."""
        log.warning(
            "%s: COPY has left out %d files that load history of the last 14 days does not know, such as "
            "%r (%s). They were loaded longer ago, or pattern or size_limit leave them out, or they are "
            "older than 64 days, so that COPY does not know whether they were loaded: "
            "load_uncertain_files=True loads those",
            self._table,
            len(unknown),
            unknown[0].path,
            unknown[0].first_error or "no message",
        )

    def _nothing_staged(self) -> CopyOutcome:
        """What an earlier try has loaded and removed from a stage that has no such file now.

        :raises NothingStagedError: if that is nothing, and to fail the task
        """
        if self.on_nothing != "fail":
            log.info("nothing is staged for %s", self._table)
        gone = self._purged()
        if gone is None and self.on_nothing == "fail":
            raise NothingStagedError(
                f"stage {self.choice.stage!r} has no file for {self._table}: stage the files before this "
                "task runs, or set on_nothing='report'"
            )
        return gone or CopyOutcome()

    def _purged(self) -> CopyOutcome | None:
        """What an earlier try has loaded and removed from the stage."""
        if self.identity.try_number == 1 or not self.copy.options.purge:
            return None
        if not self._may_have_run(self.identity.since):
            return None  # whatever was loaded, another task has loaded it
        found = self.choice.loaded_and_gone(self.hook, self._table, self.identity.since)
        if found is not None:
            log.info("%s: an earlier try has loaded and removed %d files", self._table, len(found.loads))
            found.require(self.on_rejected, self._table)
        return found

    def _validation_rows(self, mode: str, files: Sequence[str]) -> list[dict[str, Any]]:
        parts = [self.copy.validation(mode, part) for part, _ in self.copy.statements(files)]
        return [row for part in parts for row in self.hook.run_sql(part)]

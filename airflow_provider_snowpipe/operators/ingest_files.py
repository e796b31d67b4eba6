"""The operator that gives staged files to a file pipe, and waits until they are loaded."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from airflow.providers.common.compat.sdk import conf

from airflow_provider_snowpipe.assets.events import describe_file_load
from airflow_provider_snowpipe.bulk.files_watch import Tolerance, load_failure
from airflow_provider_snowpipe.bulk.pipe_load import PipeFiles, PipeLoad, check_choice
from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.lineage import ReportsLineage, TaskLineage
from airflow_provider_snowpipe.operators.account_operator import (
    CHOICE,
    FILES_KEY,
    AccountArguments,
    FileOperator,
    check_arguments,
    failing_at_once,
    require_name,
    run_identity,
)
from airflow_provider_snowpipe.streaming.commits import RetryBudget

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_snowpipe.bulk.file_pipe import Submission


_MARGIN_SECONDS = 120.0


class SnowpipeIngestFilesOperator(ReportsLineage, FileOperator):
    """Give staged files to a file pipe by the Snowpipe REST API, and wait until it has loaded them.

    A pipe loads a file of one path once within 14 days, so every try may submit the same files. Files that
    COPY or another pipe has loaded, or another task is about to submit, are refused, and searched for once
    more in load history when they are loaded. What history shows the pipe to have loaded is not submitted
    again, since a pipe that was recreated has no memory of it; a failure of before does not count for a file
    that is.

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
    :param load_timeout: seconds to wait for the loads
    :param on_partial: ``fail`` or ``report`` a file that is loaded in part
    :param on_failed: the same for a file that failed to load
    :param on_unmatched: the same for files that the pipe's ``PATTERN`` leaves out
    :param on_nothing: the same for a stage without such a file
    :param retry_seconds: how long one post is repeated when the pipe is overloaded or does not answer
    :param deferrable: True waits in the triggerer
    :param poll_interval: seconds between two polls of the loads
    :param ledger_table: name of the load ledger, where a COPY of the same files sees this load, as of
        :class:`~airflow_provider_snowpipe.operators.copy.SnowpipeCopyOperator` (templated)
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
        "ledger_table",
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
        load_timeout: float = 3600.0,
        on_partial: str = "fail",
        on_failed: str = "fail",
        on_unmatched: str = "fail",
        on_nothing: str = "fail",
        retry_seconds: float = 600.0,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poll_interval: float = 15.0,
        max_consecutive_errors: int = 10,
        ledger_table: str | None = None,
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
        self.wait_for_load = wait_for_load
        self.load_timeout = load_timeout
        self.on_partial = on_partial
        self.on_failed = on_failed
        self.on_unmatched = on_unmatched
        self.on_nothing = on_nothing
        self.retry_seconds = retry_seconds
        self.deferrable = deferrable
        self.poll_interval = poll_interval
        self.max_consecutive_errors = max_consecutive_errors
        self.ledger_table = ledger_table
        self._tolerance()
        RetryBudget(self.max_consecutive_errors)
        seconds = ("load_timeout", "retry_seconds", "poll_interval")
        check_arguments(
            self,
            fail_or_report=("on_unmatched", "on_nothing"),
            seconds=seconds,
            switches=("force", "wait_for_load", "deferrable"),
        )
        check_choice(self.files, self.stage, self.prefix, self.pattern)
        self.chosen_by = [name for name in CHOICE if getattr(self, name) is not None]

    @cached_property
    def hook(self) -> SnowpipeBulkHook:
        """The hook of the pipe; made when first asked for, after templates are rendered."""
        return self.bulk_hook(self.table, require_name("pipe", self.pipe))

    def execute(self, context: Context) -> dict[str, Any]:
        """Submit the files, and wait.

        :raises NothingStagedError: if the stage has no such file
        :raises FilesGivenTwiceError: if COPY or another pipe has loaded one of the files, before or
            meanwhile, or another task is about to
        :raises FilesRejectedError: if a file did not load as a whole, or the pipe leaves it out
        :raises FilesNotLoadedError: if the time is over
        """
        with failing_at_once():
            load = self._made()
            announce = partial(context["ti"].xcom_push, FILES_KEY)
            leave = partial(wait_for_pipe, self, load) if self.deferrable else None
            value, loads = load.run(run_identity(context), announce, leave)
            return value if loads is None else self._loaded(context, load, value, loads)

    def execute_complete(
        self, context: Context, event: Mapping[str, Any], submitted: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Go on where the task was deferred.

        :param submitted: what the task reported before
        :raises AirflowFailException: if a file did not load
        """
        with failing_at_once():
            if event["status"] != "success":
                raise load_failure(event["reason"], event["message"])
            return self._loaded(context, self._made(), submitted, event["files"])

    def preview(self) -> list[str]:
        """Report which files would be submitted."""
        submission = self._made().planned()
        owed = submission.owed()
        lines = [
            f"would submit {len(owed):,} of {len(submission.files):,} files to pipe "
            f"{self.pipe_name(self.pipe)}; {len(submission.before):,} were loaded before"
        ]
        return lines + [f"would submit {one.path}" for one in owed]

    def _made(self) -> PipeLoad:
        pipe = self.pipe_name(self.pipe)
        return PipeLoad(
            PipeFiles(self.hook, pipe, self.files, self.stage, self.prefix, self.pattern),
            self.table,
            tolerance=self._tolerance(),
            force=self.force,
            on_unmatched=self.on_unmatched,
            on_nothing=self.on_nothing,
            wait_for_load=self.wait_for_load,
            load_timeout=self.load_timeout,
            retry_seconds=self.retry_seconds,
            poll_interval=self.poll_interval,
            max_consecutive_errors=self.max_consecutive_errors,
            ledger_table=self.ledger_table,
        )

    def _loaded(
        self, context: Context, load: PipeLoad, value: Mapping[str, Any], loads: Mapping[str, Any]
    ) -> dict[str, Any]:
        if self.table:
            hook, rows = self.bulk_hook(self.table), sum(int(one["rows_loaded"]) for one in loads.values())
            self.task_lineage = TaskLineage(hook, sources=(self.stage,) if self.stage else (), rows=rows)
            describe_file_load(self, context, hook, self.table, rows, value["pipe"])
        return load.checked(run_identity(context), value, loads)

    def _tolerance(self) -> Tolerance:
        return Tolerance(self.on_partial, self.on_failed)


def wait_for_pipe(
    task: AccountArguments, load: PipeLoad, submission: Submission, value: dict[str, Any]
) -> NoReturn:
    """Leave the worker until a pipe has loaded files; the task's ``execute_complete`` comes back.

    :raises TaskDeferred: always
    """
    from airflow_provider_snowpipe.triggers.commit import deferral_limit
    from airflow_provider_snowpipe.triggers.files_loaded import SnowpipeFilesLoadedTrigger

    expected = submission.expected()
    task.defer(
        trigger=SnowpipeFilesLoadedTrigger(
            files=list(expected.names),
            stage=None if expected.stage is None else str(expected.stage),
            stage_url=expected.url,
            table=load.table,
            pipe=load.files.pipe.pipe,
            database=task.database,
            schema=task.schema,
            snowflake_conn_id=task.snowflake_conn_id,
            since=None if submission.since is None else submission.since.isoformat(),
            on_partial=load.tolerance.partial,
            on_failed=load.tolerance.failed,
            poll_interval=load.poll_interval,
            max_consecutive_errors=load.max_consecutive_errors,
            deadline=time.time() + load.load_timeout,
            timeout=load.load_timeout,
        ),
        method_name="execute_complete",
        kwargs={"submitted": value},
        timeout=deferral_limit(task, load.load_timeout + _MARGIN_SECONDS),
    )

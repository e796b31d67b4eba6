"""The sensor that lets downstream tasks run only when files are loaded."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowException, AirflowSensorTimeout

from airflow_provider_snowpipe.bulk.files_watch import FilesFailure, FilesWatch, Tolerance
from airflow_provider_snowpipe.bulk.load_history import PolledLoads, poll_loads, timestamp
from airflow_provider_snowpipe.bulk.other_loaders import NOT_AUTHORIZED
from airflow_provider_snowpipe.bulk.staged_files import ExpectedFiles, FileChoice, StageReference
from airflow_provider_snowpipe.sensors.commit import WaitSensor
from airflow_provider_snowpipe.streaming.commits import RetryBudget
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, NothingStagedError, SqlError
from airflow_provider_snowpipe.triggers.commit import poll_retry
from airflow_provider_snowpipe.triggers.files_loaded import SnowpipeFilesLoadedTrigger

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class SnowpipeFilesLoadedSensor(WaitSensor):
    """Succeed only when files are loaded into a table, by COPY or by a file pipe; fail when one is not.

    The facts are Snowflake's load history: the pipe's own report where ``pipe`` is given and the connection
    has a key pair, ``COPY_HISTORY`` of ``table`` otherwise, and where the report does not answer. Of several
    loads of a file the newest counts. History goes back 14 days and is cleared with the table.

    The task's value is ``{path: {"status", "rows_loaded", "rows_parsed", "errors_seen", "first_error"}}``; a
    first error is ``{"message", "line", "character", "column"}``, or None.

    Deferred sensors that name the same table and pipe share one poll.

    :param files: paths below the stage, or below ``stage`` where it is given: a list, its JSON text, an XCom,
        or a function of ``context`` and ``jinja_env`` that returns a list (templated)
    :param prefix: instead of files: those that ``stage`` lists with it, or any ``count`` (templated)
    :param count: with ``prefix``, the number of different files, instead of a list of them (templated)
    :param stage: where the files are: ``@[database.schema.]stage[/path]``, ``@%table`` or ``@~`` (templated)
    :param table: the table that the files are loaded into; may be left out with ``pipe`` (templated)
    :param pipe: the file pipe that loads them; None for any load into the table (templated)
    :param since: loads before this time do not count, as of a file that was fixed; ISO 8601 (templated)
    :param on_partial: ``fail`` ends the wait when a file is loaded in part, ``report`` accepts it
    :param on_failed: the same for a file that failed to load
    :param start_from_trigger: with ``deferrable``, no poll in a worker before, so nothing is listed either;
        has no effect on mapped tasks and, before Airflow 3.3, where an argument is a template
    :param poke_interval: seconds between two polls, deferred or not; 15 unless given
    :param kwargs: those of :class:`~airflow_provider_snowpipe.sensors.commit.WaitSensor` and of all sensors
    :raises ConfigurationError: if an argument is wrong
    """

    template_fields: Sequence[str] = (
        "files",
        "prefix",
        "count",
        "stage",
        "table",
        "pipe",
        "database",
        "schema",
        "snowflake_conn_id",
        "since",
    )
    trigger_class = SnowpipeFilesLoadedTrigger
    reasons = FilesFailure
    memory_key = "snowpipe_files_watch"
    margin_seconds = 120.0  # the trigger's own time limit is first, which names the files

    def __init__(
        self,
        *,
        files: Any = None,
        prefix: str | None = None,
        count: int | str | None = None,
        stage: str | None = None,
        since: Any = None,
        on_partial: str = "fail",
        on_failed: str = "fail",
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("poke_interval", 15)
        super().__init__(**kwargs)
        self.files = files
        self.prefix = prefix
        self.count = count
        self.stage = stage
        self.since = since
        self.on_partial = on_partial
        self.on_failed = on_failed
        self._choice().check()
        if self.table is None and self.pipe is None:
            raise ConfigurationError(
                "no table and no pipe: give table=…, the table that the files are loaded into, or pipe=…, "
                "the file pipe that loads them"
            )
        Tolerance(on_partial, on_failed)
        RetryBudget(self.max_consecutive_errors)
        if self.start_from_trigger and stage is not None:
            raise ConfigurationError(
                f"stage is {stage!r} with start_from_trigger=True, where nothing is listed: give the "
                "files, or prefix and count, with their whole paths below the stage"
            )
        self._allow_start()

    def execute(self, context: Context) -> Any:
        """Poll once, then wait in the worker or, when deferrable, in the triggerer.

        :raises AirflowSensorTimeout: if the time is over; names the files that are missing
        """
        try:
            return super().execute(context)
        except AirflowSensorTimeout as error:
            if self._watch is None:
                raise
            text = self._watch.expired(self.timeout).message
            raise self._failure(FilesFailure.TIMEOUT.value, text) from error

    def _begin(self, context: Context, kept: Mapping[str, Any] | None) -> FilesWatch:
        if kept is not None and kept["names"]:
            files = ExpectedFiles(tuple(kept["names"]))  # as an earlier poll has listed them
        else:
            self._choice().check()  # again, since a template may be rendered to None
            try:
                files = self._choice().expected(self._hook().list_stage)
            except NothingStagedError as error:
                raise AirflowException(f"{FilesFailure.NO_FILES}: {error}") from error
            self.log.info("waiting for %d files", files.total)
        if files.total:
            files = replace(files, **self._stage_of_files())
        tolerance = Tolerance(self.on_partial, self.on_failed)
        return FilesWatch(files, timestamp(self.since), tolerance, RetryBudget(self.max_consecutive_errors))

    def _ask(self, watch: FilesWatch) -> PolledLoads:
        if self._client is None:
            self._client = self._hook().get_load_history(retry=poll_retry())
        answer = poll_loads(self._client, watch.question)
        if answer.error is not None:
            self._disconnect()  # the next one is made from settings that may have changed
        return answer

    def _ended(self, context: Context, value: Any, *, resumed: bool) -> Any:
        if resumed:
            self.log.info("%d files loaded", len(value))
        return value

    def _stage_of_files(self) -> dict[str, Any]:
        """The stage, and what an external one stands for, since loads of other stages are reported as well.

        A role that may not see the stage takes files by their paths. A pipe may have been recreated, too.
        """
        if not self.stage:
            return {}
        hook = self._hook()
        try:
            url = hook.stage_url(self.stage)
        except SqlError as error:
            if error.errno not in NOT_AUTHORIZED:
                raise
            self.log.warning("files of these paths count from every stage: %s", error)
            return {}
        stage = StageReference.parse(self.stage, *hook.database_and_schema())
        return {"stage": replace(stage, path=""), "url": url}

    def _found(self) -> dict[str, Any]:
        watch: FilesWatch = self._watch
        stage = watch.expected.stage
        return {
            "stage": None if stage is None else f"@{stage.owner}{stage.name}",
            "stage_url": watch.expected.url,
            "files": watch.expected.names,
            "prefix": watch.expected.prefix,
            "count": watch.expected.count,
            "since": watch.since.isoformat(),
            "deadline": time.time() + self.timeout,
        }

    def _choice(self) -> FileChoice:
        return FileChoice(self.files, self.prefix, self.count, self.stage)

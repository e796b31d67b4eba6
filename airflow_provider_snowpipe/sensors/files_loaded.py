"""The sensor that lets downstream tasks run only when files are loaded."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    BaseSensorOperator,
    PokeReturnValue,
    conf,
)

from airflow_provider_snowpipe.bulk.file_choice import FileChoice
from airflow_provider_snowpipe.bulk.files_watch import FilesFailure, FilesVerdict, FilesWatch, Tolerance
from airflow_provider_snowpipe.bulk.load_history import look_at, moment
from airflow_provider_snowpipe.bulk.wanted_files import WantedFiles
from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.sensors.reschedule_memory import RescheduleMemory
from airflow_provider_snowpipe.streaming.commit_wait import WaitState
from airflow_provider_snowpipe.streaming.commit_watch import Patience
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, NothingStagedError, SnowpipeError
from airflow_provider_snowpipe.triggers.files_loaded import POLL_BUDGET_SECONDS, SnowpipeFilesLoadedTrigger

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_snowpipe.bulk.load_history import LoadHistory

_MEMORY_KEY = "snowpipe_files_watch"
_MARGIN_SECONDS = 120.0
"""Airflow's own time limit of the deferred task lies so much after the trigger's, which names the files."""
_RETRYABLE = frozenset({FilesFailure.TOO_MANY_ERRORS.value, FilesFailure.REFUSED.value})


class SnowpipeFilesLoadedSensor(BaseSensorOperator):
    """Succeed only when files are loaded into a table, by COPY or by a file pipe; fail when one is not.

    The facts are Snowflake's load history: the pipe's own report where ``pipe`` is given and the connection
    has a key pair, ``COPY_HISTORY`` of ``table`` otherwise, and where the report does not answer. Of several
    loads of a file the newest counts. History goes back 14 days and is cleared with the table.

    The task's value is ``{path: {"status", "rows_loaded", "rows_parsed", "errors_seen", "first_error"}}``; a
    first error is ``{"message", "line", "character", "column"}``, or None.

    Deferred sensors that name the same table and pipe share one poll.

    :param files: paths below the stage, or below ``stage`` where it is given: a list, its JSON text, an XCom,
        or a function of ``context`` and ``jinja_env`` that returns a list (templated)
    :param prefix: instead of files, all whose path begins so: those that ``stage`` lists at the first look,
        or any ``count`` of them (templated)
    :param count: with ``prefix``, the number of different files, instead of a list of them (templated)
    :param stage: where the files are: ``@stage``, ``@database.schema.stage``, ``@%table`` or ``@~``, with or
        without a path (templated)
    :param table: the table that the files are loaded into; may be left out with ``pipe`` (templated)
    :param pipe: the file pipe that loads them; None for any load into the table (templated)
    :param database: database of table, pipe and stage, None for the connection's (templated)
    :param schema: their schema, None for the connection's (templated)
    :param snowflake_conn_id: the connection's id (templated)
    :param since: loads before this moment do not count, such as one that failed before the file was mended;
        a moment or its text in ISO 8601 (templated)
    :param on_partial: ``fail`` ends the wait when a file is loaded in part, ``report`` accepts it
    :param on_failed: the same for a file that failed to load
    :param deferrable: True waits in the triggerer, after one look in the worker
    :param max_consecutive_errors: fail after this many looks in a row that failed for a passing reason
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
    ui_color = "#d3edf9"

    def __init__(
        self,
        *,
        files: Any = None,
        prefix: str | None = None,
        count: int | str | None = None,
        stage: str | None = None,
        table: str | None = None,
        pipe: str | None = None,
        database: str | None = None,
        schema: str | None = None,
        snowflake_conn_id: str = SnowpipeHook.default_conn_name,
        since: Any = None,
        on_partial: str = "fail",
        on_failed: str = "fail",
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        max_consecutive_errors: int = 10,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("poke_interval", 15)
        super().__init__(**kwargs)
        self.files = files
        self.prefix = prefix
        self.count = count
        self.stage = stage
        self.table = table
        self.pipe = pipe
        self.database = database
        self.schema = schema
        self.snowflake_conn_id = snowflake_conn_id
        self.since = since
        self.on_partial = on_partial
        self.on_failed = on_failed
        self.deferrable = deferrable
        self.max_consecutive_errors = max_consecutive_errors
        self._watch: FilesWatch | None = None
        self._history: LoadHistory | None = None
        self._check_arguments()

    def execute(self, context: Context) -> Any:
        """Look once, then wait in the worker or, when deferrable, in the triggerer."""
        try:
            if not self.deferrable:
                return self._wait_here(context)
            seen = self._first_look(context)
        finally:
            self._disconnect()
        if seen.is_done:
            return seen.xcom_value
        self.defer(
            trigger=self._trigger(),
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout + _MARGIN_SECONDS),
        )

    def poke(self, context: Context) -> PokeReturnValue:
        """Look at the load history once.

        :raises AirflowFailException: if the wait cannot end well, or the settings are wrong
        :raises AirflowException: if it failed for a reason that may pass
        """
        try:
            verdict = self._look(context)
        except ConfigurationError as error:
            raise AirflowFailException(f"{FilesFailure.CONFIGURATION}: {error}") from error
        except NothingStagedError as error:
            raise AirflowException(f"{FilesFailure.NO_FILES}: {error}") from error
        except SnowpipeError as error:
            raise AirflowException(f"{FilesFailure.REFUSED}: {error}") from error
        if verdict.state is WaitState.FAILED:
            raise _failure(str(verdict.reason), verdict.message)
        self.log.log(logging.WARNING if verdict.message else logging.INFO, "%s", verdict)
        return PokeReturnValue(verdict.state is WaitState.COMPLETE, dict(verdict.results))

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Turn the trigger's event into the task's end.

        :param event: the payload
        :return: what became of each file
        :raises AirflowSensorTimeout: if the time is over; names the files that are missing
        :raises AirflowFailException: if the wait failed for a reason that a retry cannot mend
        :raises AirflowException: if it failed for another one
        """
        if event["status"] == "success":
            files: dict[str, Any] = event["files"]
            self.log.info("%d files loaded", len(files))
            return files
        raise _failure(event["reason"], event["message"])

    def _wait_here(self, context: Context) -> Any:
        """Wait in the worker; a time-out says which files are missing."""
        try:
            return super().execute(context)
        except AirflowSensorTimeout as error:
            if self._watch is None:
                raise
            raise _failure(FilesFailure.TIMEOUT.value, self._watch.expired(self.timeout).message) from error

    def _first_look(self, context: Context) -> PokeReturnValue:
        """Poke with the meaning that ``soft_fail`` and ``never_fail`` have in the mode ``poke``."""
        try:
            return self.poke(context)
        except AirflowException as error:
            if self.never_fail or (self.soft_fail and isinstance(error, AirflowFailException)):
                raise AirflowSkipException(str(error)) from error
            raise

    def _look(self, context: Context) -> FilesVerdict:
        memory = None
        if self.reschedule and not self.deferrable:
            memory = RescheduleMemory(context, _MEMORY_KEY)
        if self._watch is None:
            kept = None if memory is None else memory.kept()
            self._watch = self._new_watch(kept)
            if kept is not None:
                self._watch.recall(kept)
        look = look_at(self._connected(), [self._watch.question])
        if look.error is not None:
            self._disconnect()
        verdict = self._watch.see(look, time.time())
        if memory is not None:
            memory.keep(self._watch, done=verdict.state is not WaitState.WAITING)
        return verdict

    def _new_watch(self, kept: Mapping[str, Any] | None) -> FilesWatch:
        return FilesWatch(
            self._wanted(kept),
            moment(self.since),
            Tolerance(self.on_partial, self.on_failed),
            Patience(self.max_consecutive_errors),
        )

    def _wanted(self, kept: Mapping[str, Any] | None) -> WantedFiles:
        """The files by name where they have names, which an earlier look may have listed."""
        if kept is not None and kept["names"]:
            return WantedFiles(tuple(kept["names"]))
        choice = FileChoice(self.files, self.prefix, self.count, self.stage)
        wanted = choice.wanted(self._hook().list_stage)
        self.log.info("waiting for %d files", wanted.total)
        return wanted

    def _check_arguments(self) -> None:
        """Find what no rendering can mend."""
        FileChoice(self.files, self.prefix, self.count, self.stage).check()
        if self.table is None and self.pipe is None:
            raise ConfigurationError(
                "no table and no pipe: give table=…, the table that the files are loaded into, or pipe=…, "
                "the file pipe that loads them"
            )
        Tolerance(self.on_partial, self.on_failed)
        Patience(self.max_consecutive_errors)

    def _hook(self) -> SnowpipeHook:
        return SnowpipeHook(
            self.snowflake_conn_id,
            table=self.table,
            pipe=self.pipe,
            database=self.database,
            schema=self.schema,
        )

    def _connected(self) -> LoadHistory:
        from airflow_provider_snowpipe.streaming.retry import RetryPolicy

        if self._history is None:
            self._history = self._hook().get_load_history(
                retry=RetryPolicy(budget_seconds=POLL_BUDGET_SECONDS)
            )
        return self._history

    def _disconnect(self) -> None:
        history, self._history = self._history, None
        if history is not None:
            history.close()

    def _trigger(self) -> SnowpipeFilesLoadedTrigger:
        if self._watch is None:
            raise RuntimeError("the sensor defers after its first look only")
        wanted = self._watch.wanted
        return SnowpipeFilesLoadedTrigger(
            files=wanted.names,
            prefix=wanted.prefix,
            count=wanted.count,
            table=self.table,
            pipe=self.pipe,
            database=self.database,
            schema=self.schema,
            snowflake_conn_id=self.snowflake_conn_id,
            since=self._watch.question.since.isoformat(),
            on_partial=self.on_partial,
            on_failed=self.on_failed,
            poll_interval=self.poke_interval,
            max_consecutive_errors=self.max_consecutive_errors,
            deadline=time.time() + self.timeout,
            timeout=self.timeout,
        )


def _failure(reason: str, message: str) -> AirflowException:
    """Build the error that ends the task; only a reason that may pass leaves the task its retries."""
    if reason == FilesFailure.TIMEOUT.value:
        return AirflowSensorTimeout(f"{reason}: {message}")
    kind = AirflowException if reason in _RETRYABLE else AirflowFailException
    return kind(f"{reason}: {message}")

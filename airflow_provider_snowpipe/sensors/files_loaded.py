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
    BaseSensorOperator,
    PokeReturnValue,
    conf,
)
from airflow.triggers.base import StartTriggerArgs

from airflow_provider_snowpipe.bulk.file_choice import FileChoice
from airflow_provider_snowpipe.bulk.files_watch import FilesFailure, FilesVerdict, Tolerance
from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.sensors.deferral import check_deferral, first_look
from airflow_provider_snowpipe.sensors.files_look import FilesLook
from airflow_provider_snowpipe.sensors.reschedule_memory import RescheduleMemory
from airflow_provider_snowpipe.sensors.triggerer_templates import can_start_there, rendered_in_triggerer
from airflow_provider_snowpipe.streaming.commit_wait import WaitState
from airflow_provider_snowpipe.streaming.commit_watch import Patience
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, NothingStagedError, SnowpipeError
from airflow_provider_snowpipe.triggers.files_loaded import SnowpipeFilesLoadedTrigger

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

_MEMORY_KEY = "snowpipe_files_watch"
_MARGIN_SECONDS = 120.0
"""Airflow's own time limit of the deferred task lies so much after the trigger's, which names the files."""


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
    :param start_from_trigger: with ``deferrable``, no look in a worker before, so nothing is listed either;
        has no effect on mapped tasks and, before Airflow 3.3, where an argument is a template
    :param end_from_trigger: with ``deferrable``, success ends the task without a worker; see
        :class:`SnowpipeCommitSensor` for what then does not happen
    :param max_consecutive_errors: fail after this many looks in a row that failed for a passing reason
    :param poke_interval: seconds between two looks, deferred or not; 15 unless given
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
        start_from_trigger: bool = False,
        end_from_trigger: bool = False,
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
        self.start_from_trigger = start_from_trigger
        self.end_from_trigger = end_from_trigger
        self.max_consecutive_errors = max_consecutive_errors
        self._look: FilesLook | None = None
        self._check_arguments()
        if start_from_trigger:
            self.start_trigger_args = arguments = self._start_trigger_args()
            self.start_from_trigger = can_start_there((arguments.trigger_kwargs or {}).values())

    def execute(self, context: Context) -> Any:
        """Look once, then wait in the worker or, when deferrable, in the triggerer."""
        try:
            if not self.deferrable:
                return self._wait_here(context)
            seen = first_look(self, context)
        finally:
            if self._look is not None:
                self._look.close()
        if seen.is_done or self._look is None:
            return seen.xcom_value
        watch = self._look.watch
        self.defer(
            trigger=SnowpipeFilesLoadedTrigger(
                **self._trigger_arguments(),
                files=watch.wanted.names,
                prefix=watch.wanted.prefix,
                count=watch.wanted.count,
                since=watch.question.since.isoformat(),
                deadline=time.time() + self.timeout,
            ),
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout + _MARGIN_SECONDS),
        )

    def poke(self, context: Context) -> PokeReturnValue:
        """Look at the load history once.

        :raises AirflowFailException: if the wait cannot end well, or the settings are wrong
        :raises AirflowException: if it failed for a reason that may pass
        """
        try:
            verdict = self._looked(context)
        except ConfigurationError as error:
            raise AirflowFailException(f"{FilesFailure.CONFIGURATION}: {error}") from error
        except NothingStagedError as error:
            raise AirflowException(f"{FilesFailure.NO_FILES}: {error}") from error
        except SnowpipeError as error:
            reason = FilesFailure.TOO_MANY_ERRORS if error.retryable else FilesFailure.REFUSED
            raise _failure(reason.value, str(error)) from error
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
            if self._look is None:
                raise
            raise _failure(
                FilesFailure.TIMEOUT.value, self._look.watch.expired(self.timeout).message
            ) from error

    def _looked(self, context: Context) -> FilesVerdict:
        if self._look is None:
            rescheduled = self.reschedule and not self.deferrable
            self._look = FilesLook(
                SnowpipeHook(
                    self.snowflake_conn_id,
                    table=self.table,
                    pipe=self.pipe,
                    database=self.database,
                    schema=self.schema,
                ),
                FileChoice(self.files, self.prefix, self.count, self.stage),
                self.since,
                Tolerance(self.on_partial, self.on_failed),
                Patience(self.max_consecutive_errors),
                RescheduleMemory(context, _MEMORY_KEY) if rescheduled else None,
            )
        return self._look.look()

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
        check_deferral(
            deferrable=self.deferrable,
            start_from_trigger=self.start_from_trigger,
            end_from_trigger=self.end_from_trigger,
        )
        if self.start_from_trigger and self.stage is not None:
            raise ConfigurationError(
                f"stage is {self.stage!r} with start_from_trigger=True, where nothing is listed: give the "
                "files, or prefix and count, with their whole paths below the stage"
            )

    def _start_trigger_args(self) -> StartTriggerArgs:
        """Tell the scheduler how to start the trigger, which renders the templates itself."""
        given = {"files": self.files, "prefix": self.prefix, "count": self.count, "since": self.since}
        arguments = {**self._trigger_arguments(), **given}
        for name in self.template_fields:
            if name in arguments:
                arguments[name] = rendered_in_triggerer(name, arguments[name])
        return StartTriggerArgs(
            trigger_cls=f"{SnowpipeFilesLoadedTrigger.__module__}.{SnowpipeFilesLoadedTrigger.__qualname__}",
            trigger_kwargs=arguments,
            next_method="execute_complete",
            timeout=timedelta(seconds=self.timeout + _MARGIN_SECONDS),
        )

    def _trigger_arguments(self) -> dict[str, Any]:
        """What the trigger is told in both ways of starting it."""
        return {
            "table": self.table,
            "pipe": self.pipe,
            "database": self.database,
            "schema": self.schema,
            "snowflake_conn_id": self.snowflake_conn_id,
            "on_partial": self.on_partial,
            "on_failed": self.on_failed,
            "poll_interval": self.poke_interval,
            "max_consecutive_errors": self.max_consecutive_errors,
            "timeout": self.timeout,
            "end_from_trigger": self.end_from_trigger,
        }


def _failure(reason: str, message: str) -> AirflowException:
    """Build the error that ends the task; only a reason that may pass leaves the task its retries."""
    if reason == FilesFailure.TIMEOUT.value:
        return AirflowSensorTimeout(f"{reason}: {message}")
    kind = AirflowException if FilesFailure(reason).error_class.retryable else AirflowFailException
    return kind(f"{reason}: {message}")

"""The notifier that reports how far channels are, for deadlines and callbacks."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseNotifier

from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook, refuse_two_pipes
from airflow_provider_snowpipe.streaming.errors import (
    ApiError,
    AuthenticationError,
    ConfigurationError,
    RetriesExhaustedError,
    SqlError,
)
from airflow_provider_snowpipe.streaming.lag import LagReport
from airflow_provider_snowpipe.streaming.names import channel_names
from airflow_provider_snowpipe.streaming.offsets import offset_class
from airflow_provider_snowpipe.streaming.progress import CommitTargets

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

REPORT_KEY = "lag_report"
_BUDGET_SECONDS = 60.0
# What is reported as a state of affairs: the service is out of reach, refuses, or has no such pipe.
_UNANSWERED = (ApiError, AuthenticationError, RetriesExhaustedError, SqlError)


class SnowpipeLagNotifier(BaseNotifier):
    """Report how far the channels of a pipe are: committed tokens, rows, rejected rows, latency, lag, files.

    The report goes into the log, as a warning where a channel is late, and to another notifier if one is
    given, whose templates find it as ``lag_report``. Where the service cannot be asked, or knows no such
    pipe, the report has that. It runs in the triggerer, as the callback of a ``DeadlineAlert``, and wherever
    Airflow runs the callbacks of DAGs and tasks.

    :param table: the channels belong to this table's default pipe (templated)
    :param pipe: the channels belong to this pipe; not together with ``table`` (templated)
    :param database: the pipe's database, None for the connection's (templated)
    :param schema: the pipe's schema, None for the connection's (templated)
    :param snowflake_conn_id: a connection of type ``snowflake`` or ``snowpipe`` (templated)
    :param channels: names, or JSON; None for those with a target, without targets for all (templated)
    :param targets: the offset token that each channel should have committed, as
        :class:`SnowpipeCommitSensor` takes it; None reports without a judgement (templated)
    :param offset_format: the format of plain targets; None where the targets carry it
    :param max_channels: how many channels the report names, the late ones first
    :param notifier: a notifier that passes the report on, or the dotted path of its class
    :param notifier_arguments: arguments of that class, such as ``{"text": "{{ lag_report }}"}``
    :param kwargs: ``context``, where Airflow gives it (3.1 and later)
    :raises ConfigurationError: if an argument is wrong
    """

    template_fields: Sequence[str] = (
        "table",
        "pipe",
        "database",
        "schema",
        "snowflake_conn_id",
        "channels",
        "targets",
    )

    def __init__(
        self,
        *,
        table: str | None = None,
        pipe: str | None = None,
        database: str | None = None,
        schema: str | None = None,
        snowflake_conn_id: str = SnowpipeHook.default_conn_name,
        channels: Sequence[str] | str | None = None,
        targets: Mapping[str, Any] | str | None = None,
        offset_format: str | None = None,
        max_channels: int = 20,
        notifier: BaseNotifier | str | None = None,
        notifier_arguments: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.pipe = pipe
        self.database = database
        self.schema = schema
        self.snowflake_conn_id = snowflake_conn_id
        self.channels = channels
        self.targets = targets
        self.offset_format = offset_format
        self.max_channels = max_channels
        self.notifier = notifier
        self.notifier_arguments = notifier_arguments
        refuse_two_pipes(table, pipe)
        if notifier_arguments is not None and not isinstance(notifier, str):
            raise ConfigurationError("notifier_arguments is given: name the notifier's class, notifier='…'")
        if isinstance(max_channels, bool) or not isinstance(max_channels, int) or max_channels < 1:
            raise ConfigurationError(f"max_channels is {max_channels!r}: give a whole number of 1 or more")
        if offset_format is not None:
            offset_class(offset_format)

    def notify(self, context: Context) -> None:
        """Report, waiting for the service in this thread."""
        passed_on = self._report(context, self._asked(SnowpipeHook.of(self)))
        if passed_on is not None:
            passed_on(context)

    async def async_notify(self, context: Context) -> None:
        """Report without blocking the event loop of the triggerer."""
        from asgiref.sync import sync_to_async

        hook = SnowpipeHook.of(self)
        await hook.in_thread(
            hook.pipe_name
        )  # reads the connection, for which only an event loop may wait here
        # From its thread, variables and connections are read through the event loop.
        asked = sync_to_async(self._asked, thread_sensitive=False)
        passed_on = self._report(context, await asked(hook))
        if passed_on is not None:
            passed_on.context = context
            await passed_on

    def _asked(self, hook: SnowpipeHook) -> LagReport:
        from airflow_provider_snowpipe.operators.source_record import file_backlogs
        from airflow_provider_snowpipe.streaming.limits import RetryPolicy

        expected = CommitTargets.parse(self.targets, self.offset_format) if self.targets else None
        names = None if expected is None else list(expected.targets)
        if self.channels is not None:
            names = list(dict.fromkeys(channel_names(self.channels)))
        pipe, budget = str(hook.pipe_name()), RetryPolicy(budget_seconds=_BUDGET_SECONDS)
        try:
            if names is None:
                names = [one.name for one in hook.list_channels()]
            statuses = hook.channel_statuses(names, retry=budget) if names else {}
        except _UNANSWERED as error:
            return LagReport(pipe, error=str(error))
        return LagReport.of(pipe, statuses, expected, *file_backlogs(hook, statuses))

    def _report(self, context: Context, report: LagReport) -> Any:
        """Log the report; return the notifier that passes it on, which finds it in the context, or None."""
        from airflow.providers.common.compat.module_loading import import_string

        text = report.text(self.max_channels)
        log = self.log.warning if report.is_bad else self.log.info
        log("%s", text)
        values: Any = context
        values[REPORT_KEY] = text
        if isinstance(self.notifier, str):
            return import_string(self.notifier)(**(self.notifier_arguments or {}))
        # Its templates are rendered in place.
        return None if self.notifier is None else copy.copy(self.notifier)

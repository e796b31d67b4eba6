"""The trigger that follows a Spark application on YARN, while no worker is needed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_snowpipe.hooks.yarn import ResourceManager, YarnApplication
from airflow_provider_snowpipe.streaming.errors import SnowpipeError
from airflow_provider_snowpipe.triggers.wait import LOG_SECONDS, stored_form

ENDED, LOST = "ended", "lost"
UNREACHABLE_SECONDS = 600.0
"""So long a ResourceManager may not answer, as while it is started again, before a wait gives up."""


class SnowpipeApplicationTrigger(BaseTrigger):
    """Wait until a Spark application on YARN has ended, well or not.

    The event says only ``ended``, or ``lost`` with a message where the ResourceManager could not be asked for
    ``unreachable_seconds``; the task itself asks for the end and reads the driver's report.

    Marking the deferred task, or clearing it, kills the application (Airflow 3.3 and later, which tells a
    trigger of that). Before that the application goes on; the next try of the task finds and follows it.

    :param application_id: YARN's id
    :param spark_conn_id: the Spark connection, which names the ResourceManager
    :param poll_interval: seconds between two looks
    :param unreachable_seconds: give up after this long without an answer
    """

    supports_triggerer_queue = True

    def __init__(
        self,
        *,
        application_id: str,
        spark_conn_id: str,
        poll_interval: float = 10.0,
        unreachable_seconds: float = UNREACHABLE_SECONDS,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.application_id = application_id
        self.spark_conn_id = spark_conn_id
        self.poll_interval = poll_interval
        self.unreachable_seconds = unreachable_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class path and the arguments that make this trigger again."""
        return stored_form(self)

    async def run(self) -> AsyncGenerator[TriggerEvent]:
        """Look until the application has ended; one event."""
        look = ApplicationLook(self.log, self.unreachable_seconds)
        while True:
            try:
                application = await asyncio.to_thread(self._ask)
            except SnowpipeError as error:
                if not error.retryable or look.has_failed(error):
                    yield _event(LOST, str(error))
                    return
            else:
                look.has_seen(application)
                if not application.is_active:
                    yield _event(ENDED, str(application))
                    return
            await asyncio.sleep(self.poll_interval)

    async def on_kill(self) -> None:
        """Stop the application: somebody has marked or cleared the deferred task."""
        try:
            await asyncio.to_thread(self._kill)
        except SnowpipeError as error:
            self.log.warning("YARN application %s is not stopped: %s", self.application_id, error)

    def _ask(self) -> YarnApplication:
        return ResourceManager.of_connection(self.spark_conn_id).application(self.application_id)

    def _kill(self) -> None:
        ResourceManager.of_connection(self.spark_conn_id).kill(self.application_id)


class ApplicationLook:
    """What the looks at one application have found: states go to the log once, and errors are counted.

    :param log: the log
    :param unreachable_seconds: how long there may be errors only
    """

    def __init__(self, log: Any, unreachable_seconds: float) -> None:
        self._log = log
        self._patience = unreachable_seconds
        self._failing_since: float | None = None
        self._state = ""
        self._told_at = 0.0

    def has_seen(self, application: YarnApplication) -> None:
        """Take an answer, and log it if it is a new one or the last line is old.

        :param application: the answer
        """
        self._failing_since = None
        now = time.monotonic()
        if application.state == self._state and now - self._told_at < LOG_SECONDS:
            return
        where = f", {application.tracking_url}" if application.tracking_url and not self._state else ""
        self._log.info("%s%s", application, where)
        self._state, self._told_at = application.state, now

    def has_failed(self, error: SnowpipeError) -> bool:
        """Take an error; True when there have been errors only for too long.

        :param error: the error
        """
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
            self._log.warning("%s; the application goes on meanwhile, and so does the wait", error)
        return now - self._failing_since >= self._patience


def _event(status: str, message: str) -> TriggerEvent:
    return TriggerEvent({"status": status, "message": message})  # type: ignore[no-untyped-call]

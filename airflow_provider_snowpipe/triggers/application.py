"""A Spark application on a cluster, YARN or Kubernetes: found, and followed while no worker is needed."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook
from airflow.triggers.base import TriggerEvent

from airflow_provider_snowpipe.hooks.cluster import (
    DriverPod,
    KubernetesPods,
    ResourceManager,
    YarnApplication,
)
from airflow_provider_snowpipe.hooks.storage import read_text, storage_path
from airflow_provider_snowpipe.spark.driver.progress import FollowedChannels
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SnowpipeError
from airflow_provider_snowpipe.triggers.commit import (
    ENDED,
    LOG_SECONDS,
    LOST,
    StoredTrigger,
    end_event,
    named_pipe,
    status_poll,
)

if TYPE_CHECKING:
    from requests.auth import AuthBase

UNREACHABLE_SECONDS = 600.0
"""So long a cluster may not answer, as while it is started again, before a wait gives up."""


Application = DriverPod | YarnApplication
Cluster = KubernetesPods | ResourceManager


def spark_connection(conn_id: str) -> Any:
    """Look the Spark connection up; Airflow's own hook would take YARN where there is none.

    :raises ConfigurationError: if there is no such connection; names how to make one
    """
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        value = '{"conn_type": "spark", "host": "local[*]"}'
        raise ConfigurationError(
            f"the Spark connection {conn_id!r} does not exist: add it in Airflow, with the master as its "
            f"host, or set AIRFLOW_CONN_{conn_id.upper()}='{value}' to run Spark on the worker itself. "
            "Nothing was started"
        ) from None


def spark_master(conn_id: str) -> str:
    """The master of a Spark connection, as Airflow's Spark provider reads it."""
    return _master(spark_connection(conn_id))


def cluster_of(conn_id: str, auth: AuthBase | None = None, namespace: str = "") -> Cluster:
    """The cluster of a Spark connection."""
    connection = spark_connection(conn_id)
    return _cluster(conn_id, _master(connection), connection.extra_dejson, auth, namespace)


async def async_cluster_of(conn_id: str) -> Cluster:
    """The same on an event loop, which does not wait for the connection."""
    from airflow.providers.common.compat.connection import get_async_connection, get_async_extra_dejson

    try:
        connection: Any = await get_async_connection(conn_id)
    except AirflowNotFoundException:
        raise ConfigurationError(f"the Spark connection {conn_id!r} does not exist: add it") from None
    extra = await get_async_extra_dejson(connection)
    return await asyncio.to_thread(_cluster, conn_id, _master(connection), extra)


def _master(connection: Any) -> str:
    host = connection.host or ""
    is_whole = connection.conn_type == "spark" and host and ("://" in host or not connection.port)
    master = host if is_whole else f"{connection.conn_type}://{host}"
    return f"{master}:{connection.port}" if connection.port else master


def _cluster(
    conn_id: str, master: str, extra: Mapping[str, Any], auth: AuthBase | None = None, namespace: str = ""
) -> Cluster:
    if "yarn" in master:
        return ResourceManager.of_extra(conn_id, extra, auth)
    if "k8s" in master:
        return KubernetesPods(namespace)
    raise ConfigurationError(
        f"the deploy mode is 'cluster' and the master of the Spark connection {conn_id!r} is {master!r}: "
        "only YARN and Kubernetes run drivers of this package on their machines. Standalone clusters take no "
        "Python applications in this mode; use deploy_mode='client', whose executors may run anywhere"
    )


@dataclass(kw_only=True, eq=False, repr=False)
class SnowpipeApplicationTrigger(StoredTrigger):
    """Wait until a Spark application on YARN or Kubernetes has ended, well or not.

    The event has only ``ended``, or ``lost`` with a message where the cluster could not be asked for
    ``unreachable_seconds``; the task itself asks for the end and reads the driver's report.

    Marking the deferred task, or clearing it, kills the application (Airflow 3.3 and later, which tells a
    trigger of that). Before that the application goes on; the next try of the task finds and follows it.

    :param application_id: YARN's id, or ``namespace:pod`` of Kubernetes
    :param spark_conn_id: the Spark connection, which names the cluster
    :param poll_interval: seconds between two polls
    :param unreachable_seconds: give up after this long without an answer
    :param start_path: where a load's driver writes what its channels had; None follows the application only
    :param snowflake_conn_id: the connection by which the load's channels are followed, for the log alone
    :param table: the load's table
    :param pipe: or its pipe
    :param database: where they are, None for the connection's
    :param schema: the same
    """

    supports_triggerer_queue = True

    application_id: str
    spark_conn_id: str
    poll_interval: float = 10.0
    unreachable_seconds: float = UNREACHABLE_SECONDS
    start_path: str | None = None
    snowflake_conn_id: str | None = None
    table: str | None = None
    pipe: str | None = None
    database: str | None = None
    schema: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._cluster: Cluster | None = None

    async def run(self) -> AsyncGenerator[TriggerEvent]:
        """Poll until the application has ended; one event."""
        followed = FollowedApplication(self.log, self.unreachable_seconds)
        follow = self._follow_channels(followed)
        channels = asyncio.create_task(follow, name="snowpipe application channels")
        try:
            yield await self._end(followed)
        finally:
            channels.cancel()
            await asyncio.wait([channels])

    async def _end(self, followed: FollowedApplication) -> TriggerEvent:
        while True:
            try:
                self._cluster = self._cluster or await async_cluster_of(self.spark_conn_id)
                ask: Callable[[str], Application] = self._cluster.application
                application = await asyncio.to_thread(ask, self.application_id)
            except SnowpipeError as error:
                if not error.retryable or followed.has_failed(error):
                    return end_event(LOST, str(error))
            else:
                followed.has_seen(application)
                if not application.is_active:
                    return end_event(ENDED, str(application))
            await asyncio.sleep(self.poll_interval)

    async def _follow_channels(self, followed: FollowedApplication) -> None:
        """Keep what the load's channels have committed; whatever fails here leaves the wait as it is."""
        if self.start_path is None or self.snowflake_conn_id is None:
            return
        try:
            followed.channels = channels = await self._started(self.start_path, followed)
            # Sensors have a poll of their own, which the triggerer may drive.
            poll = status_poll(self, ("snowpipe application channels", *named_pipe(self)))
            with poll.waiting(list(channels.start), self.poll_interval):
                async with aclosing(poll.follow()) as answers:
                    async for answer in answers:
                        channels.take(answer.statuses, time.monotonic())
                        for error in answer.errors.values():
                            followed.has_lost_channels(error)
        except Exception as error:  # noqa: BLE001  the application decides, not what its log shows
            followed.has_lost_channels(error)

    async def _started(self, path: str, followed: FollowedApplication) -> FollowedChannels:
        """Read what the driver found on its channels, as soon as it is there."""
        from asgiref.sync import sync_to_async

        # Unlike a plain thread, it may ask the event loop for the storage's connection.
        read = sync_to_async(lambda: read_text(storage_path(path, None)), thread_sensitive=False)
        absent_at = -math.inf
        while True:
            asked_at = time.monotonic()
            try:
                if (text := await read()) is not None:
                    return FollowedChannels.of_text(text, absent_at)
                absent_at = asked_at
            except Exception as error:  # noqa: BLE001  whatever a storage raises
                followed.has_lost_channels(error)
            await asyncio.sleep(self.poll_interval)

    async def on_kill(self) -> None:
        """Stop the application: somebody has marked or cleared the deferred task."""
        try:
            cluster = await async_cluster_of(self.spark_conn_id)
            await asyncio.to_thread(cluster.kill, self.application_id)
        except SnowpipeError as error:
            self.log.warning("the application %s is not stopped: %s", self.application_id, error)


class FollowedApplication:
    """What the polls of one application have found: states go to the log once, and errors are counted.

    :param line_seconds: how old the last line has to be for one with more rows
    """

    def __init__(self, log: Any, unreachable_seconds: float, line_seconds: float | None = None) -> None:
        self.channels: FollowedChannels | None = None
        self._log = log
        self._unreachable_seconds = unreachable_seconds
        self._line_seconds = line_seconds
        self._failing_since: float | None = None
        self._state = ""
        self._rows = -1
        self._logged_at = 0.0
        self._has_lost_channels = False

    def has_seen(self, application: Application) -> None:
        """Take an answer, and log it if it has a new state, first rows or more, or the last line is old."""
        self._failing_since = None
        now, channels = time.monotonic(), self.channels
        rows = -1 if channels is None else channels.rows
        pause = LOG_SECONDS if self._line_seconds is None or rows == self._rows else self._line_seconds
        is_news = application.state != self._state or self._rows < 0 <= rows
        if not is_news and now - self._logged_at < pause:
            return
        line = "" if channels is None else channels.line()
        where = f", {application.tracking_url}" if application.tracking_url and not self._state else ""
        self._log.info("%s%s%s", application, f"; {line}" if line else "", where)
        self._state, self._rows, self._logged_at = application.state, rows, now

    def has_failed(self, error: SnowpipeError) -> bool:
        """Take an error; True when there have been errors only for too long."""
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
            self._log.warning("%s; the application goes on meanwhile, and so does the wait", error)
        return now - self._failing_since >= self._unreachable_seconds

    def has_lost_channels(self, error: Exception) -> None:
        """Log once that the channels cannot be asked after; the application decides, not its log."""
        if not self._has_lost_channels:
            self._has_lost_channels = True
            self._log.warning("what is committed meanwhile cannot be shown: %s; the wait goes on", error)

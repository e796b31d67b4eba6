"""What the tasks of this provider count and time in Airflow's own metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from airflow.providers.common.compat.sdk import Stats

from airflow_provider_snowpipe.streaming.lag import FileBacklog

if TYPE_CHECKING:
    from airflow_provider_snowpipe.spark.driver.report import ChannelReport
    from airflow_provider_snowpipe.streaming.append import SmallLoad
    from airflow_provider_snowpipe.streaming.names import PipeName


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric as tasks report it, with the tags ``pipe`` (its full name) and ``operator`` (the class).

    :param kind: what Airflow's metrics make of it
    :param unit: of its value; timers are in milliseconds
    :param meaning: what it measures, and for which operators
    """

    kind: Literal["counter", "timer", "gauge"]
    unit: str
    meaning: str


METRICS = {
    "rows": Metric("counter", "rows", "received by the service; stream and append operator"),
    "bytes": Metric("counter", "bytes of NDJSON", "of these rows"),
    "rejected": Metric("counter", "rows", "skipped by the service; stream and append operator"),
    "dead_lettered": Metric("counter", "rows", "put aside before the others were sent"),
    "appends": Metric("counter", "requests", "appends that the service answered"),
    "retries": Metric("counter", "requests", "that were repeated"),
    "append_time": Metric("timer", "ms", "until the service has received all rows; the slowest channel"),
    "append_latency": Metric("timer", "ms", "from an append to its answer, the mean"),
    "append_latency_max": Metric("timer", "ms", "from an append to its answer, the longest"),
    "commit_latency": Metric(
        "timer",
        "ms",
        "from the last append to the commit, the slowest channel; append operator, and stream operator that "
        "is not deferrable",
    ),
    "run": Metric("timer", "ms", "the whole Spark run; stream operator"),
    "commit_lag": Metric(
        "timer",
        "ms",
        "the service's own average from append to commit, the slowest channel; stream operator that waits "
        "for the commit",
    ),
    "backlog_files": Metric(
        "gauge", "files", "that were not committed when the run began; stream operator, sources of files"
    ),
    "backlog_bytes": Metric("gauge", "bytes", "of these files"),
    "backlog_age": Metric("gauge", "seconds", "since the oldest of them was written last"),
    "lag_channels": Metric("gauge", "channels", "that had not committed everything when the task ended"),
    "channels_opened": Metric("counter", "channels", "opened; `SnowpipeOpenChannelOperator`"),
    "channels_dropped": Metric("counter", "channels", "dropped; `SnowpipeDropChannelOperator`"),
    "channels_reset": Metric("counter", "channels", "set to a token; `SnowpipeResetOffsetOperator`"),
    "channels_backed_up": Metric("counter", "tasks", "backups written; `SnowpipeBackupOffsetsOperator`"),
    "channels_restored": Metric("counter", "tasks", "backups restored; `SnowpipeRestoreOffsetsOperator`"),
}
"""Every metric of this provider, by its name below ``snowpipe.``."""


def count_load(
    channels: Sequence[ChannelReport | SmallLoad],
    pipe: PipeName,
    operator: str,
    *,
    waited: bool,
    run_seconds: float | None = None,
) -> None:
    """Report one load, by Spark or without it, under ``snowpipe.*``, with the tags ``pipe`` and ``operator``.

    :param waited: True where the load itself waited for the commit, and so knows how long that took
    """
    tags = {"pipe": str(pipe), "operator": operator}
    for name in ("rows", "bytes", "rejected", "dead_lettered", "retries"):
        _report(name, sum(getattr(channel, name) for channel in channels), tags)
    requests = sum(channel.requests for channel in channels)
    _report("appends", requests, tags)
    answers = sum(channel.request_seconds for channel in channels)
    longest = max((channel.longest_request for channel in channels), default=0.0)
    commit = max((channel.commit_seconds for channel in channels), default=None)
    for name, seconds in (
        ("append_time", max((channel.append_seconds for channel in channels), default=None)),
        ("append_latency", answers / requests if requests and answers else None),
        ("append_latency_max", longest or None),
        ("commit_latency", commit if waited else None),
        ("run", run_seconds),
    ):
        if seconds is not None:
            _report(name, seconds * 1000, tags)
    lags = [lag for one in channels if (lag := getattr(one, "latency_ms", None)) is not None]
    if lags:
        _report("commit_lag", max(lags), tags)
    behind = sum(channel.target_token is not None and not channel.committed for channel in channels)
    _report("lag_channels", behind, tags)
    backlog = FileBacklog.total(getattr(one, "backlog", None) for one in channels)
    if backlog is not None:
        _report("backlog_files", backlog.files, tags)
        _report("backlog_bytes", backlog.bytes, tags)
        _report("backlog_age", backlog.age_seconds, tags)


def count_change(what: str, *, pipe: str, operator: str) -> None:
    """Report that a channel was opened, dropped, reset, backed up or restored."""
    _report(f"channels_{what}", 1, {"pipe": pipe, "operator": operator})


def _report(name: str, value: float, tags: dict[str, str]) -> None:
    report: Any = {"counter": Stats.incr, "timer": Stats.timing, "gauge": Stats.gauge}[METRICS[name].kind]
    report(f"snowpipe.{name}", value, tags=tags)

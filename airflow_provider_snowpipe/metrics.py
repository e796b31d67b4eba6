"""What the tasks of this provider count and time in Airflow's own metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from airflow.providers.common.compat.sdk import Stats

if TYPE_CHECKING:
    from airflow_provider_snowpipe.spark.report import RunReport
    from airflow_provider_snowpipe.streaming.names import PipeName


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric as tasks report it, with the tags ``pipe`` (its full name) and ``operator`` (the class).

    :param kind: what Airflow's metrics make of it
    :param unit: of its value; timers are in milliseconds
    :param meaning: what it measures, and of which operators
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
    "lag_channels": Metric("gauge", "channels", "that had not committed everything when the task ended"),
    "channels_opened": Metric("counter", "channels", "opened; `SnowpipeOpenChannelOperator`"),
    "channels_dropped": Metric("counter", "channels", "dropped; `SnowpipeDropChannelOperator`"),
    "channels_reset": Metric("counter", "channels", "set to a token; `SnowpipeResetOffsetOperator`"),
    "channels_backed_up": Metric("counter", "tasks", "backups written; `SnowpipeBackupOffsetsOperator`"),
    "channels_restored": Metric("counter", "tasks", "backups restored; `SnowpipeRestoreOffsetsOperator`"),
}
"""Every metric of this provider, by its name below ``snowpipe.``."""


def count_load(
    *,
    pipe: str,
    operator: str,
    rows: int,
    raw_bytes: int,
    rejected: int,
    dead_lettered: int = 0,
    retries: int = 0,
    append_seconds: float | None = None,
    requests: int = 0,
    request_seconds: float = 0.0,
    longest_request: float = 0.0,
    commit_seconds: float | None = None,
    run_seconds: float | None = None,
    commit_lag_ms: float | None = None,
    lag_channels: int = 0,
) -> None:
    """Report one load under ``snowpipe.*``, with the tags ``pipe`` and ``operator``.

    :param pipe: the pipe's full name
    :param operator: the operator's class
    :param rows: rows that the service received
    :param raw_bytes: their bytes of NDJSON
    :param rejected: rows that the service skipped
    :param dead_lettered: rows put aside before the others were sent
    :param retries: requests that were repeated
    :param append_seconds: time until the rows were received, None when not measured
    :param requests: appends that were answered
    :param request_seconds: time that their answers took together, 0 when not measured
    :param longest_request: the longest of them, seconds
    :param commit_seconds: time from then until they were committed, None when not waited for
    :param run_seconds: time of a whole Spark run, None for another load
    :param commit_lag_ms: the service's own average time from append to commit, None where it reports none
    :param lag_channels: channels that had not committed everything when the task ended
    """
    tags = {"pipe": pipe, "operator": operator}
    for name, value in (
        ("rows", rows),
        ("bytes", raw_bytes),
        ("rejected", rejected),
        ("dead_lettered", dead_lettered),
        ("appends", requests),
        ("retries", retries),
    ):
        _report(name, value, tags)
    for name, seconds in (
        ("append_time", append_seconds),
        ("append_latency", request_seconds / requests if requests and request_seconds else None),
        ("append_latency_max", longest_request or None),
        ("commit_latency", commit_seconds),
        ("run", run_seconds),
    ):
        if seconds is not None:
            _report(name, seconds * 1000, tags)
    if commit_lag_ms is not None:
        _report("commit_lag", commit_lag_ms, tags)
    _report("lag_channels", lag_channels, tags)


def count_change(what: str, *, pipe: str, operator: str) -> None:
    """Report that a channel was opened, dropped, reset, backed up or restored.

    :param what: the change, as a word
    :param pipe: the pipe's full name
    :param operator: the operator's class
    """
    _report(f"channels_{what}", 1, {"pipe": pipe, "operator": operator})


def count_run(report: RunReport, pipe: PipeName, operator: str, *, waited: bool) -> None:
    """Report a Spark run to Airflow's metrics.

    :param report: what it did
    :param pipe: the pipe
    :param operator: the operator's class name
    :param waited: True where the run itself waited for the commit, and so knows how long that took
    """
    channels = report.channels
    commit = max((channel.commit_seconds for channel in channels), default=None)
    count_load(
        pipe=str(pipe),
        operator=operator,
        rows=report.rows,
        raw_bytes=report.bytes,
        rejected=sum(channel.rejected for channel in channels),
        dead_lettered=report.dead_lettered,
        retries=sum(channel.retries for channel in channels),
        append_seconds=max((channel.append_seconds for channel in channels), default=None),
        requests=sum(channel.requests for channel in channels),
        request_seconds=sum(channel.request_seconds for channel in channels),
        longest_request=max((channel.longest_request for channel in channels), default=0.0),
        commit_seconds=commit if waited else None,
        run_seconds=report.seconds,
        commit_lag_ms=max((one.latency_ms for one in channels if one.latency_ms is not None), default=None),
        lag_channels=sum(channel.target_token is not None and not channel.committed for channel in channels),
    )


def _report(name: str, value: float, tags: dict[str, str]) -> None:
    report: Any = {"counter": Stats.incr, "timer": Stats.timing, "gauge": Stats.gauge}[METRICS[name].kind]
    report(f"snowpipe.{name}", value, tags=tags)

"""What came of a run: the errors that its tasks reported, and what the committed tokens show."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from airflow_provider_snowpipe.spark.driver.report import ChannelReport
from airflow_provider_snowpipe.streaming.commits import decide
from airflow_provider_snowpipe.streaming.errors import (
    AuthenticationError,
    CommitTimeoutError,
    ConfigurationError,
    ContinuityError,
    EncodingError,
    ExecutorLostError,
    OffsetTokenError,
    RowsRejectedError,
    SnowpipeError,
    SourcePositionError,
    UnfitRowsError,
    error_class,
)
from airflow_provider_snowpipe.streaming.names import PipeName, counted
from airflow_provider_snowpipe.streaming.progress import ChannelStatus, ChannelTarget

# -- The error that ended a Spark job, in the words of the task that met it ------------------------------

_RAISED = re.compile(
    r"^airflow_provider_snowpipe[\w.]*\.(?P<kind>\w+): (?P<text>.*?)(?=\n\s*\n|\n\s+at |\s*SQLSTATE: |\Z)",
    re.MULTILINE | re.DOTALL,
)

_OF_EXECUTORS: tuple[tuple[re.Pattern[str], type[SnowpipeError], str], ...] = (
    (
        re.compile(r"^ModuleNotFoundError: No module named '(?P<module>[\w.]+)'", re.MULTILINE),
        ConfigurationError,
        "the executors' Python has no module {module!r}: install airflow-provider-snowpipe[spark] in the "
        "environment that PYSPARK_PYTHON names on every host, in the driver's version",
    ),
    (
        re.compile(
            r"^AttributeError: Can't get attribute '[^']+' on <module 'airflow_provider_snowpipe[\w.]*' "
            r"from '(?P<path>[^']+)'",
            re.MULTILINE,
        ),
        ConfigurationError,
        "the executors have another version of airflow-provider-snowpipe than the driver, at {path!r}: "
        "install the driver's version there, or none and give the package's zip file to --py-files. Nothing "
        "was sent",
    ),
    (
        re.compile(
            r"\[PYTHON_VERSION_MISMATCH\] Python in worker has different version: (?P<worker>[\d.]+) than "
            r"that in driver: (?P<driver>[\d.]+)"
        ),
        ConfigurationError,
        "the executors run Python {worker}, the driver Python {driver}: set PYSPARK_PYTHON to a Python "
        "{driver} on every host, or start the driver with Python {worker} (PYSPARK_DRIVER_PYTHON). "
        "Nothing was sent",
    ),
    (
        re.compile(r'java\.io\.IOException: Cannot run program "(?P<python>[^"]+)": (?P<reason>[^\n]+)'),
        ConfigurationError,
        "the executors cannot start Python {python!r} ({reason}): set PYSPARK_PYTHON to a Python that every "
        "host has at this path. Nothing was sent",
    ),
    (
        re.compile(
            r"Task \d+ in stage [\d.]+ failed (?P<times>\d+) times, most recent failure: Lost task [^:]*: "
            r"(?P<reason>ExecutorLostFailure[^\n]*"
            r"|org\.apache\.spark\.SparkException: Python worker exited[^\n]*)"
        ),
        ExecutorLostError,
        "a task died {times} times with its process ({reason}): the executors' logs show more; with code "
        "137 memory is short (spark.executor.memory, spark.executor.memoryOverhead). What was committed "
        "stays; run again, which resumes from the committed tokens",
    ),
)
"""How what is wrong with the executors begins in Spark's text, and what is raised for it."""
_PLAIN: dict[str, type[SnowpipeError]] = {
    kind.__name__: kind
    for kind in (
        AuthenticationError,
        ConfigurationError,
        ContinuityError,
        EncodingError,
        OffsetTokenError,
        SourcePositionError,
        UnfitRowsError,
    )
}


class TaskFailedError(SnowpipeError):
    """A task failed, with the error that it raised."""

    def __init__(self, message: str, *, error_type: str) -> None:
        super().__init__(message)
        self.error_type = error_type
        kind = error_class(error_type)
        self.retryable, self.retry_reason = kind.retryable, kind.retry_reason
        self.retry_delay = kind.retry_delay
        self.error_id, self.remedy = kind.error_id, kind.remedy


def error_of_task(text: str) -> TaskFailedError | None:
    """Find our last error, or what is wrong with the executors, in Spark's text of a failed job."""
    found = list(_RAISED.finditer(text))
    if found:
        return TaskFailedError(" ".join(found[-1]["text"].split()), error_type=found[-1]["kind"])
    for pattern, kind, message in _OF_EXECUTORS:
        if known := pattern.search(text):
            named = {name: value.strip() for name, value in known.groupdict().items()}
            return TaskFailedError(message.format(**named), error_type=kind.__name__)
    return None


def error_type_of(error: SnowpipeError) -> str:
    """The class name to show for an error, that of the task's error where a task raised it."""
    return error.error_type if isinstance(error, TaskFailedError) else type(error).__name__


def final_error(error_type: str, text: str) -> SnowpipeError:
    """Build the error that a task reported as its result."""
    kind = _PLAIN.get(error_type)
    return TaskFailedError(text, error_type=error_type) if kind is None else kind(text)


# -- What is committed: the only evidence that the rows of a run are in the table ------------------------
#
# Whoever waited for the commit settles the reports of the run with a status read after that: the Spark
# driver, or the task that was deferred meanwhile.


def settle(
    reports: Iterable[ChannelReport], now: Mapping[str, ChannelStatus], offset_format: str
) -> tuple[ChannelReport, ...]:
    """Complete the reports with what is committed now.

    Rows: what the successful attempts sent, or what the service counted since the run began, whichever is
    more. An attempt that was killed has sent rows too, and only the service knows of them.

    :param now: every channel's status, read after the wait for the commit
    """
    return tuple(_settled(report, now[report.channel], offset_format) for report in reports)


def _settled(report: ChannelReport, now: ChannelStatus, offset_format: str) -> ChannelReport:
    target = ChannelTarget(report.target_token, offset_format)
    one = decide(now, target.progress(now), rejected_baseline=report.rejected_before)
    skipped = max(now.rows_error_count - report.errors_before, 0)
    counted = now.rows_inserted - report.inserted_before + skipped
    return replace(
        report,
        to_token=now.committed,
        rows=max(report.rows, counted),
        rejected=one.rejected,
        committed=one.has_target,
        latency_ms=now.latency_ms,
        last_error=now.last_error if one.rejected else None,
    )


def refuse_missing_commits(
    pipe: PipeName, reports: Iterable[ChannelReport], now: Mapping[str, ChannelStatus]
) -> None:
    """Make sure that each channel's committed token is at or past its target."""
    for report in reports:
        if not report.committed and report.target_token is not None:
            raise CommitTimeoutError(
                f"channel {report.channel!r} of pipe {pipe}: its task saw "
                f"{report.target_token!r} committed, but now the committed token is "
                f"{report.to_token or 'NULL'!r} (status {now[report.channel].code}). Another writer or a "
                "reset interfered; run again, which resumes from the committed token",
                channel=report.channel,
                committed=report.to_token,
                target=report.target_token,
            )


def refuse_rejected_rows(
    pipe: PipeName, reports: Iterable[ChannelReport], now: Mapping[str, ChannelStatus]
) -> None:
    """Make sure that the service has skipped no row."""
    bad = [report for report in reports if report.rejected]
    if not bad:
        return
    total = sum(report.rejected for report in bad)
    worst = max(bad, key=lambda report: report.rejected)
    status = now[worst.channel]
    table = pipe.default_table or "the table"
    earlier = [report for report in bad if report.unreported]
    unreported = ""
    if earlier:
        runs = ", ".join(sorted({str(report.unreported_run) for report in earlier}))
        count = sum(report.unreported for report in earlier)
        unreported = f" {count} of them were rejected before this run (after {runs}), which nobody reported."
    where = f"SELECT * FROM ERROR_TABLE({table})"  # noqa: S608  text for people, never run
    raise RowsRejectedError(
        f"the service skipped {counted(total, 'row')} on {counted(len(bad), 'channel')} of pipe {pipe}; "
        f"channel {worst.channel!r}: {worst.rejected}, the last one at or before offset "
        f"{status.last_error_offset_upper_bound!r}: {status.last_error_message or 'no message'}.{unreported} "
        "All other rows are committed and the tokens have advanced, so a repeated run sends none of them "
        f"again. Look at {where} where the table has ERROR_LOGGING = TRUE, and put the fixed rows into a "
        "later file of the source; on_error='continue' accepts skipped rows",
        channel=worst.channel,
        rejected=total,
        last_error=status.last_error_message,
    )

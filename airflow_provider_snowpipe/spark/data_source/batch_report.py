"""What a batch did, in a line for the log and in a file for whoever watches the driver."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from airflow_provider_snowpipe.spark.data_source.options import WriteOptions
from airflow_provider_snowpipe.spark.data_source.outcomes import TaskOutcome
from airflow_provider_snowpipe.spark.report import ChannelReport, RunReport
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SnowpipeError


def check_report_path(path: str | None) -> None:
    """Make sure that a report can be left where the option says, before any row moves.

    :param path: the option ``reportPath``, None for no report
    :raises ConfigurationError: if its directory is not there
    """
    if path is not None and not Path(path).parent.is_dir():
        raise ConfigurationError(
            f"option reportPath is {path!r}: its directory does not exist on the driver, make it first"
        )


def report_batch(options: WriteOptions, batch: str, channels: Sequence[ChannelReport]) -> None:
    """Tell of a batch that is committed; of one without rows there is nothing to tell.

    :param options: what the write's options say
    :param batch: the batch in words
    :param channels: what it did on each of its channels
    """
    if not channels:
        return
    say(describe_commit(batch, channels))
    seconds = max(one.append_seconds + one.commit_seconds for one in channels)
    _leave(options, RunReport(_application(options, batch), tuple(channels), round(seconds, 3)))


def report_failure(options: WriteOptions, batch: str, error: SnowpipeError) -> None:
    """Tell of a batch that is not committed; the error itself goes to Spark.

    :param options: what the write's options say
    :param batch: the batch in words
    :param error: why
    """
    application = _application(options, batch)
    _leave(options, RunReport(application, (), 0.0, error=str(error), error_type=type(error).__name__))


def describe_commit(batch: str, channels: Sequence[ChannelReport]) -> str:
    """Put a committed batch in a line.

    :param batch: the batch in words
    :param channels: what it did on each of its channels, at least one
    """
    lags = [one.latency_ms for one in channels if one.latency_ms is not None]
    return (
        f"snowpipe committed {batch} channels={len(channels)} rows={sum(one.rows for one in channels)} "
        f"bytes={sum(one.bytes for one in channels)} rejected={sum(one.rejected for one in channels)} "
        f"dead_lettered={sum(one.dead_lettered for one in channels)} "
        f"append_seconds<={max(one.append_seconds for one in channels):.3f} "
        f"commit_seconds<={max(one.commit_seconds for one in channels):.3f} "
        f"retries={sum(one.retries for one in channels)}" + (f" latency_ms<={max(lags)}" if lags else "")
    )


def describe_abort(options: WriteOptions, outcomes: Iterable[TaskOutcome | None], batch: str) -> str:
    """Say what a batch that failed may have left behind.

    :param options: what the write's options say
    :param outcomes: the messages that Spark has, None for tasks that failed or still run
    :param batch: the batch in words
    """
    known = [task for task in outcomes if task is not None]
    written = [channel for task in known for channel in task.channels if channel.target_token is not None]
    there = ", ".join(f"{channel.channel} to {channel.target_token}" for channel in written) or "none known"
    return (
        f"snowpipe aborted {batch}: rows that were committed stay in the table (channels: {there}; tasks "
        f"that failed or still run may have added to channels {options.channel_prefix}_*). A repeated "
        "batch goes on behind each channel's committed offset token"
    )


def say(line: str) -> None:
    """To standard error, which ends up in the driver's log (observed with PySpark 4.2).

    :param line: the line
    """
    print(line, file=sys.stderr, flush=True)


def _application(options: WriteOptions, batch: str) -> str:
    return f"{options.channel_prefix} {batch}"


def _leave(options: WriteOptions, report: RunReport) -> None:
    """Write the report; the rows are committed whether or not that succeeds."""
    if options.report_path is None:
        return
    try:
        report.write(options.report_path)
    except OSError as error:
        say(f"snowpipe report cannot be written to {options.report_path!r}: {error.strerror}")

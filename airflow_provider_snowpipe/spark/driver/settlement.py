"""What the committed tokens show of a run: the only evidence that its rows are in the table.

Whoever waited for the commit settles the run's reports with a status read after that: the Spark driver, or
the task that was deferred meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from airflow_provider_snowpipe.spark.report import ChannelReport
from airflow_provider_snowpipe.streaming.commits import decide
from airflow_provider_snowpipe.streaming.errors import CommitTimeoutError, RowsRejectedError
from airflow_provider_snowpipe.streaming.names import PipeName
from airflow_provider_snowpipe.streaming.offsets import Offset
from airflow_provider_snowpipe.streaming.progress import ChannelStatus, Progress


def settle(
    reports: Iterable[ChannelReport], now: Mapping[str, ChannelStatus], offsets: type[Offset]
) -> tuple[ChannelReport, ...]:
    """Complete the reports with what is committed now.

    Rows: what the successful attempts sent, or what the service counted since the run began, whichever is
    more. An attempt that was killed has sent rows too, and only the service knows of them.

    :param reports: what the run sent on each channel
    :param now: every channel's status, read after the wait for the commit
    :param offsets: the format of the tokens
    :raises OffsetTokenError: if a committed token does not parse
    """
    return tuple(_settled(report, now[report.channel], offsets) for report in reports)


def _settled(report: ChannelReport, now: ChannelStatus, offsets: type[Offset]) -> ChannelReport:
    target, committed = (
        None if token is None else offsets.parse(token, channel=report.channel)
        for token in (report.target_token, now.committed)
    )
    one = decide(
        now,
        None if target is None else Progress(committed, target),
        rejected_baseline=report.rejected_before,
    )
    skipped = max(now.rows_error_count - report.errors_before, 0)
    counted = now.rows_inserted - report.inserted_before + skipped
    return replace(
        report,
        to_token=now.committed,
        rows=max(report.rows, counted),
        rejected=one.rejected,
        committed=one.has_target,
        latency_ms=now.latency_ms,
    )


def refuse_missing_commits(
    pipe: PipeName, reports: Iterable[ChannelReport], now: Mapping[str, ChannelStatus]
) -> None:
    """Make sure that each channel's committed token is at or past its target.

    :param pipe: the channels' pipe
    :param reports: settled reports
    :param now: the statuses that settled them
    :raises CommitTimeoutError: if one is behind
    """
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
    """Make sure that the service has skipped no row.

    :param pipe: the channels' pipe
    :param reports: settled reports
    :param now: the statuses that settled them
    :raises RowsRejectedError: if it has
    """
    bad = [report for report in reports if report.rejected]
    if not bad:
        return
    total = sum(report.rejected for report in bad)
    worst = max(bad, key=lambda report: report.rejected)
    status = now[worst.channel]
    table = pipe.default_table or "the table"
    where = f"SELECT * FROM ERROR_TABLE({table})"  # noqa: S608  text for people, never run
    raise RowsRejectedError(
        f"the service skipped {total} row(s) on {len(bad)} channel(s) of pipe {pipe}; channel "
        f"{worst.channel!r}: {worst.rejected}, the last one at or before offset "
        f"{status.last_error_offset_upper_bound!r}: "
        f"{status.last_error_message or 'no message'}. All other rows are committed and the tokens have "
        f"advanced, so a repeated run sends none of them again. Look at {where} where the table has "
        "ERROR_LOGGING = TRUE, and put the fixed rows into a later file of the source; "
        "on_error='continue' accepts skipped rows",
        channel=worst.channel,
        rejected=total,
        last_error=status.last_error_message,
    )

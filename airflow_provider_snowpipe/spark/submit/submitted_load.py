"""A load whose rows the service has received: what its task keeps of it, and what is committed of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from airflow_provider_snowpipe.spark.driver.outcome import (
    refuse_missing_commits,
    refuse_rejected_rows,
    settle,
)
from airflow_provider_snowpipe.spark.driver.report import RunReport

if TYPE_CHECKING:
    from airflow_provider_snowpipe.spark.driver.plan import JobPlan
    from airflow_provider_snowpipe.spark.driver.run import Run
    from airflow_provider_snowpipe.spark.source import SourceSecrets
    from airflow_provider_snowpipe.streaming.client import SnowpipeClient
    from airflow_provider_snowpipe.streaming.names import PipeName
    from airflow_provider_snowpipe.streaming.progress import ChannelStatus


def run_of(plan: JobPlan, client: SnowpipeClient, secrets: SourceSecrets) -> Run:
    """Make a run in this process, by the driver's own code: it may have no rows, or few."""
    # It brings PyArrow, for which no DAG file waits.
    from airflow_provider_snowpipe.spark.driver.run import Run

    return Run(plan, client, secrets=secrets)


@dataclass(frozen=True, slots=True)
class SubmittedLoad:
    """A load whose rows the service has received; its report counts as committed what was settled."""

    report: RunReport
    offset_format: str

    def to_kept(self) -> dict[str, str]:
        """What Airflow keeps of it, in the task's state and with the deferral."""
        return {"report": self.report.to_json(), "offset_format": self.offset_format}

    @classmethod
    def of(cls, kept: Mapping[str, str]) -> Self:
        """Read what Airflow kept.

        :raises UnreadableReportError: if the report is of another version
        """
        return cls(RunReport.from_json(kept["report"]), kept["offset_format"])

    @property
    def channels(self) -> list[str]:
        """The names of its channels."""
        return [channel.channel for channel in self.report.channels]

    @property
    def is_committed(self) -> bool:
        """True when every channel was seen at or past its target."""
        return all(channel.owes_nothing for channel in self.report.channels)

    def seen(self, now: Mapping[str, ChannelStatus]) -> Self:
        """Complete it with what is committed now, whatever that is."""
        channels = settle(self.report.channels, now, self.offset_format)
        return replace(self, report=replace(self.report, channels=channels))

    def settled(
        self, pipe: PipeName, now: Mapping[str, ChannelStatus], *, on_error: str, awaited: bool
    ) -> Self:
        """Hold what is committed now to the rules of a driver that waits itself.

        :param on_error: anything but ``continue`` refuses skipped rows
        :param awaited: True where everything must be committed by now
        :raises CommitTimeoutError: if a channel is behind although it was awaited
        :raises RowsRejectedError: if everything is committed and the service has skipped rows
        """
        settled = self.seen(now)
        channels = settled.report.channels
        if awaited:
            refuse_missing_commits(pipe, channels, now)
        if settled.is_committed and on_error != "continue":
            refuse_rejected_rows(pipe, channels, now)
        return settled

"""A deferred load: what its driver has sent, its settlement, and the ends of its wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_provider_snowpipe.streaming.commits import FailureReason
from airflow_provider_snowpipe.streaming.errors import (
    CommitTimeoutError,
    ConfigurationError,
    RowsRejectedError,
    SnowpipeError,
)
from airflow_provider_snowpipe.streaming.offsets import offset_class

try:
    from airflow.sdk.exceptions import TaskDeferralTimeout
except ImportError:
    try:
        from airflow.exceptions import TaskDeferralTimeout  # type: ignore[no-redef]  # Airflow 3.1
    except ImportError:
        from airflow.exceptions import TaskDeferralError as TaskDeferralTimeout  # type: ignore[no-redef]

if TYPE_CHECKING:
    from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
    from airflow_provider_snowpipe.spark.report import RunReport
    from airflow_provider_snowpipe.streaming.status import ChannelStatus


@dataclass(frozen=True, slots=True)
class SentLoad:
    """A load whose rows the service has received; its report counts as committed what was settled.

    :param report: the driver's report
    :param offset_format: the tokens' format
    """

    report: RunReport
    offset_format: str

    def to_kept(self) -> dict[str, str]:
        """What Airflow keeps of it, in the task's state and with the deferral."""
        return {"report": self.report.to_json(), "offset_format": self.offset_format}

    @classmethod
    def of(cls, kept: Any) -> Self | None:
        """Read what Airflow kept.

        :param kept: the mapping
        :returns: None if it is not one, or one of another release
        """
        from airflow_provider_snowpipe.spark.report import RunReport

        if not isinstance(kept, Mapping) or not isinstance(kept.get("offset_format"), str):
            return None
        try:
            return cls(RunReport.from_json(str(kept.get("report"))), kept["offset_format"])
        except ConfigurationError:
            return None

    @property
    def channels(self) -> list[str]:
        """The names of its channels."""
        return [channel.channel for channel in self.report.channels]

    @property
    def is_committed(self) -> bool:
        """True when every channel was seen at or past its target."""
        return all(channel.committed or channel.target_token is None for channel in self.report.channels)

    def settled(self, now: Mapping[str, ChannelStatus]) -> Self:
        """Complete it with what is committed now.

        :param now: every channel's status
        """
        from airflow_provider_snowpipe.spark.settlement import settle

        channels = settle(self.report.channels, now, offset_class(self.offset_format))
        return replace(self, report=replace(self.report, channels=channels))


def settle_load(load: SentLoad, hook: SnowpipeHook, *, on_error: str, awaited: bool) -> SentLoad:
    """Ask what is committed, and hold a committed load to the rules of a driver that waits itself.

    :param load: what was sent
    :param hook: for its pipe
    :param on_error: anything but ``continue`` refuses skipped rows
    :param awaited: True where everything must be committed by now
    :returns: the load with what is committed
    :raises AirflowException: if a channel is behind although it was awaited, or the service skipped rows
    """
    from airflow_provider_snowpipe.spark.settlement import refuse_missing_commits, refuse_rejected_rows

    now = hook.channel_statuses(load.channels)
    settled = load.settled(now)
    try:
        if awaited:
            refuse_missing_commits(hook.pipe_name(), settled.report.channels, now)
        if settled.is_committed and on_error != "continue":
            refuse_rejected_rows(hook.pipe_name(), settled.report.channels, now)
    except (CommitTimeoutError, RowsRejectedError) as error:
        raise end_of_task(error) from error
    return settled


def end_of_task(error: SnowpipeError) -> AirflowException:
    """Put an error of ours in the words and the class that a failed driver gives the task.

    :param error: the error
    """
    text = f"snowpipe error: {type(error).__name__}: {error}"
    return AirflowException(text) if error.retryable else AirflowFailException(text)


def end_of_wait(event: Mapping[str, Any]) -> AirflowException:
    """The error for a commit trigger's event of failure.

    :param event: with ``reason`` and ``message``
    """
    retryable = FailureReason(event["reason"]).error_class.retryable
    kind = AirflowException if retryable else AirflowFailException
    return kind(f"{event['reason']}: {event['message']}")


def is_deferral_timeout(error: AirflowException) -> bool:
    """True when a deferral's own time was over, and not when its trigger failed.

    Airflow 2 has one error for both, whose text is ``Trigger/execution timeout`` (observed with 2.11.2).

    :param error: what resuming the task has raised
    """
    return isinstance(error, TaskDeferralTimeout) and "timeout" in str(error)

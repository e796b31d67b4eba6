"""The sensor that lets downstream tasks run only when rows are committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_snowpipe.assets.events import LoadedChannel, describe_outlets
from airflow_provider_snowpipe.lineage import ReportsLineage, TaskLineage
from airflow_provider_snowpipe.links.snowpipe import (
    CHANNEL_PAGE_LINKS,
    channel_page,
    leave_channel_page,
    page_of_channels,
)
from airflow_provider_snowpipe.sensors.wait import WaitSensor
from airflow_provider_snowpipe.streaming.commits import (
    CommitWatch,
    FailureReason,
    PolledStatuses,
    RetryBudget,
    poll_statuses,
)
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, PipeFailedOverError
from airflow_provider_snowpipe.streaming.offsets import offset_class
from airflow_provider_snowpipe.streaming.progress import CommitTargets
from airflow_provider_snowpipe.triggers.commit import SnowpipeCommitTrigger
from airflow_provider_snowpipe.triggers.wait import poll_retry

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class SnowpipeCommitSensor(ReportsLineage, WaitSensor):
    """Succeed only when every channel has committed its target token, so that its rows can be read.

    Tokens are compared by their format's order; a channel without a committed token never counts. The
    task's value is the committed token of each channel.

    Deferred sensors that name the same pipe share one poll of its channels, 100 channels a request.

    :param targets: what each channel has to commit: the XCom ``targets`` of a task that loads,
        ``load.output["targets"]``, which also tells the tokens' format and the rows that were rejected
        before; or a mapping of plain target tokens, its JSON text, or a function of ``context`` and
        ``jinja_env`` that returns one of them. Without a channel the sensor succeeds at once (templated)
    :param offset_format: the format of plain tokens: ``file:line``, ``integer``, ``topic:partition:offset``,
        ``batch:row``, ``lexicographic``, or the dotted path of a subclass of ``Offset``; None where the
        targets carry it, or the tokens can have one format only
    :param table: the channels belong to this table's default pipe (templated)
    :param pipe: the channels belong to this pipe; not together with ``table`` (templated)
    :param stall_timeout: fail when a channel short of its target commits nothing for this many seconds, None
        to leave that to ``timeout``
    :param fail_on_rejected_rows: True fails as soon as the service has skipped a row of a channel; None, the
        default, where the target carries a baseline, as that of a load with ``on_error="abort"`` does; False
        accepts skipped rows
    :param rejected_baseline: rows skipped before that do not count, by channel, in place of the targets' own;
        with ``fail_on_rejected_rows=True`` and neither, every row skipped in the channel's life counts
        (templated)
    :param poke_interval: seconds between two polls, deferred or not; 5 unless given
    :param kwargs: those of :class:`~airflow_provider_snowpipe.sensors.wait.WaitSensor` and of all sensors
    :raises ConfigurationError: if an argument is wrong
    """

    template_fields: Sequence[str] = (
        "targets",
        "table",
        "pipe",
        "database",
        "schema",
        "snowflake_conn_id",
        "rejected_baseline",
    )
    operator_extra_links = CHANNEL_PAGE_LINKS
    trigger_class = SnowpipeCommitTrigger
    reasons = FailureReason
    memory_key = "snowpipe_commit_watch"

    def __init__(
        self,
        *,
        targets: Any,
        offset_format: str | None = None,
        stall_timeout: float | timedelta | None = None,
        fail_on_rejected_rows: bool | None = None,
        rejected_baseline: Any = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("poke_interval", 5)
        super().__init__(**kwargs)
        self.targets = targets
        self.offset_format = offset_format
        self.stall_timeout = (
            stall_timeout.total_seconds() if isinstance(stall_timeout, timedelta) else stall_timeout
        )
        self.fail_on_rejected_rows = fail_on_rejected_rows
        self.rejected_baseline = rejected_baseline
        if self.table is not None and self.pipe is not None:
            raise ConfigurationError(
                f"table {self.table!r} and pipe {self.pipe!r} are both given: drop one of them"
            )
        self._budget()
        if offset_format is not None:
            offset_class(offset_format)
        self._allow_start()

    def _begin(self, context: Context, kept: Mapping[str, Any] | None) -> CommitWatch:
        expected = self._expected()
        self._leave_link(context, expected)
        if not expected.targets:
            self.log.info("targets names no channel: there is nothing to wait for")
        return CommitWatch(expected, self._budget())

    def _ask(self, watch: CommitWatch) -> PolledStatuses:
        if self._client is None:
            self._client = self._hook().get_client(retry=poll_retry())
        answer = poll_statuses(self._client, watch.question)
        if any(isinstance(error, PipeFailedOverError) for error in answer.errors.values()):
            self._disconnect()
        return answer

    def _ended(self, context: Context, value: Any, *, resumed: bool) -> Any:
        expected = self._expected()
        if resumed:
            self.log.info("%d of %d channels committed", len(value), len(value))
            self._leave_link(context, expected)
        if isinstance(value, Mapping):
            channels = [LoadedChannel(name, token, committed=True) for name, token in value.items()]
            describe_outlets(self, context, self._hook(), channels)
            self.task_lineage = TaskLineage.of_commit(self._hook(), expected.offset_format or "", value)
        return value

    def _expected(self) -> CommitTargets:
        return CommitTargets.parse(
            self.targets,
            self.offset_format,
            fail_on_rejected_rows=self.fail_on_rejected_rows,
            rejected_baseline=self.rejected_baseline,
        )

    def _leave_link(self, context: Context, expected: CommitTargets) -> None:
        channels = list(expected.targets)
        address = page_of_channels(self._hook(), channels)
        if len(channels) == 1:
            (target,) = expected.targets.values()
            address = channel_page(
                self._hook(),
                channels[0],
                target=None if target is None else str(target),
                offset_format=expected.offset_format,
            )
        leave_channel_page(context["ti"], address)

    def _budget(self) -> RetryBudget:
        return RetryBudget(self.max_consecutive_errors, self.stall_timeout)

    def _trigger_arguments(self) -> dict[str, Any]:
        return {
            **self._shared_arguments(),
            "targets": self.targets,
            "offset_format": self.offset_format,
            "fail_on_rejected_rows": self.fail_on_rejected_rows,
            "rejected_baseline": self.rejected_baseline,
            "stall_timeout": self.stall_timeout,
        }

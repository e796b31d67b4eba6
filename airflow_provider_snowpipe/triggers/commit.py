"""The trigger behind the deferrable commit sensor."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import partial
from typing import Any

from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.streaming.commits import CommitWatch, RetryBudget
from airflow_provider_snowpipe.streaming.names import DEFAULT_PIPE_SUFFIX
from airflow_provider_snowpipe.streaming.polling import StatusPoll, shared_poll
from airflow_provider_snowpipe.streaming.progress import CommitTargets
from airflow_provider_snowpipe.triggers.wait import WaitTrigger, connect


class SnowpipeCommitTrigger(WaitTrigger):
    """Wait until every channel has committed its target token, then send one event.

    The event is ``{"status": "success", "tokens": {channel: token}}`` or ``{"status": "failure",
    "reason": …, "message": …}`` with a reason of
    :class:`~airflow_provider_snowpipe.streaming.commits.FailureReason`. There is no time limit here: the
    deferred task's own ends the wait.

    All triggers that name the same pipe of the same connection share one poll: since Airflow 3.3 through the
    triggerer's shared streams, before that, and wherever ``run`` is called, through a poll of their event
    loop. The most impatient of them sets its pace.

    :param targets: what each channel has to commit, as the XCom ``targets`` of a load or as plain tokens, or
        its JSON text
    :param offset_format: the format of plain tokens, None where they show it
    :param poll_interval: seconds between two polls
    :param fail_on_rejected_rows: True fails when the service has skipped a row, None where the channel's
        target has a baseline
    :param rejected_baseline: skipped rows that do not count, by channel, or its JSON text
    :param stall_timeout: give up when a channel short of its target commits nothing for this many seconds
    :param kwargs: those of :class:`~airflow_provider_snowpipe.triggers.wait.WaitTrigger`
    """

    value_key = "tokens"

    def __init__(
        self,
        *,
        targets: Mapping[str, Any] | str,
        offset_format: str | None = None,
        poll_interval: float = 5.0,
        fail_on_rejected_rows: bool | None = None,
        rejected_baseline: Mapping[str, int] | str | None = None,
        stall_timeout: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(poll_interval=poll_interval, **kwargs)
        self.targets = targets
        self.offset_format = offset_format
        self.fail_on_rejected_rows = fail_on_rejected_rows
        self.rejected_baseline = rejected_baseline
        self.stall_timeout = stall_timeout

    def shared_stream_key(self) -> Hashable:
        """What the triggers of one poll have in common: connection and pipe, as they were named."""
        pipe = self.table + DEFAULT_PIPE_SUFFIX if self.table is not None else self.pipe
        return ("snowpipe channel status", self.snowflake_conn_id, pipe, self.database, self.schema)

    def _poll(self) -> StatusPoll:
        make = partial(connect, SnowpipeHook.async_get_client, self.snowflake_conn_id, self._names())
        return shared_poll(self.shared_stream_key(), make)

    def _watch(self) -> CommitWatch:
        expected = CommitTargets.parse(
            self.targets,
            self.offset_format,
            fail_on_rejected_rows=self.fail_on_rejected_rows,
            rejected_baseline=self.rejected_baseline,
        )
        budget = RetryBudget(self.max_consecutive_errors, self.stall_timeout, self.poll_interval)
        return CommitWatch(expected, budget)

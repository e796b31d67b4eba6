"""What histories of channels have in common: the service, what happens to it, and how runs are disturbed."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from airflow_provider_snowpipe.streaming import errors, offset_backup
from airflow_provider_snowpipe.streaming.admin import reset_offset_token
from airflow_provider_snowpipe.streaming.offsets import Offset
from airflow_provider_snowpipe.streaming.progress import ChannelState
from tests.fake_snowpipe import PIPE, STALE, FakeSnowpipe, KilledError, error

ERRORS = {"killed": KilledError(), "lost": None, "fenced": error(409, STALE)}
Fault = dict[str, Any]
NO_FAULT: Fault = {}
HELD: Fault = {"kind": "held"}
"""Nothing that the run sends is committed."""
JOBS = st.integers(0, 1)
REBINDS = st.sampled_from(["continue", "restart"])


def faults(*operations: str) -> st.SearchStrategy[Fault]:
    """A fault at one of the next calls of some operations."""
    what = {"when": ["before", "after"], "operation": operations, "kind": sorted(ERRORS)}
    drawn = {name: st.sampled_from(values) for name, values in what.items()}
    return st.fixed_dictionaries({**drawn, "skip": st.integers(0, 3)})


class ChannelHistories(RuleBasedStateMachine):
    """The channels of one pipe, and a backup of them."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.snowpipe = FakeSnowpipe.everywhere(self.patch)
        self.snowpipe.rejects = lambda row: "bad" in row["ID"]
        self.client = self.snowpipe.client()
        self.backup: offset_backup.OffsetBackup | None = None

    def teardown(self) -> None:
        self.client.close()
        self.patch.undo()

    def committed(self, channel: str) -> str | None:
        found = self.snowpipe.channels.get(channel)
        return None if found is None else found.committed

    def statuses(self) -> dict[str, Any]:
        return self.client.channel_statuses(list(self.snowpipe.channels))

    def visible(self) -> Counter[str]:
        return Counter(row["ID"] for row in self.snowpipe.table)

    def set_token(self, channel: str, token: str) -> None:
        self.snowpipe.channels[channel].committed = token

    def was_reset(self, channel: str, position: object) -> bool:
        """Reset a channel; False where somebody writes to it."""
        given: dict[str, Any] = {
            "observe": lambda: ChannelState(self.statuses()[channel]), "observe_seconds": 0,
        }  # fmt: skip
        try:
            reset_offset_token(self.client, channel, str(position), set_token=self.set_token, **given)
        except errors.WriterActiveError:
            return False
        return True

    def take_backup(self, channels: Sequence[str]) -> None:
        statuses, now = self.client.channel_statuses(channels), dt.datetime(2026, 12, 3, tzinfo=dt.UTC)
        self.backup = offset_backup.take_backup(PIPE, statuses, None, now=now)

    def restored(self, spared: Mapping[str, object], positions: type[Offset]) -> dict[str, str]:
        """Restore all channels but some, unless that would forget rows; the tokens that they have now."""
        assert self.backup is not None
        statuses = self.client.channel_statuses(list(self.backup.channels))
        try:
            planned = offset_backup.plan_restore(self.backup, statuses, positions)
        except (errors.SourcePositionError, errors.OffsetTokenError):
            return {}
        steps = [one for one in planned if one.action is not offset_backup.RestoreAction.KEEP]
        steps = [one for one in steps if one.change.channel not in spared]
        offset_backup.restore_channels(self.client, steps, set_token=self.set_token)
        return {one.change.channel: one.change.token for one in steps}

    def disturb(self, fault: Fault, **deeds: Callable[[], None]) -> None:
        """Let the next run meet a fault, which may be a deed of the test's own."""
        self.snowpipe.holds_commits = fault is HELD
        if "operation" in fault:
            call = {fault["when"]: fault["operation"]}
            do, instead = deeds.get(fault["kind"]), ERRORS.get(fault["kind"])
            self.snowpipe.fault(**call, skip=fault["skip"], error=instead, do=do)

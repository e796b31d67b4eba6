"""The state machine of a channel."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from airflow_provider_snowpipe.streaming.errors import ContinuityError, TokenWentBackError
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset
from airflow_provider_snowpipe.streaming.progress import ChannelProgress, Progress


def at(value: int | None) -> IntegerOffset | None:
    return None if value is None else IntegerOffset(value)


@pytest.mark.parametrize(("committed", "target"), list(itertools.product([None, 0, 4, 5, 6], [0, 5])))
def test_complete_means_committed_at_or_past_the_target(committed: int | None, target: int) -> None:
    complete = Progress(at(committed), IntegerOffset(target)).is_complete()
    assert complete == (committed is not None and committed >= target)


@pytest.mark.parametrize(
    ("committed", "start", "end", "accepted"),
    [
        (None, 0, 9, True),
        (None, 7, 7, True),
        (4, 5, 9, True),
        (4, 4, 9, False),
        (4, 3, 9, False),
        (4, 6, 9, False),
        (4, 5, 4, False),
        (None, 5, 4, False),
    ],
)
def test_rows_are_accepted_only_directly_after_the_last_ones(
    committed: int | None, start: int, end: int, accepted: bool
) -> None:
    progress = ChannelProgress("c", at(committed))
    if accepted:
        progress.accept(IntegerOffset(start), IntegerOffset(end))
        assert progress.sent == IntegerOffset(end)
    else:
        with pytest.raises(ContinuityError, match="'c'"):
            progress.accept(IntegerOffset(start), IntegerOffset(end))
        assert (progress.sent, progress.committed) == (None, at(committed))


def test_gaps_are_accepted_where_the_source_may_have_them() -> None:
    progress = ChannelProgress("c", IntegerOffset(4), gaps_legal=True)
    progress.accept(IntegerOffset(8), IntegerOffset(9))
    progress.accept(IntegerOffset(10), IntegerOffset(11))
    progress.accept(IntegerOffset(20), IntegerOffset(20))
    assert progress.sent == IntegerOffset(20)
    with pytest.raises(ContinuityError):
        progress.accept(IntegerOffset(20), IntegerOffset(21))


@pytest.mark.parametrize(("before", "after"), [(5, 4), (5, None), (0, None)])
def test_a_token_that_went_back_is_an_error(before: int, after: int | None) -> None:
    progress = ChannelProgress("c", at(before))
    with pytest.raises(TokenWentBackError, match="'c'"):
        progress.observe(at(after))
    assert progress.committed == at(before)


@pytest.mark.parametrize(("before", "after"), [(None, None), (None, 0), (5, 5), (5, 6)])
def test_a_token_may_stay_or_advance(before: int | None, after: int | None) -> None:
    progress = ChannelProgress("c", at(before))
    progress.observe(at(after))
    assert progress.committed == at(after)


class ChannelModel(RuleBasedStateMachine):
    """Any order of appends and commits: never double, never past what was sent, never backwards."""

    def __init__(self) -> None:
        super().__init__()
        self.progress = ChannelProgress("c", None)
        self.accepted: list[int] = []
        self.committed = 0

    @rule(start=st.integers(0, 30), length=st.integers(1, 5))
    def append(self, start: int, length: int) -> None:
        rows = list(range(start, start + length))
        try:
            self.progress.accept(IntegerOffset(rows[0]), IntegerOffset(rows[-1]))
        except ContinuityError:
            assert self.accepted
            assert start != self.accepted[-1] + 1
        else:
            self.accepted += rows

    @precondition(lambda self: self.committed < len(self.accepted))
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        self.committed = data.draw(st.integers(self.committed + 1, len(self.accepted)))
        self.progress.observe(IntegerOffset(self.accepted[self.committed - 1]))

    @invariant()
    def accepted_rows_are_one_run_without_doubles(self) -> None:
        if self.accepted:
            assert self.accepted == list(range(self.accepted[0], self.accepted[0] + len(self.accepted)))


test_channel_model = ChannelModel.TestCase


@given(st.lists(st.integers(0, 50), min_size=1, max_size=20))
def test_replaying_from_the_committed_position_sends_each_row_once(crashes: list[int]) -> None:
    table: list[int] = []
    for crash_at in [*crashes, 100]:
        progress = ChannelProgress("c", at(table[-1]) if table else None)
        start = progress.committed.next().value if progress.committed else 0
        for row in range(start, 51):
            if row >= crash_at:
                break
            progress.accept(IntegerOffset(row), IntegerOffset(row))
            table.append(row)
    assert table == list(range(51))

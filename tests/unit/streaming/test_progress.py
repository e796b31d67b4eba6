"""The state machine of a channel."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from airflow_provider_snowpipe.streaming.errors import ContinuityError, TokenWentBackError
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset
from airflow_provider_snowpipe.streaming.progress import ChannelProgress, Progress


def at(value):
    return None if value is None else IntegerOffset(value)


def test_complete_means_committed_at_or_past_the_target():
    for committed, target in itertools.product([None, 0, 4, 5, 6], [0, 5]):
        complete = Progress(at(committed), IntegerOffset(target)).is_complete()
        assert complete == (committed is not None and committed >= target)


def test_rows_are_accepted_only_directly_after_the_last_ones():
    for committed, start, end in [(None, 0, 9), (None, 7, 7), (4, 5, 9)]:
        progress = ChannelProgress("c", at(committed))
        progress.accept(IntegerOffset(start), IntegerOffset(end))
        assert progress.sent == IntegerOffset(end)
    for committed, start, end in [(4, 4, 9), (4, 3, 9), (4, 6, 9), (4, 5, 4), (None, 5, 4)]:
        progress = ChannelProgress("c", at(committed))
        with pytest.raises(ContinuityError, match="'c'"):
            progress.accept(IntegerOffset(start), IntegerOffset(end))
        assert (progress.sent, progress.committed) == (None, at(committed))


def test_gaps_are_accepted_where_the_source_may_have_them():
    progress = ChannelProgress("c", IntegerOffset(4), gaps_legal=True)
    for start, end in [(8, 9), (10, 11), (20, 20)]:
        progress.accept(IntegerOffset(start), IntegerOffset(end))
    assert progress.sent == IntegerOffset(20)
    with pytest.raises(ContinuityError):
        progress.accept(IntegerOffset(20), IntegerOffset(21))


def test_a_token_may_stay_or_advance_and_one_that_went_back_is_an_error():
    for before, after in [(None, None), (None, 0), (5, 5), (5, 6)]:
        progress = ChannelProgress("c", at(before))
        progress.observe(at(after))
        assert progress.committed == at(after)
    for before, after in [(5, 4), (5, None), (0, None)]:
        progress = ChannelProgress("c", at(before))
        with pytest.raises(TokenWentBackError, match="'c'"):
            progress.observe(at(after))
        assert progress.committed == at(before)


class ChannelModel(RuleBasedStateMachine):
    """Any order of appends and commits: never double, never past what was sent, never backwards."""

    def __init__(self):
        super().__init__()
        self.progress = ChannelProgress("c", None)
        self.accepted = []
        self.committed = 0

    @rule(start=st.integers(0, 30), length=st.integers(1, 5))
    def append(self, start, length):
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
    def commit(self, data):
        self.committed = data.draw(st.integers(self.committed + 1, len(self.accepted)))
        self.progress.observe(IntegerOffset(self.accepted[self.committed - 1]))

    @invariant()
    def accepted_rows_are_one_run_without_doubles(self):
        if self.accepted:
            assert self.accepted == list(range(self.accepted[0], self.accepted[0] + len(self.accepted)))


test_channel_model = ChannelModel.TestCase
test_channel_model.settings = settings(max_examples=30, stateful_step_count=20)


@settings(max_examples=30)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=20))
def test_replaying_from_the_committed_position_sends_each_row_once(crashes):
    table = []
    for crash_at in [*crashes, 100]:
        progress = ChannelProgress("c", at(table[-1]) if table else None)
        start = progress.committed.next().value if progress.committed else 0
        for row in range(start, 51):
            if row >= crash_at:
                break
            progress.accept(IntegerOffset(row), IntegerOffset(row))
            table.append(row)
    assert table == list(range(51))

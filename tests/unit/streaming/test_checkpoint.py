"""The offset token says whose rows these are, how they are numbered and how many, and what was reported."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_snowpipe.streaming.checkpoint import (
    Binding,
    ChannelSource,
    Checkpoint,
    balanced,
    excess_of,
    is_checkpoint,
    position_of,
    reported,
    run_mark,
)
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    OffsetTokenError,
    SourceChangedError,
)
from airflow_provider_snowpipe.streaming.offsets import (
    BatchRowOffset,
    FileLineOffset,
    IntegerOffset,
    LexicographicOffset,
    TopicPartitionOffset,
)
from airflow_provider_snowpipe.streaming.progress import SUCCESS, ChannelStatus

EU = Binding("files of /data/orders, partition 'eu'", "csv, header")
US = Binding("files of /data/orders, partition 'us'", "csv, header")
EU_OTHERWISE = Binding(EU.source, "csv, no header")


def source(binding: Binding = EU, **changes) -> ChannelSource:
    return ChannelSource(**{"positions": FileLineOffset, "binding": binding, "run": "r1", **changes})


def status(token: str | None, inserted: int = 0, errors: int = 0) -> ChannelStatus:
    return ChannelStatus("c", SUCCESS, token, rows_inserted=inserted, rows_error_count=errors)


POSITIONS = st.one_of(
    st.builds(IntegerOffset, st.integers(0, 10**18)),
    st.builds(FileLineOffset, st.text(min_size=1, max_size=120), st.integers(0, 10**9)),
    st.builds(TopicPartitionOffset, st.text(min_size=1), st.integers(0, 99), st.integers(0, 10**9)),
    st.builds(BatchRowOffset, st.integers(0, 10**9), st.integers(0, 10**9)),
    st.builds(LexicographicOffset, st.text(min_size=1)),
)


@given(position=POSITIONS, rows=st.integers(0, 10**15 - 1), errors=st.integers(0, 10**15 - 1))
def test_a_token_is_read_as_it_was_written(position, rows, errors):
    one = Checkpoint(position, EU.digest, rows, run_mark("dag task", "2026-11-28T02:05:00+00:00"), errors)

    assert Checkpoint.parse(str(one)) == one
    assert position_of(str(one)) == position
    assert str(one).startswith(str(position))
    assert len(str(one)) - len(str(position)) <= 80


@given(text=st.text())
def test_any_other_text_is_refused_or_read_back_the_same(text):
    if is_checkpoint(text):
        return
    with pytest.raises(OffsetTokenError):
        Checkpoint.parse(text)


@pytest.mark.parametrize(
    "token",
    [
        "a:1~f2.00112233445566aa.1.r.0",
        "a:1~z1.00112233445566aa.1.r.0",
        "a:1~f1.00112233445566aa.01.r.0",
        "a:1~f1.00112233445566AA.1.r.0",
        "a:1~f1.00112233445566aa.1..0",
        "a:1~f1.00112233445566aa.1.r.-1",
        "a~f1.00112233445566aa.1.r.0",
        "~f1.00112233445566aa.1.r.0",
        "a:1",
        "",
    ],
)
def test_a_token_with_a_part_that_is_wrong_is_refused(token):
    with pytest.raises(OffsetTokenError):
        Checkpoint.parse(token)


def test_positions_of_another_class_are_refused():
    token = source().token(FileLineOffset("a", 1), 1, 0)

    with pytest.raises(OffsetTokenError):
        Checkpoint.parse(token, IntegerOffset)


def test_a_channel_starts_behind_the_position_of_its_own_token():
    start = source().start(status(source().token(FileLineOffset("a", 3), 5, 2), 3, 2))

    assert (start.position, start.rows, start.errors, start.run, start.excess) == (
        FileLineOffset("a", 3), 5, 2, "r1", 0,
    )  # fmt: skip


def test_a_new_channel_starts_at_the_beginning():
    start = source().start(status(None))

    assert (start.position, start.rows, start.errors, start.excess) == (None, 0, 0, 0)


@pytest.mark.parametrize("other", [US, EU_OTHERWISE])
def test_a_token_of_another_source_or_numbering_is_refused(other):
    token = source(other).token(FileLineOffset("a", 3), 5, 0)

    with pytest.raises(SourceChangedError, match="rebind") as refused:
        source().start(status(token, 5))

    assert "'c'" in str(refused.value)
    assert str(EU) in str(refused.value)


def test_sources_of_one_name_differ_by_their_partition_not_by_how_they_are_read():
    tokens = [
        Checkpoint.parse(source(one).token(FileLineOffset("a", 3), 5, 0)) for one in (EU, EU_OTHERWISE, US)
    ]

    assert tokens[0].source == tokens[1].source != tokens[2].source
    assert len({one.binding for one in tokens}) == 3


def test_rebind_continue_goes_on_behind_the_position_and_balances():
    token = source(US).token(FileLineOffset("a", 3), 5, 1)

    start = source(rebind="continue").start(status(token, 3, 3))

    assert (start.position, start.rows, start.errors) == (FileLineOffset("a", 3), 6, 1)


def test_rebind_restart_begins_again_and_balances():
    token = source(US).token(FileLineOffset("a", 3), 5, 1)
    restarted = source(rebind="restart")

    start = restarted.start(status(token, 3, 3))

    assert (start.position, start.rows, start.errors) == (None, 6, 1)
    assert restarted.read(token, channel="c") is None


def test_rebind_changes_nothing_once_the_new_token_is_committed():
    restarted = source(rebind="restart")
    token = restarted.token(FileLineOffset("a", 1), 7, 1)

    assert restarted.start(status(token, 6, 1)).position == FileLineOffset("a", 1)


def test_a_channel_that_counts_other_rows_than_its_token_shows_how_many():
    token = source().token(FileLineOffset("a", 3), 5, 0)

    assert source().start(status(token, 4, 0)).excess == -1
    assert source().start(status(token, 5, 2)).excess == 2
    assert source().start(status(None, 3, 0)).excess == 3


def test_a_bare_number_is_read_and_written_for_a_connector_alone():
    connector = ChannelSource(IntegerOffset, EU, is_bare=True)

    assert connector.start(status("41", 42)).position == IntegerOffset(41)
    assert connector.token(IntegerOffset(42), 43, 0) == "42"
    with pytest.raises(OffsetTokenError):
        ChannelSource(IntegerOffset, EU).start(status("41", 42))
    assert ChannelSource(IntegerOffset, EU, rebind="continue").start(status("41", 42)).rows == 42
    with pytest.raises(ConfigurationError):
        source(is_bare=True)


def test_a_token_set_by_hand_gets_the_channels_binding_and_balances():
    now = status(source().token(FileLineOffset("a", 9), 9, 0), 8, 1)

    found = Checkpoint.parse(balanced("a:3", now))

    assert (found.position, found.binding, found.rows, found.errors) == (
        FileLineOffset("a", 3), EU.digest, 9, 0,
    )  # fmt: skip
    assert excess_of(replace(now, committed=str(found))) == 0
    assert balanced("a:3", status(None)) == "a:3"


def test_a_token_that_is_restored_balances_in_a_new_channel():
    token = source().token(FileLineOffset("a", 9), 9, 2)

    assert Checkpoint.parse(balanced(token, status(None))).rows == 0


def test_rejected_rows_are_reported_once():
    token = source().token(FileLineOffset("a", 9), 9, 1)

    now = reported(status(token, 6, 3))

    assert Checkpoint.parse(str(now)).errors == 3
    assert reported(status(now, 6, 3)) is None
    assert reported(status("41", 6, 3)) is None


@pytest.mark.parametrize("began", ["", "2026-11-28T02:05:00.123456+00:00", "manual__ä/ö"])
def test_a_run_has_the_same_name_on_every_try(began):
    mark = run_mark("dag task run", began)

    assert mark == run_mark("dag task run", began) != run_mark("dag task other", began)
    assert is_checkpoint(f"1~i1.{EU.digest}.1.{mark}.0")

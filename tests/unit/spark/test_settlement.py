"""What the committed tokens show of a run."""

from dataclasses import replace

import pytest

from airflow_provider_snowpipe.spark.driver.outcome import (
    refuse_missing_commits,
    refuse_rejected_rows,
    settle,
)
from airflow_provider_snowpipe.spark.driver.report import ChannelReport
from airflow_provider_snowpipe.streaming.errors import (
    CommitTimeoutError,
    OffsetTokenError,
    RowsRejectedError,
    SourceChangedError,
)
from airflow_provider_snowpipe.streaming.names import PipeName
from airflow_provider_snowpipe.streaming.progress import ChannelStatus
from tests.checkpoints import binding_of, token

PIPE = PipeName("DB", "S", "T-STREAMING")
REPORT = ChannelReport(
    channel="c", partition="p", from_token=token(3, 4), to_token=token(9, 10), target_token=token(9, 10),
    rows=6, bytes=60, rejected=0, committed=False, inserted_before=100, errors_before=7, rejected_before=7,
)  # fmt: skip


def status(position, name="c", inserted=106, errors=7, **more):
    committed = None if position is None else token(position, 10)
    return ChannelStatus(name, "SUCCESS", committed, inserted, inserted + errors, errors, **more)


def settled(report=REPORT, offsets="integer", **now):
    position = now.pop("position", 9)
    (one,) = settle([report], {"c": status(position, **now)}, offsets)
    return one


@pytest.mark.parametrize(
    ("position", "counts"),
    [(None, False), (8, False), (9, True), (10, True), (80, True)],
    ids=["NULL", "behind", "at", "ahead", "far ahead"],
)
def test_channel_is_committed_only_at_or_past_its_target(position, counts):
    one = settled(position=position)

    assert one.committed is counts
    assert one.to_token == (None if position is None else token(position, 10))


def test_target_is_compared_by_the_order_of_its_format():
    report = replace(REPORT, target_token=token("a.log:10"))

    assert not settled(report, "file:line", position="a.log:9").committed
    assert settled(report, "file:line", position="b.log:1").committed


@pytest.mark.parametrize("position", [None, 3])
def test_channel_without_a_target_owes_nothing(position):
    assert settled(replace(REPORT, target_token=None), position=position).committed


def test_token_of_another_format_or_source_is_an_error_with_the_channel():
    with pytest.raises(OffsetTokenError, match="'c'"):
        settled(position="a.log:3")
    with pytest.raises(SourceChangedError, match="'c'"):
        settled(replace(REPORT, target_token=token(9, binding=binding_of("q"))))


def test_rows_are_those_sent_or_those_that_the_service_counted():
    counted = [(6, 106, 7), (2, 106, 7), (6, 104, 9), (2, 104, 9), (6, 100, 7), (6, 90, 0)]
    for sent, inserted, errors in counted:
        assert settled(replace(REPORT, rows=sent), inserted=inserted, errors=errors).rows == 6


@pytest.mark.parametrize(("errors", "rejected"), [(7, 0), (9, 2), (0, 0)])
def test_rejected_rows_count_from_the_baseline_on(errors, rejected):
    assert settled(errors=errors).rejected == rejected


def test_rows_that_an_earlier_try_had_rejected_are_reported_by_this_one_and_are_not_its_rows():
    one = settled(replace(REPORT, rows=0, rejected_before=4), inserted=100, errors=7)

    assert (one.rejected, one.rows) == (3, 0)


def test_latency_is_the_services_own():
    assert settled(latency_ms=12).latency_ms == 12


@pytest.mark.parametrize("position", [None, 8])
def test_channel_behind_its_target_is_refused(position):
    now = {"c": status(position), "d": status(9, "d")}
    reports = settle([replace(REPORT, channel="d"), REPORT], now, "integer")

    with pytest.raises(CommitTimeoutError) as missing:
        refuse_missing_commits(PIPE, reports, now)

    found = (missing.value.channel, missing.value.committed, missing.value.target)
    assert found == ("c", now["c"].committed, REPORT.target_token)


def test_rejected_rows_of_all_channels_are_counted_and_the_worst_one_named():
    now = {
        name: status(9, name, last_error_message=f"error of {name}", last_error_offset_upper_bound="8")
        for name in "abc"
    }
    reports = [
        replace(REPORT, channel=name, rejected=count) for name, count in zip("abc", (1, 4, 0), strict=True)
    ]

    with pytest.raises(RowsRejectedError, match=r"5 rows on 2 channel") as refused:
        refuse_rejected_rows(PIPE, reports, now)

    assert (refused.value.channel, refused.value.rejected) == ("b", 5)
    assert refused.value.last_error == "error of b"
    assert "ERROR_TABLE(T)" in str(refused.value)


def test_rejected_rows_that_nobody_has_reported_are_named_with_the_run_that_left_them():
    reports = [replace(REPORT, rejected=3, unreported=2, unreported_run="20261128-ab12")]

    with pytest.raises(RowsRejectedError, match=r"2 of them .*20261128-ab12"):
        refuse_rejected_rows(PIPE, reports, {"c": status(9)})

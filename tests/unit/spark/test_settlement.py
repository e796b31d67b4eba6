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
)
from airflow_provider_snowpipe.streaming.names import PipeName
from airflow_provider_snowpipe.streaming.offsets import FileLineOffset, IntegerOffset
from airflow_provider_snowpipe.streaming.progress import ChannelStatus

PIPE = PipeName("DB", "S", "T-STREAMING")
REPORT = ChannelReport(
    channel="c", partition="p", from_token="3", to_token="9", target_token="9", rows=6, bytes=60, rejected=0,
    committed=False, inserted_before=100, errors_before=7, rejected_before=7,
)  # fmt: skip


def status(committed, name="c", inserted=106, errors=7, **more):
    return ChannelStatus(name, "SUCCESS", committed, inserted, inserted + errors, errors, **more)


def settled(report=REPORT, offsets=IntegerOffset, **now):
    committed = now.pop("committed", "9")
    (one,) = settle([report], {"c": status(committed, **now)}, offsets)
    return one


@pytest.mark.parametrize(
    ("committed", "counts"),
    [(None, False), ("8", False), ("9", True), ("10", True), ("80", True)],
    ids=["NULL", "behind", "at", "ahead", "far ahead"],
)
def test_channel_is_committed_only_at_or_past_its_target(committed, counts):
    one = settled(committed=committed)

    assert one.committed is counts
    assert one.to_token == committed


def test_target_is_compared_by_the_order_of_its_format():
    report = replace(REPORT, target_token="a.log:10")

    assert not settled(report, FileLineOffset, committed="a.log:9").committed
    assert settled(report, FileLineOffset, committed="b.log:1").committed


def test_token_of_another_format_is_an_error_with_the_channel():
    with pytest.raises(OffsetTokenError, match="'c'"):
        settled(committed="a.log:3")


def test_rows_are_those_sent_or_those_that_the_service_counted():
    counted = [(6, 106, 7), (2, 106, 7), (6, 104, 9), (2, 104, 9), (6, 100, 7), (6, 90, 0)]
    for sent, inserted, errors in counted:
        assert settled(replace(REPORT, rows=sent), inserted=inserted, errors=errors).rows == 6


@pytest.mark.parametrize(("errors", "rejected"), [(7, 0), (9, 2), (0, 0)])
def test_rejected_rows_count_from_the_baseline_on(errors, rejected):
    assert settled(errors=errors).rejected == rejected


@pytest.mark.parametrize("committed", [None, "8"])
def test_channel_behind_its_target_is_refused(committed):
    now = {"c": status(committed), "d": status("9", "d")}
    reports = settle([replace(REPORT, channel="d"), REPORT], now, IntegerOffset)

    with pytest.raises(CommitTimeoutError) as missing:
        refuse_missing_commits(PIPE, reports, now)

    assert (missing.value.channel, missing.value.committed, missing.value.target) == ("c", committed, "9")


def test_rejected_rows_of_all_channels_are_counted_and_the_worst_one_named():
    now = {
        name: status("9", name, last_error_message=f"error of {name}", last_error_offset_upper_bound="8")
        for name in "abc"
    }
    reports = [
        replace(REPORT, channel=name, rejected=count) for name, count in zip("abc", (1, 4, 0), strict=True)
    ]

    with pytest.raises(RowsRejectedError, match=r"5 row\(s\) on 2 channel") as refused:
        refuse_rejected_rows(PIPE, reports, now)

    assert (refused.value.channel, refused.value.rejected) == ("b", 5)
    assert refused.value.last_error == "error of b"
    assert "ERROR_TABLE(T)" in str(refused.value)


@pytest.mark.parametrize("committed", [None, "3"])
def test_channel_without_a_target_owes_nothing(committed):
    assert settled(replace(REPORT, target_token=None), committed=committed).committed


def test_latency_is_the_services_own():
    assert settled(latency_ms=12).latency_ms == 12

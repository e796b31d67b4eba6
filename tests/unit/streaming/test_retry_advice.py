"""What another try is worth."""

from __future__ import annotations

import pytest

from airflow_provider_snowpipe.streaming.errors import (
    ApiError,
    AuthenticationError,
    ChannelFencedError,
    ChannelInvalidError,
    CommitTimeoutError,
    ConfigurationError,
    OffsetTokenError,
    RetriesExhaustedError,
    RowsRejectedError,
    SqlError,
    Worth,
    advise,
)


@pytest.mark.parametrize(
    ("error", "worth"),
    [
        (ConfigurationError("x"), Worth.FAIL),
        (OffsetTokenError("x"), Worth.FAIL),
        (AuthenticationError("x"), Worth.FAIL),
        (RowsRejectedError("x", channel="c", rejected=1, last_error=None), Worth.FAIL),
        (ChannelFencedError("x", channel="c", http_status=409), Worth.FAIL),
        (ApiError("x", http_status=400), Worth.FAIL),
        (ChannelInvalidError("x", channel="c", http_status=409), Worth.RETRY),
        (CommitTimeoutError("x", channel="c", committed=None, target="1"), Worth.RETRY),
        (RetriesExhaustedError("x"), Worth.RETRY),
        (SqlError("x"), Worth.RETRY),
        (SqlError("Could not connect to Snowflake backend", errno=250001), Worth.RETRY),
        (SqlError("Failed to connect to DB: a. Incorrect user", errno=250001), Worth.FAIL),
        (SqlError("does not exist", errno=2003), Worth.FAIL),
        (ValueError("x"), Worth.UNKNOWN),
    ],
    ids=lambda value: f"{type(value).__name__}-{value}" if isinstance(value, Exception) else str(value),
)
def test_each_error_has_its_worth(error: Exception, worth: Worth) -> None:
    assert advise(error).worth is worth


def test_the_services_own_delay_is_honoured() -> None:
    assert advise(RetriesExhaustedError("x", retry_after=17.0)).delay_seconds == 17.0
    assert advise(RetriesExhaustedError("x")).delay_seconds is None


def test_a_wrapped_error_is_found() -> None:
    error = RuntimeError("outer")
    error.__cause__ = RetriesExhaustedError("x", retry_after=3.0)

    assert advise(error).delay_seconds == 3.0


@pytest.mark.parametrize(
    ("text", "worth"),
    [
        ("snowpipe error: RowsRejectedError: 3 row(s) skipped", Worth.FAIL),
        ("noise\nsnowpipe error: CommitTimeoutError: late", Worth.RETRY),
        ("snowpipe error: NoSuchError: x", Worth.UNKNOWN),
        ("snowpipe error: SnowpipeError: x", Worth.RETRY),
    ],
)
def test_the_spark_jobs_error_is_known_by_its_text(text: str, worth: Worth) -> None:
    assert advise(RuntimeError(text)).worth is worth


def test_a_chain_that_bites_its_tail_ends() -> None:
    first, second = RuntimeError("a"), RuntimeError("b")
    first.__cause__, second.__cause__ = second, first

    assert advise(first).worth is Worth.UNKNOWN

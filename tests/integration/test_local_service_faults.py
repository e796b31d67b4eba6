"""Faults on demand: answers, delays, invalid channels and deaths at named points."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable

import psutil
import pytest

from airflow_provider_snowpipe.streaming.channel import Channel
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.errors import (
    ChannelInvalidError,
    PipeFailedOverError,
    SnowpipeError,
)
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset
from airflow_provider_snowpipe.streaming.retry import RetryPolicy
from tests.local_service import LocalService

ServiceFactory = Callable[..., LocalService]


def _row(channel: Channel, number: int) -> None:
    channel.append(b'{"id":%d}\n' % number, IntegerOffset(number), IntegerOffset(number), rows=1)
    channel.flush()


def _row_or_error(channel: Channel) -> None:
    with contextlib.suppress(SnowpipeError):
        _row(channel, 0)


def _send(client: SnowpipeClient, number: int = 0) -> None:
    channel = Channel.open(client, "c", IntegerOffset)
    _row(channel, number)
    channel.wait_for_commit(timeout=30)
    channel.close()


def test_our_client_outlives_every_answer_that_may_be_retried(service_factory: ServiceFactory) -> None:
    service = service_factory(
        "answer-append=429x1,answer-append=500,answer-append=408,answer-open=503,answer-token=500,"
        "answer-status=404html,answer-pipe-info=429"
    )
    service.sql("CREATE TABLE t (id INT)")
    with service.client("T") as client:
        client.pipe_info()
        _send(client)
    assert service.sql("SELECT count(*) n FROM t") == [{"N": 1}]


def test_a_pipe_that_failed_over_is_reported_as_that(service_factory: ServiceFactory) -> None:
    service = service_factory("answer-append=410")
    service.sql("CREATE TABLE t (id INT)")
    with service.client("T") as client, pytest.raises(PipeFailedOverError):
        _send(client)


def test_a_failed_over_pipe_answers_every_call_with_410(service_factory: ServiceFactory) -> None:
    service = service_factory("failover-pipe=local.public.t-streaming")
    service.sql("CREATE TABLE t (id INT)")
    with service.client("T") as client:
        with pytest.raises(PipeFailedOverError):
            client.pipe_info()
        with pytest.raises(PipeFailedOverError):
            client.channel_statuses(["c"])


def test_a_slow_answer_is_late_by_the_time_asked_for(service_factory: ServiceFactory) -> None:
    service = service_factory("slow-status=5x1")
    service.sql("CREATE TABLE t (id INT)")
    with service.client("T") as client:
        client.pipe_info()
        began = time.monotonic()
        client.channel_statuses(["c"])
        assert time.monotonic() - began >= 5
        began = time.monotonic()
        client.channel_statuses(["c"])
        assert time.monotonic() - began < 5


def test_an_invalidated_channel_refuses_until_it_is_opened_again(service_factory: ServiceFactory) -> None:
    service = service_factory("invalidate-channel=1")
    service.sql("CREATE TABLE t (id INT)")
    with service.client("T") as client:
        with pytest.raises(ChannelInvalidError):
            _send(client)
        _send(client)
    assert service.sql("SELECT count(*) n FROM t") == [{"N": 1}]


@pytest.mark.parametrize(
    ("point", "rows"),
    [
        ("before-append", {0}),
        ("before-append-answer", {0, 1}),
        ("after-append-answer", {0, 1}),
        ("before-commit", {0}),
        ("after-commit", {1}),
    ],
)
def test_rows_and_token_agree_after_a_death_at_a_named_point(
    service_factory: ServiceFactory, point: str, rows: set[int]
) -> None:
    service = service_factory(f"kill-{point}=1")
    service.sql("CREATE TABLE t (id INT)")
    before = service.pid
    # A writer that repeated its append would find the service that is started again.
    with service.client("T", retry=RetryPolicy(budget_seconds=0)) as client:
        channel = Channel.open(client, "c", IntegerOffset)
        writer = threading.Thread(target=_row_or_error, args=(channel,), daemon=True)
        writer.start()
        assert psutil.Process(before).wait(timeout=300) == -signal.SIGKILL
        writer.join(300)
        assert not writer.is_alive()
    service.kill()
    service.restart()
    assert service.pid != before
    with service.client("T") as client:
        committed = client.channel_statuses(["c"])["c"].committed
    (row,) = service.sql("SELECT count(*) n FROM t")
    assert row["N"] in rows
    assert committed == ("0" if row["N"] else None)

"""Faults on demand: answers, delays, invalid channels and deaths at named points."""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading

import psutil
import pytest

from airflow_provider_snowpipe.streaming.channel import Channel
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.errors import (
    SnowpipeError,
)
from airflow_provider_snowpipe.streaming.limits import RetryPolicy
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset
from tests.conftest import SetFaults
from tests.local_service import LocalService

_numbers = itertools.count(1)


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


@pytest.fixture
def table(local_service: LocalService) -> str:
    name = f"FAULTY{next(_numbers)}"
    local_service.sql(f"CREATE TABLE {name} (id INT)")
    return name


def test_our_client_outlives_every_answer_that_may_be_retried(
    local_service: LocalService, table: str, faults: SetFaults
) -> None:
    faults(
        "answer-append=429x1,answer-append=500,answer-append=408,answer-open=503,answer-token=500,"
        "answer-status=404html,answer-pipe-info=429"
    )
    with local_service.client(table) as client:
        client.pipe_info()
        _send(client)
    assert local_service.sql(f"SELECT count(*) n FROM {table}") == [{"N": 1}]


@pytest.mark.parametrize(
    ("point", "rows"),
    [
        ("after-append-answer", {0, 1}),
        ("after-commit", {1}),
        pytest.param("before-append", {0}, marks=pytest.mark.nightly),
        pytest.param("before-append-answer", {0, 1}, marks=pytest.mark.nightly),
        pytest.param("before-commit", {0}, marks=pytest.mark.nightly),
    ],
)
def test_rows_and_token_agree_after_a_death_at_a_named_point(
    crash_service: LocalService, point: str, rows: set[int]
) -> None:
    service = crash_service
    service.set_faults(f"kill-{point}=1")
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

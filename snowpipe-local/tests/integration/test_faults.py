"""Faults on demand: answers, delays, invalid channels and deaths at named points."""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading

import psutil
import pytest
import requests
from snowpipe_local.testing import LocalService
from tests.streaming_rest import Rest, Writer

from tests.conftest import SetFaults

_numbers = itertools.count(1)


ROW = b'{"id":0}\n'


@pytest.fixture
def table(local_service: LocalService) -> str:
    name = f"FAULTY{next(_numbers)}"
    local_service.sql(f"CREATE TABLE {name} (id INT)")
    return name


def test_each_fault_answers_as_often_as_asked_and_then_the_call_succeeds(
    local_service: LocalService, table: str, faults: SetFaults
) -> None:
    rest = Rest(local_service, table)
    faults("answer-append=429x1,answer-append=500,answer-append=408,answer-open=503,answer-pipe-info=429")
    faults("answer-status=404html")
    assert [rest.info().status_code for _ in range(2)] == [429, 200]
    assert rest.open("c").status_code == 503
    writer = Writer(rest)
    assert [writer.append(ROW, 0).status_code for _ in range(4)] == [429, 500, 408, 200]
    lost = rest.bulk_status("c")
    assert (lost.status_code, lost.headers["Content-Type"].partition(";")[0]) == (404, "text/html")
    rest.wait_for_token("c", "0")
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
    channel = Writer(Rest(service, "T"))

    def write() -> None:
        with contextlib.suppress(requests.RequestException):
            channel.append(ROW, 0)

    writing = threading.Thread(target=write, daemon=True)
    writing.start()
    assert psutil.Process(before).wait(timeout=300) == -signal.SIGKILL
    writing.join(300)
    assert not writing.is_alive()
    service.kill()
    service.restart()
    assert service.pid != before
    committed = Rest(service, "T").committed("c")
    (row,) = service.sql("SELECT count(*) n FROM t")
    assert row["N"] in rows
    assert committed == ("0" if row["N"] else None)

"""What the log of a task shows of its load while the driver runs on a cluster and the worker waits."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_provider_snowpipe.operators import cluster_job
from airflow_provider_snowpipe.spark.driver.report import START_FILE, ChannelStart, report_folder, start_text
from airflow_provider_snowpipe.streaming.errors import SnowpipeError
from tests.unit.operators.cluster_lab import CHANNEL, REPORT, SUCCEEDED, YarnLab, lab, yarn

__all__ = ["lab", "yarn"]

START = start_text({CHANNEL: ChannelStart(10, 0, 0, rows_behind=100)})
NOT_SHOWN = "what is committed meanwhile cannot be shown"
POLLS = "snowpipe-channels"


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch):
    monkeypatch.setattr(cluster_job, "_CHANNELS_SECONDS", 0.01)


@pytest.fixture
def printed(capsys) -> Callable[[], str]:
    """Everything that was logged so far."""
    found: list[str] = []

    def read() -> str:
        found.append("".join(capsys.readouterr()))
        return "".join(found)

    return read


def _begins(lab: YarnLab, start: str = START, rows: int = 10) -> None:
    """Leave the file as a driver does: who polls reads all of it or none."""
    lab.channel.rows_inserted = rows
    report_folder(str(lab.report_path())).write(START_FILE, start)


def _ends(lab: YarnLab) -> None:
    (channel,) = REPORT.channels
    before = lab.channel.rows_inserted - channel.rows
    lab.leave(replace(REPORT, channels=(replace(channel, inserted_before=before),)))


def _runs_until(lab: YarnLab, seen: Callable[[], object]) -> None:
    """Have the application run until something is there."""

    def step() -> None:
        if not seen():
            lab.yarn.script.extendleft([step, "RUNNING"])

    lab.yarn.play(step)


def test_rows_pace_and_what_is_left_are_logged_while_the_worker_waits(lab, printed):
    lab.yarn.play("RUNNING", lambda: _begins(lab))
    _runs_until(lab, lambda: re.search("rows=0 .*rows_behind<=100 latency_ms<=5", printed()))
    lab.yarn.play(lambda: setattr(lab.channel, "rows_inserted", 60))
    _runs_until(lab, lambda: "rows=50 " in printed())
    lab.yarn.play(lambda: _ends(lab), SUCCEEDED)

    assert lab.execute()["rows"] == 2

    line = (
        r"\(RUNNING\); channels=1 rows=50 rows_per_second=\d+ rows_behind<=50 seconds_left<=\d+ latency_ms<=5"
    )
    assert re.search(line, printed())
    assert NOT_SHOWN not in printed()
    assert lab.leftovers() == []


@pytest.mark.parametrize("start", ['{"p_src_a": {"rej', START], ids=["start file", "status"])
def test_polls_that_fail_are_logged_once_and_the_load_goes_well(lab, snowpipe, printed, start):
    failures: list[str] = []

    def fails() -> None:
        if threading.current_thread().name == POLLS:
            failures.append("")
            raise SnowpipeError("away")

    snowpipe.fault(before="status", do=fails, times=float("inf"))
    lab.yarn.play("RUNNING", lambda: _begins(lab, start))
    _runs_until(lab, lambda: NOT_SHOWN in printed() and (start != START or len(failures) > 3))
    # Half a file is one that is being written; the wait itself reads it when all is over.
    lab.yarn.play(lambda: _begins(lab), lambda: _ends(lab), SUCCEEDED)

    assert lab.execute()["rows"] == 2
    assert printed().count(NOT_SHOWN) == 1


def test_a_poll_that_hangs_delays_nothing(lab, snowpipe):
    hangs, goes_on = threading.Event(), threading.Event()

    def hang() -> None:
        if threading.current_thread().name == POLLS:
            hangs.set()
            goes_on.wait()

    snowpipe.fault(before="status", do=hang, times=float("inf"))
    lab.yarn.play("RUNNING", lambda: _begins(lab))
    _runs_until(lab, hangs.is_set)
    lab.yarn.play(lambda: _ends(lab), SUCCEEDED)

    try:
        assert lab.execute()["rows"] == 2
        assert lab.leftovers() == []
    finally:
        goes_on.set()

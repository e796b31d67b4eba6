"""What the log of a task shows of its load while the driver runs on a cluster and the worker waits."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.operators import cluster_job
from airflow_provider_snowpipe.spark.driver.report import START_FILE, ChannelStart, report_folder, start_text
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SnowpipeError
from tests.unit.operators.cluster_lab import CHANNEL, REPORT, SUCCEEDED, YarnLab, lab, yarn

__all__ = ["lab", "yarn"]

START = start_text({CHANNEL: ChannelStart(0, inserted_before=10, errors_before=0, rows_behind=100)})
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


def test_files_are_behind_by_their_bytes_in_the_first_line_about_the_channels(lab, printed):
    files = (("1.ndjson", 300), ("2.ndjson", 100))
    began = int(time.time() * 1_000)
    start = start_text({CHANNEL: ChannelStart(0, 10, 0, began_ms=began, files_behind=files)})

    def begins() -> None:
        lab.channel.committed = "2.ndjson:1"
        _begins(lab, start, rows=60)

    lab.yarn.play("RUNNING", begins)
    _runs_until(lab, lambda: "channels=1" in printed())
    lab.yarn.play(lambda: _ends(lab), SUCCEEDED)

    assert lab.execute()["rows"] == 2

    first, *_ = re.findall("channels=1.*", printed())
    pattern = r"channels=1 rows=50 rows_per_second=\d+ bytes_behind<=100 seconds_left<=\d+ latency_ms<=5"
    assert re.match(pattern, first)
    assert NOT_SHOWN not in printed()


def test_rows_left_are_not_guessed_where_the_source_cannot_count_them(lab, printed):
    start = start_text({CHANNEL: ChannelStart(0, inserted_before=10, errors_before=0)})
    lab.yarn.play("RUNNING", lambda: _begins(lab, start))
    _runs_until(lab, lambda: re.search("channels=1 rows=0 .*latency_ms<=5", printed()))
    lab.yarn.play(lambda: _ends(lab), SUCCEEDED)

    assert lab.execute()["rows"] == 2
    assert "behind" not in printed()


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


def test_a_connection_of_which_no_client_can_be_made_leaves_the_load_as_it_is(lab, printed):
    with pytest.MonkeyPatch.context() as patch:
        lab.yarn.play(lambda: patch.setattr(SnowpipeHook, "get_client", _no_client))
        _runs_until(lab, lambda: NOT_SHOWN in printed())
        lab.yarn.play(patch.undo, lambda: _ends(lab), SUCCEEDED)
        assert lab.execute()["rows"] == 2
    assert printed().count(NOT_SHOWN) == 1


def _no_client(*_: object, **__: object) -> None:
    raise ConfigurationError("the connection lacks a field")

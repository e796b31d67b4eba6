"""``SYSTEM$PIPE_STATUS`` as a value."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest

from airflow_provider_snowpipe.bulk.file_pipe_admin import PipeStatus
from airflow_provider_snowpipe.streaming.errors import SqlError


def status(**fields: Any) -> PipeStatus:
    return PipeStatus.read(json.dumps({"executionState": "RUNNING", "pendingFileCount": 0, **fields}))


def test_a_pipe_that_has_work_to_do_reports_what_waits() -> None:
    found = status(
        pendingFileCount=3,
        oldestPendingFilePath="in/a.csv",
        oldestFileTimestamp="2026-03-15T11:00:00.123Z",
        lastIngestedFilePath="in/z.csv",
        lastIngestedTimestamp="2026-03-15T10:00:00Z",
        numOutstandingMessagesOnChannel=7,
    )

    assert (found.is_running, found.pending_files, found.oldest_pending_path) == (True, 3, "in/a.csv")
    assert found.oldest_pending_at == dt.datetime(2026, 3, 15, 11, 0, 0, 123_000, tzinfo=dt.UTC)
    assert found.raw["numOutstandingMessagesOnChannel"] == 7
    assert str(found) == "RUNNING, 3 files wait, the oldest since 2026-03-15T11:00:00.123000+00:00"
    assert json.loads(json.dumps(found.result()))["last_ingested_at"] == "2026-03-15T10:00:00+00:00"


@pytest.mark.parametrize(
    ("state", "running", "paused"),
    [
        ("RUNNING", True, False),
        ("PAUSED", False, True),
        ("READ_ONLY", False, False),
        ("STOPPED_MISSING_TABLE", False, False),
    ],
)
def test_a_pipe_runs_is_paused_or_neither(state: str, running: bool, paused: bool) -> None:
    found = status(executionState=state)

    assert (found.is_running, found.is_paused) == (running, paused)


def test_an_error_or_a_fault_is_shown_in_one_line() -> None:
    assert str(status(error="no\n table")).endswith("error: no table")
    assert status(fault="broken").error == "broken"


@pytest.mark.parametrize("text", ["", "[]", "{}", None, "no JSON"])
def test_an_answer_that_is_no_state_is_refused(text: object) -> None:
    with pytest.raises(SqlError, match="no state of a pipe"):
        PipeStatus.read(text)


def test_a_timestamp_in_another_form_is_left_to_the_reader() -> None:
    found = status(lastIngestedTimestamp="yesterday")

    assert found.last_ingested_at is None
    assert found.raw["lastIngestedTimestamp"] == "yesterday"

"""The commit sensor under a real scheduler and triggerer."""

import time
from pathlib import Path

import pytest
from conftest import Stack
from runs import LoadRun

from tests.airflow_version import AIRFLOW

pytestmark = [pytest.mark.airflow, pytest.mark.spark]
if AIRFLOW >= (3, 0):
    # There test_when_processes_die proves the same daily; it kills processes that Airflow 2 does not have.
    pytestmark.append(pytest.mark.nightly)


def test_downstream_does_not_start_before_the_commit(stack: Stack, tmp_path: Path) -> None:
    with stack.held(commits=True):
        run = LoadRun(stack, "streamed_and_sensed", "EVENTS", tmp_path)
        run.wait_until_waiting("wait_for_commit")
        assert run.rows() == 0
        assert run.task("downstream")["start_date"] is None
        last_uncommitted = time.time()
    run.wait()
    run.assert_every_row_is_there_once()
    assert last_uncommitted < run.started("downstream")

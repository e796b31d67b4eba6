"""Runs of one load that take different paths under a real Airflow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Stack
from flights_run import RUN_SECONDS

from airflow_provider_snowpipe.streaming.names import channel_name

pytestmark = [pytest.mark.airflow, pytest.mark.spark]

ROUTED, TABLE = "load_by_router", "READINGS"
MADE = 100
"""Rows that the DAG makes for each station."""


class RoutedLoad:
    """The example DAG and its folder, to which it adds files of two stations, and this those of one."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self.stack, self.folder, self.api = stack, folder, stack.airflow.api
        self.rows = MADE
        self.api.wait_for_dag(ROUTED)
        self.api.unpause(ROUTED)

    def write(self, day: str, count: int) -> None:
        file = self.folder / "EWR" / f"{day}.ndjson"
        new = range(self.rows, self.rows + count)
        file.write_text("".join(json.dumps({"STATION": "EWR", "READING": number}) + "\n" for number in new))
        self.rows += count

    def run(self, run_id: str, **conf: Any) -> dict[str, Any]:
        """Load; the value of the task. Every row is there once, and the token is behind the last one."""
        self.api.trigger(ROUTED, run_id, {"folder": str(self.folder), "rows": 0, **conf})
        state = self.api.wait_for_run(ROUTED, run_id, RUN_SECONDS)
        tries = self.api.task(ROUTED, run_id, "load")["try_number"]
        assert state == "success", "\n".join(self.api.task_log(ROUTED, run_id, "load", tries)[-40:])
        (row,) = self.stack.service.sql(
            f"SELECT COUNT(*) AS N, COUNT(DISTINCT STATION, READING) AS D FROM {TABLE}"
        )
        assert int(row["N"]) == int(row["D"]) == self.rows + MADE
        value: dict[str, Any] = self.api.xcom(ROUTED, run_id, "load")
        return value

    def token(self) -> str | None:
        channel = channel_name(ROUTED, TABLE, "EWR")
        with self.stack.service.client(TABLE) as client:
            return client.channel_statuses([channel])[channel].committed


def test_runs_of_one_load_may_take_different_paths(stack: Stack, tmp_path: Path) -> None:
    load = RoutedLoad(stack, tmp_path)
    assert load.run("trickle", rows=MADE)["path"] == "stream"
    assert load.token() == "2013-01-01.ndjson:100"

    load.write("2013-01-02", 50)
    load.write("2013-01-03", 25)
    done = load.run("flood", path="copy")
    assert (done["path"], done["rows_loaded"]) == ("copy", 75)
    assert load.token() == "2013-01-03.ndjson:25"
    plan, outcome = (load.api.xcom(ROUTED, "flood", "load", key) for key in ("plan", "outcome"))
    assert (plan["path"], plan["is_forced"]) == ("copy", True)
    assert outcome["actual"]["rows"] == 75

    load.write("2013-01-04", 20)
    load.write("2013-01-05", 5)
    dropped = load.run("drop", path="pipe")
    assert (dropped["path"], dropped["rows_loaded"]) == ("pipe", 25)
    assert load.token() == "2013-01-05.ndjson:5"
    targets = load.api.xcom(ROUTED, "drop", "load", "targets")
    assert list(targets.values()) == ["2013-01-05.ndjson:5"]

    load.write("2013-01-06", 10)
    assert load.run("again", path="stream")["rows"] == 10
    assert load.token() == "2013-01-06.ndjson:10"
    assert load.run("nothing")["path"] == "copy"

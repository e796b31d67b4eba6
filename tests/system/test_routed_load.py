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

ROUTED, TABLE = "routed_load", "ROUTED_LOAD"


class RoutedLoad:
    """A table, and a folder with one partition."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self.stack, self.folder, self.api = stack, folder, stack.airflow.api
        self.rows = 0
        stack.service.sql(f"CREATE TABLE {TABLE} (ID INTEGER)")
        self.api.wait_for_dag(ROUTED)
        self.api.unpause(ROUTED)

    def write(self, name: str, count: int) -> None:
        file = self.folder / "a" / name
        file.parent.mkdir(exist_ok=True)
        new = range(self.rows, self.rows + count)
        file.write_text("".join(json.dumps({"ID": number}) + "\n" for number in new))
        self.rows += count

    def run(self, run_id: str, **conf: Any) -> dict[str, Any]:
        """Load; the value of the task. Every row is there once, and the token is behind the last one."""
        self.api.trigger(ROUTED, run_id, {"folder": str(self.folder), **conf})
        state = self.api.wait_for_run(ROUTED, run_id, RUN_SECONDS)
        tries = self.api.task(ROUTED, run_id, "load")["try_number"]
        assert state == "success", "\n".join(self.api.task_log(ROUTED, run_id, "load", tries)[-40:])
        (row,) = self.stack.service.sql(f"SELECT COUNT(*) AS N, COUNT(DISTINCT ID) AS D FROM {TABLE}")
        assert (int(row["N"]), int(row["D"])) == (self.rows, self.rows)
        value: dict[str, Any] = self.api.xcom(ROUTED, run_id, "load")
        return value

    def token(self) -> str | None:
        channel = channel_name(ROUTED, TABLE, "a")
        with self.stack.service.client(TABLE) as client:
            return client.channel_statuses([channel])[channel].committed


def test_runs_of_one_load_may_take_different_paths(stack: Stack, tmp_path: Path) -> None:
    load = RoutedLoad(stack, tmp_path)
    load.write("1.ndjson", 100)
    assert load.run("trickle")["path"] == "stream"
    assert load.token() == "1.ndjson:100"

    load.write("2.ndjson", 50)
    load.write("3.ndjson", 25)
    done = load.run("flood", path="copy")
    assert (done["path"], done["rows_loaded"]) == ("copy", 75)
    assert load.token() == "3.ndjson:25"
    plan, outcome = (load.api.xcom(ROUTED, "flood", "load", key) for key in ("plan", "outcome"))
    assert (plan["path"], plan["is_forced"]) == ("copy", True)
    assert outcome["actual"]["rows"] == 75

    load.write("4.ndjson", 10)
    assert load.run("again", path="stream")["rows"] == 10
    assert load.token() == "4.ndjson:10"
    assert load.run("nothing")["path"] == "copy"

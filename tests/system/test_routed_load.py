"""Runs of one load that take different paths under a real Airflow."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import Stack
from flights_run import RUN_SECONDS

from airflow_provider_snowpipe.streaming.names import channel_name
from tests.checkpoints import shown

# integration/test_load_operator proves each change of the path daily.
pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.nightly]

ROUTED = "load_by_router"
MADE = 100
"""Rows that the DAG makes for each station."""


class RoutedLoad:
    """The example DAG and its folder, to which it adds files of two stations, and this those of one.

    :param stack: what it runs against
    :param table: its table, which starts the ids of its runs
    """

    def __init__(self, stack: Stack, table: str) -> None:
        self.stack, self.table, self.api = stack, table, stack.airflow.api
        self.folder = stack.folder / table
        self.rows = MADE
        stack.unpause(ROUTED)

    def write(self, day: str, count: int) -> None:
        file = self.folder / "EWR" / f"{day}.ndjson"
        new = range(self.rows, self.rows + count)
        file.write_text("".join(json.dumps({"STATION": "EWR", "READING": number}) + "\n" for number in new))
        self.rows += count

    def trigger(self, run_id: str, **conf: Any) -> None:
        conf = {"table": self.table, "folder": str(self.folder), "rows": 0, **conf}
        self.api.trigger(ROUTED, f"{self.table}_{run_id}", conf)

    def wait(self, run_id: str) -> dict[str, Any]:
        """The value of the task, which its first try gave. Every row is there once.

        A second try might find nothing left to load, and its value would not show the first one's path.
        """
        run = f"{self.table}_{run_id}"
        state = self.api.wait_for_run(ROUTED, run, RUN_SECONDS)
        tries = self.api.task(ROUTED, run, "load")["try_number"]
        logs = [line for n in range(1, tries + 1) for line in self.api.task_log(ROUTED, run, "load", n)[-40:]]
        assert (state, tries) == ("success", 1), "\n".join(logs)
        (row,) = self.stack.service.sql(
            f"SELECT COUNT(*) AS N, COUNT(DISTINCT STATION, READING) AS D FROM {self.table}"
        )
        assert int(row["N"]) == int(row["D"]) == self.rows + MADE
        value: dict[str, Any] = self.xcom(run_id, "return_value")
        return value

    def run(self, run_id: str, **conf: Any) -> dict[str, Any]:
        self.trigger(run_id, **conf)
        return self.wait(run_id)

    def xcom(self, run_id: str, key: str) -> Any:
        return self.api.xcom(ROUTED, f"{self.table}_{run_id}", "load", key)

    def position(self) -> str | None:
        channel = channel_name(ROUTED, self.table, "EWR")
        with self.stack.service.client(self.table) as client:
            return shown(client.channel_statuses([channel])[channel].committed)


def trickle(stack: Stack, table: str = "READINGS") -> RoutedLoad:
    """Begin with a run that the plan sends through the channels."""
    load = RoutedLoad(stack, table)
    load.trigger("trickle", rows=MADE)
    return load


@pytest.mark.begins(run=trickle)
def test_runs_of_one_load_may_take_different_paths(begun: RoutedLoad) -> None:
    load = begun
    assert load.wait("trickle")["path"] == "stream"
    assert load.position() == "2013-01-01.ndjson:100"

    load.write("2013-01-02", 50)
    load.write("2013-01-03", 25)
    done = load.run("flood", path="copy")
    assert (done["path"], done["rows_loaded"]) == ("copy", 75)
    assert load.position() == "2013-01-03.ndjson:25"
    plan, outcome = load.xcom("flood", "plan"), load.xcom("flood", "outcome")
    assert (plan["path"], plan["is_forced"]) == ("copy", True)
    assert outcome["actual"]["rows"] == 75


def test_a_stream_goes_on_where_files_ended(stack: Stack) -> None:
    load = trickle(stack, "READINGS_AGAIN")
    load.wait("trickle")
    load.write("2013-01-02", 50)
    load.run("drop", path="pipe")

    load.write("2013-01-03", 10)
    assert load.run("again", path="stream")["rows"] == 10
    assert load.position() == "2013-01-03.ndjson:10"
    assert load.run("nothing")["path"] == "copy"

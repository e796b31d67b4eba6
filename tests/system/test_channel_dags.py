"""The example DAGs of the channel operators and of commit events, under a real scheduler."""

import json

import pytest
from conftest import Stack
from runs import DagRun, mapped_run, query, wait_for

from tests.checkpoints import shown

pytestmark = pytest.mark.airflow

WATCHER = "commit_driven_totals"


def replay(stack: Stack) -> DagRun:
    """Begin a run that waits for a person."""
    params = {"table": "REPLAYED", "backup_dir": str(stack.folder)}
    return DagRun(stack, "reset_and_replay", "approved", params)


@pytest.mark.begins(run=replay)
def test_rows_are_loaded_again_once_a_person_has_agreed(stack: Stack, begun: DagRun) -> None:
    begun.wait_until_waiting("approve")
    (found,) = stack.service.sql("SELECT COUNT(*) AS N FROM REPLAYED WHERE CELSIUS > 50")
    assert int(found["N"]) == 20
    backup = json.loads((stack.folder / "REPLAYED.json").read_text())
    assert shown(backup["channels"]["reset_and_replay_readings"]["offset_token"]) == "50"

    stack.airflow.api.answer(begun.dag_id, begun.run_id, "approve", "Approve")

    begun.wait()
    assert begun.xcom("verify") == [50, 50, 1000.0]
    reset, replayed = begun.xcom("reset"), begun.xcom("replay")
    assert (shown(reset["old"]), shown(reset["new"])) == ("50", "30")
    assert (replayed["rows"], replayed["skipped"], shown(replayed["from"])) == (20, 30, "30")


@pytest.mark.begins(run=mapped_run)
def test_mapped_tasks_load_channels_of_their_own(stack: Stack, begun: DagRun) -> None:
    begun.wait()
    assert begun.xcom("count") == {"channels": 3, "rows": 72}
    (found,) = stack.service.sql("SELECT COUNT(*) AS N, COUNT(DISTINCT STATION) AS S FROM STATIONS")
    assert (int(found["N"]), int(found["S"])) == (72, 3)
    with stack.service.client("STATIONS") as client:
        names = [f"many_channels_station_{number:03}" for number in range(3)]
        (position,) = {shown(status.committed) for status in client.channel_statuses(names).values()}
    assert str(position).endswith(":24")
    links = "SELECT value FROM xcom WHERE dag_id = ? AND key LIKE '!_link!_%' ESCAPE '!'"
    assert ('""',) not in query(stack, links, begun.dag_id)


def committed_meters(stack: Stack) -> DagRun:
    """Begin to load what another DAG watches."""
    stack.unpause("commit_driven_meters", WATCHER)
    stack.airflow.api.parse_again(WATCHER)
    return DagRun(stack, "commit_driven_meters", "first", {"hours": 30})


@pytest.mark.begins(run=committed_meters)
def test_a_channels_commit_starts_a_run(stack: Stack, begun: DagRun) -> None:
    def runs() -> list[tuple[str, ...]]:
        return query(stack, "SELECT state, run_id FROM dag_run WHERE dag_id = ?", WATCHER)

    begun.wait()
    wait_for(lambda: "success" in [state for state, _ in runs()], f"no run of {WATCHER} succeeds")
    ((_, run),) = runs()
    assert stack.airflow.api.xcom(WATCHER, run, "committed")["rows"] == 30
    assert stack.service.sql("SELECT SUM(KWH) AS KWH FROM METER_READINGS") == [{"KWH": 7.5}]

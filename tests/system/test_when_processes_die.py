"""kill -9 of a worker, the scheduler and the triggerer of one Airflow, with loads and waits on their way.

Meanwhile no process shows a secret, leaves one behind, or listens elsewhere than on the loopback interface.
The last module: a task that the scheduler had queued as it died is found again after minutes only.
"""

import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import PASSPHRASE, Stack
from runs import ROWS, ROWS_EACH, DagRun, LoadRun, Observed, observed, query, wait_for

from tests.checkpoints import shown

pytestmark = [pytest.mark.airflow, pytest.mark.spark]

JSON_WEB_TOKEN = re.compile(r"eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]+")


@dataclass
class Deaths:
    """A load that waits for its commit, and two waits in the triggerer; what was seen of them.

    :param load: its worker dies after it has submitted, and the scheduler while the driver waits
    :param deferred: a load that waits in the triggerer, which dies
    """

    load: LoadRun
    deferred: LoadRun
    sensed: DagRun
    observed: Observed
    driver: int = 0
    retry_log: str = ""
    downstream_without_scheduler: str | None = None
    after_death: tuple[Any, ...] = ()
    committed_at: float = 0.0


@pytest.fixture(scope="module")
def deaths(stack: Stack) -> Deaths:
    busy = "SELECT COUNT(*) FROM task_instance WHERE state IN ('scheduled', 'queued', ?)"
    wait_for(lambda: query(stack, busy, "running") == [(0,)], "tasks of other runs do not end")
    stack.service.sql("CREATE TABLE SENSED (N INTEGER)")
    with observed(stack) as processes:
        with stack.held(commits=True):
            seen = Deaths(
                LoadRun(stack, "durable_load", "ORPHANED", stack.folder),
                LoadRun(stack, "deferred_load", "DEFERRED", stack.folder),
                DagRun(stack, "sensed_load", "sensed"),
                processes,
            )
            _kill_worker(seen)
            _kill_triggerer_and_scheduler(stack, seen)
        load = seen.load
        wait_for(lambda: load.rows() == ROWS, "the load did not go on without a scheduler")
        load.wait_for_state("stream", "success")
        seen.downstream_without_scheduler = load.task("downstream")["start_date"]
        stack.airflow.start_process("scheduler")
        for run in (load, seen.deferred, seen.sensed):
            run.wait()
    return seen


def _kill_worker(seen: Deaths) -> None:
    """Kill the worker of the load, and wait until the retry waits for the same driver."""
    load = seen.load
    wait_for(lambda: load.applications, "no driver begins")
    driver = load.driver()
    seen.driver = driver.pid
    worker = driver.parent()
    worker.kill()
    psutil.wait_procs([worker], timeout=120)
    assert driver.is_running()
    wait_for(
        lambda: (
            load.task("stream")["try_number"] == 2 and "nothing is submitted" in "\n".join(load.log("stream"))
        ),
        "the retry did not find the driver",
    )
    seen.retry_log = "\n".join(load.log("stream"))


def _kill_triggerer_and_scheduler(stack: Stack, seen: Deaths) -> None:
    """Kill both while two waits are deferred; another triggerer takes these over, without a scheduler."""
    waits = ((seen.sensed, "wait_for_commit"), (seen.deferred, "stream"))

    def triggerers() -> set[int | None]:
        return {run.triggerer(task_id) for run, task_id in waits}

    for run, task_id in waits:
        run.wait_until_waiting(task_id)
    wait_for(lambda: None not in triggerers(), "nobody took the triggers")
    first = triggerers()
    stack.airflow.kill_process("triggerer")
    stack.airflow.kill_process("scheduler")
    stack.airflow.start_process("triggerer")
    wait_for(lambda: not triggerers() & {None, *first}, "nobody took the triggers over")
    states = [run.task(task_id)["state"] for run, task_id in waits]
    seen.after_death = (*states, seen.deferred.rows(), seen.deferred.spark_processes())
    seen.committed_at = time.time()


def test_a_retry_goes_on_with_the_driver_that_the_killed_worker_started(deaths: Deaths) -> None:
    load = deaths.load
    load.assert_every_row_is_there_once()
    assert (load.task("stream")["try_number"], load.applications) == (2, 1)
    # Java and Python of the driver, by their numbers, which begin again at some time.
    assert re.search(rf"\(process (\d+, )*{deaths.driver}\b", deaths.retry_log)
    assert load.xcom("stream")["rows"] == ROWS
    assert "snowpipe loaded channel=" in "\n".join(load.log("stream"))
    assert deaths.downstream_without_scheduler is None
    assert not psutil.pid_exists(deaths.driver)


def test_waits_go_on_in_another_triggerer_and_end_after_the_commit(deaths: Deaths) -> None:
    assert deaths.after_death == ("deferred", "deferred", 0, [])
    deaths.deferred.assert_every_row_is_there_once()
    assert deaths.deferred.applications == 1
    assert deaths.committed_at < deaths.deferred.started("downstream")
    assert deaths.sensed.xcom("downstream") == 3


def test_the_asset_events_of_a_deferred_load_hold_its_tokens(stack: Stack, deaths: Deaths) -> None:
    def events(uri: str) -> list[tuple[Any, str | None]]:
        joined = "asset_event e JOIN asset a ON a.id = e.asset_id WHERE a.uri = ? ORDER BY e.id"
        found = query(stack, f"SELECT e.extra, e.partition_key FROM {joined}", uri)
        return [(json.loads(extra), key) for extra, key in found]

    deferred, table = deaths.deferred, "snowpipe://local/LOCAL/PUBLIC/DEFERRED"
    value = deferred.xcom("stream")
    assert value["rows"] == ROWS
    tokens = {name: channel["to"] for name, channel in value["channels"].items()}
    assert set(map(shown, tokens.values())) == {f"1.ndjson:{ROWS_EACH}"}
    facts = {"pipe": "LOCAL.PUBLIC.DEFERRED-STREAMING", "committed": True}
    assert events(table) == [({**facts, "tokens": tokens, "rows": ROWS}, None)]
    first = deferred.channels[0]
    of_channel = {**facts, "tokens": {first: tokens[first]}, "rows": ROWS_EACH}
    assert events(f"{table}/{first}") == [(of_channel, "a")]


def test_every_process_listens_on_the_loopback_interface_only(deaths: Deaths) -> None:
    listeners = deaths.observed.listeners
    assert "java" in {name for name, _ in listeners}
    assert {address for _, address in listeners} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def test_no_secret_is_shown_and_no_credentials_file_is_left(stack: Stack, deaths: Deaths) -> None:
    lines, logs, events = deaths.observed.command_lines, _texts(stack.airflow.logs), _texts(stack.events)
    tables = ("xcom", "rendered_task_instance_fields")
    rows = {
        f"{table} {number}": json.dumps(row, default=str)
        for table in tables
        for number, row in enumerate(query(stack, f"SELECT * FROM {table}"))
    }
    secrets = _secrets(stack)

    # What is searched is what the loads have left.
    for run in (deaths.load, deaths.deferred):
        assert any("org.apache.spark.deploy.SparkSubmit" in line and run.table in line for line in lines)
        assert any("SparkListenerEnvironmentUpdate" in text and run.table in text for text in events.values())
        logged = [name for name in logs if run.table in name and "task_id=" in name]
        assert {name.split("task_id=")[1].split("/")[0] for name in logged} == {"stream", "downstream"}
        assert {name.split()[0] for name, text in rows.items() if run.table in text} == set(tables)
    assert all(_found(secrets, f"key={one}") for one in secrets)
    # Names only: a secret that is found would end up in the test's log.
    texts = {**{f"command line {n}": line for n, line in enumerate(lines)}, **logs, **events, **rows}
    assert [name for name, text in texts.items() if _found(secrets, text)] == []
    plans = [Path(word) for line in lines for word in line.split() if word.endswith("plan.json")]
    assert plans
    assert not any(plan.parent.exists() for plan in plans)


def _secrets(stack: Stack) -> list[str]:
    """Every line of the private key, plain and encrypted, and the passphrase."""
    files = (stack.service.key_file, stack.service.data_dir.parent / "encrypted_key.p8")
    lines = [line for file in files for line in file.read_text().splitlines()]
    return [PASSPHRASE, *(line for line in lines if len(line) > 40 and not line.startswith("-----"))]


def _found(secrets: list[str], text: str) -> bool:
    return any(one in text for one in secrets) or JSON_WEB_TOKEN.search(text) is not None


def _texts(folder: Path) -> dict[str, str]:
    return {str(one): one.read_text(errors="replace") for one in folder.rglob("*") if one.is_file()}

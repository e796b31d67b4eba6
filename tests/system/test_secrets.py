"""A load of all flights is exact, shows no secret, leaves none behind, and listens on the loopback only."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from conftest import PASSPHRASE, Stack
from runs import FLIGHTS, FlightsRun

from airflow_provider_snowpipe.streaming.names import channel_name

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.begins(run=FlightsRun)]

JSON_WEB_TOKEN = re.compile(r"eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]+")
TASKS = {"split_flights", "create_table", "stream", "wait_for_commit", "verify"}
ORIGINS = ("EWR", "JFK", "LGA")


@pytest.fixture
def run(begun: FlightsRun) -> FlightsRun:
    begun.wait()
    return begun


def test_every_flight_is_loaded_once_and_the_driver_is_gone(stack: Stack, run: FlightsRun) -> None:
    (row,) = stack.service.sql(f"SELECT COUNT(*) AS R, COUNT(DISTINCT FLIGHT_ID) AS F FROM {run.table}")
    assert (int(row["R"]), int(row["F"]), run.xcom("stream")["rows"]) == (FLIGHTS, FLIGHTS, FLIGHTS)
    with stack.service.client(run.table) as client:
        statuses = client.channel_statuses([channel_name(run.dag_id, "flights", one) for one in ORIGINS])
    targets = {name: one["token"] for name, one in run.xcom("stream", "targets").items()}
    assert {name: status.committed for name, status in statuses.items()} == targets
    assert sum(status.rows_inserted for status in statuses.values()) == FLIGHTS
    assert (run.applications, run.spark_processes()) == (1, [])


def test_every_process_listens_on_the_loopback_interface_only(run: FlightsRun) -> None:
    assert "java" in {name for name, _ in run.listeners}
    assert {address for _, address in run.listeners} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def test_no_secret_is_shown_and_no_credentials_file_is_left(stack: Stack, run: FlightsRun) -> None:
    lines, logs, events = run.command_lines, _texts(stack.airflow.logs), _texts(stack.events)
    rows = dict(_rows(stack.airflow.home / "airflow.db", "xcom", "rendered_task_instance_fields"))
    secrets = _secrets(stack)

    # What is searched is what the run has left.
    assert any("org.apache.spark.deploy.SparkSubmit" in line and run.table in line for line in lines)
    assert any("SparkListenerEnvironmentUpdate" in text and run.table in text for text in events.values())
    logged = [name for name in logs if run.table in name and "task_id=" in name]
    assert {name.split("task_id=")[1].split("/")[0] for name in logged} == TASKS
    assert {name.split()[0] for name, text in rows.items() if run.table in text} == {
        "xcom",
        "rendered_task_instance_fields",
    }
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


def _rows(database: Path, *tables: str) -> Iterator[tuple[str, str]]:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        for table in tables:
            for number, row in enumerate(connection.execute(f"SELECT * FROM {table}")):
                yield f"{table} {number}", json.dumps(row, default=str)

"""A real run shows no secret, leaves none behind, and listens on the loopback interface only."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from conftest import PASSPHRASE, Stack
from observed_load import ObservedLoad

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.begins(run=ObservedLoad)]

TABLE = "FLIGHTS_OBSERVED"
JSON_WEB_TOKEN = re.compile(r"eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]+")
TASKS = ("split_flights", "create_table", "stream", "wait_for_commit", "verify")


@pytest.fixture(scope="module")
def secret_texts(stack: Stack) -> list[str]:
    """Every line of the private key, plain and encrypted, and the passphrase."""
    encrypted = stack.service.data_dir.parent / "encrypted_key.p8"
    lines = [*stack.service.key_file.read_text().splitlines(), *encrypted.read_text().splitlines()]
    return [PASSPHRASE, *(line for line in lines if len(line) > 40 and not line.startswith("-----"))]


@pytest.fixture
def observed(begun: ObservedLoad) -> ObservedLoad:
    begun.finish()
    return begun


def test_a_secret_or_a_token_in_a_text_is_noticed(secret_texts: list[str]) -> None:
    token = ".".join(["eyJhbGciOiJSUzI1NiIs", "eyJpc3MiOiJMT0NBTC5ERU1P", "c2lnbmF0dXJl"])
    texts = [("log", f"key={secret}") for secret in secret_texts] + [("header", f"Bearer {token}")]
    assert len(_found(secret_texts, texts)) == len(texts)


def test_command_lines_hold_no_secret(observed: ObservedLoad, secret_texts: list[str]) -> None:
    lines = observed.command_lines
    assert any("org.apache.spark.deploy.SparkSubmit" in line and TABLE in line for line in lines)
    assert _found(secret_texts, ((line[:40], line) for line in lines)) == []


def test_every_process_listens_on_the_loopback_interface_only(observed: ObservedLoad) -> None:
    assert "java" in {name for name, _ in observed.listeners}
    assert {address for _, address in observed.listeners} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


@pytest.mark.usefixtures("observed")
def test_spark_settings_and_events_hold_no_secret(stack: Stack, secret_texts: list[str]) -> None:
    files = list(_files(stack.events))
    settings = [text for _, text in files if "SparkListenerEnvironmentUpdate" in text and TABLE in text]
    assert settings
    assert _found(secret_texts, files) == []


@pytest.mark.usefixtures("observed")
def test_airflow_logs_hold_no_secret(stack: Stack, secret_texts: list[str]) -> None:
    files = list(_files(stack.airflow.logs))
    logged = {
        name.split("task_id=")[1].split("/")[0] for name, _ in files if TABLE in name and "task_id=" in name
    }
    assert logged == set(TASKS)
    assert _found(secret_texts, files) == []


@pytest.mark.usefixtures("observed")
def test_xcoms_and_rendered_templates_hold_no_secret(stack: Stack, secret_texts: list[str]) -> None:
    rows = list(_database_rows(stack.airflow.home / "airflow.db", "xcom", "rendered_task_instance_fields"))
    assert {"xcom", "rendered_task_instance_fields"} == {table for table, text in rows if TABLE in text}
    assert _found(secret_texts, rows) == []


def test_no_credentials_file_is_left_behind(observed: ObservedLoad) -> None:
    plans = {word for line in observed.command_lines for word in line.split() if word.endswith("plan.json")}
    assert plans
    assert [path for plan in plans for path in [Path(plan).parent] if path.exists()] == []


def _files(folder: Path) -> Iterator[tuple[str, str]]:
    for path in folder.rglob("*"):
        if path.is_file():
            yield str(path), path.read_text(errors="replace")


def _database_rows(database: Path, *tables: str) -> Iterator[tuple[str, str]]:
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        for table in tables:
            for row in connection.execute(f"SELECT * FROM {table}"):
                yield table, json.dumps(row, default=str)
    finally:
        connection.close()


def _found(secrets: list[str], texts: Iterable[tuple[str, str]]) -> list[str]:
    """Name the sources that hold a secret; never the secret itself, which would end up in the test's log."""
    found = []
    for source, text in texts:
        found += [f"secret {number} in {source}" for number, secret in enumerate(secrets) if secret in text]
        if JSON_WEB_TOKEN.search(text):
            found.append(f"a JSON web token in {source}")
    return found

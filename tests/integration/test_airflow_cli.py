"""``airflow snowpipe`` as a terminal runs it, with a connection that only the metadata database holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.airflow_version import AIRFLOW as RELEASE
from tests.local_connection import commit, make_table
from tests.local_service import LocalService

Airflow = Callable[..., subprocess.CompletedProcess[str]]
AIRFLOW = str(Path(sys.executable).parent / "airflow")


@pytest.fixture(scope="module")
def airflow(local_service: LocalService, tmp_path_factory: pytest.TempPathFactory) -> Airflow:
    """Run a command of an Airflow with a database of its own, which knows the local service."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    env |= {"AIRFLOW_HOME": str(tmp_path_factory.mktemp("airflow")), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([AIRFLOW, *words], env=env, capture_output=True, text=True, timeout=600)

    stored = json.loads(local_service.env["AIRFLOW_CONN_SNOWFLAKE_DEFAULT"])
    stored["extra"]["ca_bundle"] = str(local_service.ca_file)
    for command in (
        ("db", "migrate"),
        ("connections", "add", "kept_in_database", "--conn-json", json.dumps(stored)),
    ):
        done = run(*command)
        assert done.returncode == 0, done.stderr
    return run


# unit/cli proves the commands daily, and Airflow finds connections.
@pytest.mark.nightly
def test_connections_of_the_database_are_found(local_service: LocalService, airflow: Airflow) -> None:
    commit(local_service, make_table(local_service, "T"), "a", ["f:1"])
    arguments = ("--conn-id", "kept_in_database", "--table", "T")

    listed = airflow("snowpipe", "channels", *arguments, "--output", "json")

    assert [(one["channel"], one["committed"]) for one in json.loads(listed.stdout)] == [("a", "f:1")]


@pytest.mark.skipif(RELEASE < (3, 2), reason="Airflow asks providers for commands since 3.2")
def test_doctor_checks_connections_of_the_environment(local_service: LocalService, tmp_path: Path) -> None:
    table = make_table(local_service, "DOCTOR")
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")},
        **local_service.env,
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW_CONN_SPARK_DEFAULT": '{"conn_type": "spark", "host": "local[2]"}',
    }
    given = ("--snowflake-conn-id", "snowflake_default", "--table", table)

    def doctor(*words: str) -> subprocess.CompletedProcess[str]:
        command = [AIRFLOW, "snowpipe", "doctor", *given, *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)

    well = doctor("--json")
    local_service.sql(f"DROP TABLE {table}")
    ill = doctor()

    report = json.loads(well.stdout)
    assert {one["check"]: one["state"] for one in report["checks"] if one["state"] != "ok"} == {}, well.stderr
    assert (well.returncode, report["ok"], len(report["checks"])) == (0, True, 14)
    assert (ill.returncode, "failed" in ill.stdout, "ok: " in ill.stdout) == (1, True, True)

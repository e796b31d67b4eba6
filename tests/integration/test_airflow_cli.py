"""``airflow snowpipe`` as a terminal runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.airflow_version import AIRFLOW as RELEASE
from tests.local_connection import make_table
from tests.local_service import LocalService

AIRFLOW = str(Path(sys.executable).parent / "airflow")


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

    command = [AIRFLOW, "snowpipe", "doctor", *given, "--json"]
    well = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)

    report = json.loads(well.stdout)
    assert {one["check"]: one["state"] for one in report["checks"] if one["state"] != "ok"} == {}, well.stderr
    assert (well.returncode, report["ok"], len(report["checks"])) == (0, True, 14)

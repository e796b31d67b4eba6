"""The demo's Airflow: forks of one process that has imported it."""

import json
import subprocess
import sys


def test_second_starts_after_the_first_is_done_with_the_variables_that_came_and_its_end_is_the_programs(
    tmp_path,
):
    first = ["config", "get-value", "core", "parallelism"]
    second = ["connections", "get", "account", "-o", "plain"]
    commands = {
        "first": {"arguments": first, "log": str(tmp_path / "first"), "done": str(tmp_path / "done")},
        "second": {"arguments": second, "log": str(tmp_path / "second")},
    }
    environment = {"AIRFLOW__CORE__PARALLELISM": "3", "AIRFLOW_CONN_ACCOUNT": "snowflake://of-the-service"}
    message = json.dumps({"environment": environment, "commands": commands})
    program = [sys.executable, "-m", "demo.airflow_forks"]
    ended = subprocess.run(program, input=message, capture_output=True, text=True, timeout=300)
    files = {path.name: path.read_text() for path in tmp_path.iterdir()}

    assert ended.returncode == 1  # one that ended well is no longer there either
    assert f"airflow second ended with exit code 0; its log: {tmp_path}/second" in ended.stdout
    assert files["first"].strip().endswith("3")
    assert "of-the-service" in files["second"]
    assert files["done"] == ""

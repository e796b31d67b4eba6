"""The demo's Airflow: forks of one process that has imported it."""

import json
import subprocess
import sys

import pytest


def fork(folder, first, second, environment=None):
    """Run the program, and return its exit code, its output, and what is in the folder: a log of each."""
    commands = {
        "first": {"arguments": first, "log": str(folder / "first"), "done": str(folder / "done")},
        "second": {"arguments": second, "log": str(folder / "second")},
    }
    program = [sys.executable, "-m", "demo.airflow_forks"]
    message = json.dumps({"environment": environment or {}, "commands": commands})
    ended = subprocess.run(program, input=message, capture_output=True, text=True, timeout=300)
    return ended.returncode, ended.stdout, {path.name: path.read_text() for path in folder.iterdir()}


def test_second_starts_after_the_first_is_done_with_the_variables_that_came_and_its_end_is_the_programs(
    tmp_path,
):
    code, output, files = fork(
        tmp_path,
        ["config", "get-value", "core", "parallelism"],
        ["connections", "get", "account", "-o", "plain"],
        {"AIRFLOW__CORE__PARALLELISM": "3", "AIRFLOW_CONN_ACCOUNT": "snowflake://of-the-service"},
    )

    assert code == 1  # one that ended well is no longer there either
    assert f"airflow second ended with exit code 0; its log: {tmp_path}/second" in output
    assert files["first"].strip().endswith("3")
    assert "of-the-service" in files["second"]
    assert files["done"] == ""


@pytest.mark.nightly  # a demo that does not come up
def test_nothing_starts_after_a_first_that_failed(tmp_path):
    code, output, files = fork(tmp_path, ["db", "no-such-verb"], ["version"])

    assert code == 2
    assert "airflow first ended with exit code 2" in output
    assert set(files) == {"first"}

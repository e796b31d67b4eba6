"""Both generations of snowflake-connector-python run the same scenario, each with its own interpreter."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.connector_venv import UnavailableError, connector_5_python
from tests.local_service import LocalService

_SCENARIO = Path(__file__).parents[1] / "clients" / "connector_scenario.py"
_SCENARIO_SECONDS = 600


def _interpreter(generation: str) -> Path:
    if generation == "4":
        return Path(sys.executable)
    try:
        return connector_5_python()
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("generation", ["4", "5"])
def test_a_connector_of_either_generation_works_unmodified(
    local_service: LocalService, generation: str
) -> None:
    base = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    done = subprocess.run(
        [str(_interpreter(generation)), str(_SCENARIO)],
        env=local_service.process_env(base),
        capture_output=True,
        text=True,
        timeout=_SCENARIO_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
    assert done.stdout.strip().startswith(f"{generation}.")


def test_the_password_is_in_a_private_file_and_nowhere_else(local_service: LocalService) -> None:
    file = Path(local_service.env["SNOWPIPE_LOCAL_PASSWORD_FILE"])
    password = file.read_text().strip()
    assert len(password) >= 32
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert password not in local_service.cli("env").stdout + local_service.log_file.read_text()


def test_the_password_survives_a_restart(local_service: LocalService) -> None:
    file = Path(local_service.env["SNOWPIPE_LOCAL_PASSWORD_FILE"])
    before = file.read_text()
    local_service.restart()
    assert file.read_text() == before

"""Both generations of snowflake-connector-python run the same scenario, each with its own interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from snowpipe_local.testing import LocalService
from tests.clients.packages import UnavailableError, connector_5_python

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

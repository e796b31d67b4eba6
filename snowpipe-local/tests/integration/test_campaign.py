"""``snowpipe-local campaign`` on a program: what loads once is right, what doubles is found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys
from pathlib import Path
from snowpipe_local.datadir import DataDirectory
from snowpipe_local.environment import run_statement

home = DataDirectory(Path(os.environ["SNOWPIPE_LOCAL_PRIVATE_KEY_FILE"]).parent)
for statement in ("SELECT 1", sys.argv[1], "SELECT COUNT(*) FROM T", "SELECT 2"):
    run_statement(home, statement, "json")
"""
ONCE = "INSERT OVERWRITE INTO T VALUES (1), (2)"
AGAIN = "INSERT INTO T VALUES (1), (2)"


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    path = tmp_path / "tables.sql"
    path.write_text("CREATE TABLE IF NOT EXISTS T (ID INTEGER);\n")
    return path


def campaign(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command; what it keeps of wrong rounds lies in the folder."""
    command = [sys.executable, "-m", "snowpipe_local.cli", "campaign", *map(str, words)]
    env = {**os.environ, "TMPDIR": str(folder)}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=900, check=False)


def plan(folder: Path, statement: str) -> Path:
    (folder / "load.py").write_text(PROGRAM)
    path = folder / "plan.json"
    command = [sys.executable, str(folder / "load.py"), statement]
    path.write_text(json.dumps({"command": command, "init": "tables.sql"}))
    return path


@pytest.mark.usefixtures("tables")
class TestPlan:
    def test_a_program_that_loads_once_is_right(self, tmp_path):
        done = campaign(
            tmp_path, "--plan", plan(tmp_path, ONCE), "--rounds", "3", "--minutes", "5", "--seed", "7"
        )

        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.splitlines()[-1].startswith("3 rounds from seed 7: 0 lost, 0 doubled")

    def test_a_program_that_doubles_is_found_with_its_seed(self, tmp_path):
        done = campaign(
            tmp_path, "--plan", plan(tmp_path, AGAIN), "--rounds", "4", "--minutes", "5", "--seed", "7"
        )

        assert done.returncode == 1, done.stdout + done.stderr
        (last,) = [line for line in done.stdout.splitlines() if line.startswith("wrong: seeds")]
        seed = last.split()[2].strip(",;")
        (line_of_seed,) = [line for line in done.stdout.splitlines() if line.startswith(f"seed {seed}:")]
        assert " doubled" in line_of_seed

    def test_what_leaves_no_rows_cannot_be_judged(self, tmp_path):
        done = campaign(tmp_path, "--plan", plan(tmp_path, "SELECT 3"), "--rounds", "1")

        assert (done.returncode, "no rows" in done.stderr) == (1, True)

    def test_what_differs_without_faults_cannot_be_judged(self, tmp_path):
        done = campaign(tmp_path, "--plan", plan(tmp_path, "INSERT INTO T SELECT RANDOM()"), "--rounds", "1")

        assert (done.returncode, "--compare" in done.stderr) == (1, True)

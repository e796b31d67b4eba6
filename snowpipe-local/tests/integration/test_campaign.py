"""``snowpipe-local campaign`` on a program: what loads once is right, what doubles is found."""

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


def campaign(folder: Path, statement: str, rounds: int) -> subprocess.CompletedProcess[str]:
    """Run the command on a program with this statement; what it keeps of wrong rounds lies in the folder."""
    (folder / "tables.sql").write_text("CREATE TABLE IF NOT EXISTS T (ID INTEGER);\n")
    (folder / "load.py").write_text(PROGRAM)
    loading = [sys.executable, str(folder / "load.py"), statement]
    (folder / "plan.json").write_text(json.dumps({"command": loading, "init": "tables.sql"}))
    command = [sys.executable, "-m", "snowpipe_local.cli", "campaign", "--plan", str(folder / "plan.json")]
    command += ["--rounds", str(rounds), "--minutes", "5", "--seed", "7"]
    env = {**os.environ, "TMPDIR": str(folder)}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=900, check=False)


def test_a_program_that_loads_once_is_right(tmp_path: Path) -> None:
    done = campaign(tmp_path, "INSERT OVERWRITE INTO T VALUES (1), (2)", 1)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("1 rounds from seed 7: 0 lost, 0 doubled")


def test_a_program_that_doubles_is_found_with_its_seed(tmp_path: Path) -> None:
    done = campaign(tmp_path, "INSERT INTO T VALUES (1), (2)", 1)
    assert done.returncode == 1, done.stdout + done.stderr
    (last,) = [line for line in done.stdout.splitlines() if line.startswith("wrong: seeds")]
    seed = last.split()[2].strip(",;")
    (line_of_seed,) = [line for line in done.stdout.splitlines() if line.startswith(f"seed {seed}:")]
    assert " doubled" in line_of_seed


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("statement", "reason"), [("SELECT 3", "no rows"), ("INSERT INTO T SELECT RANDOM()", "--compare")]
)
def test_what_leaves_no_rows_or_differs_without_faults_cannot_be_judged(
    tmp_path: Path, statement: str, reason: str
) -> None:
    done = campaign(tmp_path, statement, 1)
    assert (done.returncode, reason in done.stderr) == (1, True)

"""The page about running the job elsewhere: its steps, as printed, where nothing of ours is installed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_snowpipe.spark.driver.plan import JobPlan

pytestmark = pytest.mark.spark

_PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "run-elsewhere.md"
_BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", _PAGE.read_text(), re.MULTILINE | re.DOTALL)


def _block(language: str, word: str) -> str:
    (found,) = [text for kind, text in _BLOCKS if kind == language and word in text]
    return found


def test_the_pages_first_command_writes_what_the_platform_gets(tmp_path: Path) -> None:
    """``test_kubernetes`` submits such files where no package is."""
    done = subprocess.run(
        ["sh", "-euc", f'python() {{ "{sys.executable}" "$@"; }}\n{_block("sh", "package_archive")}'],
        cwd=tmp_path,
        env={"PYTHONPATH": str(_PAGE.parents[2]), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    written = sorted(path.name for path in tmp_path.iterdir())
    assert sorted(done.stdout.split()) == written == sorted(_block("text", "snowpipe_job.py").split())
    assert JobPlan.from_json(_block("json", "plan_version")).credentials_variable == "SNOWPIPE_CREDENTIALS"

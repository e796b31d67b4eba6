"""``snowpipe-local campaign`` on a DAG with this package: what loads once is right, what doubles is found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

STREAMED = """
from airflow.providers.common.compat.sdk import DAG
from airflow_provider_snowpipe.operators.append import SnowpipeAppendRowsOperator

with DAG("orders", schedule=None):
    SnowpipeAppendRowsOperator(
        task_id="append", table="T", channel="orders", rows=[{"ID": number} for number in range(20)]
    )
"""
DOUBLING = """
import uuid
from airflow.providers.common.compat.sdk import DAG, task
from airflow_provider_snowpipe.operators.append import SnowpipeAppendRowsOperator
from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook

with DAG("orders", schedule=None):
    append = SnowpipeAppendRowsOperator(
        task_id="append", table="T", channel=uuid.uuid4().hex, rows=[{"ID": number} for number in range(20)]
    )

    @task
    def list_often():
        for _ in range(20):
            SnowpipeHook(table="T").list_channels()

    append >> list_often()
"""


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    path = tmp_path / "tables.sql"
    path.write_text("CREATE TABLE IF NOT EXISTS T (ID INTEGER);\n")
    return path


def campaign(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command; what it keeps of wrong rounds lies in the folder."""
    command = [Path(sys.executable).with_name("snowpipe-local"), "campaign", *map(str, words)]
    env = {**os.environ, "TMPDIR": str(folder)}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=900, check=False)


# The tests of snowpipe-local prove the verdicts daily; here Airflow starts six times for each.
@pytest.mark.nightly
class TestDag:
    @pytest.mark.parametrize(("text", "right"), [(STREAMED, True), (DOUBLING, False)])
    def test_verdict(self, tmp_path, tables, text, right):
        (tmp_path / "dags").mkdir()
        dag = tmp_path / "dags" / "orders.py"
        dag.write_text(text)
        done = campaign(tmp_path, "--dag", dag, "--init", tables, "--rounds", "1", "--seed", "7")

        assert done.returncode == (0 if right else 1), done.stdout + done.stderr
        assert bool(re.search(r"[1-9][0-9]* doubled", done.stdout)) != right

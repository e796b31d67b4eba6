"""``snowpipe-local campaign`` on a DAG with this package: what loads once is right, what doubles is found."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DAG = """
import uuid
from airflow.providers.common.compat.sdk import DAG, task
from airflow_provider_snowpipe.operators.append import SnowpipeAppendRowsOperator
from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook

with DAG("orders", schedule=None):
    append = SnowpipeAppendRowsOperator(
        task_id="append", table="T", channel={channel}, rows=[{{"ID": number}} for number in range(20)]
    )

    @task
    def list_often():
        for _ in range(20):
            SnowpipeHook(table="T").list_channels()

    append >> list_often()
"""


# The tests of snowpipe-local prove the verdicts daily; here Airflow starts six times for each.
@pytest.mark.nightly
@pytest.mark.parametrize(("channel", "right"), [("'orders'", True), ("uuid.uuid4().hex", False)])
def test_verdict(tmp_path: Path, channel: str, right: bool) -> None:
    (tmp_path / "tables.sql").write_text("CREATE TABLE IF NOT EXISTS T (ID INTEGER);\n")
    (tmp_path / "orders.py").write_text(DAG.format(channel=channel))
    given = ("--dag", "orders.py", "--init", "tables.sql", "--rounds", "1", "--seed", "7")
    command = [str(Path(sys.executable).with_name("snowpipe-local")), "campaign", *given]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == (0 if right else 1), done.stdout + done.stderr
    assert bool(re.search(r"[1-9][0-9]* doubled", done.stdout)) != right

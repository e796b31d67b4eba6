"""The environment, the name and the error of one submission."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from airflow_provider_snowpipe.operators import submission
from airflow_provider_snowpipe.operators.client_job import runs, stop_process_tree
from airflow_provider_snowpipe.spark.driver.report import ChannelReport, RunReport
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.triggers.application import spark_connection
from tests.waiting import wait_until

CHANNEL = ChannelReport("p_s_EWR", "EWR", None, "a:2", "a:2", 0, True, rows=1234, bytes=99)


@pytest.mark.parametrize(
    ("run", "map_index", "name"),
    [("manual__1", -1, "manual__1"), ("r", None, "r"), ("r", 0, "r.0"), ("my run; $(x)", -1, "my-run-x-")],
)
def test_application_name_is_made_from_dag_task_and_run(run, map_index, name):
    ti = SimpleNamespace(dag_id="d", task_id="g.t", run_id=run, map_index=map_index)
    assert submission.application_name(ti) == f"snowpipe.d.g.t.{name}"


def test_spark_submit_of_this_environment_is_found_without_activating_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    environment = submission.launch_environment(tmp_path)
    found = shutil.which("spark-submit", path=environment["PATH"])
    assert found == str(Path(sys.executable).parent / "spark-submit")
    assert environment["PYSPARK_PYTHON"] == sys.executable
    assert os.access(Path(environment["JAVA_HOME"]) / "bin" / "java", os.X_OK)


@pytest.mark.parametrize(("rows", "rejected", "loaded"), [(1234, 4, 1230), (3, 4, 0)])
def test_asset_events_count_the_rows_that_are_in_the_table(rows, rejected, loaded):
    (channel,) = submission.loaded_channels(
        RunReport("a", (replace(CHANNEL, rows=rows, rejected=rejected),), 1.0)
    )
    assert (channel.token, channel.committed, channel.loaded) == ("a:2", True, loaded)


def test_missing_spark_and_connection_are_reported_with_the_remedy(tmp_path):
    with pytest.raises(ConfigurationError, match=r"spark-submit.*airflow-provider-snowpipe\[spark\]"):
        submission.require_spark_submit("spark-submit", str(tmp_path))
    with pytest.raises(ConfigurationError, match="'no_such_spark'") as missing:
        spark_connection("no_such_spark")
    assert "AIRFLOW_CONN_NO_SUCH_SPARK" in str(missing.value)


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("sleep 300 & echo ready; wait", id="obedient"),
        pytest.param("(trap '' TERM; sleep 300) & sleep 300 & echo ready; wait", id="deaf-child"),
        pytest.param("trap '' TERM; sleep 300 & echo ready; while true; do wait; done", id="deaf"),
    ],
)
def test_descendants_end_with_the_process(script, monkeypatch):
    for name in ("_GRACE_SECONDS", "_REAP_SECONDS"):
        monkeypatch.setattr(f"airflow_provider_snowpipe.operators.client_job.{name}", 0.3)
    process = subprocess.Popen(["/bin/bash", "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    family = psutil.Process(process.pid).children(recursive=True)
    assert family
    stop_process_tree(process)
    assert process.poll() is not None
    stop_process_tree(process)
    wait_until(lambda: not any(map(runs, family)), seconds=60, what="the end of all that was killed")

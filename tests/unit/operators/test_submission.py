"""The environment, the name and the error of one submission."""

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow_provider_snowpipe.operators.submission import (
    application_name,
    job_error,
    launch_environment,
    loaded_channels,
    report_lines,
    require_spark_submit,
    spark_connection,
)
from airflow_provider_snowpipe.spark.driver.report import ChannelReport, RunReport
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

CHANNEL = ChannelReport("p_s_EWR", "EWR", None, "a:2", "a:2", 0, True, rows=1234, bytes=99)


@pytest.mark.parametrize(
    ("run", "map_index", "name"),
    [
        ("manual__2026-01-01T00:00:00+00:00", -1, "snowpipe.d.g.t.manual__2026-01-01T00:00:00+00:00"),
        ("r", None, "snowpipe.d.g.t.r"),
        ("r", 0, "snowpipe.d.g.t.r.0"),
        ("my run; $(x)", -1, "snowpipe.d.g.t.my-run-x-"),
    ],
)
def test_application_name_is_made_from_dag_task_and_run(run, map_index, name):
    ti = SimpleNamespace(dag_id="d", task_id="g.t", run_id=run, map_index=map_index)
    assert application_name(ti) == name


def test_spark_submit_of_this_environment_is_found_without_activating_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")

    environment = launch_environment(tmp_path)

    assert shutil.which("spark-submit", path=environment["PATH"]) == str(
        Path(sys.executable).parent / "spark-submit"
    )
    assert environment["PYSPARK_PYTHON"] == sys.executable
    assert os.access(Path(environment["JAVA_HOME"]) / "bin" / "java", os.X_OK)


class TestJobError:
    def test_comes_from_the_output_when_there_is_no_report(self):
        output = (
            "Cannot execute: spark-submit. Error code is: 1.\nLast spark-submit output:\n"
            "WARN x\nsnowpipe error: SourceMissingError: source path '/x' does not exist\nINFO bye"
        )

        assert job_error(None, output) == (
            "snowpipe error: SourceMissingError: source path '/x' does not exist [SP04]",
            False,
        )


@pytest.mark.parametrize(("rows", "rejected", "loaded"), [(1234, 4, 1230), (3, 4, 0)])
def test_asset_events_count_the_rows_that_are_in_the_table(rows, rejected, loaded):
    report = RunReport("a", (replace(CHANNEL, rows=rows, rejected=rejected),), 1.0)

    (channel,) = loaded_channels(report)
    assert (channel.channel, channel.token, channel.committed, channel.loaded) == (
        "p_s_EWR",
        "a:2",
        True,
        loaded,
    )


def test_report_is_a_table_with_a_line_for_each_channel():
    lines = report_lines(RunReport("a", (CHANNEL,), 1.0))

    assert lines == [
        "channel  rows   bytes  rejected  dead letters  from  to   committed",
        "p_s_EWR  1,234  99     0         0             NULL  a:2  yes",
    ]


def test_rejected_rows_are_known_once_the_commit_was_awaited():
    sent = replace(CHANNEL, committed=False)

    assert report_lines(RunReport("a", (sent,), 1.0))[1].split("  ")[-1] == "no"
    assert "not awaited" in report_lines(RunReport("a", (sent,), 1.0))[1]


def test_missing_spark_submit_names_the_extra_to_install(tmp_path):
    with pytest.raises(ConfigurationError) as missing:
        require_spark_submit("spark-submit", str(tmp_path))

    assert "spark-submit" in str(missing.value)
    assert "airflow-provider-snowpipe[spark]" in str(missing.value)


def test_missing_spark_connection_is_reported_with_how_to_create_one():
    with pytest.raises(ConfigurationError) as missing:
        spark_connection("no_such_spark")

    assert "'no_such_spark'" in str(missing.value)
    assert "AIRFLOW_CONN_NO_SUCH_SPARK" in str(missing.value)
    assert "local[*]" in str(missing.value)

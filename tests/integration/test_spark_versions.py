"""Executors whose Python or package is not the driver's: refused in words, before a row moves."""

import sys

import pytest

from airflow_provider_snowpipe.spark.sources.files.spec import FileSourceSpec
from airflow_provider_snowpipe.spark.task import work
from tests.spark_job import SparkJob, ids_in, new_table, numbered_name, write_rows

pytestmark = pytest.mark.spark

MISSING = "ERR_CHANNEL_DOES_NOT_EXIST_OR_NOT_AUTHORIZED"
OTHER_PYTHON = """#!/bin/sh
exec "{python}" -c '
import runpy, sys

class Other(tuple):
    major, minor, micro, releaselevel, serial = 3, 9, 0, "final", 0

sys.version_info = Other((3, 9, 0, "final", 0))
sys.argv = sys.argv[2:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
' "$@"
"""
"""Reports that it is Python 3.9, which is all that PySpark checks."""


def _one_line(job, finished):
    assert finished.code == 1, finished.err[-3000:]
    (line,) = finished.error_lines
    assert line.startswith("snowpipe error: ConfigurationError: ")
    assert finished.report.error_type == "ConfigurationError"
    assert job.statuses("a")["a"].code == MISSING
    assert ids_in(job.service, job.table) == []
    return line


@pytest.fixture
def job(local_service, tmp_path, shared_spark):
    write_rows(tmp_path / "source" / "a" / "1.ndjson", range(5))
    table, source = new_table(local_service, numbered_name("VERSIONS")), str(tmp_path / "source")
    return SparkJob(local_service, tmp_path / "runs", table, FileSourceSpec(path=source), spark=shared_spark)


def test_another_python_on_the_executors_is_refused(job, tmp_path, shared_spark, monkeypatch):
    other = tmp_path / "python-of-executors"
    other.write_text(OTHER_PYTHON.format(python=sys.executable))
    other.chmod(0o755)
    monkeypatch.setattr(shared_spark.sparkContext, "pythonExec", str(other))  # as PYSPARK_PYTHON sets it

    line = _one_line(job, job.run())

    here = "{}.{}".format(*sys.version_info[:2])
    assert f"the executors run Python 3.9, the driver Python {here}" in line
    assert "PYSPARK_PYTHON" in line


def test_another_version_of_the_package_on_the_executors_is_refused(job, monkeypatch):
    monkeypatch.setattr(work, "__version__", "0.0.1")

    line = _one_line(job, job.run())

    assert "driver 0.0.1" in line
    assert "--py-files" in line

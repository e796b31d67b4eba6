"""Executors whose Python or package is not the driver's: refused in words, before a row moves."""

import shutil
import sys
from pathlib import Path

import pytest

import airflow_provider_snowpipe
from airflow_provider_snowpipe.spark.files.spec import FileSourceSpec
from tests.spark_job import SparkJob, ids_in, new_table, write_rows

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
"""Says of itself that it is Python 3.9, which is all that PySpark looks at."""


@pytest.fixture
def job(local_service, tmp_path, request):
    write_rows(tmp_path / "source" / "a" / "1.ndjson", range(5))
    table = new_table(local_service, request.node.name.upper()[:100])
    job = SparkJob(local_service, tmp_path / "runs", table, FileSourceSpec(path=str(tmp_path / "source")))
    job.env["PYSPARK_DRIVER_PYTHON"] = sys.executable
    job.env["PYSPARK_PYTHON"] = str(tmp_path / "python-of-executors")
    return job


def _refused(job, script):
    launcher = Path(job.env["PYSPARK_PYTHON"])
    launcher.write_text(script)
    launcher.chmod(0o755)
    finished = job.run(master="local[1]")

    assert finished.code == 1, finished.err[-3000:]
    (line,) = finished.error_lines
    assert line.startswith("snowpipe error: ConfigurationError: ")
    assert finished.report.error_type == "ConfigurationError"
    assert job.statuses("a")["a"].code == MISSING
    assert ids_in(job.service, job.table) == []
    return line


def test_another_python_on_the_executors_is_refused(job):
    line = _refused(job, OTHER_PYTHON.format(python=sys.executable))

    here = "{}.{}".format(*sys.version_info[:2])
    assert f"the executors run Python 3.9, the driver Python {here}" in line
    assert "PYSPARK_PYTHON" in line


def test_another_version_of_the_package_on_the_executors_is_refused(job, tmp_path):
    package = Path(airflow_provider_snowpipe.__file__).parent
    for room in ("spark", "streaming"):
        shutil.copytree(package / room, tmp_path / "old" / package.name / room)
    (tmp_path / "old" / package.name / "__init__.py").write_text('__version__ = "0.0.1"\n')

    line = _refused(job, f'#!/bin/sh\nPYTHONPATH="{tmp_path}/old:$PYTHONPATH" exec "{sys.executable}" "$@"\n')

    assert "an executor has airflow-provider-snowpipe 0.0.1" in line
    assert "--py-files" in line

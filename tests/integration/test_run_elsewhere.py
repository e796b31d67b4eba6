"""The page about running the job elsewhere: its steps, as printed, where nothing of ours is installed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG
from airflow.providers.standard.operators.empty import EmptyOperator
from jinja2 import Environment

from airflow_provider_snowpipe.operators.plan import SnowpipePlan
from airflow_provider_snowpipe.operators.submission import launch_environment
from airflow_provider_snowpipe.sensors.commit import SnowpipeCommitSensor
from airflow_provider_snowpipe.sources import FileSource
from airflow_provider_snowpipe.spark.driver.credentials import write_credentials
from airflow_provider_snowpipe.spark.driver.job import main
from airflow_provider_snowpipe.streaming.auth import KeyPair
from tests.airflow_connections import set_connection
from tests.local_connection import connect
from tests.local_service import LocalService
from tests.spark_cluster import spark_home, write_bare_python
from tests.spark_groups import assert_exact, grouped_job
from tests.spark_job import SparkJob, numbered_name

__all__ = ["set_connection"]
pytestmark = pytest.mark.spark

_PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "run-elsewhere.md"
_BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", _PAGE.read_text(), re.MULTILINE | re.DOTALL)
_SECONDS = 900


def _block(language: str, word: str) -> str:
    (found,) = [text for kind, text in _BLOCKS if kind == language and word in text]
    return found


@pytest.fixture
def job(local_service: LocalService, tmp_path: Path) -> SparkJob:
    return grouped_job(local_service, tmp_path, numbered_name("ELSEWHERE"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What the platform gets: the two files that the page's first command writes."""
    folder = tmp_path / "platform"
    folder.mkdir()
    command = _block("sh", "package_archive")
    done = subprocess.run(
        ["sh", "-euc", f'python() {{ "{sys.executable}" "$@"; }}\n{command}'],
        cwd=folder,
        env={"PYTHONPATH": str(_PAGE.parents[2]), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=True,
    )
    assert sorted(done.stdout.split()) == sorted(_block("text", "snowpipe_job.py").split())
    assert sorted(path.name for path in folder.iterdir()) == sorted(done.stdout.split())
    return folder


def _plan(job: SparkJob, **changes: Any) -> str:
    """The page's plan, on this machine's service, table and files."""
    plan = json.loads(_block("json", "plan_version"))
    own = {"account_url": job.service.url, "ca_bundle": str(job.service.ca_file)}
    own |= {"pipe": {"database": "LOCAL", "schema": "PUBLIC", "pipe": job.pipe.pipe}}
    own |= {"channel_prefix": "test", "source_name": job.table}
    source = {**plan["source"], "path": job.source.path}
    plan |= {**own, "source": source, **changes}
    return json.dumps({key: value for key, value in plan.items() if value is not None})


def _environment(tmp_path: Path) -> dict[str, str]:
    """A platform's shell: Spark, Java and a Python in which our package is not installed."""
    python = write_bare_python(tmp_path / "bare-python")
    home = spark_home(tmp_path / "spark")
    java = launch_environment(tmp_path / "java")["JAVA_HOME"]
    environment = {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python), "JAVA_HOME": java}
    missing = subprocess.run(
        [python, "-c", "import pyarrow, airflow_provider_snowpipe"],
        capture_output=True,
        text=True,
        cwd="/",
        env={},
    )
    assert "No module named 'airflow_provider_snowpipe'" in missing.stderr
    return environment | {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PATH": f"{home / 'bin'}:/usr/bin:/bin",
    }


def _credentials(job: SparkJob, path: Path) -> str:
    key = KeyPair(job.service.account, job.service.user, job.service.key_file.read_bytes())
    write_credentials(key, path)
    return path.read_text()


def _submit(command: str, folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-euc", command],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )


# test_kubernetes submits such a job daily: with credentials from the environment, where no package is.
@pytest.mark.nightly
def test_the_pages_command_loads_the_pages_plan_with_credentials_from_the_environment(
    job: SparkJob, folder: Path, tmp_path: Path
) -> None:
    (folder / "plan.json").write_text(_plan(job))
    secret = _credentials(job, tmp_path / "credentials.json")
    env = {**_environment(tmp_path), "SNOWPIPE_CREDENTIALS": secret}

    done = _submit(_block("sh", "spark-submit"), folder, env)

    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert_exact(job)
    assert "snowpipe done channels=3 rows=1800" in done.stdout
    assert "PRIVATE KEY" not in done.stdout + done.stderr
    assert sorted(path.name for path in folder.iterdir()) == [
        "airflow_provider_snowpipe.zip",
        "plan.json",
        "snowpipe_job.py",
    ]


def test_the_plan_may_be_the_argument_with_credentials_in_a_file(
    job: SparkJob, tmp_path: Path, shared_spark: Any
) -> None:
    file, report = tmp_path / "credentials.json", tmp_path / "report.json"
    _credentials(job, file)
    plan = _plan(job, credentials_variable=None, credentials_path=str(file), report_path=str(report))

    assert main([plan]) == 0

    assert_exact(job)
    assert not file.exists()
    assert json.loads(report.read_text())["error"] is None


def test_the_driver_may_ask_a_secret_store(
    job: SparkJob, tmp_path: Path, shared_spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    _credentials(job, secret)
    (tmp_path / "company_secrets.py").write_text(
        f"from pathlib import Path\n\n\ndef snowpipe():\n    return Path({str(secret)!r}).read_text()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    plan = _plan(job, credentials_variable=None, credentials_from="python:company_secrets:snowpipe")

    assert main([plan]) == 0

    assert_exact(job)


def test_the_plan_of_a_dag_gives_the_job_its_arguments_and_the_sensor_its_targets(
    job: SparkJob, tmp_path: Path, shared_spark: Any, set_connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's block, with an operator that runs the application in this process."""
    made: dict[str, Any] = {}
    names: dict[str, Any] = {
        "FileSource": FileSource,
        "SnowpipePlan": lambda **page: SnowpipePlan(**{**page, **own}),
        "SparkSubmitOperator": lambda **options: made.update(options) or EmptyOperator(task_id="load"),
        "SnowpipeCommitSensor": lambda **page: SnowpipeCommitSensor(
            **{**page, "table": job.table}, snowflake_conn_id=connect(job.service, set_connection)
        ),
    }
    own = {
        "source": FileSource(path=job.source.path),
        "account_url": job.service.url,
        "ca_bundle": str(job.service.ca_file),
        **{"database": "LOCAL", "schema": "PUBLIC", "table": job.table},
        **{"channel_prefix": "test", "source_name": job.table},
        "work_path": str(tmp_path / "{{ run_id }}"),
    }
    with DAG("elsewhere", schedule=None):
        exec(_block("python", "SnowpipePlan"), names)  # noqa: S102  the page's own
    (tmp_path / "r1").mkdir()
    arguments = [text.replace("{{ run_id }}", "r1") for text in made["application_args"]]
    monkeypatch.setenv("SNOWPIPE_CREDENTIALS", _credentials(job, tmp_path / "credentials.json"))

    assert main(arguments) == 0

    assert_exact(job)
    sensor: SnowpipeCommitSensor = names["committed"]
    sensor.targets = sensor.targets({"run_id": "r1"}, Environment())  # noqa: S701  as Airflow's
    assert len(sensor.targets) == 3
    assert sensor.poke({"ti": _TaskInstance()})  # type: ignore[typeddict-item]


class _TaskInstance:
    def xcom_push(self, key: str, value: Any) -> None:
        """Take a link's address."""


def test_missing_credentials_are_reported_in_one_line(
    job: SparkJob, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([_plan(job)]) == 1

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("snowpipe error: ConfigurationError: ")
    assert "SNOWPIPE_CREDENTIALS" in line

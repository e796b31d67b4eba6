"""The page about running the job elsewhere: its steps, as printed, where nothing of ours is installed."""

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
from airflow_provider_snowpipe.sensors.commit import SnowpipeCommitSensor
from airflow_provider_snowpipe.sources import FileSource
from airflow_provider_snowpipe.spark.driver.credentials import write_credentials
from airflow_provider_snowpipe.spark.driver.job import main
from airflow_provider_snowpipe.spark.driver.plan import JobPlan
from airflow_provider_snowpipe.streaming.auth import KeyPair
from tests.local_service import LocalService
from tests.spark_groups import assert_exact, grouped_job
from tests.spark_job import SparkJob, numbered_name
from tests.stream_worker import TaskInstance

pytestmark = pytest.mark.spark

_PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "run-elsewhere.md"
_BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", _PAGE.read_text(), re.MULTILINE | re.DOTALL)


def _block(language: str, word: str) -> str:
    (found,) = [text for kind, text in _BLOCKS if kind == language and word in text]
    return found


@pytest.fixture
def job(local_service: LocalService, tmp_path: Path) -> SparkJob:
    return grouped_job(local_service, tmp_path, numbered_name("ELSEWHERE"))


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


def test_the_plan_of_a_dag_gives_the_job_its_arguments_and_the_sensor_its_targets(
    job: SparkJob, tmp_path: Path, shared_spark: Any, conn_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's block, with an operator that runs the application in this process."""
    made: dict[str, Any] = {}
    names: dict[str, Any] = {
        "FileSource": FileSource,
        "SnowpipePlan": lambda **page: SnowpipePlan(**{**page, **own}),
        "SparkSubmitOperator": lambda **options: made.update(options) or EmptyOperator(task_id="load"),
        "SnowpipeCommitSensor": lambda **page: SnowpipeCommitSensor(
            **{**page, "table": job.table}, snowflake_conn_id=conn_id
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
    key = KeyPair(job.service.account, job.service.user, job.service.key_file.read_bytes())
    write_credentials(key, tmp_path / "credentials.json")
    monkeypatch.setenv("SNOWPIPE_CREDENTIALS", (tmp_path / "credentials.json").read_text())

    assert main(arguments) == 0

    assert_exact(job)
    sensor: SnowpipeCommitSensor = names["committed"]
    sensor.targets = sensor.targets({"run_id": "r1"}, Environment())  # noqa: S701  as Airflow's
    assert len(sensor.targets) == 3
    assert sensor.poke({"ti": TaskInstance()})  # type: ignore[typeddict-item]

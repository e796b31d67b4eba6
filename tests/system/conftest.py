"""One real Airflow and one local service for all system tests, with an encrypted private key."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from tests.airflow_version import AIRFLOW
from tests.example_dags import runs_here
from tests.local_service import LocalService

REPOSITORY = Path(__file__).parents[2]
sys.path[:0] = [str(REPOSITORY), str(Path(__file__).parent)]

from airflow_two import AirflowTwoProcesses  # noqa: E402 - found through the path above

from demo.airflow_processes import AirflowProcesses  # noqa: E402 - found through the path above

PASSPHRASE = "correct-horse-battery-staple"
LAG_DEADLINE_SECONDS = 5
DAGS = ("flights_to_snowflake", "committed_rows", "reset_and_replay", "many_channels", "lag_deadline")


@dataclass(frozen=True)
class Stack:
    """What a system test runs against.

    :param airflow: all of Airflow's processes, healthy
    :param service: the local service that the connection ``snowflake_default`` points at
    :param flights: where the flights' files go, shared by all runs
    :param events: where Spark writes its event logs, its settings among them
    """

    airflow: AirflowProcesses
    service: LocalService
    flights: Path
    events: Path


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("system")
    service = LocalService.start(folder / "service")
    processes = AirflowProcesses if AIRFLOW >= (3, 0) else AirflowTwoProcesses
    airflow = processes(folder / "airflow", _dags_folder(folder))
    try:
        airflow.prepare()
        airflow.start(
            {
                **service.env,
                "AIRFLOW_CONN_SNOWFLAKE_DEFAULT": _connection_with_encrypted_key(service, folder),
                "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2,4]"}),
                "SPARK_CONF_DIR": str(_spark_conf(folder)),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "LAG_DEADLINE_SECONDS": str(LAG_DEADLINE_SECONDS),
                # A triggerer that was killed is given up after this many seconds, not after 30.
                "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "10",
                # A task hears this often whether it has to stop, not every 5 seconds.
                "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "2",
            }
        )
        airflow.wait_until_healthy()
        for dag_id in filter(runs_here, DAGS):
            airflow.api.wait_for_dag(dag_id)
            airflow.api.unpause(dag_id)
        yield Stack(airflow, service, folder / "flights", folder / "spark-events")
    finally:
        airflow.stop()
        service.kill()


def _dags_folder(folder: Path) -> Path:
    dags = folder / "dags"
    dags.mkdir()
    (dags / "examples").symlink_to(REPOSITORY / "dags")
    (dags / "tests").symlink_to(Path(__file__).parent / "dags")
    return dags


def _connection_with_encrypted_key(service: LocalService, folder: Path) -> str:
    key = serialization.load_pem_private_key(service.key_file.read_bytes(), password=None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(PASSPHRASE.encode()),
    )
    file = folder / "encrypted_key.p8"
    file.touch(mode=0o600)
    file.write_bytes(encrypted)
    connection = json.loads(service.env["AIRFLOW_CONN_SNOWFLAKE_DEFAULT"])
    connection["password"] = PASSPHRASE
    connection["extra"]["private_key_file"] = str(file)
    return json.dumps(connection)


def _spark_conf(folder: Path) -> Path:
    events, conf = folder / "spark-events", folder / "spark-conf"
    events.mkdir()
    conf.mkdir()
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{events}",
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }
    (conf / "spark-defaults.conf").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    return conf

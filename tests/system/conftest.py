"""One real Airflow and one local service for all system tests, with an encrypted private key."""

import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from tests.airflow_version import AIRFLOW
from tests.local_service import LocalService

REPOSITORY = Path(__file__).parents[2]
sys.path[:0] = [str(REPOSITORY), str(Path(__file__).parent)]

from airflow_two import AirflowTwoProcesses  # noqa: E402 - found through the path above

from demo.airflow_processes import AirflowProcesses  # noqa: E402 - found through the path above

PASSPHRASE = "correct-horse-battery-staple"
LAG_DEADLINE_SECONDS = 5
SETTINGS = {
    # A triggerer that was killed is given up after this many seconds, not after 30.
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "8",
    # A task asks this often whether it has to stop, not every 5 seconds.
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
    # Runs of many DAGs at once, and the next task of each without a second between.
    "AIRFLOW__CORE__PARALLELISM": "8",
    "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
    # Every DAG file is there before Airflow starts, and stays as it is.
    "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "3600",
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
}
_PROGRAM = """
import gc, importlib, sys

gc.set_threshold(200_000)  # with Python's own 700 a fifth of a start goes into the search for cycles
for module in sys.argv[1].split():
    importlib.import_module(module)
gc.freeze()
sys.argv[:2] = ["airflow"]
importlib.import_module("airflow.__main__").main()
"""
_LIBRARIES = """
airflow.__main__ airflow.dag_processing.manager airflow.jobs.scheduler_job_runner
airflow.sdk.execution_time.task_runner airflow.providers.snowflake.hooks.snowflake
airflow_provider_snowpipe.operators.append airflow_provider_snowpipe.operators.channels
airflow_provider_snowpipe.operators.stream airflow_provider_snowpipe.sensors.commit
airflow_provider_snowpipe.sensors.files_loaded
"""
Begin = Callable[["Stack"], Any]
_BEGINNINGS = pytest.StashKey[dict[Begin, None]]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "begins(run): run is called with the stack before the first test, its value is `begun`"
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    functions = (mark.kwargs["run"] for item in session.items for mark in item.iter_markers("begins"))
    session.stash[_BEGINNINGS] = dict.fromkeys(functions)


class QuickProcesses(AirflowProcesses):
    """What forks for each task, or each file of DAGs, imports once what all of these need."""

    def start_process(self, name: str) -> None:
        libraries = _LIBRARIES if name in ("scheduler", "dag-processor") else ""
        command = [sys.executable, "-c", _PROGRAM, libraries, *self._commands()[name]]
        self._group.start(name, command, self._env, self.log_file(name))


@dataclass(frozen=True)
class Stack:
    """Airflow's processes, the service that ``snowflake_default`` points at, and folders.

    :param folder: for files of DAG runs that begin before the first test
    :param events: where Spark writes its event logs, its settings among them
    """

    airflow: AirflowProcesses
    service: LocalService
    folder: Path
    events: Path

    def unpause(self, *dag_ids: str) -> None:
        """Let the scheduler run these DAGs, as soon as they are read."""
        for dag_id in dag_ids:
            self.airflow.api.wait_for_dag(dag_id)
            self.airflow.api.unpause(dag_id)

    @contextmanager
    def held(self, *, commits: bool = False) -> Iterator[None]:
        """The service commits no rows, or takes none: an append waits for the end of the block."""
        self.service.admin("faults", set="commit-delay=3600" if commits else "slow-append=3600x1000")
        try:
            yield
        finally:
            self.service.admin("faults", clear=True)


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("system")
    service = LocalService(folder / "service", admin=True)
    processes = QuickProcesses if AIRFLOW >= (3, 0) else AirflowTwoProcesses
    airflow = processes(folder / "airflow", _dags_folder(folder))
    with pytest.MonkeyPatch.context() as patch:
        try:
            service.start()
            # The connector of this process, which puts files, trusts the service as those of Airflow do.
            patch.setenv("REQUESTS_CA_BUNDLE", str(service.ca_file))
            airflow.prepare()
            airflow.start(
                {
                    **service.env,
                    "AIRFLOW_CONN_SNOWFLAKE_DEFAULT": _connection_with_encrypted_key(service, folder),
                    "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2,4]"}),
                    "SPARK_CONF_DIR": str(_spark_conf(folder)),
                    # These tests watch Spark; those of integration/test_local_rows.py do without it.
                    "AIRFLOW__SNOWPIPE__LOCAL_ROWS_WITHOUT_SPARK": "False",
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "LAG_DEADLINE_SECONDS": str(LAG_DEADLINE_SECONDS),
                    **SETTINGS,
                }
            )
            airflow.wait_until_healthy()
            yield Stack(airflow, service, folder, folder / "spark-events")
        finally:
            airflow.stop()
            service.kill()


@pytest.fixture(scope="session")
def _beginnings(stack: Stack, request: pytest.FixtureRequest) -> Iterator[dict[Begin, Future[Any]]]:
    with ThreadPoolExecutor() as pool:
        yield {begin: pool.submit(begin, stack) for begin in request.session.stash[_BEGINNINGS]}


@pytest.fixture
def begun(_beginnings: dict[Begin, Future[Any]], request: pytest.FixtureRequest) -> Any:
    mark = request.node.get_closest_marker("begins")
    return _beginnings[mark.kwargs["run"]].result()


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
        "spark.sql.shuffle.partitions": "2",
    }
    (conf / "spark-defaults.conf").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    return conf

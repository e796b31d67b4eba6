"""Drivers on a real YARN: one ResourceManager and one NodeManager, whose containers are real processes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
from airflow.providers.common.compat.sdk import AirflowException, TaskDeferred

from airflow_provider_snowpipe.hooks.yarn import ResourceManager
from airflow_provider_snowpipe.operators.cluster_job import ClusterRun
from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from tests.airflow_connections import SetConnection, set_connection
from tests.fake_snowpipe import KilledError
from tests.local_connection import connect
from tests.local_service import LocalService
from tests.python_workers import kill_each
from tests.spark_cluster import write_bare_python
from tests.spark_job import wait_until
from tests.stream_worker import FileState, TaskInstance
from tests.yarn_cluster import SPARK_HOME, YarnCluster, yarn_cluster

__all__ = ["set_connection"]

pytestmark = [pytest.mark.spark, pytest.mark.nightly, pytest.mark.timeout(1200)]

_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_SECONDS = 600.0
_MASTER = "org.apache.spark.deploy.yarn.ApplicationMaster"
_EXECUTOR = "org.apache.spark.executor.YarnCoarseGrainedExecutorBackend"
_LARGE = 2_000_000
_SLOWLY = {"rows": 500}
"""Forty batches of a channel, between which something can die."""


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[YarnCluster]:
    with yarn_cluster(tmp_path_factory.mktemp("yarn")) as cluster:
        yield cluster


class Load:
    """A task that loads a folder of files through drivers on the cluster.

    :param table: the table's name
    """

    def __init__(
        self,
        yarn: YarnCluster,
        service: LocalService,
        set_connection: SetConnection,
        folder: Path,
        table: str,
    ) -> None:
        self.yarn, self.service, self.table = yarn, service, table
        self.source, self.shared, self.events = folder / "src", folder / "shared", folder / "events"
        self.staging = folder / "staging"
        for one in (self.source, self.shared, self.events):
            one.mkdir()
        service.sql(f"CREATE TABLE {table} (ID NUMBER)")
        extra = {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": yarn.address}
        set_connection("on_yarn", conn_type="spark", host="yarn", extra=extra)
        self.manager = ResourceManager(f"http://{yarn.address}")
        self.state = FileState(folder / "state.json")
        self._written = 0
        self.options: dict[str, Any] = {
            "task_id": "load",
            "source": {"path": str(self.source)},
            "table": table,
            "channel_prefix": table,
            "snowflake_conn_id": connect(service, set_connection),
            "spark_conn_id": "on_yarn",
            # What Hadoop writes and Airflow's object storage reads.
            "work_path": self.shared.as_uri(),
            "status_poll_interval": 1,
            "driver_memory": "512m",
            "executor_memory": "512m",
            "num_executors": 1,
            "env_vars": {
                "HADOOP_CONF_DIR": str(yarn.conf),
                "SPARK_HOME": str(SPARK_HOME),
                # The containers' Python has none of our code: the archive brings it.
                "PYSPARK_PYTHON": str(write_bare_python(folder / "bare-python")),
            },
            "conf": {
                "spark.yarn.jars": f"local:{SPARK_HOME}/jars/*",
                "spark.yarn.stagingDir": self.staging.as_uri(),
                "spark.driver.extraJavaOptions": _QUICK,
                "spark.executor.extraJavaOptions": _QUICK,
                "spark.eventLog.enabled": "true",
                "spark.eventLog.compress": "false",
                "spark.eventLog.dir": self.events.as_uri(),
            },
        }

    def write(self, rows: int) -> None:
        """Add a file to each of two partitions."""
        first, self._written = self._written, self._written + 2 * rows
        for partition, start in (("a", first), ("b", first + rows)):
            folder = self.source / partition
            folder.mkdir(exist_ok=True)
            lines = "".join(f"{json.dumps({'ID': number})}\n" for number in range(start, start + rows))
            (folder / f"{first:08}.ndjson").write_text(lines)

    def operator(self, **options: Any) -> SnowpipeStreamOperator:
        return SnowpipeStreamOperator(**{**self.options, **options})

    def context(self, run: str) -> Any:
        instance = TaskInstance()
        instance.run_id = run
        return {"ti": instance, "task_state_store": self.state}

    def applications(self) -> list[str]:
        """The table's applications that YARN knows, the newest first."""
        return [one.id for one in self.manager.tagged(self.table.lower())]

    def count(self) -> int:
        """How many rows are in the table."""
        (found,) = self.service.sql(f"SELECT COUNT(*) N FROM {self.table}")
        return int(found["N"])

    def check(self) -> None:
        """Every row is in the table once, and nothing is left behind."""
        (found,) = self.service.sql(
            f"SELECT COUNT(*) N, COUNT(DISTINCT ID) D, MIN(ID) LOW, MAX(ID) HIGH FROM {self.table}"
        )
        last = self._written - 1
        assert [int(found[one]) for one in ("N", "D", "LOW", "HIGH")] == [last + 1, last + 1, 0, last]
        assert list(self.shared.iterdir()) == []
        assert self.state.values() == {}


@pytest.fixture
def load(
    yarn: YarnCluster,
    local_service: LocalService,
    set_connection: SetConnection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Load:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(local_service.ca_file))
    name = f"YARN_{request.node.name.split('_')[1].upper()}"
    load = Load(yarn, local_service, set_connection, tmp_path, name)
    load.options["conf"]["spark.yarn.tags"] = name.lower()
    return load


def test_retry_follows_what_a_dead_worker_submitted_and_the_key_is_nowhere(
    load: Load, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    load.write(2_000)
    secrets = _secrets_of(load)
    places = (load.yarn.folder, load.staging)
    with _Watch(secrets, places) as watch:

        def died(_: ClusterRun) -> None:
            raise KilledError

        with monkeypatch.context() as dying:
            dying.setattr(ClusterRun, "follow", died)
            with pytest.raises(KilledError):
                load.operator(verbose=True).execute(load.context("one"))

        value = load.operator(verbose=True).execute(load.context("one"))

    assert value["rows"] == 4_000, load.yarn.logs()
    assert len(load.applications()) == 1
    load.check()
    assert watch.seen == {"driver", "executor"}
    assert watch.found == []
    # Spark's own folder, which belongs to the user alone, keeps it for another attempt of the driver.
    (held,) = watch.held
    assert held.name == "snowpipe-job.py"
    assert load.staging in held.parents
    assert watch.open == []
    printed = "".join(capsys.readouterr())
    assert "nothing is submitted" in printed
    events = b"".join(one.read_bytes() for one in load.events.rglob("*") if one.is_file())
    assert b"SparkListenerEnvironmentUpdate" in events
    for secret in secrets:
        assert secret not in printed
        assert secret.encode() not in events
    assert _holding(places, secrets) == []


def test_second_attempt_of_the_application_takes_over_while_the_task_is_deferred(load: Load) -> None:
    load.write(20_000)
    with pytest.raises(TaskDeferred) as deferred:
        load.operator(deferrable=True, batch_limits=_SLOWLY).execute(load.context("one"))
    wait_until(lambda: load.count() > 0, seconds=_SECONDS, what="the first rows")
    kill_each([child for one in _masters(load.yarn) for child in (*one.children(recursive=True), one)])
    assert load.count() < 40_000

    event = asyncio.run(_first_event(deferred.value.trigger))
    assert event["status"] == "ended", event
    operator = load.operator(deferrable=True)
    kwargs = deferred.value.kwargs or {}
    try:
        value = operator.driver_ended(load.context("one"), event=event, **kwargs)
    except TaskDeferred as again:
        commit = asyncio.run(_first_event(again.trigger))
        value = operator.execute_complete(load.context("one"), event=commit, **(again.kwargs or {}))

    assert {one["to"] for one in value["channels"].values()} == {"00000000.ndjson:20000"}
    (application,) = load.applications()
    assert _attempts(load, application) == 2
    load.check()


def test_killed_task_stops_its_application_and_the_next_run_goes_on(load: Load) -> None:
    load.write(20_000)
    operator = load.operator(batch_limits=_SLOWLY)

    def kill() -> None:
        wait_until(lambda: load.count() > 0, seconds=_SECONDS, what="the first rows")
        operator.on_kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(AirflowException, match="killed"):
        operator.execute(load.context("one"))
    killer.join()
    (application,) = load.applications()
    wait_until(
        lambda: load.manager.application(application).state == "KILLED", seconds=_SECONDS, what="its end"
    )
    assert load.count() < 40_000
    for held in _holding((load.yarn.folder, load.staging), _secrets_of(load)):
        # Spark clears its folder for an application only when that ends by itself.
        assert load.staging in held.parents
        assert not _is_open(held, load.staging)

    load.operator().execute(load.context("one"))
    assert len(load.applications()) == 2
    load.check()


def test_queue_that_does_not_exist_is_told(load: Load) -> None:
    load.write(10)

    with pytest.raises(AirflowException, match="nowhere"):
        load.operator(yarn_queue="nowhere").execute(load.context("one"))
    assert list(load.shared.iterdir()) == []


def test_report_is_written_and_read_wherever_hadoop_reaches(tmp_path: Path) -> None:
    """In a process of its own: a JVM stays for as long as its Python."""
    program = """
import sys
from airflow_provider_snowpipe.spark.report import report_place
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

place = report_place(sys.argv[1])
place.check()
assert place.read("report.json") is None
for text in ("first", "zweites \u00e4"):
    place.write("report.json", text)
assert place.read("report.json") == "zweites \u00e4"
place.remove("report.json")
place.remove("report.json")
assert place.read("report.json") is None
try:
    report_place("nosuch://bucket/report.json").check()
except ConfigurationError as error:
    assert "No FileSystem for scheme" in str(error), error
else:
    raise AssertionError("nothing reaches that")
"""
    address = (tmp_path / "new" / "report.json").as_uri()
    done = subprocess.run([sys.executable, "-c", program, address], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr[-3000:]
    assert list((tmp_path / "new").iterdir()) == []


async def _first_event(trigger: Any) -> dict[str, Any]:
    found: dict[str, Any] = (await anext(trigger.run())).payload
    return found


def _secrets_of(load: Load) -> list[str]:
    """Pieces of the private key, as it is and as the driver gets it."""
    from airflow_provider_snowpipe.operators.submission import settled
    from airflow_provider_snowpipe.spark.credentials import credentials_text

    text = credentials_text(settled(load.operator()._pipe_hook().credentials()), None)
    lines = load.service.key_file.read_text().splitlines()[1:-1]
    return [*lines, *(text[start : start + 64] for start in range(0, len(text) - 64, 64))]


def _masters(cluster: YarnCluster) -> list[psutil.Process]:
    """The drivers' JVMs."""
    lines = ((one, one.info["cmdline"] or []) for one in psutil.process_iter(["cmdline"]))
    return [one for one, line in lines if _MASTER in line and _is_of(cluster.folder, line)]


def _is_of(folder: Path, line: list[str]) -> bool:
    """True for a container of the cluster, whose command line names its folder of logs."""
    return any(str(folder) in word for word in line)


def _attempts(load: Load, application: str) -> int:
    url = f"{load.manager.url}/ws/v1/cluster/apps/{application}/appattempts"
    return len(requests.get(url, timeout=60).json()["appAttempts"]["appAttempt"])


def _holding(places: Iterable[Path], secrets: list[str]) -> list[Path]:
    """Files with a secret, whoever may read them."""
    found = []
    walks = (walk for place in places for walk in os.walk(place))  # which passes over what YARN removes
    for file in (Path(folder, name) for folder, _, names in walks for name in names):
        try:
            if not file.is_file() or file.is_symlink() or file.stat().st_size > _LARGE:
                continue
            text = file.read_text(errors="replace")
        except FileNotFoundError:
            continue
        if any(secret in text for secret in secrets):
            found.append(file)
    return found


def _is_open(file: Path, place: Path) -> bool:
    """True where other users can read it."""
    parents = [place, *(one for one in file.parents if place in one.parents)]
    return bool(file.stat().st_mode & 0o004) and all(one.stat().st_mode & 0o001 for one in parents)


class _Watch:
    """Looks at the command lines of all processes, and at the environment of executors, again and again.

    Once an executor runs, it looks at all files of the cluster, too: by then the driver has started.
    """

    def __init__(self, secrets: list[str], places: Sequence[Path]) -> None:
        self.seen: set[str] = set()
        self.found: list[str] = []
        self.held: list[Path] = []
        self.open: list[Path] = []
        self._secrets = secrets
        self._places = places
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(0.5):
            for process in psutil.process_iter():
                try:
                    self._look(process)
                except psutil.Error:
                    continue

    def _look(self, process: psutil.Process) -> None:
        line = process.cmdline()
        text = "\0".join(line)
        if _MASTER in line and _is_of(self._places[0], line):
            self.seen.add("driver")
        if _EXECUTOR in line and _is_of(self._places[0], line):
            text += repr(process.environ())
            if "executor" not in self.seen:
                self.held = _holding(self._places, self._secrets)
                self.open = [
                    one
                    for one in self.held
                    for place in self._places
                    if place in one.parents and _is_open(one, place)
                ]
            self.seen.add("executor")
        self.found += [text[:200] for secret in self._secrets if secret in text]

"""Drivers on a real YARN: one ResourceManager and one NodeManager, whose containers are real processes."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
from airflow.providers.common.compat.sdk import TaskDeferred

from airflow_provider_snowpipe.hooks.cluster import ResourceManager
from airflow_provider_snowpipe.operators.bulk_load import SnowpipeBulkLoadOperator
from airflow_provider_snowpipe.operators.cluster_job import ClusterRun
from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from tests.airflow_connections import SetConnection
from tests.airflow_version import AIRFLOW
from tests.checkpoints import shown
from tests.fake_snowpipe import KilledError
from tests.file_pipes import task_context
from tests.gcs_service import CONNECTOR, gcs_service, see_gcs
from tests.integration.trigger_events import event_of
from tests.local_connection import ids
from tests.local_service import LocalService
from tests.maven_jars import S3A, S3A_NEEDS, maven_closure, maven_jars
from tests.python_workers import kill_each
from tests.s3_service import KEY_ID, SECRET, s3_service, see_s3
from tests.spark_cluster import write_bare_python
from tests.stream_worker import FileState, TaskInstance
from tests.waiting import wait_until
from tests.yarn_cluster import EXECUTOR, MASTER, YarnCluster, yarn_cluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_SECONDS = 600.0
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
        conn_id: str,
        folder: Path,
        table: str,
    ) -> None:
        self.yarn, self.service, self.table = yarn, service, table
        self.source, self.shared, self.events = folder / "src", folder / "shared", folder / "events"
        self.staging = folder / "staging"
        for one in (self.source, self.shared, self.events):
            one.mkdir()
        service.sql(f"CREATE OR REPLACE TABLE {table} (ID NUMBER)")
        extra = {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": yarn.address}
        set_connection("on_yarn", conn_type="spark", host="yarn", extra=extra)
        self.manager = ResourceManager(f"http://{yarn.address}")
        self.state = FileState(folder / "state.json")
        self._written = 0
        environment, settings = yarn.submission(self.staging)
        self.options: dict[str, Any] = {
            "task_id": "load",
            "source": {"path": str(self.source)},
            "table": table,
            "channel_prefix": table,
            "snowflake_conn_id": conn_id,
            "spark_conn_id": "on_yarn",
            # What Hadoop writes and Airflow's object storage reads.
            "work_path": self.shared.as_uri(),
            "status_poll_interval": 1,
            "driver_memory": "512m",
            "executor_memory": "512m",
            "num_executors": 1,
            "env_vars": {
                **environment,
                # The containers' Python has none of our code: the archive brings it.
                "PYSPARK_PYTHON": str(write_bare_python(folder / "bare-python")),
            },
            "conf": {
                **settings,
                "spark.yarn.tags": table.lower(),
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

    def context(self) -> Any:
        return {"ti": TaskInstance(), "task_state_store": self.state}

    def applications(self) -> list[str]:
        """The table's applications that YARN knows, the newest first."""
        return [one.id for one in self.manager.tagged(self.table.lower())]

    def environment_page(self) -> str:
        """The page with the running application's settings and properties, and what it asks for to show."""
        application = self.applications()[0]
        pages = ("environment/", f"api/v1/applications/{application}/environment")
        root = f"{self.manager.url}/proxy/{application}"
        return "".join(requests.get(f"{root}/{one}", timeout=60).text for one in pages)

    def count(self) -> int:
        return len(ids(self.service, self.table))

    def check(self) -> None:
        """Every row is in the table once, and nothing is left behind, least of all the key."""
        assert ids(self.service, self.table) == list(range(self._written))
        self.check_leftovers()

    def check_leftovers(self) -> None:
        """Neither ``work_path`` nor Airflow's task state keeps anything, and no file has the key."""
        assert list(self.shared.iterdir()) == []
        assert self.state.values() == {}
        assert _holding((self.yarn.folder, self.events, self.staging), _secrets_of(self)) == []


@pytest.fixture
def load(
    yarn: YarnCluster,
    local_service: LocalService,
    set_connection: SetConnection,
    conn_id: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Load:
    name = f"YARN_{request.node.name.split('_')[1].upper()}"
    return Load(yarn, local_service, set_connection, conn_id, tmp_path, name)


def test_retry_follows_what_a_dead_worker_submitted_and_the_key_is_nowhere(
    load: Load, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    load.write(2_000)
    secrets = _secrets_of(load)
    roots = (load.yarn.folder, load.staging)

    def died(_: ClusterRun) -> None:
        raise KilledError

    with _Watch(secrets, roots, load.environment_page) as watch:
        with monkeypatch.context() as dying:
            dying.setattr(ClusterRun, "follow", died)
            with pytest.raises(KilledError):
                load.operator(verbose=True).execute(load.context())
        value = load.operator(verbose=True).execute(load.context())

    assert value["rows"] == 4_000, load.yarn.logs()
    assert len(load.applications()) == 1
    load.check()
    assert watch.seen == {"driver", "executor"}
    assert "spark.yarn.tags" in watch.page
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
    assert [secret for secret in secrets if secret in printed] == []


@pytest.mark.nightly
def test_second_attempt_of_the_application_takes_over_while_the_task_is_deferred(
    load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    load.write(20_000)
    with pytest.raises(TaskDeferred) as deferred:
        load.operator(deferrable=True, batch_limits=_SLOWLY).execute(load.context())
    wait_until(lambda: load.count() > 0, seconds=_SECONDS, what="the first rows")
    masters = load.yarn.containers(MASTER)
    kill_each([child for one in masters for child in (*one.children(recursive=True), one)])
    assert load.count() < 40_000

    event = event_of(deferred.value.trigger)
    assert event["status"] == "ended", event
    size = sum(one.stat().st_size for one in load.source.rglob("*.ndjson"))
    first = rf"; channels=2 rows=[1-9]\d* rows_per_second=[1-9]\d* bytes_behind<={size} "
    assert re.search(first, capsys.readouterr().out)
    operator = load.operator(deferrable=True)
    try:
        value = operator.driver_ended(load.context(), event=event, **(deferred.value.kwargs or {}))
    except TaskDeferred as again:
        commit = event_of(again.trigger)
        value = operator.execute_complete(load.context(), event=commit, **(again.kwargs or {}))

    assert {shown(one["to"]) for one in value["channels"].values()} == {"00000000.ndjson:20000"}
    (application,) = load.applications()
    url = f"{load.manager.url}/ws/v1/cluster/apps/{application}/appattempts"
    assert len(requests.get(url, timeout=60).json()["appAttempts"]["appAttempt"]) == 2
    load.check()


@pytest.mark.nightly
@pytest.mark.skipif(AIRFLOW < (3, 2), reason="before Airflow 3.2 a provider has to bring each storage")
def test_work_path_is_in_a_bucket(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    load.write(2_000)
    with s3_service() as s3, gcs_service("lake") as gcs:
        s3.put("lake", {})
        see_s3(s3, monkeypatch)
        see_gcs(gcs, monkeypatch)
        store = {
            "endpoint": f"http://{s3.endpoint}",
            "endpoint.region": "us-east-1",
            "path.style.access": "true",
            "access.key": KEY_ID,
            "secret.key": SECRET,
        }
        s3a = {f"spark.hadoop.fs.s3a.{name}": value for name, value in store.items()}
        for kind, settings, jars in (
            ("s3", s3a, [*maven_jars(S3A), *maven_closure(*S3A_NEEDS)]),
            ("gs", gcs.hadoop_settings(), maven_jars(CONNECTOR)),
        ):
            conf = {**load.options["conf"], **settings, "spark.jars": ",".join(map(str, jars))}
            load.write(100)
            load.operator(work_path=f"{kind}://lake/loads", conf=conf).execute(load.context())
            load.check()
        assert {*s3.keys("lake"), *gcs.keys("lake")} <= {"loads/"}


@pytest.mark.nightly
def test_bucket_is_read_by_executors_and_its_key_is_nowhere(
    load: Load, set_connection: SetConnection
) -> None:
    with s3_service() as s3:
        lines = "".join(f"{json.dumps({'ID': number})}\n" for number in range(500)).encode()
        s3.put("lake", {f"in/{partition}/1.ndjson": lines for partition in ("a", "b")})
        secret = f"{SECRET}-of-the-source"  # the cluster has the other one from the test of work_path
        set_connection("lake", conn_type="aws", login=KEY_ID, password=secret, extra=s3.extra)
        source = {"path": "s3://lake/in", "conn_id": "lake"}
        value = load.operator(source=source).execute(load.context())
    assert (value["rows"], load.count()) == (1000, 1000)
    assert _holding((load.yarn.folder, load.events, load.staging), [secret]) == []


@pytest.mark.nightly
def test_bulk_load_has_a_driver_on_the_cluster_write_its_files(load: Load) -> None:
    load.service.sql(f"CREATE STAGE {load.table}")
    options = {one: value for one, value in load.options.items() if one not in ("source", "channel_prefix")}
    query = "SELECT id AS ID FROM range(4000)"
    operator = SnowpipeBulkLoadOperator(**options, source={"query": query}, stage=f"@{load.table}")
    value = operator.execute({**task_context(), "task_state_store": load.state})
    assert value["rows_loaded"] == 4_000, load.yarn.logs()
    assert ids(load.service, load.table) == list(range(4_000))
    assert len(load.applications()) == 1
    load.check_leftovers()


def _secrets_of(load: Load) -> list[str]:
    """Pieces of the private key, as it is and as the driver gets it."""
    from airflow_provider_snowpipe.operators.submission import settled
    from airflow_provider_snowpipe.spark.driver.credentials import credentials_text

    text = credentials_text(settled(load.operator()._pipe_hook().credentials()), None)
    lines = load.service.key_file.read_text().splitlines()[1:-1]
    return [*lines, *(text[start : start + 64] for start in range(0, len(text) - 64, 64))]


def _holding(roots: Iterable[Path], secrets: list[str]) -> list[Path]:
    """Files with a secret, whoever may read them."""
    found = []
    walks = (walk for root in roots for walk in os.walk(root))  # which skips what YARN removes
    for file in (Path(folder, name) for folder, _, names in walks for name in names):
        with suppress(FileNotFoundError):
            if file.is_file() and not file.is_symlink() and file.stat().st_size <= _LARGE:
                text = file.read_text(errors="replace")
                found += [file] if any(secret in text for secret in secrets) else []
    return found


def _is_open(file: Path, root: Path) -> bool:
    """True for a file below a folder that other users can read."""
    parents = [root, *(one for one in file.parents if root in one.parents)]
    is_listed = all(one.stat().st_mode & 0o001 for one in parents)
    return root in file.parents and bool(file.stat().st_mode & 0o004) and is_listed


class _Watch:
    """Checks the command lines of all processes, and the environment of executors, again and again.

    Once an executor runs, it checks all files of the cluster and a page, too: by then the driver has started.
    """

    def __init__(self, secrets: list[str], roots: Sequence[Path], page: Callable[[], str]) -> None:
        self.page = ""
        self._get_page = page
        self.seen: set[str] = set()
        self.found: list[str] = []
        self.held: list[Path] = []
        self.open: list[Path] = []
        self._secrets = secrets
        self._roots = roots
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(1):
            for process in psutil.process_iter():
                with suppress(psutil.Error):
                    self._check(process)

    def _check(self, process: psutil.Process) -> None:
        line = process.cmdline()
        text = "\0".join(line)
        is_of_cluster = any(str(self._roots[0]) in word for word in line)
        if MASTER in line and is_of_cluster:
            self.seen.add("driver")
        if EXECUTOR in line and is_of_cluster:
            text += repr(process.environ())
            if "executor" not in self.seen:
                self.page = self._get_page()
                text += self.page
                self.held = _holding(self._roots, self._secrets)
                self.open = [one for one in self.held if any(_is_open(one, root) for root in self._roots)]
            self.seen.add("executor")
        self.found += [text[:200] for secret in self._secrets if secret in text]

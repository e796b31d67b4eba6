"""Drivers on a real YARN: one ResourceManager and one NodeManager, whose containers are real processes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pyarrow.compute as pc
import pytest
import requests
from airflow.providers.common.compat.sdk import AirflowException, TaskDeferred

from airflow_provider_snowpipe.hooks.cluster import ResourceManager
from airflow_provider_snowpipe.operators.bulk_load import SnowpipeBulkLoadOperator
from airflow_provider_snowpipe.operators.cluster_job import ClusterRun
from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from airflow_provider_snowpipe.spark.driver.credentials import write_credentials
from airflow_provider_snowpipe.streaming.auth import KeyPair
from airflow_provider_snowpipe.streaming.errors import SnowpipeError
from airflow_provider_snowpipe.streaming.ndjson import encode_ndjson
from airflow_provider_snowpipe.triggers.application import FollowedApplication
from tests.airflow_connections import SetConnection, set_connection
from tests.airflow_version import AIRFLOW
from tests.fake_snowpipe import KilledError
from tests.file_pipes import task_context
from tests.gcs_service import CONNECTOR, gcs_service, see_gcs
from tests.local_connection import connect, ids
from tests.local_service import LocalService
from tests.maven_jars import S3A, S3A_NEEDS, maven_closure, maven_jars
from tests.python_workers import kill_each
from tests.s3_service import KEY_ID, SECRET, s3_service, see_s3
from tests.spark_cluster import write_bare_python
from tests.stream_worker import FileState, TaskInstance
from tests.waiting import wait_until
from tests.yarn_cluster import EXECUTOR, MASTER, YarnCluster, yarn_cluster

__all__ = ["set_connection"]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_SECONDS = 600.0
_DAGS = Path(__file__).parents[2] / "dags"
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
            "snowflake_conn_id": connect(service, set_connection),
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

    def environment_page(self) -> str:
        """The page with the running application's settings and properties, and what it asks for to show."""
        application = self.applications()[0]
        pages = ("environment/", f"api/v1/applications/{application}/environment")
        root = f"{self.manager.url}/proxy/{application}"
        return "".join(requests.get(f"{root}/{one}", timeout=60).text for one in pages)

    def count(self) -> int:
        """How many rows are in the table."""
        (found,) = self.service.sql(f"SELECT COUNT(*) N FROM {self.table}")
        return int(found["N"])

    def check(self, *, was_killed: bool = False) -> None:
        """Every row is in the table once, and nothing is left behind, least of all the key.

        :param was_killed: an application was: Spark clears its own folder only when that ends by itself
        """
        (found,) = self.service.sql(
            f"SELECT COUNT(*) N, COUNT(DISTINCT ID) D, MIN(ID) LOW, MAX(ID) HIGH FROM {self.table}"
        )
        last = self._written - 1
        assert [int(found[one]) for one in ("N", "D", "LOW", "HIGH")] == [last + 1, last + 1, 0, last]
        self.check_leftovers(was_killed=was_killed)

    def check_leftovers(self, *, was_killed: bool = False) -> None:
        """Neither ``work_path`` nor Airflow's task state keeps anything, and no file has the key.

        :param was_killed: as :meth:`check`
        """
        assert list(self.shared.iterdir()) == []
        assert self.state.values() == {}
        holding = _holding((self.yarn.folder, self.events, self.staging), _secrets_of(self))
        if was_killed:
            assert holding
            holding = [
                one for one in holding if self.staging not in one.parents or _is_open(one, self.staging)
            ]
        assert holding == []


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
    roots = (load.yarn.folder, load.staging)
    with _Watch(secrets, roots, load.environment_page) as watch:

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
    for secret in secrets:
        assert secret not in printed
        assert secret.encode() not in events
    assert _holding(roots, secrets) == []


@pytest.mark.nightly
def test_worker_that_is_killed_leaves_its_application_to_the_retry_and_nothing_else(load: Load) -> None:
    """By a signal, after which no code of the worker runs any more."""
    load.write(2_000)
    worker = os.fork()
    if worker == 0:
        ClusterRun.follow = lambda _: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
        try:
            load.operator().execute(load.context("one"))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) == -signal.SIGKILL

    value = load.operator().execute(load.context("one"))

    assert value["rows"] == 4_000, load.yarn.logs()
    assert len(load.applications()) == 1
    load.check()


@pytest.mark.nightly
def test_second_attempt_of_the_application_takes_over_while_the_task_is_deferred(
    load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    load.write(20_000)
    with pytest.raises(TaskDeferred) as deferred:
        load.operator(deferrable=True, batch_limits=_SLOWLY).execute(load.context("one"))
    wait_until(lambda: load.count() > 0, seconds=_SECONDS, what="the first rows")
    masters = load.yarn.containers(MASTER)
    kill_each([child for one in masters for child in (*one.children(recursive=True), one)])
    assert load.count() < 40_000

    event = asyncio.run(_first_event(deferred.value.trigger))
    assert event["status"] == "ended", event
    size = sum(one.stat().st_size for one in load.source.rglob("*.ndjson"))
    first = rf"; channels=2 rows=[1-9]\d* rows_per_second=[1-9]\d* bytes_behind<={size} "
    assert re.search(first, capsys.readouterr().out)
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


@pytest.mark.nightly
@pytest.mark.skipif(AIRFLOW < (3, 2), reason="before Airflow 3.2 a provider has to bring each storage")
def test_folder_in_an_object_store_and_credentials_of_the_drivers_machine(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jars = [*maven_jars(S3A), *maven_closure(*S3A_NEEDS)]
    own = tmp_path / "credentials.json"
    write_credentials(
        KeyPair(load.service.account, load.service.user, load.service.key_file.read_bytes()), own
    )
    load.write(2_000)
    with s3_service() as s3:
        s3.put("lake", {})
        see_s3(s3, monkeypatch)
        store = {
            "endpoint": f"http://{s3.endpoint}",
            "endpoint.region": "us-east-1",
            "path.style.access": "true",
            "access.key": KEY_ID,
            "secret.key": SECRET,
        }
        conf = {
            **load.options["conf"],
            **{f"spark.hadoop.fs.s3a.{name}": value for name, value in store.items()},
            "spark.jars": ",".join(map(str, jars)),
        }
        operator = load.operator(work_path="s3://lake/loads", driver_secret=f"file:{own}", conf=conf)
        value = operator.execute(load.context("one"))

        assert value["rows"] == 4_000, load.yarn.logs()
        assert {one["to"] for one in value["channels"].values()} == {"00000000.ndjson:2000"}
        assert set(s3.keys("lake")) <= {"loads/"}
    load.check()
    assert own.is_file()


@pytest.mark.nightly
@pytest.mark.skipif(AIRFLOW < (3, 2), reason="before Airflow 3.2 a provider has to bring each storage")
def test_google_bucket_has_the_folder(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    jars = maven_jars(CONNECTOR)
    load.write(2_000)
    with gcs_service("lake") as gcs:
        see_gcs(gcs, monkeypatch)
        conf = {
            **load.options["conf"],
            **gcs.hadoop_settings(),
            "spark.jars": ",".join(map(str, jars)),
        }
        value = load.operator(work_path="gs://lake/loads", conf=conf).execute(load.context("one"))

        assert value["rows"] == 4_000, load.yarn.logs()
        assert {one["to"] for one in value["channels"].values()} == {"00000000.ndjson:2000"}
        assert set(gcs.keys("lake")) <= {"loads/"}
    load.check()


@pytest.mark.nightly
def test_bucket_is_read_by_executors_and_its_key_is_nowhere(
    load: Load, set_connection: SetConnection
) -> None:
    with s3_service() as s3:
        lines = "".join(f"{json.dumps({'ID': number})}\n" for number in range(500)).encode()
        s3.put("lake", {f"in/{partition}/1.ndjson": lines for partition in ("a", "b")})
        set_connection("lake", conn_type="aws", login=KEY_ID, password=SECRET, extra=s3.extra)
        source = {"path": "s3://lake/in", "conn_id": "lake", "listing_path": str(load.source)}

        value = load.operator(source=source).execute(load.context("r1"))

    assert (value["rows"], load.count()) == (1000, 1000)
    assert _holding((load.yarn.folder, load.events, load.staging), [SECRET]) == []


@pytest.mark.nightly
def test_killed_task_stops_its_application_and_the_next_run_goes_on(load: Load) -> None:
    load.write(20_000)
    operator = load.operator(batch_limits=_SLOWLY)

    def kill() -> None:
        wait_until(lambda: load.count() > 0, seconds=_SECONDS, what="the first rows")
        operator.on_kill()

    with pytest.raises(AirflowException, match="killed"):
        _beside(kill, lambda: operator.execute(load.context("one")))
    (application,) = load.applications()
    wait_until(
        lambda: load.manager.application(application).state == "KILLED", seconds=_SECONDS, what="its end"
    )
    assert load.count() < 40_000

    load.operator().execute(load.context("one"))
    assert len(load.applications()) == 2
    load.check(was_killed=True)


@pytest.mark.nightly
def test_deferred_task_that_is_cleared_stops_its_application_and_the_next_try_goes_on(load: Load) -> None:
    """Airflow 3.3 calls ``on_kill`` of the trigger of a deferred task that is cleared or marked."""
    load.write(20_000)
    with pytest.raises(TaskDeferred) as deferred:
        load.operator(deferrable=True, batch_limits=_SLOWLY).execute(load.context("one"))
    wait_until(lambda: load.count() > 0, seconds=_SECONDS, what="the first rows")
    asyncio.run(deferred.value.trigger.on_kill())
    (application,) = load.applications()
    wait_until(
        lambda: load.manager.application(application).state == "KILLED", seconds=_SECONDS, what="its end"
    )
    wait_until(lambda: not load.yarn.containers(), seconds=_SECONDS, what="the end of its containers")
    assert load.count() < 40_000

    value = load.operator().execute(load.context("one"))
    assert {one["to"] for one in value["channels"].values()} == {"00000000.ndjson:20000"}
    assert len(load.applications()) == 2
    load.check(was_killed=True)


@pytest.mark.nightly
def test_executor_that_dies_is_replaced(load: Load) -> None:
    load.write(20_000)
    died: list[int] = []

    def kill() -> None:
        wait_until(lambda: load.count() > 0, seconds=_SECONDS, what="the first rows")
        executors = load.yarn.containers(EXECUTOR)
        died.extend(one.pid for one in executors)
        kill_each([child for one in executors for child in (*one.children(recursive=True), one)])

    value = _beside(kill, lambda: load.operator(batch_limits=_SLOWLY).execute(load.context("one")))

    assert died
    assert value["rows"] == 40_000
    (application,) = load.applications()
    assert _attempts(load, application) == 1
    load.check()


@pytest.mark.nightly
def test_resource_manager_that_is_started_again_is_waited_for(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    load.write(20_000)
    missed = threading.Event()
    has_failed = FollowedApplication.has_failed

    def count(follow: FollowedApplication, error: SnowpipeError) -> bool:
        missed.set()
        return has_failed(follow, error)

    monkeypatch.setattr(FollowedApplication, "has_failed", count)

    def restart() -> None:
        wait_until(lambda: load.count() > 0, seconds=_SECONDS, what="the first rows")
        load.yarn.stop_manager()
        try:
            assert missed.wait(_SECONDS)
        finally:
            load.yarn.start_manager()

    value = _beside(restart, lambda: load.operator(batch_limits=_SLOWLY).execute(load.context("one")))

    assert missed.is_set()
    assert value["rows"] == 40_000
    (application,) = load.applications()
    assert _attempts(load, application) == 1
    load.check()


@pytest.mark.nightly
def test_two_tasks_in_a_queue_with_memory_for_one_are_both_exact(
    load: Load, set_connection: SetConnection, tmp_path: Path
) -> None:
    folder = tmp_path / "second"
    folder.mkdir()
    other = Load(load.yarn, load.service, set_connection, folder, f"{load.table}_OTHER")
    other.options["conf"]["spark.yarn.tags"] = other.table.lower()
    values = []
    for one in (load, other):
        one.write(2_000)

    def execute(one: Load) -> None:
        # Of the node's 4 GB the drivers take one each, so that one executor waits for the end of the other.
        values.append(one.operator(executor_memory="1100m").execute(one.context("one"))["rows"])

    _beside(lambda: execute(other), lambda: execute(load))

    assert values == [4_000, 4_000]
    for one in (load, other):
        assert len(one.applications()) == 1
        one.check()


@pytest.mark.nightly
def test_flights_of_a_year_are_there_once(load: Load, capsys: pytest.CaptureFixture[str]) -> None:
    sys.path.insert(0, str(_DAGS))
    try:
        from flights_to_snowflake import _read_flights
    finally:
        sys.path.remove(str(_DAGS))
    flights = _read_flights()
    names = ["flight_id", "origin", "carrier", "distance", "air_time"]
    flights = flights.select(names).rename_columns(["ID", *(one.upper() for one in names[1:])])
    load.service.sql(
        f"CREATE OR REPLACE TABLE {load.table} (ID NUMBER, ORIGIN VARCHAR, CARRIER VARCHAR, "
        "DISTANCE NUMBER, AIR_TIME NUMBER)"
    )
    for origin in pc.unique(flights["ORIGIN"]).to_pylist():
        folder = load.source / origin
        folder.mkdir()
        rows = flights.filter(pc.equal(flights["ORIGIN"], origin))
        for number, start in enumerate(range(0, rows.num_rows, 20_000)):
            (folder / f"{number:02}.ndjson").write_bytes(encode_ndjson(rows.slice(start, 20_000)))

    value = load.operator().execute(load.context("one"))

    assert value["rows"] == flights.num_rows == 336_776
    lines = re.findall(r"; (channels=3 .*)", capsys.readouterr().out)
    assert re.match(r"channels=3 rows=\d+ rows_per_second=\d+ bytes_behind<=[1-9]\d* ", lines[0])
    numbers = (
        r"channels=3 rows=[1-9]\d* rows_per_second=\d+ bytes_behind<=(\d+) seconds_left<=\d+ latency_ms<="
    )
    behind = [int(found[1]) for line in lines if (found := re.match(numbers, line))]
    assert behind == sorted(behind, reverse=True)
    assert 0 < behind[0] < sum(one.stat().st_size for one in load.source.rglob("*.ndjson"))
    (found,) = load.service.sql(
        f"SELECT COUNT(*) N, COUNT(DISTINCT ID) D, SUM(DISTANCE) S, SUM(AIR_TIME) T FROM {load.table}"
    )
    sums = [pc.sum(flights[name]).as_py() for name in ("DISTANCE", "AIR_TIME")]
    assert [int(found[one]) for one in "NDST"] == [336_776, 336_776, *sums]
    load.check_leftovers()


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


@pytest.mark.nightly
@pytest.mark.parametrize("what", ["driver_memory", "executor_memory"])
def test_more_memory_than_the_cluster_has_is_reported(load: Load, what: str) -> None:
    load.write(10)

    with pytest.raises(AirflowException, match="memory"):
        load.operator(**{what: "64g"}).execute(load.context("one"))
    load.check_leftovers()


@pytest.mark.nightly
def test_queue_that_does_not_exist_is_reported(load: Load) -> None:
    load.write(10)

    with pytest.raises(AirflowException, match="nowhere"):
        load.operator(yarn_queue="nowhere").execute(load.context("one"))
    load.check_leftovers()


@pytest.mark.nightly
def test_report_is_written_and_read_wherever_hadoop_reaches(tmp_path: Path) -> None:
    """In a process of its own: a JVM stays for as long as its Python."""
    program = """
import sys
from airflow_provider_snowpipe.spark.driver.report import report_folder
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

folder = report_folder(sys.argv[1])
folder.check()
assert folder.read("report.json") is None
for text in ("first", "zweites \u00e4"):
    folder.write("report.json", text)
assert folder.read("report.json") == "zweites \u00e4"
folder.remove("report.json")
folder.remove("report.json")
assert folder.read("report.json") is None
nowhere = report_folder("nosuch://bucket/report.json")
for ask in (nowhere.check, lambda: nowhere.read("start.json")):
    try:
        ask()
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
    from airflow_provider_snowpipe.spark.driver.credentials import credentials_text

    text = credentials_text(settled(load.operator()._pipe_hook().credentials()), None)
    lines = load.service.key_file.read_text().splitlines()[1:-1]
    return [*lines, *(text[start : start + 64] for start in range(0, len(text) - 64, 64))]


def _beside(work: Callable[[], object], task: Callable[[], Any]) -> Any:
    """What a task returns, while something happens in a thread that ends with it."""
    with ThreadPoolExecutor(1) as pool:
        happening = pool.submit(work)
        value = task()
        happening.result()
    return value


def _attempts(load: Load, application: str) -> int:
    url = f"{load.manager.url}/ws/v1/cluster/apps/{application}/appattempts"
    return len(requests.get(url, timeout=60).json()["appAttempts"]["appAttempt"])


def _holding(roots: Iterable[Path], secrets: list[str]) -> list[Path]:
    """Files with a secret, whoever may read them."""
    found = []
    walks = (walk for root in roots for walk in os.walk(root))  # which skips what YARN removes
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


def _is_open(file: Path, root: Path) -> bool:
    """True where other users can read it."""
    parents = [root, *(one for one in file.parents if root in one.parents)]
    return bool(file.stat().st_mode & 0o004) and all(one.stat().st_mode & 0o001 for one in parents)


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
        while not self._ended.wait(0.5):
            for process in psutil.process_iter():
                try:
                    self._check(process)
                except psutil.Error:
                    continue

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
                self.open = [
                    one
                    for one in self.held
                    for root in self._roots
                    if root in one.parents and _is_open(one, root)
                ]
            self.seen.add("executor")
        self.found += [text[:200] for secret in self._secrets if secret in text]

"""``format("snowpipe")`` on executors of two hosts that speculate, die and come back."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_provider_snowpipe.spark import write_checked
from tests.local_service import LocalService
from tests.spark_cluster import HOSTS, StandaloneCluster
from tests.spark_groups import seeds
from tests.spark_job import wait_until
from tests.spark_session import Door

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

KEYS = ("a", "b", "c")
ROWS = 1500
TRIES = 5
STALL_SECONDS = 60.0
_REPO = str(Path(__file__).parents[2])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    cluster = StandaloneCluster(tmp_path_factory.mktemp("cluster"), {"PYTHONPATH": _REPO}, HOSTS)
    try:
        yield cluster.start()
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def spark(cluster: StandaloneCluster) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": HOSTS[0],
        "spark.driver.bindAddress": HOSTS[0],
        "spark.executor.memory": "512m",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.3",
        "spark.speculation.multiplier": "1.5",
        "spark.speculation.minTaskRuntime": "10s",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
        builder = SparkSession.builder.master(cluster.url).appName("faults of the data source")
        session = builder.config(map=settings).getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        yield session
        session.stop()


@pytest.fixture
def door(admin_service: LocalService, tmp_path: Path, request: pytest.FixtureRequest) -> Door:
    table = "".join(letter if letter.isalnum() else "_" for letter in request.node.name).upper()
    return Door(admin_service, table, tmp_path / "credentials.json").create()


def _rows(spark: Any) -> Any:
    keyed = spark.range(ROWS).selectExpr("id AS ID", f"element_at(array{KEYS}, int(id % 3) + 1) AS P")
    return keyed.repartition(3, "P").sortWithinPartitions("P", "ID")


def _write(rows: Any, door: Door, tries: int = TRIES) -> None:
    """Write until it succeeds, as a scheduler would; what a try has committed stays."""
    for left in reversed(range(tries)):
        try:
            write_checked(rows, door.options(channelColumn="P", batchId=1, batchBytes=300))
        except Exception:
            if not left:
                raise
        else:
            return


def _assert_exact(door: Door) -> None:
    for index, key in enumerate(KEYS):
        assert door.ids(f"P = '{key}'") == list(range(index, ROWS, len(KEYS)))
    assert all(str(token).endswith("-end") for token in door.tokens(*KEYS).values())


def _disturbed(spark: Any, door: Door, deed: Callable[[], None], tries: int = TRIES) -> None:
    """Do something while a write has committed some rows of a channel and not all."""

    def under_way() -> bool:
        tokens = [token for token in door.tokens(*KEYS).values() if token is not None]
        return any(not token.endswith("-end") for token in tokens)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(_write, _rows(spark), door, tries)
        wait_until(under_way, seconds=120, what="the first commit")
        deed()
        writing.result()


def _daemons(executor: psutil.Process) -> list[psutil.Process]:
    return [child for child in executor.children() if "pyspark.daemon" in child.cmdline()]


def _workers(executor: psutil.Process) -> list[psutil.Process]:
    return [worker for daemon in _daemons(executor) for worker in daemon.children()]


def _kill_all_workers(cluster: StandaloneCluster) -> None:
    workers = [worker for executor in cluster.executors() for worker in _workers(executor)]
    assert workers
    for worker in workers:
        worker.kill()


def _kill_an_executor(cluster: StandaloneCluster) -> None:
    """The executor's share of the shuffle is lost with it, so that Spark repeats that stage, too."""
    cluster.executors()[0].kill()


@pytest.mark.parametrize("deed", [_kill_all_workers, _kill_an_executor], ids=["workers", "executor"])
def test_write_is_repeated_by_spark_after_whatever_died(
    spark: Any, cluster: StandaloneCluster, door: Door, deed: Callable[[StandaloneCluster], None]
) -> None:
    _disturbed(spark, door, lambda: deed(cluster), tries=1)

    _assert_exact(door)


def test_second_copy_of_a_slow_task_shuts_the_first_one_out(spark: Any, door: Door, tmp_path: Path) -> None:
    attempts, released = tmp_path / "attempts", tmp_path / "released"
    attempts.mkdir()

    def stall_first(batches: Iterator[Any]) -> Iterator[Any]:
        seen = 0
        for batch in batches:
            seen += batch.column("P").to_pylist().count("b")
            if seen and not (attempts / str(os.getpid())).exists():
                (attempts / str(os.getpid())).touch()
            if seen >= 150:
                try:
                    (attempts.parent / "stalled").touch(exist_ok=False)
                except FileExistsError:
                    """This is a later attempt."""
                else:
                    deadline = time.monotonic() + STALL_SECONDS
                    while not released.exists() and time.monotonic() < deadline:
                        time.sleep(0.02)
            yield batch

    rows = _rows(spark)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(_write, rows.mapInArrow(stall_first, rows.schema), door)
        try:
            wait_until(
                lambda: len(list(attempts.iterdir())) > 1,
                seconds=STALL_SECONDS,
                what="a second attempt beside the one that stands still",
            )
        finally:
            released.touch()
        writing.result()

    _assert_exact(door)


def test_workers_that_come_back_late_are_shut_out(spark: Any, cluster: StandaloneCluster, door: Door) -> None:
    frozen: list[psutil.Process] = []

    def freeze() -> None:
        executor = cluster.executors()[0]
        frozen.extend(_workers(executor))
        for worker in frozen:
            worker.suspend()
        for process in (*_daemons(executor), executor):
            process.kill()

    try:
        _disturbed(spark, door, freeze)
        _assert_exact(door)
        assert any(worker.is_running() for worker in frozen)
    finally:
        for worker in frozen:
            if worker.is_running():
                worker.resume()
    psutil.wait_procs(frozen, 60)

    assert not any(worker.is_running() for worker in frozen)
    _assert_exact(door)


@pytest.mark.parametrize("seed", seeds(rounds=2))
def test_rows_stay_exact_under_deeds_at_seeded_moments(
    spark: Any, cluster: StandaloneCluster, door: Door, seed: int
) -> None:
    draw = random.Random(seed)
    door.service.admin("faults", set=f"commit-delay={draw.choice(['0.1', '1'])}")

    def fence() -> None:
        with door.service.client(door.table) as client:
            client.open_channel(f"{door.prefix}_{draw.choice(KEYS)}", fail_on_uncommitted_rows=False)

    def some_deeds() -> None:
        for _ in range(2):
            time.sleep(draw.uniform(0, 1.5))
            draw.choice([fence, lambda: _kill_all_workers(cluster), lambda: _kill_an_executor(cluster)])()

    try:
        _disturbed(spark, door, some_deeds)
    finally:
        door.service.admin("faults", clear=True)

    _assert_exact(door)

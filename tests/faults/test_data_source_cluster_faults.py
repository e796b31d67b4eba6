"""``format("snowpipe")`` on executors of two hosts that speculate, die and come back."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_provider_snowpipe.spark import write_checked
from tests.local_service import LocalService
from tests.python_workers import daemons_of, kill_each, workers_of
from tests.spark_cluster import HOSTS, SPECULATION, StandaloneCluster, session_on
from tests.spark_groups import seeds
from tests.spark_job import wait_until
from tests.spark_session import Door

pytestmark = pytest.mark.spark

KEYS = ("a", "b", "c")
ROWS = 1500
TRIES = 5
STALL_SECONDS = 300.0
WRITE_SECONDS = 900.0
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
    settings = {**SPECULATION, "spark.sql.execution.arrow.maxRecordsPerBatch": "50"}
    with session_on(cluster, "faults of the data source", settings) as session:
        session.sparkContext.setLogLevel("ERROR")
        yield session


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
            write_checked(rows, door.options(channelColumn="P", batchId=1, batchBytes=150))
        except Exception:
            if not left:
                raise
        else:
            return


def _assert_exact(door: Door) -> None:
    for index, key in enumerate(KEYS):
        assert door.ids(f"P = '{key}'") == list(range(index, ROWS, len(KEYS)))
    assert all(str(token).endswith("-end") for token in door.tokens(*KEYS).values())


@contextmanager
def _writing(rows: Any, door: Door, tries: int = TRIES) -> Iterator[Future[None]]:
    """Write while the block runs, which waits for the end; where the block fails the write is given up."""
    context = rows.sparkSession.sparkContext
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(_write, rows, door, tries)
        try:
            yield writing
            writing.result(WRITE_SECONDS)
        except BaseException:
            while not writing.done():
                context.cancelAllJobs()
                wait([writing], 0.5)
            raise


def _disturbed(spark: Any, door: Door, deed: Callable[[], None], tries: int = TRIES) -> None:
    """Do something while a write has committed some rows of a channel and not all."""
    with _writing(_rows(spark), door, tries) as writing:

        def under_way() -> bool:
            tokens = [token for token in door.tokens(*KEYS).values() if token is not None]
            if writing.done():
                writing.result()
                raise AssertionError(f"the write ended undisturbed: {tokens}")
            return any(not token.endswith("-end") for token in tokens)

        wait_until(under_way, seconds=600, what="the first commit")
        deed()


def _kill_all_workers(cluster: StandaloneCluster) -> None:
    assert kill_each(worker for executor in cluster.executors() for worker in workers_of(executor))


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
    with _writing(rows.mapInArrow(stall_first, rows.schema), door):
        try:
            wait_until(
                lambda: len(list(attempts.iterdir())) > 1,
                seconds=STALL_SECONDS,
                what="a second attempt beside the one that stands still",
            )
        finally:
            released.touch()

    _assert_exact(door)


def test_workers_that_come_back_late_are_shut_out(spark: Any, cluster: StandaloneCluster, door: Door) -> None:
    frozen: list[psutil.Process] = []

    def freeze() -> None:
        """A stopped worker would get SIGHUP at the end of its daemon, so that goes first."""
        executors = cluster.executors()
        daemons = [daemon for executor in executors for daemon in daemons_of(executor)]
        workers = [worker for executor in executors for worker in workers_of(executor)]
        kill_each(daemons)
        psutil.wait_procs(daemons, 60)
        for worker in workers:
            with contextlib.suppress(psutil.NoSuchProcess):  # an idle one may have ended with its daemon
                worker.suspend()
                frozen.append(worker)
        for executor in executors:
            executor.kill()

    try:
        _disturbed(spark, door, freeze)
        _assert_exact(door)
        assert frozen
        assert {worker.status() for worker in frozen} == {psutil.STATUS_STOPPED}
    finally:
        for worker in frozen:
            if worker.is_running():
                worker.resume()
    psutil.wait_procs(frozen, 60)

    assert not any(worker.is_running() for worker in frozen)
    _assert_exact(door)


@pytest.mark.parametrize("seed", seeds(rounds=1))
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

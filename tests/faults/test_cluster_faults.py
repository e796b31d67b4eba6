"""Executors on two hosts that die, stand still, come back late and speculate: each row is in the table once.

The cluster, its session and its executors are real; the job and ``format("snowpipe")`` run on them alike.
Points at which a task dies are proved without Java, in ``test_job_faults.py``.
"""

import itertools
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_provider_snowpipe.spark import write_checked
from tests.local_service import LocalService
from tests.python_workers import children_of, daemons_of, kill_each
from tests.spark_cluster import HOSTS, SPECULATION, StandaloneCluster, session_on
from tests.spark_deeds import Deed, Deeds, deeds_of, doing, drawn_deed
from tests.spark_groups import GROUPS, ROWS, assert_exact, load, load_until_it_succeeds
from tests.spark_job import SparkJob
from tests.spark_session import Door
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

_KEYS = ("a", "b", "c")
_WRITTEN = 600
_WRITE_SECONDS = 900.0
_TRIES = 5
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    env = {"PYTHONPATH": str(Path(__file__).parents[2])}
    cluster = StandaloneCluster(tmp_path_factory.mktemp("cluster"), env, HOSTS)
    try:
        yield cluster.start()
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def session(cluster: StandaloneCluster) -> Iterator[Any]:
    """A session with speculation on, as an author's own may have it."""
    settings = {
        **SPECULATION,
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
        "spark.sql.shuffle.partitions": "2",
    }
    with session_on(cluster, "faults", settings) as session:
        session.sparkContext.setLogLevel("ERROR")
        yield session


@pytest.fixture
def spark(session: Any) -> Any:
    return session.sparkContext


@pytest.fixture
def door(admin_service: LocalService, tmp_path: Path) -> Door:
    return Door(admin_service, f"WRITTEN_{next(_numbers)}", tmp_path / "credentials.json").create()


def _of_b(deeds: Deeds, *events: str) -> list[dict[str, Any]]:
    return [note for event in events for note in deeds.notes(event) if note["partition"] == "b"]


def test_a_task_is_repeated_when_its_executor_died_and_its_worker_is_fenced_when_it_comes_back(
    job: SparkJob, spark: Any, tmp_path: Path
) -> None:
    deeds = deeds_of(tmp_path / "deeds", [Deed("freeze", "row", "b", row=200)])

    with doing(deeds):
        run = load(job, spark)
        assert_exact(job)
        loaded = [(one.partition, one.rows, one.committed) for one in run.channels]
        assert loaded == [(group, ROWS, True) for group in GROUPS]
        (frozen,) = deeds.notes("freeze")
        zombie = psutil.Process(frozen["pid"])
        assert zombie.status() == psutil.STATUS_STOPPED
        zombie.resume()

        def ends() -> list[dict[str, Any]]:
            return [note for note in _of_b(deeds, "failed", "ended") if note["pid"] == zombie.pid]

        (end,) = wait_until(ends, seconds=300, what="the end of the zombie's load")

    assert end.get("error") == "ChannelFencedError"
    assert_exact(job)


def test_a_job_is_exact_though_the_authors_context_speculates(
    job: SparkJob, spark: Any, tmp_path: Path
) -> None:
    deeds = deeds_of(tmp_path / "deeds", [Deed("stall", "row", "b", row=200)])
    with doing(deeds), ThreadPoolExecutor(1) as pool:
        loading = pool.submit(load_until_it_succeeds, job, spark)
        try:
            wait_until(lambda: len(_of_b(deeds, "began")) > 1, seconds=300, what="a second attempt beside it")
        finally:
            deeds.release()
        loading.result()
    assert_exact(job)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_job_is_exact_under_faults_at_seeded_points(
    job: SparkJob, spark: Any, tmp_path: Path, seed: int
) -> None:
    draw = random.Random(seed)
    kinds = ("raise", "kill-worker", "kill-worker", "kill-executor")
    deeds = deeds_of(
        tmp_path / "deeds", [drawn_deed(draw, kinds, GROUPS, range(0, ROWS, 50)) for _ in range(3)]
    )
    job.service.admin("faults", set=f"commit-delay={draw.choice(['0.1', '1', '2'])}")

    with doing(deeds):
        load_until_it_succeeds(job, spark)

    assert_exact(job)
    assert any((deeds.folder / f"deed-{number}").exists() for number in range(3)), deeds.each


def test_a_checked_write_is_repeated_by_spark_when_an_executor_died(
    session: Any, cluster: StandaloneCluster, door: Door
) -> None:
    """Its share of a shuffle is lost with it, so that Spark repeats that stage, too."""
    _write_disturbed(session, door, lambda: cluster.executors()[0].kill(), tries=1)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_checked_write_is_exact_under_seeded_faults(
    session: Any, cluster: StandaloneCluster, door: Door, seed: int
) -> None:
    draw = random.Random(seed)
    door.service.admin("faults", set=f"commit-delay={draw.choice(['0.1', '1'])}")

    def fence() -> None:
        with door.service.client(door.table) as client:
            client.open_channel(f"{door.prefix}_{draw.choice(_KEYS)}", fail_on_uncommitted_rows=False)

    def kill_workers() -> None:
        daemons = [daemon for executor in cluster.executors() for daemon in daemons_of(executor)]
        kill_each(worker for daemon in daemons for worker in children_of(daemon))

    faults = [fence, kill_workers, lambda: cluster.executors()[0].kill()]
    _write_disturbed(session, door, draw.choice(faults), tries=_TRIES)


def _write_disturbed(session: Any, door: Door, fault: Callable[[], object], tries: int) -> None:
    """Do something while a write has committed some rows of a channel and not all."""
    keyed = session.range(_WRITTEN).selectExpr("id AS ID", f"element_at(array{_KEYS}, int(id % 3) + 1) AS P")
    rows = keyed.repartition(3, "P").sortWithinPartitions("P", "ID")
    options = door.options(channelColumn="P", batchId=1, batchBytes=150)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(_write_until_it_succeeds, rows, options, tries)

        def under_way() -> bool:
            tokens = [token for token in door.tokens(*_KEYS).values() if token is not None]
            assert not writing.done(), f"the write ended undisturbed: {writing.exception() or tokens}"
            return any("-end~" not in token for token in tokens)

        try:
            wait_until(under_way, seconds=600, what="the first commit")
            fault()
            writing.result(_WRITE_SECONDS)
        except BaseException:
            while not writing.done():
                session.sparkContext.cancelAllJobs()
                wait([writing], 0.5)
            raise

    for index, key in enumerate(_KEYS):
        assert door.ids(f"P = '{key}'") == list(range(index, _WRITTEN, len(_KEYS)))
    assert all("-end~" in str(token) for token in door.tokens(*_KEYS).values())


def _write_until_it_succeeds(rows: Any, options: dict[str, Any], tries: int) -> None:
    """Write again as a scheduler would; what a try has committed stays."""
    for left in reversed(range(tries)):
        try:
            return write_checked(rows, options)
        except Exception:
            if not left:
                raise
    return None

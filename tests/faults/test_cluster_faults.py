"""Executors on two hosts that die, stand still, come back late and speculate: each row is in the table once.

The cluster, its session and its executors are real; the job and ``format("snowpipe")`` run on them alike.
Points at which a task dies are proved without Java, in ``test_job_faults.py``.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_provider_snowpipe.spark import write_checked
from airflow_provider_snowpipe.streaming.admin import open_when_committed
from airflow_provider_snowpipe.streaming.names import COMPARED_SUFFIX, with_suffix
from tests.local_service import LocalService
from tests.python_workers import kill_each, workers_of
from tests.spark_cluster import HOSTS, SPECULATION, StandaloneCluster, session_on
from tests.spark_deeds import Deed, Deeds, deeds_of, doing, drawn_deed
from tests.spark_groups import GROUPS, ROWS, assert_exact, load, load_until_it_succeeds, seeds
from tests.spark_job import SparkJob
from tests.spark_session import Door
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

_KEYS = ("a", "b", "c")
_WRITTEN = 1500
_PARTITIONS = 3
"""The cluster has four task slots, and two on each host."""
_TRIES = 5
_STALL_SECONDS = 300.0
_WRITE_SECONDS = 900.0
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


def test_a_task_is_repeated_when_its_executor_died(job: SparkJob, spark: Any, tmp_path: Path) -> None:
    job.service.admin("faults", set="commit-delay=5")
    deeds = deeds_of(tmp_path / "deeds", [Deed("kill-executor", "commit-wait", "b")])

    with doing(deeds):
        run = load(job, spark)

    assert_exact(job)
    assert len(deeds.notes("kill-executor")) == 1
    assert len(_of_b(deeds, "began")) > 1
    assert [(one.partition, one.rows, one.committed) for one in run.channels] == [
        (group, ROWS, True) for group in GROUPS
    ]


def test_a_worker_that_comes_back_late_is_fenced(job: SparkJob, spark: Any, tmp_path: Path) -> None:
    deeds = deeds_of(tmp_path / "deeds", [Deed("freeze", "row", "b", row=200)])

    with doing(deeds):
        load(job, spark)
        assert_exact(job)
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
@pytest.mark.parametrize("seed", seeds(rounds=2))
def test_a_job_is_exact_under_faults_at_seeded_points(
    job: SparkJob, spark: Any, tmp_path: Path, seed: int
) -> None:
    draw = random.Random(seed)
    kinds = ("raise", "kill-worker", "kill-worker", "kill-executor")
    drawn = [drawn_deed(draw, kinds, GROUPS, range(0, ROWS, 50)) for _ in range(3)]
    deeds = deeds_of(tmp_path / "deeds", drawn)
    job.service.admin("faults", set=f"commit-delay={draw.choice(['0.1', '1', '2'])}")

    with doing(deeds):
        load_until_it_succeeds(job, spark)

    assert_exact(job)
    assert any((deeds.folder / f"deed-{number}").exists() for number in range(3)), drawn


def _kill_an_executor(cluster: StandaloneCluster) -> None:
    """The executor's share of a shuffle is lost with it, so that Spark repeats that stage, too."""
    cluster.executors()[0].kill()


def _kill_all_workers(cluster: StandaloneCluster) -> None:
    assert kill_each(worker for executor in cluster.executors() for worker in workers_of(executor))


def test_a_checked_write_is_repeated_by_spark_when_an_executor_died(
    session: Any, cluster: StandaloneCluster, door: Door
) -> None:
    _disturbed(session, door, lambda: _kill_an_executor(cluster), tries=1)

    _assert_written(door)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", seeds(rounds=1))
def test_a_checked_write_is_exact_under_faults_at_seeded_points(
    session: Any, cluster: StandaloneCluster, door: Door, seed: int
) -> None:
    draw = random.Random(seed)
    door.service.admin("faults", set=f"commit-delay={draw.choice(['0.1', '1'])}")

    def fence() -> None:
        with door.service.client(door.table) as client:
            client.open_channel(f"{door.prefix}_{draw.choice(_KEYS)}", fail_on_uncommitted_rows=False)

    def some_faults() -> None:
        for _ in range(2):
            time.sleep(draw.uniform(0, 1.5))
            draw.choice([fence, lambda: _kill_all_workers(cluster), lambda: _kill_an_executor(cluster)])()

    _disturbed(session, door, some_faults)

    _assert_written(door)


def _disturbed(session: Any, door: Door, fault: Callable[[], None], tries: int = _TRIES) -> None:
    """Do something while a write has committed some rows of a channel and not all."""
    keyed = session.range(_WRITTEN).selectExpr("id AS ID", f"element_at(array{_KEYS}, int(id % 3) + 1) AS P")
    rows = keyed.repartition(3, "P").sortWithinPartitions("P", "ID")
    options = door.options(channelColumn="P", batchId=1, batchBytes=150)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(_until_it_succeeds, lambda: write_checked(rows, options), tries)

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


def _until_it_succeeds(write: Callable[[], object], tries: int = _TRIES) -> None:
    """Write again as a scheduler would; what a try has committed stays."""
    for left in reversed(range(tries)):
        try:
            write()
        except Exception:
            if not left:
                raise
        else:
            return


def _assert_written(door: Door) -> None:
    for index, key in enumerate(_KEYS):
        assert door.ids(f"P = '{key}'") == list(range(index, _WRITTEN, len(_KEYS)))
    assert all("-end~" in str(token) for token in door.tokens(*_KEYS).values())


# ``df.write`` alone: what an earlier run has begun goes on only if all tasks find it to be theirs.


@pytest.mark.parametrize("seed", [1, *(pytest.param(one, marks=pytest.mark.nightly) for one in seeds(2)[1:])])
def test_a_begun_batch_is_exact_or_refused_with_nothing_sent_when_an_executor_dies_at_the_comparison(
    session: Any, cluster: StandaloneCluster, door: Door, tmp_path: Path, seed: int
) -> None:
    draw = random.Random(seed)
    begun = session.range(0, _WRITTEN, 1, _PARTITIONS).selectExpr("id AS ID")
    with pytest.raises(Exception, match="is to die"):
        _write_plainly(_dying(begun, draw.randrange(_PARTITIONS), draw.randrange(100, 400)), door)
    before = _settled(session, door)
    assert 0 < len(before) < _WRITTEN

    if draw.random() < 0.5:
        other = session.range(0, _WRITTEN, 1, _PARTITIONS).selectExpr(f"{_WRITTEN - 1} - id AS ID")
        assert _killed_while_tasks_wait(cluster, door, tmp_path / "other", draw, other) is not None
        assert _settled(session, door) == before
    refusal = _killed_while_tasks_wait(cluster, door, tmp_path / "same", draw, begun)
    assert (tmp_path / "same" / "killed").exists()
    if refusal is not None and "Refused" in refusal:
        assert _settled(session, door) == before
    _until_it_succeeds(lambda: _write_plainly(begun, door))

    assert sorted(door.ids()) == list(range(_WRITTEN))
    assert all("-end~" in str(token) for token in door.tokens(*range(_PARTITIONS)).values())


def _killed_while_tasks_wait(
    cluster: StandaloneCluster, door: Door, folder: Path, draw: random.Random, rows: Any
) -> str | None:
    """Write, and kill an executor when a task waits for one that does not come; the error's text."""
    folder.mkdir()
    seen, ended = _compared(door), threading.Event()

    def one_waits() -> bool:
        changed = [token for name, token in _compared(door).items() if token != seen[name]]
        return ended.is_set() or any(str(token).endswith((":agrees", ":refuses")) for token in changed)

    def kill() -> None:
        try:
            wait_until(one_waits, seconds=600, what="a task that waits for the others")
            if not ended.is_set():
                draw.choice(cluster.executors()).kill()
                (folder / "killed").touch()
        finally:
            (folder / "released").touch()

    withheld = _withheld(rows, draw.randrange(_PARTITIONS), folder)
    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill)
        try:
            _write_plainly(withheld, door)  # in this thread: Spark finds the format in the active session
        except Exception as error:  # noqa: BLE001  the class depends on how Spark runs
            return str(error)
        else:
            return None
        finally:
            ended.set()
            killing.result()


def _write_plainly(rows: Any, door: Door) -> None:
    options = door.options(partitions=_PARTITIONS, batchId=1, batchBytes=150)
    rows.write.format("snowpipe").options(**options).mode("append").save()


def _dying(rows: Any, partition: int, after: int) -> Any:
    """The same rows, of which one partition ends in an error."""

    def die(batches: Iterator[Any]) -> Iterator[Any]:
        count = 0
        for batch in batches:
            count += batch.num_rows
            if _partition_id() == partition and count > after:
                raise RuntimeError("this task is to die")
            yield batch

    return rows.mapInArrow(die, rows.schema)


def _withheld(rows: Any, partition: int, folder: Path) -> Any:
    """The same rows, of which one partition comes only when it is released."""

    def hold(batches: Iterator[Any]) -> Iterator[Any]:
        if _partition_id() == partition:
            wait_until((folder / "released").exists, seconds=_STALL_SECONDS, what="a release")
        yield from batches

    return rows.mapInArrow(hold, rows.schema)


def _partition_id() -> int:
    from pyspark import TaskContext

    return TaskContext.get().partitionId()


def _compared(door: Door) -> dict[str, str | None]:
    """What tasks have reported to each other, by their partitions' channels."""
    names = [with_suffix(f"{door.prefix}_{part}", COMPARED_SUFFIX) for part in range(_PARTITIONS)]
    with door.service.client(door.table) as client:
        return {name: status.committed for name, status in client.channel_statuses(names).items()}


def _settled(session: Any, door: Door) -> list[int]:
    """The table's rows when no task runs and no channel has uncommitted ones.

    Spark gives a job up while tasks of it run, and one that opens its channel late sends its own rows.
    """
    tracker = session.sparkContext._jsc.sc().statusTracker()

    def is_idle() -> bool:
        return sum(executor.numRunningTasks() for executor in tracker.getExecutorInfos()) == 0

    wait_until(is_idle, seconds=_STALL_SECONDS, what="the end of tasks that Spark has given up")
    with door.service.client(door.table) as client:
        for part in range(_PARTITIONS):
            open_when_committed(client, f"{door.prefix}_{part}", 60.0)
    return sorted(door.ids())

"""Executors on two hosts that die, stand still, come back late and speculate: each row is in the table once.

The cluster, its session and its executors are real; the job and ``format("snowpipe")`` run on them alike.
One of the two proves each mechanism daily: an executor that dies, a worker that comes back late, speculation,
a stage that is repeated with its shuffle. Points at which a task dies are proved without Java, in
``test_job_faults.py``.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_provider_snowpipe.spark import write_checked
from airflow_provider_snowpipe.streaming.admin import open_when_committed
from airflow_provider_snowpipe.streaming.names import COMPARED_SUFFIX, with_suffix
from tests.local_service import LocalService
from tests.python_workers import daemons_of, kill_each, workers_of
from tests.spark_cluster import HOSTS, SPECULATION, StandaloneCluster, session_on
from tests.spark_deeds import Deed, Deeds, deeds_of, doing
from tests.spark_groups import GROUPS, ROWS, assert_exact, load, load_until_it_succeeds, seeds
from tests.spark_job import SparkJob
from tests.spark_session import Door
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

_TESTS = Path(__file__).parents[1]
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
    cluster = StandaloneCluster(tmp_path_factory.mktemp("cluster"), {"PYTHONPATH": str(_TESTS.parent)}, HOSTS)
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
    table = f"WRITTEN_{next(_numbers)}"
    return Door(admin_service, table, tmp_path / "credentials.json").create()


def _delay(point: str) -> str:
    """Commits that come late, and later for what is to happen while one is awaited."""
    return f"commit-delay={5 if point == 'commit-wait' else 1}"


def _kill_all_workers(cluster: StandaloneCluster) -> None:
    assert kill_each(worker for executor in cluster.executors() for worker in workers_of(executor))


def _kill_an_executor(cluster: StandaloneCluster) -> None:
    """The executor's share of a shuffle is lost with it, so that Spark repeats that stage, too."""
    cluster.executors()[0].kill()


class TestJob:
    @pytest.mark.parametrize(
        "death",
        [
            Deed("kill-executor", "commit-wait", "b"),
            pytest.param(Deed("kill-worker", "row", "b", row=300), marks=pytest.mark.nightly),
            pytest.param(Deed("kill-worker", "commit-wait", "b"), marks=pytest.mark.nightly),
            pytest.param(Deed("kill-executor", "received", "b"), marks=pytest.mark.nightly),
            pytest.param(Deed("kill-executor", "committed", "b"), marks=pytest.mark.nightly),
        ],
        ids=lambda death: f"{death.what}-{death.point}",
    )
    def test_repeats_a_task_whose_process_died(
        self, job: SparkJob, spark: Any, tmp_path: Path, death: Deed
    ) -> None:
        job.service.admin("faults", set=_delay(death.point))
        deeds = deeds_of(tmp_path / "deeds", [death])

        with doing(deeds):
            run = load(job, spark)

        assert_exact(job)
        assert len(deeds.notes(death.what)) == 1
        attempts = [note["attempt"] for note in deeds.notes("began") if note["partition"] == "b"]
        assert attempts[0] == 0
        assert len(attempts) > 1
        found = [(one.partition, one.rows, one.committed) for one in run.channels]
        assert found == [(group, ROWS, True) for group in GROUPS]

    def test_fences_a_worker_that_comes_back_late(self, job: SparkJob, spark: Any, tmp_path: Path) -> None:
        deeds = deeds_of(tmp_path / "deeds", [Deed("freeze", "row", "b", row=200)])

        with doing(deeds):
            load(job, spark)
            assert_exact(job)
            (frozen,) = deeds.notes("freeze")
            zombie = psutil.Process(frozen["pid"])
            assert zombie.status() == psutil.STATUS_STOPPED
            zombie.resume()
            wait_until(lambda: _ends(deeds, zombie.pid), seconds=300, what="the end of the zombie's load")

        (end,) = _ends(deeds, zombie.pid)
        assert end.get("error") == "ChannelFencedError"
        assert_exact(job)

    def test_is_exact_though_the_authors_context_speculates(
        self, job: SparkJob, spark: Any, tmp_path: Path
    ) -> None:
        deeds = deeds_of(tmp_path / "deeds", [Deed("stall", "row", "b", row=200)])
        with doing(deeds), ThreadPoolExecutor(1) as pool:
            loading = pool.submit(load_until_it_succeeds, job, spark)
            try:
                wait_until(
                    lambda: len([note for note in deeds.notes("began") if note["partition"] == "b"]) > 1,
                    seconds=300,
                    what="a second attempt beside the one that stands still",
                )
            finally:
                deeds.release()
            loading.result()

        assert_exact(job)

    @pytest.mark.nightly
    @pytest.mark.parametrize("seed", seeds(rounds=2))
    def test_is_exact_under_faults_at_seeded_points(
        self, job: SparkJob, spark: Any, tmp_path: Path, seed: int
    ) -> None:
        draw = random.Random(seed)
        deeds = deeds_of(tmp_path / "deeds", [_drawn(draw) for _ in range(3)])
        job.service.admin("faults", set=f"commit-delay={draw.choice(['0.1', '1', '2'])}")

        with doing(deeds):
            load_until_it_succeeds(job, spark)

        assert_exact(job)
        assert any((deeds.folder / f"deed-{number}").exists() for number in range(3)), deeds.each


def _ends(deeds: Deeds, pid: int) -> list[dict[str, Any]]:
    """How a worker's load of ``b`` ended; it may have loaded another group before."""
    notes = [*deeds.notes("failed"), *deeds.notes("ended")]
    return [note for note in notes if note["pid"] == pid and note["partition"] == "b"]


def _drawn(draw: random.Random) -> Deed:
    what = draw.choice(["raise", "kill-worker", "kill-worker", "kill-executor"])
    points = ["row", "row", "written", "received", "committed"] + ["commit-wait"] * (what != "raise")
    point = draw.choice(points)
    return Deed(what, point, draw.choice(GROUPS), draw.randrange(0, ROWS, 50) if point == "row" else 0)


class TestDataSource:
    @pytest.mark.parametrize(
        "fault",
        [
            pytest.param(_kill_all_workers, marks=pytest.mark.nightly, id="workers"),
            pytest.param(_kill_an_executor, id="executor"),
        ],
    )
    def test_write_is_repeated_by_spark_whatever_died(
        self, session: Any, cluster: StandaloneCluster, door: Door, fault: Callable[[StandaloneCluster], None]
    ) -> None:
        _disturbed(session, door, lambda: fault(cluster), tries=1)

        _assert_written(door)

    @pytest.mark.nightly
    def test_workers_that_come_back_late_are_fenced(
        self, session: Any, cluster: StandaloneCluster, door: Door
    ) -> None:
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
            _disturbed(session, door, freeze)
            _assert_written(door)
            assert frozen
            assert {worker.status() for worker in frozen} == {psutil.STATUS_STOPPED}
        finally:
            for worker in frozen:
                if worker.is_running():
                    worker.resume()
        psutil.wait_procs(frozen, 60)

        assert not any(worker.is_running() for worker in frozen)
        _assert_written(door)

    @pytest.mark.nightly
    @pytest.mark.parametrize("seed", seeds(rounds=1))
    def test_write_is_exact_under_faults_at_seeded_points(
        self, session: Any, cluster: StandaloneCluster, door: Door, seed: int
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


class TestPlainWrite:
    """``df.write`` alone: what an earlier run has begun goes on only if all tasks find it to be theirs."""

    @pytest.mark.parametrize(
        "seed",
        [
            pytest.param(seed, marks=[pytest.mark.nightly] if number else [])
            for number, seed in enumerate(seeds(rounds=2))
        ],
    )
    def test_begun_batch_is_exact_or_refused_with_nothing_sent_when_an_executor_dies_at_the_comparison(
        self, session: Any, cluster: StandaloneCluster, door: Door, tmp_path: Path, seed: int
    ) -> None:
        draw = random.Random(seed)
        begun = session.range(0, _WRITTEN, 1, _PARTITIONS).selectExpr("id AS ID")
        with pytest.raises(Exception, match="is to die"):
            _write_plainly(_dying(begun, draw.randrange(_PARTITIONS), draw.randrange(100, 400)), door)
        _wait_until_idle(session)
        before = _settled(door)
        assert 0 < len(before) < _WRITTEN

        if draw.random() < 0.5:
            other = session.range(0, _WRITTEN, 1, _PARTITIONS).selectExpr(f"{_WRITTEN - 1} - id AS ID")
            assert self._killed_while_tasks_wait(cluster, door, tmp_path / "other", draw, other) is not None
            _wait_until_idle(session)
            assert _settled(door) == before
        refusal = self._killed_while_tasks_wait(cluster, door, tmp_path / "same", draw, begun)
        assert (tmp_path / "same" / "killed").exists()
        if refusal is not None and "Refused" in refusal:
            assert _settled(door) == before
        for left in range(_TRIES):
            try:
                _write_plainly(begun, door)
            except Exception:
                if left == _TRIES - 1:
                    raise
            else:
                break

        assert sorted(door.ids()) == list(range(_WRITTEN))
        assert all("-end~" in str(token) for token in door.tokens(*range(_PARTITIONS)).values())

    def _killed_while_tasks_wait(
        self, cluster: StandaloneCluster, door: Door, folder: Path, draw: random.Random, rows: Any
    ) -> str | None:
        """Write, and kill an executor when a task waits for one that does not come.

        :returns: the text of the error, None where the write succeeds
        """
        folder.mkdir()
        seen = _compared(door)

        ended = threading.Event()

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
        from pyspark import TaskContext

        context, count = TaskContext.get(), 0
        for batch in batches:
            count += batch.num_rows
            if context is not None and context.partitionId() == partition and count > after:
                raise RuntimeError("this task is to die")
            yield batch

    return rows.mapInArrow(die, rows.schema)


def _withheld(rows: Any, partition: int, folder: Path) -> Any:
    """The same rows, of which one partition comes only when it is released."""

    def hold(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        deadline = time.monotonic() + _STALL_SECONDS
        while context is not None and context.partitionId() == partition and time.monotonic() < deadline:
            if (folder / "released").exists():
                break
            time.sleep(0.02)
        yield from batches

    return rows.mapInArrow(hold, rows.schema)


def _compared(door: Door) -> dict[str, str | None]:
    """What tasks have reported to each other, by their partitions' channels."""
    names = [with_suffix(f"{door.prefix}_{part}", COMPARED_SUFFIX) for part in range(_PARTITIONS)]
    with door.service.client(door.table) as client:
        return {name: status.committed for name, status in client.channel_statuses(names).items()}


def _wait_until_idle(session: Any) -> None:
    """Spark gives a job up while tasks of it run, and one that opens its channel late sends its own rows."""
    tracker = session.sparkContext._jsc.sc().statusTracker()

    def is_idle() -> bool:
        return sum(executor.numRunningTasks() for executor in tracker.getExecutorInfos()) == 0

    wait_until(is_idle, seconds=_STALL_SECONDS, what="the end of tasks that Spark has given up")


def _settled(door: Door) -> list[int]:
    """The table's rows when no channel has uncommitted ones."""
    with door.service.client(door.table) as client:
        for part in range(_PARTITIONS):
            open_when_committed(client, f"{door.prefix}_{part}", 60.0)
    return sorted(door.ids())


def _rows(session: Any) -> Any:
    keyed = session.range(_WRITTEN).selectExpr("id AS ID", f"element_at(array{_KEYS}, int(id % 3) + 1) AS P")
    return keyed.repartition(3, "P").sortWithinPartitions("P", "ID")


def _write(rows: Any, door: Door, tries: int = _TRIES) -> None:
    """Write until it succeeds, as a scheduler would; what a try has committed stays."""
    for left in reversed(range(tries)):
        try:
            write_checked(rows, door.options(channelColumn="P", batchId=1, batchBytes=150))
        except Exception:
            if not left:
                raise
        else:
            return


def _assert_written(door: Door) -> None:
    for index, key in enumerate(_KEYS):
        assert door.ids(f"P = '{key}'") == list(range(index, _WRITTEN, len(_KEYS)))
    assert all("-end~" in str(token) for token in door.tokens(*_KEYS).values())


@contextmanager
def _writing(rows: Any, door: Door, tries: int = _TRIES) -> Iterator[Future[None]]:
    """Write while the block runs, which waits for the end; where the block fails the write is given up."""
    context = rows.sparkSession.sparkContext
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(_write, rows, door, tries)
        try:
            yield writing
            writing.result(_WRITE_SECONDS)
        except BaseException:
            while not writing.done():
                context.cancelAllJobs()
                wait([writing], 0.5)
            raise


def _disturbed(session: Any, door: Door, fault: Callable[[], None], tries: int = _TRIES) -> None:
    """Do something while a write has committed some rows of a channel and not all."""
    with _writing(_rows(session), door, tries) as writing:

        def under_way() -> bool:
            tokens = [token for token in door.tokens(*_KEYS).values() if token is not None]
            if writing.done():
                writing.result()
                raise AssertionError(f"the write ended undisturbed: {tokens}")
            return any("-end~" not in token for token in tokens)

        wait_until(under_way, seconds=600, what="the first commit")
        fault()

"""What every application of ours does around its work: Spark is started, progress and errors are shown."""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import os
import pickle
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import is_dataclass
from datetime import UTC, datetime
from importlib.machinery import PathFinder
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Self, TypeVar
from uuid import UUID

from airflow_provider_snowpipe.spark.driver.outcome import error_type_of
from airflow_provider_snowpipe.spark.driver.package_archive import write_package_archive
from airflow_provider_snowpipe.spark.driver.plan import LOCAL_MASTER, JobPlan, WritePlan
from airflow_provider_snowpipe.spark.driver.progress import Poll, Totals, sum_known
from airflow_provider_snowpipe.spark.driver.report import UI_FILE, UiAddresses, report_folder
from airflow_provider_snowpipe.spark.source import is_connect, release
from airflow_provider_snowpipe.streaming.checkpoint import position_of
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SnowpipeError
from airflow_provider_snowpipe.streaming.lag import FileBacklog

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_provider_snowpipe.spark.source import Partition
    from airflow_provider_snowpipe.streaming.client import SnowpipeClient
    from airflow_provider_snowpipe.streaming.offsets import Offset
    from airflow_provider_snowpipe.streaming.progress import ChannelStatus


class JobSession:
    """The job's Spark: started when somebody first needs it, stopped with the block at the latest."""

    def __init__(self, plan: JobPlan | WritePlan) -> None:
        self._plan = plan
        self._spark: Any = None
        self._ours = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Any:
        """Start Spark with a session, or give what runs."""
        return self._started(start_spark)

    def executors(self) -> Any:
        """What runs tasks: a context, or the session itself over Spark Connect.

        Where nobody has asked for a session the context has none: to make one, and the classes of Spark SQL,
        takes a fifth of the processor time of a small load (observed with Spark 4.2).
        """
        spark = self._started(_start_tasks)
        return spark if is_connect(spark) else _context_of(spark)

    def stop(self) -> None:
        """Stop Spark if it was started here; what was started keeps its result."""
        spark, self._spark = self._spark, None
        if spark is None or not self._ours:
            return
        if is_connect(spark):
            spark.stop()
            return
        from py4j.protocol import Py4JError

        # This stops all of Spark. PySpark's own ``stop`` then waits for its server of accumulators, which
        # polls once a second (observed with Spark 4.2), and which ends with this process as well.
        with suppress(Py4JError):  # ``stop`` warns of it
            _context_of(spark)._jsc.stop()
        Thread(target=spark.stop, name="snowpipe-stop", daemon=True).start()

    def _started(self, start: Callable[[str], Any]) -> Any:
        if self._spark is None:
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            self._ours = not _has_session()
            self._spark = start(self._plan.application)
            if not is_connect(self._spark):
                require_same_spark(self._spark)
                addresses = UiAddresses.of_context(_context_of(self._spark))
                write_beside_report(self._plan, UI_FILE, addresses.to_json())
                print(f"snowpipe ui {addresses.running or 'is switched off'}", flush=True)
        return self._spark


def _context_of(spark: Any) -> Any:
    return getattr(spark, "sparkContext", spark)


def write_beside_report(plan: JobPlan | WritePlan, name: str, text: str) -> None:
    """Write a file where the report goes, if it goes anywhere."""
    if plan.report_path:
        report_folder(plan.report_path).write(name, text)


def clear_report(plan: JobPlan | WritePlan) -> None:
    """Make sure that a report found afterwards is this run's."""
    if not plan.report_path:
        return
    folder = report_folder(plan.report_path)
    folder.check()
    folder.remove(Path(plan.report_path).name)


def report_error(error: SnowpipeError) -> int:
    """Report the error in one line on standard error, in the form in which the task finds it."""
    print(f"snowpipe error: {error_type_of(error)}: {error}", file=sys.stderr, flush=True)
    return 1


def start_spark(application: str) -> Any:
    """Start Spark with the settings that exactly-once needs; the master is the submitter's to choose.

    Where ``SPARK_REMOTE`` names a Spark Connect server the session is one of that server, whose settings are
    its own.
    """
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(application).config("spark.sql.session.timeZone", "UTC")
    if "SPARK_REMOTE" in os.environ and not _has_session():
        return _connected(builder, os.environ["SPARK_REMOTE"])
    if "SPARK_REMOTE" not in os.environ:
        builder = builder.config("spark.speculation", "false")
    session = builder.getOrCreate()
    if is_connect(session):
        with _written_package() as archive:
            session.addArtifacts(str(archive), pyfile=True)
    return session


def _start_tasks(application: str) -> Any:
    """The same for a job that runs tasks and no query: without a session, unless the platform has one."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql.utils import is_remote

    if is_remote() or "SPARK_REMOTE" in os.environ or _has_session():
        return start_spark(application)
    settings = SparkConf().setAppName(application).set("spark.speculation", "false")
    return SparkContext.getOrCreate(settings)


def _has_session() -> bool:
    """True where the platform has started Spark for us, and stops it, too."""
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() is not None


# -- The job's tasks over Spark Connect, which has data frames but no ``SparkContext`` -------------------

_T = TypeVar("_T")
_R = TypeVar("_R")
_SCHEMA = "id long, result binary"
_BYTES_WITH_FUNCTION = 64 << 10


@contextmanager
def _written_package() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="snowpipe-connect-") as directory:
        yield write_package_archive(Path(directory))


def _connected(builder: Any, remote: str) -> Any:
    """Give the server's session that all jobs with this code share for a day.

    Every session gets a Python of its own on each executor, which takes half a second to start and stays
    until the server ends, also where the session is released (observed with Spark 4.2). Jobs over Spark
    Connect change no setting of their session. The server closes one that nobody has used for an hour, and
    remembers which: a session of this job's own takes its place, which is released at the job's end. So it
    does where the shared one does not take the package.

    :param remote: the server's address; one that names a session is taken as it is
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.connect.session import SparkSession

    with _written_package() as archive:
        if "session_id=" in remote:
            session = builder.remote(remote).getOrCreate()
            session.release_session_on_close = False
            session.addArtifacts(str(archive), pyfile=True)
            return session
        session = None
        try:
            session = builder.remote(_shared_session(remote, archive.read_bytes())).getOrCreate()
            session.release_session_on_close = False
            session.addArtifacts(str(archive), pyfile=True)
        except PySparkException as error:
            if session is None and "[INVALID_HANDLE.SESSION_" not in str(error):
                raise
            closed = SparkSession.getActiveSession()
            if closed is not None:
                closed.release_session_on_close = False
                closed.stop()
            session = builder.remote(remote).getOrCreate()
            session.addArtifacts(str(archive), pyfile=True)
    return session


def _shared_session(remote: str, package: bytes) -> str:
    """The server's address with the session of today and of this code."""
    known = f"{datetime.now(UTC):%Y-%m-%d}".encode() + package
    session_id = UUID(bytes=hashlib.sha256(known).digest()[:16], version=4)
    address = remote if "/;" in remote else remote.rstrip("/") + "/;"
    return f"{address.rstrip(';')};session_id={session_id}"


def one_connect_task_each(session: Any, work: Callable[[_T], _R], items: list[_T]) -> list[_R]:
    """Run one Spark task for each item, in one job.

    A range of as many partitions as rows has one row in each, and keeps them where the items are joined by a
    broadcast, which shuffles nothing (observed with Spark 4.2). Few items go to every task with the function,
    which takes half of the time.

    :return: the results, in the order of the items
    :raises ConfigurationError: if the server answers with something else
    """
    packed = [pickle.dumps(item) for item in items]
    carried = packed if sum(map(len, packed)) <= _BYTES_WITH_FUNCTION else None

    def of_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                item = row["item"] if carried is None else carried[row["id"]]
                result = pickle.dumps(work(pickle.loads(item)))  # noqa: S301  the driver's own
                yield _row(row["id"], result)

    frame = session.range(0, len(items), 1, len(items))
    if carried is None:
        items_by_id = session.createDataFrame(list(enumerate(packed)), "id long, item binary")
        frame = frame.join(items_by_id.hint("broadcast"), "id")
    rows = sorted(frame.mapInArrow(of_partition, _SCHEMA).collect(), key=lambda row: int(row["id"]))
    return [_Result(io.BytesIO(row["result"])).load() for row in rows]


def _row(number: int, result: bytes) -> pa.RecordBatch:
    """A row of :data:`_SCHEMA`, of buffers: ``pyarrow.array`` would import pandas in each new worker."""
    import pyarrow as pa

    ids = pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(struct.pack("<q", number))])
    ends = pa.py_buffer(struct.pack("<ii", 0, len(result)))
    results = pa.Array.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(result)])
    return pa.RecordBatch.from_arrays([ids, results], names=["id", "result"])


class _Result(pickle.Unpickler):
    """A result of our tasks: our dataclasses and plain values, since a server may be somebody else's."""

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("airflow_provider_snowpipe.") and "." not in name:
            found = super().find_class(module, name)
            if isinstance(found, type) and is_dataclass(found):
                return found
        raise ConfigurationError(
            f"the Spark Connect server answered with {module}.{name}, which no task of this job returns: "
            "see who runs the server, and whether anything in between changes its answers"
        )


# -- Tasks of a small load on a local master: threads of the driver do what executors do, without Spark --


class LocalTasks:
    """Runs tasks as a master ``local[threads, attempts]`` does: so many at once, each until it succeeds."""

    def __init__(self, master: str) -> None:
        found = LOCAL_MASTER.fullmatch(master)
        if found is None:
            raise ConfigurationError(f"plan local_master is {master!r}: give a master such as 'local[*]'")
        threads = found["threads"] or "1"
        self._threads = max(1, (os.cpu_count() or 1) if threads == "*" else int(threads))
        self._attempts = max(1, int(found["attempts"] or 1))
        self._running: list[Future[Any]] = []

    @property
    def finished(self) -> int:
        """How many tasks of the last :meth:`run` have ended."""
        return sum(one.done() for one in self._running)

    def run(self, work: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
        """Run one task for each item; after a failure none begins, and those that run come to their end."""
        with ThreadPoolExecutor(min(self._threads, len(items)), "snowpipe-task") as pool:
            running = [pool.submit(self._attempted, work, item) for item in items]
            self._running = list(running)
            ended, _ = wait(running, return_when=FIRST_EXCEPTION)
            pool.shutdown(wait=True, cancel_futures=True)
        for one in ended:
            one.result()
        return [one.result() for one in running]

    def _attempted(self, work: Callable[[_T], _R], item: _T) -> _R:
        for attempt in range(1, self._attempts):
            try:
                return work(item)
            except SnowpipeError as error:
                print(f"snowpipe attempt {attempt} of a task failed: {error}", file=sys.stderr, flush=True)
        return work(item)


# -- The versions that driver, executors and JVM must agree on, checked before a row moves ---------------
#
# PySpark itself refuses an executor whose Python has another minor version than the driver's;
# :mod:`~airflow_provider_snowpipe.spark.driver.outcome` puts that into words. It checks nothing else: with
# another PySpark, or another version of this package, a task breaks somewhere in its middle.

SPARK_RELEASE = "4.2.0"
"""What the extra ``spark`` installs of both pyspark and pyspark-client: the newest that there is of both."""


def require_same_spark(spark: Any) -> None:
    """Refuse a JVM of another Spark release than the PySpark that drives it."""
    import pyspark

    if release(spark.version) != release(pyspark.__version__):
        raise ConfigurationError(
            f"the driver's PySpark is {pyspark.__version__}, its JVM is Spark {spark.version}: install "
            f"pyspark=={spark.version}, or let SPARK_HOME lead to Spark {pyspark.__version__}. Nothing was "
            "sent"
        )


def check_versions() -> None:
    """Refuse to start where ``pyspark`` and ``pyspark-client`` are installed in different versions.

    The two wheels install the same files, so the one installed last decides what is imported, and Spark
    breaks in the middle of a run (observed with 4.3.0 and 4.2.0).
    """
    full, client = installed_version("pyspark"), installed_version("pyspark-client")
    if full is None and client is None and PathFinder.find_spec("pyspark") is not None:
        return  # of a Spark that was unpacked, not installed as a wheel
    if full is None and client is not None and "SPARK_REMOTE" in os.environ:
        return
    if full is None:
        raise ConfigurationError(
            "pyspark is not installed: install airflow-provider-snowpipe[spark] where spark-submit runs"
        )
    if client is not None and client != full:
        raise ConfigurationError(
            f"pyspark {full} and pyspark-client {client} are both installed and overwrite each other's "
            "files: install equal versions, as airflow-provider-snowpipe[spark] does, by pip install "
            f"--force-reinstall --no-deps pyspark=={SPARK_RELEASE} pyspark-client=={SPARK_RELEASE}, or "
            "pyspark alone in an environment of its own"
        )


def installed_version(distribution: str) -> str | None:
    """The version of an installed package, None where it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


# -- Progress of a running job: one line for all channels together, when they have moved ------------------

_INTERVAL_SECONDS = 5.0
_CHANNELS_A_SECOND = 1_000
"""More channels are asked after less often: a status request names a hundred of them."""
_JOIN_SECONDS = 5.0


class ProgressLines:
    """Prints what the service has committed while the Spark job runs, when that has changed.

    A context manager with a thread of its own and a client of its own; the thread ends with the block, or at
    the latest when its last request has timed out.

    :param began: when that was, by the monotonic clock
    :param interval: seconds between two polls, None for 5, or more where there are many channels
    """

    def __init__(
        self,
        client: Callable[[], SnowpipeClient],
        partitions: Mapping[str, Partition],
        start: Mapping[str, ChannelStatus],
        *,
        began: float,
        done: Callable[[], int] = lambda: 0,
        interval: float | None = None,
    ) -> None:
        self._done = done
        self._client = client
        self._partitions = dict(partitions)
        self._start = dict(start)
        self._began = began
        self._interval = interval or max(_INTERVAL_SECONDS, len(partitions) / _CHANNELS_A_SECOND)
        self._stop = Event()
        self._thread = Thread(target=self._run, name="snowpipe-progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        totals, shown = Totals(self._poll(self._began, self._start)), None
        with self._client() as client:
            while not self._stop.wait(self._interval if shown else min(self._interval, 1.0)):
                try:
                    statuses = client.channel_statuses(list(self._partitions))
                except SnowpipeError as error:
                    print(f"snowpipe progress unknown: {error}", file=sys.stderr, flush=True)
                    continue
                totals.take(self._poll(time.monotonic(), statuses))
                done = f"done={min(self._done(), len(statuses))}/{len(statuses)}"
                if (moved := (done, totals.now.rows, totals.now.rejected)) != shown:
                    print(f"snowpipe progress total {totals.line(done)}", flush=True)
                shown = moved

    def _poll(self, at: float, statuses: Mapping[str, ChannelStatus]) -> Poll:
        positions = {name: _position(one, statuses[name]) for name, one in self._partitions.items()}
        behind = [one.behind(positions[name]) for name, one in self._partitions.items()]
        files = (one.files_behind(positions[name]) for name, one in self._partitions.items())
        return Poll.of(
            at,
            [(self._start[name], statuses[name]) for name in self._partitions],
            bytes_behind=sum_known(one.bytes for one in behind),
            rows_behind=sum_known(one.rows for one in behind),
            backlog=FileBacklog.total(None if one is None else FileBacklog.of(one) for one in files),
        )


def _position(partition: Partition, status: ChannelStatus) -> Offset | None:
    return None if status.committed is None else position_of(status.committed, partition.offset_class)

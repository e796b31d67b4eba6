"""How the Spark job grows: with rows, with channels and with partitions that are only planned.

TPC-H lineitem goes through the Spark job into the local service: rows per second, processor seconds, and the
memory that each process needed at most. The rows come from ``tpchgen-cli`` (``pip install tpchgen-cli``) as
Parquet files, one channel each, and the table is compared with the files: number of rows and the sums of two
columns. With several numbers of rows the exponents by which time grows with them are printed: 1 is
proportional. Executors are processes of a standalone cluster on this machine or containers of a YARN (``--on
yarn``, from Maven Central), sampled while they work; with ``--on local`` the driver is the executor, too.

    python benchmarks/spark_scale.py --rows 1000000 4000000 --channels 8 128 --on yarn

``--plan`` times what a driver does before the first task: list the partitions, read their channels' tokens,
find where each goes on. ``--status`` counts the requests of a load of 200 rows a channel into a receiver that
commits each append after five seconds, about what Snowflake takes. Both take numbers of partitions.

    python benchmarks/spark_scale.py --plan 1000 10000
    python benchmarks/spark_scale.py --status 8 128 1024
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self
from unittest.mock import patch

import psutil
import pyarrow.compute as pc
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from airflow_provider_snowpipe.operators.submission import launch_environment
from airflow_provider_snowpipe.spark.driver.rounds import rounds_of
from airflow_provider_snowpipe.spark.driver.run import Run
from airflow_provider_snowpipe.spark.sources.files.spec import ByName, FileSource
from airflow_provider_snowpipe.streaming.http import Transports
from benchmarks.measuring import peak_bytes
from benchmarks.receiver_process import Receiver
from tests.local_service import LocalService
from tests.spark_cluster import StandaloneCluster
from tests.spark_job import SparkJob, new_table, write_rows
from tests.yarn_cluster import EXECUTOR, yarn_cluster

ROWS_OF_SCALE_1 = 6_001_215
TABLE = "LINEITEM"
_COLUMNS = (
    "L_ORDERKEY NUMBER, L_PARTKEY NUMBER, L_SUPPKEY NUMBER, L_LINENUMBER NUMBER, L_QUANTITY NUMBER(15, 2), "
    "L_EXTENDEDPRICE NUMBER(15, 2), L_DISCOUNT NUMBER(15, 2), L_TAX NUMBER(15, 2), L_RETURNFLAG VARCHAR, "
    "L_LINESTATUS VARCHAR, L_SHIPDATE DATE, L_COMMITDATE DATE, L_RECEIPTDATE DATE, L_SHIPINSTRUCT VARCHAR, "
    "L_SHIPMODE VARCHAR, L_COMMENT VARCHAR"
)
_REPOSITORY = str(Path(__file__).resolve().parents[1])
_SAMPLE_SECONDS = 0.2
_MOST_SECONDS = 7200.0
_STATUS_ROWS = 200
_COMMIT_SECONDS = 5.0


@dataclass(frozen=True)
class Machines:
    """Where the executors run.

    :param master: Spark's
    :param conf: settings of a submission
    :param env: its environment
    :param executors: lists the executors' JVMs
    """

    master: str
    conf: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    executors: Callable[[], list[psutil.Process]] = list


@contextmanager
def machines(kind: str, folder: Path) -> Iterator[Machines]:
    """Start a cluster, or none.

    :param kind: ``local``, ``standalone``, ``yarn``
    :param folder: for its files
    """
    if kind == "local":
        yield Machines("local[2]")
    elif kind == "standalone":
        cluster = StandaloneCluster(folder, {"PYTHONPATH": _REPOSITORY})
        try:
            cluster.start()
            yield Machines(cluster.url, {"spark.executor.memory": "512m"}, {}, cluster.executors)
        finally:
            cluster.stop()
    else:
        with yarn_cluster(folder / "yarn") as yarn:
            env, conf = yarn.submission(folder / "staging")
            conf |= {
                "spark.executor.memory": "512m",
                "spark.executor.instances": "1",
                "spark.executor.cores": "2",
                "spark.executorEnv.PYTHONPATH": _REPOSITORY,
            }
            yield Machines("yarn", conf, env, lambda: yarn.containers(EXECUTOR))


@dataclass
class Usage:
    """What processes use while the block runs, sampled in a thread.

    Containers of a YARN take their processor time with them: no process that waits for them reports it.

    :param executors: lists the executors' JVMs, whose Python workers are watched as well
    :param bytes: the most resident memory of each kind of process
    """

    executors: Callable[[], list[psutil.Process]]
    bytes: dict[str, int] = field(default_factory=dict)
    _seconds: dict[tuple[int, float], float] = field(default_factory=dict)
    _submitted: psutil.Process | None = None
    _stop: Event = field(default_factory=Event)

    def __enter__(self) -> Self:
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def cpu(self) -> float:
        """Processor seconds of all of them, as they were last seen."""
        return sum(self._seconds.values())

    def watch(self, pid: int) -> None:
        """Watch a driver, too: ``spark-submit`` and all that it starts."""
        self._submitted = psutil.Process(pid)

    def _run(self) -> None:
        while not self._stop.wait(_SAMPLE_SECONDS):
            for executor in self.executors():
                self._take(executor, "executor JVM")
            if self._submitted is not None:
                self._take(self._submitted, "driver JVM")

    def _take(self, jvm: psutil.Process, kind: str) -> None:
        """Take a JVM, and what runs in Python below it."""
        try:
            family = [jvm, *jvm.children(recursive=True)]
        except psutil.Error:  # it has ended
            return
        for process in family:
            try:
                line, times = " ".join(process.cmdline()), process.cpu_times()
            except psutil.Error:  # it has ended; the others have not
                continue
            self._seconds[process.pid, process.create_time()] = times.user + times.system
            # The daemon forks the workers and loads nothing.
            found = "Python worker" if "pyspark.daemon" in line else kind
            if found == "driver JVM" and "java" not in line.partition(" ")[0]:
                found = "driver's Python"
            self.bytes[found] = max(self.bytes.get(found, 0), peak_bytes(process.pid))


def generate(generator: str, rows: int, parts: int, folder: Path) -> Path:
    """Write the rows as Parquet files; returns their directory."""
    command = [generator, "parquet", "-s", f"{rows / ROWS_OF_SCALE_1:.5f}", "--tables", "lineitem"]
    subprocess.run([*command, "--parts", str(parts), "--output-dir", str(folder)], check=True)
    return folder / "lineitem"


def facts(files: list[Path]) -> tuple[int, int, int]:
    """Rows, sum of the order keys and hundredfold sum of the quantities, read from the files."""
    rows = keys = quantities = 0
    for file in files:
        table = pq.read_table(file, columns=["l_orderkey", "l_quantity"])
        rows += table.num_rows
        keys += pc.sum(table["l_orderkey"]).as_py()
        quantities += int(pc.sum(table["l_quantity"]).as_py() * 100)
    return rows, keys, quantities


def facts_of_table(service: LocalService) -> tuple[int, int, int]:
    """The same, read from the table."""
    (row,) = service.sql(
        "SELECT COUNT(*) N, SUM(L_ORDERKEY)::VARCHAR K, (SUM(L_QUANTITY) * 100)::NUMBER(38, 0)::VARCHAR Q "
        "FROM LOCAL.PUBLIC.LINEITEM"
    )
    return int(row["N"]), int(row["K"]), int(row["Q"])


def run(service: LocalService, where: Machines, source: Path, folder: Path) -> dict[str, Any]:
    """Load one size; returns what was measured."""
    service.sql(f"CREATE OR REPLACE TABLE LOCAL.PUBLIC.{TABLE} ({_COLUMNS})")
    spec = FileSource(
        path=str(source),
        pattern="*.parquet",
        format="parquet",
        partitions=ByName(regex=r"lineitem[.](?P<partition>[0-9]+)[.]parquet"),
    )
    conf = {"spark.driver.host": "127.0.0.1", **where.conf}
    env = {**launch_environment(folder / "java"), **where.env}
    options = {"commit_timeout": 600.0, "channel_prefix": folder.name}
    job = SparkJob(service, folder / "runs", TABLE, spec, options, conf=conf, env=env)
    with Usage(where.executors) as usage, job.start(master=where.master) as running:
        usage.watch(running.process.pid)
        end = running.wait(_MOST_SECONDS)
    assert end.code == 0, end.out[-2000:] + end.err[-3000:]
    expected, found = facts(sorted(source.glob("*.parquet"))), facts_of_table(service)
    assert found == expected, (found, expected)
    report = end.report
    assert report is not None
    return {
        "rows": report.rows,
        "channels": len(report.channels),
        "ndjson_bytes": report.bytes,
        "seconds": round(report.seconds, 1),
        "cpu_seconds": round(usage.cpu, 1),
        "rows_per_second": round(report.rows / report.seconds),
        "peak_mib": {kind: round(size / 2**20) for kind, size in sorted(usage.bytes.items())},
    }


def exponents(runs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """By which power of the rows the time grows, between each two sizes with as many channels."""
    for channels in sorted({one["channels"] for one in runs}):
        sizes = sorted((one for one in runs if one["channels"] == channels), key=lambda one: one["rows"])
        for less, more in pairwise(sizes):
            grown = math.log(more["rows"] / less["rows"])
            yield {
                "channels": channels,
                "rows": [less["rows"], more["rows"]],
                "exponents": {
                    name: round(math.log(more[name] / less[name]) / grown, 2)
                    for name in ("seconds", "cpu_seconds")
                },
            }


def measure_loads(chosen: argparse.Namespace, folder: Path) -> None:
    """Load each size through each number of channels, one JSON object a line."""
    service = LocalService(folder / "service")
    service.start()
    runs = []
    try:
        with machines(chosen.on, folder) as where:
            for rows in chosen.rows:
                for channels in chosen.channels:
                    began = time.monotonic()
                    directory = folder / f"r{rows}c{channels}"
                    source = generate(chosen.generator, rows, channels, directory)
                    print(f"{rows} rows generated in {time.monotonic() - began:.1f} s", file=sys.stderr)
                    runs.append(run(service, where, source, directory))
                    print(json.dumps({"on": chosen.on, **runs[-1]}), flush=True)
                    shutil.rmtree(source)
    finally:
        service.stop()
    for found in exponents(runs):
        print(json.dumps({"on": chosen.on, **found}), flush=True)


def _write_source(folder: Path, partitions: int, rows: int) -> FileSource:
    for number in range(partitions):
        write_rows(folder / f"p{number:06}" / "1.ndjson", range(number * rows, (number + 1) * rows))
    return FileSource(path=str(folder))


def measure_planning(partitions: int, folder: Path) -> dict[str, Any]:
    """Prepare a load of new channels as far as the first task."""
    service = LocalService(folder / "service", limits="off")
    service.start()
    try:
        source = _write_source(folder / "source", partitions, 1)
        job = SparkJob(service, folder / "runs", new_table(service, "PLANNED"), source)
        seen: Counter[str] = Counter()
        send = Transports.send

        def count(transport: Transports, method: str, url: str, **more: Any) -> Any:
            seen[url.rpartition(":")[2]] += 1
            return send(transport, method, url, **more)

        with patch.object(Transports, "send", count), service.client(job.table) as client:
            cpu, began = time.process_time(), time.perf_counter()
            planned = Run(job.plan(), client)
            planned.prepare()
            prepared = time.perf_counter()
            works = rounds_of(planned._source, None).locate(planned._partitions, planned._committed)
            ended = time.perf_counter()
            cpu = time.process_time() - cpu
        assert len(works) == partitions
        return {
            "partitions": partitions,
            "seconds": round(ended - began, 2),
            "cpu_seconds": round(cpu, 2),
            "of_these_locating": round(ended - prepared, 2),
            "status_requests": seen["bulk-channel-status"],
        }
    finally:
        service.stop()


def measure_status(channels: int, folder: Path) -> dict[str, Any]:
    """Load a few rows into each channel, and count the requests."""
    receiver = Receiver(folder / "receiver")
    try:
        receiver.delays(commit=_COMMIT_SECONDS)
        source = _write_source(folder / "source", channels, _STATUS_ROWS)
        job: Any = SparkJob(receiver, folder / "runs", "COUNTED", source)  # type: ignore[arg-type]
        with job.start(master="local[32]") as running:
            end = running.wait(_MOST_SECONDS)
        assert end.code == 0, end.out[-2000:] + end.err[-3000:]
        seen = receiver.requests()
        receiver.require(channels * _STATUS_ROWS)
        polls = seen["bulk-channel-status"]
        return {
            "channels": channels,
            "seconds": round(end.report.seconds, 1),
            "appends": seen["rows"],
            "status_requests": polls,
            "status_requests_a_minute": round(polls / end.report.seconds * 60),
        }
    finally:
        receiver.stop()


def main() -> int:
    """Measure what is asked for, one JSON object a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--channels", type=int, nargs="+", default=[8], help="files, and channels")
    parser.add_argument("--on", choices=["local", "standalone", "yarn"], default="standalone")
    parser.add_argument("--plan", type=int, nargs="+", default=[], help="plan so many partitions, no load")
    parser.add_argument("--status", type=int, nargs="+", default=[], help="count their requests, likewise")
    parser.add_argument("--generator", default=shutil.which("tpchgen-cli"), help="path of tpchgen-cli")
    chosen = parser.parse_args()
    alone = [(measure_planning, one) for one in chosen.plan]
    alone += [(measure_status, one) for one in chosen.status]
    if not alone and chosen.generator is None:
        parser.error("tpchgen-cli is not on PATH: pip install tpchgen-cli")
    with tempfile.TemporaryDirectory(prefix="snowpipe-scale-") as name:
        for number, (measure, size) in enumerate(alone):
            print(json.dumps(measure(size, Path(name) / str(number))), flush=True)
        if not alone:
            measure_loads(chosen, Path(name))
    return 0


if __name__ == "__main__":
    sys.exit(main())

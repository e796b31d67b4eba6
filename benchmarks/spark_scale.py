"""TPC-H lineitem through the Spark job: rows per second, and the memory that each process needed at most.

The rows come from ``tpchgen-cli`` (``pip install tpchgen-cli``) as Parquet files, one channel each. Executors
are processes of a standalone cluster on this machine, sampled while they work. The table is compared with
the files: number of rows and the sums of two columns. Sizes may be several, to show that memory does not grow
with them.

    python benchmarks/spark_scale.py --rows 1000000 10000000
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self

import psutil
import pyarrow.compute as pc
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from airflow_provider_snowpipe.operators.submission import launch_environment
from airflow_provider_snowpipe.spark.sources.files.spec import FileSourceSpec
from benchmarks.measuring import peak_bytes
from tests.local_service import LocalService
from tests.spark_cluster import StandaloneCluster
from tests.spark_job import SparkJob

ROWS_OF_SCALE_1 = 6_001_215
TABLE = "LINEITEM"
_COLUMNS = (
    "L_ORDERKEY NUMBER, L_PARTKEY NUMBER, L_SUPPKEY NUMBER, L_LINENUMBER NUMBER, L_QUANTITY NUMBER(15, 2), "
    "L_EXTENDEDPRICE NUMBER(15, 2), L_DISCOUNT NUMBER(15, 2), L_TAX NUMBER(15, 2), L_RETURNFLAG VARCHAR, "
    "L_LINESTATUS VARCHAR, L_SHIPDATE DATE, L_COMMITDATE DATE, L_RECEIPTDATE DATE, L_SHIPINSTRUCT VARCHAR, "
    "L_SHIPMODE VARCHAR, L_COMMENT VARCHAR"
)
_SAMPLE_SECONDS = 0.5
_MOST_SECONDS = 7200.0


@dataclass
class PeakMemory:
    """The most resident memory of each kind of process, sampled in a thread while the block runs.

    :param cluster: whose executors and their Python workers are watched
    """

    cluster: StandaloneCluster
    bytes: dict[str, int] = field(default_factory=dict)
    _stop: Event = field(default_factory=Event)

    def __enter__(self) -> Self:
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_SAMPLE_SECONDS):
            for executor in self.cluster.executors():
                self._take("executor JVM", [executor])
                try:
                    # The daemon forks the workers and loads nothing.
                    self._take("Python worker", executor.children(recursive=True))
                except psutil.NoSuchProcess:
                    continue

    def _take(self, kind: str, processes: list[psutil.Process]) -> None:
        for process in processes:
            self.bytes[kind] = max(self.bytes.get(kind, 0), peak_bytes(process.pid))


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


def run(service: LocalService, cluster: StandaloneCluster, source: Path, folder: Path) -> dict[str, Any]:
    """Load one size; returns what was measured."""
    service.sql(f"CREATE OR REPLACE TABLE LOCAL.PUBLIC.{TABLE} ({_COLUMNS})")
    spec = FileSourceSpec(
        path=str(source),
        pattern="*.parquet",
        format="parquet",
        group_by="name",
        name_pattern=r"lineitem[.](?P<partition>[0-9]+)[.]parquet",
        numbering="ignored",
    )
    conf = {"spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1"}
    env = launch_environment(folder / "java")
    options = {"commit_timeout": 600.0, "channel_prefix": folder.name}
    job = SparkJob(service, folder / "runs", TABLE, spec, options, conf=conf, env=env)
    with PeakMemory(cluster) as peak, job.start(master=cluster.url) as running:
        finished = running.wait(_MOST_SECONDS)
    assert finished.code == 0, finished.out[-2000:] + finished.err[-3000:]
    wanted, found = facts(sorted(source.iterdir())), facts_of_table(service)
    assert found == wanted, (found, wanted)
    report = finished.report
    assert report is not None
    return {
        "rows": report.rows,
        "channels": len(report.channels),
        "ndjson_bytes": report.bytes,
        "seconds": round(report.seconds, 1),
        "rows_per_second": round(report.rows / report.seconds),
        "peak_mib": {kind: round(size / 2**20) for kind, size in sorted(peak.bytes.items())},
    }


def main() -> int:
    """Load each size and print what was measured, one JSON object a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--parts", type=int, default=8, help="files, and channels")
    parser.add_argument("--generator", default=shutil.which("tpchgen-cli"), help="path of tpchgen-cli")
    chosen = parser.parse_args()
    if chosen.generator is None:
        parser.error("tpchgen-cli is not on PATH: pip install tpchgen-cli")
    with tempfile.TemporaryDirectory(prefix="snowpipe-scale-") as name:
        folder = Path(name)
        service = LocalService(folder / "service")
        service.launch()
        cluster = StandaloneCluster(folder, {"PYTHONPATH": str(Path(__file__).resolve().parents[1])})
        try:
            cluster.start()
            for rows in chosen.rows:
                began = time.monotonic()
                place = folder / f"r{rows}"
                source = generate(chosen.generator, rows, chosen.parts, place)
                print(f"{rows} rows generated in {time.monotonic() - began:.1f} s", file=sys.stderr)
                print(json.dumps(run(service, cluster, source, place)), flush=True)
                shutil.rmtree(source)
        finally:
            cluster.stop()
            service.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())

